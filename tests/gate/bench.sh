#!/bin/bash
# The gate beside the dedup table a user would write by hand: whole transactions (key, one business UPDATE, COMMIT), first as
# SQL from pgbench with prepared statements, then through the C library, which saves round trips. gate_bench.c says what by
# hand means. With the disk waited for and without (where only the work of the processor is compared), rounds interleaved
# so that a noisy machine hurts both alike, medians.
#
#   tests/gate/bench.sh                 1.3 x and growth 10^4 -> 10^6, some minutes; exit 1 if a target is missed
#   ROUNDS=51 TRANSACTIONS=2000 KEYS=10000000 CLIENTS=4 tests/gate/bench.sh
#   GROWTH=1 KEYS=10000000 tests/gate/bench.sh      only the growth from 10^4 keys, without the hand-written table
#   LIBRARY=1 tests/gate/bench.sh       only through the C library
set -eu

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${PGHOST:-}" ] || [ -z "${HAPAX_BENCH_INNER:-}" ]; then
    HAPAX_BENCH_INNER=1 PG_SETTINGS="shared_buffers=512MB max_wal_size=4GB checkpoint_timeout=30min" \
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
CREATE TABLE seen (scope text, key text, created_at timestamptz NOT NULL DEFAULT now(), result bytea, content_type text,
                   PRIMARY KEY (scope, key)) WITH (fillfactor = 90);
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

script() { # NAME < the statements of a transaction; :k is its key, :a the account
    { printf '\\set a random(1, 10000)\n\\set k random(1, 1000000000000000000)\nBEGIN;\n'; cat; echo 'COMMIT;'; } > "$work/$1.sql"
}
script hand <<'SQL'
INSERT INTO seen (scope, key) VALUES ('pay', 'capture:' || :k) ON CONFLICT DO NOTHING RETURNING 1;
UPDATE account SET balance = balance + 1 WHERE id = :a;
SQL
script gate <<'SQL'
SELECT status FROM hapax.claim('pay', 'capture:' || :k);
UPDATE account SET balance = balance + 1 WHERE id = :a;
SQL
script hand_result <<'SQL'
INSERT INTO seen (scope, key) VALUES ('pay', 'capture:' || :k) ON CONFLICT DO NOTHING RETURNING 1;
UPDATE account SET balance = balance + 1 WHERE id = :a;
UPDATE seen SET result = 'captured', content_type = 'text/plain' WHERE scope = 'pay' AND key = 'capture:' || :k;
SQL
script gate_result <<'SQL'
SELECT status FROM hapax.claim('pay', 'capture:' || :k);
UPDATE account SET balance = balance + 1 WHERE id = :a;
SELECT hapax.commit_outcome('pay', 'capture:' || :k, 'captured', 'text/plain');
SQL
script hand_duplicate <<'SQL'
INSERT INTO seen (scope, key) VALUES ('dup', 'one') ON CONFLICT DO NOTHING RETURNING 1;
SELECT result, content_type FROM seen WHERE scope = 'dup' AND key = 'one';
SQL
script gate_duplicate <<'SQL'
SELECT * FROM hapax.claim('dup', 'one');
SQL

one_round() { # DATABASE SCRIPT SYNC -> latency in microseconds and WAL bytes of one transaction
    local before after out
    before=$(psql -XqAtd "$1" -c 'SELECT pg_current_wal_lsn()')
    out=$(PGOPTIONS="-c synchronous_commit=$3" pgbench -n -M prepared -c "$clients" -j 1 -t "$each" -f "$work/$2.sql" "$1" 2>&1) || { echo "$out" >&2; return 1; }
    after=$(psql -XqAtd "$1" -c "SELECT pg_current_wal_lsn() - '$before'::pg_lsn")
    awk -v wal="$after" '/latency average/ {us = $4 * 1000} /actually processed/ {split($6, p, "/"); n = p[1]}
        END {printf "%.0f %.0f\n", us, wal / n}' <<< "$out"
}
median() { sort -n | awk '{v[NR] = $1} END {print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }

# Ratios are taken within each round first: neighbours in time share the machine's mood.
ratio() { paste -d' ' "$work/$1" "$work/$2" | awk '{print $1 / $3}' | median; }
verdict() { # TEXT RATIO LIMIT
    awk -v t="$1" -v r="$2" -v l="$3" 'BEGIN {ok = r <= l; printf "%s - %s: %.2f (at most %.2f)\n", ok ? "ok" : "not ok", t, r, l; exit !ok}'
}
status=0

as_sql() {
    local run r sync runs="small:gate large:gate" all=""
    echo "# filling 10000 and $keys keys"
    fill small 10000
    fill large "$keys"
    [ -n "${GROWTH:-}" ] || runs="small:hand small:gate large:gate large:hand small:hand_result small:gate_result small:hand_duplicate small:gate_duplicate"
    for sync in on off; do for run in $runs; do all+=" $run:$sync"; done; done
    for ((r = 0; r < rounds; r++)); do
        for run in $all; do
            IFS=: read -r database name sync <<< "$run"
            one_round "$database" "$name" "$sync" >> "$work/$run"
        done
    done
    printf '%-26s %10s %10s\n' "# keys:transaction:sync" "median us" "WAL bytes"
    for run in $all; do
        printf '# %-24s %10s %10s\n' "$run" "$(cut -d' ' -f1 "$work/$run" | median)" "$(cut -d' ' -f2 "$work/$run" | median)"
    done
    for sync in on off; do
        verdict "SQL, sync $sync, growth from 10000 to $keys keys" "$(ratio "large:gate:$sync" "small:gate:$sync")" 1.25 || status=1
        [ -z "${GROWTH:-}" ] || continue
        verdict "SQL, sync $sync, a new key beside 10000" "$(ratio "small:gate:$sync" "small:hand:$sync")" 1.3 || status=1
        verdict "SQL, sync $sync, a new key beside $keys" "$(ratio "large:gate:$sync" "large:hand:$sync")" 1.3 || status=1
        verdict "SQL, sync $sync, a new key with a result" "$(ratio "small:gate_result:$sync" "small:hand_result:$sync")" 1.3 || status=1
        printf '# SQL, sync %s, a duplicate with a result: %.2f\n' "$sync" "$(ratio "small:gate_duplicate:$sync" "small:hand_duplicate:$sync")"
    done
}
[ -n "${LIBRARY:-}" ] || as_sql

# Through the C library: one connection, PostgreSQL (plain, and prepared on both sides) and SQLite.
[ -z "${GROWTH:-}" ] || exit $status
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
