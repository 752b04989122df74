#!/usr/bin/env python3
"""The judges are judged: check_history and rules_judge must pass good histories and catch every planted bug, each by its own
name.

Prints TAP."""
import re
import subprocess
import tempfile

import kit
import rules_judge
from kit import CHECK_HISTORY, test


class History:
    """Builds a history event by event; the clock moves 10 ms with each line unless told otherwise."""

    def __init__(self):
        self.lines, self.now, self.number, self.fence = [], 0, 0, 100

    def wait(self, ms):
        self.now += ms * 1000

    def line(self, op, phase, number, queue="q", key="-", value="-", id="-", token="-", fence="-", group="-", result="-",
             extra="-"):
        self.now += 10_000
        fields = [self.now, "p0", op, phase, number, queue, key, value, id, token, fence, group, result, extra]
        self.lines.append(" ".join(str(f) for f in fields))

    def invoke(self, op, **fields):
        self.number += 1
        self.line(op, "invoke", self.number, **fields)
        return self.number

    def send(self, key, value=None, phase="ok", id=None, group="-", delay=0, ttl=0, dup=0, state="pending", result="-", code="",
             verify=0):
        value = value or "v-" + key
        n = self.invoke("send", key=key, value=value, group=group, extra=f"delay={delay},ttl={ttl},verify={verify}")
        if phase == "ok":
            self.line("send", "ok", n, key=key, value=value, id=id or "id-" + key, group=group, result=result,
                      extra=f"dup={dup},state={state}")
        else:
            self.line("send", phase, n, key=key, value=value, extra=f"code={code}" if code else "-")

    def ask(self, lease=1000, start="auto"):
        return self.invoke("recv", extra=f"lease={lease},start={start}")

    def got(self, n, key, value=None, id=None, group="-", fence=None, token=None, crashes=0, failures=0, steps=0):
        if fence is None:
            self.fence += 1
            fence = self.fence
        token = token or f"t{fence}"
        self.line("recv", "ok", n, key=key, value=value or "v-" + key, id=id or "id-" + key, token=token, fence=fence,
                  group=group, extra=f"crashes={crashes},failures={failures},steps={steps}")
        return token

    def recv(self, key, lease=1000, start="auto", **fields):
        return self.got(self.ask(lease, start), key, **fields)

    def settle(self, op, token, phase="ok", result="-", dup=0, code="", **extra):
        pairs = ",".join(f"{k}={v}" for k, v in extra.items()) or "-"
        n = self.invoke(op, token=token, result=result, extra=pairs)
        outcome = f"code={code}" if code else f"dup={dup}"
        self.line(op, phase, n, token=token, extra="-" if phase == "info" else outcome)

    def ack(self, token, result="r", **fields):
        self.settle("ack", token, result=result, **fields)

    def nack(self, token, cls, **fields):
        self.settle("nack", token, **fields, **{"class": cls})

    def verify(self, key, state="done", result="r", dup=1, **fields):
        self.send(key, dup=dup, state=state, result=result, verify=1, **fields)

    def drained(self, phase="ok"):
        self.line("drained", phase, 0)


def lifecycle(h, key, **fields):
    h.send(key, **fields)
    h.ack(h.recv(key, **fields))


GOOD, BUGS = [], []


def good(f):
    GOOD.append(f)
    return f


def bug(word):
    def register(f):
        BUGS.append((word, f))
        return f
    return register


@good
def a_quiet_day(h):
    for i in range(50):
        lifecycle(h, f"k{i}")
    for i in range(50):
        h.verify(f"k{i}")


@good
def lost_answers_are_retried_and_recovered(h):
    h.send("a", phase="info")
    h.send("a", dup=1)
    t = h.recv("a")
    h.ack(t, phase="info")
    h.ack(t, result="other", dup=1)
    h.verify("a", result="r")


@good
def a_lost_ack_may_or_may_not_have_happened(h):
    h.send("a")
    h.ack(h.recv("a"), phase="info")
    h.wait(2000)
    h.ack(h.recv("a", crashes=1), result="second")
    h.verify("a", result="second")


@good
def redelivery_after_expiry_with_a_refused_zombie(h):
    h.send("a")
    zombie = h.recv("a")
    h.wait(1500)
    t = h.recv("a", crashes=1)
    h.ack(zombie, phase="fail", code="fenced")
    h.ack(t)
    h.ack(zombie, phase="fail", code="fenced")
    h.verify("a")


@good
def an_expired_newest_token_still_settles(h):
    h.send("a")
    t = h.recv("a")
    h.wait(5000)
    h.ack(t)
    h.verify("a")


@good
def a_late_nack_comes_after_the_crash_was_counted(h):
    h.send("a")
    t = h.recv("a")
    h.wait(1500)
    h.nack(t, "transient")
    h.wait(1500)
    h.ack(h.recv("a", crashes=1, failures=1))


@good
def conflicts_are_refused_and_leave_no_trace(h):
    h.send("a")
    h.send("a", value="other", phase="fail", code="key_reused")
    h.ack(h.recv("a"))
    h.send("a", value="other", phase="fail", code="key_reused")
    h.verify("a")


@good
def a_lost_first_payload_may_lose_to_the_second(h):
    h.send("a", value="one", phase="info")
    h.send("a", value="two")
    h.send("a", value="one", phase="fail", code="key_reused")
    h.ack(h.recv("a", value="two"))
    h.verify("a", value="two")


@good
def groups_take_turns_and_come_back_in_order(h):
    for i in range(4):
        h.send(f"a{i}", group="g")
        h.send(f"b{i}", group="h")
    for i in range(4):
        a = h.recv(f"a{i}", group="g")
        b = h.recv(f"b{i}", group="h")
        h.nack(a, "transient", delay=500)
        h.ack(b)
        h.wait(600)
        h.ack(h.recv(f"a{i}", group="g", failures=1))


@good
def dead_for_good_reasons(h):
    h.send("poison")
    h.nack(h.recv("poison"), "poison")
    h.send("crashy")
    for i in range(3):
        h.recv("crashy", crashes=i)
        h.wait(1500)
    h.verify("poison", state="dead", result="-")
    h.verify("crashy", state="dead", result="-")
    h.line("list", "ok", 0, id="id-poison", extra="state=dead")
    h.line("list", "ok", 0, id="id-crashy", extra="state=dead")


@good
def steps_extends_releases_and_reservations(h):
    h.send("a")
    t = h.recv("a", start="explicit")
    h.wait(1500)
    t = h.recv("a", start="explicit")  # ran out unstarted: no crash
    h.settle("start", t)
    h.settle("extend", t, lease=5000)
    h.settle("step", t)
    h.settle("release", t)
    t = h.recv("a", steps=1)
    h.nack(t, "rejected", result="no")
    h.verify("a", state="rejected", result="no")


@good
def a_lost_receive_may_have_cost_a_crash(h):
    h.send("a")
    h.line("recv", "info", h.ask())
    h.wait(1500)
    h.ack(h.recv("a", crashes=1))
    h.verify("a")


@good
def a_time_to_live_ends_unstarted_work_only(h):
    h.send("late", ttl=1000)
    h.send("begun", ttl=1000)
    h.recv("begun")
    h.wait(3000)
    h.ack(h.recv("begun", crashes=1))
    h.verify("late", state="cancelled", result="-")
    h.verify("begun")


@bug("lost")
def an_accepted_message_is_never_seen_again(h):
    h.send("a")
    lifecycle(h, "b")


@bug("lost")
def a_delivered_message_vanishes_unsettled(h):
    h.send("a")
    h.nack(h.recv("a"), "transient")


@bug("lost")
def done_without_anybody_doing_it(h):
    h.send("a")
    h.verify("a", state="done", result="-")


@bug("lost")
def cancelled_without_anybody_cancelling_it(h):
    h.send("a")
    h.verify("a", state="cancelled", result="-")


@bug("unexpected")
def a_message_nobody_sent(h):
    h.ack(h.recv("ghost"))


@bug("unexpected")
def a_refused_message_is_delivered(h):
    h.send("a", phase="fail", code="storage_full")
    h.ack(h.recv("a"))


@bug("altered")
def a_payload_changed_on_the_way(h):
    h.send("a")
    h.ack(h.recv("a", value="garbled"))


@bug("altered")
def a_message_lost_its_group(h):
    h.send("a", group="g")
    h.ack(h.recv("a"))


@bug("conflict")
def fingerprint_check_dropped(h):
    h.send("a")
    h.send("a", value="other", dup=1)
    h.ack(h.recv("a"))


@bug("conflict")
def the_refused_payload_is_what_gets_delivered(h):
    h.send("a", value="one")
    h.send("a", value="two", phase="fail", code="key_reused")
    h.ack(h.recv("a", value="two"))


@bug("conflict")
def a_true_duplicate_is_refused_as_reused(h):
    h.send("a")
    h.send("a", phase="fail", code="key_reused")
    h.ack(h.recv("a"))


@bug("dup-message")
def dedup_lookup_dropped(h):
    h.send("a")
    h.send("a", id="id-a2")
    h.ack(h.recv("a"))
    h.ack(h.recv("a", id="id-a2"))


@bug("dup-message")
def the_window_forgets_a_settled_key(h):
    lifecycle(h, "a")
    h.send("a", dup=0)


@bug("dup-message")
def two_keys_share_one_id(h):
    h.send("a", id="same")
    h.send("b", id="same")
    h.ack(h.recv("a", id="same"))


@bug("dup-delivery")
def an_ack_is_forgotten_by_a_crash(h):
    lifecycle(h, "a")
    h.wait(1500)
    h.recv("a")


@bug("dup-delivery")
def a_lease_was_granted_while_its_predecessor_settled(h):
    h.send("a")
    t = h.recv("a", lease=1000)
    h.wait(1500)
    n = h.ask()
    ack = h.invoke("ack", token=t, result="r")
    h.got(n, "a", crashes=1)
    h.line("ack", "ok", ack, token=t, extra="dup=0")


@bug("double-settle")
def two_acks_both_accepted_as_the_first(h):
    h.send("a")
    t = h.recv("a")
    h.ack(t)
    h.ack(t, result="r2")


@bug("double-settle")
def acked_and_rejected(h):
    h.send("a")
    t = h.recv("a")
    h.ack(t)
    h.nack(t, "rejected", result="no")


@bug("stale-ack")
def a_zombie_settles_after_a_newer_lease(h):
    h.send("a")
    zombie = h.recv("a")
    h.wait(1500)
    h.recv("a", crashes=1)
    h.ack(zombie)


@bug("stale-ack")
def a_zombie_extends_a_lease_it_lost(h):
    h.send("a")
    zombie = h.recv("a")
    h.wait(1500)
    t = h.recv("a", crashes=1)
    h.settle("extend", zombie, lease=1000)
    h.ack(t)


@bug("stale-ack")
def a_released_token_still_acks(h):
    h.send("a")
    t = h.recv("a")
    h.settle("release", t)
    h.ack(t)


@bug("wrongly-refused")
def the_only_holder_is_told_fenced(h):
    h.send("a")
    t = h.recv("a")
    h.ack(t, phase="fail", code="fenced")
    h.ack(t)


@bug("wrongly-refused")
def a_fresh_token_is_told_settled(h):
    h.send("a")
    t = h.recv("a")
    h.settle("release", t, phase="fail", code="settled")


@bug("overlap")
def two_of_a_group_in_flight(h):
    h.send("a", group="g")
    h.send("b", group="g")
    a, b = h.recv("a", group="g"), h.recv("b", group="g")
    h.ack(a)
    h.ack(b)


@bug("early")
def a_live_lease_is_given_to_another(h):
    h.send("a")
    h.recv("a", lease=30000)
    h.wait(2000)
    h.ack(h.recv("a", crashes=1))


@bug("early")
def an_extended_lease_ends_at_its_old_time(h):
    h.send("a")
    t = h.recv("a", lease=1000)
    h.settle("extend", t, lease=10000)
    h.wait(1500)
    h.ack(h.recv("a", crashes=1))


@bug("early")
def a_nack_delay_is_ignored(h):
    h.send("a")
    h.nack(h.recv("a"), "transient", delay=5000)
    h.ack(h.recv("a", failures=1))


@bug("early")
def a_delayed_send_is_delivered_at_once(h):
    h.send("a", delay=5000)
    h.ack(h.recv("a"))


@bug("early")
def cancelled_long_before_its_time_to_live_is_over(h):
    h.send("a", ttl=60000)
    h.verify("a", state="cancelled", result="-")


@bug("late")
def begun_long_after_its_time_to_live(h):
    h.send("a", ttl=1000)
    h.wait(5000)
    h.ack(h.recv("a"))


@bug("dup-delivery")
def delivered_after_it_was_called_cancelled(h):
    h.send("a", ttl=1000)
    h.wait(1000)
    h.send("a", ttl=1000, dup=1, state="cancelled")
    h.recv("a")


@bug("fence")
def a_fence_repeats_after_a_restart(h):
    h.send("a")
    h.send("b")
    h.ack(h.recv("a", fence=7, token="x"))
    h.ack(h.recv("b", fence=7, token="y"))


@bug("fence")
def fences_start_over_lower(h):
    h.send("a")
    h.send("b")
    h.ack(h.recv("a", fence=70))
    h.ack(h.recv("b", fence=3))


@bug("fence")
def a_token_is_handed_out_twice(h):
    h.send("a")
    h.send("b")
    h.ack(h.recv("a", token="same"))
    h.recv("b", token="same")


@bug("order")
def a_group_is_delivered_backwards(h):
    h.send("a", group="g")
    h.send("b", group="g")
    h.ack(h.recv("b", group="g"))
    h.ack(h.recv("a", group="g"))


@bug("order")
def the_group_moves_on_while_its_head_backs_off(h):
    h.send("a", group="g")
    h.send("b", group="g")
    h.nack(h.recv("a", group="g"), "transient", delay=1000)
    h.ack(h.recv("b", group="g"))
    h.wait(1500)
    h.ack(h.recv("a", group="g", failures=1))


@bug("divergent-replay")
def a_duplicate_hears_another_result(h):
    lifecycle(h, "a")
    h.verify("a", result="other")


@bug("divergent-replay")
def two_duplicates_hear_different_things(h):
    h.send("a")
    t = h.recv("a")
    h.ack(t, result="one", phase="info")
    h.ack(t, result="two", phase="info")
    h.verify("a", result="one")
    h.verify("a", result="two")


@bug("divergent-replay")
def a_settled_key_is_pending_again(h):
    lifecycle(h, "a")
    h.send("a", dup=1, state="pending")


@bug("divergent-replay")
def a_rejection_turns_into_done(h):
    h.send("a")
    h.nack(h.recv("a"), "rejected", result="no")
    h.verify("a", state="done", result="no")


@bug("divergent-replay")
def a_first_ack_is_called_a_repetition(h):
    h.send("a")
    h.ack(h.recv("a"), dup=1)


@bug("steps")
def a_recorded_step_is_forgotten(h):
    h.send("a")
    t = h.recv("a")
    h.settle("step", t)
    h.settle("release", t)
    h.ack(h.recv("a", steps=0))


@bug("steps")
def a_step_nobody_took(h):
    h.send("a")
    h.ack(h.recv("a", steps=1))


@bug("miscount")
def a_reservation_that_ran_out_counts_as_a_crash(h):
    h.send("a")
    h.recv("a", start="explicit")
    h.wait(1500)
    h.ack(h.recv("a", crashes=1))


@bug("miscount")
def a_lost_reservation_counts_as_a_crash(h):
    h.send("a")
    h.line("recv", "info", h.ask(start="explicit"))
    h.wait(1500)
    h.ack(h.recv("a", crashes=1))


@bug("miscount")
def a_failure_is_not_counted(h):
    h.send("a")
    h.nack(h.recv("a"), "transient")
    h.wait(1500)
    h.ack(h.recv("a", failures=0))


@bug("dead")
def dead_after_one_crash(h):
    h.send("a")
    h.recv("a")
    h.wait(1500)
    h.verify("a", state="dead", result="-")


@bug("dead")
def poison_is_delivered_again(h):
    h.send("a")
    h.nack(h.recv("a"), "poison")
    h.ack(h.recv("a"))


@bug("dead")
def a_dead_message_is_missing_from_the_lane(h):
    h.send("a")
    h.send("b")
    h.nack(h.recv("a"), "poison")
    h.nack(h.recv("b"), "poison")
    h.verify("a", state="dead", result="-")
    h.verify("b", state="dead", result="-")
    h.line("list", "ok", 0, id="id-b", extra="state=dead")


@bug("stuck")
def the_drain_never_ends(h):
    lifecycle(h, "a")
    h.drained("fail")


@bug("stuck")
def a_key_is_still_pending_after_the_drain(h):
    h.send("a")
    h.ack(h.recv("a"), phase="info")
    h.verify("a", state="pending", result="-")


@bug("stuck")
def a_message_is_still_listed_as_leased(h):
    lifecycle(h, "a")
    h.line("list", "ok", 0, id="id-a", extra="state=leased")


def run(build):
    h = History()
    build(h)
    if not any(" drained " in line for line in h.lines):
        h.drained()
    with tempfile.NamedTemporaryFile("w", suffix=".history") as f:
        f.write("\n".join(h.lines) + "\n")
        f.flush()
        done = subprocess.run([CHECK_HISTORY, f.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


# ---- queues with rules of their own

POLICIES = {
    "money": rules_judge.Policy("exactly_once", rules_judge.RECONCILE),
    "holds": rules_judge.Policy("exactly_once", rules_judge.HOLD),
    "clicks": rules_judge.Policy("at_most_once"),
    "ledger": rules_judge.Policy("at_least_once"),
}


class RuledHistory:
    """Calls one after the other; each takes a moment."""

    def __init__(self):
        self.calls, self.now, self.fence, self.trail, self.views, self.drained = [], 0, 100, [], {}, True

    def add(self, op, queue="money", key="k", id="i", phase="ok", **more):
        self.now += 2
        self.calls.append({"op": op, "queue": queue, "key": key, "id": id, "phase": phase, "asked": self.now - 1,
                           "told": None if phase == "info" else self.now, **more})

    def send(self, queue="money", key="k", id="i", duplicate=False, **more):
        self.add("send", queue, key, id, duplicate=duplicate, **more)

    def recv(self, queue="money", key="k", id="i", delivery="first", generation=0, effect_key=None, **more):
        self.fence += 1
        self.add("recv", queue, key, id, fence=self.fence, delivery=delivery, generation=generation,
                 effect_key=effect_key or key, **more)
        return self.fence

    def settle(self, fence, verb="ack", cls=None, queue="money", phase="ok", duplicate=False):
        self.add("settle", queue, phase=phase, fence=fence, verb=verb, duplicate=duplicate, **{"class": cls})

    def verb(self, op, queue="money", key="k", id="i", phase="ok", audited=None, **more):
        note = f"n{len(self.calls)}"
        self.add(op, queue, key, id, phase, note=note, **more)
        if audited if audited is not None else phase == "ok":
            self.trail.append(note)


def a_look_up_after_a_death(h):
    h.recv()
    h.settle(h.recv(delivery="reconcile"), "nack", "absent")
    h.settle(h.recv(delivery="retry"))


def an_unanswered_nack_may_have_said_that_nothing_was_done(h):
    h.settle(h.recv(), "nack", "transient", phase="info")
    h.settle(h.recv(delivery="retry"))


def an_operator_vouches_for_what_was_held(h):
    h.recv("holds")
    h.verb("resolve", "holds", **{"as": "retry"})
    h.settle(h.recv("holds", delivery="retry"), queue="holds")


def a_redriven_death_is_looked_up(h):
    h.recv("holds")
    h.verb("resolve", "holds", **{"as": "dead"})
    h.verb("redrive", "holds", key=None)
    h.settle(h.recv("holds", delivery="reconcile"), queue="holds")


def each_click_once_each_entry_every_time(h):
    h.send("clicks")
    h.recv("clicks")
    for id in ("a", "b"):
        h.send("ledger", id=id)
        h.recv("ledger", id=id)


def a_replay_is_the_next_generation(h):
    h.settle(h.recv())
    h.verb("replay")
    h.settle(h.recv(id="j", generation=1, effect_key="k~g1"))


def a_forgotten_key_is_new(h):
    h.settle(h.recv())
    h.verb("forget")
    h.send(id="j")


def what_was_refused_is_not_in_the_trail(h):
    h.verb("cancel", phase="fail")
    h.verb("cancel", phase="info", audited=True)
    h.verb("cancel", phase="info", audited=False)


RULED_GOOD = [a_look_up_after_a_death, an_unanswered_nack_may_have_said_that_nothing_was_done,
              an_operator_vouches_for_what_was_held, a_redriven_death_is_looked_up, each_click_once_each_entry_every_time,
              a_replay_is_the_next_generation, a_forgotten_key_is_new, what_was_refused_is_not_in_the_trail]


def done_again_after_a_death(h):
    h.recv()
    h.recv(delivery="retry")


def done_again_after_an_unknown_outcome(h):
    h.settle(h.recv(), "nack", "unknown")
    h.recv(delivery="retry")


def held_work_comes_back_by_itself(h):
    h.recv("holds")
    h.recv("holds", delivery="reconcile")


def a_redrive_forgets_the_doubt(h):
    h.recv("holds")
    h.verb("redrive", "holds", key=None)
    h.recv("holds", delivery="retry")


def a_click_twice(h):
    h.recv("clicks")
    h.recv("clicks", delivery="retry")


def an_entry_taken_for_a_repeat(h):
    h.send("ledger", id="a")
    h.recv("ledger", id="a")
    h.send("ledger", id="a", duplicate=True)


def an_entry_never_delivered(h):
    h.send("ledger", id="a")


def an_effect_twice(h):
    h.add("effect")
    h.add("effect")


def delivered_after_it_was_decided(h):
    h.recv()
    h.verb("resolve", **{"as": "done"})
    h.recv(delivery="reconcile")


def a_late_ack_undoes_a_decision(h):
    fence = h.recv()
    h.verb("resolve", **{"as": "rejected"})
    h.settle(fence)


def a_forgotten_key_comes_back(h):
    h.verb("forget")
    h.send(duplicate=True)


def a_generation_nobody_asked_for(h):
    h.recv(generation=1, effect_key="k~g1")


def a_replay_under_the_old_effect_key(h):
    h.verb("replay")
    h.recv(id="j", generation=1, effect_key="k")


def a_deed_that_is_not_in_the_trail(h):
    h.verb("cancel", audited=False)


def an_attempt_in_the_trail(h):
    h.verb("cancel", phase="fail", audited=True)


def erased_words_shown(h):
    h.verb("erase")
    h.views["money", "k"] = {"id": "i", "erased": True, "result": {"body": "secret"}}


def work_that_never_ends(h):
    h.drained = False


RULED_BUGS = [("blind-retry", done_again_after_a_death), ("blind-retry", done_again_after_an_unknown_outcome),
              ("held-escaped", held_work_comes_back_by_itself), ("blind-retry", a_redrive_forgets_the_doubt),
              ("delivered-twice", a_click_twice), ("dropped-as-duplicate", an_entry_taken_for_a_repeat),
              ("lost", an_entry_never_delivered), ("effect-twice", an_effect_twice),
              ("decided-yet-delivered", delivered_after_it_was_decided), ("decided-token-lives", a_late_ack_undoes_a_decision),
              ("not-forgotten", a_forgotten_key_comes_back), ("generation", a_generation_nobody_asked_for),
              ("effect-key", a_replay_under_the_old_effect_key), ("audit", a_deed_that_is_not_in_the_trail),
              ("audit", an_attempt_in_the_trail), ("erased-shown", erased_words_shown), ("stuck", work_that_never_ends)]


def run_ruled(build):
    h = RuledHistory()
    build(h)
    return rules_judge.judge(POLICIES, h.calls, h.trail, h.views, h.drained)


def judged(name, judge, *about):
    def check():
        judge(*about)
    check.__name__ = name
    test(check)


def passes(build):
    code, output = run(build)
    assert code == 0, output


def is_caught(build, word):
    code, output = run(build)
    assert code == 1 and re.search(f"^VIOLATION {word}[ :]", output, re.M), output


def passes_by_the_rules(build):
    found = run_ruled(build)
    assert not found, found


def is_caught_by_the_rules(build, word):
    found = run_ruled(build)
    assert any(what == word for what, _ in found), found


@test
def an_unusable_history_is_not_a_pass():
    code, output = run(lambda h: h.lines.append("not a history"))
    assert code == 2, output


for good in GOOD:
    judged(f"good_history_passes:_{good.__name__}", passes, good)
for kind, bug in BUGS:
    judged(f"planted_bug_is_caught_as_{kind}:_{bug.__name__}", is_caught, bug, kind)
for good in RULED_GOOD:
    judged(f"good_history_of_rules_passes:_{good.__name__}", passes_by_the_rules, good)
for kind, bug in RULED_BUGS:
    judged(f"planted_bug_is_caught_as_{kind}:_{bug.__name__}", is_caught_by_the_rules, bug, kind)

kit.main()
