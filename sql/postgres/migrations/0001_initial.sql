-- Version 1: the tables of the gate. Frozen once released: a later change is a later migration.
-- How to add one: migrations/README.md.

BEGIN;
SET LOCAL client_min_messages = warning;

DO $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('hapax gate schema'));
    IF to_regclass('hapax.schema_version') IS NOT NULL THEN
        RAISE EXCEPTION 'hapax: migration 0001 is for an empty database, the gate is installed already; nothing was applied'
            USING ERRCODE = 'HX006';
    END IF;
END
$$;

CREATE SCHEMA IF NOT EXISTS hapax;

CREATE TABLE hapax.schema_version (
    version      int PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE hapax.scope (
    scope text COLLATE "C" PRIMARY KEY CHECK (length(scope) BETWEEN 1 AND 255),
    keep  interval CHECK (keep >= interval '0')
);

CREATE TYPE hapax.state AS ENUM ('claimed', 'in_flight', 'done', 'rejected', 'released');

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
COMMIT;
