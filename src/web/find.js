// A key, an id, a request or a trace, wherever it went: a flow over several queues shows as one, in the order of time.
import { h } from './dom.js';
import { get, keyOf, query, to } from './api.js';
import { moment, plural } from './format.js';
import { badge, quiet, table } from './parts.js';

const WAYS = { key: 'key', id: 'id', request_id: 'request', trace_id: 'trace' };
const KINDS = { accepted: 'waiting', delivered: 'waiting', settled: 'ok', failed: 'failed', dead: 'failed', held: 'person', conflict: 'person', resolved: 'person' };

// What is no id, say, is refused; it may still be a key.
async function ask(way, text, signal) {
    try {
        return await get('/v1/find' + query({ [way]: text }), signal);
    } catch (error) {
        if (error.status === 400 || error.status === 404) return { items: [], complete: true };
        throw error;
    }
}

function words({ items, by, text }) {
    if (!items.length) return 'Nothing that the broker still knows has this as its key, id, request or trace.';
    const messages = new Set(items.map((i) => `${i.queue} ${i.id}`)).size, queues = new Set(items.map((i) => i.queue)).size;
    return `The ${by.join(' and ')} ${text} leads to ${plural(messages, 'message')} in ${plural(queues, 'queue')}.`;
}

export default function findPage({ text }) {
    return {
        title: `Find ${text}`,
        still: true, // a search costs more than a look
        async load(signal) {
            const answers = await Promise.all(Object.keys(WAYS).map((way) => ask(way, text, signal)));
            const found = new Map();
            for (const item of answers.flatMap((a) => a.items)) found.set(`${item.at} ${item.queue} ${item.id} ${item.kind} ${item.request_id ?? ''}`, item);
            return {
                text, items: [...found].map(([name, item]) => ({ ...item, name })).sort((a, b) => (a.at < b.at ? -1 : a.at > b.at ? 1 : 0)),
                by: Object.values(WAYS).filter((_, i) => answers[i].items.length), complete: answers.every((a) => a.complete || !a.items.length),
            };
        },
        view: (data) => [
            h('h1', {}, `Find: ${text}`),
            h('p', { class: 'why' }, words(data)),
            data.items.length ? table('What happened', [
                { title: 'when', cell: (i) => moment(i.at) },
                { title: 'queue', cell: (i) => h('a', { href: to('q', i.queue) }, i.queue) },
                { title: 'key', class: 'wide', cell: (i) => h('a', { href: i.key ? to('q', i.queue, 'key', keyOf(i)) : to('q', i.queue, 'id', i.id), 'data-nav': true }, keyOf(i) ?? i.id) },
                { title: 'what', cell: (i) => badge(i.kind, KINDS[i.kind] ?? 'none') },
                { title: 'request', cell: (i) => i.request_id ?? '' },
                { title: 'trace', class: 'wide', cell: (i) => i.trace_id ?? '' },
            ], data.items, (i) => i.name) : '',
            data.complete && data.items.length ? '' : quiet('Requests and traces are looked for among what is recent: what is older may be missing.'),
        ],
    };
}
