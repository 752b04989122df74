// What the tests of the pages share: brokers of their own, one browser, TAP. A test is a sentence and a function; it ends with the
// console free of errors. Nothing sleeps: what is awaited is asked for until it is there.
import { AsyncLocalStorage } from 'node:async_hooks';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const BUILD = join(ROOT, process.env.BUILD ?? 'build');
const HAPAXD = process.env.HAPAXD ?? join(BUILD, 'hapaxd');
const HAPAX = process.env.HAPAX ?? join(BUILD, 'hapax');
const SHOTS = join(dirname(HAPAXD), 'web');
const SIDE_BY_SIDE = 4;
const TIMEOUT = 40000; // of any single wait; only ever reached by a failure

export function same(have, want, what = '') {
    const [a, b] = [JSON.stringify(have), JSON.stringify(want)];
    if (a !== b) throw new Error(`${what ? `${what}: ` : ''}have ${a}, want ${b}`);
}

export function ok(condition, what) {
    if (!condition) throw new Error(what);
}

export async function until(condition, what) {
    const end = Date.now() + TIMEOUT;
    for (;;) {
        const answer = await condition();
        if (answer) return answer;
        if (Date.now() > end) throw new Error(`never: ${what}`);
        await new Promise((on) => setTimeout(on, 20));
    }
}

// ---- a broker

const running = new Set();

export class Broker {
    // config: the text of its file. token: what it is asked with from here. tls: it is served over https, by a certificate of its own.
    constructor({ config, token, tls } = {}) {
        this.data = mkdtempSync(join(tmpdir(), 'hapax-web-'));
        this.port = 0;
        this.token = token;
        this.tls = tls;
        this.configure(tls ? this.served(config ?? '') : config);
    }
    // Nobody has signed the certificate: from here on this process asks nobody's name, and the browser none either.
    served(config) {
        const [cert, key] = ['cert', 'key'].map((name) => join(this.data, `${name}.pem`));
        execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=127.0.0.1',
            '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert], { stdio: 'ignore' });
        process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
        return `listen: [{address: "127.0.0.1:0", tls: {cert: ${cert}, key: ${key}}}]\n${config}`;
    }
    configure(config) {
        this.config = config && join(this.data, 'hapax.yaml');
        if (config) writeFileSync(this.config, config);
    }
    // Another file, in force once a call says so.
    reload(config) {
        this.configure(config);
        this.process.kill('SIGHUP');
    }
    async start() {
        const words = ['--data', join(this.data, 'd'), ...(this.tls ? [] : ['--listen', `127.0.0.1:${this.port}`]), ...(this.config ? ['--config', this.config] : [])];
        const process_ = spawn(HAPAXD, words, { stdio: ['ignore', 'pipe', 'ignore'] });
        running.add(this);
        this.process = process_;
        let said = '';
        for await (const some of process_.stdout) {
            said += some;
            if (said.includes('\n')) break;
        }
        const ready = /ready on (https?:\/\/127\.0\.0\.1:(\d+))\n/.exec(said);
        ok(ready, `the broker said ${said}`);
        this.url = ready[1];
        this.port = Number(ready[2]);
        return this;
    }
    async stop(signal = 'SIGKILL') {
        const gone = new Promise((on) => this.process.once('exit', on));
        this.process.kill(signal);
        await gone;
    }
    async remove() {
        if (this.process.exitCode === null && this.process.signalCode === null) await this.stop();
        running.delete(this);
        rmSync(this.data, { recursive: true, force: true });
    }

    // ---- talking to it

    async call(method, path, body, headers = {}) {
        const text = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
        const reply = await fetch(this.url + path, { method, body: text, headers: { ...(this.token && { Authorization: `Bearer ${this.token}` }), ...headers } });
        const answer = await reply.text();
        ok(reply.status < 500, `${method} ${path}: ${reply.status} ${answer}`);
        return { status: reply.status, text: answer, json: answer && /json/.test(reply.headers.get('content-type')) ? JSON.parse(answer) : null };
    }
    async must(method, path, body, headers) {
        const reply = await this.call(method, path, body, headers);
        ok(reply.status < 300, `${method} ${path}: ${reply.status} ${reply.text}`);
        return reply.json;
    }
    hapax = (...words) => execFileSync(HAPAX, words, { encoding: 'utf8', env: { ...process.env, HAPAX_URL: this.url } });
    get = (path) => this.must('GET', path);
    rules = (queue, rules) => this.must('PUT', `/v1/queues/${queue}`, rules);
    send(queue, key, value, headers = {}) {
        const name = /^[\x21\x23-\x2b\x2d-\x7e]+$/.test(key) ? key : `%"${[...Buffer.from(key)].map((c) => (c > 32 && c < 127 && c !== 34 && c !== 37 ? String.fromCharCode(c) : `%${c.toString(16).padStart(2, '0')}`)).join('')}"`;
        return this.call('POST', `/v1/queues/${queue}/messages`, value, { 'Idempotency-Key': name, 'Content-Type': 'application/json', ...headers });
    }
    async take(queue, params = {}) {
        const reply = await this.must('POST', `/v1/queues/${queue}/receive?${Object.entries({ wait: '20s', ...params }).map(([n, v]) => `${n}=${encodeURIComponent(v)}`).join('&')}`);
        ok(reply.messages.length, `nothing came from ${queue}`);
        return reply.messages[0];
    }
    settle = (verb, message, members) => this.must('POST', `/v1/${verb}`, { token: message.token, ...members });
    // Messages that are dead or held by one failed attempt each.
    async bury(queue, keys, members) {
        for (const key of keys) {
            await this.send(queue, key, { work: key });
            await this.settle('nack', await this.take(queue, { consumer: 'worker-7' }), members);
        }
    }
    key = (queue, key) => this.get(`/v1/queues/${queue}/keys?key=${encodeURIComponent(key)}`);
}

// ---- a page

let browser, axeSource;

export async function open(broker, address, { width = 1440, height = 900, dark = false } = {}) {
    const context = await browser.newContext({ viewport: { width, height }, colorScheme: dark ? 'dark' : 'light', reducedMotion: 'reduce', ignoreHTTPSErrors: Boolean(broker.tls) });
    context.setDefaultTimeout(TIMEOUT);
    const page = await context.newPage();
    page.complaints = [];
    page.on('console', (m) => ['error', 'warning'].includes(m.type()) && page.complaints.push(`${m.text()} ${m.location().url}`));
    page.on('pageerror', (e) => page.complaints.push(String(e.stack)));
    page.go = async (hash) => {
        await page.goto(`${broker.url}/${hash}`);
        await page.locator('#view h1').first().waitFor({ state: 'attached' });
    };
    await page.go(address);
    opened.getStore().push(page);
    return page;
}
// A page that is not the dashboard. Browsers complain about what such pages try; that is no failure.
export async function browse(address) {
    const context = await browser.newContext({ ignoreHTTPSErrors: true });
    context.setDefaultTimeout(TIMEOUT);
    const page = await context.newPage();
    page.complaints = [];
    opened.getStore().push(page);
    page.first = await page.goto(address);
    return page;
}
const opened = new AsyncLocalStorage(); // the pages of a test

export const shot = (page, name, fullPage = true) => page.screenshot({ path: join(SHOTS, `${name}.png`), fullPage });

export const wider = (page) => page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth');

// What axe-core calls serious or critical.
export async function violations(page) {
    await page.evaluate(axeSource);
    const found = await page.evaluate('axe.run(document, { resultTypes: ["violations"] }).then((r) => r.violations)');
    return found.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 200)} (${n.any[0]?.message ?? ''})`).join(' | ')}`);
}

export const has = (page, selector, text) => page.locator(selector).filter({ hasText: text }).first().waitFor();

// ---- running

const tests = [];
export const test = (name, run) => tests.push({ name, run });

function missing() {
    if (!existsSync('/usr/bin/chromium')) return 'no chromium';
    if (!existsSync(join(ROOT, 'tests/web/node_modules/playwright-core'))) return 'no packages of tests/web';
    return null;
}

async function one({ name, run }, number) {
    const pages = [];
    try {
        await opened.run(pages, run);
        same(pages.flatMap((p) => p.complaints), [], 'the console');
        console.log(`ok ${number} - ${name}`);
        return 0;
    } catch (error) {
        console.log(`not ok ${number} - ${name}`);
        console.log(String(error.stack).replace(/^/gm, '#   '));
        await pages.at(-1)?.screenshot({ path: join(SHOTS, `failed-${number}.png`) }).catch(() => {});
        return 1;
    } finally {
        for (const page of pages) await page.context().close();
    }
}

// A few side by side: most of a test is waiting.
async function all(chosen) {
    const left = [...chosen.entries()];
    let failed = 0;
    const worker = async () => {
        for (let next; (next = left.shift());) failed += await one(next[1], next[0] + 1);
    };
    await Promise.all(Array.from({ length: SIDE_BY_SIDE }, worker));
    return failed;
}

export async function main() {
    const words = process.argv.slice(2);
    const chosen = tests.filter((t) => !words.length || words.some((w) => t.name.includes(w)));
    console.log(`1..${chosen.length}`);
    if (missing()) {
        chosen.forEach((t, i) => console.log(`ok ${i + 1} - ${t.name} # SKIP ${missing()}`));
        return;
    }
    mkdirSync(SHOTS, { recursive: true });
    axeSource = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
    browser = await require('playwright-core').chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--host-resolver-rules=MAP evil.example 127.0.0.1'] });
    const failed = await all(chosen);
    await browser.close();
    for (const broker of [...running]) await broker.remove();
    process.exitCode = failed ? 1 : 0;
}
process.on('exit', () => running.forEach((b) => b.process?.kill('SIGKILL')));
