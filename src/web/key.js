// One key: why was this event ignored?
import { h } from './dom.js';
import { get, query, queuePath, to } from './api.js';
import { moment, duration, count, plural } from './format.js';
import { badge, section, fold, pretty, quiet, table } from './parts.js';
import { why, timeline } from './words.js';
import { resolve, cancel, keyDeed } from './deeds.js';

const text = (body, encoding, type) => (encoding === 'base64' ? `(base64) ${body}` : pretty(body, type));

function deeds(k, ui) {
    const unsettled = ['pending', 'leased', 'held', 'dead'].includes(k.state);
    const decides = (k.state === 'held' || k.state === 'dead') && !k.refused && !k.dead_with_group;
    const deed = (name, words, danger) => h('button', { type: 'button', class: danger ? 'danger' : '', onclick: () => keyDeed(name, k, ui.refresh) }, words);
    return h('div', { class: 'buttons', key: 'deeds' },
        decides ? h('button', { type: 'button', class: 'primary', onclick: () => resolve(k.queue, [k], ui.refresh) }, 'Resolve …') : '',
        !unsettled && k.payload_kept ? deed('replay', 'Run again …') : '',
        unsettled ? h('button', { type: 'button', onclick: () => cancel(k.queue, [k], ui.refresh) }, 'Cancel …') : '',
        k.key && k.state !== 'leased' ? [deed('erase', 'Erase …', true), deed('forget', 'Forget …', true)] : '');
}

function facts(k) {
    const fact = (label, value) => (value === undefined || value === null || value === '' ? '' : h('div', { class: 'fact' }, h('dt', {}, label), h('dd', {}, value)));
    return h('dl', { class: 'facts', key: 'facts' },
        fact('id', h('code', {}, k.id)), fact('first seen', moment(k.first_seen)), fact('settled', k.settled_at && moment(k.settled_at)),
        fact('forgotten', k.expires_at && moment(k.expires_at)), fact('attempts', count(k.attempt)), fact('repeats', count(k.duplicates)), fact('conflicts', k.conflicts ? count(k.conflicts) : ''),
        fact('generation', k.generation ? count(k.generation) : ''), fact('group', k.group), fact('effects', k.effect_ids.join(', ')), fact('next', k.next_delivery === 'reconcile' ? 'asked after first' : ''));
}

const difference = (k) => (k.difference?.length ? section('What differs', table('What differs from the original', [
    { title: 'field', cell: (d) => d.field }, { title: 'was', class: 'wide', cell: (d) => JSON.stringify(d.was) ?? '–' }, { title: 'is', class: 'wide', cell: (d) => JSON.stringify(d.is) ?? '–' },
], k.difference, (d) => d.field), quiet('The original: ', h('a', { href: to('q', k.queue, 'key', k.conflict_with.key) }, k.conflict_with.key), ` (${k.conflict_with.state})`)) : '');

const lines = (k) => h('ol', { class: 'timeline' }, timeline(k).map((line, i) => h('li', { key: `${i} ${line.at} ${line.what}` },
    moment(line.at), badge(line.what, line.kind), h('span', { class: 'detail' }, line.detail),
    line.request ? h('a', { href: to('find', line.request), title: 'find this request elsewhere' }, line.request) : '')));

function message(k, ui) {
    const missing = k.duplicates + k.conflicts + 1 - k.arrivals.length;
    return [
        h('p', { class: 'why', key: 'why' }, why(k)), facts(k), deeds(k, ui), difference(k),
        section('What happened', lines(k), missing > 0 ? quiet(`${plural(missing, 'earlier arrival is', 'earlier arrivals are')} counted but not listed.`) : ''),
        k.steps.length ? section('Steps', table('Steps', [{ title: 'name', cell: (s) => s.name }, { title: 'result', class: 'wide', cell: (s) => s.result?.body ?? '' }], k.steps, (s) => s.name)) : '',
        h('div', { class: 'folds', key: 'folds' },
            k.payload !== undefined ? fold(`Payload (${k.content_type || 'no type'})`, text(k.payload, k.encoding, k.content_type)) : k.erased ? quiet('Payload and result were erased.') : '',
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
            const found = await get(id ? queuePath(queue, 'messages', id) : queuePath(queue, 'keys') + query({ key }), signal);
            return found.items ?? [found];
        },
        view: (items) => [
            h('div', { class: 'head', key: 'head' }, h('h1', {}, key ?? items[0]?.key ?? id), items.length === 1 ? badge(items[0].state) : '',
                h('span', {}, 'in ', h('a', { href: to('q', queue) }, queue))),
            items.length === 1 ? message(items[0], ui) : [
                quiet('Keys repeat in this queue: each is a message of its own.'),
                items.map((k) => h('details', { key: k.id }, h('summary', {}, `${k.id} · ${k.state} · `, moment(k.first_seen)), message(k, ui))),
            ],
        ],
    };
}
