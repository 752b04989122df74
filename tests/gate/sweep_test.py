#!/usr/bin/env python3
"""hapax.sweep: what it drops, what it leaves, what it reads meanwhile; and that no plan made for a small table stays."""

import re

import harness
from harness import claim, equal, expire, fresh_database, reserve, status, test


@test
def sweep_drops_what_is_past_its_window_and_nothing_else(env):
    s = env.session()
    for scope in ("short", "forever", "unset"):
        for key in ("done", "fresh", "flying", "given back"):
            reserve(s, key, scope=scope)
            s.rows("SELECT hapax.step('%s', '%s', 'a step')" % (scope, key))
        s.rows("SELECT hapax.commit_outcome('{0}', k, effect_id => 'e') FROM unnest('{{done,fresh}}'::text[]) k;"
               "SELECT hapax.commit_outcome('{0}', 'done', effect_id => 'other'); SELECT hapax.release('{0}', 'given back')"
               .format(scope))
        s.rows("UPDATE hapax.entry SET since = since - interval '2 days', lease_until = lease_until - interval '2 days'"
               " WHERE scope = '%s' AND key <> 'fresh'" % scope)
    s.rows("INSERT INTO hapax.scope VALUES ('short', '1 day'), ('forever', NULL)")
    equal(s.one("SELECT hapax.sweep()"), "2")
    left = s.rows("SELECT scope, string_agg(key, ',' ORDER BY key) FROM hapax.keys"
                  " WHERE scope IN ('short', 'forever', 'unset') GROUP BY scope ORDER BY scope")
    equal(left, [("forever", "done,flying,fresh,given back"), ("short", "flying,fresh"), ("unset", "done,flying,fresh,given back")])
    equal(s.one("SELECT count(*) FROM hapax.steps WHERE scope = 'short'"), "2")
    equal(s.one("SELECT count(*) FROM hapax.extra_effect WHERE scope = 'short'"), "0")
    equal(status(claim(s, "done", scope="short")), "new")
    s.rows("DELETE FROM hapax.scope WHERE scope IN ('short', 'forever')")


@test
def sweep_works_in_batches_and_passes_over_locked_rows(env):
    s, other = env.session(), env.session()
    s.rows("SELECT hapax.claim('batch', 'k' || i) FROM generate_series(1, 25) i")
    s.rows("INSERT INTO hapax.scope VALUES ('batch', '0')")
    other.rows("BEGIN; SELECT * FROM hapax.entry WHERE scope = 'batch' AND key = 'k7' FOR UPDATE")
    equal([s.one("SELECT hapax.sweep(10)") for _ in range(4)], ["10", "10", "4", "0"])
    other.rows("COMMIT")
    equal(s.one("SELECT hapax.sweep(10)"), "1")
    s.rows("DELETE FROM hapax.scope WHERE scope = 'batch'")


@test
def a_claim_racing_a_sweep_is_answered_not_lost(env):
    s, other = env.session(), env.session()
    claim(s, "swept", scope="sweeprace")
    s.rows("INSERT INTO hapax.scope VALUES ('sweeprace', '0')")
    s.rows("BEGIN; SELECT hapax.sweep()")
    other.send("SELECT status FROM hapax.claim('sweeprace', 'swept')")
    env.blocked(other)
    s.rows("COMMIT")
    answer = other.finish()[0][0]
    effects = {"new": 1, "duplicate": 0}[answer]
    equal(s.one("SELECT count(*) FROM hapax.entry WHERE scope = 'sweeprace'"), str(effects))
    s.rows("DELETE FROM hapax.scope WHERE scope = 'sweeprace'")


def fetched(s, table="entry"):
    """Rows of the table that have been read so far, by an index or without. Of transactions that were over a moment ago some may
    still be counted here: only the difference of two calls says something."""
    return int(s.one("SELECT coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0) FROM pg_stat_xact_user_tables"
                     " WHERE schemaname = 'hapax' AND relname = '%s'" % table))


def plans_of(s, statement):
    """The plans of everything that is run within the statement's functions."""
    s.rows("LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
           "SET auto_explain.log_level = notice")
    s.notices.clear()
    s.rows(statement)
    s.rows("SET auto_explain.log_min_duration = -1")
    return "\n".join(s.notices)


def scans(plans):
    """How tables of the gate are read: {("Index Scan", "entry"), ...}."""
    return set(re.findall(r"(\w+ Scan|\w+ Only Scan)(?: Backward)?(?: using \w+)? on (\w+)", plans))


@test
def sweep_reads_the_keys_that_are_due_and_no_others(env):
    s = env.session()
    s.rows("INSERT INTO hapax.entry (scope, key, state, xact, first_seen, since) SELECT 'due', 'k' || i, 'done', pg_current_xact_id(),"
           " now() - i * interval '1 minute', now() - i * interval '1 minute' FROM generate_series(1, 5000) i")
    s.rows("INSERT INTO hapax.scope VALUES ('due', '4980 minutes 30 seconds')")  # all but the last 20
    s.rows("BEGIN")
    before = fetched(s)
    equal(s.one("SELECT hapax.sweep()"), "20")
    read = fetched(s) - before
    s.rows("COMMIT")
    assert read <= 100, "%d rows were read to drop 20" % read
    s.rows("BEGIN")
    before = fetched(s)
    equal(s.one("SELECT hapax.sweep()"), "0")
    read = fetched(s) - before
    s.rows("COMMIT; DELETE FROM hapax.scope WHERE scope = 'due'")
    assert read <= 20, "%d rows were read to drop none" % read


@test
def stranded_reads_the_reservations_that_are_old_and_no_others(env):
    s = env.session()
    s.rows("SELECT hapax.reserve('young', 'k' || i) FROM generate_series(1, 5000) i")
    reserve(s, "old", scope="young")
    expire(s, "old", scope="young")
    s.rows("ANALYZE hapax.entry")  # or the plan depends on what ran before
    s.rows("BEGIN")
    before = fetched(s)
    equal(s.rows("SELECT key FROM hapax.stranded('30 minutes') WHERE scope = 'young'"), [("old",)])
    read = fetched(s) - before
    s.rows("COMMIT")
    assert read <= 50, "%d rows were read to find one" % read


@test
def a_plan_made_while_the_tables_were_empty_is_good_when_they_are_full(env):
    fresh_database(env, "planned")
    env.install(env.gate, database="planned")
    s = env.session(database="planned")
    s.rows("INSERT INTO hapax.scope VALUES ('t', '0')")
    # Vacuumed, analysed and of one page: here reading the whole table looks cheapest, and plans are kept.
    claim(s, "first")
    for table in ("entry", "steps", "extra_effect"):
        s.rows("VACUUM ANALYZE hapax." + table)
    work = ("SELECT hapax.claim('t', '{0}', fence => 1); SELECT hapax.reserve('t', '{0} r', owner => 'a'); SELECT hapax.reserve('t', '{0} r');"
            "SELECT hapax.step('t', '{0} r', 'one'); SELECT hapax.commit_outcome('t', '{0} r', 'x'); SELECT hapax.commit_outcome('t', '{0}');"
            "SELECT hapax.settled_as('t', '{0}'); SELECT hapax.reserve('t', '{0} back'); SELECT hapax.release('t', '{0} back');"
            "SELECT hapax.stranded('1 hour'); SELECT hapax.claim('t', 'first'); SELECT hapax.sweep()")
    for n in range(8):  # beyond five times PostgreSQL settles on a plan
        s.rows(work.format(n))
    s.rows("INSERT INTO hapax.entry (scope, key, state, xact, first_seen, since) SELECT 't', 'full ' || i, 'done', pg_current_xact_id(),"
           " now(), now() FROM generate_series(1, 20000) i;"
           "INSERT INTO hapax.steps SELECT 't', 'full ' || i, 'one', NULL, now() FROM generate_series(1, 20000) i")
    plans = plans_of(s, work.format("last"))
    equal({scan for scan in scans(plans) if scan[1] in ("entry", "steps", "extra_effect") and scan[0] not in ("Index Scan", "Tid Scan")}, set())
    for table in ("entry", "steps"):
        assert ("Index Scan", table) in scans(plans), plans
    # No loop of one table over the other: each key's steps are found by the key.
    assert "Nested Loop" not in plans and "CTE Scan on gone" not in plans.split("DELETE FROM hapax.steps")[-1], plans
    assert "entry_due" in plans and "entry_pkey" in plans, plans


@test
def a_plan_made_for_a_few_keys_still_looks_up_one_key_when_there_are_many(env):
    fresh_database(env, "few")
    env.install(env.gate, database="few")
    s = env.session(database="few")
    # Keys so long that their index grows a level before that of the windows does: now both find "one row", and the latter cheaper.
    key = "x" * 200 + " %d"
    repeat = "SELECT hapax.claim('t', '{0}'); SELECT hapax.settled_as('t', '{0}'); SELECT hapax.commit_outcome('t', '{0}')".format(key % 0)
    for n in range(120):
        s.rows("BEGIN; SELECT hapax.claim('t', '{0}'); SELECT hapax.commit_outcome('t', '{0}'); COMMIT; {1}".format(key % n, repeat))
    s.rows("INSERT INTO hapax.entry (scope, key, state, xact, first_seen, since) SELECT 't', 'full ' || i, 'done', pg_current_xact_id(),"
           " now(), now() FROM generate_series(1, 20000) i")
    s.rows("BEGIN")
    before = fetched(s)
    s.rows(repeat)
    read = fetched(s) - before
    s.rows("COMMIT")
    assert read <= 20, "%d rows were read to find one" % read


@test
def one_sweep_folds_every_count_there_is(env):
    s = env.session()
    for _ in range(50):
        claim(s, "counted", scope="fold")
    equal(s.one("SELECT count(*) >= 50 FROM hapax.tally"), "t")
    s.rows("SELECT hapax.sweep(1)")
    equal(s.one("SELECT count(*) FROM hapax.tally"), "0")
    equal(s.rows("SELECT answer, n FROM hapax.total WHERE scope = 'fold' ORDER BY answer"), [("duplicate", "49"), ("new", "1")])


@test
def sweeps_beside_each_other_count_everything_once_and_do_not_wait(env):
    a, b = env.session(), env.session()
    for _ in range(10):
        claim(a, "twice", scope="fold2")
    a.rows("BEGIN; SELECT hapax.sweep()")
    claim(b, "twice", scope="fold2")
    b.send("SELECT hapax.sweep()")
    assert not env.blocked(b), "a sweep waits for another"
    b.finish()
    a.rows("COMMIT")
    b.rows("SELECT hapax.sweep()")
    equal(b.rows("SELECT claims, duplicates FROM hapax.signals WHERE scope = 'fold2'"), [("11", "10")])


@test
def sweep_works_where_all_tables_are_published(env):
    s = env.session()
    s.rows("SET client_min_messages = error; CREATE PUBLICATION everything FOR ALL TABLES")
    reserve(s, "published", scope="pub")
    s.rows("SELECT hapax.step('pub', 'published', 'one')")
    for effect in ("e1", "e2"):
        s.rows("SELECT hapax.commit_outcome('pub', 'published', 'r', effect_id => '%s')" % effect)
    s.rows("INSERT INTO hapax.scope VALUES ('pub', '0')")
    for _ in range(2):
        equal(s.code("SELECT hapax.sweep()"), "00000")
    equal(s.rows("SELECT key FROM hapax.keys WHERE scope = 'pub'"), [])
    equal(s.rows("SELECT 1 FROM hapax.extra_effect WHERE scope = 'pub'"), [])
    s.rows("DROP PUBLICATION everything; DELETE FROM hapax.scope WHERE scope = 'pub'")


@test
def a_window_beyond_the_calendar_keeps_its_keys_and_stops_nobody_elses_sweep(env):
    s = env.session()
    for scope in ("ages", "moment"):
        claim(s, "k", scope=scope)
    s.rows("INSERT INTO hapax.scope VALUES ('ages', '170000 years'), ('moment', '0')")
    equal(s.one("SELECT hapax.sweep()"), "1")
    equal((status(claim(s, "k", scope="ages")), status(claim(s, "k", scope="moment"))), ("duplicate", "new"))
    s.rows("DELETE FROM hapax.scope WHERE scope IN ('ages', 'moment')")


harness.main()
