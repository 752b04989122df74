-- Removes the gate and everything it remembers. Whatever was deduplicated may then happen again: stop its users first.
-- Refused while reservations are in flight (their outcome is known nowhere else), unless the session says
--   SET hapax.uninstall = 'force';
-- Nothing is dropped by CASCADE: views or functions of yours that use the gate stop it, and nothing is removed.

BEGIN;
SET LOCAL client_min_messages = warning;

DO $$
DECLARE
    flying bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('hapax gate schema'));
    IF to_regclass('hapax.entry') IS NULL OR current_setting('hapax.uninstall', true) = 'force' THEN
        RETURN;
    END IF;
    LOCK TABLE hapax.entry IN ACCESS EXCLUSIVE MODE;
    SELECT count(*) INTO flying FROM hapax.entry WHERE lease_until IS NOT NULL;
    IF flying > 0 THEN
        RAISE EXCEPTION 'hapax: % reservations are in flight; nothing was removed', flying
            USING ERRCODE = 'HX007', HINT = 'Settle what SELECT * FROM hapax.stranded(''0'') lists.';
    END IF;
END
$$;

DROP VIEW IF EXISTS hapax.signals, hapax.keys;
DROP FUNCTION IF EXISTS
    hapax.claim, hapax.reserve, hapax.commit_outcome, hapax.release, hapax.step, hapax.expect, hapax.stranded, hapax.sweep,
    hapax.sweep_scope, hapax.admit, hapax.hold, hapax.verdict, hapax.same_claimant, hapax.is_settled, hapax.is_ours,
    hapax.check_name, hapax.require_version;
DROP TABLE IF EXISTS hapax.tally, hapax.total, hapax.extra_effect, hapax.steps, hapax.entry, hapax.scope, hapax.schema_version;
DROP TYPE IF EXISTS hapax.state;
DROP SCHEMA IF EXISTS hapax;
COMMIT;
