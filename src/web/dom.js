// Making and updating the page. Whatever the broker stores becomes text, never markup: there is no way here to parse any.

const SVG = 'http://www.w3.org/2000/svg';
const HANDLERS = ['onclick', 'oninput', 'onchange', 'onsubmit', 'onkeydown', 'ontoggle'];

function build(node, props, kids) {
    for (const [name, value] of Object.entries(props ?? {})) {
        if (value === undefined || value === null || value === false) continue;
        if (HANDLERS.includes(name)) node[name] = value;
        else if (name === 'checked' || name === 'value' || name === 'indeterminate') node.kept = { ...node.kept, [name]: value };
        else node.setAttribute(name, value === true ? '' : value);
    }
    for (const [name, value] of Object.entries(node.kept ?? {})) node[name] = value;
    add(node, kids);
    return node;
}

function add(node, kids) {
    for (const kid of kids) {
        if (kid === undefined || kid === null || kid === false || kid === '') continue;
        if (Array.isArray(kid)) add(node, kid);
        else node.append(kid instanceof Node ? kid : String(kid));
    }
}

// An element: h('a', {href, class, onclick, key}, 'text', h('b', …), [more], null). `checked` and `value` are kept as given by morph.
export const h = (tag, props, ...kids) => build(document.createElement(tag), props, kids);
export const svg = (tag, props, ...kids) => build(document.createElementNS(SVG, tag), props, kids);

const keyOf = (node) => (node.nodeType === 1 ? node.getAttribute('key') : null);
const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function morphAttributes(old, now) {
    for (const { name } of [...old.attributes]) {
        // What the reader has opened stays open; a highlight is left to fade.
        if (!now.hasAttribute(name) && !(name === 'open' && old.nodeName === 'DETAILS') && name !== 'data-changed') old.removeAttribute(name);
    }
    for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const name of HANDLERS) if (old[name] !== now[name]) old[name] = now[name];
    for (const [name, value] of Object.entries(now.kept ?? {}))
        if (old[name] !== value && !(name === 'value' && old === document.activeElement)) old[name] = value;
}

// What just changed is shown by a highlight that fades: two animations of one look, so that it starts over.
function highlight(text) {
    const cell = text.parentElement?.closest('[data-flash]');
    if (cell) cell.dataset.changed = cell.dataset.changed === 'a' ? 'b' : 'a';
}

function morphNode(old, now) {
    if (old.nodeType === 3) {
        if (old.data !== now.data) {
            old.data = now.data;
            highlight(old);
        }
        return;
    }
    morphAttributes(old, now);
    morphKids(old, [...now.childNodes]);
}

function morphKids(parent, wanted) {
    const keyed = new Map(), stay = new Set(wanted.map(keyOf));
    // What goes goes first: what stays need not be moved then, and a node that is moved loses the focus.
    for (const kid of [...parent.childNodes]) {
        if (keyOf(kid) === null) continue;
        if (stay.has(keyOf(kid))) keyed.set(keyOf(kid), kid);
        else kid.remove();
    }
    let at = parent.firstChild;
    for (const now of wanted) {
        const key = keyOf(now);
        const match = key !== null ? keyed.get(key) : at;
        if (match && match.parentNode === parent && alike(match, now)) {
            if (match !== at) parent.insertBefore(match, at);
            else at = at.nextSibling;
            morphNode(match, now);
        } else {
            parent.insertBefore(now, at);
        }
    }
    while (at) {
        const next = at.nextSibling;
        at.remove();
        at = next;
    }
}

// Makes the content of `parent` what `kids` say, and leaves alone what is the same: focus, selection and scrolling stay.
export function morph(parent, ...kids) {
    const wanted = document.createDocumentFragment();
    add(wanted, kids);
    morphKids(parent, [...wanted.childNodes]);
}
