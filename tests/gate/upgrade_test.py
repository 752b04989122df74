#!/usr/bin/env python3
"""A gate of version 1 with data in it, brought to this version: nothing is forgotten, nobody is locked out."""

import os

import harness
from harness import MIGRATIONS, V1, claim, equal, fresh_database, reserve, status, test

GRANTS_OF_V1 = """
GRANT USAGE ON SCHEMA hapax TO app, sweeper;
GRANT SELECT ON ALL TABLES IN SCHEMA hapax TO app, sweeper;
GRANT INSERT ON hapax.entry, hapax.steps, hapax.extra_effect, hapax.tally TO app;
GRANT UPDATE ON hapax.entry TO app, PUBLIC;
GRANT INSERT, UPDATE, DELETE ON hapax.scope TO app;
GRANT UPDATE, DELETE ON hapax.entry, hapax.steps, hapax.extra_effect, hapax.tally, hapax.total TO sweeper;
GRANT INSERT ON hapax.total TO sweeper;
"""


def v1(env, name):
    fresh_database(env, name)
    for role in ("app", "sweeper"):
        env.monitor.rows("DO $$ BEGIN CREATE ROLE %s LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$" % role)
    env.install(V1, database=name)
    s = env.session(database=name)
    s.rows(GRANTS_OF_V1)
    s.rows("BEGIN; SELECT hapax.claim('pay', 'done', 'f', 3); SELECT hapax.commit_outcome('pay', 'done', 'captured', 'text/plain', 'ch_1'); COMMIT")
    for _ in range(2):
        claim(s, "bare", scope="pay")
    for key in ("refused", "flying", "given back", "doubled"):
        reserve(s, key, scope="pay", fence=7, owner="w")
    s.rows("SELECT hapax.commit_outcome('pay', 'refused', 'no', fence => 7, state => 'rejected');"
           "SELECT hapax.step('pay', 'flying', 'debit', 'first', 7); SELECT hapax.release('pay', 'given back', 9)")
    for effect in ("e1", "e2"):
        s.rows("SELECT hapax.commit_outcome('pay', 'doubled', 'x', effect_id => '%s')" % effect)
    s.rows("INSERT INTO hapax.scope VALUES ('brief', '0'), ('pay', NULL)")
    # Sweeps at the same time leave two rows for one count.
    s.rows("SELECT hapax.sweep()")
    s.rows("INSERT INTO hapax.total SELECT scope, answer, 100 FROM hapax.total WHERE answer = 'duplicate'")
    claim(s, "counted later", scope="pay")
    return s


SEEN = ("SELECT (SELECT jsonb_agg(to_jsonb(k) ORDER BY k.key) FROM hapax.keys k),"
        " (SELECT jsonb_agg(to_jsonb(g) - 'oldest_in_flight_age' ORDER BY g.scope) FROM hapax.signals g)")


def newer_files():
    return sorted(os.path.join(MIGRATIONS, f) for f in os.listdir(MIGRATIONS) if f.endswith(".sql") and f > "0002")


@test
def an_upgrade_forgets_no_key_and_no_count(env):
    s = v1(env, "upgrade_data")
    before = s.rows(SEEN)
    env.install(*newer_files(), env.gate, database="upgrade_data")
    equal(s.rows(SEEN), before)
    equal(s.rows("SELECT status, convert_from(result, 'UTF8'), content_type FROM hapax.claim('pay', 'done', 'f')"),
          [("duplicate", "captured", "text/plain")])
    equal(status(claim(s, "done", scope="pay", fingerprint="g")), "conflict")
    equal(s.one("SELECT hapax.settled_as('pay', 'refused')"), "rejected")
    equal(status(reserve(s, "given back", scope="pay", fence=8)), "stale")
    equal(status(reserve(s, "flying", scope="pay", fence=7, owner="w")), "new", "its own, within the lease")
    equal(s.rows("SELECT * FROM hapax.step('pay', 'flying', 'debit', fence => 7)"), [("duplicate", r"\x6669727374")])
    equal(s.one("SELECT hapax.commit_outcome('pay', 'flying', 'r', fence => 7)"), "committed")
    equal(s.rows("SELECT n FROM hapax.total WHERE answer = 'duplicate'"), [("101",)])


@test
def applications_work_throughout_and_end_up_without_the_right_to_rewrite_keys(env):
    v1(env, "upgrade_rights")
    app, sweeper = env.session(database="upgrade_rights", user="app"), env.session(database="upgrade_rights", user="sweeper")
    equal(app.code("UPDATE hapax.entry SET owner = 'mine' WHERE key = 'bare'"), "00000", "version 1 let it")

    def works(n, whole):
        app.rows("BEGIN")
        equal(status(claim(app, "during %d" % n, scope="pay")), "new")
        app.rows("SELECT hapax.commit_outcome('pay', 'during %d', 'r'::bytea); COMMIT" % n)
        equal(status(reserve(app, "during %d r" % n, scope="brief", fence=1)), "new")
        equal(app.one("SELECT status FROM hapax.step('brief', 'during %d r', 's', fence => 1)" % n), "new")
        equal(app.one("SELECT hapax.commit_outcome('brief', 'during %d r', effect_id => 'e', fence => 1)" % n), "committed")
        app.rows("SELECT * FROM hapax.stranded('0'); SELECT * FROM hapax.signals; SELECT * FROM hapax.keys")
        equal(app.code("SELECT hapax.require_version(1)"), "00000" if whole else "HX006", "only between the two files it says no")
        equal(sweeper.one("SELECT hapax.sweep()"), "1")

    works(0, True)
    for n, step in enumerate([*newer_files(), env.gate], 1):
        env.install(step, database="upgrade_rights")
        works(n, step == env.gate)
        for table in ("entry", "steps", "extra_effect", "tally", "total"):
            for verb in ("DELETE FROM hapax.%s", "INSERT INTO hapax.%s DEFAULT VALUES"):
                for who in (app, sweeper):
                    equal(who.code(verb % table), "42501", verb % table)
        equal(app.code("UPDATE hapax.entry SET owner = 'mine'"), "42501")
        equal(app.code("SELECT hapax.sweep()"), "42501")
        equal(app.code("UPDATE hapax.scope SET keep = keep"), "00000", "windows are the user's own table")


@test
def a_migration_refuses_any_version_but_the_one_before(env):
    fresh_database(env, "upgrade_wrong")
    s = env.session(database="upgrade_wrong")

    def refused():
        done = env.server.psql("-v", "VERBOSITY=sqlstate", "-d", "upgrade_wrong", "-f", newer_files()[0])
        assert "HX006" in done.stdout, done.stdout

    refused()
    equal(s.one("SELECT to_regnamespace('hapax')"), None)
    env.install(env.gate, database="upgrade_wrong")
    refused()


@test
def an_index_whose_making_was_interrupted_is_not_taken_for_one(env):
    s = v1(env, "upgrade_cut")
    files = newer_files()
    env.install(*files[:-1], database="upgrade_cut")
    s.rows("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'hapax.entry_due'::regclass")
    done = env.server.psql("-v", "VERBOSITY=verbose", "-d", "upgrade_cut", "-f", files[-1])
    assert "HX006" in done.stdout and "DROP INDEX hapax.entry_due" in done.stdout, done.stdout
    equal(s.one("SELECT max(version) FROM hapax.schema_version"), "2")
    s.rows("DROP INDEX hapax.entry_due")
    env.install(files[1], files[-1], env.gate, database="upgrade_cut")
    equal(status(claim(s, "bare", scope="pay")), "duplicate")


harness.main()
