#!/usr/bin/env python3
"""The inspector: what became of a key and why, who holds what, and how anything is found again."""
import hx
from hx import hapax, members, problem, same, test


def revoke(q, message, **body):
    return hx.broker.post(f"/v1/queues/{q}/messages/{message['id']}/revoke", body)


# ---- revoke

@test
def a_revoked_lease_is_over_at_once_and_no_crash_is_counted(q):
    b = hx.broker
    b.rules(q, retry={"crashes": {"attempts": 1}})
    b.put(q, "k")
    first = b.one(q, lease="1h", consumer="w1")
    members(revoke(q, first, by="ann", note="it hangs").json(), state="pending", id=first["id"], key="k")
    yield
    again = b.one(q, consumer="w2")
    members(again, attempt=2, crashes=0, failures=0, delivery="retry")
    attempt = b.key(q, "k")["attempts"][0]
    members(attempt, ended="revoked", consumer="w1", reason="revoked by ann: it hangs")
    problem(b.settle("ack", first), 409, "fenced")
    b.ok("ack", again)


@test
def the_token_of_a_revoked_lease_still_settles_until_somebody_else_has_it(q):
    b = hx.broker
    for key, verb, says, state in (("a", "ack", {}, "done"), ("n", "nack", {"class": "rejected"}, "rejected"), ("r", "release", {}, "pending")):
        b.put(q, key)
        m = b.one(q, lease="1h")
        same(revoke(q, m).status, 200)
        yield
        same(b.ok(verb, m, **says)["state"], state)
        if state == "pending":
            members(b.one(q), attempt=1, crashes=0)


@test
def a_revoked_lease_comes_back_to_a_worker_that_extends_it(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, lease="1h")
    revoke(q, m)
    yield
    same(b.ok("extend", m)["state"], "leased")
    same(b.receive(q), [])
    same(b.ok("ack", m)["state"], "done")
    members(b.key(q, "k"), crashes=0, attempt=1)


@test
def a_crash_before_it_is_not_taken_back_by_the_word_after_a_revoke(q):
    b = hx.broker
    b.put(q, "k")
    b.one(q, lease="1s")
    m = b.one(q, lease="1h")
    same(m["crashes"], 1)
    revoke(q, m)
    b.ok("nack", m, **{"class": "transient"})
    members(b.key(q, "k"), crashes=1, failures=1)


@test
def what_was_revoked_is_looked_up_or_held_as_if_it_had_run_out(q):
    b = hx.broker
    b.rules(q, on_unknown="reconcile", retry={"crashes": {"attempts": 1}})
    b.put(q, "k")
    same(revoke(q, b.one(q, lease="1h")).json()["state"], "pending")
    yield
    asked = b.one(q, lease="1h")
    same(asked["delivery"], "reconcile")
    same(revoke(q, asked).json()["state"], "pending")
    same(b.one(q)["delivery"], "reconcile")
    b.rules(q + ".h", on_unknown="hold")
    b.put(q + ".h", "k")
    same(revoke(q + ".h", b.one(q + ".h", lease="1h")).json()["state"], "held")


@test
def only_a_lease_is_revoked_and_refusals_are_not_in_the_trail(q):
    b = hx.broker
    id = b.put(q, "k")
    members(problem(revoke(q, {"id": id}), 409, "not_leased"), state="pending")
    m = b.one(q, lease="1h", start="explicit")
    same(revoke(q, m, by="ann", note="why not").json()["state"], "pending")
    members(b.one(q), attempt=1, delivery="first")
    trail = b.get(f"/v1/audit?queue={q}&what=revoke").json()["items"]
    same([(d["who"], d["why"], d["id"]) for d in trail], [("ann", "why not", id)])


@test
def the_command_revokes_and_says_who(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, lease="1h")
    hapax("revoke", q, m["id"], "--by", "bob", "--note", "stuck")
    members(b.key(q, "k"), state="pending")
    assert "lease" in hapax("revoke", q, m["id"], exits=1).err
    same(b.get(f"/v1/audit?queue={q}").json()["items"][0]["who"], "bob")


hx.main(threads=20)
