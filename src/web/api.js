// Talking to the broker, and knowing whether it is there.

// What went wrong, and whether anything was applied: "no", or "unknown".
export class Problem extends Error {
    constructor(status, body, changes) {
        super(body.detail ?? body.title ?? `the broker answered ${status}`);
        this.status = status;
        this.code = body.code ?? '';
        this.applied = body.applied ?? (changes ? 'unknown' : 'no');
    }
    get forbidden() { return this.status === 401 || this.status === 403; }
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
    let reply, value;
    try {
        reply = await fetch(path, {
            method, cache: 'no-store', signal: AbortSignal.any(limits),
            ...(body !== undefined && { body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } }),
        });
        value = await read(reply);
    } catch (error) {
        if (signal?.aborted) throw error;
        heard(false);
        throw new Gone(changes);
    }
    const leaving = reply.status === 503 && value?.code === 'shutting_down';
    heard(!leaving);
    if (leaving && !changes) throw new Gone(false);
    if (!reply.ok) throw new Problem(reply.status, value ?? {}, changes);
    return value;
}

export const get = (path, signal) => call('GET', path, undefined, signal);
export const post = (path, body, signal) => call('POST', path, body, signal);

const enc = encodeURIComponent;

export function query(params) {
    const pairs = Object.entries(params).filter(([, v]) => v !== undefined && v !== null && v !== '');
    return pairs.length ? '?' + pairs.map((pair) => pair.map(enc).join('=')).join('&') : ''; // a blank is %20 here: '+' is itself
}

export const queuePath = (queue, ...rest) => ['/v1/queues', enc(queue), ...rest.map(enc)].join('/');

// Addresses of views, to be pasted into a chat.
export const to = (...parts) => '#/' + parts.map(enc).join('/');

// Pages of a list, up to `most` items. `more` says whether there are others. Small ones: a page is made in one turn of the broker's, and others wait for it.
const PAGE = 200;

export async function pages(path, params, most, signal) {
    const items = new Map(); // a page may repeat what was on one before
    let cursor;
    for (let left = most / PAGE; left > 0; left--) {
        const page = await get(path + query({ ...params, limit: PAGE, cursor }), signal);
        for (const item of page.items) items.set(item.id ?? item.name, item);
        cursor = page.next_cursor;
        if (!cursor) break;
    }
    return { items: [...items.values()], more: Boolean(cursor) };
}
