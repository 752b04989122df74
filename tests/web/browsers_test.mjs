#!/usr/bin/env node
// A real browser on a page of another origin. Whatever that page tries, nothing is applied and nothing is read; and the
// dashboard, which is of the broker's own origin, does everything.
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { Broker, browse, main, ok, open, same, test, until } from './harness.mjs';

// Held to the same: a broker that asks nobody for a token, one that does, and one that lets everybody look.
const TOKEN = 'hx_root_0123456789abcdef';
const tokens = `tokens: [{name: root, sha256: ["${createHash('sha256').update(TOKEN).digest('hex')}"], allow: [send, receive, result, operate, observe, admin]}]\n`;
const brokers = {
    'no tokens': await new Broker().start(),
    tokens: await new Broker({ config: tokens, token: TOKEN }).start(),
    'tokens, over https': await new Broker({ config: tokens, token: TOKEN, tls: true }).start(),
    'tokens, and everybody may look': await new Broker({ config: `${tokens}anonymous: [observe]\n`, token: TOKEN }).start(),
};
const own = await new Broker().start(); // for what is allowed to change something
for (const broker of Object.values(brokers)) {
    await broker.rules('payments', {});
    same((await broker.send('payments', 'p-1', { secret: 'do-not-read-me' })).status, 202);
}

// A site of somebody else: one empty page, and a note of what it was asked.
const site = createServer((request, reply) => {
    reply.setHeader('Content-Type', 'text/html');
    reply.end('<!doctype html><title>elsewhere</title><link rel=icon href=data:,><body></body>');
});
await new Promise((on) => site.listen(0, '127.0.0.1', on));
site.unref();
const elsewhere = `http://127.0.0.1:${site.address().port}`; // the same host, another port: another origin, the same site
const evil = `http://evil.example:${site.address().port}`; // another site; resolved to this machine, as by rebinding

const state = async (broker) => JSON.stringify([
    (await broker.get('/v1/queues')).items.map((q) => ({ ...q, oldest_ready_ms: 0 })),
    (await broker.get('/v1/audit')).items,
    (await broker.get('/v1/tasks')).items,
]);

// What a page can do with fetch: whether it read anything, and what.
const attempt = (page, url, init) => page.evaluate(async ([address, how]) => {
    try {
        const reply = await fetch(address, how);
        return { type: reply.type, status: reply.status, text: await reply.text() };
    } catch (e) {
        return { type: 'failed' };
    }
}, [url, init]);

const blind = (answer) => ['failed', 'opaque'].includes(answer.type) && !answer.text;

const DEEDS = [
    ['/v1/queues/payments/messages', { method: 'POST', body: 'x', headers: { 'Idempotency-Key': 'from-elsewhere' } }],
    ['/v1/queues/payments/messages', { method: 'POST', body: 'x' }],
    ['/v1/queues/payments/batch', { method: 'POST', body: '{"key":"a","payload":"x"}\n' }],
    ['/v1/queues/payments/purge', { method: 'POST' }],
    ['/v1/queues/payments/purge', { method: 'POST', body: '{}', headers: { 'Content-Type': 'text/plain' } }],
    ['/v1/queues/payments/pause', { method: 'POST', body: 'by=eve', headers: { 'Content-Type': 'application/x-www-form-urlencoded' } }],
    ['/v1/queues/payments/receive', { method: 'POST' }],
    ['/v1/queues/made-elsewhere', { method: 'PUT', body: '{}' }],
    ['/v1/queues/payments', { method: 'DELETE' }],
    ['/v1/queues/payments/keys/p-1', { method: 'DELETE' }],
    ['/v1/queues/payments/keys/p-1', { method: 'GET' }],
    ['/v1/queues/payments/messages?state=ready', { method: 'GET' }],
    ['/v1/queues', { method: 'GET' }],
    ['/metrics', { method: 'GET' }],
    ['/', { method: 'GET' }],
];

// Even with a token that somebody has lost: it is of no use to a page.
const WITH = { 'nothing': {}, 'a token': { Authorization: `Bearer ${TOKEN}` } };

for (const [kind, broker] of Object.entries(brokers))
    for (const [name, origin] of [['another port', elsewhere], ['another site', evil]])
        test(`a page of ${name} sends, purges and reads nothing by fetch: ${kind}`, async () => {
            const page = await browse(origin);
            const before = await state(broker);
            for (const [path, init] of DEEDS)
                for (const [what, more] of Object.entries(WITH))
                    for (const mode of ['cors', 'no-cors']) {
                        const answer = await attempt(page, broker.url + path, { ...init, mode, credentials: 'include', headers: { ...init.headers, ...more } });
                        ok(blind(answer), `${mode} ${init.method} ${path} with ${what} read ${JSON.stringify(answer)}`);
                    }
            same(await state(broker), before, 'what the broker holds');
        });

for (const [kind, broker] of Object.entries(brokers)) test(`a form, an image, a script and a frame of another site do and show nothing: ${kind}`, async () => {
    const page = await browse(evil);
    const before = await state(broker);
    const statuses = [];
    page.on('response', (r) => r.url().startsWith(broker.url) && statuses.push(r.status()));
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data']) {
        const posted = page.waitForNavigation();
        await page.evaluate(([address, kind]) => {
            const form = document.body.appendChild(document.createElement('form'));
            Object.assign(form, { method: 'POST', enctype: kind, action: address });
            form.appendChild(Object.assign(document.createElement('input'), { name: '{"by":"eve","note":"', value: '"}' }));
            form.submit();
        }, [`${broker.url}/v1/queues/payments/purge`, type]);
        same((await posted).status(), 403, `a form of ${type}`);
        await page.goto(evil);
    }
    const loaded = (tag, attribute, path) => page.evaluate(([t, a, address]) => new Promise((on) => {
        const element = document.createElement(t);
        element.onload = () => on('load');
        element.onerror = () => on('error');
        element[a] = address;
        document.body.appendChild(element);
    }), [tag, attribute, broker.url + path]);
    same(await loaded('img', 'src', '/v1/queues/payments/keys/p-1'), 'error');
    same(await loaded('script', 'src', '/v1/queues'), 'error');
    same(await loaded('script', 'src', '/ui/app.js'), 'error');
    await loaded('iframe', 'src', '/v1/queues');
    ok(statuses.every((s) => s === 403), `answers were ${statuses}`);
    await loaded('iframe', 'src', '/'); // a link may lead there, but it shows itself in no frame
    const frame = page.frames().at(-1);
    ok(!frame.url().startsWith(broker.url) && !(await frame.content()).includes('Hapax'), `a frame shows ${frame.url()}`);
    same(await state(broker), before, 'what the broker holds');
});

// Where nothing is for a call without a token, its name is no secret, and the bare page is all that such a page gets.
for (const [kind, broker] of Object.entries(brokers)) test(`a page whose name was rebound to this machine reaches nothing: ${kind}`, async () => {
    const page = await browse(broker.url.replace('127.0.0.1', 'evil.example'));
    const before = await state(broker), locked = kind.startsWith('tokens') && !kind.includes('everybody');
    const refusal = locked ? 401 : 421;
    same(page.first.status(), locked ? 200 : 421);
    for (const [path, init] of DEEDS.filter(([p]) => p !== '/')) {
        const answer = await page.evaluate(async ([p, how]) => {
            const reply = await fetch(p, how);
            return [reply.status, await reply.text()];
        }, [path, init]);
        same(answer[0], refusal, `${init.method} ${path}`);
        ok(!answer[1].includes('do-not-read-me'), `${path} reads ${answer[1]}`);
    }
    ok(!(await page.content()).includes('do-not-read-me'), 'the payload is in the page');
    same(await state(broker), before, 'what the broker holds');
});

for (const kind of ['tokens', 'tokens, over https']) test(`a page of another site has nothing of a dashboard that is signed in beside it: ${kind}`, async () => {
    const broker = brokers[kind], before = await state(broker);
    const page = await open(broker, '#/q/payments/key/p-1');
    await page.locator('#token').fill(TOKEN);
    await page.keyboard.press('Enter');
    await page.locator('h1', { hasText: 'p-1' }).waitFor();
    page.complaints = [];
    const other = await page.context().newPage();
    await other.goto(evil);
    for (const [path, init] of DEEDS) ok(blind(await attempt(other, broker.url + path, { ...init, credentials: 'include' })), path);
    const [popup] = await Promise.all([other.waitForEvent('popup'), other.evaluate((address) => { window.held = window.open(address, 'dashboard'); }, `${broker.url}/`)]);
    await popup.locator('#view h1').waitFor();
    const reads = await other.evaluate(() => {
        try {
            return Boolean(window.held?.document?.body);
        } catch {
            return false;
        }
    });
    same(reads, false, 'its document can be read');
    same(await state(broker), before, 'what the broker holds');
});

test('the page is shown in no frame and held by no opener', async () => {
    for (const path of ['/', '/ui/app.js', '/ui/README.md']) {
        const reply = await fetch(brokers.tokens.url + path);
        const policy = reply.headers.get('content-security-policy');
        for (const part of ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"]) ok(policy.includes(part), `${path}: ${policy}`);
        ok(!/unsafe|\*|https?:/.test(policy), policy);
        same([reply.headers.get('x-frame-options'), reply.headers.get('cross-origin-opener-policy'), reply.headers.get('cross-origin-resource-policy'), reply.headers.get('x-content-type-options'), reply.headers.get('referrer-policy')],
            ['DENY', 'same-origin', 'same-origin', 'nosniff', 'no-referrer'], path);
        same([reply.headers.get('access-control-allow-origin'), reply.headers.get('set-cookie')], [null, null], path);
    }
});

test('a link to the dashboard can be followed from anywhere, and the dashboard then works', async () => {
    const page = await browse(evil);
    await page.evaluate((address) => {
        document.body.appendChild(Object.assign(document.createElement('a'), { href: address, textContent: 'to the queues' }));
    }, `${own.url}/#/alerts`);
    await page.getByText('to the queues').click();
    await page.locator('#view h1', { hasText: 'Alerts' }).waitFor();
    const paused = await page.evaluate(async () => (await fetch('/v1/queues/linked/pause', { method: 'POST', body: '{"by":"ann","note":"from the dashboard"}' })).status);
    same(paused, 200, 'a POST of the dashboard');
});

for (const name of ['localhost', '127.0.0.1'])
    test(`the dashboard is itself at ${name}`, async () => {
        const page = await open({ url: `http://${name}:${own.port}` }, '#/');
        const done = await page.evaluate(async (key) => (await fetch('/v1/queues/own/messages', { method: 'POST', body: 'x', headers: { 'Idempotency-Key': key } })).status, name);
        same(done, 202);
        await until(async () => (await own.key('own', name)).state === 'pending', 'it is there');
    });

await main();
await Promise.all([...Object.values(brokers), own].map((b) => b.remove()));
