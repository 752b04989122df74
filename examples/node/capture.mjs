// Payment capture from Node, with the SQL gate alone: reserve and commit, call the gateway, ledger and outcome in one
// transaction. One attempt dies right after the charge; its successor asks the gateway before it charges.
//
//   npm ci && node capture.mjs         with PGHOST, PGDATABASE, ... set and sql/postgres/hapax_gate.sql installed
//
// Ends with "capture: ok", or exit status 1.
import pg from "pg";

const pool = new pg.Pool({ max: 2 });
const scope = `capture node ${Date.now()} ${process.pid}`;

// Stands for a payment provider that does not mind being charged twice.
const gateway = {
    charges: [],
    charge(key, cents) {
        this.charges.push({ id: `ch_${this.charges.length + 1}`, key, cents });
        return this.charges.at(-1);
    },
    find(key) {
        return this.charges.find((c) => c.key === key);
    },
};

class Crash extends Error {}

async function reserve(key, fence) {
    const { rows: [r] } = await pool.query(
        "SELECT status, result FROM hapax.reserve($1, $2, fence => $3, owner => 'capture')", [scope, key, fence]);
    return r;
}

async function settle(key, fence, cents, charge) {
    const db = await pool.connect();
    try {
        await db.query("BEGIN");
        await db.query("INSERT INTO ledger_node VALUES ($1, $2)", [key, cents]);
        const { rows: [{ told }] } = await db.query(
            "SELECT hapax.commit_outcome($1, $2, $3::text, effect_id => $3, fence => $4) AS told",
            [scope, key, charge.id, fence]);
        await db.query(told === "committed" ? "COMMIT" : "ROLLBACK"); // settled by another: our ledger row must not stay
    } catch (error) {
        await db.query("ROLLBACK").catch(() => {});
        throw error;
    } finally {
        db.release();
    }
}

// The fence is the delivery's: it grows.
async function capture(key, cents, fence, { crash = false } = {}) {
    let told = await reserve(key, fence);
    let charge;
    if (told.status === "unknown") {
        charge = gateway.find(key);
        if (!charge) { // it certainly did not happen: free it, and it is ours
            await pool.query("SELECT hapax.release($1, $2, $3)", [scope, key, fence]);
            told = await reserve(key, fence);
        }
    }
    if (told.status === "duplicate") return { status: "duplicate", charge: told.result.toString() };
    if (told.status !== "new" && !charge) return { status: told.status }; // in_flight, stale, conflict: not ours to do
    charge ??= gateway.charge(key, cents);
    if (crash) throw new Crash();
    await settle(key, fence, cents, charge);
    return { status: told.status, charge: charge.id };
}

await pool.query("DROP TABLE IF EXISTS ledger_node");
await pool.query("CREATE TABLE ledger_node (payment text, cents int)");
const died = await capture("pi_1", 700, 1, { crash: true }).catch((e) => e instanceof Crash);
const steps = [
    await capture("pi_1", 700, 2), // unknown: found at the gateway
    await capture("pi_1", 700, 3), // the message once more
    await capture("pi_1", 700, 1), // the one that was believed dead
    await capture("pi_2", 300, 4),
];
steps.forEach((s) => console.log(`  ${s.status} ${s.charge ?? ""}`));
const { rows: ledger } = await pool.query("SELECT payment, cents FROM ledger_node ORDER BY payment");
await pool.query("DROP TABLE ledger_node");
await pool.end();
const ok = died === true && gateway.charges.length === 2 &&
    JSON.stringify(ledger) === JSON.stringify([{ payment: "pi_1", cents: 700 }, { payment: "pi_2", cents: 300 }]) &&
    JSON.stringify(steps.map((s) => s.status)) === JSON.stringify(["unknown", "duplicate", "duplicate", "new"]);
console.log(`capture: ${ok ? "ok" : "WRONG"} (${gateway.charges.length} charges, ${ledger.length} ledger rows)`);
process.exitCode = ok ? 0 : 1;
