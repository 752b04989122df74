-- The Hapax gate for PostgreSQL 13 and later: dedup key and business write commit together.
--
--   psql -v ON_ERROR_STOP=1 -f hapax_gate.sql        install, or repeat an installation: it is idempotent
--
-- Plain SQL in schema `hapax`: no extension, no superuser, no NOTIFY, no session state, so it works from any driver,
-- at every isolation level and behind PgBouncer in transaction mode. CREATE on the database is all the installer needs.
-- The user's guide is docs/GATE.md; this header is for whoever reads or changes the code.
--
-- WHOSE RIGHTS. The tables are the installer's alone; the functions run as him (SECURITY DEFINER), so that an application
-- can do with a key what the functions do, and nothing else. What somebody plants in a schema of the caller's path (an
-- operator `=` for our types, say) must never run here. So a function has a search_path of its own; or it names the schema of
-- every function, operator, type and collation it uses, and has none of the words that stand for an operator (BETWEEN, IN,
-- IS DISTINCT FROM). Setting and resetting the path costs as much as an INSERT by hand, hence the second kind where every
-- claim comes by: claim and commit_outcome, with all that is less common in functions of the first kind.
-- For the same reason this file refuses a schema `hapax` with anything of somebody else's in it.
--
-- WHICH PLANS. A session keeps the plan of a statement, made perhaps when a table was small enough to be read whole, while
-- the table grows. What looks a row up here is meant for an index, so those functions say enable_seqscan = off; and for the
-- index of the key, not the one of the windows, which begins with the scope, too, and in a small table looks as good. So
-- that one has a collation of its own: what compares scopes in "C" cannot use it. (Both compare bytes.)
--
-- HOW IT WORKS
--
-- One row of hapax.entry per (scope, key). Whoever inserts it first has the work:
--
--   state      meaning                                             who may leave it, and where to
--   claimed    done, once the claiming transaction commits         commit_outcome or release, in that transaction only
--   in_flight  reserved, the effect happens outside this database  commit_outcome, release; reserve or claim by take-over
--   done       settled, with its result                            nobody (sweep drops it after the scope's window)
--   rejected   settled, a business refusal with its result         nobody (as above)
--   released   given back, nothing happened; remembers the fence   any claimant: it is new again
--
-- Uniqueness is decided by the primary key alone and only at admission. INSERT ... ON CONFLICT DO NOTHING finds a rival's
-- uncommitted row and waits for that transaction to end: its commit makes us a duplicate, its rollback makes us the
-- winner. Nothing here ever concludes from "somebody holds it" that somebody will finish it. Under READ COMMITTED the
-- statement after the wait has a fresh snapshot and sees what the rival left; under REPEATABLE READ and SERIALIZABLE
-- PostgreSQL itself raises 40001 there, and the caller runs its transaction again.
--
-- A settled row never changes, so duplicates read it without locking. Whatever writes an existing row first locks it and
-- then decides again on what it now sees. The lock lives to the end of the caller's transaction. That is what fencing
-- rests on: a commit_outcome or step that passed the fence check holds the row until its business write has committed,
-- and a successor that raises the fence waits for it, or was first and makes it fail.
--
-- Is a row ours, that is from this very transaction? Savepoints give rows other xids than the transaction's, so the
-- top-level xid8 is stored in `xact`. A dump restored into another cluster may bring an equal number along; `since`, never
-- before now() for a row of this transaction, tells the two apart.
--
-- `since` is when the row entered its state. The times of a row are taken after any wait: an INSERT computes its values
-- before it waits, so an insert that took long gets its times set again.
--
-- `unsure` says that some earlier attempt at this reservation may have had its effect. It is part of the row because the
-- answer `unknown` must survive a lost COMMIT reply: the same owner asking again must hear `unknown` again, not `new`.
--
-- Counting: every answer appends one row to hapax.tally, which has no index and no hot row, so duplicates of one key do
-- not wait for each other; it is unlogged, so a transaction that was only told `duplicate` writes no WAL and does not wait
-- for the disk. sweep() folds the rows into hapax.total. An answer counts when its transaction commits; a crash of the
-- server loses the counts, and nothing but the counts, since the last sweep.
--
-- WHAT A CRASH LEAVES: nothing of an uncommitted transaction; of a committed reservation its in_flight row, which the
-- next claimant (after the lease, or at once with a higher fence) and stranded() report.
--
-- ERRORS. Each aborts the caller's transaction as every SQL error does: nothing of it was applied, unless the caller
-- goes back to a savepoint of its own.
--   HX001  a higher fence, or a later attempt, was seen for this key: somebody else has the work now. Do not retry.
--   HX002  no such claim: never made, rolled back, released, or past its window.
--   HX003  an argument is NULL, empty, too long or out of range. A bug in the caller.
--   HX004  expect(): the conditional update hit more rows than one.
--   HX005  step() of a key that is settled already.
--   HX006  the installed schema version is not the one needed.
--   HX007  uninstall while reservations are in flight.
--   HX008  schema hapax, or something in it, belongs to another role than the installing one, or others may create in it.
-- PostgreSQL's own, of interest here: 40001, 40P01 run the transaction again; 55P03 lock_timeout while waiting for a rival;
-- 25P02 the transaction was aborted before the call; 42501 rights are missing (see "Rights" in docs/GATE.md); and a lost
-- connection during COMMIT, the one case where the caller cannot know: claim again, the answer tells.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    needed  constant int := 3;
    present int;
    alien   text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('hapax gate schema'));
    SELECT o.what || ' belongs to ' || pg_get_userbyid(o.owner) INTO alien
      FROM (SELECT 'schema hapax' AS what, n.nspowner AS owner, 0 AS rank FROM pg_namespace n WHERE n.nspname = 'hapax'
            UNION ALL
            SELECT format('hapax.%s', c.relname), c.relowner, 1 FROM pg_class c WHERE c.relnamespace = to_regnamespace('hapax')
            UNION ALL
            SELECT format('hapax.%s', t.typname), t.typowner, 1 FROM pg_type t WHERE t.typnamespace = to_regnamespace('hapax')
            UNION ALL
            SELECT p.oid::regprocedure::text, p.proowner, 1 FROM pg_proc p WHERE p.pronamespace = to_regnamespace('hapax')) o
     WHERE o.owner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)
     ORDER BY o.rank LIMIT 1;
    IF alien IS NOT NULL THEN
        RAISE EXCEPTION 'hapax: %, not to %, who is installing; nothing was applied', alien, current_user
            USING ERRCODE = 'HX008', HINT = 'Its owner could change what others call. If he is to be trusted, '
                  'SET ROLE to him first (hapax gate install --owner); else drop it.';
    END IF;
    SELECT CASE a.grantee WHEN 0 THEN 'everybody' ELSE pg_get_userbyid(a.grantee) END INTO alien
      FROM pg_namespace n, aclexplode(n.nspacl) a
     WHERE n.nspname = 'hapax' AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
     LIMIT 1;
    IF alien IS NOT NULL THEN
        RAISE EXCEPTION 'hapax: % may create in schema hapax; nothing was applied', alien
            USING ERRCODE = 'HX008', HINT = 'What is made there could be called instead of the gate, by whoever calls it: '
                  'REVOKE CREATE ON SCHEMA hapax first.';
    END IF;
    IF to_regclass('hapax.schema_version') IS NOT NULL THEN
        SELECT coalesce(max(version), 0) INTO present FROM hapax.schema_version;
    END IF;
    IF present > needed THEN
        RAISE EXCEPTION 'hapax: schema version % is installed, this file is version %; nothing was applied', present, needed
            USING ERRCODE = 'HX006', HINT = 'Use the hapax_gate.sql of the newer release.';
    ELSIF present < needed THEN
        RAISE EXCEPTION 'hapax: schema version % is installed, this file needs %; nothing was applied', present, needed
            USING ERRCODE = 'HX006',
                  HINT = format('Run the files of migrations/ above %s in order first, then this one again.',
                                lpad(present::text, 4, '0'));
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS hapax;
COMMENT ON SCHEMA hapax IS 'Hapax gate: each business key takes effect once';

-- Tables are made once and later changed by migrations only: even CREATE INDEX IF NOT EXISTS would wait for running claims.
DO $$
BEGIN
    IF to_regclass('hapax.schema_version') IS NOT NULL THEN
        RETURN;
    END IF;

    CREATE TABLE hapax.schema_version (
        version      int PRIMARY KEY,
        installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );

    -- Written by the user: how long a settled key of this scope is remembered. No row, or NULL: forever.
    CREATE TABLE hapax.scope (
        scope text COLLATE "C" PRIMARY KEY CHECK (length(scope) BETWEEN 1 AND 255),
        keep  interval CHECK (keep >= interval '0')
    );

    CREATE TYPE hapax.state AS ENUM ('claimed', 'in_flight', 'done', 'rejected', 'released');

    -- An enum and no CHECK: a check constraint costs each claim more than its index does. lease_until is set in state
    -- in_flight and in no other. Updates in the claiming transaction touch no indexed column and stay heap-only;
    -- fillfactor leaves them room.
    CREATE TABLE hapax.entry (
        scope        text COLLATE "C" NOT NULL,
        key          text COLLATE "C" NOT NULL,
        state        hapax.state NOT NULL,
        unsure       boolean NOT NULL DEFAULT false,
        attempt      int NOT NULL DEFAULT 1,
        fence        bigint,
        xact         xid8 NOT NULL,
        first_seen   timestamptz NOT NULL,
        since        timestamptz NOT NULL,
        lease_until  timestamptz,
        owner        text,
        fingerprint  bytea,
        effect_id    text,
        content_type text,
        result       bytea,
        PRIMARY KEY (scope, key)
    ) WITH (fillfactor = 90);

    CREATE INDEX entry_due ON hapax.entry (scope COLLATE "POSIX", since);
    CREATE INDEX entry_in_flight ON hapax.entry (since) WHERE lease_until IS NOT NULL;

    CREATE TABLE hapax.steps (
        scope       text COLLATE "C" NOT NULL,
        key         text COLLATE "C" NOT NULL,
        name        text COLLATE "C" NOT NULL,
        result      bytea,
        finished_at timestamptz NOT NULL,
        PRIMARY KEY (scope, key, name)
    );

    -- Effect ids reported for a key beyond the one its outcome was settled with: evidence of a doubled effect. They may be
    -- too long for an index row beside scope and key, hence the hash.
    CREATE TABLE hapax.extra_effect (
        scope     text COLLATE "C" NOT NULL,
        key       text COLLATE "C" NOT NULL,
        effect_id text COLLATE "C" NOT NULL,
        seen_at   timestamptz NOT NULL
    );
    CREATE UNIQUE INDEX extra_effect_once ON hapax.extra_effect (scope, key, hashtextextended(effect_id, 0));
    -- Under a publication FOR ALL TABLES nothing may be deleted from a table without one.
    ALTER TABLE hapax.extra_effect REPLICA IDENTITY FULL;

    CREATE UNLOGGED TABLE hapax.tally (
        scope  text COLLATE "C" NOT NULL,
        answer text COLLATE "C" NOT NULL
    ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

    CREATE TABLE hapax.total (
        scope  text COLLATE "C" NOT NULL,
        answer text COLLATE "C" NOT NULL,
        n      bigint NOT NULL,
        PRIMARY KEY (scope, answer)
    );

    CREATE TYPE hapax.step_answer AS (status text, result bytea);

    INSERT INTO hapax.schema_version (version) VALUES (3);
END
$$;

-- Of versions 1 and 2: what has grown, since both at once would be ambiguous, and what is no more.
DROP FUNCTION IF EXISTS hapax.commit_outcome(text, text, bytea, text, text, bigint, text), hapax.release(text, text, bigint),
    hapax.step(text, text, text, bytea, bigint), hapax.verdict(hapax.entry, bytea, bigint, text, timestamptz),
    hapax.same_claimant(hapax.entry, bigint, text), hapax.hold(text, text, text, bigint), hapax.is_settled(hapax.entry),
    hapax.admit(text, text, bytea, bigint, text, interval);

-- For clients: fail early and clearly when the installed gate is not one they can use. What versions 1 and 2 had is all here.
CREATE OR REPLACE FUNCTION hapax.require_version(version int) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present int := (SELECT max(v.version) FROM hapax.schema_version v);
BEGIN
    IF present IS DISTINCT FROM 3 OR (require_version.version BETWEEN 1 AND 3) IS NOT TRUE THEN
        RAISE EXCEPTION 'hapax: schema version % is installed, % is needed; nothing was applied',
            coalesce(present::text, 'none'), coalesce(require_version.version::text, 'NULL') USING ERRCODE = 'HX006';
    END IF;
END
$$;

-- Names are scopes, keys and steps; together they must fit an index row at four bytes a character. Internal.
CREATE OR REPLACE FUNCTION hapax.check_name(what text, name text, most int DEFAULT 255) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND most THEN
        RAISE EXCEPTION 'hapax: % must have 1 to % characters, this one %; nothing was applied', what, most,
            CASE WHEN name IS NULL THEN 'is NULL' ELSE format('has %s', length(name)) END USING ERRCODE = 'HX003';
    END IF;
END
$$;

-- Was this row last claimed, reserved or settled by the running transaction? Internal, inlined.
CREATE OR REPLACE FUNCTION hapax.is_ours(xact xid8, since timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.xid8eq(xact, pg_catalog.pg_current_xact_id_if_assigned())
       AND since OPERATOR(pg_catalog.>=) pg_catalog.now()
$$;

-- The times of a row whose insertion had to wait for a rival, set again. Internal.
CREATE OR REPLACE FUNCTION hapax.made_late(scope text, key text, lease interval, OUT at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    at := greatest(clock_timestamp(), now());
    UPDATE hapax.entry e SET first_seen = at, since = at, lease_until = at + lease
     WHERE e.scope = made_late.scope COLLATE "C" AND e.key = made_late.key COLLATE "C";
END
$$;

-- claim and reserve in one: lease is NULL for the one-transaction form. lost: the caller has tried to insert the row and did
-- not get it. Internal.
CREATE OR REPLACE FUNCTION hapax.admit(scope text, key text, fingerprint bytea, fence bigint, owner text, lease interval, lost boolean,
    OUT status text, OUT result bytea, OUT content_type text, OUT first_seen timestamptz, OUT attempt int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    at     timestamptz;
    seen   hapax.entry;
    ours   boolean;
    same   boolean;
    again  boolean;
    locked boolean;
BEGIN
    IF (length(admit.scope) BETWEEN 1 AND 255 AND length(admit.key) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM hapax.check_name('scope', admit.scope);
        PERFORM hapax.check_name('key', admit.key);
    END IF;
    <<race>>
    LOOP
        IF NOT lost THEN
            at := greatest(clock_timestamp(), now());
            INSERT INTO hapax.entry (scope, key, state, fence, xact, first_seen, since, lease_until, owner, fingerprint)
            VALUES (admit.scope, admit.key, CASE WHEN lease IS NULL THEN 'claimed' ELSE 'in_flight' END::hapax.state, admit.fence,
                    pg_current_xact_id(), at, at, at + lease, admit.owner, admit.fingerprint)
            ON CONFLICT (scope, key) DO NOTHING;
            IF FOUND THEN
                status := 'new';
                first_seen := CASE WHEN clock_timestamp() - at > interval '10 ms' THEN hapax.made_late(admit.scope, admit.key, lease) ELSE at END;
                attempt := 1;
                INSERT INTO hapax.tally VALUES (admit.scope, 'new');
                RETURN;
            END IF;
        END IF;

        lost := false;
        locked := false;
        LOOP
            IF locked THEN
                SELECT e.* INTO seen FROM hapax.entry e
                 WHERE e.scope = admit.scope COLLATE "C" AND e.key = admit.key COLLATE "C" FOR UPDATE;
            ELSE
                SELECT e.* INTO seen FROM hapax.entry e
                 WHERE e.scope = admit.scope COLLATE "C" AND e.key = admit.key COLLATE "C";
            END IF;
            -- Gone between two statements: swept, or its transaction rolled back. The race is open again.
            CONTINUE race WHEN NOT FOUND;

            at := greatest(clock_timestamp(), now());
            ours := coalesce(hapax.is_ours(seen.xact, seen.since), false);
            same := seen.fence IS NOT DISTINCT FROM admit.fence AND seen.owner IS NOT DISTINCT FROM admit.owner COLLATE "C"
                AND (admit.fence IS NOT NULL OR admit.owner IS NOT NULL);
            -- The decision table: what a claimant is told about a row it did not insert. The order is the contract's.
            -- NULL fences and fingerprints are unknowns and compare as neither lower nor different. A reservation made
            -- with neither fence nor owner is nobody's: no later caller can be taken for its maker.
            status := CASE
                WHEN seen.fingerprint <> admit.fingerprint THEN 'conflict'
                WHEN seen.state IN ('done', 'rejected') OR (seen.state = 'claimed' AND NOT ours) THEN 'duplicate'
                WHEN admit.fence < seen.fence THEN 'stale'
                WHEN seen.state = 'released' THEN 'new'
                WHEN ours THEN CASE WHEN seen.unsure THEN 'unknown' ELSE 'new' END
                WHEN seen.lease_until <= at THEN 'unknown'
                WHEN same THEN CASE WHEN seen.unsure THEN 'unknown' ELSE 'new' END
                WHEN admit.fence > seen.fence THEN 'unknown'
                ELSE 'in_flight'
            END;
            EXIT race WHEN locked OR status NOT IN ('new', 'unknown');
            locked := true;
        END LOOP;
    END LOOP;

    first_seen := seen.first_seen;
    attempt := seen.attempt;
    IF status = 'duplicate' THEN
        result := seen.result;
        content_type := seen.content_type;
    ELSIF status IN ('new', 'unknown') THEN
        again := seen.state <> 'released' AND (ours OR (seen.lease_until > at AND same));
        -- What is unknown stays a reservation even for claim: only commit_outcome or release may end it.
        IF status = 'unknown' THEN
            lease := coalesce(lease, interval '2 minutes');
        END IF;
        IF NOT again THEN
            attempt := attempt + 1;
        END IF;
        UPDATE hapax.entry e
           SET state = CASE WHEN lease IS NULL THEN 'claimed' ELSE 'in_flight' END::hapax.state,
               unsure = (admit.status = 'unknown'), attempt = admit.attempt, fence = greatest(e.fence, admit.fence),
               xact = pg_current_xact_id(), since = at, lease_until = at + lease, owner = admit.owner,
               fingerprint = coalesce(e.fingerprint, admit.fingerprint)
         WHERE e.scope = admit.scope COLLATE "C" AND e.key = admit.key COLLATE "C";
    END IF;
    -- Asking again for what one has is not another claim.
    IF again IS NOT TRUE THEN
        INSERT INTO hapax.tally VALUES (admit.scope, status);
    END IF;
END
$$;

-- What most claims meet, a key nobody has used, is dealt with here; whatever else by admit. A name that may not be inserts
-- nothing, and admit says what is wrong with it. No search_path: every schema is named.
CREATE OR REPLACE FUNCTION hapax.claim(scope text, key text, fingerprint bytea DEFAULT NULL, fence bigint DEFAULT NULL,
    owner text DEFAULT NULL,
    OUT status text, OUT result bytea, OUT content_type text, OUT first_seen timestamptz, OUT attempt int)
LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
BEGIN
    first_seen := greatest(pg_catalog.clock_timestamp(), pg_catalog.now());
    INSERT INTO hapax.entry (scope, key, state, fence, xact, first_seen, since, owner, fingerprint)
    SELECT claim.scope, claim.key, 'claimed'::hapax.state, claim.fence, pg_catalog.pg_current_xact_id(), claim.first_seen,
           claim.first_seen, claim.owner, claim.fingerprint
     WHERE pg_catalog.length(claim.scope) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.length(claim.scope) OPERATOR(pg_catalog.<=) 255
       AND pg_catalog.length(claim.key) OPERATOR(pg_catalog.>=) 1 AND pg_catalog.length(claim.key) OPERATOR(pg_catalog.<=) 255
    ON CONFLICT (scope, key) DO NOTHING;
    IF NOT FOUND OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) (first_seen OPERATOR(pg_catalog.+) interval '10 ms') THEN
        IF NOT FOUND THEN
            SELECT a.* INTO status, result, content_type, first_seen, attempt
              FROM hapax.admit(claim.scope, claim.key, claim.fingerprint, claim.fence, claim.owner, NULL, true) a;
            RETURN;
        END IF;
        first_seen := hapax.made_late(claim.scope, claim.key, NULL);
    END IF;
    status := 'new';
    attempt := 1;
    INSERT INTO hapax.tally VALUES (claim.scope, 'new');
END
$$;

CREATE OR REPLACE FUNCTION hapax.reserve(scope text, key text, fingerprint bytea DEFAULT NULL, fence bigint DEFAULT NULL,
    owner text DEFAULT NULL, lease interval DEFAULT '2 minutes',
    OUT status text, OUT result bytea, OUT content_type text, OUT first_seen timestamptz, OUT attempt int)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF lease IS NULL OR lease <= interval '0' THEN
        RAISE EXCEPTION 'hapax: lease must be longer than nothing, this one is %; nothing was applied',
            coalesce(lease::text, 'NULL') USING ERRCODE = 'HX003';
    END IF;
    SELECT a.* INTO status, result, content_type, first_seen, attempt
      FROM hapax.admit(reserve.scope, reserve.key, reserve.fingerprint, reserve.fence, reserve.owner, reserve.lease, false) a;
END
$$;

-- How a duplicate was settled: claim's row has no room for it. NULL: it is not, or not yet. No search_path: every schema is
-- named.
CREATE OR REPLACE FUNCTION hapax.settled_as(scope text, key text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off AS $$
BEGIN
    RETURN (SELECT CASE WHEN e.state OPERATOR(pg_catalog.=) 'rejected' THEN 'rejected'
                        WHEN e.state OPERATOR(pg_catalog.=) 'claimed' OR e.state OPERATOR(pg_catalog.=) 'done' THEN 'done' END
              FROM hapax.entry e
             WHERE e.scope OPERATOR(pg_catalog.=) settled_as.scope COLLATE pg_catalog."C"
               AND e.key OPERATOR(pg_catalog.=) settled_as.key COLLATE pg_catalog."C");
END
$$;

-- Locks the claim for the rest of the transaction and refuses the superseded and the absent. A claim of another
-- transaction, which its commit has settled, is shown as `done`. Internal.
CREATE OR REPLACE FUNCTION hapax.hold(verb text, scope text, key text, fence bigint, attempt int) RETURNS hapax.entry
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held hapax.entry;
BEGIN
    PERFORM hapax.check_name('scope', hold.scope);
    PERFORM hapax.check_name('key', hold.key);
    SELECT e.* INTO held FROM hapax.entry e
     WHERE e.scope = hold.scope COLLATE "C" AND e.key = hold.key COLLATE "C" FOR UPDATE;
    IF hold.fence < held.fence THEN
        RAISE EXCEPTION 'hapax: % of %/%: fence % is below %, which was seen; nothing was applied',
            verb, scope, key, fence, held.fence
            USING ERRCODE = 'HX001', HINT = 'Another consumer has the work now. Roll back and do not retry.';
    ELSIF held.state IS NULL OR (held.state = 'released' AND verb <> 'release') THEN
        RAISE EXCEPTION 'hapax: % of %/%: no such claim; nothing was applied', verb, scope, key
            USING ERRCODE = 'HX002',
                  HINT = 'It was never made, rolled back, released, or is past its window. Claim first.';
    ELSIF held.state = 'in_flight' AND hold.attempt <> held.attempt THEN
        RAISE EXCEPTION 'hapax: % of %/%: attempt % has the reservation, not %; nothing was applied',
            verb, scope, key, held.attempt, attempt
            USING ERRCODE = 'HX001', HINT = 'Another consumer has the work now. Roll back and do not retry.';
    END IF;
    IF held.state = 'claimed' AND hapax.is_ours(held.xact, held.since) IS NOT TRUE THEN
        held.state := 'done';
    END IF;
    RETURN held;
END
$$;

-- commit_outcome of what is not a claim of this very transaction; under its enable_seqscan. Internal.
CREATE OR REPLACE FUNCTION hapax.settle(scope text, key text, result bytea, content_type text, effect_id text, fence bigint,
    state text, attempt int, OUT status text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    held hapax.entry;
BEGIN
    IF settle.state IS NULL OR settle.state NOT IN ('done', 'rejected') THEN
        RAISE EXCEPTION 'hapax: state must be done or rejected, not %; nothing was applied',
            coalesce(settle.state, 'NULL') USING ERRCODE = 'HX003';
    END IF;
    held := hapax.hold('commit_outcome', settle.scope, settle.key, settle.fence, settle.attempt);
    IF held.state IN ('done', 'rejected') THEN
        status := 'duplicate';
        IF settle.effect_id IS DISTINCT FROM held.effect_id COLLATE "C" AND settle.effect_id IS NOT NULL THEN
            INSERT INTO hapax.extra_effect VALUES (settle.scope, settle.key, settle.effect_id, clock_timestamp())
            ON CONFLICT DO NOTHING;
        END IF;
        RETURN;
    END IF;
    status := 'committed';
    UPDATE hapax.entry e
       SET state = settle.state::hapax.state, result = settle.result, content_type = settle.content_type,
           effect_id = settle.effect_id, fence = greatest(e.fence, settle.fence), unsure = false,
           xact = pg_current_xact_id(), since = clock_timestamp(), lease_until = NULL
     WHERE e.scope = settle.scope COLLATE "C" AND e.key = settle.key COLLATE "C";
END
$$;

-- The common case, one statement: the claim is this transaction's own. No search_path: every schema is named.
CREATE OR REPLACE FUNCTION hapax.commit_outcome(scope text, key text, result bytea DEFAULT NULL,
    content_type text DEFAULT NULL, effect_id text DEFAULT NULL, fence bigint DEFAULT NULL, state text DEFAULT 'done',
    attempt int DEFAULT NULL, OUT status text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off AS $$
#variable_conflict use_column
BEGIN
    UPDATE hapax.entry e
       SET state = CASE WHEN commit_outcome.state OPERATOR(pg_catalog.=) 'done' THEN 'done'::hapax.state ELSE 'rejected'::hapax.state END,
           result = commit_outcome.result, content_type = commit_outcome.content_type, effect_id = commit_outcome.effect_id,
           fence = greatest(e.fence, commit_outcome.fence)
     WHERE e.scope OPERATOR(pg_catalog.=) commit_outcome.scope COLLATE pg_catalog."C"
       AND e.key OPERATOR(pg_catalog.=) commit_outcome.key COLLATE pg_catalog."C"
       AND e.state OPERATOR(pg_catalog.=) 'claimed' AND hapax.is_ours(e.xact, e.since)
       AND (commit_outcome.fence OPERATOR(pg_catalog.<) e.fence) IS NOT TRUE
       AND (commit_outcome.state OPERATOR(pg_catalog.=) 'done' OR commit_outcome.state OPERATOR(pg_catalog.=) 'rejected');
    IF FOUND THEN
        status := 'committed';
    ELSE
        status := hapax.settle(commit_outcome.scope, commit_outcome.key, commit_outcome.result, commit_outcome.content_type,
                               commit_outcome.effect_id, commit_outcome.fence, commit_outcome.state, commit_outcome.attempt);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION hapax.release(scope text, key text, fence bigint DEFAULT NULL, attempt int DEFAULT NULL,
    OUT status text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    held hapax.entry := hapax.hold('release', release.scope, release.key, release.fence, release.attempt);
BEGIN
    IF held.state IN ('done', 'rejected') THEN
        status := 'duplicate';
        RETURN;
    END IF;
    status := 'released';
    IF held.state <> 'released' THEN
        UPDATE hapax.entry e
           SET state = 'released', unsure = false, fence = greatest(e.fence, release.fence), xact = pg_current_xact_id(),
               since = greatest(clock_timestamp(), now()), lease_until = NULL, owner = NULL, fingerprint = NULL
         WHERE e.scope = release.scope COLLATE "C" AND e.key = release.key COLLATE "C";
    END IF;
END
$$;

-- Insert-or-lose like claim, under the claim's row lock, so steps of one key come one after the other. With record =>
-- false nothing is written: the lock makes the answer good until the end of the transaction.
CREATE OR REPLACE FUNCTION hapax.step(scope text, key text, name text, result bytea DEFAULT NULL, fence bigint DEFAULT NULL,
    attempt int DEFAULT NULL, record boolean DEFAULT true) RETURNS hapax.step_answer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    held     hapax.entry := hapax.hold('step', step.scope, step.key, step.fence, step.attempt);
    recorded hapax.steps;
BEGIN
    PERFORM hapax.check_name('step name', step.name, 128);
    SELECT s.* INTO recorded FROM hapax.steps s
     WHERE s.scope = step.scope COLLATE "C" AND s.key = step.key COLLATE "C" AND s.name = step.name COLLATE "C";
    IF FOUND THEN
        RETURN ('duplicate', recorded.result)::hapax.step_answer;
    END IF;
    IF held.state IN ('done', 'rejected') THEN
        RAISE EXCEPTION 'hapax: step % of %/%: the key is settled already; nothing was applied',
            step.name, step.scope, step.key USING ERRCODE = 'HX005';
    END IF;
    IF step.record IS FALSE THEN
        RETURN ('new', NULL)::hapax.step_answer;
    END IF;
    IF step.fence > held.fence OR (step.fence IS NOT NULL AND held.fence IS NULL) THEN
        UPDATE hapax.entry e SET fence = step.fence
         WHERE e.scope = step.scope COLLATE "C" AND e.key = step.key COLLATE "C";
    END IF;
    -- The row lock keeps rivals out; what an older snapshot could not see of them becomes 40001 here.
    INSERT INTO hapax.steps VALUES (step.scope, step.key, step.name, step.result, clock_timestamp()) ON CONFLICT DO NOTHING;
    RETURN ('new', step.result)::hapax.step_answer;
END
$$;

-- Results as text, stored in UTF-8. A literal or a driver's parameter without a type arrives here, too, hence one
-- exception: what is spelled as bytea is (\x and hexadecimal digits), are those bytes. Internal, inlined.
CREATE OR REPLACE FUNCTION hapax.bytes_of(result text) RETURNS bytea
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_catalog.starts_with(result, '\x') AND result OPERATOR(pg_catalog.~) '^\\x([0-9A-Fa-f][0-9A-Fa-f])*$'
                THEN result::pg_catalog.bytea ELSE pg_catalog.convert_to(result, 'UTF8') END
$$;

CREATE OR REPLACE FUNCTION hapax.commit_outcome(scope text, key text, result text,
    content_type text DEFAULT NULL, effect_id text DEFAULT NULL, fence bigint DEFAULT NULL, state text DEFAULT 'done',
    attempt int DEFAULT NULL, OUT status text) RETURNS text
LANGUAGE sql AS $$
    SELECT hapax.commit_outcome(scope, key, hapax.bytes_of(result), content_type, effect_id, fence, state, attempt)
$$;

CREATE OR REPLACE FUNCTION hapax.step(scope text, key text, name text, result text, fence bigint DEFAULT NULL,
    attempt int DEFAULT NULL, record boolean DEFAULT true) RETURNS hapax.step_answer
LANGUAGE sql AS $$
    SELECT hapax.step(scope, key, name, hapax.bytes_of(result), fence, attempt, record)
$$;

CREATE OR REPLACE FUNCTION hapax.expect(rows bigint, OUT status text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF rows IS NULL OR rows < 0 THEN
        RAISE EXCEPTION 'hapax: expect needs a row count, not %; nothing was applied', coalesce(rows::text, 'NULL')
            USING ERRCODE = 'HX003';
    ELSIF rows > 1 THEN
        RAISE EXCEPTION 'hapax: the conditional update hit % rows, at most 1 was expected; nothing was applied', rows
            USING ERRCODE = 'HX004', HINT = 'Its WHERE clause does not name one row. Roll back and mend it.';
    END IF;
    status := CASE rows WHEN 1 THEN 'applied' ELSE 'already' END;
END
$$;

CREATE OR REPLACE FUNCTION hapax.stranded(older_than interval DEFAULT '2 minutes')
RETURNS TABLE (scope text, key text, owner text, attempt int, since timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    -- Read once: compared with a clock that moves, no index could be used.
    made_before constant timestamptz := clock_timestamp() - older_than;
BEGIN
    IF older_than IS NULL THEN
        RAISE EXCEPTION 'hapax: stranded needs an age, not NULL; nothing was applied' USING ERRCODE = 'HX003';
    END IF;
    RETURN QUERY
        SELECT e.scope, e.key, e.owner, e.attempt, e.since FROM hapax.entry e
         WHERE e.lease_until IS NOT NULL AND e.since <= made_before
         ORDER BY e.since;
END
$$;

-- One scope's share of a sweep. Whoever holds a row at the moment keeps it for the next sweep. The time is read once:
-- compared with a clock that moves, no index could be used, and every key of the scope would be read. A window of months
-- may end later when added than when subtracted; nothing goes before both say so. Internal.
CREATE OR REPLACE FUNCTION hapax.sweep_scope(scope text, keep interval, batch bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    at     constant timestamptz := clock_timestamp();
    before constant timestamptz := at - keep;
    keys   text[];
BEGIN
    WITH gone AS (
        DELETE FROM hapax.entry WHERE ctid = ANY (ARRAY(
            SELECT e.ctid FROM hapax.entry e
             WHERE e.scope = sweep_scope.scope COLLATE "POSIX" AND e.lease_until IS NULL
               AND e.since <= before AND e.since + keep <= at
             ORDER BY e.since LIMIT batch FOR UPDATE SKIP LOCKED))
        RETURNING entry.key
    )
    SELECT array_agg(g.key) INTO keys FROM gone g;
    IF keys IS NOT NULL THEN
        DELETE FROM hapax.steps s WHERE s.scope = sweep_scope.scope COLLATE "C" AND s.key = ANY (keys);
        DELETE FROM hapax.extra_effect x WHERE x.scope = sweep_scope.scope COLLATE "C" AND x.key = ANY (keys);
    END IF;
    RETURN coalesce(cardinality(keys), 0);
END
$$;

-- Returns the number of keys dropped: call again while it equals batch. Any number may run at once.
CREATE OR REPLACE FUNCTION hapax.sweep(batch int DEFAULT 10000, OUT dropped bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    s record;
BEGIN
    IF batch IS NULL OR batch < 1 THEN
        RAISE EXCEPTION 'hapax: batch must be at least 1, not %; nothing was applied', coalesce(batch::text, 'NULL')
            USING ERRCODE = 'HX003';
    END IF;
    dropped := 0;
    FOR s IN SELECT c.scope, c.keep FROM hapax.scope c WHERE c.keep < interval '4000 years' ORDER BY random() LOOP
        EXIT WHEN dropped >= batch;
        dropped := dropped + hapax.sweep_scope(s.scope, s.keep, batch - dropped);
    END LOOP;

    -- Fold the counts, all there are: answers come faster than keys end. One sweep at a time does it.
    IF pg_try_advisory_xact_lock(hashtext('hapax gate counts')) THEN
        WITH fresh AS (DELETE FROM hapax.tally RETURNING tally.scope, tally.answer)
        INSERT INTO hapax.total AS o SELECT f.scope, f.answer, count(*) FROM fresh f GROUP BY f.scope, f.answer
            ON CONFLICT (scope, answer) DO UPDATE SET n = o.n + excluded.n;
    END IF;
END
$$;

CREATE OR REPLACE VIEW hapax.keys AS
SELECT e.scope, e.key, CASE e.state WHEN 'claimed' THEN 'done' ELSE e.state::text END AS state, e.attempt, e.fence, e.owner,
       e.fingerprint, e.first_seen,
       CASE WHEN e.state = 'in_flight' THEN e.since END AS reserved_at, e.lease_until, e.unsure,
       CASE WHEN e.state IN ('claimed', 'done', 'rejected') THEN e.since END AS settled_at,
       CASE WHEN e.lease_until IS NULL THEN e.since + c.keep END AS expires_at,
       e.result, e.content_type,
       array_remove(ARRAY[e.effect_id] || ARRAY(SELECT x.effect_id::text FROM hapax.extra_effect x
                     WHERE x.scope = e.scope AND x.key = e.key ORDER BY x.seen_at), NULL) AS effect_ids,
       ARRAY(SELECT s.name FROM hapax.steps s
              WHERE s.scope = e.scope AND s.key = e.key ORDER BY s.finished_at) AS steps
  FROM hapax.entry e LEFT JOIN hapax.scope c ON c.scope = e.scope;

CREATE OR REPLACE VIEW hapax.signals AS
WITH counted AS (
    SELECT f.scope, f.answer, 1::bigint AS n FROM hapax.tally f
    UNION ALL
    SELECT o.scope, o.answer, o.n FROM hapax.total o
), answers AS (
    SELECT t.scope, sum(t.n) AS claims, sum(t.n) FILTER (WHERE t.answer = 'duplicate') AS duplicates,
           sum(t.n) FILTER (WHERE t.answer = 'conflict') AS conflicts, sum(t.n) FILTER (WHERE t.answer = 'stale') AS stale,
           sum(t.n) FILTER (WHERE t.answer = 'unknown') AS unknown
      FROM counted t GROUP BY t.scope
), flying AS (
    SELECT e.scope, count(*) AS in_flight, min(e.since) AS since
      FROM hapax.entry e WHERE e.lease_until IS NOT NULL GROUP BY e.scope
), doubled AS (
    SELECT d.scope, count(*) AS keys
      FROM (SELECT DISTINCT x.scope, x.key FROM hapax.extra_effect x) d JOIN hapax.keys k USING (scope, key)
     WHERE cardinality(k.effect_ids) > 1 GROUP BY d.scope
), scopes AS (
    SELECT scope FROM hapax.scope UNION SELECT scope FROM answers UNION SELECT scope FROM flying UNION SELECT scope FROM doubled
)
SELECT s.scope, coalesce(a.claims, 0)::bigint AS claims, coalesce(a.duplicates, 0)::bigint AS duplicates,
       round(coalesce(a.duplicates / nullif(a.claims, 0), 0), 4) AS duplicate_ratio,
       coalesce(f.in_flight, 0) AS in_flight, clock_timestamp() - f.since AS oldest_in_flight_age,
       coalesce(d.keys, 0) AS keys_with_several_effects, coalesce(a.conflicts, 0)::bigint AS conflicts,
       coalesce(a.stale, 0)::bigint AS stale, coalesce(a.unknown, 0)::bigint AS unknown
  FROM scopes s LEFT JOIN answers a USING (scope) LEFT JOIN flying f USING (scope) LEFT JOIN doubled d USING (scope);

-- Whoever may use the schema may call the rest.
REVOKE EXECUTE ON FUNCTION hapax.check_name(text, text, int), hapax.made_late(text, text, interval),
    hapax.admit(text, text, bytea, bigint, text, interval, boolean), hapax.hold(text, text, text, bigint, int),
    hapax.settle(text, text, bytea, text, text, bigint, text, int),
    hapax.sweep_scope(text, interval, bigint), hapax.sweep(int) FROM PUBLIC;

COMMIT;
