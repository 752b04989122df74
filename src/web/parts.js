// What several pages show alike.
import { h } from './dom.js';
import { allowed, Gone, keyOf, session, to } from './api.js';
import { duration, moment } from './format.js';

// Four states that mean the same everywhere; a sign beside the colour, for colour alone says nothing to many.
const SIGNS = { ok: '✓', waiting: '◦', person: '!', failed: '✕', none: '·' };
const KINDS = {
    done: 'ok', rejected: 'ok', cancelled: 'none', pending: 'waiting', leased: 'waiting', held: 'person', dead: 'failed', expired: 'none',
    firing: 'failed', resolved: 'ok', running: 'waiting', failed: 'failed', closed: 'ok', open: 'failed', 'half-open': 'waiting', paused: 'person',
};
export const badge = (text, kind = KINDS[text] ?? 'none') =>
    h('span', { class: `badge ${kind}` }, h('span', { class: 'sign', 'aria-hidden': 'true' }, SIGNS[kind]), text);

export const section = (title, ...body) => h('section', { key: title }, h('h2', {}, title), ...body);
export const quiet = (...text) => h('p', { class: 'quiet' }, ...text);
export const code = (text) => h('code', {}, text);

// Long text is folded: one line, the rest a click away.
export function fold(title, text, open) {
    return h('details', { key: `fold-${title}`, open }, h('summary', {}, title), h('pre', { tabindex: '0' }, text));
}

export function pretty(body, type) {
    if (!/json/.test(type ?? '') && !/^\s*[[{]/.test(body)) return body;
    try {
        return JSON.stringify(JSON.parse(body), null, 2);
    } catch {
        return body;
    }
}

// A value in lines, as one would write it down: text as it is, members by name.
export function plainly(value, indent = '') {
    if (typeof value !== 'object' || value === null) return String(value).replace(/\n/g, `\n${indent}`);
    return Object.entries(value).map(([name, v]) => {
        const text = plainly(v, `${indent}  `);
        if (Array.isArray(value)) return `- ${text}`;
        return `${name}:${text.includes('\n') || (typeof v === 'object' && v !== null) ? `\n${indent}  ` : ' '}${text}`;
    }).join(`\n${indent}`);
}

// [{title, class, cell(item)}] and items. Each row has its key.
export function table(label, columns, items, keyOf) {
    return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label }, h('table', { class: 'plain-table' },
        h('caption', { class: 'off-screen' }, label),
        h('thead', {}, h('tr', {}, columns.map((c) => h('th', { scope: 'col', class: c.class }, c.title)))),
        h('tbody', {}, items.map((item) => h('tr', { key: keyOf(item) }, columns.map((c) => h('td', { class: c.class, 'data-label': c.title }, c.cell(item))))))));
}

export function appliedWords(error) {
    if (error.applied === 'unknown') return 'It is not known whether anything was applied: look before doing it again.';
    return 'Nothing was applied.';
}

// What cannot be done is not offered; which right is missing is said instead.
export const mayNot = (q, right, words) => (allowed(q, right) ? '' : quiet(`You may look, but not ${words}: the right `, code(`${right}:${q.name}`), ' is missing.'));

export function notice(error, deed) {
    if (error.forbidden)
        return h('div', { class: 'notice', role: 'alert' }, h('b', {}, 'Not allowed: '), error.message);
    if (error.unnamed)
        return h('div', { class: 'notice', role: 'alert' }, h('b', {}, 'Not signed in: '), 'this needs a token. ', deed ? `${appliedWords(error)} ` : '',
            h('button', { type: 'button', class: 'small', onclick: () => session.ask('That needs a token.') }, 'Sign in …'));
    const what = error instanceof Gone ? 'No answer' : error.status === 404 && !deed ? 'Not there' : 'That did not work';
    return h('div', { class: 'notice', role: 'alert' }, h('b', {}, `${what}: `), error.message, error.message.endsWith('.') ? '' : '.', deed ? ` ${appliedWords(error)}` : '');
}

// ---- how a queue fares

const MS = { ms: 1, s: 1000, m: 60000, h: 3600000, d: 86400000 };
function parseDuration(text) {
    const found = /^(\d+)(ms|s|m|h|d)?$/.exec(text ?? '');
    return found ? Number(found[1]) * MS[found[2] ?? 's'] : null;
}

// What was handed out waited that long, or what is ready does: with the consumers gone, only the latter shows.
export function lagOf(q) {
    const known = [q.live?.wait_p95_ms, q.live?.oldest_ready_ms].filter((ms) => typeof ms === 'number');
    return known.length ? Math.max(...known) : undefined;
}

export function lagWords(q) {
    const want = q.config?.lag?.p95 ? String(q.config.lag.p95) : null, over = want && lagOf(q) > parseDuration(want);
    return h('span', { class: over ? 'failed' : '', title: 'the longer of: the p95 of what was handed out in the last five minutes, the oldest that is ready' },
        duration(lagOf(q)), h('span', { class: 'zero' }, ` / ${want ?? '–'}`), over ? ' ✕' : '');
}

// The work that was begun longest ago: itself, for it may be leased, or wait for its next try.
export const oldestHref = (q) => (q.live?.oldest_unsettled_id ? to('q', q.name, 'id', q.live.oldest_unsettled_id) : to('q', q.name, 'leased'));

// ---- alerts

export const NOT_JUDGED = 'not judged yet';

function alertAbout(a) {
    if (!a.queue || !(a.key || a.id)) return '';
    return h('a', { href: a.key ? to('q', a.queue, 'key', keyOf(a)) : to('q', a.queue, 'id', a.id), 'data-nav': true }, keyOf(a) || a.id);
}

function runbookLink(runbook) {
    const page = /^docs\/runbooks\/([a-z-]+)\.md$/.exec(runbook);
    if (page) return h('a', { href: to('runbook', page[1]) }, runbook);
    return /^https:\/\//.test(runbook) ? h('a', { href: runbook, rel: 'noreferrer' }, runbook) : code(runbook);
}

export function alertLine(a) {
    return h('li', { key: `${a.name} ${a.queue ?? ''}`, class: `alert ${a.state}` },
        badge(a.state, a.state === 'firing' ? 'failed' : a.state === 'pending' ? 'person' : 'ok'),
        h('b', {}, a.name), a.queue ? h('a', { href: to('q', a.queue), 'data-nav': true }, a.queue) : '', alertAbout(a),
        h('span', { class: 'alert-words' }, a.summary ?? ''),
        h('span', { class: 'about' },
            h('span', {}, 'since ', moment(a.since)),
            a.owner ? h('span', {}, `owner ${a.owner}`) : '',
            a.runbook ? h('span', {}, 'runbook ', runbookLink(a.runbook)) : ''));
}

// A list of thousands: only the rows in sight are made. Rows are of one height, measured.
export class LongTable {
    constructor(redraw) {
        this.height = 33;
        this.redraw = redraw;
        this.due = false;
        this.onScroll = () => {
            if (this.due) return;
            this.due = true;
            requestAnimationFrame(() => {
                this.due = false;
                if (this.drawn !== this.range(this.total).join()) this.redraw();
            });
        };
        addEventListener('scroll', this.onScroll, { passive: true });
        addEventListener('resize', this.onScroll, { passive: true });
    }
    close() {
        removeEventListener('scroll', this.onScroll);
        removeEventListener('resize', this.onScroll);
    }
    range(total) {
        const body = document.querySelector('.long tbody');
        const row = body?.querySelector('tr[key]:not(.spacer)');
        if (row) this.height = row.getBoundingClientRect().height || this.height;
        const above = body ? Math.max(0, -body.getBoundingClientRect().top) : 0;
        const first = Math.max(0, Math.min(total, Math.floor(above / this.height)) - 15);
        return [first, Math.min(total, first + Math.ceil(innerHeight / this.height) + 30)];
    }
    // The rows to make of `items`, between two spacers.
    rows(items, make, columns) {
        this.total = items.length;
        const [first, last] = this.range(items.length);
        this.drawn = `${first},${last}`;
        const spacer = (name, many) => (many ? h('tr', { key: name, class: 'spacer', 'aria-hidden': 'true', height: Math.round(many * this.height) },
            h('td', { colspan: columns, height: Math.round(many * this.height) })) : '');
        return [spacer(' above', first), items.slice(first, last).map((item, i) => make(item, first + i)), spacer(' below', items.length - last)];
    }
}
