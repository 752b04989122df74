// Which view the address means, when it is loaded again, and what the keyboard does.
import { h, morph } from './dom.js';
import { getIfAllowed, health, Gone, session, stats, to } from './api.js';
import { clock, duration } from './format.js';
import { notice, NOT_JUDGED } from './parts.js';
import { closeDialog, showHelp } from './deeds.js';
import overview from './overview.js';
import queuePage from './queue.js';
import keyPage from './key.js';
import triage from './triage.js';
import findPage from './find.js';
import { alerts, tasks, audit, relays, targets } from './lists.js';
import runbook from './runbook.js';
import { signIn } from './sign.js';

const POLL_MS = 2000, POLL_MS_MOST = 5000, RETRY_MS = 1000;
const REST = 20; // after an answer, so many times as long as it took

const pollAfter = (took) => (health.gone ? RETRY_MS : Math.min(POLL_MS_MOST, Math.max(POLL_MS, took * REST)));

const $ = (id) => document.getElementById(id);

// ---- addresses: #/q/QUEUE, #/q/QUEUE/dead?reason=x, #/q/QUEUE/key/KEY, #/find/TEXT, …

const LANES = ['pending', 'leased', 'held', 'dead'];

function pageOf(parts) {
    const [first, name, what, rest] = parts;
    if (!first) return [overview, {}];
    if (first === 'find') return [findPage, { text: name ?? '' }];
    if (first === 'runbook' && /^[a-zA-Z-]+$/.test(name ?? '')) return [runbook, { name }];
    if (first === 'q' && name && !what) return [queuePage, { queue: name }];
    if (first === 'q' && LANES.includes(what)) return [triage, { queue: name, lane: what }];
    if (first === 'q' && what === 'key' && rest) return [keyPage, { queue: name, key: rest }];
    if (first === 'q' && what === 'id' && rest) return [keyPage, { queue: name, id: rest }];
    const page = { alerts, tasks, audit, relays, targets }[first];
    return page && !name ? [page, {}] : null;
}

function address() {
    const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
    try {
        return { parts: path.split('/').map(decodeURIComponent), state: Object.fromEntries(new URLSearchParams(search)) };
    } catch {
        return { parts: ['?'], state: {} };
    }
}

// ---- one view at a time

let shown = null; // {page, data, state, stop}

function draw() {
    if (!shown) return;
    const { page, data, error } = shown;
    const body = data !== undefined ? page.view(data) : error ? h('h1', {}, page.title) : h('p', { class: 'quiet' }, 'Loading …');
    morph($('view'), data === undefined ? body : '', error ? notice(error) : '', data === undefined ? '' : body);
}

function setState(change) {
    Object.assign(shown.state, change);
    const search = new URLSearchParams(Object.entries(shown.state).filter(([, v]) => typeof v === 'string' && v !== ''));
    const path = location.hash.split('?')[0] || '#/';
    history.replaceState(null, '', search.size ? `${path}?${search}` : path);
    shown.here = location.hash;
    draw();
}

async function loadOnce(mine, signal) {
    try {
        const data = await mine.page.load(signal, mine.state);
        if (signal.aborted) return;
        mine.data = data;
        mine.error = null;
    } catch (error) {
        if (signal.aborted) return;
        if (error.unnamed) return askForToken('What this page shows needs a token.');
        if (!(error instanceof Gone)) mine.error = error;
        if (!('status' in error) && !(error instanceof Gone)) console.error(error);
    }
    draw();
}

// Loads the view again and again; slower where an answer takes long, not at all while nobody looks.
async function run(mine) {
    const { signal } = mine.stop;
    while (!signal.aborted) {
        const began = performance.now();
        await loadOnce(mine, signal);
        if (mine.page.still && mine.data !== undefined && !health.gone) await pause(mine, null);
        else await pause(mine, pollAfter(performance.now() - began));
        while (document.hidden && !signal.aborted) await new Promise((on) => addEventListener('visibilitychange', on, { once: true }));
    }
}

function pause(mine, ms) {
    return new Promise((on) => {
        mine.wake = on;
        if (ms !== null) setTimeout(on, ms);
        mine.stop.signal.addEventListener('abort', on, { once: true });
    });
}

function open() {
    const { parts, state } = address();
    const found = pageOf(parts);
    closeDialog();
    shown?.stop.abort();
    shown?.page.close?.();
    const mine = { state, stop: new AbortController(), here: location.hash };
    shown = mine;
    const ui = { state, set: setState, redraw: draw, refresh: () => mine.wake?.() };
    mine.page = found ? found[0](found[1], ui) : {
        title: 'No such page', still: true, load: async () => 0, view: () => [h('h1', {}, 'No such page'), h('p', {}, 'There is no such page. ', h('a', { href: '#/' }, 'All queues'))],
    };
    document.title = `${mine.page.title} · Hapax`;
    for (const link of document.querySelectorAll('.tabs a')) {
        const here = link.getAttribute('href') === (parts[0] === 'q' ? '#/' : `#/${parts[0]}`);
        if (here) link.setAttribute('aria-current', 'page');
        else link.removeAttribute('aria-current');
    }
    $('view').replaceChildren();
    scrollTo(0, 0);
    draw();
    run(mine);
}

// ---- who looks

// The view ends: what it showed was for who was signed in.
function askForToken(why) {
    closeDialog();
    shown?.stop.abort();
    shown?.page?.close?.();
    shown = null;
    document.title = 'Sign in · Hapax';
    morph($('about'));
    $('alarm').hidden = true;
    $('view').replaceChildren(signIn(why, () => {
        open();
        sayWho();
        $('view').focus();
        bar().catch(() => {}); // else with its next look
    }));
    sayWho();
    $('token').focus();
}
session.ask = askForToken;

function sayWho() {
    $('sign').hidden = !shown || (!session.asked && !session.signedIn);
    $('sign').textContent = session.signedIn ? 'Sign out' : 'Sign in';
}
session.changed = sayWho;

$('sign').addEventListener('click', () => {
    const was = session.signedIn;
    session.end();
    askForToken(was ? 'You are signed out.' : 'With a token you see and do what it allows.');
});

// ---- the bar

let firing = '', began = 0; // when the broker did, as it was last heard

// A broker that began anew has forgotten what fired, and says so until it has looked: silence is no all-clear.
function announce(names, all, judged) {
    const start = all ? Date.parse(all.now) - all.uptime_ms : began, anew = began && start - began > 1000;
    began = start;
    if (anew) $('live').textContent = `The broker began anew at ${clock(start)} and judges its alerts afresh`;
    if (!judged || names === firing) return;
    if (names) $('live').textContent = `Firing: ${names}`;
    else if (!anew) $('live').textContent = 'No alert is firing any more';
    firing = names;
}

async function bar() {
    const mine = shown;
    const [all, alerts] = await Promise.all([stats(), getIfAllowed('/v1/alerts')]);
    if (shown !== mine) return;
    morph($('about'), h('span', {}, location.host), all ? [h('span', {}, all.version), h('span', {}, `up ${duration(all.uptime_ms)}`)] : '');
    $('alarm').hidden = !alerts;
    if (!alerts) return;
    const fire = alerts.items.filter((a) => a.state === 'firing');
    const judged = alerts.judged !== false || fire.length > 0;
    morph($('alarm'), h('span', { class: `badge ${fire.length ? 'failed' : judged ? 'ok' : 'none'}` }, h('span', { class: 'sign', 'aria-hidden': 'true' }, judged ? '●' : '○'),
        fire.length ? `${fire.length} firing` : judged ? 'quiet' : NOT_JUDGED));
    announce(fire.map((a) => `${a.name}${a.queue ? ` on ${a.queue}` : ''}`).join(', '), all, judged);
}

async function keepBar() {
    for (;;) {
        const began = performance.now();
        try {
            if (!document.hidden && shown) await bar();
        } catch (error) {
            if (!(error instanceof Gone) && !('status' in error)) console.error(error);
        }
        await new Promise((on) => setTimeout(on, pollAfter(performance.now() - began)));
    }
}

// The broker is gone: what is shown is old. Says since when, and recovers by itself.
function sayGone() {
    const line = $('stale');
    document.body.classList.toggle('stale', Boolean(health.gone));
    line.hidden = !health.gone;
    if (health.gone) line.textContent = `The broker does not answer since ${clock(health.gone)}. What is shown is from before; trying again every second.`;
    else shown?.wake?.();
}
health.changed = sayGone;

// ---- the keyboard

const typing = (target) => target.matches('input, textarea, select');

function move(step) {
    const all = [...document.querySelectorAll('[data-nav]')];
    const at = all.indexOf(document.activeElement);
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + step))];
    next?.focus();
    next?.scrollIntoView({ block: 'nearest' });
}

function back() {
    const { parts } = address();
    if (parts[0] === 'q' && parts.length > 2) location.hash = to('q', parts[1]);
    else if (parts[0]) location.hash = '#/';
}

addEventListener('keydown', (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector('dialog[open]')) return;
    if (e.key === 'Escape') {
        if (typing(e.target)) e.target.blur();
        else back();
        return;
    }
    if (typing(e.target)) return;
    const deed = { '/': () => $('find-text').focus(), j: () => move(1), k: () => move(-1), '?': showHelp }[e.key];
    if (!deed) return;
    e.preventDefault();
    deed();
});

$('find').addEventListener('submit', (e) => {
    e.preventDefault();
    const text = $('find-text').value.trim();
    if (text) location.hash = to('find', text);
});
document.querySelector('.skip').addEventListener('click', (e) => {
    e.preventDefault(); // the address names the view
    $('view').focus();
});
$('help').addEventListener('click', showHelp);

addEventListener('hashchange', () => {
    if (!shown || shown.here !== location.hash) open();
});
addEventListener('unhandledrejection', (e) => {
    if (e.reason?.name === 'AbortError') e.preventDefault();
});
open();
keepBar();
