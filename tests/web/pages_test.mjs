#!/usr/bin/env node
// The dashboard in a browser: what its pages show, what they do, and how they behave when the broker does not.
import { createServer } from 'node:http';
import { Broker, has, main, ok, open, same, shot, test, until, violations, wider } from './harness.mjs';

const FAST = { retry: { transient: { attempts: 1 }, unknown: { attempts: 1 } } };
const shop = await new Broker().start();
const lots = new Broker();

// Something of everything. The tests run side by side: one that changes something has queues of its own.
async function fill(b) {
    await b.rules('slots', FAST);
    await b.rules('payments', { on_unknown: 'hold', on_conflict: 'hold', keep_payload: '1h', window: '14d', dead: { owner: 'payments-oncall' }, lag: { p95: '30s', alert: '5m', for: '2m' } });
    await b.bury('slots', ['s-1', 's-2', 's-3', 's-4'], { class: 'poison', reason: 'no such container' });
    await b.bury('slots', ['s-5'], { class: 'unknown', reason: 'the terminal hung up' });
    await b.bury('payments', ['p-1'], { class: 'unknown', reason: 'the bank hung up' });
    await b.send('payments', 'p-2', { amount: 1 }, { 'Hapax-Request-Id': 'req-2' });
    const m = await b.take('payments', { consumer: 'worker-1' });
    await b.settle('step', m, { name: 'charge', result: 'tx-1' });
    await b.settle('ack', m, { result: { charged: 1 }, effect_id: 'ch_1' });
    for (let i = 0; i < 3; i++) await b.send('payments', 'p-2', { amount: 1 }, { 'Hapax-Request-Id': `again-${i}` });
    await b.send('payments', 'p-3', { amount: 3 });
    await b.send('payments', 'p-3', { amount: 4 });
    await b.take('payments', { consumer: 'worker-9', lease: '10m' });
    await b.must('POST', '/v1/queues/mail/pause', { by: 'ann', note: 'the provider is down' });
    await b.rules('pushed', { deliver: { url: 'https://terminal.example/slots/${container}?by=${hapax.effect_key}' } });
    await b.rules('halted', { deliver: { url: 'https://partner.example/events' } });
    await b.must('POST', '/v1/targets/halted/pause', { by: 'ann', note: 'they move to another building' });
}
await fill(shop);

const PAGES = {
    overview: '#/', queue: '#/q/payments', key: '#/q/payments/key/p-2', dead: '#/q/slots/dead', held: '#/q/payments/held', leased: '#/q/payments/leased',
    alerts: '#/alerts', runbook: '#/runbook/disk-full', tasks: '#/tasks', relays: '#/relays', targets: '#/targets', audit: '#/audit', find: '#/find/p-2',
};

const row = (page, queue) => page.locator('.long tbody tr', { has: page.locator(`a[href="#/q/${queue}"]`) });
const cell = async (page, queue, column) => (await row(page, queue).locator(`.c-${column}`).innerText()).replace(/[^\d]/g, '');

// What an operator types into a dialog before he presses its button.
async function confirm(page, note) {
    await page.locator('#note').fill(note);
    await page.locator('#by').fill('ann');
    await page.locator('dialog button[type=submit]').click();
}

for (const dark of [false, true])
    test(`every page is readable to everybody, ${dark ? 'dark' : 'light'}`, async () => {
        const page = await open(shop, '#/', { dark });
        for (const [name, hash] of Object.entries(PAGES)) {
            await page.go(hash);
            same(await violations(page), [], name);
            if (dark) await shot(page, `${name}-1440-dark`);
        }
        const [red] = (await page.evaluate('getComputedStyle(document.body).backgroundColor')).match(/\d+/g).map(Number);
        ok(dark ? red < 60 : red > 200, `the background has ${red} of red`);
    });

for (const width of [375, 768, 1024])
    test(`every page fits ${width} pixels`, async () => {
        const page = await open(shop, '#/', { width, height: 800 });
        for (const [name, hash] of Object.entries(PAGES)) {
            await page.go(hash);
            same(await wider(page), 0, `${name}: pixels too wide`);
            await shot(page, `${name}-${width}`);
        }
    });

const targetRow = (page, queue) => page.locator('.plain-table tbody tr', { has: page.locator(`a[href="#/q/${queue}"]`) });

test('a target shows where it leads, how it stands and why', async () => {
    const page = await open(shop, '#/q/pushed');
    await has(page, '.quiet', 'Delivered to https://terminal.example/slots/${container}');
    await page.locator('a', { hasText: 'how its target fares' }).click();
    const words = (await targetRow(page, 'pushed').innerText()).replace(/\s+/g, ' ');
    for (const want of ['closed', '0 / 32', 'https://terminal.example/slots/${container}']) ok(words.includes(want), `${want} is not in ${words}`);
    ok((await targetRow(page, 'halted').innerText()).includes('ann: they move to another building'), 'who paused it, and why');
    const down = { ...(await shop.get('/v1/targets?queue=pushed')).items[0], state: 'open', why: 'too many calls failed: connection refused', next_probe: new Date(Date.now() + 30000).toISOString(), waiting: 10412,
        requests: { done: 7, transient: 40, rejected: 0, poison: 0, unknown: 2 }, latency: { count: 49, p50_ms: 3, p95_ms: 1200, p99_ms: 2000 },
        last_error: { at: new Date().toISOString(), class: 'transient', status: 503, detail: 'it is too busy' } };
    await answer(page, '/v1/targets', () => ({ items: [down], next_cursor: null }));
    const row_ = targetRow(page, 'pushed');
    await row_.locator('.badge.failed', { hasText: 'open' }).waitFor();
    const told = (await row_.innerText()).replace(/\s+/g, ' ');
    for (const want of ['connection refused', 'next try', '10,412', '42', '1.2 s', 'transient 503, it is too busy']) ok(told.includes(want), `${want} is not in ${told}`);
    await shot(page, 'targets-open-1440');
});

test('a target is tested, paused and resumed from its page, and the audit names who', async () => {
    const asked = [];
    const server = createServer((req, res) => {
        asked.push(`${req.method} ${req.url}`);
        res.writeHead(204).end();
    });
    await new Promise((on) => server.listen(0, '127.0.0.1', on));
    await shop.rules('steered', { deliver: { url: `http://127.0.0.1:${server.address().port}/work`, allow_private: true } });
    const page = await open(shop, '#/targets'), row_ = targetRow(page, 'steered');
    await row_.locator('button', { hasText: 'Test' }).click();
    await has(page, 'dialog', 'nothing is done there');
    await confirm(page, 'is it there?');
    await has(page, '.became', 'answered 204');
    same(asked, ['OPTIONS /']);
    await page.locator('dialog button', { hasText: 'Close' }).click();
    await row_.locator('button', { hasText: 'Pause' }).click();
    await confirm(page, 'they asked for it');
    await has(page, '.became', 'Paused.');
    await page.locator('dialog button', { hasText: 'Close' }).click();
    await row_.locator('.badge.person', { hasText: 'paused' }).waitFor();
    await row_.locator('button', { hasText: 'Resume' }).click();
    await confirm(page, 'they are back');
    await has(page, '.became', 'It goes on: closed.');
    same((await shop.get('/v1/audit?queue=steered')).items.filter((a) => a.what.startsWith('push_')).map((a) => `${a.who} ${a.what}: ${a.why}`),
        ['ann push_resume: they are back', 'ann push_pause: they asked for it', 'ann push_test: is it there?']);
    server.close();
});

test('an empty broker says how to send the first message', async () => {
    const empty = await new Broker().start();
    const page = await open(empty, '#/');
    await has(page, '.empty pre', `curl ${empty.url}/v1/queues/orders/messages`);
    await empty.send('orders', 'o-1', { amount: 1 });
    await row(page, 'orders').waitFor();
    await empty.remove();
});

test('the overview follows the load, and its figures are those of the API', async () => {
    let stop = false;
    const load = (async () => {
        for (let i = 0; !stop; i++) await shop.send('busy', `b-${i}`, { i });
    })();
    const page = await open(shop, '#/');
    await until(async () => Number(await cell(page, 'busy', 'ready')) > 50, 'the load shows');
    await until(async () => Number(await cell(page, 'busy', 'in')) > 0, 'its rate shows');
    await row(page, 'busy').locator('.spark').waitFor();
    stop = true;
    await load;
    const want = (await shop.get('/v1/queues/busy')).ready;
    await until(async () => Number(await cell(page, 'busy', 'ready')) === want, 'the last figure shows');
    same([await cell(page, 'slots', 'dead'), await cell(page, 'payments', 'held')], ['5', '2']);
    await shot(page, 'overview-1440');
});

test('what is wrong comes first, in words', async () => {
    await shop.rules('sick', { ...FAST, dead: { owner: 'ward-7', alert: { count: 2, within: '15m' } } });
    await shop.bury('sick', ['i-1', 'i-2', 'i-3'], { class: 'poison', reason: 'broken' });
    const page = await open(shop, '#/');
    const alert = page.locator('.alert.firing', { hasText: 'sick' });
    await alert.waitFor();
    const words = await alert.innerText();
    for (const want of ['dead_letters', 'Messages die', 'since', 'owner ward-7', 'docs/runbooks/dlq-filling.md']) ok(words.includes(want), `${want} is not in ${words}`);
    await has(page, '#alarm', 'firing');
    await shot(page, 'alert-1440');
    await alert.locator('a', { hasText: 'sick' }).click();
    await has(page, 'h1', 'sick');
    await page.locator('.alert.firing', { hasText: 'dead_letters' }).waitFor();
    await page.go('#/alerts');
    await page.locator('.alert.firing', { hasText: 'sick' }).waitFor();
});

test('the figures of the page, of /metrics and of hapax top agree', async () => {
    const page = await open(shop, '#/');
    const figures = async (queue) => {
        const metrics = (await shop.call('GET', '/metrics')).text;
        const metric = (name, labels) => Number(new RegExp(`^${name}\\{queue="${queue}"${labels}\\} (\\S+)$`, 'm').exec(metrics)?.[1]);
        const [, , dup, , ready, leased, dead, held] = shop.hapax('top', '--once', '--wide').split('\n').find((line) => line.startsWith(`${queue} `)).slice(queue.length).trim().split(/\s+/);
        const percent = (text) => Number(text.replace(/[ %]/g, '')).toFixed(1);
        return {
            metrics: [...['ready', 'leased', 'dead', 'held'].map((state) => metric('hapax_messages', `,state="${state}"`)), (metric('hapax_duplicate_ratio', '') * 100).toFixed(1)],
            top: [...[ready, leased, dead, held].map(Number), percent(dup)],
            page: [...await Promise.all(['ready', 'leased', 'dead', 'held'].map(async (c) => Number(await cell(page, queue, c)))), percent(await row(page, queue).locator('.c-dup').innerText())],
        };
    };
    await until(async () => (await figures('payments')).page[4] !== '0.0', 'the repeats are in the ratio');
    for (const queue of ['slots', 'payments']) {
        await until(async () => new Set(Object.values(await figures(queue)).map(String)).size === 1, `the three agree on ${queue}`);
    }
    const agreed = await figures('payments');
    same(agreed.page.slice(0, 4), [0, 1, 0, 2]);
    ok(Number(agreed.page[4]) > 0, 'and it is not nothing they agree on');
});

// What the broker will say at a moment that a test cannot make, said in its place.
const answer = (page, path, change) => page.route((url) => url.pathname === path, async (route) => {
    const reply = await route.fetch();
    await route.fulfill({ response: reply, json: change(await reply.json()) });
});

test('work that waits without a consumer shows as lag, red above what the queue may have', async () => {
    await shop.rules('orphan', { lag: { p95: '1ms', alert: '5m', for: '2m' } });
    await shop.send('orphan', 'o-1', { n: 1 });
    const page = await open(shop, '#/', { width: 375, height: 800 });
    for (const width of [375, 1440]) {
        await page.setViewportSize({ width, height: 800 });
        const lag = row(page, 'orphan').locator('.c-lag .failed');
        await lag.waitFor();
        ok(/^\d.* \/ 1ms ✕$/.test(await lag.innerText()), await lag.innerText());
    }
    await page.go('#/q/orphan');
    await page.locator('.figure', { hasText: 'lag / SLO' }).locator('.failed', { hasText: '/ 1ms ✕' }).waitFor();
});

test('the oldest in flight leads to itself, wherever it waits', async () => {
    const page = await open(shop, '#/targets');
    const [oldest] = (await shop.get('/v1/queues/payments/messages?state=leased')).items;
    const named = (q) => ({ ...q, live: { ...q.live, oldest_unsettled_id: oldest.id } });
    await answer(page, '/v1/queues', (list) => ({ ...list, items: list.items.map((q) => (q.name === 'payments' ? named(q) : q)) }));
    await answer(page, '/v1/queues/payments', named);
    await page.go('#/');
    await row(page, 'payments').locator(`.c-oldest a[href="#/q/payments/id/${oldest.id}"]`).click();
    await has(page, 'h1', oldest.key);
    await page.go('#/q/payments');
    await page.locator(`.figure a[href="#/q/payments/id/${oldest.id}"]`).waitFor();
});

test('an alert leads to the key it is about, and to what to do', async () => {
    const page = await open(shop, '#/targets');
    const alert = { name: 'held_waiting', queue: 'payments', key: 'p-1', state: 'firing', since: new Date().toISOString(), value: 1, threshold: 1, summary: 'It waits.', runbook: 'docs/runbooks/stuck-in-flight.md', count_1h: 1 };
    await answer(page, '/v1/alerts', () => ({ judged: true, items: [alert, { ...alert, key: '', id: 'no-key-1' }] }));
    await page.go('#/alerts');
    await page.locator('.alert a[href="#/q/payments/id/no-key-1"]').waitFor();
    await page.locator('.alert a', { hasText: 'p-1' }).click();
    await has(page, 'h1', 'p-1');
    await page.go('#/alerts');
    await page.locator('.alert a', { hasText: 'docs/runbooks/stuck-in-flight.md' }).first().click();
    await has(page, 'h1', 'Stuck in flight');
    await has(page, 'pre', 'hapax messages list payments');
    await shot(page, 'runbook-1440');
    await page.go('#/runbook/duplicate-effect');
    await has(page, '.runbook td', 'somebody replayed the key on purpose');
    await page.go('#/runbook/duplicates-vanished');
    await page.locator('.runbook a', { hasText: 'duplicate-effect.md' }).click();
    await has(page, 'h1', 'An effect happened twice');
});

test('a broker that has just begun is not called quiet', async () => {
    const page = await open(shop, '#/targets');
    const alert = { name: 'lag', queue: 'payments', state: 'firing', since: new Date().toISOString(), value: 1, threshold: 1, summary: 'They wait.', runbook: 'docs/runbooks/lag-alert.md', count_1h: 1 };
    let uptime = 5 * 86400000, said = { judged: true, items: [alert] };
    await answer(page, '/v1/alerts', () => said);
    await answer(page, '/v1/stats', (stats) => ({ ...stats, uptime_ms: uptime }));
    await page.go('#/alerts');
    await has(page, '#alarm .failed', '1 firing');
    said = { judged: false, items: [] };
    uptime = 3000;
    await has(page, '#alarm .badge.none', 'not judged yet');
    await has(page, '.calm .badge.none', 'not judged yet');
    await has(page, '.quiet', 'The broker began anew at');
    await page.locator('#live', { hasText: /^The broker began anew at .* and judges its alerts afresh$/ }).waitFor({ state: 'attached' });
    said = { judged: true, items: [] };
    await has(page, '#alarm .ok', 'quiet');
    ok(!(await page.locator('#live').innerText()).includes('any more'), 'a restart is no all-clear');
});

test('the audit tells what was done in lines, on a telephone too', async () => {
    await shop.rules('audited', { window: '2h', dead: { owner: 'clerk' } });
    const page = await open(shop, '#/audit?queue=audited', { width: 375, height: 800 });
    const detail = page.locator('td .detail').first();
    await detail.waitFor({ state: 'attached' });
    const text = await detail.evaluate((node) => node.textContent);
    ok(!/\\n|[{}"]/.test(text), `raw: ${text}`);
    const summary = page.locator('td summary').first();
    if (await summary.count()) await summary.click();
    const box = await detail.boundingBox();
    ok(box.x >= 0 && box.x + box.width <= 375, `off the screen: ${JSON.stringify(box)}`);
    await shot(page, 'audit-detail-375');
});

test('what a reload changed is a line for each change in the audit', async () => {
    const page = await open(shop, '#/targets');
    const entry = { at: new Date().toISOString(), who: 'SIGHUP', what: 'queue_put', queue: 'payments', detail: { changes: 'window: 1d -> 2d\nlease: 30s -> 40s\ndead.owner: none -> x\n' } };
    await answer(page, '/v1/audit', () => ({ items: [entry], next_cursor: null }));
    await page.go('#/audit');
    await has(page, 'td summary', 'window: 1d -> 2d … 4 lines');
    same(await page.locator('td .detail').evaluate((node) => node.textContent), 'changes:\n  window: 1d -> 2d\n  lease: 30s -> 40s\n  dead.owner: none -> x');
});

test('every figure leads to the list behind it', async () => {
    const page = await open(shop, '#/');
    await row(page, 'slots').locator('.c-dead a').click();
    await has(page, 'h1', 'slots · dead');
    await has(page, '.group', 'no such container');
    same(await page.locator('.group .many').allInnerTexts(), ['4', '1']);
});

test('a queue shows its hour, how late its repeats are, who works on it, and repeats as they come', async () => {
    await shop.send('mixed', 'x-1', { n: 1 });
    await shop.send('mixed', 'x-1', { n: 1 });
    await shop.take('mixed', { consumer: 'worker-4', lease: '10m' });
    const page = await open(shop, '#/q/mixed');
    await has(page, 'section', 'A settled key is remembered for 1 d');
    await has(page, '.histogram', 'window 1 d');
    await has(page, '.plain-table tr', 'worker-4');
    await has(page, '.plain-table tr', 'x-1');
    await until(async () => (await page.locator('.multiples figure', { hasText: 'repeats' }).first().locator('b').innerText()) !== '0', 'the repeat is in the hour');
    await shop.send('mixed', 'x-2', { n: 2 });
    await shop.send('mixed', 'x-2', { n: 2 });
    await has(page, '.plain-table tr', 'x-2');
    await shot(page, 'queue-1440');
});

test('the inspector says first why an event was ignored', async () => {
    const page = await open(shop, PAGES.key);
    const why = await page.locator('.why').innerText();
    ok(/^Accepted once on .* and done on .*; 3 repeats since were answered with its outcome; the last came .* inside its window of 14d\.$/.test(why), why);
    const lines = await page.locator('.timeline li').allInnerTexts();
    const order = ['arrived', 'handed out', 'step', 'effect', 'settled', 'arrived', 'arrived', 'arrived'];
    same(lines.length, order.length);
    order.forEach((words, i) => ok(lines[i].includes(words), `${i}: ${lines[i]}`));
    ok(/worker-1/.test(lines[1]) && /expected replay/.test(lines[5]), lines.join('\n'));
    same(await page.locator('details[open]').count(), 0, 'payload and result are folded');
    await page.locator('summary', { hasText: 'Raw JSON' }).click();
    await has(page, 'details[open] pre', '"effect_ids"');
    await shot(page, 'key-1440');
});

test('a flow over several queues is found by its trace and by its request, a key by how it begins', async () => {
    const headers = { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' };
    for (const [queue, request] of [['hop-1', 'req-hop'], ['hop-2', 'req-hop'], ['hop-3', 'req-other']]) await shop.send(queue, `flow:${queue}`, { n: 1 }, { ...headers, 'Hapax-Request-Id': request });
    const page = await open(shop, '#/find/req-hop');
    await has(page, '.why', 'The request req-hop leads to 2 messages in 2 queues.');
    await page.go('#/find/0af7651916cd43dd8448eb211c80319c');
    await has(page, '.why', 'leads to 3 messages in 3 queues.');
    await shot(page, 'find-1440');
    await page.go('#/q/hop-2');
    await page.getByLabel('Keys that begin with').fill('flow:');
    await page.keyboard.press('Enter');
    await page.locator('section', { hasText: 'Keys' }).locator('a', { hasText: 'flow:hop-2' }).click();
    await has(page, 'h1', 'flow:hop-2');
});

test('the inspector calls a late repeat late', async () => {
    await shop.rules('late', { window: '16s' });
    const kinds = async () => {
        const reply = await shop.send('late', 'l-1', { n: 1 });
        if (reply.json.outcome === 'accepted') await shop.settle('ack', await shop.take('late'), { result: 'ok' });
        return (await shop.key('late', 'l-1')).arrivals.map((a) => a.kind);
    };
    await until(async () => (await kinds()).includes('late'), 'a repeat in the second half of the window');
    await shop.rules('late', { window: '1d' }); // a promise can be made longer: it is still there when we look
    const page = await open(shop, '#/q/late/key/l-1');
    await has(page, '.why', 'late in its window');
    await has(page, '.timeline li:has(.badge.person)', 'late replay');
});

test('a redrive says what it will do, does that, and is audited', async () => {
    await shop.rules('yard', FAST);
    await shop.bury('yard', ['s-1', 's-2', 's-3', 's-4'], { class: 'poison', reason: 'no such container' });
    await shop.bury('yard', ['s-5'], { class: 'unknown', reason: 'the terminal hung up' });
    const page = await open(shop, '#/q/yard/dead');
    const button = page.locator('.tools button', { hasText: 'Redrive' });
    ok(await button.isDisabled(), 'nothing is selected');
    await page.locator('.group-head button', { hasText: 'no such container' }).click();
    await page.getByLabel('Select s-1', { exact: true }).check();
    await page.getByLabel('Select all: unknown the terminal hung up').check();
    await page.locator('.tools button', { hasText: 'Redrive 2 …' }).click();
    await has(page, 'dialog button[type=submit]', 'Redrive 2: 1 runs again, 1 is asked first');
    await shot(page, 'redrive-1440');
    await confirm(page, 'the container is back');
    await has(page, '.became', 'Redriven: 2.');
    same((await shop.get('/v1/queues/yard')).dead, 3);
    const [entry] = (await shop.get('/v1/audit?queue=yard&what=redrive')).items;
    same([entry.who, entry.why], ['ann', 'the container is back']);
    await page.locator('dialog button', { hasText: 'Close' }).click();
    await has(page, '.group .many', '3');
});

test('a long redrive shows how far it is, and can be stopped', async () => {
    await shop.rules('long', FAST);
    await shop.bury('long', Array.from({ length: 40 }, (_, i) => `l-${i}`), { class: 'poison', reason: 'broken' }); // at one a second: time enough to stop it
    const page = await open(shop, '#/q/long/dead');
    await page.locator('.all input').check();
    await page.locator('.tools button', { hasText: 'Redrive 40 …' }).click();
    await has(page, 'dialog button[type=submit]', 'Redrive 40: 40 run again');
    await page.locator('#field-rate').fill('1');
    const task = page.waitForResponse((r) => /\/v1\/tasks\/\d+$/.test(r.url()));
    await confirm(page, 'slowly');
    await task;
    await page.locator('dialog progress').waitFor();
    await page.locator('dialog button', { hasText: 'Stop' }).click();
    await has(page, '.became', 'Stopped before the end');
    await page.locator('dialog button', { hasText: 'Close' }).click();
    await page.go('#/tasks');
    await has(page, 'tr', 'cancelled');
});

test('a held conflict is resolved by a person who sees what differs', async () => {
    await shop.rules('claims', { on_conflict: 'hold' });
    await shop.send('claims', 'c-3', { amount: 3 });
    await shop.send('claims', 'c-3', { amount: 4 });
    const page = await open(shop, '#/q/claims/held');
    await page.locator('.group-head button', { hasText: 'conflict' }).click();
    await page.locator('.group td a').click();
    await has(page, '.why', 'Came under a key that was known with another payload');
    await has(page, '.timeline', 'conflict with c-3');
    same((await page.locator('section', { hasText: 'What differs' }).locator('tbody tr').innerText()).split(/\s+/), ['amount', '3', '4']);
    await shot(page, 'conflict-1440');
    await page.locator('button', { hasText: 'Resolve' }).click();
    same(await page.locator('#field-as option').evaluateAll((all) => all.map((o) => o.value)), ['new', 'duplicate']);
    await page.locator('#field-as').selectOption('duplicate');
    await confirm(page, 'a typing error');
    await has(page, '.became', 'Done: 1.');
    await page.locator('dialog button', { hasText: 'Close' }).click();
    await has(page, '.head .badge', 'cancelled');
    const [entry] = (await shop.get('/v1/audit?queue=claims&what=resolve')).items;
    same([entry.who, entry.why], ['ann', 'a typing error']);
});

test('where keys are their senders\', a list names them whole, and leads to them', async () => {
    await shop.rules('scoped', { ...FAST, key_scope: 'credential' });
    await shop.bury('scoped', ['c-1'], { class: 'poison', reason: 'no such container' });
    const page = await open(shop, '#/q/scoped/dead');
    await page.locator('.group-head button', { hasText: 'no such container' }).click();
    await page.locator('a', { hasText: 'anonymous/c-1' }).click();
    await until(async () => (await page.locator('h1').innerText()) === 'anonymous/c-1', 'the page of the key');
    await until(async () => /no such container/.test(await page.locator('#view').innerText()), 'what is known of it');
});

test('an unknown outcome is resolved as done, with its result', async () => {
    await shop.rules('held', { on_unknown: 'hold' });
    await shop.bury('held', ['h-1', 'h-2'], { class: 'unknown', reason: 'the line was cut' });
    const page = await open(shop, '#/q/held/held');
    await page.locator('.all input').check();
    await page.locator('.tools button', { hasText: 'Resolve 2 …' }).click();
    await page.locator('#field-result').fill('seen at the bank');
    await confirm(page, 'asked the bank');
    await has(page, '.became', 'Done: 2.');
    const k = await shop.key('held', 'h-2');
    same([k.state, k.result.body], ['done', 'seen at the bank']);
});

test('a lease is taken back from a worker that hangs', async () => {
    await shop.send('stuck', 'k-1', { n: 1 });
    await shop.take('stuck', { consumer: 'worker-8', lease: '6h' });
    const page = await open(shop, '#/q/stuck/leased');
    await has(page, '.plain-table tr', 'worker-8');
    await page.getByLabel('Select k-1', { exact: true }).check();
    await page.locator('.tools button', { hasText: 'Take back 1 …' }).click();
    await confirm(page, 'worker-8 hangs');
    await has(page, '.became', 'Done: 1.');
    const k = await shop.key('stuck', 'k-1');
    same([k.state, k.attempts[0].ended], ['pending', 'revoked']);
});

test('what is refused says that nothing was applied, and nothing is done without a note', async () => {
    await shop.rules('gone', FAST);
    await shop.bury('gone', ['g-1'], { class: 'poison', reason: 'broken' });
    const page = await open(shop, '#/q/gone/key/g-1');
    await page.locator('button', { hasText: 'Forget' }).click();
    await page.locator('#by').fill('ann');
    await page.locator('dialog button[type=submit]').click();
    same((await shop.key('gone', 'g-1')).state, 'dead', 'no note, no deed');
    await shop.must('DELETE', '/v1/queues/gone/keys/g-1');
    await confirm(page, 'too late');
    await has(page, 'dialog .notice', 'Nothing was applied.');
    page.complaints = page.complaints.filter((c) => !c.endsWith('/keys/g-1') && !c.endsWith('/keys?key=g-1')); // the 404 that was asked for
});

test('a queue is paused with a reason and goes on again', async () => {
    await shop.send('mill', 'm-1', { n: 1 });
    const page = await open(shop, '#/q/mill');
    await page.locator('.head button', { hasText: 'Pause' }).click();
    await confirm(page, 'the provider is down');
    await has(page, '.became', 'Paused.');
    await page.locator('dialog button', { hasText: 'Close' }).click();
    await has(page, '.head .badge', 'paused');
    same((await shop.get('/v1/queues/mill')).paused, true);
    await page.locator('.head button', { hasText: 'Resume' }).click();
    await confirm(page, 'it is back');
    await has(page, '.became', 'It goes on.');
    same((await shop.get('/v1/audit?queue=mill')).items.map((a) => [a.what, a.why]), [['resume', 'it is back'], ['pause', 'the provider is down']]);
});

test('a thousand queues scroll, filter and are walked by keyboard', async () => {
    await lots.start();
    const names = Array.from({ length: 1000 }, (_, i) => `queue-${String(i).padStart(4, '0')}`);
    while (names.length) await Promise.all(names.splice(0, 50).map((q) => lots.rules(q, {})));
    const page = await open(lots, '#/');
    await has(page, '.tools', '1,000 queues');
    const made = await page.locator('.long tbody tr[key^=queue]').count();
    ok(made > 20 && made < 150, `${made} rows were made`);
    await page.evaluate('scrollTo(0, document.body.scrollHeight)');
    await has(page, '.long a', 'queue-0999');
    ok(await page.locator('.long tbody tr[key^=queue]').count() < 150, 'only what is in sight is made');
    await shot(page, 'thousand-1440', false);
    await page.locator('#filter').fill('0420');
    await has(page, '.tools', '1 of 1,000 queues');
    same(await page.locator('.long a[data-nav]').allInnerTexts(), ['queue-0420']);
    ok(page.url().includes('filter=0420'), 'the filter is in the address');
    await page.keyboard.press('Escape');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await has(page, 'h1', 'queue-0420');
    await page.keyboard.press('Escape');
    await has(page, '.tools', '1,000 queues');
    await page.keyboard.press('j');
    for (let i = 0; i < 60; i++) await page.keyboard.press('j');
    same(await page.evaluate('document.activeElement.textContent'), 'queue-0060');
    await page.keyboard.press('k');
    same(await page.evaluate('document.activeElement.textContent'), 'queue-0059');
});

test('the keyboard finds, helps and goes back', async () => {
    const page = await open(shop, PAGES.queue);
    await page.keyboard.press('/');
    same(await page.evaluate('document.activeElement.id'), 'find-text');
    await page.keyboard.type('p-2');
    await page.keyboard.press('Enter');
    await has(page, 'h1', 'Find: p-2');
    await has(page, '.why', 'The key p-2 leads to 1 message in 1 queue.');
    await page.keyboard.press('Escape');
    await page.keyboard.press('?');
    await has(page, 'dialog', 'find a key, id, request or trace');
    await page.keyboard.press('Escape');
    await page.locator('dialog').waitFor({ state: 'detached' });
    await page.keyboard.press('Escape');
    await row(page, 'slots').waitFor();
});

test('a broker that goes is said to be gone, and the page recovers by itself', async () => {
    const b = await new Broker().start();
    await b.send('orders', 'o-1', { n: 1 });
    const page = await open(b, '#/');
    await row(page, 'orders').waitFor();
    await b.stop();
    await has(page, '#stale', 'The broker does not answer since');
    ok(await page.evaluate('document.body.classList.contains("stale")'), 'what is old is greyed');
    same(await cell(page, 'orders', 'ready'), '1', 'what was known stays');
    await shot(page, 'gone-1440');
    await b.start();
    await page.locator('#stale').waitFor({ state: 'hidden' });
    await b.send('orders', 'o-2', { n: 2 });
    await until(async () => (await cell(page, 'orders', 'ready')) === '2', 'figures move again');
    page.complaints = page.complaints.filter((c) => !/ERR_CONNECTION|ERR_EMPTY|ERR_SOCKET|Failed to load resource: net::/.test(c)); // the browser's own words
    await b.remove();
});

test('markup in every stored field stays text', async () => {
    const evil = '<img src=x onerror=document.title="owned"><b>&amp;\'"';
    const b = await new Broker().start();
    await b.rules('evil', { ...FAST, on_conflict: 'hold', keep_payload: '1h', key: undefined });
    const headers = { 'Hapax-Request-Id': 'r<b>1</b>', 'Hapax-Group': evil, 'Hapax-Attr-Note': evil, traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' };
    same((await b.send('evil', evil, { note: evil }, headers)).status, 202);
    await b.send('evil', evil, { note: `${evil}2` }, headers);
    await b.send('evil', `${evil}2`, { note: evil }, { ...headers, 'Hapax-Group': 'g2' });
    for (const end of ['nack', 'ack']) {
        const m = await b.take('evil', { consumer: evil });
        await b.settle('step', m, { name: evil, result: evil });
        if (end === 'ack') await b.settle('ack', m, { result: evil, effect_id: evil });
        else await b.settle('nack', m, { class: 'poison', reason: evil });
    }
    await b.must('POST', '/v1/queues/evil/pause', { by: evil, note: evil });
    const held = (await b.get('/v1/queues/evil/messages?state=held')).items[0];
    const at = encodeURIComponent;
    const page = await open(b, '#/');
    for (const hash of ['#/', '#/q/evil', `#/q/evil/key/${at(evil)}`, `#/q/evil/key/${at(`${evil}2`)}`, `#/q/evil/key/${at(held.key)}`, '#/q/evil/dead', '#/q/evil/held', '#/audit', '#/tasks', `#/find/${at(evil)}`, `#/q/evil/id/${held.id}`, `#/${at(evil)}`, '#/alerts']) {
        await page.goto(`${b.url}/${hash}`);
        await page.reload();
        await page.locator('#view > *').first().waitFor({ state: 'attached' });
        await until(async () => !/^Loading/.test(await page.locator('#view').innerText()), `${hash} is loaded`);
        for (const folded of await page.locator('summary, .group-head button').all()) await folded.click();
        same(await page.evaluate('document.querySelectorAll("#view img, #view b b, dialog img, #view script").length'), 0, hash);
        ok(!/owned/.test(await page.title()) || (await page.title()).includes('<img'), `${hash}: the title is ${await page.title()}`);
    }
    await page.go(`#/q/evil/key/${at(evil)}`);
    await has(page, 'h1', evil);
    await has(page, '.timeline', `to ${evil}`);
    page.complaints = page.complaints.filter((c) => !/404/.test(c)); // a key that was asked for and is not there
    await b.remove();
});

test('an address that was pasted opens the same view', async () => {
    const page = await open(shop, '#/q/slots/dead?filter=container');
    await has(page, '.group', 'no such container');
    same(await page.locator('#filter').inputValue(), 'container');
    await page.go('#/nowhere/at/all');
    await has(page, '#view', 'There is no such page');
});

await main();
await Promise.all([shop, lots].map((b) => b.process && b.remove()));
