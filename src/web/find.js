// A key, an id, a request or a trace, wherever it is: a flow over several queues shows as one.
import { h } from './dom.js';
import { get, optional, query, to } from './api.js';
import { moment, plural } from './format.js';
import { badge, quiet, table } from './parts.js';

const WAYS = ['key', 'id', 'request_id', 'trace_id'];

export default function findPage({ text }, ui) {
    return {
        title: `Find ${text}`,
        still: true,
        async load(signal) {
            const answers = await Promise.all(WAYS.map(async (way) => {
                try {
                    return await optional('/v1/find' + query({ [way]: text }), signal);
                } catch (error) {
                    if (error.status === 400) return { items: [], complete: true }; // it is no id, say
                    throw error;
                }
            }));
            if (answers.every((a) => a === null)) return null;
            const found = new Map();
            answers.forEach((answer, i) => answer?.items.forEach((item) => {
                const name = `${item.queue} ${item.id}`;
                const before = found.get(name);
                found.set(name, { ...before, ...item, by: [...new Set([...(before?.by ?? []), WAYS[i].replace('_id', '')])] });
            }));
            return { items: [...found.values()].sort((a, b) => (a.at < b.at ? -1 : 1)), complete: answers.every((a) => a === null || a.complete) };
        },
        view: (data) => [
            h('h1', {}, `Find: ${text}`),
            data === null ? quiet('This broker cannot search.') : [
                data.items.length ? h('p', { class: 'why' }, `${plural(data.items.length, 'message')}${new Set(data.items.map((i) => i.queue)).size > 1 ? `, over ${new Set(data.items.map((i) => i.queue)).size} queues` : ''}, oldest first.`)
                    : h('p', { class: 'why' }, 'Nothing that the broker still knows has this as its key, id, request or trace.'),
                data.complete ? '' : quiet('The search ended early: there may be more among what is older.'),
                data.items.length ? table('Found', [
                    { title: 'when', cell: (i) => moment(i.at) },
                    { title: 'queue', cell: (i) => h('a', { href: to('q', i.queue) }, i.queue) },
                    { title: 'key', class: 'wide', cell: (i) => h('a', { href: i.key ? to('q', i.queue, 'key', i.key) : to('q', i.queue, 'id', i.id), 'data-nav': true }, i.key ?? i.id) },
                    { title: 'what', cell: (i) => badge(i.kind ?? i.state ?? '', undefined) },
                    { title: 'found by', cell: (i) => i.by.join(', ') },
                    { title: 'request', cell: (i) => i.request_id ?? '' },
                    { title: 'trace', cell: (i) => i.trace_id ?? '' },
                ], data.items, (i) => `${i.queue} ${i.id}`) : '',
            ],
        ],
    };
}
