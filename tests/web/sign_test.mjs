#!/usr/bin/env node
// Tokens and the dashboard: whoever may not look is asked for a token; it is in memory and nowhere else; what it does not allow is
// said and not offered; one that is taken away under an open page ends what the page shows.
import { createHash } from 'node:crypto';
import { Broker, has, main, ok, open, same, shot, test, until, violations, wider } from './harness.mjs';

const ROOT = 'hx_root_0123456789abcdef', ONCALL = 'hx_oncall_0123456789abcdef', LOOKER = 'hx_looker_0123456789abcdef', SENDER = 'hx_sender_0123456789abcdef', SHOP = 'hx_shop_0123456789abcdef';
const sha256 = (text) => createHash('sha256').update(text).digest('hex');
const line = (name, text, ...allow) => `  - {name: ${name}, sha256: ["${sha256(text)}"], allow: [${allow.map((a) => `"${a}"`).join(', ')}]}\n`;
const all = [
    line('root', ROOT, 'send', 'receive', 'result', 'operate', 'observe', 'admin'), line('oncall', ONCALL, 'operate:payments', 'observe'),
    line('looker', LOOKER, 'observe:payments'), line('sender', SENDER, 'send:payments'),
];
const shop = `  - {name: shop, sha256: ["${sha256(SHOP)}"], allow: [operate, observe], tenant: shop}\ntenants: {shop: {prefix: "shop.", limits: {queues: 10}}}\n`;
const config = (lines, more = '') => `tokens:\n${lines.join('')}${shop}${more}`;

async function started(options) {
    const broker = await new Broker({ token: ROOT, ...options }).start();
    await broker.rules('payments', { retry: { crashes: { attempts: 1 } } });
    await broker.bury('payments', ['p-1', 'p-2'], { class: 'poison', reason: 'no such account' });
    await broker.send('payments', 'p-3', { secret: 'do-not-read-me' });
    await broker.rules('shop.orders', {});
    await broker.rules('hidden', {});
    same((await broker.send('hidden', 'h-1', { n: 1 })).status, 202);
    return broker;
}
const broker = await started({ config: config(all) });
const half = await started({ config: config(all, 'anonymous: ["observe:payments"]\n') });

// The token is asked for; the page of a locked broker has no complaints but the browser's own about 401.
async function arrive(of, hash = '#/', options = {}) {
    const page = await open(of, hash, options);
    return page;
}
const quietly = (page) => { page.complaints = page.complaints.filter((c) => !/status of (401|403|404)/.test(c)); };

async function sign(page, token) {
    await page.locator('#token').fill(token);
    await page.locator('.sign-in button[type=submit]').click();
}

async function signedIn(of, hash, token, options) {
    const page = await arrive(of, hash, options);
    await page.locator('#token').waitFor();
    await sign(page, token);
    await page.locator('#token').waitFor({ state: 'detached' });
    return page;
}

// Wherever a page could leave something behind.
const left = (page) => page.evaluate(async () => JSON.stringify([
    location.href, document.cookie, { ...localStorage }, { ...sessionStorage }, history.state, await indexedDB.databases(), await caches.keys(), name, document.documentElement.outerHTML,
]));

for (const dark of [false, true])
    test(`a locked broker is opened with a token, ${dark ? 'dark' : 'light'}`, async () => {
        const page = await arrive(broker, '#/q/payments', { dark });
        await has(page, 'h1', 'Sign in');
        same(await page.evaluate('document.activeElement.id'), 'token');
        same(await page.locator('#token').getAttribute('type'), 'password');
        same(await violations(page), []);
        for (const width of [1440, 375]) {
            await page.setViewportSize({ width, height: 800 });
            ok(await wider(page) <= 0, `nothing is wider than ${width}`);
            await shot(page, `sign-in-${width}${dark ? '-dark' : ''}`);
        }
        await page.keyboard.type(ROOT);
        await page.keyboard.press('Enter');
        await has(page, 'h1', 'payments');
        await page.locator('#alarm').waitFor();
        await page.setViewportSize({ width: 1440, height: 900 });
        await shot(page, `signed-in-1440${dark ? '-dark' : ''}`);
        same(await page.evaluate('location.hash'), '#/q/payments');
        quietly(page);
    });

test('the token is in memory and nowhere else, and a page that is loaded again asks anew', async () => {
    const page = await arrive(broker, '#/q/payments/key/p-1');
    const sent = [];
    page.on('request', (r) => sent.push([r.url(), r.headers().authorization ?? '', r.headers().cookie ?? '']));
    await sign(page, ROOT);
    await has(page, 'h1', 'p-1');
    for (const view of ['#/', '#/q/payments', '#/q/payments/dead', '#/alerts', '#/audit', '#/find/p-1']) {
        await page.evaluate((to) => { location.hash = to; }, view);
        await page.locator('#view h1').first().waitFor({ state: 'attached' });
        await until(async () => !(await page.locator('#view').innerText()).includes('Loading'), `${view} is there`);
        ok(!(await left(page)).includes(ROOT), `the token is written down in ${view}`);
    }
    const asked = sent.filter(([url]) => url.includes('/v1/'));
    ok(asked.length > 5 && asked.some(([url]) => url.includes('/v1/events')), 'it asked, the stream too');
    for (const [url, authorization, cookie] of asked) {
        same([authorization, cookie], [`Bearer ${ROOT}`, ''], url);
        ok(!url.includes('hx_'), url);
    }
    await page.reload();
    await has(page, 'h1', 'Sign in');
    quietly(page);
});

test('a wrong token is told so and the right one lets in', async () => {
    const page = await arrive(broker);
    await sign(page, 'hx_wrong');
    await has(page, '#token-why', 'That did not work');
    await sign(page, 'ключ');
    await has(page, '#token-problem', 'A token has no blanks');
    await sign(page, `  Bearer ${ROOT}\n`);
    await page.locator('tr', { hasText: 'payments' }).first().waitFor();
    quietly(page);
});

test('signing out ends what is shown and what is read', async () => {
    const page = await signedIn(broker, '#/q/payments/key/p-3', ROOT);
    await has(page, 'h1', 'p-3');
    await page.getByRole('button', { name: 'Sign out' }).click();
    await has(page, '#token-why', 'You are signed out');
    ok(!(await page.content()).includes('p-3'), 'nothing is left of it');
    const sent = [];
    page.on('request', (r) => r.headers().authorization && sent.push(r.url()));
    await page.getByRole('button', { name: 'Go on without' }).click();
    await has(page, '#token-why', 'needs a token');
    same(sent, []);
    quietly(page);
});

test('a token that is taken away under an open page leads back to signing in, with a sentence', async () => {
    const own = await started({ config: config(all) });
    const page = await signedIn(own, '#/q/payments', ONCALL);
    await has(page, 'h1', 'payments');
    await page.getByRole('button', { name: 'Pause …' }).click();
    await page.locator('dialog').waitFor();
    own.reload(config(all.filter((l) => !l.includes('name: oncall'))));
    await has(page, '#token-why', 'The token is not accepted any more');
    same(await page.locator('dialog').count(), 0);
    ok(!(await page.locator('#view').innerText()).includes('payments'), 'nothing is left of it');
    await shot(page, 'token-taken-away');
    quietly(page);
    await own.remove();
});

test('who may only look is not offered deeds, and is told which right is missing', async () => {
    const page = await signedIn(broker, '#/q/payments/dead', LOOKER);
    await has(page, 'h1', 'dead');
    await has(page, 'p', 'the right operate:payments is missing');
    same(await page.getByRole('button', { name: /Redrive|Resolve|Cancel/ }).count(), 0);
    same(await page.getByRole('checkbox').count(), 0);
    await shot(page, 'may-only-look');
    await page.evaluate("location.hash = '#/q/payments'");
    await has(page, 'p', 'the right operate:payments is missing');
    same(await page.getByRole('button', { name: 'Pause …' }).count(), 0);
    await page.evaluate("location.hash = '#/q/payments/key/p-3'");
    await has(page, 'p', 'Its payload is not shown: that needs the right receive or operate');
    ok(!(await page.content()).includes('do-not-read-me'), 'the payload is in the page');
    await page.evaluate("location.hash = '#/q/hidden'");
    await has(page, '.notice', 'Not there');
    await page.evaluate("location.hash = '#/'");
    await page.locator('tr', { hasText: 'payments' }).first().waitFor();
    same(await page.locator('tr', { hasText: 'hidden' }).count(), 0);
    await page.evaluate("location.hash = '#/relays'");
    await has(page, 'p', 'who has the right observe on all of it');
    quietly(page);
});

test('a tenant sees its own queues, and no page fails for what is not its business', async () => {
    const page = await signedIn(broker, '#/', SHOP);
    await page.locator('tr', { hasText: 'shop.orders' }).first().waitFor();
    for (const name of ['payments', 'hidden']) same(await page.locator('tr', { hasText: name }).count(), 0, name);
    for (const [hash, title] of [['#/alerts', 'Alerts'], ['#/tasks', 'Tasks'], ['#/relays', 'Relays'], ['#/audit', 'Audit'], ['#/q/shop.orders', 'shop.orders']]) {
        await page.evaluate((to) => { location.hash = to; }, hash);
        await has(page, '#view h1', title);
        await until(async () => !(await page.locator('#view').innerText()).includes('Loading'), `${hash} is there`);
        same(await page.locator('.notice').count(), 0, hash);
        ok(!(await page.locator('body').innerText()).includes('payments'), hash);
    }
    await page.getByRole('button', { name: 'Pause …' }).waitFor();
    await page.evaluate("location.hash = '#/q/payments'");
    await has(page, '.notice', 'Not there');
    quietly(page);
});

test('who may do nothing that a page shows is told which right is missing', async () => {
    const page = await signedIn(broker, '#/q/payments', SENDER);
    await has(page, '.notice', 'token sender lacks the right observe:payments');
    quietly(page);
});

test('who is allowed to decide can, and the trail names the token', async () => {
    const page = await signedIn(broker, '#/q/payments', ONCALL);
    await page.getByRole('button', { name: 'Pause …' }).click();
    await page.locator('#note').fill('for the test');
    await page.locator('#by').fill('ann');
    await page.locator('dialog button[type=submit]').click();
    await has(page, '.became', 'Paused');
    await until(async () => (await broker.get('/v1/audit?queue=payments&what=pause')).items.some((a) => a.who === 'oncall/ann'), 'it is in the trail');
    await broker.must('POST', '/v1/queues/payments/resume', {});
    quietly(page);
});

test('without a token one sees what everybody may, and is asked for one where that ends', async () => {
    const page = await arrive(half, '#/');
    await page.locator('tr', { hasText: 'payments' }).first().waitFor();
    same(await page.locator('#token').count(), 0);
    same(await page.locator('tr', { hasText: 'hidden' }).count(), 0);
    await page.evaluate("location.hash = '#/q/payments/dead'");
    await has(page, 'p', 'the right operate:payments is missing');
    await page.getByRole('button', { name: 'Sign in', exact: true }).click();
    await page.locator('#token').waitFor();
    await sign(page, ONCALL);
    await page.getByRole('button', { name: 'Redrive …' }).waitFor();
    quietly(page);
});

test('a queue says what whoever asks may do with it, where tokens are in use', async () => {
    const may = async (token) => (await broker.call('GET', '/v1/queues/payments', undefined, { Authorization: `Bearer ${token}` })).json.may;
    same(await may(ROOT), ['send', 'receive', 'result', 'operate', 'observe', 'admin']);
    same(await may(ONCALL), ['operate', 'observe']);
    same(await may(LOOKER), ['observe']);
    same((await broker.get('/v1/queues')).items.map((q) => q.may.length), [6, 6, 6]);
    const open_ = await new Broker().start();
    same((await open_.rules('payments', {})).may, undefined);
    await open_.remove();
});

const NASTY = ['<img src=x onerror=window.hurt=1>', '"><script>window.hurt=1</script>', '{{7*7}}', 'javascript:alert(1)', '\u202e</h1>\u0000'];

test('what others say is text, wherever a token or a right is told', async () => {
    const page = await arrive(broker);
    for (const words of NASTY) {
        await page.locator('#token').waitFor();
        await sign(page, words.replace(/[^\x21-\x7e]/g, '') || 'x');
        await has(page, '#token-why', 'That did not work');
    }
    await page.route('**/v1/queues**', (route) => route.fulfill({
        status: 403, contentType: 'application/problem+json', body: JSON.stringify({ code: 'forbidden', detail: `token ${NASTY.join(' ')} lacks the right`, applied: 'no' }),
    }));
    await sign(page, ROOT);
    await has(page, '.notice', '<img src=x onerror=window.hurt=1>');
    await page.unroute('**/v1/queues**');
    await page.route('**/v1/queues/payments', async (route) => {
        const reply = await route.fetch();
        await route.fulfill({ response: reply, json: { ...await reply.json(), name: NASTY[0], may: NASTY } });
    });
    await page.evaluate("location.hash = '#/q/payments'");
    await has(page, 'p', `operate:${NASTY[0]}`);
    same(await page.evaluate('window.hurt'), undefined);
    quietly(page);
});

await main();
await Promise.all([broker, half].map((b) => b.remove()));
