#!/usr/bin/env python3
"""Bad input and bad circumstances: each a clear SQLSTATE, and nothing applied."""

import harness
import pg
from harness import ROOT, claim, equal, fresh_database, reserve, status, test


@test
def names_must_have_1_to_255_characters(env):
    s = env.session()
    calls = ["hapax.claim({scope}, {key})", "hapax.reserve({scope}, {key})", "hapax.commit_outcome({scope}, {key})",
             "hapax.release({scope}, {key})", "hapax.step({scope}, {key}, 'n')"]
    bad = ["NULL", "''", "repeat('k', 256)", "repeat('k', 300)", "repeat('ä', 256)"]
    for call in calls:
        for name in bad:
            equal(s.code("SELECT " + call.format(scope="'t'", key=name)), "HX003", call + name)
            equal(s.code("SELECT " + call.format(scope=name, key="'k'")), "HX003", call + name)
    reserve(s, "named")
    for name in bad + ["repeat('n', 129)"]:
        equal(s.code("SELECT hapax.step('t', 'named', %s)" % name), "HX003", name)


@test
def the_longest_names_fit_the_index_in_any_script(env):
    s = env.session()
    for letter in ("k", "ä", "😀"):
        longest = letter * 255
        equal([status(claim(s, longest, scope=longest)) for _ in range(2)], ["new", "duplicate"])
        equal(status(reserve(s, longest, scope="steps")), "new")
        equal(s.one("SELECT status FROM hapax.step('steps', '%s', '%s')" % (longest, letter * 128)), "new")
        s.rows("SELECT hapax.commit_outcome('steps', '{0}', effect_id => e) FROM unnest(ARRAY['{0}', '{0}{0}{0}']) e".format(longest))
    equal(s.one("SELECT keys_with_several_effects FROM hapax.signals WHERE scope = 'steps'"), "3")


@test
def impossible_arguments_are_refused(env):
    s = env.session()
    for call in ("reserve('t', 'k', lease => NULL)", "reserve('t', 'k', lease => '0')", "reserve('t', 'k', lease => '-1 hour')",
                 "commit_outcome('t', 'k', state => 'maybe')", "commit_outcome('t', 'k', state => NULL)", "sweep(0)", "sweep(NULL)",
                 "stranded(NULL)"):
        equal(s.code("SELECT hapax." + call), "HX003", call)
    equal(s.code("INSERT INTO hapax.scope VALUES ('t', '-1 day')"), "23514")


@test
def every_own_error_says_whether_anything_was_applied(env):
    s = env.session()
    reserve(s, "messages", fence=5)
    for call in ("commit_outcome('t', 'messages', fence => 4)", "commit_outcome('t', 'no such')", "claim('t', NULL)", "expect(2)",
                 "require_version(77)", "reserve('t', 'k', lease => NULL)", "sweep(0)", "stranded(NULL)"):
        try:
            s.rows("SELECT hapax." + call)
            raise AssertionError(call + " was accepted")
        except pg.SqlError as e:
            assert e.code.startswith("HX") and e.message.endswith("nothing was applied"), (call, e.code, e.message)


@test
def outside_a_transaction_block_each_call_is_its_own_transaction(env):
    s, other = env.session(), env.session()
    equal(status(claim(s, "autocommit")), "new")
    equal(status(claim(other, "autocommit")), "duplicate")
    equal(status(reserve(s, "autocommit2", owner="a")), "new")
    equal(other.one("SELECT hapax.commit_outcome('t', 'autocommit2', 'r')"), "committed")


@test
def an_aborted_transaction_claims_nothing(env):
    s, other = env.session(), env.session()
    s.rows("BEGIN")
    equal(status(claim(s, "aborted")), "new")
    equal(s.code("SELECT 1 / 0"), "22012")
    equal(s.code("SELECT hapax.claim('t', 'aborted')"), "25P02")
    s.rows("COMMIT")
    equal(status(claim(other, "aborted")), "new")


@test
def a_lost_connection_gives_the_key_back(env):
    s, other = env.session(), env.session()
    s.rows("BEGIN")
    equal(status(claim(s, "cut")), "new")
    other.send("SELECT status FROM hapax.claim('t', 'cut')")
    assert env.blocked(other)
    s.drop()
    equal(other.finish(), [("new",)])


@test
def a_wait_obeys_lock_timeout_and_leaves_nothing(env):
    holder, waiter = env.session(), env.session()
    holder.rows("BEGIN; SELECT hapax.claim('t', 'slow')")
    reserve(waiter, "slow2", fence=1)
    holder.rows("SELECT hapax.commit_outcome('t', 'slow2', fence => 1)")
    waiter.rows("SET lock_timeout = '50ms'")
    for call in ("claim('t', 'slow')", "reserve('t', 'slow')", "reserve('t', 'slow2', fence => 2)", "commit_outcome('t', 'slow2')",
                 "step('t', 'slow2', 'a')", "release('t', 'slow2')"):
        equal(waiter.code("SELECT hapax." + call), "55P03", call)
    holder.rows("ROLLBACK")
    equal(status(claim(waiter, "slow")), "new")


@test
def crossing_claims_are_a_deadlock_one_of_the_two_survives(env):
    a, b = env.session(), env.session()
    a.rows("BEGIN; SELECT hapax.claim('t', 'x')")
    b.rows("BEGIN; SELECT hapax.claim('t', 'y')")
    a.send("SELECT status FROM hapax.claim('t', 'y')")
    assert env.blocked(a)
    b.send("SELECT status FROM hapax.claim('t', 'x')")
    outcomes = []
    for s in (a, b):
        try:
            outcomes.append(s.finish()[0][0])
            s.rows("COMMIT")
        except pg.SqlError as e:
            outcomes.append(e.code)
            s.rows("ROLLBACK")
    equal(sorted(outcomes), ["40P01", "new"])


@test
def a_read_only_transaction_is_told_so(env):
    s = env.session()
    s.rows("BEGIN READ ONLY")
    equal(s.code("SELECT hapax.claim('t', 'readonly')"), "25006")
    s.rows("ROLLBACK")


@test
def arguments_of_any_collation_and_string_type_find_the_same_key(env):
    s = env.session()
    s.rows('CREATE TEMP TABLE odd (a varchar(40) COLLATE "POSIX", b char(3), c text COLLATE "ucs_basic")')
    s.rows("INSERT INTO odd VALUES ('Straße', 'abc', 'Straße')")
    equal(status(claim(s, "Straße", scope="abc")), "new")
    equal(s.rows("SELECT (hapax.claim(b, a)).status, (hapax.claim(b, c)).status FROM odd"), [("duplicate", "duplicate")])
    equal(status(claim(s, "strasse", scope="abc")), "new")
    equal(s.rows("SELECT (hapax.reserve('abc', a, owner => c)).status FROM odd"), [("duplicate",)])
    equal(s.rows("SELECT hapax.commit_outcome(b, a, effect_id => c) FROM odd"), [("duplicate",)])
    equal(s.rows("SELECT (hapax.reserve('abc', 'o' || a, owner => c)).status FROM odd"), [("new",)])
    equal(s.rows("SELECT (hapax.reserve('abc', 'o' || a, owner => a)).status FROM odd"), [("new",)])


harness.main()
