// A consumer in Node, with nothing but what it brings: it takes one message at a time, renews its lease while the work goes
// on, and tells the broker what came of it. Run as many as you like.
//
//   node worker.mjs payments          HAPAX_URL names the broker, LEASE how long a lease is (30s)
//
// A broker that asks who you are: HAPAX_API_TOKEN_FILE names a file with the token. Over https:// the certificate is checked; an authority of
// your own is named in NODE_EXTRA_CA_CERTS. A token is for https://, or for a broker on this machine.
//
// The work here is a line in a ledger, ledger.jsonl: it stands for the payment provider. What matters is the order of things:
//
//  - A message whose delivery is "reconcile" was begun by somebody who never said how it ended. It is looked up by its effect
//    key before anything is done: found, it is acked with what was found; not found, the broker is told "absent" and delivers
//    it again.
//  - The effect key is what the provider is handed as its own idempotency key.
//  - Every settling call may be repeated with the same token: the first answer stands.
//  - A worker that stops lets its poll end by itself. An answer thrown away is a message nobody works at until its lease ends.
import { appendFile, readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

const url = process.env.HAPAX_URL || "http://127.0.0.1:4279";
const lease = process.env.LEASE || "30s";
const leaseMs = milliseconds(lease);
const wait = "5s";
const tokenFile = process.env.HAPAX_API_TOKEN_FILE;
const fields = tokenFile ? { authorization: "Bearer " + (await readFile(tokenFile, "ascii")).trim() } : {};
let stopping = false;

class Transient extends Error {} // it was certainly not done; try again later
class Poison extends Error {} // it can never work

// ---- your part

// Does the work. What it returns is the result, kept for whoever asks again.
async function work(message) {
    let order;
    try {
        order = JSON.parse(message.payload);
    } catch (error) {
        throw new Poison(`not an order: ${error.message}`);
    }
    if (order?.amount === undefined) throw new Poison("not an order: it has no amount");
    const charge = { effect_key: message.effect_key, amount: order.amount, fence: message.fence };
    await appendFile("ledger.jsonl", JSON.stringify(charge) + "\n");
    await sleep(1000 * (order.seconds ?? 0)); // a provider that takes its time
    return charge;
}

// Was it done? The result if so, else undefined.
async function lookUp(message) {
    const ledger = await readFile("ledger.jsonl", "utf8").catch((error) => {
        if (error.code === "ENOENT") return "";
        throw error;
    });
    return ledger.split("\n").filter(Boolean).map(JSON.parse).find((charge) => charge.effect_key === message.effect_key);
}

// ---- the rest is the same for every consumer

// The status and the answer. What throws leaves it open whether the call was applied.
async function post(path, body, timeout = 15000) {
    const reply = await fetch(url + path, {
        method: "POST", headers: fields, body: body ? JSON.stringify(body) : "", signal: AbortSignal.timeout(timeout) });
    const text = await reply.text();
    return { status: reply.status, answer: text ? JSON.parse(text) : {} };
}

const say = (message, text) => console.error(`${message.key || message.id}: ${text}`);
const why = (error) => error.cause?.message ?? error.message;

// The same call with the same token, until the broker has it or refuses it for good: the work is done, and whoever lets go of
// it here has it done again. After a stop, for one lease more.
async function settle(verb, message, members) {
    const begun = Date.now();
    for (const pauses = [0, 100, 200, 500, 1000, 2000]; ;) {
        await sleep(Math.min(pauses.shift() ?? 5000, leaseMs / 3));
        if (stopping && Date.now() - begun > leaseMs) return say(message, `${verb}: no answer; the lease decides`);
        try {
            const { status, answer } = await post(`/v1/${verb}`, { token: message.token, ...members });
            if (status < 500 && status !== 429)
                return say(message, status === 200 ? answer.state : `${answer.code}: ${answer.detail}`);
            say(message, `${verb}: ${answer.code}: again`);
        } catch (error) {
            say(message, `${verb}: ${why(error)}: again`);
        }
    }
}

function milliseconds(text) { // as the broker reads it: a bare number is seconds
    const [, number, unit] = /^(\d+)(ms|s|m|h|)$/.exec(text) ?? [];
    if (!number) throw new Error(`LEASE must be a duration like 30s, not ${text}`);
    return Number(number) * { ms: 1, s: 1000, m: 60000, h: 3600000 }[unit || "s"];
}

// At a third of the lease, so that two renewals may fail. Gone for good: say so, the work may be somebody else's now.
async function renew(message, done) {
    const third = Math.floor(leaseMs / 3); // timeouts take whole milliseconds
    while (await sleep(third, true, { signal: done }).catch(() => false)) {
        try {
            const { status, answer } = await post("/v1/extend", { token: message.token, lease }, third);
            if (status === 404 || status === 409) return message.settling || say(message, `the lease is lost: ${answer.code}`);
        } catch (error) {
            say(message, `extend: ${why(error)}`);
        }
    }
}

// The settling call that tells what came of it.
async function verdict(message) {
    try {
        if (message.delivery !== "reconcile") return ["ack", { result: await work(message) }];
        const found = await lookUp(message);
        return found ? ["ack", { result: found }] : ["nack", { class: "absent" }];
    } catch (error) {
        const kind = error instanceof Transient ? "transient" : error instanceof Poison ? "poison"
            : "unknown"; // it may have been done: only a look-up can tell
        return ["nack", { class: kind, reason: error.message }];
    }
}

async function handle(message) {
    const done = new AbortController();
    const renewing = renew(message, done.signal);
    const [verb, members] = await verdict(message);
    message.settling = true; // and renewed until that is through
    await settle(verb, message, members);
    done.abort();
    await renewing;
}

async function consume(queue) {
    const query = new URLSearchParams({ wait, lease, consumer: `node:${process.pid}` });
    const path = `/v1/queues/${encodeURIComponent(queue)}/receive?${query}`;
    while (!stopping) {
        const { status, answer } = await post(path).catch((error) => ({ status: 503, answer: { detail: why(error) } }));
        if (status === 429 || status >= 500) {
            console.error(`the broker cannot serve this now: ${answer.detail}`);
            await sleep(1000);
        } else if (status !== 200) {
            throw new Error(`${answer.code}: ${answer.detail}`);
        } else {
            for (const message of answer.messages) await handle(message);
        }
    }
}

if (process.argv.length !== 3) {
    console.error("usage: node worker.mjs QUEUE");
    process.exit(2);
}
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => { stopping = true; });
await consume(process.argv[2]);
