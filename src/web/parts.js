// What several pages show alike.
import { h } from './dom.js';
import { Gone } from './api.js';
import { moment } from './format.js';

// Four states that mean the same everywhere; a sign beside the colour, for colour alone says nothing to many.
const SIGNS = { ok: '✓', waiting: '◦', person: '!', failed: '✕', none: '·' };
const KINDS = {
    done: 'ok', rejected: 'ok', cancelled: 'none', pending: 'waiting', leased: 'waiting', held: 'person', dead: 'failed', expired: 'none',
    firing: 'failed', resolved: 'ok', running: 'waiting', failed: 'failed',
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

// [{title, class, cell(item)}] and items. Each row has its key.
export function table(label, columns, items, keyOf) {
    return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label }, h('table', { class: 'plain-table' },
        h('caption', { class: 'off-screen' }, label),
        h('thead', {}, h('tr', {}, columns.map((c) => h('th', { scope: 'col', class: c.class }, c.title)))),
        h('tbody', {}, items.map((item) => h('tr', { key: keyOf(item) }, columns.map((c) => h('td', { class: c.class }, c.cell(item))))))));
}

export function appliedWords(error) {
    if (error.applied === 'unknown') return 'It is not known whether anything was applied: look before doing it again.';
    return 'Nothing was applied.';
}

export function notice(error, deed) {
    if (error.forbidden)
        return h('div', { class: 'notice', role: 'alert' }, h('b', {}, 'Not allowed: '), error.message);
    const what = error instanceof Gone ? 'No answer' : error.status === 404 && !deed ? 'Not there' : 'That did not work';
    return h('div', { class: 'notice', role: 'alert' }, h('b', {}, `${what}: `), error.message, error.message.endsWith('.') ? '' : '.', deed ? ` ${appliedWords(error)}` : '');
}

export function alertLine(a) {
    const link = a.queue ? `#/q/${encodeURIComponent(a.queue)}` : '#/alerts';
    return h('li', { key: `${a.name} ${a.queue ?? ''}`, class: `alert ${a.state}` },
        badge(a.state, a.state === 'firing' ? 'failed' : a.state === 'pending' ? 'person' : 'ok'),
        h('b', {}, a.name), a.queue ? h('a', { href: link, 'data-nav': true }, a.queue) : '',
        h('span', { class: 'alert-words' }, a.summary ?? ''),
        h('span', { class: 'about' },
            h('span', {}, 'since ', moment(a.since)),
            a.owner ? h('span', {}, `owner ${a.owner}`) : '',
            a.runbook ? h('span', {}, 'runbook ', /^https:\/\//.test(a.runbook) ? h('a', { href: a.runbook, rel: 'noreferrer' }, a.runbook) : code(a.runbook)) : ''));
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
