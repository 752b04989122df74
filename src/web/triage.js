// What lies in a lane of a queue: the dead and the held grouped by reason, to be decided together.
import { h } from './dom.js';
import { allowed, get, keyOf, pages, queuePath, to } from './api.js';
import { count, moment, ago, plural } from './format.js';
import { badge, mayNot, quiet, table } from './parts.js';
import { redrive, resolve, cancel, revoke } from './deeds.js';

const LISTED_MOST = 1000;
const WORDS = {
    dead: 'Given up: nothing more is tried until somebody says so.', held: 'Each waits for a person: nothing is done again before somebody has said what happened.',
    pending: 'Waiting to be handed out, delayed, or behind their group.', leased: 'Being worked on.',
};
const TITLES = { dead: 'dead', held: 'held', pending: 'pending', leased: 'leased' };

const kindOf = (m) => (m.refused ? 'refused by the schema' : m.held_because === 'conflict' ? 'conflict' : m.class ?? m.held_because ?? '');
const endOf = (m) => m.attempts?.[m.attempts.length - 1]?.ended_at ?? m.first_seen;

function groupsOf(items) {
    const groups = new Map();
    for (const m of items) {
        const kind = kindOf(m), reason = m.reason ?? '', name = `${kind} ${reason}`;
        if (!groups.has(name)) groups.set(name, { name, kind, reason, items: [] });
        groups.get(name).items.push(m);
    }
    return [...groups.values()].sort((a, b) => b.items.length - a.items.length || (a.name < b.name ? -1 : 1));
}

const matches = (m, words) => words.every((w) => `${keyOf(m) ?? ''} ${m.reason ?? ''} ${kindOf(m)} ${m.id} ${m.group ?? ''}`.toLowerCase().includes(w));

const consumerOf = (m) => m.attempts?.[m.attempts.length - 1]?.consumer ?? '';

// picked, flip: what is selected, and what selects. No flip: nothing can be decided, so nothing is selected.
function rows(queue, items, lane, picked, flip) {
    return table(`Messages of ${queue}`, [
        ...(flip ? [{ title: '', class: 'tick', cell: (m) => h('input', { type: 'checkbox', 'aria-label': `Select ${keyOf(m) ?? m.id}`, checked: picked.has(m.id), onchange: () => flip([m]) }) }] : []),
        { title: 'key', class: 'wide', cell: (m) => h('a', { href: m.key ? to('q', queue, 'key', keyOf(m)) : to('q', queue, 'id', m.id), 'data-nav': true }, keyOf(m) ?? m.id) },
        { title: lane === 'dead' || lane === 'held' ? 'since' : 'first seen', cell: (m) => (lane === 'dead' || lane === 'held' ? moment(endOf(m), ago(endOf(m))) : moment(m.first_seen, ago(m.first_seen))) },
        { title: 'attempts', class: 'n', cell: (m) => count(m.attempt) },
        ...(lane === 'leased' ? [{ title: 'lease until', cell: (m) => moment(m.lease_expires_at) }] : []),
        { title: 'consumer', cell: consumerOf },
        ...(lane === 'held' ? [{ title: 'changed', cell: (m) => m.changed?.join(', ') ?? '' }] : []),
    ], items, (m) => m.id);
}

function groupView(g, queue, lane, picked, flip, open, unfold) {
    const chosen = g.items.filter((m) => picked.has(m.id)).length;
    const oldest = g.items.reduce((a, m) => (endOf(m) < a ? endOf(m) : a), endOf(g.items[0]));
    return h('section', { key: g.name, class: 'group' },
        h('div', { class: 'group-head' },
            flip && h('input', { type: 'checkbox', 'aria-label': `Select all: ${g.kind} ${g.reason}`, checked: chosen === g.items.length, indeterminate: chosen > 0 && chosen < g.items.length, onchange: () => flip(g.items) }),
            h('button', { type: 'button', class: 'plain', 'data-nav': true, 'aria-expanded': String(open), onclick: () => unfold(g.name) },
                h('span', { class: 'quiet', 'aria-hidden': 'true' }, open ? '▾' : '▸'), h('b', { class: 'many' }, count(g.items.length)), badge(g.kind || lane, lane === 'dead' ? 'failed' : 'person'),
                h('span', { class: 'reason' }, g.reason || 'no reason was given'), h('span', { class: 'quiet' }, 'oldest ', moment(oldest, ago(oldest))))),
        open ? rows(queue, g.items, lane, picked, flip) : '');
}

export default function triage({ queue, lane }, ui) {
    const picked = new Set(), opened = new Set();
    const unfold = (name) => {
        opened[opened.has(name) ? 'delete' : 'add'](name);
        ui.redraw();
    };
    const flip = (items) => {
        const all = items.every((m) => picked.has(m.id));
        for (const m of items) picked[all ? 'delete' : 'add'](m.id);
        ui.redraw();
    };
    const done = () => {
        picked.clear();
        ui.refresh();
    };

    function tools(data, items) {
        const chosen = items.filter((m) => picked.has(m.id));
        const one = (kind) => chosen.length && chosen.every((m) => (m.held_because === 'conflict') === kind);
        const resolvable = (one(true) || one(false)) && chosen.every((m) => !m.refused && !m.dead_with_group);
        const button = (words, on, deed, danger) => h('button', { type: 'button', class: danger ? 'danger' : '', disabled: !on, onclick: deed }, words);
        const filtered = Boolean(ui.state.filter);
        return h('div', { class: 'tools', key: 'tools' },
            h('input', { type: 'search', id: 'filter', placeholder: 'filter by reason or key', 'aria-label': 'Filter by reason or key', value: ui.state.filter ?? '', autocomplete: 'off', oninput: (e) => ui.set({ filter: e.target.value }) }),
            allowed(data.q, 'operate') ? [h('label', { class: 'all' }, h('input', { type: 'checkbox', checked: items.length > 0 && chosen.length === items.length, indeterminate: chosen.length > 0 && chosen.length < items.length, onchange: () => flip(items) }),
                ` all ${count(items.length)}`),
            h('span', { class: 'quiet' }, `${count(chosen.length)} selected`),
            lane === 'dead' ? button(chosen.length ? `Redrive ${count(chosen.length)} …` : 'Redrive …', chosen.length, () => redrive(queue, { ids: chosen.map((m) => m.id) }, done)) : '',
            lane === 'dead' && data.more && !filtered ? button(`Redrive all ${count(data.q.dead)} …`, true, () => redrive(queue, {}, done)) : '',
            lane === 'dead' || lane === 'held' ? button(chosen.length ? `Resolve ${count(chosen.length)} …` : 'Resolve …', resolvable, () => resolve(queue, chosen, done)) : '',
            lane === 'leased' ? button(chosen.length ? `Take back ${count(chosen.length)} …` : 'Take back …', chosen.length, () => revoke(queue, chosen, done)) : '',
            button(chosen.length ? `Cancel ${count(chosen.length)} …` : 'Cancel …', chosen.length, () => cancel(queue, chosen, done), true),
            chosen.length && !resolvable && lane === 'held' ? quiet('Conflicts and unknown outcomes are resolved apart.') : ''] : '');
    }

    return {
        title: `${TITLES[lane]} · ${queue}`,
        async load(signal) {
            const [q, list] = await Promise.all([get(queuePath(queue), signal), pages(queuePath(queue, 'messages'), { state: lane }, LISTED_MOST, signal)]);
            const there = new Set(list.items.map((m) => m.id));
            for (const id of picked) if (!there.has(id)) picked.delete(id);
            return { q, items: list.items, more: list.more };
        },
        view(data) {
            const words = (ui.state.filter ?? '').toLowerCase().split(/\s+/).filter(Boolean);
            const items = data.items.filter((m) => matches(m, words));
            const grouped = lane === 'dead' || lane === 'held', select = allowed(data.q, 'operate') ? flip : null;
            return [
                h('div', { class: 'head', key: 'head' }, h('h1', {}, h('a', { href: to('q', queue) }, queue), ` · ${lane}`), badge(count(data.q[lane]), lane === 'dead' ? 'failed' : lane === 'held' ? 'person' : 'waiting')),
                quiet(WORDS[lane]),
                mayNot(data.q, 'operate', 'decide'),
                data.items.length ? tools(data, items) : h('p', { class: 'calm' }, badge(`nothing is ${lane}`, 'ok')),
                data.more ? quiet(`Shown are the ${count(data.items.length)} oldest of ${plural(data.q[lane], 'message')}; what is decided makes room for the next.`) : '',
                data.items.length && !items.length ? quiet(data.more ? 'None of these matches the filter, and there are more than these: `hapax dead list`, `held list` and `messages list` go through all.' : 'None matches the filter.') : '',
                items.length ? (grouped ? groupsOf(items).map((g) => groupView(g, queue, lane, picked, select, opened.has(g.name), unfold)) : rows(queue, items, lane, picked, select)) : '',
            ];
        },
    };
}
