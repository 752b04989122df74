// What an operator can do. Whatever changes something asks first, takes a note, and says what became of it; the broker's audit trail
// has who and why.
import { h, morph } from './dom.js';
import { call, get, keyOf, post, queuePath } from './api.js';
import { count, plural } from './format.js';
import { notice } from './parts.js';

let dialog = null;

export function closeDialog() {
    dialog?.remove();
    dialog = null;
}

function openDialog(...kids) {
    closeDialog();
    const before = document.activeElement;
    dialog = h('dialog', { 'aria-labelledby': 'dialog-title' }, ...kids);
    document.body.append(dialog);
    dialog.addEventListener('close', () => {
        closeDialog();
        before?.focus?.();
    });
    dialog.showModal();
    return dialog;
}

const KEYS = [['/', 'find a key, id, request or trace'], ['j  k', 'next, previous'], ['enter', 'open'], ['esc', 'back, or leave a field'], ['?', 'this help']];

export function showHelp() {
    openDialog(h('h2', { id: 'dialog-title' }, 'Keys'), h('dl', { class: 'keys' }, KEYS.map(([k, what]) => [h('dt', {}, h('kbd', {}, k)), h('dd', {}, what)])),
        h('form', { method: 'dialog' }, h('button', { autofocus: true }, 'Close')));
}

// Who it is: asked once a tab.
const me = {
    get name() { return sessionStorage.getItem('hapax-by') ?? ''; },
    set name(v) { sessionStorage.setItem('hapax-by', v); },
};

// Asks, then does. `act({by, note, ...fields}, progress)` returns words about what became of it; progress(done, all, cancel) shows how
// far it is. `preview`, if given, returns the button's words; until then it cannot be pressed.
export function ask({ title, words, fields = [], button, danger, preview, act, done }) {
    const status = h('div', { class: 'dialog-status', role: 'status' });
    const go = h('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, button);
    const note = h('textarea', { id: 'note', rows: '2', maxlength: '400', required: true });
    const by = h('input', { id: 'by', value: me.name, maxlength: '100', autocomplete: 'username', required: true });
    const leave = h('button', { type: 'button', onclick: () => dialog?.close() }, 'Leave it');
    const inputs = fields.map((f) => [f.name, f.options
        ? h('select', { id: `field-${f.name}` }, f.options.map(([value, text]) => h('option', { value }, text)))
        : h(f.rows ? 'textarea' : 'input', { id: `field-${f.name}`, rows: f.rows, type: f.rows ? undefined : f.type ?? 'text', min: f.min, max: f.max, placeholder: f.placeholder, maxlength: f.maxlength })]);
    const label = (f, i) => [h('label', { for: `field-${f.name}` }, f.label), inputs[i][1]];
    const form = h('form', { class: 'deed' }, words, fields.map(label),
        h('label', { for: 'note' }, 'Why? It goes into the audit trail.'), note, h('label', { for: 'by' }, 'Your name'), by,
        status, h('div', { class: 'buttons' }, go, leave));
    openDialog(h('h2', { id: 'dialog-title' }, title), form);
    note.focus();
    if (preview) foresee(preview, go, status);
    form.onsubmit = async (e) => {
        e.preventDefault();
        const said = { by: by.value.trim(), note: note.value.trim(), ...Object.fromEntries(inputs.map(([name, input]) => [name, input.value.trim()])) };
        if (!said.by || !said.note || go.disabled) return;
        me.name = said.by;
        go.disabled = true;
        leave.textContent = 'Close';
        morph(status, 'Under way …');
        try {
            morph(status, h('p', { class: 'became' }, await act(said, (...how) => morph(status, bar(...how)))));
            go.remove();
            leave.focus();
            done?.();
        } catch (error) {
            go.disabled = false;
            morph(status, notice(error, true));
        }
    };
}

async function foresee(preview, go, status) {
    const plain = go.textContent;
    go.disabled = true;
    go.textContent = `${plain} …`;
    try {
        const { text, none } = await preview();
        go.textContent = text;
        go.disabled = Boolean(none);
    } catch (error) {
        morph(status, notice(error, true));
    }
}

function bar(done, all, cancel) {
    return [h('progress', { value: done, max: Math.max(all, 1), 'aria-label': 'Progress' }), ` ${count(done)} of ${count(all)} `,
        cancel ? h('button', { type: 'button', class: 'small', onclick: cancel }, 'Stop') : ''];
}

// ---- redrive

// What the broker says it would do, as words on the button.
export function redriveWords({ matched, would_run, would_reconcile, would_refuse, no_op, with_group }) {
    const parts = [];
    if (would_run) parts.push(`${count(would_run)} ${would_run === 1 ? 'runs' : 'run'} again`);
    if (would_reconcile) parts.push(`${count(would_reconcile)} ${would_reconcile === 1 ? 'is' : 'are'} asked first`);
    if (would_refuse) parts.push(`${count(would_refuse)} would fail the schema again`);
    if (no_op) parts.push(`${count(no_op)} left as they are`);
    if (with_group) parts.push(`${count(with_group)} come back with their group’s head`);
    return `Redrive ${count(matched)}${parts.length ? `: ${parts.join(', ')}` : ''}`;
}

const became = (r) => [`Redriven: ${count(r.redriven)}.`, r.no_op ? `Left as they were: ${count(r.no_op)}.` : '', r.with_group ? `Came back with their group: ${count(r.with_group)}.` : '',
    r.still_refused ? `Failed the schema again: ${count(r.still_refused)}.` : '', r.state === 'cancelled' || r.cancelled ? 'Stopped before the end; what was done stays.' : ''].filter(Boolean).join(' ');

// A long one is a task: followed to its end, and it can be stopped.
async function follow(id, progress) {
    for (;;) {
        const task = await get(`/v1/tasks/${encodeURIComponent(id)}`);
        if (task.state === 'failed') throw Object.assign(new Error('The disk has no room for more. What was done stays.'), { applied: 'unknown' });
        if (task.state !== 'running') return task;
        progress(task.redriven + task.no_op + task.still_refused, task.matched, () => call('DELETE', `/v1/tasks/${encodeURIComponent(id)}`));
        await new Promise((on) => setTimeout(on, 300));
    }
}

// which: {ids} or filters.
export function redrive(queue, which, done) {
    const path = queuePath(queue, 'redrive');
    ask({
        title: `Redrive the dead of ${queue}`,
        words: h('p', {}, 'They get all their attempts again, with key, steps and history. What any attempt left unknown is asked after before it is done again.'),
        fields: [{ name: 'rate', label: 'At most so many a second (empty: as fast as it goes)', type: 'number', min: 1, max: 1000000 }],
        button: 'Redrive',
        preview: async () => {
            const would = await post(path, { ...which, dry_run: true });
            return { text: redriveWords(would), none: !would.matched };
        },
        act: async ({ by, note, rate }, progress) => {
            const reply = await post(path, { ...which, by, note, ...(rate && { rate: Number(rate) }) });
            return became(reply.task ? await follow(reply.task, progress) : reply);
        },
        done,
    });
}

// ---- one after the other: resolve, cancel

async function each(items, deed, progress) {
    let at = 0, stopped = false;
    const failed = [];
    for (; at < items.length && !stopped; at++) {
        progress(at, items.length, () => { stopped = true; });
        try {
            await deed(items[at]);
        } catch (error) {
            if (error.status === undefined || error.applied === 'unknown') {
                error.message = `${count(at)} of ${count(items.length)} were done; then: ${error.message}`;
                throw error;
            }
            failed.push(error);
        }
    }
    const words = [`Done: ${count(at - failed.length)}.`];
    if (failed.length) words.push(`Refused: ${count(failed.length)} (${failed[0].message}).`);
    if (stopped) words.push(`Stopped; ${count(items.length - at)} are as they were.`);
    return words.join(' ');
}

const AS = {
    done: 'done: it happened', rejected: 'rejected: it is refused for good', retry: 'retry: do it, without asking first', dead: 'dead: give it up',
    new: 'new: admit it as work of its own', duplicate: 'duplicate: it is the same, drop it',
};

export function resolve(queue, items, done) {
    const conflicts = items.every((m) => m.held_because === 'conflict');
    const ways = conflicts ? ['new', 'duplicate'] : items.every((m) => m.state === 'dead') ? ['done', 'rejected', 'retry'] : ['done', 'rejected', 'retry', 'dead'];
    ask({
        title: items.length === 1 ? `Resolve ${keyOf(items[0])}` : `Resolve ${plural(items.length, 'message')} of ${queue}`,
        words: h('p', {}, conflicts ? 'The same key came with another payload. Is it new work?' : 'You say what became of it. Its last worker’s token dies.'),
        fields: [{ name: 'as', label: 'As', options: ways.map((w) => [w, AS[w]]) },
            ...(conflicts ? [] : [{ name: 'result', label: 'Result for whoever asks (done and rejected; may be empty)', rows: '2', maxlength: '1000' }])],
        button: `Resolve ${count(items.length)}`,
        act: ({ by, note, as, result }, progress) => each(items, (m) =>
            post(queuePath(queue, 'messages', m.id, 'resolve'), { as, by, note, ...(result && ['done', 'rejected'].includes(as) && { result }) }), progress),
        done,
    });
}

export function cancel(queue, items, done) {
    ask({
        title: items.length === 1 ? `Cancel ${keyOf(items[0]) ?? items[0].id}` : `Cancel ${plural(items.length, 'message')} of ${queue}`,
        words: h('p', {}, 'It will not be done. The key stays: a repeat is told that it was cancelled.'),
        button: `Cancel ${count(items.length)} for good`, danger: true,
        act: ({ by, note }, progress) => each(items, (m) => post(queuePath(queue, 'messages', m.id, 'cancel'), { by, note }), progress),
        done,
    });
}

export function revoke(queue, items, done) {
    ask({
        title: items.length === 1 ? `Take back ${keyOf(items[0]) ?? items[0].id}` : `Take back ${plural(items.length, 'message')} of ${queue}`,
        words: h('p', {}, 'As if the lease ran out now: it is handed out again, looked up or held, as the rules say. Stop the worker first if it is alive: until somebody else has the message, it may still settle it.'),
        button: `Take back ${count(items.length)}`, danger: true,
        act: ({ by, note }, progress) => each(items, (m) => post(queuePath(queue, 'messages', m.id, 'revoke'), { by, note }), progress),
        done,
    });
}

// ---- one key

const KEY_DEEDS = {
    replay: ['Run again', 'It runs again as the next generation, under an effect key of its own: downstreams will do it again.', 'Run it again'],
    erase: ['Erase', 'Payload, result, steps and reasons go; the key stays, so that repeats are still known. It cannot be undone.', 'Erase for good'],
    forget: ['Forget', 'The key goes: the next message with it is new work. It cannot be undone.', 'Forget for good'],
};

export function keyDeed(what, k, done) {
    const [title, words, button] = KEY_DEEDS[what];
    ask({
        title: `${title}: ${keyOf(k)}`, words: h('p', {}, words), button, danger: true,
        act: async ({ by, note }) => {
            if (what === 'forget') await call('DELETE', queuePath(k.queue, 'keys', keyOf(k)), { by, note });
            else await post(queuePath(k.queue, 'keys', keyOf(k), what), { by, note });
            return { replay: 'It waits to be handed out again.', erase: 'Erased.', forget: 'Forgotten.' }[what];
        },
        done,
    });
}

export function pauseQueue(q, done) {
    const what = q.paused ? 'resume' : 'pause';
    ask({
        title: `${q.paused ? 'Resume' : 'Pause'} ${q.name}`,
        words: h('p', {}, q.paused ? 'It hands out messages again.' : 'It takes messages and hands none out. What is being worked on can be settled.'),
        button: q.paused ? 'Resume' : 'Pause', danger: !q.paused,
        act: async ({ by, note }) => {
            await post(queuePath(q.name, what), { by, note });
            return q.paused ? 'It goes on.' : 'Paused.';
        },
        done,
    });
}

const targetPath = (t, deed) => `/v1/targets/${encodeURIComponent(t.queue)}/${deed}`;

// what: pause, or resume, which tries an open circuit at once.
export function steerTarget(t, done, what) {
    const pause = what === 'pause', words = pause ? 'Pause' : t.state === 'open' ? 'Try now' : 'Resume';
    ask({
        title: `${words}: the target of ${t.queue}`,
        words: h('p', {}, pause ? 'Nothing more is sent there, look-ups neither; what is under way ends as it ends. Messages are accepted, and wait.'
            : 'Deliveries go on. If the circuit is open, one is tried at once; the others follow when it is answered.'),
        button: words, danger: pause,
        act: async ({ by, note }) => {
            const now = await post(targetPath(t, what), { by, note });
            return pause ? 'Paused.' : `It goes on: ${now.state.replace('_', '-')}${now.why ? `, ${now.why}` : ''}.`;
        },
        done,
    });
}

export function testTarget(t, done) {
    ask({
        title: `Test the target of ${t.queue}`,
        words: h('p', {}, 'One OPTIONS for / goes to its host: no body, no key, none of the configured headers, so that nothing is done there. It tells whether the target is reached, not whether it takes a delivery.'),
        button: 'Test',
        act: async ({ by, note }) => {
            const r = await post(targetPath(t, 'test'), { by, note });
            return r.reached ? `Reached: ${r.url} answered ${r.status} after ${count(r.took_ms)} ms.` : `Not reached: ${r.url}: ${r.why}`;
        },
        done,
    });
}

export function stopTask(task, done) {
    ask({
        title: `Stop task ${task.id}`, words: h('p', {}, 'What it did stays, the rest is left as it is.'), button: 'Stop it', danger: true,
        act: async () => {
            const now = await call('DELETE', `/v1/tasks/${encodeURIComponent(task.id)}`);
            return `It is ${now.state}.`;
        },
        done,
    });
}
