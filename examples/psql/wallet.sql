-- A wallet behind the gate: twenty wallets with five transactions each, 30 % of all deliveries duplicates, in any order.
--
--   psql -f sql/postgres/hapax_gate.sql -f examples/psql/wallet.sql
--
-- Ends with "wallet: ok", or with an error and exit status 3. Works in a schema of its own, wallet, and removes it.

\set ON_ERROR_STOP on
\set QUIET on
\pset tuples_only on
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS wallet CASCADE;
CREATE SCHEMA wallet;

CREATE TABLE wallet.balance (wallet int PRIMARY KEY, cents bigint NOT NULL DEFAULT 0);
CREATE TABLE wallet.entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, cents bigint NOT NULL);
INSERT INTO wallet.balance SELECT generate_series(1, 20);

-- What a consumer does with a delivery, in one transaction. A duplicate gets the first delivery's answer.
CREATE FUNCTION wallet.apply(scope text, key text, wallet int, cents bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    claimed record := hapax.claim(apply.scope, apply.key, fingerprint => sha256(convert_to(format('%s %s', wallet, cents), 'UTF8')));
    answer  text;
BEGIN
    IF claimed.status <> 'new' THEN
        RETURN claimed.status || ': ' || coalesce(convert_from(claimed.result, 'UTF8'), '');
    END IF;
    UPDATE wallet.balance b SET cents = b.cents + apply.cents WHERE b.wallet = apply.wallet RETURNING b.cents INTO answer;
    INSERT INTO wallet.entry (key, cents) VALUES (apply.key, apply.cents);
    PERFORM hapax.commit_outcome(apply.scope, apply.key, convert_to(answer, 'UTF8'), 'text/plain');
    RETURN 'new: ' || answer;
END
$$;

-- The key is the business intent: which wallet, which of its transactions. Not the delivery.
CREATE TABLE wallet.intent AS
SELECT format('wallet:%s:tx:%s', w, t) AS key, w AS wallet, (ARRAY[10000, -3000, 5000, -2500, 725])[t] AS cents
  FROM generate_series(1, 20) w, generate_series(1, 5) t;

-- The wire: 100 intents and 43 deliveries more of some of them. 43 of 143 are 30 %.
SELECT setseed(0.42);
CREATE TABLE wallet.wire AS
SELECT *, row_number() OVER (ORDER BY random()) AS at
  FROM (SELECT * FROM wallet.intent UNION ALL (SELECT * FROM wallet.intent ORDER BY random() LIMIT 43)) d;

-- Keys live in the scope of this run, so that it can be repeated.
SELECT 'wallet ' || clock_timestamp() AS scope \gset

\echo 'a consumer that dies before COMMIT leaves nothing behind:'
BEGIN;
SELECT '  ' || wallet.apply(:'scope', key, wallet, cents) FROM wallet.wire WHERE at = 1;
ROLLBACK;

\echo 'delivering 143 messages, each in its own transaction'
CREATE TABLE wallet.answer (key text, answer text);
SELECT format('INSERT INTO wallet.answer VALUES (%L, wallet.apply(%L, %L, %s, %s))', key, :'scope', key, wallet, cents)
  FROM wallet.wire ORDER BY at \gexec

\echo 'the same key with another amount is no duplicate:'
SELECT '  ' || wallet.apply(:'scope', 'wallet:1:tx:1', 1, 999999);

SELECT set_config('wallet.scope', :'scope', false) <> '' AS set \gset
DO $$
DECLARE
    s record;
BEGIN
    IF EXISTS (SELECT FROM wallet.balance WHERE cents <> 10225) THEN
        RAISE EXCEPTION 'a balance is wrong';
    ELSIF (SELECT count(*) <> 100 OR count(DISTINCT key) <> 100 FROM wallet.entry) THEN
        RAISE EXCEPTION 'an intent took effect twice or never';
    ELSIF EXISTS (SELECT FROM wallet.answer GROUP BY key HAVING count(DISTINCT split_part(answer, ': ', 2)) > 1) THEN
        RAISE EXCEPTION 'a duplicate was answered differently';
    END IF;
    SELECT * INTO STRICT s FROM hapax.signals WHERE scope = current_setting('wallet.scope');
    IF (s.claims, s.duplicates, s.conflicts) IS DISTINCT FROM (144::bigint, 43::bigint, 1::bigint) THEN
        RAISE EXCEPTION 'counted % claims, % duplicates, % conflicts', s.claims, s.duplicates, s.conflicts;
    END IF;
END
$$;
SELECT format('  %s claims, %s duplicates, ratio %s', claims, duplicates, duplicate_ratio)
  FROM hapax.signals WHERE scope = :'scope';
DROP SCHEMA wallet CASCADE;
\echo 'wallet: ok'
