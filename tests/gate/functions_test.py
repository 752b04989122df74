#!/usr/bin/env python3
"""Every function of the gate and the order of its answers, one or two sessions at a time."""

import os
import re

import harness
import pg
from harness import MIGRATIONS, ROOT, Skip, UNINSTALL, claim, dump, equal, expire, fresh_database, reserve, status, test

TABLES = ("entry", "steps", "extra_effect", "tally", "total")


@test
def installing_again_changes_nothing_and_keeps_the_keys(env):
    s = env.session()
    claim(s, "kept")
    before = dump(env, "postgres")
    env.install(env.gate)
    equal(dump(env, "postgres"), before)
    equal(status(claim(s, "kept")), "duplicate")


@test
def installing_again_does_not_wait_for_open_claims(env):
    s = env.session()
    s.rows("BEGIN; SELECT hapax.claim('t', 'open'); SELECT hapax.commit_outcome('t', 'open')")
    env.server.psql("-c", "ALTER DATABASE postgres SET lock_timeout = '1s'")
    env.install(env.gate)
    env.server.psql("-c", "ALTER DATABASE postgres RESET lock_timeout")
    s.rows("COMMIT")


@test
def migrations_and_the_whole_file_make_the_same_schema(env):
    fresh_database(env, "migrated")
    steps = sorted(os.path.join(MIGRATIONS, f) for f in os.listdir(MIGRATIONS) if f.endswith(".sql"))
    env.install(*steps, env.gate, database="migrated")
    equal(dump(env, "migrated"), dump(env, "postgres"))


@test
def a_wrong_schema_version_is_refused_before_anything_is_changed(env):
    fresh_database(env, "versions")
    env.install(env.gate, database="versions")
    s = env.session(database="versions")
    equal([s.code("SELECT hapax.require_version(%d)" % n) for n in range(5)], ["HX006", "00000", "00000", "00000", "HX006"])
    equal(s.code("SELECT hapax.require_version(NULL)"), "HX006")
    for version in (0, 99):
        s.rows("DELETE FROM hapax.schema_version; INSERT INTO hapax.schema_version VALUES (%d)" % version)
        before = dump(env, "versions")
        # Without ON_ERROR_STOP on purpose: the file must protect itself.
        done = env.server.psql("-v", "VERBOSITY=sqlstate", "-d", "versions", "-f", env.gate)
        assert "HX006" in done.stdout, done.stdout
        equal(dump(env, "versions"), before)


@test
def uninstall_leaves_nothing_and_refuses_while_work_is_in_flight(env):
    fresh_database(env, "leaving")
    env.install(env.gate, database="leaving")
    s = env.session(database="leaving")
    reserve(s, "flying")
    done = env.server.psql("-v", "VERBOSITY=sqlstate", "-d", "leaving", "-f", UNINSTALL)
    assert "HX007" in done.stdout, done.stdout
    equal(status(reserve(s, "flying")), "in_flight")
    s.rows("SELECT hapax.release('t', 'flying')")
    s.rows("CREATE VIEW mine AS SELECT * FROM hapax.signals")
    assert env.server.psql("-v", "ON_ERROR_STOP=1", "-d", "leaving", "-f", UNINSTALL).returncode != 0
    equal(status(claim(s, "still here")), "new")
    s.rows("DROP VIEW mine")
    env.install(UNINSTALL, database="leaving")
    equal(s.one("SELECT count(*) FROM pg_namespace WHERE nspname = 'hapax'"), "0")
    env.install(UNINSTALL, database="leaving")
    env.install(env.gate, database="leaving")
    equal(status(claim(s, "still here")), "new")


@test
def a_committed_claim_is_a_duplicate_with_its_stored_answer_byte_for_byte(env):
    s = env.session()
    first = s.rows("BEGIN; SELECT * FROM hapax.claim('t', 'bytes')")[0]
    equal((first[0], first[1], first[2], first[4]), ("new", None, None, "1"))
    equal(s.one(r"SELECT hapax.commit_outcome('t', 'bytes', '\x00ff0a27', 'application/x-odd')"), "committed")
    s.rows("COMMIT")
    equal(claim(s, "bytes"), ("duplicate", r"\x00ff0a27", "application/x-odd", first[3], "1"))
    equal(reserve(s, "bytes"), ("duplicate", r"\x00ff0a27", "application/x-odd", first[3], "1"))


@test
def a_rolled_back_claim_leaves_no_trace(env):
    s = env.session()
    counts = "SELECT " + ", ".join("(SELECT count(*) FROM hapax.%s)" % t for t in TABLES)
    before = s.rows(counts)
    s.rows("BEGIN")
    equal(status(claim(s, "undone")), "new")
    s.rows("SELECT hapax.step('t', 'undone', 'one'); SELECT hapax.commit_outcome('t', 'undone', 'x')")
    s.rows("ROLLBACK")
    equal(s.rows(counts), before)
    equal(status(claim(s, "undone")), "new")


@test
def claiming_again_in_the_same_transaction_is_new_again_until_the_outcome_is_committed(env):
    s = env.session()
    s.rows("BEGIN")
    answers = [status(claim(s, "again")), status(claim(s, "again"))]
    s.rows("SAVEPOINT a")
    answers.append(status(claim(s, "again")))
    s.rows("RELEASE SAVEPOINT a")
    answers += [s.one("SELECT hapax.commit_outcome('t', 'again', 'r')"), s.one("SELECT hapax.commit_outcome('t', 'again', 'q')")]
    answers.append(claim(s, "again")[:2])
    s.rows("COMMIT")
    equal(answers, ["new", "new", "new", "committed", "duplicate", ("duplicate", r"\x72")])
    equal(claim(s, "again")[:2], ("duplicate", r"\x72"))


@test
def savepoints_neither_hide_nor_keep_a_claim(env):
    s = env.session()
    s.rows("BEGIN; SAVEPOINT a")
    equal(status(claim(s, "sub")), "new")
    s.rows("RELEASE SAVEPOINT a")
    equal(status(claim(s, "sub")), "new", "claimed in a released savepoint")
    s.rows("SAVEPOINT b")
    equal(status(claim(s, "sub2")), "new")
    s.rows("ROLLBACK TO SAVEPOINT b; COMMIT")
    equal((status(claim(s, "sub")), status(claim(s, "sub2"))), ("duplicate", "new"))


@test
def a_restored_row_with_this_transactions_number_is_not_taken_for_its_own(env):
    s = env.session()
    claim(s, "restored")
    s.rows("BEGIN; UPDATE hapax.entry SET xact = pg_current_xact_id() WHERE key = 'restored'")
    equal(status(claim(s, "restored")), "duplicate")
    s.rows("ROLLBACK")


@test
def answers_come_in_the_contracts_order(env):
    s = env.session()
    s.rows("BEGIN; SELECT hapax.claim('t', 'order', 'f1', 10); SELECT hapax.commit_outcome('t', 'order', 'r'); COMMIT")
    equal(claim(s, "order", fingerprint="f2", fence=5)[:2], ("conflict", None), "conflict before duplicate and stale")
    equal(claim(s, "order", fingerprint="f1", fence=5)[:2], ("duplicate", r"\x72"), "duplicate before stale")
    reserve(s, "order2", fingerprint="f1", fence=10, owner="a")
    equal(status(reserve(s, "order2", fingerprint="f2", fence=5, owner="b")), "conflict", "conflict before stale")
    equal(status(reserve(s, "order2", fingerprint="f1", fence=5, owner="b")), "stale", "stale before in_flight")
    expire(s, "order2")
    equal(status(reserve(s, "order2", fingerprint="f1", fence=5, owner="b")), "stale", "stale before unknown")
    s.rows("SELECT hapax.release('t', 'order2', 10)")
    equal(status(claim(s, "order2", fence=9)), "stale", "stale before new")
    s.rows("BEGIN; SELECT hapax.claim('t', 'order3', 'f1', 7)")
    equal(status(claim(s, "order3", fingerprint="f2")), "conflict", "conflict before new again")
    equal(status(claim(s, "order3", fence=6)), "stale", "stale before new again")
    s.rows("ROLLBACK")


@test
def a_fingerprint_that_is_not_given_matches_any(env):
    s = env.session()
    claim(s, "fp", fingerprint="f1")
    claim(s, "nofp")
    equal(status(claim(s, "fp")), "duplicate")
    equal(status(claim(s, "nofp", fingerprint="f1")), "duplicate")
    equal(status(claim(s, "fp", fingerprint="")), "conflict", "empty is a fingerprint")


@test
def a_live_reservation_is_in_flight_for_others_and_new_for_its_maker(env):
    s = env.session()
    equal(status(reserve(s, "res", fence=5, owner="a")), "new")
    equal(status(reserve(s, "res", fence=5, owner="b")), "in_flight")
    equal(status(reserve(s, "res", owner="a")), "in_flight")
    equal(status(claim(s, "res", owner="b")), "in_flight")
    again = reserve(s, "res", fence=5, owner="a")
    equal((again[0], again[4]), ("new", "1"), "a lost COMMIT reply")


@test
def a_reservation_without_owner_and_fence_belongs_to_nobody_after_its_commit(env):
    s = env.session()
    s.rows("BEGIN")
    equal((status(reserve(s, "anon")), status(reserve(s, "anon"))), ("new", "new"))
    s.rows("COMMIT")
    equal(status(reserve(s, "anon")), "in_flight")


@test
def a_reservation_whose_lease_ran_out_is_unknown_and_changes_hands(env):
    s = env.session()
    reserve(s, "lease", owner="a")
    expire(s, "lease")
    taken = reserve(s, "lease", owner="b")
    equal((taken[0], taken[4]), ("unknown", "2"))
    equal(status(reserve(s, "lease", owner="a")), "in_flight", "b has it now")
    equal(s.rows("SELECT owner, unsure FROM hapax.keys WHERE key = 'lease'"), [("b", "t")])


@test
def ones_own_reservation_is_unknown_too_once_its_lease_ran_out(env):
    s = env.session()
    reserve(s, "own", fence=1, owner="a")
    expire(s, "own")
    equal(status(reserve(s, "own", fence=1, owner="a")), "unknown")


@test
def a_higher_fence_takes_a_live_reservation_over_as_unknown(env):
    s = env.session()
    reserve(s, "higher", fence=5, owner="a")
    equal(status(reserve(s, "higher", fence=6, owner="b")), "unknown")
    equal(status(reserve(s, "higher", fence=5, owner="a")), "stale")


@test
def unknown_stays_unknown_when_the_take_over_is_asked_again(env):
    s = env.session()
    reserve(s, "doubt", fence=5, owner="a")
    s.rows("BEGIN")
    equal([status(reserve(s, "doubt", fence=6, owner="b")) for _ in range(2)], ["unknown"] * 2, "in its transaction")
    s.rows("COMMIT")
    equal(status(reserve(s, "doubt", fence=6, owner="b")), "unknown", "after a lost COMMIT reply")
    s.rows("SELECT hapax.release('t', 'doubt', 6)")
    equal(status(reserve(s, "doubt", fence=6, owner="b")), "new", "once somebody said it did not happen")


@test
def claim_of_an_abandoned_reservation_is_unknown_and_its_commit_does_not_settle_it(env):
    s = env.session()
    reserve(s, "mixed", owner="a")
    expire(s, "mixed")
    equal(status(claim(s, "mixed", owner="b")), "unknown")
    equal(s.one("SELECT state FROM hapax.keys WHERE key = 'mixed'"), "in_flight")
    equal(s.one("SELECT hapax.commit_outcome('t', 'mixed', 'found')"), "committed")
    equal(claim(s, "mixed")[:2], ("duplicate", r"\x666f756e64"))


@test
def commit_outcome_settles_once_and_says_which_call_it_was(env):
    s = env.session()
    equal(s.code("SELECT hapax.commit_outcome('t', 'never')"), "HX002")
    reserve(s, "settle", owner="a", fence=3)
    equal(s.one("SELECT status FROM hapax.commit_outcome('t', 'settle', 'one', 'text/plain', 'e1', 3, 'rejected')"), "committed")
    equal(s.one("SELECT hapax.commit_outcome('t', 'settle', 'two', NULL, 'e1', 3)"), "duplicate")
    equal(s.rows("SELECT state, result, content_type, effect_ids, lease_until FROM hapax.keys WHERE key = 'settle'"),
          [("rejected", r"\x6f6e65", "text/plain", "{e1}", None)])
    claim(s, "auto")
    equal(s.one("SELECT hapax.commit_outcome('t', 'auto', 'late')"), "duplicate", "the claim's commit settled it")
    equal(s.one("SELECT hapax.release('t', 'auto')"), "duplicate", "settled work cannot be given back")


@test
def a_reservation_whose_lease_ran_out_still_settles_while_nobody_took_it(env):
    s = env.session()
    reserve(s, "late", owner="a", fence=3)
    expire(s, "late")
    equal(s.one("SELECT hapax.commit_outcome('t', 'late', 'r', fence => 3)"), "committed")


@test
def a_lower_fence_cannot_commit_step_or_release_even_after_settlement(env):
    s = env.session()
    reserve(s, "fence", fence=5, owner="a")
    reserve(s, "fence", fence=6, owner="b")
    refused = ["SELECT hapax.commit_outcome('t', 'fence', 'zombie', fence => 5)", "SELECT hapax.step('t', 'fence', 's', fence => 5)",
               "SELECT hapax.release('t', 'fence', 5)"]
    equal([s.code(q) for q in refused], ["HX001"] * 3)
    s.rows("SELECT hapax.commit_outcome('t', 'fence', 'b', fence => 6)")
    equal([s.code(q) for q in refused], ["HX001"] * 3)


@test
def a_lower_fence_cannot_commit_in_its_own_transaction_either(env):
    s = env.session()
    s.rows("BEGIN; SELECT hapax.claim('t', 'ownfence', fence => 5)")
    equal(s.code("SELECT hapax.commit_outcome('t', 'ownfence', fence => 4)"), "HX001")
    s.rows("ROLLBACK")


@test
def leases_are_judged_by_the_clock_of_the_answer_not_of_the_transaction(env):
    s, other = env.session(), env.session()
    s.rows("BEGIN; SELECT 1")
    reserve(other, "clock", owner="a", lease="20 milliseconds")
    s.rows("SELECT pg_sleep(0.03)")
    equal(status(reserve(s, "clock", owner="b")), "unknown")
    s.rows("COMMIT")


@test
def a_key_in_another_case_or_scope_is_another_key(env):
    s = env.session()
    equal([status(claim(s, "Case")), status(claim(s, "case")), status(claim(s, "Case", scope="T"))], ["new"] * 3)
    reserve(s, "Reserved")
    equal(s.code("SELECT hapax.commit_outcome('t', 'reserved')"), "HX002")


@test
def release_makes_the_key_new_and_remembers_the_highest_fence(env):
    s = env.session()
    equal(s.code("SELECT hapax.release('t', 'nothing')"), "HX002")
    reserve(s, "rel", fence=5, owner="a", fingerprint="f1")
    equal([s.one("SELECT hapax.release('t', 'rel', 7)") for _ in range(2)], ["released"] * 2)
    equal(s.code("SELECT hapax.commit_outcome('t', 'rel', fence => 7)"), "HX002", "released is no claim")
    equal(status(reserve(s, "rel", fence=6, owner="b")), "stale")
    taken = reserve(s, "rel", fence=7, owner="b", fingerprint="f2")
    equal((taken[0], taken[4]), ("new", "2"))
    s.rows("BEGIN; SELECT hapax.claim('t', 'rel2'); SELECT hapax.release('t', 'rel2'); COMMIT")
    equal(status(claim(s, "rel2")), "new", "a claim given back in its own transaction")


@test
def steps_are_recorded_once_and_skipped_on_retry(env):
    s = env.session()
    equal(s.code("SELECT hapax.step('t', 'stepped', 'debit')"), "HX002")
    reserve(s, "stepped", fence=1, owner="a")
    equal(s.rows("SELECT * FROM hapax.step('t', 'stepped', 'debit', 'r1', 1)"), [("new", r"\x7231")])
    equal(s.rows("SELECT * FROM hapax.step('t', 'stepped', 'debit', 'r2', 1)"), [("duplicate", r"\x7231")])
    reserve(s, "stepped", fence=2, owner="b")
    equal(s.rows("SELECT status, result FROM hapax.step('t', 'stepped', 'debit', fence => 2)"), [("duplicate", r"\x7231")])
    equal(s.rows("SELECT * FROM hapax.step('t', 'stepped', 'credit', NULL, 9)"), [("new", None)])
    equal(s.code("SELECT hapax.commit_outcome('t', 'stepped', fence => 8)"), "HX001", "a step's fence is a fence seen")
    s.rows("SELECT hapax.commit_outcome('t', 'stepped', fence => 9)")
    equal(s.code("SELECT hapax.step('t', 'stepped', 'third', fence => 9)"), "HX005")
    equal(s.one("SELECT status FROM hapax.step('t', 'stepped', 'credit', fence => 9)"), "duplicate")
    equal(s.one("SELECT steps FROM hapax.keys WHERE key = 'stepped'"), "{debit,credit}")


@test
def racing_steps_are_recorded_once_at_every_level(env):
    for level, wanted in (("READ COMMITTED", "duplicate"), ("REPEATABLE READ", "40001"), ("SERIALIZABLE", "40001")):
        a, b = env.session(), env.session()
        reserve(a, "steprace " + level, fence=1)
        for s in (a, b):
            s.rows("BEGIN ISOLATION LEVEL %s; SELECT 1 FROM hapax.steps" % level)
        step = "SELECT status FROM hapax.step('t', 'steprace %s', 'one', fence => 1)" % level
        equal(a.one(step), "new")
        b.send(step)
        assert env.blocked(b)
        a.rows("COMMIT")
        try:
            answer = b.finish()[0][0]
        except pg.SqlError as e:
            answer = e.code
        equal(answer, wanted, level)
        b.rows("ROLLBACK")


@test
def a_step_can_be_asked_for_without_recording_it(env):
    s, other = env.session(), env.session()
    equal(s.code("SELECT hapax.step('t', 'asked', 'debit', record => false)"), "HX002")
    reserve(s, "asked", fence=1, owner="a")
    ask = "SELECT * FROM hapax.step('t', 'asked', 'debit', fence => 1, record => false)"
    equal([s.rows(ask) for _ in range(2)], [[("new", None)]] * 2)
    equal(s.one("SELECT count(*) FROM hapax.steps WHERE key = 'asked'"), "0")
    # Whoever asks first does it first: until his transaction ends, nobody else gets an answer.
    s.rows("BEGIN")
    equal(s.rows(ask), [("new", None)])
    other.send(ask)
    assert env.blocked(other)
    s.rows("SELECT hapax.step('t', 'asked', 'debit', 'r1', 1); COMMIT")
    equal(other.finish(), [("duplicate", r"\x7231")])
    equal(s.code("SELECT hapax.step('t', 'asked', 'debit', fence => 0, record => false)"), "HX001")
    s.rows("SELECT hapax.commit_outcome('t', 'asked', fence => 1)")
    equal(s.rows(ask), [("duplicate", r"\x7231")])
    equal(s.code("SELECT hapax.step('t', 'asked', 'credit', record => false)"), "HX005")


@test
def results_may_be_given_as_text_and_come_back_as_its_bytes(env):
    s = env.session()
    s.rows("CREATE TEMP TABLE answer (body text); INSERT INTO answer VALUES (E'{\"grün\": \"a\\\\n\"}')")
    reserve(s, "text")
    equal(s.one("SELECT hapax.commit_outcome('t', 'text', a.body, 'application/json') FROM answer a"), "committed")
    equal(s.one("SELECT convert_from(result, 'UTF8') = (SELECT body FROM answer) FROM hapax.claim('t', 'text')"), "t")
    reserve(s, "stepped text")
    equal(s.one("SELECT (hapax.step('t', 'stepped text', 'one', a.body)).status FROM answer a"), "new")
    equal(s.one("SELECT convert_from(result, 'UTF8') = (SELECT body FROM answer) FROM hapax.step('t', 'stepped text', 'one')"), "t")


@test
def a_result_spelled_as_bytes_are_those_bytes_whatever_its_type(env):
    s = env.session()
    given = {"literal": r"'\x00ff'", "bytea": r"'\x00ff'::bytea", "text": r"'\x00ff'::text", "empty": r"'\x'", "none": "NULL",
             "text null": "NULL::text", "no hex": r"'\x0'", "prose": r"'\xenon'"}
    stored = {"literal": r"\x00ff", "bytea": r"\x00ff", "text": r"\x00ff", "empty": r"\x", "none": None, "text null": None,
              "no hex": r"\x5c7830", "prose": r"\x5c78656e6f6e"}
    for what, result in given.items():
        reserve(s, "spelled " + what)
        equal(s.one("SELECT hapax.commit_outcome('t', 'spelled %s', %s)" % (what, result)), "committed", what)
        equal(claim(s, "spelled " + what)[1], stored[what], what)


@test
def the_attempt_keeps_one_who_was_slow_from_ending_anothers_reservation(env):
    s = env.session()
    equal(reserve(s, "slow", owner="a")[4], "1")
    expire(s, "slow")
    equal(reserve(s, "slow", owner="b")[4], "2", "b has it, without any fence")
    for call in ("release('t', 'slow', attempt => 1)", "commit_outcome('t', 'slow', 'late', attempt => 1)",
                 "step('t', 'slow', 's', attempt => 1)", "step('t', 'slow', 's', attempt => 3)"):
        equal(s.code("SELECT hapax." + call), "HX001", call)
    equal(s.one("SELECT status FROM hapax.step('t', 'slow', 's', attempt => 2)"), "new")
    equal(s.one("SELECT hapax.release('t', 'slow', attempt => 2)"), "released")
    equal(reserve(s, "slow", owner="c")[4], "3")
    equal(s.code("SELECT hapax.release('t', 'slow', attempt => 2)"), "HX001")
    equal(s.one("SELECT hapax.commit_outcome('t', 'slow', 'r', attempt => 3)"), "committed")
    # Settled is settled: whoever comes late is told so, and by whom it was does not matter.
    equal(s.one("SELECT hapax.commit_outcome('t', 'slow', 'late', attempt => 1)"), "duplicate")
    equal(s.one("SELECT hapax.release('t', 'slow', attempt => 2)"), "duplicate")


@test
def expect_tells_applied_from_already_and_refuses_more(env):
    s = env.session()
    equal([s.one("SELECT hapax.expect(%d)" % n) for n in (1, 0)], ["applied", "already"])
    equal([s.code("SELECT hapax.expect(%s)" % n) for n in ("2", "-1", "NULL")], ["HX004", "HX003", "HX003"])


@test
def stranded_lists_unfinished_reservations_by_age(env):
    s = env.session()
    for key in ("old", "young", "settled", "released"):
        reserve(s, key, scope="strand", owner="w")
    s.rows("SELECT hapax.commit_outcome('strand', 'settled'); SELECT hapax.release('strand', 'released')")
    expire(s, "old", scope="strand")
    listed = "SELECT scope, key, owner, attempt FROM hapax.stranded('%s') WHERE scope = 'strand'"
    equal(s.rows(listed % "2 minutes"), [("strand", "old", "w", "1")])
    equal([r[1] for r in s.rows(listed % "0")], ["old", "young"])
    equal(status(reserve(s, "old", scope="strand", owner="reconciler")), "unknown")
    equal(s.rows(listed % "2 minutes"), [], "taken over: its age starts anew")


@test
def signals_count_exactly_and_survive_folding_and_sweeping(env):
    s = env.session()
    for i in range(10):
        claim(s, "k%d" % (i % 7), scope="signal")
    claim(s, "k1", scope="signal", fence=1)
    s.rows("BEGIN; SELECT hapax.claim('signal', 'k1'); ROLLBACK")
    claim(s, "fp", scope="signal", fingerprint="a")
    claim(s, "fp", scope="signal", fingerprint="b")
    reserve(s, "flying", scope="signal", fence=2)
    reserve(s, "flying", scope="signal", fence=1)
    expire(s, "flying", scope="signal")
    s.rows("BEGIN; SELECT hapax.claim('signal', 'e'); SELECT hapax.commit_outcome('signal', 'e', effect_id => 'e1'); COMMIT")
    counts = ("SELECT claims, duplicates, duplicate_ratio, in_flight, oldest_in_flight_age > '1 hour', keys_with_several_effects,"
              " conflicts, stale FROM hapax.signals WHERE scope = 'signal'")
    wanted = ("16", "4", "0.2500", "1", "t", "0", "1", "1")
    equal(s.rows(counts), [wanted])
    s.rows("INSERT INTO hapax.scope VALUES ('signal', '0')")
    s.rows("SELECT hapax.sweep(3); SELECT hapax.sweep(3); SELECT hapax.sweep()")
    equal(s.rows(counts), [wanted])
    equal(s.rows("SELECT (SELECT count(*) FROM hapax.tally), (SELECT count(*) FROM hapax.total WHERE scope = 'signal')"),
          [("0", "4")], "one row per answer")
    s.rows("DELETE FROM hapax.scope WHERE scope = 'signal'")
    claim(s, "later", scope="signal")
    claim(s, "later", scope="signal")
    s.rows("SELECT hapax.sweep()")
    equal(s.rows(counts), [("18", "5", "0.2778", "1", "t", "0", "1", "1")], "what is folded later is added")


@test
def a_key_with_two_effect_ids_is_seen(env):
    s = env.session()
    reserve(s, "twice", scope="effects")
    equal([s.one("SELECT hapax.commit_outcome('effects', 'twice', effect_id => '%s')" % e) for e in ("e1", "e1", "e2", "e2")],
          ["committed", "duplicate", "duplicate", "duplicate"])
    equal(s.one("SELECT keys_with_several_effects FROM hapax.signals WHERE scope = 'effects'"), "1")
    equal(s.one("SELECT effect_ids FROM hapax.keys WHERE scope = 'effects'"), "{e1,e2}")


@test
def keys_tells_what_is_known_and_until_when(env):
    s = env.session()
    s.rows("INSERT INTO hapax.scope VALUES ('view', '14 days')")
    claim(s, "v", scope="view", fence=4, owner="w")
    equal(s.rows("SELECT state, fence, owner, attempt, expires_at = settled_at + '14 days', settled_at = first_seen"
                 " FROM hapax.keys WHERE scope = 'view'"), [("done", "4", "w", "1", "t", "t")])
    s.rows("DELETE FROM hapax.scope WHERE scope = 'view'")


@test
def times_are_taken_after_the_wait(env):
    holder, waiter = env.session(), env.session()
    for form in ("reserve", "claim"):
        key = "waited " + form
        holder.rows("BEGIN; SELECT hapax.claim('t', '%s')" % key)
        waiter.send("SELECT status FROM hapax.%s('t', '%s')" % (form, key))
        assert env.blocked(waiter)
        holder.rows("SELECT pg_sleep(0.1)")
        rolled_back_at = holder.one("SELECT clock_timestamp()")
        holder.rows("ROLLBACK")
        equal(waiter.finish(), [("new",)])
        equal(waiter.rows("SELECT first_seen >= '{0}', since >= '{0}', coalesce(lease_until >= '{0}'::timestamptz + '2 minutes', true)"
                          " FROM hapax.entry WHERE key = '{1}'".format(rolled_back_at, key)), [("t", "t", "t")], form)


@test
def a_claimant_waits_for_the_holder_and_never_assumes(env):
    holder, waiter = env.session(), env.session()
    for end, wanted in (("COMMIT", "duplicate"), ("ROLLBACK", "new")):
        holder.rows("BEGIN; SELECT hapax.claim('t', 'wait %s')" % end)
        waiter.send("SELECT status FROM hapax.claim('t', 'wait %s')" % end)
        assert env.blocked(waiter), "the claimant must wait for the holder"
        holder.rows(end)
        equal(waiter.finish(), [(wanted,)])


@test
def a_claimant_waits_for_a_settlement_before_it_takes_over(env):
    owner, other = env.session(), env.session()
    for end, wanted in (("COMMIT", "duplicate"), ("ROLLBACK", "unknown")):
        key = "settling " + end
        reserve(owner, key, fence=1)
        owner.rows("BEGIN; SELECT hapax.commit_outcome('t', '%s', 'r', fence => 1)" % key)
        other.send("SELECT status FROM hapax.reserve('t', '%s', fence => 2)" % key)
        assert env.blocked(other), "a take-over must wait for the open settlement"
        owner.rows(end)
        equal(other.finish(), [(wanted,)])


@test
def being_told_in_flight_or_duplicate_holds_no_lock(env):
    owner, asker, third = env.session(), env.session(), env.session()
    reserve(owner, "unlocked", owner="a", fence=1)
    asker.rows("BEGIN")
    equal(status(reserve(asker, "unlocked", owner="b")), "in_flight")
    owner.send("SELECT hapax.commit_outcome('t', 'unlocked', 'r', fence => 1)")
    assert not env.blocked(owner), "the owner must not wait for somebody who asked"
    equal(owner.finish(), [("committed",)])
    equal(status(claim(asker, "unlocked")), "duplicate")
    third.send("SELECT status FROM hapax.claim('t', 'unlocked')")
    assert not env.blocked(third), "duplicates must not wait for each other"
    equal(third.finish(), [("duplicate",)])
    asker.rows("COMMIT")


@test
def being_told_duplicate_writes_nothing_to_the_log(env):
    s = env.session()
    claim(s, "logless")
    claim(s, "logless")

    def written():
        before = s.one("SELECT pg_current_wal_insert_lsn()")
        equal(status(claim(s, "logless")), "duplicate")
        return int(s.one("SELECT pg_current_wal_insert_lsn() - '%s'" % before))

    # The server's own housekeeping writes now and then.
    s.rows("BEGIN")
    equal(min(written() for _ in range(50)), 0)
    s.rows("COMMIT")


@test
def a_zombie_cannot_write_after_its_successor(env):
    zombie, successor = env.session(), env.session()
    zombie.rows("CREATE TABLE ledger (key text, who text)")
    reserve(zombie, "z", fence=1, owner="zombie")
    reserve(successor, "z", fence=2, owner="successor")
    zombie.rows("BEGIN; INSERT INTO ledger VALUES ('z', 'zombie')")
    equal(zombie.code("SELECT hapax.commit_outcome('t', 'z', 'r', fence => 1)"), "HX001")
    zombie.rows("COMMIT")
    successor.rows("BEGIN; INSERT INTO ledger VALUES ('z', 'successor'); SELECT hapax.commit_outcome('t', 'z', 'r', fence => 2); COMMIT")
    equal(zombie.rows("SELECT who FROM ledger"), [("successor",)])
    # Racing: the zombie passed the check first. Its successor waits for the end and then finds the work done.
    reserve(zombie, "z2", fence=1, owner="zombie")
    zombie.rows("BEGIN; INSERT INTO ledger VALUES ('z2', 'zombie'); SELECT hapax.step('t', 'z2', 'a', fence => 1)")
    successor.send("SELECT status FROM hapax.reserve('t', 'z2', fence => 2)")
    assert env.blocked(successor), "a successor must wait for a write that passed the fence check"
    zombie.rows("SELECT hapax.commit_outcome('t', 'z2', 'r', fence => 1); COMMIT")
    equal(successor.finish(), [("duplicate",)])
    zombie.rows("DROP TABLE ledger")


@test
def a_thousand_racing_claims_have_one_winner(env):
    holder = env.session()
    racers = [env.session() for _ in range(1000)]
    holder.rows("CREATE TABLE race (key text)")
    holder.rows("BEGIN; SELECT hapax.claim('race', 'one')")
    script = ("DO $$ BEGIN IF (SELECT status FROM hapax.claim('race', 'one')) = 'new' THEN INSERT INTO race VALUES ('one'); END IF; END $$")
    for r in racers:
        r.send(script)
    while holder.one("SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted") != "1000":
        pass
    holder.rows("ROLLBACK")
    for r in racers:
        r.finish()
    equal(holder.one("SELECT count(*) FROM race"), "1")
    equal(holder.rows("SELECT claims, duplicates FROM hapax.signals WHERE scope = 'race'"), [("1000", "999")])
    holder.rows("DROP TABLE race")


@test
def it_works_behind_pgbouncer_in_transaction_mode(env):
    if not pg.Bouncer.program():
        raise Skip("pgbouncer is not installed")
    with pg.Bouncer(env.server) as bouncer:
        # Three clients over two server connections, so that every transaction may run on another one.
        clients = [bouncer.connect() for _ in range(3)]
        answers = []
        for n in range(30):
            c = clients[n % 3]
            key = "bounced %d" % (n // 3)
            if n % 2:
                answers.append(status(claim(c, key, scope="bounce")))
            else:
                c.rows("BEGIN")
                answers.append(status(claim(c, key, scope="bounce")))
                c.rows("SELECT hapax.commit_outcome('bounce', '%s', 'r'); COMMIT" % key)
        equal((answers.count("new"), answers.count("duplicate")), (10, 20))
        for c in clients:
            c.drop()


@test
def the_documented_sessions_answer_as_documented(env):
    fresh_database(env, "documented")
    env.install(env.gate, database="documented")
    with open(os.path.join(ROOT, "docs", "GATE.md")) as f:
        blocks = re.findall(r"<!-- runs -->\n```sql\n(.*?)```", f.read(), re.S)
    assert len(blocks) == 4, len(blocks)
    for block in blocks:
        done = env.server.psql("-At", "-v", "ON_ERROR_STOP=1", "-d", "documented", input=block)
        equal(done.stdout.splitlines(), re.findall(r"--> (\S.*)", block))


@test
def the_wallet_example_comes_out_right(env):
    for _ in range(2):
        done = env.server.psql("-f", os.path.join(ROOT, "examples", "psql", "wallet.sql"))
        equal((done.returncode, done.stdout.splitlines()[-1]), (0, "wallet: ok"), done.stdout)


harness.main()
