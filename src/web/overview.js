// Is anything wrong? Which queue?
import { h } from './dom.js';
import { get, pages, to } from './api.js';
import { count, rate, percent, plural, stopwatch } from './format.js';
import { spark } from './charts.js';
import { alertLine, badge, lagOf, lagWords, LongTable, NOT_JUDGED, oldestHref } from './parts.js';

const QUEUES_MOST = 20000;

// Each figure leads to what is behind it; none where there is nothing.
const figure = (n, href, kind, title) =>
    (n ? h('a', { href, class: kind, title }, count(n), kind ? h('span', { class: 'sign', 'aria-hidden': 'true' }, kind === 'failed' ? ' ✕' : ' !') : '') : h('span', { class: 'zero' }, '0'));

const COLUMNS = [
    { id: 'name', title: 'queue', class: 'name', sort: (q) => q.name },
    { id: 'in', title: 'in/s', class: 'n', sort: (q) => -(q.live?.accepted_per_s ?? 0) },
    { id: 'spark', title: 'last hour', class: 'spark-cell' },
    { id: 'dup', title: 'dup %', class: 'n', sort: (q) => -(q.live?.duplicate_ratio ?? 0) },
    { id: 'lag', title: 'lag / SLO', class: 'n', sort: (q) => -(lagOf(q) ?? -1) },
    { id: 'oldest', title: 'oldest in flight', class: 'n', sort: (q) => -(q.live?.oldest_unsettled_ms ?? 0) },
    { id: 'ready', title: 'ready', class: 'n', sort: (q) => -q.ready },
    { id: 'leased', title: 'leased', class: 'n', sort: (q) => -q.leased },
    { id: 'held', title: 'held', class: 'n', sort: (q) => -q.held },
    { id: 'dead', title: 'dead', class: 'n', sort: (q) => -q.dead },
];

function cells(q) {
    const live = q.live ?? {};
    return [
        [h('a', { href: to('q', q.name), 'data-nav': true }, q.name), q.paused ? badge('paused', 'person') : '', q.pressed ? badge('full', 'failed') : '',
            live.alerts ? h('a', { href: '#/alerts', class: 'failed', title: 'alerts firing' }, h('span', { class: 'sign' }, '● '), count(live.alerts)) : ''],
        rate(live.accepted_per_s),
        spark(live.spark, `accepted in the last hour: ${count(live.spark?.reduce((a, b) => a + b, 0))}`),
        percent(live.duplicate_ratio),
        lagWords(q),
        live.oldest_unsettled_ms ? h('a', { href: oldestHref(q) }, stopwatch(live.oldest_unsettled_ms)) : h('span', { class: 'zero' }, '–'),
        figure(q.ready, to('q', q.name, 'pending'), '', 'waiting to be handed out'),
        figure(q.leased, to('q', q.name, 'leased'), '', 'being worked on'),
        figure(q.held, to('q', q.name, 'held'), 'person', 'await a decision'),
        figure(q.dead, to('q', q.name, 'dead'), 'failed', 'given up'),
    ];
}

const row = (q, at) => h('tr', { key: q.name, 'aria-rowindex': at + 2 },
    cells(q).map((cell, i) => h('td', { class: `${COLUMNS[i].class} c-${COLUMNS[i].id}`, 'data-label': COLUMNS[i].title, 'data-flash': i === 1 || i > 5 }, cell)));

function chosen(queues, state) {
    const words = (state.filter ?? '').toLowerCase().split(/\s+/).filter(Boolean);
    const kept = queues.filter((q) => words.every((w) => q.name.toLowerCase().includes(w)));
    const sort = COLUMNS.find((c) => c.id === (state.sort ?? 'name')).sort;
    const order = (a, b) => (sort(a) < sort(b) ? -1 : sort(a) > sort(b) ? 1 : a.name < b.name ? -1 : 1);
    return kept.sort(order);
}

function queueTable(queues, ui, long) {
    const shown = chosen(queues, ui.state);
    const sort = ui.state.sort ?? 'name';
    const head = (c) => h('th', { scope: 'col', class: `${c.class} c-${c.id}`, 'aria-sort': c.id === sort ? (sort === 'name' ? 'ascending' : 'descending') : undefined },
        c.sort ? h('button', { type: 'button', class: 'plain', onclick: () => ui.set({ sort: c.id }) }, c.title, c.id === sort ? ' ▾' : '') : c.title);
    return [
        h('div', { class: 'tools', key: 'tools' },
            h('input', { type: 'search', id: 'filter', placeholder: 'filter queues', 'aria-label': 'Filter queues', value: ui.state.filter ?? '', autocomplete: 'off', spellcheck: 'false',
                oninput: (e) => ui.set({ filter: e.target.value }) }),
            h('span', { class: 'quiet' }, shown.length === queues.length ? plural(queues.length, 'queue') : `${count(shown.length)} of ${plural(queues.length, 'queue')}`)),
        h('table', { class: 'long', key: 'queues', 'aria-rowcount': shown.length + 1 },
            h('caption', { class: 'off-screen' }, 'Queues'),
            h('thead', {}, h('tr', {}, COLUMNS.map(head))),
            h('tbody', {}, shown.length ? long.rows(shown, row, COLUMNS.length) : h('tr', { key: ' none' }, h('td', { colspan: COLUMNS.length, class: 'quiet' }, 'No queue has this in its name.')))),
    ];
}

export function alertList(alerts, none) {
    if (!alerts.items.length) return h('p', { class: 'calm' }, alerts.judged === false ? badge(NOT_JUDGED, 'none') : badge(none, 'ok'));
    return h('ul', { class: 'alerts' }, alerts.items.map(alertLine));
}

const empty = () => h('div', { class: 'empty' },
    h('p', {}, 'No queue yet. The first message makes one:'),
    h('pre', { tabindex: '0' }, `curl ${location.origin}/v1/queues/orders/messages \\\n     -H 'Idempotency-Key: order-1' -d '{"amount":42}'`));

export default function overview(params, ui) {
    const long = new LongTable(ui.redraw);
    return {
        title: 'Queues',
        close: () => long.close(),
        async load(signal) {
            const [queues, alerts] = await Promise.all([
                pages('/v1/queues', { live: true }, QUEUES_MOST, signal), get('/v1/alerts', signal),
            ]);
            return { queues: queues.items, alerts };
        },
        view: ({ queues, alerts }) => [
            h('h1', { class: 'off-screen' }, 'Queues'),
            h('section', { key: 'alerts', 'aria-label': 'Alerts' }, alertList(alerts, 'nothing is firing')),
            queues.length ? queueTable(queues, ui, long) : empty(),
        ],
    };
}
