// A page of docs/runbooks: what to do. Read as text and made into elements; of Markdown it knows what those pages use.
import { h } from './dom.js';
import { to } from './api.js';

// `code`, **strong**, *stress* and [links] in a line; a link leads to another runbook, or is its words.
function words(text) {
    return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s]+\*|\[[^\]]+\]\([^)]+\))/).map((part) => {
        const link = /^\[(.+)\]\((.+)\)$/.exec(part), page = /^([a-zA-Z-]+)\.md(#.*)?$/.exec(link?.[2] ?? '');
        if (page) return h('a', { href: to('runbook', page[1]) }, link[1]);
        if (link) return link[1];
        if (part.startsWith('`')) return h('code', {}, part.slice(1, -1));
        if (part.startsWith('**')) return h('b', {}, part.slice(2, -2));
        return /^\*\S+\*$/.test(part) ? h('i', {}, part.slice(1, -1)) : part;
    });
}

const cells = (line, tag) => h('tr', {}, line.replace(/^\||\|$/g, '').split('|').map((cell) => h(tag, { class: 'wide', scope: tag === 'th' ? 'col' : undefined }, words(cell.trim()))));

function tableOf(lines) {
    return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Table' },
        h('table', {}, h('thead', {}, cells(lines[0], 'th')), h('tbody', {}, lines.slice(2).map((line) => cells(line, 'td')))));
}

// Lines that belong together: how they begin, and what becomes of them.
const BLOCKS = [
    { begins: /^## /, make: ([line]) => h('h2', {}, line.slice(3)), one: true },
    { begins: /^# /, make: ([line]) => h('h1', {}, line.slice(2)), one: true },
    { begins: /^\|/, goesOn: /^\|/, make: tableOf },
    { begins: /^(\d+\.|-) /, goesOn: /^ +\S/, make: (lines) => h('p', { class: 'item' }, words(lines.map((l) => l.trim()).join(' '))) },
    { begins: /\S/, goesOn: /^(?!```|\||#|- |\d+\. ).*\S/, make: (lines) => h('p', {}, words(lines.map((l) => l.trim()).join(' '))) },
];

function blocks(text) {
    const lines = text.split('\n'), made = [];
    for (let at = 0; at < lines.length;) {
        const from = at++;
        if (!lines[from].trim()) continue;
        if (lines[from].startsWith('```')) {
            while (at < lines.length && !lines[at].startsWith('```')) at++;
            made.push(h('pre', { tabindex: '0' }, lines.slice(from + 1, at++).join('\n')));
            continue;
        }
        const block = BLOCKS.find((b) => b.begins.test(lines[from]));
        while (!block.one && at < lines.length && block.goesOn.test(lines[at])) at++;
        made.push(block.make(lines.slice(from, at)));
    }
    return made;
}

export default ({ name }) => ({
    title: `${name} · runbook`,
    still: true,
    async load(signal) {
        const reply = await fetch(`/ui/${name}.md`, { signal });
        if (!reply.ok) throw Object.assign(new Error('There is no such runbook.'), { status: reply.status });
        return reply.text();
    },
    view: (text) => h('article', { class: 'runbook' }, blocks(text)),
});
