#!/usr/bin/env python3
"""Nobody knows whether it was done (P5): retry, reconcile or hold, and nothing is done again before somebody has said what
happened. Conflicts held for a person, and what the person decides."""
import time

import hx
from hx import decoded, members, problem, same, test

FAST = {"backoff": "1ms", "max": "1ms"}


def queue(q, **rules):
    hx.broker.rules(q, lease="1s", retry={"transient": {"attempts": 9, **FAST}, "unknown": {"attempts": 3}, "crashes": {"attempts": 3}}, **rules)


def doubtful(q, key="k"):
    """A message under `reconcile` whose first attempt ended unknown."""
    queue(q, on_unknown="reconcile")
    hx.broker.put(q, key)
    same(hx.broker.fail(q, "unknown", reason="timed out")["state"], "pending")


def asked(q):
    """The delivery that asks what became of it."""
    m = hx.broker.one(q)
    same(m["delivery"], "reconcile")
    return m


# ---- reconcile

@test
def a_found_outcome_settles_without_doing_it_again(q):
    b = hx.broker
    doubtful(q)
    yield
    b.ok("ack", asked(q), result="found: tx-1")
    same(b.key(q, "k")["result"]["body"], "found: tx-1")
    same(b.receive(q), [])


@test
def absent_means_it_is_delivered_again_to_be_done(q):
    b = hx.broker
    doubtful(q)
    b.ok("nack", asked(q), **{"class": "absent"})
    yield
    m = b.one(q)
    same(m["delivery"], "retry")
    b.ok("ack", m)
    same(b.state(q, "k"), "done")


@test
def a_transient_nack_asks_again_and_then_holds(q):
    b = hx.broker
    doubtful(q)
    b.ok("nack", asked(q), **{"class": "transient"})
    yield
    for _ in range(9):
        if b.ok("nack", asked(q), **{"class": "transient"}, reason="lookup is down")["state"] == "held":
            break
    same(b.state(q, "k"), "held", "within its attempts")
    same(b.receive(q), [])


@test
def an_unknown_nack_asks_again_and_then_holds(q):
    b = hx.broker
    doubtful(q)
    same(b.ok("nack", asked(q), **{"class": "unknown"})["state"], "pending")
    yield
    same(b.ok("nack", asked(q), **{"class": "unknown"})["state"], "held")
    same(b.receive(q), [])


@test
def a_lease_that_runs_out_is_unknown_and_asks(q):
    b = hx.broker
    queue(q, on_unknown="reconcile")
    b.put(q, "k")
    same(b.one(q)["delivery"], "first")
    asked(q)
    yield
    m = asked(q)
    hx.until(lambda: b.state(q, "k") == "held", "the third crash holds it")
    same(b.ok("ack", m, result="late, but the newest")["state"], "done")


@test
def a_release_asks_again(q):
    b = hx.broker
    doubtful(q)
    b.ok("release", asked(q))
    yield
    b.ok("ack", asked(q))


@test
def a_reservation_that_runs_out_is_not_unknown(q):
    b = hx.broker
    queue(q, on_unknown="reconcile")
    b.put(q, "k")
    b.one(q, start="explicit")
    same(b.one(q)["delivery"], "first")


@test
def doubt_is_forgotten_once_it_was_answered(q):
    b = hx.broker
    doubtful(q)
    b.ok("nack", asked(q), **{"class": "absent"})
    m = b.one(q)
    b.ok("nack", m, **{"class": "transient"})
    yield
    same(b.one(q)["delivery"], "retry", "an ordinary failure is tried again")


@test
def absent_answers_only_a_reconcile_delivery(q):
    b = hx.broker
    queue(q, on_unknown="reconcile")
    b.put(q, "k")
    problem(b.settle("nack", b.one(q), **{"class": "absent"}), 400, "class_invalid")


@test
def a_redrive_of_doubtful_work_asks_first(q):
    b = hx.broker
    doubtful(q)
    same(b.ok("nack", asked(q), **{"class": "poison"})["state"], "dead")
    yield
    same(b.post(f"/v1/queues/{q}/redrive", {}).json()["redriven"], 1)
    yield
    b.ok("nack", asked(q), **{"class": "rejected"}, result="refused there")
    same(b.state(q, "k"), "rejected")


@test
def retry_is_a_blind_retry_where_the_queue_says_so(q):
    b = hx.broker
    queue(q, on_unknown="retry")
    b.put(q, "k")
    b.fail(q, "unknown")
    yield
    same(b.one(q)["delivery"], "retry")


# ---- hold

def held(q, key="k"):
    queue(q, on_unknown="hold")
    hx.broker.put(q, key, payload=f"work of {key}")
    same(hx.broker.fail(q, "unknown", reason="the line broke")["state"], "held")


def resolve(q, key, way, status=200, **members_):
    reply = hx.broker.post(f"/v1/queues/{q}/keys/{hx.quote(key)}/resolve", {"as": way, "by": "ada", "note": "looked it up", **members_})
    same(reply.status, status, repr(reply))
    return reply.json()


@test
def held_work_is_listed_and_shown_with_everything_known(q):
    b = hx.broker
    held(q)
    yield
    same(b.receive(q), [])
    item, = b.list(q, state="held")
    members(item, key="k", payload="work of k", **{"class": "unknown", "reason": "the line broke", "held_because": "unknown"})
    shown = b.get(f"/v1/queues/{q}/messages/{item['id']}").json()
    members(shown, state="held", key="k")
    members(shown["attempts"][-1], **{"class": "unknown", "reason": "the line broke"})
    same(b.queue(q)["held"], 1)
    members(b.send(q, "k", "work of k").json(), outcome="duplicate", state="held")


@test
def who_waits_for_an_outcome_waits_for_the_decision_too(q):
    b = hx.broker
    queue(q, on_unknown="hold")
    sender = hx.Later(b.send, q, "k", "work of k", [("Prefer", "wait=60")])
    same(b.ok("nack", b.one(q), **{"class": "unknown"})["state"], "held")
    began = time.monotonic()
    problem(b.get(f"/v1/queues/{q}/keys/k/result?wait=1s"), 409, "not_settled")
    again = b.send(q, "k", "work of k", [("Prefer", "wait=1")])
    same((again.status, again.json()["state"]), (202, "held"))
    assert time.monotonic() - began >= 2, "both have waited"
    resolve(q, "k", "done", result="looked up")
    reply = sender.value()
    same((reply.status, reply.json()["state"], reply.json()["result"]["body"]), (200, "done", "looked up"))


@test
def held_work_is_resolved_as_done_with_its_result(q):
    b = hx.broker
    held(q)
    members(resolve(q, "k", "done", result=17), state="done", key="k")
    yield
    again = b.send(q, "k", "work of k")
    same(again.status, 200)
    members(again.json()["result"], body="17", content_type="application/json")
    problem(b.post(f"/v1/queues/{q}/keys/k/resolve", {"as": "done", "by": "ada"}), 409, "settled")


@test
def held_work_is_resolved_as_rejected(q):
    b = hx.broker
    held(q)
    resolve(q, "k", "rejected", result="no funds")
    yield
    members(b.key(q, "k"), state="rejected")
    same(b.key(q, "k")["result"]["body"], "no funds")


@test
def held_work_resolved_as_retry_is_done_again(q):
    b = hx.broker
    held(q)
    same(resolve(q, "k", "retry")["state"], "pending")
    yield
    m = b.one(q)
    same(m["delivery"], "retry")
    b.ok("ack", m)


@test
def held_work_resolved_as_dead_waits_among_the_dead(q):
    b = hx.broker
    held(q)
    resolve(q, "k", "dead")
    yield
    same(b.state(q, "k"), "dead")
    same(resolve(q, "k", "done", result="after all")["state"], "done", "the dead can be decided too")


@test
def held_work_is_resolved_by_its_id_too(q):
    b = hx.broker
    held(q)
    item, = b.list(q, state="held")
    reply = b.post(f"/v1/queues/{q}/messages/{item['id']}/resolve", {"as": "done", "by": "ada"})
    members(reply.json(), state="done", id=item["id"], key="k")


@test
def only_what_waits_for_a_decision_can_be_resolved(q):
    b = hx.broker
    queue(q, on_unknown="hold")
    b.put(q, "k")
    problem(b.post(f"/v1/queues/{q}/keys/k/resolve", {"as": "done", "by": "ada"}), 409, "not_held")
    problem(b.post(f"/v1/queues/{q}/keys/none/resolve", {"as": "done", "by": "ada"}), 404, "no_such_key")
    problem(b.post(f"/v1/queues/{q}-none/keys/k/resolve", {"as": "done", "by": "ada"}), 404, "no_such_queue")
    b.fail(q, "unknown")
    for body in ({"as": "gone", "by": "ada"}, {"by": "ada"}, {"as": 1, "by": "ada"}):
        same(b.post(f"/v1/queues/{q}/keys/k/resolve", body).status, 400)
    problem(b.post(f"/v1/queues/{q}/keys/k/resolve", {"as": "new", "by": "ada"}), 409, "conflict_only")
    same(b.state(q, "k"), "held")


@test
def the_newest_token_still_settles_held_work_and_a_decision_ends_it(q):
    b = hx.broker
    queue(q, on_unknown="hold")
    b.put(q, "k", "other")
    mine, other = b.receive(q, max=2)
    hx.until(lambda: b.queue(q)["held"] == 2, "both leases run out")
    yield
    same(b.ok("ack", mine, result="done after all")["state"], "done")
    resolve(q, other["key"], "retry")
    problem(b.settle("ack", other), 409, "settled")
    same(b.one(q)["key"], other["key"])


# ---- conflicts

EVENT = {"id": 1, "amount": 5, "to": {"iban": "DE1"}}
CHANGED = {"id": 1, "amount": 6, "to": {"iban": "DE2"}}


def conflict(q):
    b = hx.broker
    b.rules(q, on_conflict="hold", fingerprint="json")
    original = b.event(q, EVENT, "k").json()
    reply = b.event(q, CHANGED, "k")
    same(reply.status, 202)
    members(reply.json(), outcome="held", duplicate=False, state="held")
    assert reply.json()["key"].startswith("k~") and reply.json()["id"] != original["id"], reply
    return original, reply.json()


@test
def a_conflict_is_held_with_its_difference_field_by_field(q):
    b = hx.broker
    original, other = conflict(q)
    yield
    item, = b.list(q, state="held")
    members(item, id=other["id"], key=other["key"], held_because="conflict")
    members(item["conflict_with"], id=original["id"], key="k")
    same(sorted(str(c.get("field", c)) if isinstance(c, dict) else c for c in item["changed"]), ["amount", "to.iban"])
    same(decoded(item["payload"], item["encoding"]).replace(b" ", b""), b'{"id":1,"amount":6,"to":{"iban":"DE2"}}')
    members(b.event(q, CHANGED, "k").json(), duplicate=True, id=other["id"])
    same(len(b.list(q, state="held")), 1, "the same conflict once more is no second one")
    members(b.event(q, EVENT, "k").json(), outcome="duplicate", id=original["id"])
    same([m["key"] for m in b.receive(q, max=9)], ["k"], "the original goes on")
    reply = b.post(f"/v1/queues/{q}/keys/{hx.quote(other['key'])}/resolve", {"as": "done", "by": "ada"})
    problem(reply, 409, "conflict_only")


@test
def a_list_of_conflicts_compares_only_so_much_and_a_single_page_always(q):
    """Comparing payloads takes time that everybody else waits for: a list of a thousand once took half a minute."""
    b, event = hx.broker, {"id": 1, "amount": 5, "notes": "x" * 400_000}
    b.rules(q, on_conflict="hold", fingerprint="json")
    same(b.event(q, event, "k").status, 202)
    ids = [b.event(q, {**event, "amount": n}, "k").json()["id"] for n in range(100, 110)]
    items = b.list(q, state="held", limit=10)
    same(sorted(item["id"] for item in items), sorted(ids))
    same({item["conflict_with"]["key"] for item in items}, {"k"})
    # So much of each page; and a page ends with its time.
    assert 1 <= sum("changed" in item for item in items) < len(items), [item.get("changed") for item in items]
    for message in ids:
        page = b.get(f"/v1/queues/{q}/messages/{message}").json()
        same([c["field"] if isinstance(c, dict) else c for c in page["changed"]], ["amount"])


@test
def a_conflict_decided_as_new_is_work_of_its_own(q):
    b = hx.broker
    _, other = conflict(q)
    same(resolve(q, other["key"], "new")["state"], "pending")
    yield
    got = {m["key"]: m for m in b.receive(q, max=9)}
    same(sorted(got), sorted(["k", other["key"]]))
    same(got[other["key"]]["effect_key"], other["key"])
    for m in got.values():
        b.ok("ack", m)
    members(b.event(q, CHANGED, "k").json(), duplicate=True, id=other["id"], state="done")


@test
def a_conflict_decided_as_duplicate_is_dropped(q):
    b = hx.broker
    _, other = conflict(q)
    resolve(q, other["key"], "duplicate")
    yield
    same(b.list(q, state="held"), [])
    same([m["key"] for m in b.receive(q, max=9)], ["k"])
    assert b.event(q, CHANGED, "k").json()["duplicate"] is True
    same(b.list(q, state="held"), [], "decided once, decided for its repeats")


@test
def on_conflict_new_admits_it_by_itself(q):
    b = hx.broker
    b.rules(q, on_conflict="new", fingerprint="json")
    b.event(q, EVENT, "k")
    other = b.event(q, CHANGED, "k").json()
    members(other, outcome="accepted", state="pending")
    assert other["key"].startswith("k~"), other
    yield
    members(b.event(q, CHANGED, "k").json(), outcome="duplicate", id=other["id"])
    same(len(b.receive(q, max=9)), 2)


@test
def on_conflict_reject_names_the_changed_fields(q):
    b = hx.broker
    b.rules(q, fingerprint="json")
    b.event(q, EVENT, "k")
    same(sorted(problem(b.event(q, CHANGED, "k"), 422, "key_reused")["changed"]), ["amount", "to.iban"])
    same(b.key(q, "k")["arrivals"][-1]["kind"], "conflict")


@test
def who_decided_and_why_is_in_the_audit(q):
    b = hx.broker
    held(q)
    resolve(q, "k", "retry")
    yield
    entry = b.get(f"/v1/audit?queue={q}&what=resolve").json()["items"][0]
    members(entry, who="ada", what="resolve", queue=q, key="k", why="looked it up")
    assert "retry" in str(entry.get("detail", "")), entry
    assert abs(hx.stamp(entry["at"]) - time.time()) < 120, entry


hx.main(threads=40)
