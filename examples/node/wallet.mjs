// A wallet behind the gate, from Node: five transactions, two of seven deliveries are duplicates, and they race.
//
//   npm ci && node wallet.mjs          with PGHOST, PGDATABASE, ... set and sql/postgres/hapax_gate.sql installed
//
// Ends with "wallet: ok", or exit status 1.
import pg from "pg";

const pool = new pg.Pool({ max: 4 });
const scope = `wallet node ${Date.now()} ${process.pid}`; // of this run, so that it can be repeated

// Claim, do, commit. A duplicate gets the first delivery's answer.
async function once(key, fingerprint, work) {
    const db = await pool.connect();
    try {
        await db.query("BEGIN");
        const { rows: [claim] } = await db.query(
            "SELECT status, result FROM hapax.claim($1, $2, sha256(convert_to($3, 'UTF8')))", [scope, key, fingerprint]);
        let answer = claim.result && JSON.parse(claim.result); // a Buffer: the answer as it was stored
        if (claim.status === "new") {
            answer = await work(db);
            await db.query("SELECT hapax.commit_outcome($1, $2, $3, 'application/json')", [scope, key, JSON.stringify(answer)]);
        }
        await db.query("COMMIT"); // a duplicate is committed, too: that counts it
        return { status: claim.status, answer };
    } catch (error) {
        await db.query("ROLLBACK").catch(() => {});
        throw error;
    } finally {
        db.release();
    }
}

function deliver({ key, cents }) {
    return once(key, String(cents), async (db) => {
        const { rows: [wallet] } = await db.query(
            "UPDATE wallet_node SET cents = cents + $1, bookings = bookings + 1 RETURNING cents", [cents]);
        return { booked: cents, balance: wallet.cents };
    });
}

const wire = [["1", 10000], ["2", -3000], ["1", 10000], ["3", 5000], ["4", -2500], ["2", -3000], ["5", 725]]
    .map(([n, cents]) => ({ key: `wallet:1:${n}`, cents })); // the key is the business intent, not the delivery

await pool.query("DROP TABLE IF EXISTS wallet_node");
await pool.query("CREATE TABLE wallet_node (cents int NOT NULL, bookings int NOT NULL)");
await pool.query("INSERT INTO wallet_node VALUES (0, 0)");
const told = await Promise.all(wire.map(deliver));
const forged = await deliver({ key: "wallet:1:1", cents: 999999 }); // the same key with another amount is no duplicate
wire.forEach(({ key, cents }, i) => console.log(`  ${key} ${cents} ${told[i].status}, balance then ${told[i].answer.balance}`));

const { rows: [wallet] } = await pool.query("SELECT cents, bookings FROM wallet_node");
const answers = new Map();
wire.forEach(({ key }, i) => answers.set(key, (answers.get(key) ?? new Set()).add(told[i].answer.balance)));
const ok = wallet.cents === 10225 && wallet.bookings === 5 && forged.status === "conflict" &&
    told.filter((t) => t.status === "duplicate").length === 2 && [...answers.values()].every((a) => a.size === 1);
await pool.query("DROP TABLE wallet_node");
await pool.end();
console.log(`wallet: ${ok ? "ok" : "WRONG"} (${wallet.cents} cents, ${wallet.bookings} bookings)`);
process.exitCode = ok ? 0 : 1;
