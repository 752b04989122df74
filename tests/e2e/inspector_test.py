#!/usr/bin/env python3
"""The inspector: what became of a key and why, who holds what, and how anything is found again."""
import hx
from hx import hapax, members, problem, same, test


def revoke(q, message, **body):
    return hx.broker.post(f"/v1/queues/{q}/messages/{message['id']}/revoke", body)


def consumers(q):
    reply = hx.broker.get(f"/v1/consumers?queue={q}")
    same(reply.status, 200)
    return {item["name"]: item for item in reply.json()["items"]}


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


# ---- consumers

@test
def consumers_are_named_with_their_leases(q):
    b = hx.broker
    b.put(q, "a", "b", "c", "d")
    b.receive(q, max=2, lease="1h", consumer="w1")
    b.receive(q, max=1, lease="1h", consumer="größer & \"7\"")
    b.receive(q, max=1, lease="1h")
    b.receive(q, max=1, consumer="idle")
    yield
    have = consumers(q)
    want = {"w1": 2, "größer & \"7\"": 1, "": 1}
    same({n: c["count"] for n, c in have.items() if c["count"]}, want)
    assert all(have[n]["oldest"] and (have[n]["last_seen"] or not n) for n in want), have


@test
def an_idle_consumer_is_listed_with_nothing_and_its_last_word(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, consumer="w1")
    taken = consumers(q)["w1"]
    b.ok("ack", m)
    members(consumers(q)["w1"], count=0, oldest=None, queue=q)
    assert consumers(q)["w1"]["last_seen"] >= taken["last_seen"]
    assert any(c["name"] == "w1" and c["queue"] == q for c in b.get("/v1/consumers").json()["items"])


@test
def a_queue_that_is_not_there_has_no_consumers(q):
    problem(hx.broker.get(f"/v1/consumers?queue={q}"), 404, "no_such_queue")


@test
def a_queue_made_anew_does_not_inherit_consumers(q):
    b = hx.broker
    b.put(q, "k")
    b.ok("ack", b.one(q, consumer="w1"))
    same(b.call("DELETE", f"/v1/queues/{q}").status, 204)
    same([c for c in b.get("/v1/consumers").json()["items"] if c["queue"] == q], [])
    b.put(q, "k2")
    same(consumers(q), {})


@test(alone=True)
def more_names_than_are_kept_forget_the_longest_silent_but_no_lease(q):
    b = hx.broker
    n = 4200
    same(b.batch(q, [{"key": f"k{i}", "payload": "x"} for i in range(n)]).status, 200)
    for i in range(n):
        b.receive(q, lease="1h", consumer=f"w{i}")
    have = consumers(q)
    same(sum(c["count"] for c in have.values()), n)
    same(len(have), 4097)
    same(have[f"w{n - 1}"]["count"], 1)
    same(have[""]["count"], n - 4096)


@test
def the_command_lists_consumers(q):
    b = hx.broker
    b.put(q, "k")
    b.one(q, lease="1h", consumer="w\x20one")
    shown = hapax("consumers", q).text
    assert "w one" in shown and "LAST SEEN" in shown.upper(), shown


hx.main(threads=20)
