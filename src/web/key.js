// One key: why was this event ignored?
import { h } from './dom.js';
import { allowed, get, keyOf, query, queuePath, to } from './api.js';
import { moment, count } from './format.js';
import { badge, section, fold, mayNot, pretty, quiet, table } from './parts.js';
import { eventWords } from './words.js';
import { resolve, cancel, revoke, keyDeed } from './deeds.js';

const text = (body, encoding, type) => (encoding === 'base64' ? `(base64) ${body}` : pretty(body, type));

function deeds(k, ui) {
    const unsettled = ['pending', 'leased', 'held', 'dead'].includes(k.state);
    const decides = (k.state === 'held' || k.state === 'dead') && !k.refused && !k.dead_with_group;
    const deed = (name, words, danger) => h('button', { type: 'button', class: danger ? 'danger' : '', onclick: () => keyDeed(name, k, ui.refresh) }, words);
    return h('div', { class: 'buttons', key: 'deeds' },
        decides ? h('button', { type: 'button', class: 'primary', onclick: () => resolve(k.queue, [k], ui.refresh) }, 'Resolve …') : '',
        !unsettled && k.payload_kept ? deed('replay', 'Run again …') : '',
        k.state === 'leased' ? h('button', { type: 'button', onclick: () => revoke(k.queue, [k], ui.refresh) }, 'Take back …') : '',
        unsettled ? h('button', { type: 'button', onclick: () => cancel(k.queue, [k], ui.refresh) }, 'Cancel …') : '',
        k.key && k.state !== 'leased' ? [deed('erase', 'Erase …', true), deed('forget', 'Forget …', true)] : '');
}

function facts(k) {
    const fact = (label, value) => (value === undefined || value === null || value === '' ? '' : h('div', { class: 'fact' }, h('dt', {}, label), h('dd', {}, value)));
    return h('dl', { class: 'facts', key: 'facts' },
        fact('id', h('code', {}, k.id)), fact('first seen', moment(k.first_seen)), fact('settled', k.settled_at && moment(k.settled_at)),
        fact('forgotten', k.expires_at && moment(k.expires_at)), fact('attempts', count(k.attempt)), fact('repeats', count(k.duplicates)), fact('conflicts', k.conflicts ? count(k.conflicts) : ''),
        fact('effect key', k.effect_key === k.key ? '' : h('code', {}, k.effect_key)), fact('generation', k.generation ? count(k.generation) : ''), fact('group', k.group), fact('effects', k.effect_ids.join(', ')), fact('next', k.next_delivery === 'reconcile' ? 'asked after first' : ''));
}

const difference = (k) => (k.difference?.length ? section('What differs', table('What differs from the original', [
    { title: 'field', cell: (d) => d.field }, { title: 'was', class: 'wide', cell: (d) => JSON.stringify(d.was) ?? '–' }, { title: 'is', class: 'wide', cell: (d) => JSON.stringify(d.is) ?? '–' },
], k.difference, (d) => d.field), quiet('The original: ', h('a', { href: to('q', k.queue, 'key', keyOf(k.conflict_with)) }, keyOf(k.conflict_with)), ` (${k.conflict_with.state})`)) : '');

function line(e, i) {
    const { what, kind, rest } = eventWords(e);
    return h('li', { key: `${i} ${e.at} ${what}` }, e.time_known === false ? h('span', { class: 'time' }) : moment(e.at), badge(what, kind), h('span', { class: 'detail' }, rest),
        e.request_id ? h('a', { href: to('find', e.request_id) }, 'this request elsewhere') : '');
}

// What the broker has and does not show to whoever asks.
const hidden = (k) => [
    k.payload_hidden ? 'Its payload is not shown: that needs the right receive or operate.' : '', k.result_hidden ? 'Its result is not shown: that needs the right result or operate.' : '',
].filter(Boolean).map((words) => quiet(words));

function message(k, q, ui) {
    return [
        h('p', { class: 'why', key: 'why' }, k.why), facts(k), allowed(q, 'operate') ? deeds(k, ui) : mayNot(q, 'operate', 'decide about it'), difference(k),
        section('What happened', h('ol', { class: 'timeline' }, k.timeline.map(line)), k.not_kept ? quiet(`${k.not_kept}.`) : ''),
        k.steps.length ? section('Steps', table('Steps', [{ title: 'name', cell: (s) => s.name }, { title: 'result', class: 'wide', cell: (s) => s.result?.body ?? '' }], k.steps, (s) => s.name)) : '',
        h('div', { class: 'folds', key: 'folds' },
            hidden(k),
            typeof k.payload === 'string' ? fold(`Payload (${k.content_type || 'no type'})`, text(k.payload, k.encoding, k.content_type)) : k.erased ? quiet('Payload and result were erased.') : '',
            k.result ? fold(`Result (${k.result.content_type || 'no type'})`, text(k.result.body, k.result.encoding, k.result.content_type)) : '',
            k.attrs && Object.keys(k.attrs).length ? fold('Attributes', JSON.stringify(k.attrs, null, 2)) : '',
            k.previous ? fold(`Outcome before the replay (${k.previous.state})`, JSON.stringify(k.previous, null, 2)) : '',
            fold('Raw JSON', JSON.stringify(k, null, 2))),
    ];
}

export default function keyPage({ queue, key, id }, ui) {
    return {
        title: `${key ?? id} · ${queue}`,
        async load(signal) {
            const [q, found] = await Promise.all([get(queuePath(queue), signal), get(id ? queuePath(queue, 'messages', id) : queuePath(queue, 'keys') + query({ key }), signal)]);
            if (!found.items) return { q, items: [found] };
            return { q, items: found.items.length === 1 ? [await get(queuePath(queue, 'messages', found.items[0].id), signal)] : found.items };
        },
        view: ({ q, items }) => [
            h('div', { class: 'head', key: 'head' }, h('h1', {}, key ?? (items[0] && keyOf(items[0])) ?? id), items.length === 1 ? badge(items[0].state) : '',
                h('span', {}, 'in ', h('a', { href: to('q', queue) }, queue))),
            items.length === 1 ? message(items[0], q, ui) : [
                quiet('Keys repeat in this queue: each arrival is a message of its own.'),
                table('Messages of this key', [
                    { title: 'id', class: 'wide', cell: (k) => h('a', { href: to('q', queue, 'id', k.id), 'data-nav': true }, k.id) },
                    { title: 'state', cell: (k) => badge(k.state) }, { title: 'first seen', cell: (k) => moment(k.first_seen) }, { title: 'attempts', class: 'n', cell: (k) => count(k.attempt) },
                ], items, (k) => k.id),
            ],
        ],
    };
}
