#!/bin/bash
# The gate beside the dedup table a user would write by hand. Whole transactions (key + one business UPDATE, committed
# with fsync), rounds interleaved so that a noisy machine hurts both alike, medians.
#
#   tests/gate/bench.sh                 1.3 x and growth 10^4 -> 10^6, about a minute; exit 1 if a target is missed
#   ROUNDS=51 TRANSACTIONS=2000 KEYS=10000000 CLIENTS=4 tests/gate/bench.sh
#   GROWTH=1 KEYS=10000000 tests/gate/bench.sh      only the growth from 10^4 keys, without the hand-written table
#   SYNC=off tests/gate/bench.sh        without waiting for the disk: only the work of the processor is compared
set -eu

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${PGHOST:-}" ] || [ -z "${HAPAX_BENCH_INNER:-}" ]; then
    HAPAX_BENCH_INNER=1 PG_SETTINGS="shared_buffers=512MB max_wal_size=4GB checkpoint_timeout=30min synchronous_commit=${SYNC:-on}" \
        exec python3 -B "$here/pg.py" run "$0"
fi

rounds=${ROUNDS:-21} each=${TRANSACTIONS:-300} keys=${KEYS:-1000000} clients=${CLIENTS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# No checkpoint comes between filling and measuring: after one, the first touch of each index page writes the whole page
# to the log, for a hand-written table just the same, and a short run would measure little else.
fill() { # DATABASE KEYS
    createdb "$1"
    psql -Xqd "$1" -v ON_ERROR_STOP=1 -f "$here/../../sql/postgres/hapax_gate.sql"
    psql -Xqd "$1" -v ON_ERROR_STOP=1 -v keys="$2" -v growth="${GROWTH:-0}" <<'SQL'
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
INSERT INTO account SELECT i, 0 FROM generate_series(1, 10000) i;
CREATE TABLE seen (scope text, key text, created_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (scope, key));
INSERT INTO hapax.entry (scope, key, state, xact, first_seen, since)
SELECT 'pay', 'capture:' || gen_random_uuid(), 'done', pg_current_xact_id(), now() - interval '1 hour',
       now() - interval '1 hour' + interval '1 us' * i
  FROM generate_series(1, :keys) i;
\if :growth
\else
INSERT INTO seen SELECT scope, key FROM hapax.entry;
\endif
VACUUM ANALYZE;
SQL
}

cat > "$work/hand.sql" <<'SQL'
\set a random(1, 10000)
BEGIN;
INSERT INTO seen (scope, key) VALUES ('pay', 'capture:' || gen_random_uuid()) ON CONFLICT DO NOTHING RETURNING 1;
UPDATE account SET balance = balance + 1 WHERE id = :a;
COMMIT;
SQL
cat > "$work/gate.sql" <<'SQL'
\set a random(1, 10000)
BEGIN;
SELECT status FROM hapax.claim('pay', 'capture:' || gen_random_uuid());
UPDATE account SET balance = balance + 1 WHERE id = :a;
COMMIT;
SQL
cat > "$work/outcome.sql" <<'SQL'
\set a random(1, 10000)
BEGIN;
SELECT hapax.commit_outcome('pay', k, 'captured', 'text/plain')
  FROM (SELECT 'capture:' || gen_random_uuid() AS k OFFSET 0) n, hapax.claim('pay', k);
UPDATE account SET balance = balance + 1 WHERE id = :a;
COMMIT;
SQL
cat > "$work/hand_duplicate.sql" <<'SQL'
INSERT INTO seen (scope, key) VALUES ('dup', 'one') ON CONFLICT DO NOTHING RETURNING 1;
SQL
cat > "$work/gate_duplicate.sql" <<'SQL'
SELECT status FROM hapax.claim('dup', 'one');
SQL

one_round() { # DATABASE SCRIPT -> latency in microseconds and WAL bytes of one transaction
    local before after out
    before=$(psql -XqAtd "$1" -c 'SELECT pg_current_wal_lsn()')
    out=$(pgbench -n -M prepared -c "$clients" -j 1 -t "$each" -f "$work/$2.sql" "$1" 2>&1) || { echo "$out" >&2; return 1; }
    after=$(psql -XqAtd "$1" -c "SELECT pg_current_wal_lsn() - '$before'::pg_lsn")
    awk -v wal="$after" '/latency average/ {us = $4 * 1000} /actually processed/ {split($6, p, "/"); n = p[1]}
        END {printf "%.0f %.0f\n", us, wal / n}' <<< "$out"
}
median() { sort -n | awk '{v[NR] = $1} END {print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

echo "# filling 10000 and $keys keys"
fill small 10000
fill large "$keys"
runs="small:gate large:gate"
[ -n "${GROWTH:-}" ] || runs="small:hand small:gate large:gate large:hand small:outcome small:hand_duplicate small:gate_duplicate"
for ((r = 0; r < rounds; r++)); do
    for run in $runs; do
        one_round "${run%:*}" "${run#*:}" >> "$work/$run"
    done
done

printf '%-22s %12s %10s\n' "transaction" "median us" "WAL bytes"
for run in $runs; do
    printf '%-22s %12s %10s\n' "$run" "$(cut -d' ' -f1 "$work/$run" | median)" "$(cut -d' ' -f2 "$work/$run" | median)"
done
# Ratios are taken within each round first: neighbours in time share the machine's mood.
ratio() { paste -d' ' "$work/$1" "$work/$2" | awk '{print $1 / $3}' | median; }
verdict() { # TEXT RATIO LIMIT
    awk -v t="$1" -v r="$2" -v l="$3" 'BEGIN {ok = r <= l; printf "%s - %s: %.2f (at most %.2f)\n", ok ? "ok" : "not ok", t, r, l; exit !ok}'
}
status=0
if [ -z "${GROWTH:-}" ]; then
    verdict "gate beside a hand-written table, 10000 keys" "$(ratio small:gate small:hand)" 1.3 || status=1
    verdict "gate beside a hand-written table, $keys keys" "$(ratio large:gate large:hand)" 1.3 || status=1
fi
verdict "growth from 10000 to $keys keys" "$(ratio large:gate small:gate)" 1.25 || status=1

# The same through the C library: one connection, PostgreSQL (plain, and prepared on both sides) and SQLite.
bench=$here/../../build/tests/gate_bench
if [ -x "$bench" ]; then
    for way in pg pg-named; do
        createdb "$way"
        psql -Xqd "$way" -v ON_ERROR_STOP=1 -f "$here/../../sql/postgres/hapax_gate.sql"
        PGDATABASE=$way "$bench" "$way" "$rounds" "$each" || status=1
    done
    "$bench" "$work/sqlite.db" "$rounds" "$each" || status=1
else
    echo "# the C library was left out: make test-tools builds gate_bench"
fi
exit $status
