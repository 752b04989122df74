-- The Hapax gate for PostgreSQL 13 and later: dedup key and business write commit together.
--
--   psql -v ON_ERROR_STOP=1 -f hapax_gate.sql        install, or repeat an installation: it is idempotent
--
-- Plain SQL in schema `hapax`: no extension, no superuser, no NOTIFY, no session state, so it works from any driver,
-- at every isolation level and behind PgBouncer in transaction mode. CREATE on the database is all the installer needs.
-- The user's guide is docs/GATE.md; this header is for whoever reads or changes the code.
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
--   HX001  a higher fence was seen for this key: somebody else has the work now. Do not retry.
--   HX002  no such claim: never made, rolled back, released, or past its window.
--   HX003  an argument is NULL, empty, too long or out of range. A bug in the caller.
--   HX004  expect(): the conditional update hit more rows than one.
--   HX005  step() of a key that is settled already.
--   HX006  the installed schema version is not the one needed.
--   HX007  uninstall while reservations are in flight.
-- PostgreSQL's own, of interest here: 40001, 40P01 run the transaction again; 55P03 lock_timeout while waiting for a rival;
-- 25P02 the transaction was aborted before the call; 42501 rights are missing (see "Rights" in docs/GATE.md); and a lost
-- connection during COMMIT, the one case where the caller cannot know: claim again, the answer tells.

BEGIN;
SET LOCAL client_min_messages = warning;

DO $$
DECLARE
    needed  constant int := 1;
    present int;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('hapax gate schema'));
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

    CREATE INDEX entry_since ON hapax.entry (scope, since);
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

    CREATE UNLOGGED TABLE hapax.tally (
        scope  text COLLATE "C" NOT NULL,
        answer text COLLATE "C" NOT NULL
    ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

    CREATE TABLE hapax.total (
        scope  text COLLATE "C" NOT NULL,
        answer text COLLATE "C" NOT NULL,
        n      bigint NOT NULL
    );

    INSERT INTO hapax.schema_version (version) VALUES (1);
END
$$;

-- For clients: fail early and clearly when the installed gate is not the one they were written for.
CREATE OR REPLACE FUNCTION hapax.require_version(version int) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    present int := (SELECT max(v.version) FROM hapax.schema_version v);
BEGIN
    IF present IS DISTINCT FROM require_version.version THEN
        RAISE EXCEPTION 'hapax: schema version % is installed, % is needed; nothing was applied',
            coalesce(present::text, 'none'), coalesce(require_version.version::text, 'NULL') USING ERRCODE = 'HX006';
    END IF;
END
$$;

-- Names are scopes, keys and steps; together they must fit an index row at four bytes a character. Internal.
CREATE OR REPLACE FUNCTION hapax.check_name(what text, name text, most int DEFAULT 255) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF name IS NULL OR length(name) NOT BETWEEN 1 AND most THEN
        RAISE EXCEPTION 'hapax: % must have 1 to % characters, this one %; nothing was applied', what, most,
            CASE WHEN name IS NULL THEN 'is NULL' ELSE format('has %s', length(name)) END USING ERRCODE = 'HX003';
    END IF;
END
$$;

-- Was this row last claimed, reserved or settled by the running transaction? Internal.
CREATE OR REPLACE FUNCTION hapax.is_ours(xact xid8, since timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT xact = pg_current_xact_id_if_assigned() AND since >= now()
$$;

-- The decision table: what a claimant is told about a row it did not insert. The order is the contract's. Internal.
-- NULL fences and fingerprints are unknowns and compare as neither lower nor different. A reservation made with
-- neither fence nor owner is nobody's: no later caller can be taken for its maker.
CREATE OR REPLACE FUNCTION hapax.verdict(e hapax.entry, fingerprint bytea, fence bigint, owner text, at timestamptz)
RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    ours constant boolean := coalesce(hapax.is_ours(e.xact, e.since), false);
BEGIN
    RETURN CASE
        WHEN e.fingerprint <> verdict.fingerprint THEN 'conflict'
        WHEN e.state IN ('done', 'rejected') OR (e.state = 'claimed' AND NOT ours) THEN 'duplicate'
        WHEN verdict.fence < e.fence THEN 'stale'
        WHEN e.state = 'released' THEN 'new'
        WHEN ours THEN CASE WHEN e.unsure THEN 'unknown' ELSE 'new' END
        WHEN e.lease_until <= at THEN 'unknown'
        WHEN hapax.same_claimant(e, verdict.fence, verdict.owner) THEN CASE WHEN e.unsure THEN 'unknown' ELSE 'new' END
        WHEN verdict.fence > e.fence THEN 'unknown'
        ELSE 'in_flight'
    END;
END
$$;

CREATE OR REPLACE FUNCTION hapax.same_claimant(e hapax.entry, fence bigint, owner text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT e.fence IS NOT DISTINCT FROM same_claimant.fence AND e.owner IS NOT DISTINCT FROM same_claimant.owner COLLATE "C"
       AND (same_claimant.fence IS NOT NULL OR same_claimant.owner IS NOT NULL)
$$;

-- claim and reserve in one: lease is NULL for the one-transaction form. Internal.
CREATE OR REPLACE FUNCTION hapax.admit(scope text, key text, fingerprint bytea, fence bigint, owner text, lease interval,
    OUT status text, OUT result bytea, OUT content_type text, OUT first_seen timestamptz, OUT attempt int)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    at     timestamptz;
    seen   hapax.entry;
    again  boolean;
    locked boolean;
BEGIN
    IF (length(admit.scope) BETWEEN 1 AND 255 AND length(admit.key) BETWEEN 1 AND 255) IS NOT TRUE THEN
        PERFORM hapax.check_name('scope', admit.scope);
        PERFORM hapax.check_name('key', admit.key);
    END IF;

    <<race>>
    LOOP
        at := greatest(clock_timestamp(), now());
        INSERT INTO hapax.entry (scope, key, state, fence, xact, first_seen, since, lease_until, owner, fingerprint)
        VALUES (admit.scope, admit.key, CASE WHEN lease IS NULL THEN 'claimed' ELSE 'in_flight' END::hapax.state, admit.fence,
                pg_current_xact_id(), at, at, at + lease, admit.owner, admit.fingerprint)
        ON CONFLICT (scope, key) DO NOTHING;
        IF FOUND THEN
            IF clock_timestamp() - at > interval '10 ms' THEN
                at := greatest(clock_timestamp(), now());
                UPDATE hapax.entry e SET first_seen = at, since = at, lease_until = at + lease
                 WHERE e.scope = admit.scope COLLATE "C" AND e.key = admit.key COLLATE "C";
            END IF;
            INSERT INTO hapax.tally VALUES (admit.scope, 'new');
            status := 'new';
            first_seen := at;
            attempt := 1;
            RETURN;
        END IF;

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
            status := hapax.verdict(seen, admit.fingerprint, admit.fence, admit.owner, at);
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
        again := seen.state <> 'released'
             AND (coalesce(hapax.is_ours(seen.xact, seen.since), false)
                  OR (seen.lease_until > at AND hapax.same_claimant(seen, admit.fence, admit.owner)));
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

CREATE OR REPLACE FUNCTION hapax.claim(scope text, key text, fingerprint bytea DEFAULT NULL, fence bigint DEFAULT NULL,
    owner text DEFAULT NULL,
    OUT status text, OUT result bytea, OUT content_type text, OUT first_seen timestamptz, OUT attempt int)
LANGUAGE plpgsql AS $$
DECLARE
    a record := hapax.admit(claim.scope, claim.key, claim.fingerprint, claim.fence, claim.owner, NULL);
BEGIN
    status := a.status;
    result := a.result;
    content_type := a.content_type;
    first_seen := a.first_seen;
    attempt := a.attempt;
END
$$;

CREATE OR REPLACE FUNCTION hapax.reserve(scope text, key text, fingerprint bytea DEFAULT NULL, fence bigint DEFAULT NULL,
    owner text DEFAULT NULL, lease interval DEFAULT '2 minutes',
    OUT status text, OUT result bytea, OUT content_type text, OUT first_seen timestamptz, OUT attempt int)
LANGUAGE plpgsql AS $$
BEGIN
    IF lease IS NULL OR lease <= interval '0' THEN
        RAISE EXCEPTION 'hapax: lease must be longer than nothing, this one is %; nothing was applied',
            coalesce(lease::text, 'NULL') USING ERRCODE = 'HX003';
    END IF;
    SELECT * INTO status, result, content_type, first_seen, attempt
      FROM hapax.admit(reserve.scope, reserve.key, reserve.fingerprint, reserve.fence, reserve.owner, reserve.lease);
END
$$;

-- Locks the claim for the rest of the transaction and refuses the superseded and the absent. Internal.
CREATE OR REPLACE FUNCTION hapax.hold(verb text, scope text, key text, fence bigint) RETURNS hapax.entry
LANGUAGE plpgsql AS $$
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
    END IF;
    RETURN held;
END
$$;

CREATE OR REPLACE FUNCTION hapax.is_settled(e hapax.entry) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT e.state IN ('done', 'rejected')
        OR (e.state = 'claimed' AND NOT coalesce(hapax.is_ours(e.xact, e.since), false))
$$;

CREATE OR REPLACE FUNCTION hapax.commit_outcome(scope text, key text, result bytea DEFAULT NULL,
    content_type text DEFAULT NULL, effect_id text DEFAULT NULL, fence bigint DEFAULT NULL, state text DEFAULT 'done',
    OUT status text) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held hapax.entry;
BEGIN
    IF commit_outcome.state IS NULL OR commit_outcome.state NOT IN ('done', 'rejected') THEN
        RAISE EXCEPTION 'hapax: state must be done or rejected, not %; nothing was applied',
            coalesce(commit_outcome.state, 'NULL') USING ERRCODE = 'HX003';
    END IF;

    -- The common case, one statement: the claim is this transaction's own.
    UPDATE hapax.entry e
       SET state = commit_outcome.state::hapax.state, result = commit_outcome.result, content_type = commit_outcome.content_type,
           effect_id = commit_outcome.effect_id, fence = greatest(e.fence, commit_outcome.fence)
     WHERE e.scope = commit_outcome.scope COLLATE "C" AND e.key = commit_outcome.key COLLATE "C"
       AND e.state = 'claimed' AND hapax.is_ours(e.xact, e.since)
       AND (commit_outcome.fence < e.fence) IS NOT TRUE;
    status := 'committed';
    IF FOUND THEN
        RETURN;
    END IF;

    held := hapax.hold('commit_outcome', commit_outcome.scope, commit_outcome.key, commit_outcome.fence);
    IF hapax.is_settled(held) THEN
        status := 'duplicate';
        IF commit_outcome.effect_id IS DISTINCT FROM held.effect_id COLLATE "C" AND commit_outcome.effect_id IS NOT NULL THEN
            INSERT INTO hapax.extra_effect
            VALUES (commit_outcome.scope, commit_outcome.key, commit_outcome.effect_id, clock_timestamp())
            ON CONFLICT DO NOTHING;
        END IF;
        RETURN;
    END IF;
    UPDATE hapax.entry e
       SET state = commit_outcome.state::hapax.state, result = commit_outcome.result, content_type = commit_outcome.content_type,
           effect_id = commit_outcome.effect_id, fence = greatest(e.fence, commit_outcome.fence), unsure = false,
           xact = pg_current_xact_id(), since = clock_timestamp(), lease_until = NULL
     WHERE e.scope = commit_outcome.scope COLLATE "C" AND e.key = commit_outcome.key COLLATE "C";
END
$$;

CREATE OR REPLACE FUNCTION hapax.release(scope text, key text, fence bigint DEFAULT NULL, OUT status text) RETURNS text
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held hapax.entry := hapax.hold('release', release.scope, release.key, release.fence);
BEGIN
    IF hapax.is_settled(held) THEN
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

-- Insert-or-lose like claim, under the claim's row lock, so steps of one key come one after the other.
CREATE OR REPLACE FUNCTION hapax.step(scope text, key text, name text, OUT status text, INOUT result bytea DEFAULT NULL,
    fence bigint DEFAULT NULL)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held     hapax.entry := hapax.hold('step', step.scope, step.key, step.fence);
    recorded hapax.steps;
BEGIN
    PERFORM hapax.check_name('step name', step.name, 128);
    SELECT s.* INTO recorded FROM hapax.steps s
     WHERE s.scope = step.scope COLLATE "C" AND s.key = step.key COLLATE "C" AND s.name = step.name COLLATE "C";
    IF FOUND THEN
        status := 'duplicate';
        result := recorded.result;
        RETURN;
    END IF;
    IF hapax.is_settled(held) THEN
        RAISE EXCEPTION 'hapax: step % of %/%: the key is settled already; nothing was applied',
            step.name, step.scope, step.key USING ERRCODE = 'HX005';
    END IF;
    IF step.fence > held.fence OR (step.fence IS NOT NULL AND held.fence IS NULL) THEN
        UPDATE hapax.entry e SET fence = step.fence
         WHERE e.scope = step.scope COLLATE "C" AND e.key = step.key COLLATE "C";
    END IF;
    -- The row lock keeps rivals out; what an older snapshot could not see of them becomes 40001 here.
    INSERT INTO hapax.steps VALUES (step.scope, step.key, step.name, step.result, clock_timestamp()) ON CONFLICT DO NOTHING;
    status := 'new';
END
$$;

CREATE OR REPLACE FUNCTION hapax.expect(rows bigint, OUT status text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
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
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF older_than IS NULL THEN
        RAISE EXCEPTION 'hapax: stranded needs an age, not NULL; nothing was applied' USING ERRCODE = 'HX003';
    END IF;
    RETURN QUERY
        SELECT e.scope, e.key, e.owner, e.attempt, e.since FROM hapax.entry e
         WHERE e.lease_until IS NOT NULL AND e.since <= clock_timestamp() - older_than
         ORDER BY e.since;
END
$$;

-- One scope's share of a sweep. Whoever holds a row at the moment keeps it for the next sweep. Internal.
CREATE OR REPLACE FUNCTION hapax.sweep_scope(scope text, keep interval, batch bigint) RETURNS bigint
LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM hapax.entry WHERE ctid = ANY (ARRAY(
            SELECT e.ctid FROM hapax.entry e
             WHERE e.scope = sweep_scope.scope COLLATE "C" AND e.lease_until IS NULL
               AND e.since <= clock_timestamp() - keep AND e.since + keep <= clock_timestamp()
             ORDER BY e.since LIMIT batch FOR UPDATE SKIP LOCKED))
        RETURNING entry.scope, entry.key
    ), steps_gone AS (
        DELETE FROM hapax.steps s USING gone g WHERE s.scope = g.scope AND s.key = g.key
    ), effects_gone AS (
        DELETE FROM hapax.extra_effect x USING gone g WHERE x.scope = g.scope AND x.key = g.key
    )
    SELECT count(*) FROM gone
$$;

-- Returns the number of keys dropped: call again while it equals batch. Any number may run at once.
CREATE OR REPLACE FUNCTION hapax.sweep(batch int DEFAULT 10000, OUT dropped bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    s record;
BEGIN
    IF batch IS NULL OR batch < 1 THEN
        RAISE EXCEPTION 'hapax: batch must be at least 1, not %; nothing was applied', coalesce(batch::text, 'NULL')
            USING ERRCODE = 'HX003';
    END IF;
    dropped := 0;
    FOR s IN SELECT c.scope, c.keep FROM hapax.scope c WHERE c.keep IS NOT NULL ORDER BY random() LOOP
        EXIT WHEN dropped >= batch;
        dropped := dropped + hapax.sweep_scope(s.scope, s.keep, batch - dropped);
    END LOOP;

    -- Fold the counts: a row costs a fraction of a key's, hence the larger share. Totals in a rival's hands stay as they
    -- are, beside ours, until the next time.
    WITH fresh AS (
        DELETE FROM hapax.tally WHERE ctid = ANY (ARRAY(
            SELECT t.ctid FROM hapax.tally t LIMIT batch::bigint * 20 FOR UPDATE SKIP LOCKED))
        RETURNING tally.scope, tally.answer
    ), old AS (
        DELETE FROM hapax.total WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM hapax.total o FOR UPDATE SKIP LOCKED))
        RETURNING total.scope, total.answer, total.n
    )
    INSERT INTO hapax.total
    SELECT c.scope, c.answer, sum(c.n)
      FROM (SELECT f.scope, f.answer, 1 AS n FROM fresh f UNION ALL SELECT o.scope, o.answer, o.n FROM old o) c
     GROUP BY c.scope, c.answer;
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

COMMIT;
