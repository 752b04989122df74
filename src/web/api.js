// Talking to the broker: as whom, and knowing whether it is there.

// The token is in this variable and nowhere else: no storage, no cookie, no address. It goes with the page.
let token = '';

// asked: this broker knows tokens. proven: the one in use was let in. ask(why): shows where one is given.
export const session = {
    asked: false,
    proven: false,
    get signedIn() { return token !== ''; },
    begin(text) {
        token = text;
        this.proven = false;
    },
    end() { token = ''; },
    ask: () => {},
    changed: () => {},
};

const named = () => (token ? { Authorization: `Bearer ${token}` } : {});

// Answered with 401: a token that does not count, or not any more, is dropped before anything else is asked with it.
function refused(sent, why) {
    if (!session.asked) {
        session.asked = true;
        session.changed();
    }
    if (!token || sent !== named().Authorization) return;
    session.end();
    session.ask(`${session.proven ? 'The token is not accepted any more' : 'That did not work'}: ${why}.`);
}

// What went wrong, and whether anything was applied: "no", or "unknown".
export class Problem extends Error {
    constructor(status, body, changes) {
        super(body.detail ?? body.title ?? `the broker answered ${status}`);
        this.status = status;
        this.code = body.code ?? '';
        this.applied = body.applied ?? (changes ? 'unknown' : 'no');
    }
    get forbidden() { return this.status === 403; }
    get unnamed() { return this.status === 401; }
}

export class Gone extends Error {
    constructor(changes) {
        super('the broker does not answer');
        this.applied = changes ? 'unknown' : 'no';
    }
}

// Since when the broker has not answered; null while it does.
export const health = { gone: null, changed: () => {} };

function heard(there) {
    const was = health.gone;
    health.gone = there ? null : (was ?? new Date());
    if ((was === null) !== there) health.changed();
}

async function read(reply) {
    const text = await reply.text();
    if (!text) return null;
    try {
        return JSON.parse(text);
    } catch {
        return { detail: text.slice(0, 300) };
    }
}

export async function call(method, path, body, signal) {
    const changes = method !== 'GET';
    const limits = [AbortSignal.timeout(changes ? 60000 : 10000)];
    if (signal) limits.push(signal);
    const headers = named();
    let reply, value;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    try {
        reply = await fetch(path, { method, cache: 'no-store', credentials: 'omit', signal: AbortSignal.any(limits), headers, ...(body !== undefined && { body: JSON.stringify(body) }) });
        value = await read(reply);
    } catch (error) {
        if (signal?.aborted) throw error;
        heard(false);
        throw new Gone(changes);
    }
    const leaving = reply.status === 503 && value?.code === 'shutting_down';
    heard(!leaving);
    if (leaving && !changes) throw new Gone(false);
    if (reply.status === 401) refused(headers.Authorization, value?.detail ?? 'this token is not known here');
    else if (headers.Authorization && headers.Authorization === named().Authorization) session.proven = true;
    if (!reply.ok) throw new Problem(reply.status, value ?? {}, changes);
    return value;
}

// The stream of events as it comes; its reader stops it. EventSource cannot say who asks.
export async function stream(path, last, signal) {
    const reply = await fetch(path, { signal, cache: 'no-store', credentials: 'omit', headers: { ...named(), 'Last-Event-ID': last } });
    if (!reply.ok) throw new Error(reply.statusText);
    return reply.body.pipeThrough(new TextDecoderStream()).getReader();
}

// What is not for everybody who may see the rest of a page: null where a right is missing. alone: it is all the page shows, so whoever is
// not signed in is asked to.
export async function getIfAllowed(path, signal, alone) {
    try {
        return await get(path, signal);
    } catch (error) {
        if (error.forbidden || (error.unnamed && !alone)) return null;
        throw error;
    }
}

export const get = (path, signal) => call('GET', path, undefined, signal);
export const post = (path, body, signal) => call('POST', path, body, signal);

// How the broker fares: null for those who may not see it, a tenant's among them, whose answer holds its own part alone.
export async function stats(signal, alone) {
    const told = await getIfAllowed('/v1/stats', signal, alone);
    return told?.now ? told : null;
}

const enc = encodeURIComponent;

export function query(params) {
    const pairs = Object.entries(params).filter(([, v]) => v !== undefined && v !== null && v !== '');
    return pairs.length ? '?' + pairs.map((pair) => pair.map(enc).join('=')).join('&') : ''; // a blank is %20 here: '+' is itself
}

// May whoever asks do that with this queue? A broker that asks nobody for a token does not say.
export function allowed(q, right) {
    if (q.may && !session.asked) {
        session.asked = true;
        session.changed();
    }
    return !q.may || q.may.includes(right);
}

export const queuePath = (queue, ...rest) => ['/v1/queues', enc(queue), ...rest.map(enc)].join('/');

// A key as the broker finds it for whoever may look: with its sender's name where keys are their senders'.
export const keyOf = (m) => (m.key && m.credential ? `${m.credential}/${m.key}` : m.key);

// Addresses of views, to be pasted into a chat.
export const to = (...parts) => '#/' + parts.map(enc).join('/');

// Pages of a list, up to `most` items. `more` says whether there are others. Small ones: a page is made in one turn of the broker's, and others wait for it.
const PAGE = 200;

export async function pages(path, params, most, signal) {
    const items = new Map(); // a page may repeat what was on one before
    let cursor;
    for (let left = most / PAGE; left > 0; left--) {
        const page = await get(path + query({ ...params, limit: PAGE, cursor }), signal);
        for (const item of page.items) items.set(item.id ?? item.name ?? item.queue, item);
        cursor = page.next_cursor;
        if (!cursor) break;
    }
    return { items: [...items.values()], more: Boolean(cursor) };
}
