-- Version 2: functions with their owner's rights, counts with a key, and nothing that a publication FOR ALL TABLES stops.
-- Applications keep working throughout. Between this file and hapax_gate.sql two sweeps at once may fail (23505).
--
-- The grants that version 1 asked for let an application rewrite hapax.entry. They are taken back here, and with them
-- whatever else may write the gate's tables; hapax.scope, the user's own, is left alone. Whoever could DELETE keys may
-- call sweep.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    present int;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('hapax gate schema'));
    IF to_regclass('hapax.schema_version') IS NOT NULL THEN
        SELECT max(version) INTO present FROM hapax.schema_version;
    END IF;
    IF present IS DISTINCT FROM 1 THEN
        RAISE EXCEPTION 'hapax: migration 0002 is for version 1, here is %; nothing was applied', coalesce(present::text, 'none')
            USING ERRCODE = 'HX006';
    END IF;
END
$$;

ALTER TABLE hapax.extra_effect REPLICA IDENTITY FULL;

LOCK TABLE hapax.total IN ACCESS EXCLUSIVE MODE;
ALTER TABLE hapax.total REPLICA IDENTITY FULL;
WITH old AS (DELETE FROM hapax.total RETURNING scope, answer, n)
INSERT INTO hapax.total SELECT scope, answer, sum(n) FROM old GROUP BY scope, answer;
ALTER TABLE hapax.total ADD PRIMARY KEY (scope, answer);
ALTER TABLE hapax.total REPLICA IDENTITY DEFAULT;

CREATE TYPE hapax.step_answer AS (status text, result bytea);

-- The functions of version 1 go on until they are replaced, with their owner's rights already.
DO $$
DECLARE
    f regprocedure;
    g record;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
              WHERE p.pronamespace = to_regnamespace('hapax')
                AND p.proname IN ('require_version', 'claim', 'reserve', 'commit_outcome', 'release', 'step', 'stranded', 'sweep') LOOP
        EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', f);
        IF f = to_regprocedure('hapax.sweep(int)') THEN
            EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
        END IF;
    END LOOP;
    FOR g IN SELECT c.oid::regclass AS of, a.privilege_type AS what, a.grantee = 0 AS everybody, r.rolname AS role
               FROM pg_class c CROSS JOIN aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
              WHERE c.relnamespace = to_regnamespace('hapax') AND c.relkind = 'r' AND c.relname <> 'scope'
                AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') AND a.grantee <> c.relowner LOOP
        EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', g.what, g.of, CASE WHEN g.everybody THEN 'PUBLIC' ELSE quote_ident(g.role) END);
        IF g.what = 'DELETE' AND g.of = to_regclass('hapax.entry') AND to_regprocedure('hapax.sweep(int)') IS NOT NULL THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION hapax.sweep(int) TO %s', CASE WHEN g.everybody THEN 'PUBLIC' ELSE quote_ident(g.role) END);
        END IF;
    END LOOP;
END
$$;

INSERT INTO hapax.schema_version (version) VALUES (2);
COMMIT;
