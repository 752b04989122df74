// One queue: how it fares, by which rules, and who works on it.
import { h } from './dom.js';
import { allowed, get, keyOf, query, queuePath, stream, to } from './api.js';
import { count, rate, percent, duration, stopwatch, moment, ago } from './format.js';
import { spark, histogram } from './charts.js';
import { badge, section, quiet, table, alertLine, lagWords, mayNot, oldestHref } from './parts.js';
import { ruleWords } from './words.js';
import { pauseQueue } from './deeds.js';

const RECENT_MOST = 20;

const SERIES = [
    ['accepted', 'accepted', ''], ['duplicates', 'repeats', ''], ['late', 'late repeats', 'person'], ['conflicts', 'conflicts', 'person'], ['delivered', 'handed out', ''],
    ['settled', 'settled', ''], ['failed', 'failed', 'failed'], ['dead', 'given up', 'failed'], ['held', 'held', 'person'], ['fenced', 'stale workers refused', 'person'],
    ['backpressure', 'refused: full', 'failed'],
];

function figures(q) {
    const live = q.live ?? {};
    const one = (label, value, href, kind) => h('div', { class: 'figure' }, h('dt', {}, label),
        h('dd', { class: kind, 'data-flash': true }, href ? h('a', { href }, value) : value));
    return h('dl', { class: 'figures', key: 'figures' },
        one('in/s', rate(live.accepted_per_s)), one('repeats', percent(live.duplicate_ratio)), one('lag / SLO', lagWords(q)),
        one('oldest in flight', live.oldest_unsettled_ms ? stopwatch(live.oldest_unsettled_ms) : '–', live.oldest_unsettled_ms ? oldestHref(q) : null),
        one('ready', count(q.ready), to('q', q.name, 'pending')), one('delayed', count(q.delayed), to('q', q.name, 'pending')), one('behind', count(q.behind), to('q', q.name, 'pending')),
        one('leased', count(q.leased), to('q', q.name, 'leased')), one('held', count(q.held), to('q', q.name, 'held'), q.held ? 'person' : ''),
        one('dead', count(q.dead), to('q', q.name, 'dead'), q.dead ? 'failed' : ''), one('keys remembered', count(q.keys)));
}

function rates(history) {
    const shown = SERIES.filter(([name]) => history.series[name]?.some((n) => n > 0) || ['accepted', 'duplicates', 'settled'].includes(name));
    const from = new Date(history.from);
    return [
        h('div', { class: 'multiples' }, shown.map(([name, label, kind]) => {
            const values = history.series[name] ?? [], sum = values.reduce((a, b) => a + b, 0);
            return h('figure', { key: name, class: sum ? kind : '' }, h('figcaption', {}, h('span', {}, label), h('b', {}, count(sum))), spark(values, `${label}: ${count(sum)}`, 240, 40));
        })),
        quiet('Since ', moment(from.toISOString()), `, a point every ${duration(history.step_ms)}; each line has its own scale.`),
    ];
}

function ages(histograms, q) {
    const h1 = histograms.replay_age_seconds;
    if (!h1.counts.some((n) => n)) return quiet('No repeat since the broker started.');
    const marks = q.window_ms ? [{ at: q.window_ms / 1000, text: `window ${duration(q.window_ms)}` }] : [];
    return [
        h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Age of repeats' }, histogram(h1, marks, 'How long after the original repeats came')),
        quiet(q.window_ms === null ? 'Keys are remembered for ever: no repeat comes too late.' : 'A repeat past the window is new work, and is done again. Since the broker started.'),
    ];
}

function consumers(list, q) {
    if (!list.items.length) return quiet('Nobody holds a lease.');
    return table('Consumers', [
        { title: 'name', cell: (c) => c.name || '(no name)' },
        { title: 'leases', class: 'n', cell: (c) => h('a', { href: to('q', q.name, 'leased') }, count(c.count)) },
        { title: 'oldest', cell: (c) => (c.oldest ? moment(c.oldest, ago(c.oldest)) : '–') },
        { title: 'last seen', cell: (c) => moment(c.last_seen, ago(c.last_seen)) },
    ], list.items, (c) => c.name);
}

function recent(events, q) {
    if (!events.items.length) return quiet('None that the broker still has; those to come show up here.');
    return table('Recent repeats', [
        { title: 'when', cell: (e) => moment(e.at) },
        { title: 'key', class: 'wide', cell: (e) => (e.key ? h('a', { href: to('q', q.name, 'key', keyOf(e)), 'data-nav': true }, keyOf(e)) : e.id ?? '') },
        { title: 'kind', cell: (e) => (e.arrival === 'late' ? badge('late', 'person') : 'expected') },
        { title: 'after', class: 'n', cell: (e) => (e.age_ms === undefined ? '' : duration(e.age_ms)) },
        { title: 'request', cell: (e) => e.request_id ?? '' },
    ], events.items, (e) => `${e.at} ${keyOf(e)} ${e.number}`);
}

// The stream of events, read as text: what is recent comes first, what happens follows.
async function listen(queue, events, signal, changed) {
    try {
        const reader = await stream('/v1/events' + query({ queue, kind: 'duplicate' }), events.last, signal);
        for (let rest = ''; ;) {
            const { value, done } = await reader.read();
            if (done) break;
            const blocks = (rest + value).split(/\r?\n\r?\n/);
            rest = blocks.pop();
            for (const block of blocks) take(block, events);
            changed();
        }
    } catch {
        // The broker went, or has too many readers: the view's own requests say so.
    }
    if (!signal.aborted) setTimeout(() => signal.aborted || listen(queue, events, signal, changed), 2000);
}

function take(block, events) {
    const data = /^data: ?(.*)$/m.exec(block), id = /^id: ?(.+)$/m.exec(block);
    if (id) events.last = id[1];
    if (!data || !/^event: ?duplicate$/m.test(block)) return;
    try {
        events.items.unshift({ ...JSON.parse(data[1]), number: events.count++ });
    } catch {
        return;
    }
    events.items.length = Math.min(events.items.length, RECENT_MOST);
}

// Keys that begin with what was typed; it is in the address.
function keys(found, q, ui) {
    return [
        h('form', { class: 'tools', onsubmit: (e) => { e.preventDefault(); ui.set({ keys: e.target.elements.prefix.value }); ui.refresh(); } },
            h('input', { type: 'search', name: 'prefix', placeholder: 'keys that begin with …', 'aria-label': 'Keys that begin with', value: ui.state.keys ?? '', maxlength: '255', autocomplete: 'off', spellcheck: 'false' }),
            h('button', {}, 'Look')),
        found && (found.items.length ? table('Keys', [
            { title: 'key', class: 'wide', cell: (k) => h('a', { href: to('q', q.name, 'key', keyOf(k)), 'data-nav': true }, keyOf(k)) },
            { title: 'state', cell: (k) => badge(k.state) }, { title: 'first seen', cell: (k) => moment(k.at) },
        ], found.items, (k) => k.id) : quiet('None that the queue remembers.')),
        found && !found.complete ? quiet('There may be more: the search ended before the end.') : '',
    ];
}

export default function queuePage({ queue }, ui) {
    const stop = new AbortController(), events = { items: [], count: 0, last: '0' };
    let due = false;
    const changed = () => {
        if (due) return;
        due = true;
        setTimeout(() => { due = false; if (!stop.signal.aborted) ui.redraw(); }, 200);
    };
    listen(queue, events, stop.signal, changed);
    // A search reads the keys of the queue: once for what was typed, not at every look.
    let asked = { prefix: '', found: null };
    const look = async (prefix = '', signal) => {
        if (prefix !== asked.prefix) asked = { prefix, found: prefix ? await get(queuePath(queue, 'keys') + query({ prefix, limit: 50 }), signal) : null };
        return asked.found;
    };
    return {
        title: queue,
        close: () => stop.abort(),
        async load(signal, state) {
            const q = await get(queuePath(queue), signal);
            const [alerts, history, histograms, consumersList, found] = await Promise.all([
                get('/v1/alerts', signal), get('/v1/history' + query({ queue, since: '1h', step: '30s' }), signal),
                get(queuePath(queue, 'histograms'), signal), get('/v1/consumers' + query({ queue }), signal),
                look(state.keys, signal),
            ]);
            return { q, alerts, history, histograms, consumersList, found };
        },
        view: ({ q, alerts, history, histograms, consumersList, found }) => [
            h('div', { class: 'head', key: 'head' }, h('h1', {}, q.name), q.paused ? badge('paused', 'person') : '', q.pressed ? badge('full: refuses new messages', 'failed') : '',
                h('span', { class: 'push' }), allowed(q, 'operate') ? h('button', { type: 'button', onclick: () => pauseQueue(q, ui.refresh) }, q.paused ? 'Resume …' : 'Pause …') : ''),
            mayNot(q, 'operate', 'pause or resume it'),
            alerts.items.some((a) => a.queue === q.name) ? h('ul', { class: 'alerts', key: 'alerts' }, alerts.items.filter((a) => a.queue === q.name).map(alertLine)) : '',
            figures(q),
            q.config?.deliver ? quiet('Delivered to ', h('code', {}, q.config.deliver.url), ': ', h('a', { href: '#/targets' }, 'how its target fares')) : '',
            h('div', { class: 'columns', key: 'columns' },
                h('div', { class: 'column' }, section('The last hour', rates(history)), section('How late repeats come', ages(histograms, q)), section('Recent repeats', recent(events, q)), section('Keys', keys(found, q, ui))),
                h('div', { class: 'column' },
                    section('Its rules', h('ul', { class: 'rules' }, ruleWords(q).map((w) => h('li', {}, w))),
                        quiet(q.defined_at ? `Defined in ${q.defined_at}.` : q.origin === 'api' ? 'Set over the API.' : 'Made by its first message, with the default rules.')),
                    section('Who works on it', consumers(consumersList, q)))),
        ],
    };
}
