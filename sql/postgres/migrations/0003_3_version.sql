-- What the two files before have done is version 3. An index whose making was interrupted is there, and not used.

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
    IF present IS DISTINCT FROM 2 THEN
        RAISE EXCEPTION 'hapax: migration 0003 is for version 2, here is %; nothing was applied', coalesce(present::text, 'none')
            USING ERRCODE = 'HX006';
    END IF;
    IF NOT coalesce((SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass('hapax.entry_due')), false) THEN
        RAISE EXCEPTION 'hapax: index hapax.entry_due was not made wholly; nothing was applied'
            USING ERRCODE = 'HX006', HINT = 'DROP INDEX hapax.entry_due, then run the files 0003 again.';
    END IF;
END
$$;

INSERT INTO hapax.schema_version (version) VALUES (3);
COMMIT;
