-- Payment capture from psql: reserve and commit, call the gateway, ledger and outcome in one transaction; then an attempt
-- that dies after its charge, and its successor, who looks the charge up instead of charging again.
--
--   psql -f sql/postgres/hapax_gate.sql -f examples/psql/capture.sql
--
-- Ends with "capture: ok", or with an error and exit status 3. Works in a schema of its own, capture, and removes it.

\set ON_ERROR_STOP on
\set QUIET on
\pset tuples_only on
SET client_min_messages = warning;
DROP SCHEMA IF EXISTS capture CASCADE;
CREATE SCHEMA capture;
CREATE TABLE capture.ledger (payment text, cents bigint);
-- Stands for the payment provider. It does not mind being charged twice for one key.
CREATE TABLE capture.gateway (id int GENERATED ALWAYS AS IDENTITY, key text, cents bigint);
SELECT 'capture ' || clock_timestamp() AS scope \gset

\echo 'a capture: reserve, charge, ledger and outcome'
SELECT '  ' || status FROM hapax.reserve(:'scope', 'pi_1', fence => 1, owner => 'psql/1');
INSERT INTO capture.gateway (key, cents) VALUES ('pi_1', 700);
BEGIN;
INSERT INTO capture.ledger VALUES ('pi_1', 700);
SELECT '  ' || hapax.commit_outcome(:'scope', 'pi_1', 'ch_1', effect_id => 'ch_1', fence => 1);
COMMIT;

\echo 'another, whose consumer dies after the charge and before the ledger'
SELECT '  ' || status FROM hapax.reserve(:'scope', 'pi_2', fence => 2, owner => 'psql/2');
INSERT INTO capture.gateway (key, cents) VALUES ('pi_2', 300);
BEGIN;
INSERT INTO capture.ledger VALUES ('pi_2', 300);
ROLLBACK;

\echo 'its message is delivered again: unknown, so look it up; it is there, so only write it down'
SELECT status AS told FROM hapax.reserve(:'scope', 'pi_2', fence => 3, owner => 'psql/3') \gset
\echo '  ':told
SELECT 'ch_' || id AS charge FROM capture.gateway WHERE key = 'pi_2' \gset
BEGIN;
INSERT INTO capture.ledger VALUES ('pi_2', 300);
SELECT '  ' || hapax.commit_outcome(:'scope', 'pi_2', :'charge', effect_id => :'charge', fence => 3);
COMMIT;

\echo 'once more: a duplicate, with the charge'
SELECT '  ' || status || ' ' || convert_from(result, 'UTF8') AS again
  FROM hapax.reserve(:'scope', 'pi_2', fence => 4, owner => 'psql/4');

SELECT set_config('capture.told', :'told', false) <> '' AS set \gset
DO $$
BEGIN
    IF current_setting('capture.told') <> 'unknown' THEN
        RAISE EXCEPTION 'a successor was not warned';
    ELSIF (SELECT count(*) <> 2 OR count(DISTINCT key) <> 2 FROM capture.gateway) THEN
        RAISE EXCEPTION 'charged twice or never';
    ELSIF (SELECT count(*) <> 2 OR sum(cents) <> 1000 FROM capture.ledger) THEN
        RAISE EXCEPTION 'the ledger is wrong';
    END IF;
END
$$;
DROP SCHEMA capture CASCADE;
\echo 'capture: ok'
