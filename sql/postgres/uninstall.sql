-- Removes the gate and everything it remembers. Whatever was deduplicated may then happen again: stop its users first.
-- Refused while reservations are in flight (their outcome is known nowhere else), unless the session says
--   SET hapax.uninstall = 'force';
-- Nothing is dropped by CASCADE: views or functions of yours that use the gate stop it, and nothing is removed.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

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
DO $$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
              WHERE p.pronamespace = to_regnamespace('hapax')
                AND p.proname IN ('claim', 'reserve', 'commit_outcome', 'release', 'step', 'expect', 'stranded', 'sweep', 'settled_as',
                                  'sweep_scope', 'admit', 'made_late', 'hold', 'settle', 'bytes_of', 'is_ours', 'check_name', 'require_version',
                                  'verdict', 'same_claimant', 'is_settled') LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
END
$$;
DROP TABLE IF EXISTS hapax.tally, hapax.total, hapax.extra_effect, hapax.steps, hapax.entry, hapax.scope, hapax.schema_version;
DROP TYPE IF EXISTS hapax.state, hapax.step_answer;
DROP SCHEMA IF EXISTS hapax;
COMMIT;
