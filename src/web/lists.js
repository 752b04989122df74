// Alerts, tasks, audit, relays, targets.
import { h } from './dom.js';
import { allowed, get, pages, query, stats, to } from './api.js';
import { count, duration, moment } from './format.js';
import { badge, plainly, quiet, table } from './parts.js';
import { alertList } from './overview.js';
import { steerTarget, stopTask, testTarget } from './deeds.js';

const DAY_MS = 86400000;

const queueLink = (name) => (name ? h('a', { href: to('q', name), 'data-nav': true }, name) : '');

export const alerts = () => ({
    title: 'Alerts',
    load: async (signal) => {
        const [data, all] = await Promise.all([get('/v1/alerts?all=true', signal), stats(signal)]);
        return all ? { ...data, began: Date.parse(all.now) - all.uptime_ms, uptime: all.uptime_ms } : data;
    },
    view: (data) => [
        h('h1', {}, 'Alerts'),
        alertList(data, data.uptime === undefined ? 'nothing fires' : data.uptime < DAY_MS ? 'nothing fires, nothing did since the broker began' : 'nothing fires, nothing did in the last 24 hours'),
        data.uptime < DAY_MS ? quiet('The broker began anew at ', moment(new Date(data.began).toISOString()), ' and judges afresh: what fired before is not shown.') : '',
    ],
});

export const tasks = (params, ui) => ({
    title: 'Tasks',
    load: (signal) => get('/v1/tasks', signal),
    view: ({ items }) => [
        h('h1', {}, 'Tasks'),
        quiet('Long redrives and purges: what runs, and the last hundred. A restart ends them; the same call goes on where it ended.'),
        items.length ? table('Tasks', [
            { title: 'id', cell: (t) => t.id }, { title: 'what', cell: (t) => t.kind }, { title: 'queue', cell: (t) => queueLink(t.queue) },
            { title: 'state', cell: (t) => badge(t.state) },
            { title: 'how far', cell: (t) => (t.kind === 'purge' ? `${count(t.purged)} cancelled` : [h('progress', { value: t.redriven + t.no_op + t.still_refused, max: Math.max(1, t.matched), 'aria-label': 'Progress' }),
                ` ${count(t.redriven)} of ${count(t.matched)}`]) },
            { title: 'began', cell: (t) => moment(t.started_at) }, { title: 'took', class: 'n', cell: (t) => (t.ended_at ? duration(Date.parse(t.ended_at) - Date.parse(t.started_at)) : '') },
            { title: 'by', cell: (t) => t.by },
            { title: '', cell: (t) => (t.state === 'running' ? h('button', { type: 'button', class: 'small danger', onclick: () => stopTask(t, ui.refresh) }, 'Stop …') : '') },
        ], items, (t) => t.id) : quiet('None since the broker started.'),
    ],
});

const AUDIT_PAGE = 100, DETAIL_LINES = 3;

// What was done, in lines; many are folded.
function detailCell(detail) {
    if (detail === undefined) return '';
    let value = detail;
    if (typeof detail === 'string' && /^\s*[[{]/.test(detail)) {
        try {
            value = JSON.parse(detail);
        } catch {
            // It is text that looks like JSON.
        }
    }
    const lines = plainly(value).trimEnd().split('\n');
    const text = h('pre', { class: 'detail' }, lines.join('\n'));
    return lines.length <= DETAIL_LINES ? text : h('details', {}, h('summary', {}, `${(lines.find((line) => !line.endsWith(':')) ?? lines[0]).trim()} … ${lines.length} lines`), text);
}

export function audit(params, ui) {
    let pagesWanted = 1;
    const field = (name, label) => h('input', { type: 'search', placeholder: label, 'aria-label': label, value: ui.state[name] ?? '', autocomplete: 'off',
        onchange: (e) => { ui.set({ [name]: e.target.value.trim() }); ui.refresh(); } });
    return {
        title: 'Audit',
        async load(signal, state) {
            const items = [];
            let cursor;
            for (let i = 0; i < pagesWanted; i++) {
                const page = await get('/v1/audit' + query({ queue: state.queue, who: state.who, what: state.what, limit: AUDIT_PAGE, cursor }), signal);
                items.push(...page.items);
                cursor = page.next_cursor;
                if (!cursor) break;
            }
            return { items, more: Boolean(cursor) };
        },
        view: ({ items, more }) => [
            h('h1', {}, 'Audit'),
            h('div', { class: 'tools', key: 'tools' }, field('queue', 'queue'), field('who', 'who'), field('what', 'what')),
            items.length ? h('div', { class: 'stacked', key: 'audit' }, table('Audit', [
                { title: 'when', cell: (a) => moment(a.at) }, { title: 'who', cell: (a) => a.who }, { title: 'what', cell: (a) => a.what },
                { title: 'queue', cell: (a) => queueLink(a.queue) },
                { title: 'key', class: 'wide', cell: (a) => (a.key && a.queue ? h('a', { href: to('q', a.queue, 'key', a.key) }, a.key) : a.key ?? '') },
                { title: 'why', class: 'wide', cell: (a) => a.why ?? '' },
                { title: 'detail', class: 'wide', cell: (a) => detailCell(a.detail) },
            ], items, (a) => `${a.at} ${a.what} ${a.id ?? ''}${a.key ?? ''}`)) : quiet(more ? 'Nothing that matches so far; there is older.' : 'Nobody has done anything that matches.'),
            more ? h('button', { type: 'button', onclick: () => { pagesWanted++; ui.refresh(); } }, 'Older …') : '',
        ],
    };
}

const relayTable = (items) => (items.length ? table('Relays', [
    { title: 'table', cell: (r) => r.table }, { title: 'to queue', cell: (r) => queueLink(r.queue) },
    { title: 'state', cell: (r) => (r.trouble ? badge(r.trouble, 'failed') : badge('running', 'ok')) },
    { title: 'sent', class: 'n', cell: (r) => count(r.sent) }, { title: 'repeats', class: 'n', cell: (r) => count(r.duplicates) },
    { title: 'waiting', class: 'n', cell: (r) => count(r.pending) }, { title: 'oldest', class: 'n', cell: (r) => duration(r.oldest_ms) },
    { title: 'refused rows', class: 'n', cell: (r) => (r.refused_rows ? badge(count(r.refused_rows), 'person') : count(r.refused_rows)) },
], items, (r) => `${r.table} ${r.queue}`) : quiet('This broker runs no relay. They are named in its config under ', h('code', {}, 'relays'), '; those started with ', h('code', {}, 'hapax relay'), ' report where they run.'));

export const relays = () => ({
    title: 'Relays',
    load: async (signal) => ({ all: await stats(signal, true) }),
    view: ({ all }) => [
        h('h1', {}, 'Relays'),
        all ? relayTable(all.relays ?? []) : quiet('Relays are the whole broker’s: they are shown to who has the right ', h('code', {}, 'observe'), ' on all of it.'),
    ],
});

const TARGETS_MOST = 5000;

const lastWords = (e) => (e ? h('div', { class: 'quiet' }, 'Last error ', moment(e.at), `: ${e.lookup ? 'look-up, ' : ''}${e.class}${e.status ? ` ${e.status}` : ''}, ${e.detail}`) : '');
const whyWords = (t) => [t.why ?? '', t.next_probe ? ['; next try ', moment(t.next_probe)] : '', t.waits_until ? [' until ', moment(t.waits_until)] : '', lastWords(t.last_error)];

function targetDeeds(t, ui) {
    if (!allowed(t, 'operate')) return '';
    const button = (words, deed, what) => h('button', { type: 'button', class: 'small', 'aria-label': `${words} ${t.queue}`, onclick: () => deed(t, ui.refresh, what) }, `${words} …`);
    return h('span', { class: 'buttons' }, button('Test', testTarget), t.state === 'open' ? button('Try now', steerTarget, 'resume') : '',
        t.state === 'paused' ? button('Resume', steerTarget, 'resume') : button('Pause', steerTarget, 'pause'));
}

const targetTable = (items, ui) => h('div', { class: 'stacked', key: 'targets' }, table('Targets', [
    { title: 'queue', class: 'wide', cell: (t) => [queueLink(t.queue), h('div', { class: 'quiet' }, t.url ?? t.reconcile_url)] },
    { title: 'state', class: 'whole', cell: (t) => badge(t.state.replace('_', '-')) },
    { title: 'since', cell: (t) => (t.since ? moment(t.since) : '') },
    { title: 'why', class: 'wide', cell: whyWords },
    { title: 'waiting', class: 'n', cell: (t) => (t.waiting ? h('a', { href: to('q', t.queue, 'pending') }, count(t.waiting)) : '0') },
    { title: 'in flight', class: 'n', cell: (t) => `${count(t.in_flight)} / ${count(t.window ?? t.concurrency)}` },
    { title: 'done', class: 'n', cell: (t) => count(t.requests.done) },
    { title: 'failed', class: 'n', cell: (t) => count(t.requests.transient + t.requests.unknown + t.requests.poison) },
    { title: 'p95', class: 'n', cell: (t) => duration(t.latency.p95_ms) },
    { title: '', cell: (t) => targetDeeds(t, ui) },
], items, (t) => t.queue));

export const targets = (params, ui) => ({
    title: 'Targets',
    load: (signal) => pages('/v1/targets', {}, TARGETS_MOST, signal),
    view: ({ items, more }) => [
        h('h1', {}, 'Targets'),
        items.length ? targetTable(items, ui) : quiet('No queue delivers: messages are fetched by consumers. A queue whose rules have ', h('code', {}, 'deliver'), ' is pushed, and its target is shown here.'),
        more ? quiet(`There are more than these ${count(items.length)}.`) : '',
    ],
});
