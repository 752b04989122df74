// Signing in: the broker wants a token, and the page asks for it. It is kept in api.js, in memory, and goes with the page.
import { h } from './dom.js';
import { session } from './api.js';

// Nothing but a token's own characters may be in a header field; what was copied along with it is cut off.
const cleaned = (text) => text.trim().replace(/^Bearer\s+/i, '');

// why: the broker's own words, or what happened. `after()` is called once there is a token, or without one.
export function signIn(why, after) {
    const problem = h('p', { class: 'notice', role: 'alert', id: 'token-problem', hidden: true });
    const field = h('input', { id: 'token', type: 'password', required: true, maxlength: '512', autocomplete: 'off', autocapitalize: 'none', spellcheck: 'false', 'aria-describedby': 'token-why' });
    const show = h('input', { id: 'token-show', type: 'checkbox', onchange: () => { field.type = show.checked ? 'text' : 'password'; } });
    const submit = (e) => {
        e.preventDefault();
        const token = cleaned(field.value);
        problem.hidden = /^[\x21-\x7e]+$/.test(token);
        if (!problem.hidden) {
            problem.textContent = 'A token has no blanks and no letters beyond a to z: it begins with hx_.';
            return field.focus();
        }
        field.value = '';
        session.begin(token);
        after();
    };
    return h('form', { class: 'deed sign-in', onsubmit: submit },
        h('h1', {}, 'Sign in'),
        h('p', { id: 'token-why', role: 'status' }, why),
        h('label', { for: 'token' }, 'Token'), field,
        h('label', { class: 'all' }, show, ' show it'),
        problem,
        h('div', { class: 'buttons' }, h('button', { type: 'submit', class: 'primary' }, 'Sign in'),
            h('button', { type: 'button', onclick: after }, 'Go on without')),
        h('p', { class: 'quiet' }, 'The page keeps it in memory until it is closed, loaded again or signed out, and writes it nowhere. ', h('code', {}, 'hapax token new'), ' makes one.'));
}
