#!/usr/bin/env python3
"""The operator's verbs, over HTTP and with the hapax command: purge, forget, replay, erase, and the audit of them all."""
import json
import os
import pty
import signal
import socket
import subprocess
import types

import hx
from hx import hapax, members, problem, same, test


def settled(q, key="k", result="r", **rules):
    b = hx.broker
    b.rules(q, **rules)
    b.put(q, key, payload=f"work of {key}")
    b.ok("ack", b.one(q), result=result)


def on_key(q, key, verb, headers=(), **body):
    return hx.broker.post(f"/v1/queues/{q}/keys/{hx.quote(key)}/{verb}", body, headers)


# ---- purge

def everything(q):
    """A message in each unsettled state, named by it."""
    b = hx.broker
    b.rules(q, on_unknown="hold")
    b.put(q, "dead", "held", "leased")
    got = {m["key"]: m for m in b.receive(q, max=3, lease="1h")}
    b.ok("nack", got["dead"], **{"class": "poison"})
    b.ok("nack", got["held"], **{"class": "unknown"})
    b.put(q, "pending")
    b.put(q, "delayed", headers=[("Hapax-Delay", "1h")])
    return got["leased"]


@test
def a_member_the_call_does_not_have_is_named(q):
    b = hx.broker
    b.put(q, "k")
    reply = b.post(f"/v1/queues/{q}/purge", {"sate": "dead", "by": "ada"})
    members(reply.json(), status=400, code="json_invalid", applied="no")
    assert '"sate"' in reply.json()["detail"] and "by note state" in reply.json()["detail"], reply
    same(b.state(q, "k"), "pending")


@test
def a_purge_cancels_what_waits_and_leaves_leases_alone(q):
    b = hx.broker
    leased = everything(q)
    same(b.post(f"/v1/queues/{q}/purge", {"by": "ada"}).json(), {"purged": 4})
    yield
    for key in ("dead", "held", "pending", "delayed"):
        members(b.key(q, key), state="cancelled", reason="purged")
        members(b.send(q, key).json(), outcome="duplicate", state="cancelled")
    same(b.ok("ack", leased)["state"], "done")
    same(b.receive(q), [])


@test
def a_purge_takes_one_state_when_asked(q):
    b = hx.broker
    everything(q)
    same(b.post(f"/v1/queues/{q}/purge", {"state": "held"}).json(), {"purged": 1})
    same(b.post(f"/v1/queues/{q}/purge", {"state": "dead"}).json(), {"purged": 1})
    same([b.state(q, k) for k in ("dead", "held", "pending", "leased")], ["cancelled", "cancelled", "pending", "leased"])
    yield
    same(b.post(f"/v1/queues/{q}/purge", {"state": "pending"}).json(), {"purged": 2})
    same(b.post(f"/v1/queues/{q}/purge").json(), {"purged": 0})
    for wrong in ("leased", "done", 1):
        same(b.post(f"/v1/queues/{q}/purge", {"state": wrong}).status, 400)
    problem(b.post(f"/v1/queues/{q}-none/purge"), 404, "no_such_queue")


@test
def a_long_purge_does_not_keep_others_waiting(q):
    b = hx.broker
    for part in range(4):
        b.batch(q, [{"key": f"k{part}-{i}", "payload": "x"} for i in range(5000)])
    purge = hx.Later(lambda: b.post(f"/v1/queues/{q}/purge"))
    b.put(q + "-other", "k")
    b.ok("ack", b.one(q + "-other"))
    same(purge.value().json(), {"purged": 20000})
    same(b.queue(q)["pending"], 0)


# ---- forget

@test
def a_forgotten_key_is_new_again(q):
    b = hx.broker
    settled(q)
    same(b.call("DELETE", f"/v1/queues/{q}/keys/k").status, 204)
    yield
    problem(b.get(f"/v1/queues/{q}/keys/k"), 404, "no_such_key")
    members(b.send(q, "k", "work of k").json(), outcome="accepted")
    m = b.one(q)
    problem(b.call("DELETE", f"/v1/queues/{q}/keys/k"), 409, "leased")
    b.ok("ack", m)
    same(b.call("DELETE", f"/v1/queues/{q}/keys/k").status, 204)
    problem(b.call("DELETE", f"/v1/queues/{q}/keys/k"), 404, "no_such_key")


@test
def unsettled_work_can_be_forgotten_too(q):
    b = hx.broker
    b.put(q, "pending")
    same(b.call("DELETE", f"/v1/queues/{q}/keys/pending").status, 204)
    yield
    same(b.receive(q), [])
    members(b.send(q, "pending").json(), outcome="accepted")


# ---- replay of a key

@test
def a_replayed_key_runs_as_its_next_generation(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    b.put(q, "k", payload="work")
    m = b.one(q)
    b.ok("step", m, name="charge", result="tx-1")
    b.ok("ack", m, result="first")
    reply = on_key(q, "k", "replay", by="ada")
    same(reply.status, 202)
    generation = m["generation"] + 1
    members(reply.json(), key="k", state="pending", generation=generation, effect_key=f"k~g{generation}")
    problem(on_key(q, "k", "replay"), 409, "not_settled")
    yield
    again = b.one(q)
    members(again, key="k", payload="work", generation=generation, effect_key=f"k~g{generation}", steps=[])
    problem(b.settle("release", m), 409, "fenced")
    b.ok("ack", again, result="second")
    problem(b.settle("ack", m), 409, "fenced")
    members(b.send(q, "k", "work").json(), outcome="duplicate", state="done")
    same(b.key(q, "k")["result"]["body"], "second")
    same(on_key(q, "k", "replay").json()["generation"], generation + 1)


def charged(q, result="charged 42"):
    """Done in its second attempt, with an effect; what is shown of that."""
    b = hx.broker
    b.rules(q, keep_payload="1h", retry={"transient": {"attempts": 6, "backoff": "10ms", "max": "10ms"}})
    b.put(q, "k", payload="work")
    b.ok("nack", b.one(q), **{"class": "transient"}, reason="the bank was away")
    b.ok("ack", b.one(q), result=result, effect_id="ch_1")
    return b.key(q, "k")


OUTCOME = ("state", "result", "attempt", "failures", "crashes", "settled_at", "first_seen", "effect_ids")


def outcome_of(view):
    return {name: view[name] for name in OUTCOME}


@test
def a_cancelled_replay_leaves_the_outcome_before_it(q):
    b = hx.broker
    before = charged(q)
    replay = on_key(q, "k", "replay", by="ada", note="undone").json()
    yield
    told = b.send(q, "k", "work")
    same(told.status, 202)
    members(told.json(), outcome="duplicate", state="pending", id=replay["id"])
    members(told.json()["previous"], id=before["id"], state="done", generation=0, result=before["result"])
    view = b.key(q, "k")
    members(view, state="pending", generation=1, effect_ids=[])
    same(outcome_of(view["previous"]), outcome_of(before), "nothing is lost while it runs again")
    same(view["previous"]["attempts"], before["attempts"])
    cancel = f"/v1/queues/{q}/messages/{replay['id']}/cancel"
    same(b.post(cancel, {"by": "bea", "note": "no need"}).json(), {"state": "done", "id": replay["id"], "key": "k", "restored": True})
    yield
    again = b.send(q, "k", "work")
    same(again.status, 200)
    members(again.json(), outcome="duplicate", state="done", result=before["result"])
    same(b.get(f"/v1/queues/{q}/keys/k/result").body, b"charged 42")
    view = b.key(q, "k")
    same(outcome_of(view), outcome_of(before))
    same(view["attempts"], before["attempts"])
    assert "previous" not in view and "reason" not in view, view
    members(view, generation=1, restored=True)
    same([(d["what"], d["by"], d["why"]) for d in view["decisions"]], [("replay", "ada", "undone"), ("cancelled", "bea", "no need")])
    members(b.post(cancel).json(), state="done", restored=True, duplicate=True)
    same(on_key(q, "k", "replay").json()["effect_key"], "k~g2", "what the cancelled one did was done under k~g1")


@test
def repeating_the_call_that_settled_gets_the_stored_answer_while_its_outcome_stands_whatever_was_replayed(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    tokens = {}
    for key, verb, said in (("done", "ack", {"result": "r1"}), ("rejected", "nack", {"class": "rejected", "result": "r2"})):
        b.put(q, key, payload="work")
        tokens[key] = (b.one(q), verb, said)
        b.ok(verb, tokens[key][0], **said)

    def repeated():
        for key, (m, verb, said) in tokens.items():
            members(b.ok(verb, m, **{**said, "result": "another"}), state=key, id=m["id"], key=key, duplicate=True,
                    result={"content_type": "text/plain", "body": said["result"], "encoding": "utf8"})
            for other in ("release", "nack" if verb == "ack" else "ack"):
                problem(b.settle(other, m, **({"class": "rejected"} if other == "nack" else {})), 409, "fenced")

    for _ in range(2):
        replays = [on_key(q, key, "replay").json()["id"] for key in tokens]
        repeated()
        yield
        other = {m["key"]: m for m in b.receive(q, max=2)}
        repeated()
        for identity in replays:
            members(b.post(f"/v1/queues/{q}/messages/{identity}/cancel").json(), restored=True)
        repeated()
        for key, (_, verb, said) in tokens.items():
            problem(b.settle(verb, other[key], **said), 409, "settled")
        yield
        repeated()


@test
def a_replay_is_cancelled_back_from_wherever_it_stands(q):
    b = hx.broker
    before = charged(q)
    waiting = hx.Later(lambda: None)
    for way in ("leased", "dead", "purged"):
        replay = on_key(q, "k", "replay").json()
        m = b.one(q, lease="1h")
        if way != "leased":
            b.ok("nack", m, **{"class": "poison"}, reason="no")
        same(b.state(q, "k"), "leased" if way == "leased" else "dead")
        yield
        if way == "leased":
            waiting = hx.Later(b.send, q, "k", "work", [("Prefer", "wait=60")])
            hx.until(lambda: b.key(q, "k")["duplicates"], "it waits")
        if way == "purged":
            same(b.post(f"/v1/queues/{q}/purge", {"state": "dead"}).json(), {"purged": 1})
        else:
            members(b.post(f"/v1/queues/{q}/messages/{replay['id']}/cancel").json(), state="done", restored=True)
        if way == "leased":
            members(waiting.value().json(), state="done", result=before["result"])
            members(problem(b.settle("ack", m, effect_id="ch_2"), 409, "settled"), state="done")
        yield
        view = b.key(q, "k")
        members(view, state="done", result=before["result"], effect_ids=["ch_1", "ch_2"])
        same(view["attempts"][:2], before["attempts"])
        same(view["attempts"][-1]["fence"], m["fence"])
        same(b.receive(q), [])


@test
def the_outcome_before_a_replay_goes_when_the_replay_has_its_own(q):
    b = hx.broker
    charged(q)
    on_key(q, "k", "replay")
    yield
    b.ok("ack", b.one(q), result="refunded")
    yield
    view = b.key(q, "k")
    members(view, state="done", effect_ids=[], attempt=1)
    same(view["result"]["body"], "refunded")
    assert "previous" not in view and "restored" not in view, view


@test
def erasing_a_replay_takes_the_words_of_the_outcome_before_it(q):
    b = hx.broker
    charged(q, result="private result")
    on_key(q, "k", "replay")
    yield
    assert b"private" in b.get(f"/v1/queues/{q}/keys/k").body
    members(on_key(q, "k", "erase", by="ada").json(), key="k", erased=True, state="done")
    yield
    for reply in (b.send(q, "k", "work"), b.get(f"/v1/queues/{q}/keys/k")):
        members(reply.json(), state="done")
        assert b"private" not in reply.body and b"ch_1" not in reply.body and b"bank" not in reply.body, reply
    problem(on_key(q, "k", "replay"), 409, "payload_gone")


@test
def a_payload_that_is_not_kept_cannot_be_replayed(q):
    b = hx.broker
    settled(q)
    problem(on_key(q, "k", "replay"), 409, "payload_gone")
    assert "set keep_payload longer" in hapax("key", "replay", q, "k", exits=1).err
    problem(on_key(q, "none", "replay"), 404, "no_such_key")
    settled(q + "-short", keep_payload="1s")
    yield
    hx.until(lambda: b.list(q + "-short", accepted_since="1h")[0].get("payload_gone"), "its time is over")
    problem(on_key(q + "-short", "k", "replay"), 409, "payload_gone")
    same(b.state(q + "-short", "k"), "done")


# ---- erase

@test
def an_erased_key_keeps_nothing_but_itself(q):
    b = hx.broker
    settled(q, result="private result", keep_payload="1h")
    reply = on_key(q, "k", "erase", by="ada", note="asked by the customer")
    same(reply.status, 200)
    members(reply.json(), key="k", erased=True, state="done")
    yield
    again = b.send(q, "k", "work of k")
    same(again.status, 200)
    members(again.json(), outcome="duplicate", state="done")
    assert b"private" not in again.body and b"private" not in b.get(f"/v1/queues/{q}/keys/k").body
    problem(on_key(q, "k", "replay"), 409, "payload_gone")
    same(b.get(f"/v1/queues/{q}/keys/k/result").body, b"")


@test
def what_is_leased_cannot_be_erased(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q)
    problem(on_key(q, "k", "erase"), 409, "leased")
    b.ok("ack", m)
    same(on_key(q, "k", "erase").status, 200)
    problem(on_key(q, "none", "erase"), 404, "no_such_key")


# ---- the audit

@test
def every_decision_is_in_the_audit_with_who_and_why(q):
    b = hx.broker
    sign = [("Hapax-Actor", "ada"), ("Hapax-Reason", "grüße, a drill")]
    b.rules(q, sign, on_unknown="hold", keep_payload="1h")
    b.post(f"/v1/queues/{q}/pause", None, sign)
    b.post(f"/v1/queues/{q}/resume", None, sign)
    ids = {key: b.put(q, key) for key in ("cancel", "resolve", "redrive", "replay", "erase", "forget", "purge")}
    got = {m["key"]: m for m in b.receive(q, max=10)}
    b.post(f"/v1/queues/{q}/messages/{ids['cancel']}/cancel", {}, sign)
    b.ok("nack", got["resolve"], **{"class": "unknown"})
    on_key(q, "resolve", "resolve", sign, **{"as": "done"})
    b.ok("nack", got["redrive"], **{"class": "poison"})
    b.post(f"/v1/queues/{q}/redrive", {}, sign)
    b.ok("ack", got["replay"])
    on_key(q, "replay", "replay", sign)
    b.ok("ack", got["erase"])
    on_key(q, "erase", "erase", sign)
    b.ok("ack", got["forget"])
    b.call("DELETE", f"/v1/queues/{q}/keys/forget", headers=sign)
    b.post(f"/v1/queues/{q}/purge", {"by": "bob", "note": "in the body"})
    yield
    wanted = ["purge", "forget", "erase", "replay", "redrive", "resolve", "cancel", "resume", "pause", "queue_put"]
    entries = b.get(f"/v1/audit?queue={q}").json()["items"]
    same([e["what"] for e in entries], wanted, "newest first")
    members(entries[0], who="bob", why="in the body", queue=q)
    for e in entries[1:]:
        members(e, who="ada", why="grüße, a drill", queue=q)
    for e in entries:
        if e["what"] in ("forget", "erase", "replay", "resolve", "cancel"):
            same(e["key"], e["what"])


@test
def erase_takes_every_message_of_a_key_that_repeats(q):
    b = hx.broker
    b.call("PUT", f"/v1/queues/{q}", b'{"semantics":"at_least_once"}')
    for n in range(70):
        same(b.send(q, "jane", f"secret {n}").status, 202)
    b.send(q, "joe", "his own")
    reply = b.post(f"/v1/queues/{q}/keys/jane/erase", {"by": "ann"})
    same((reply.status, reply.json()["messages"], reply.json()["erased"]), (200, 70, True))
    got = b.post(f"/v1/queues/{q}/receive?max=100").json()["messages"]
    same([m["key"] for m in got], ["joe"])
    same(b.call("DELETE", f"/v1/queues/{q}/keys/jane").status, 204)
    same(b.get(f"/v1/queues/{q}").json()["keys"], 0)
    same(b.post(f"/v1/queues/{q}/keys/nobody/erase").status, 404)


@test
def what_changes_nothing_is_not_in_the_audit(q):
    b = hx.broker
    for _ in range(3):
        same(b.post(f"/v1/queues/{q}/pause", {"by": "ann"}).status, 200)
    same([e["what"] for e in b.get(f"/v1/audit?queue={q}").json()["items"]], ["pause"])


@test
def the_audit_is_filtered_and_paged(q):
    b = hx.broker
    for who, what in (("ann", "pause"), ("bob", "resume"), ("ann", "pause")):
        b.post(f"/v1/queues/{q}/{what}", {"by": f"{who}-{q}"})
    b.post(f"/v1/queues/{q}/resume")
    entries = lambda query: b.get(f"/v1/audit?queue={q}&{query}").json()["items"]
    same(len(entries(f"who=ann-{q}")), 2)
    same([e["who"] for e in entries("what=resume")], ["anonymous", f"bob-{q}"])
    same(len(entries("since=1h")), 4)
    same(entries("since=2120-01-31T12:00:00Z"), [])
    first = b.get(f"/v1/audit?queue={q}&limit=3").json()
    same(len(first["items"]), 3)
    rest = b.get(f"/v1/audit?queue={q}&limit=3&cursor={hx.quote(first['next_cursor'])}").json()
    same((len(rest["items"]), rest["next_cursor"]), (1, None))
    for wrong in ("what=nonsense", "since=soon", "limit=0", "cursor=%20"):
        same(b.get(f"/v1/audit?{wrong}").status, 400, wrong)


@test
def a_refused_decision_leaves_no_trace(q):
    b = hx.broker
    b.put(q, "k")
    b.one(q)
    b.call("DELETE", f"/v1/queues/{q}/keys/k")
    on_key(q, "k", "erase")
    same(b.get(f"/v1/audit?queue={q}").json()["items"], [])


# ---- the same with the hapax command

@test
def hapax_decides_and_signs(q):
    b = hx.broker
    b.rules(q, on_unknown="hold", keep_payload="1h")
    b.put(q, "a", "b", "c")
    b.fail(q, "unknown", "unknown")
    assert "a" in hapax("held", "list", q).text
    held = hapax("held", "list", q, "--json").json["items"]
    same(sorted(i["key"] for i in held), ["a", "b"])
    hapax("key", "resolve", q, "a", "--as", "done", "--result", "found", "--by", "ada", "--note", "looked it up")
    same(b.key(q, "a")["result"]["body"], "found")
    assert "the line" not in hapax("held", "show", q, held[1]["id"]).text
    hapax("held", "resolve", q, next(i["id"] for i in held if i["key"] == "b"), "--as", "retry")
    hapax("key", "replay", q, "a")
    same(sorted(m["key"] for m in b.receive(q, max=9)), ["a", "b", "c"])
    assert "leased" in hapax("key", "forget", q, "c", "--yes", exits=1).err
    b.rules(q)
    entries = hapax("audit", "--queue", q, "--json").json["items"]
    same([(e["what"], e["who"]) for e in entries if e["what"] in ("resolve", "replay")],
         [("replay", "tester"), ("resolve", "tester"), ("resolve", "ada")])
    table = hapax("audit", "--queue", q, "--who", "ada").text
    assert "looked it up" in table and "resolve" in table and "tester" not in table, table


@test
def hapax_erases_and_forgets(q):
    settled(q)
    assert hapax("key", "erase", q, "k", "--yes", "--json").json["erased"] is True
    hapax("key", "forget", q, "k", "--yes")
    hapax("key", "show", q, "k", exits=1)
    hapax("key", "forget", q, "k", "--yes", exits=1)


@test
def hapax_sets_rules_without_losing_the_others(q):
    b = hx.broker
    hapax("queues", "set", q, "window=2h", "retry.transient.attempts=8", "key=order:${id}", "fingerprint={ignore: [sent_at]}")
    shown = hapax("queues", "set", q, "lease=10s", "--json").json["config"]
    members(shown, window="2h", lease="10s", key="order:${id}", fingerprint={"ignore": ["sent_at"]})
    same(shown["retry"]["transient"]["attempts"], 8)
    shown = hapax("queues", "set", q, "key=", "--json").json["config"]
    assert "key" not in shown, shown
    same(shown["window"], "2h")
    shown = hapax("queues", "set", q, "class=audit", "--json").json["config"]
    members(shown, semantics="at_least_once", lease="30s")
    shown = hapax("queues", "set", q, "--file", "-", "--json", stdin=b"window: 3h  # a comment\nlimits: {pending: 5}\n").json["config"]
    members(shown, window="3h", semantics="exactly_once", limits={**shown["limits"], "pending": 5})
    for wrong in (["windwo=1h"], ["window"], ["=1h"], ["window={min: 1h"], []):
        hapax("queues", "set", q, *wrong, exits=1 if wrong == ["windwo=1h"] else 2)
    assert "window" in hapax("queues", "set", q, "windwo=1h", exits=1).err
    assert "remembered" in hapax("queues", "explain", q).text
    hapax("queues", "delete", q, "--yes")
    problem(b.get(f"/v1/queues/{q}"), 404, "no_such_queue")


@test
def a_purge_asks_with_the_numbers(q):
    everything(q)
    assert "2 pending, 1 held and 1 dead" in hapax("queues", "purge", q, exits=2).err
    for state, count in (("pending", 2), ("held", 1), ("dead", 1)):
        assert f"at this moment {count} {state}." in hapax("queues", "purge", q, "--state", state, exits=2).err
    assert "no_such_queue" in hapax("queues", "purge", q + "-none", exits=1).err


@test
def hapax_purges_by_state(q):
    everything(q)
    same(hapax("queues", "purge", q, "--state", "dead", "--yes", "--json").json, {"purged": 1})
    same(hapax("queues", "purge", q, "--yes", "--json").json, {"purged": 3})
    assert "leased" in hapax("queues", "purge", q, "--state", "leased", exits=2).err


@test
def hapax_redrives_and_follows_the_task(q):
    b = hx.broker
    b.put(q, *(f"k{i}" for i in range(12)))
    for m in b.receive(q, max=12):
        b.ok("nack", m, **{"class": "poison"}, reason=f"bad \x1b[31m{m['key']}")
    table = hapax("dead", "list", q).text
    assert "poison" in table and "\x1b" not in table and "k11" in table, table
    same(len(hapax("dead", "list", q, "--reason", "k11", "--json").json["items"]), 1)
    members(hapax("dead", "redrive", q, "--dry-run", "--json").json, matched=12, redriven=0)
    members(hapax("dead", "redrive", q, "--max", "2", "--json").json, redriven=2)
    done = hapax("dead", "redrive", q, "--rate", "20", "--max", "5", "--json").json
    members(done, state="done", redriven=5)
    identity = hapax("dead", "redrive", q, "--rate", "1", "--detach", "--json").json["task"]
    assert identity in hapax("tasks", "list").text
    same(hapax("tasks", "show", identity, "--json").json["state"], "running")
    hapax("tasks", "cancel", identity)
    same(hapax("tasks", "show", identity, "--follow", "--json", exits=1).json["state"], "cancelled")
    hapax("tasks", "show", "nonsense", exits=1)


@test
def a_followed_task_goes_on_when_it_is_left(q):
    b = hx.broker
    b.put(q, *(f"k{i}" for i in range(6)))
    for m in b.receive(q, max=6):
        b.ok("nack", m, **{"class": "poison"})
    process = hx.start_hapax("dead", "redrive", q, "--rate", "5")
    task = hx.until(lambda: next((t for t in b.get("/v1/tasks").json()["items"] if t["queue"] == q), None), "the task runs")
    hx.until(lambda: json.loads(b.get(f"/v1/tasks/{task['id']}").body)["redriven"] >= 1, "it has begun")
    process.send_signal(2)
    _, err = process.communicate(timeout=hx.TIMEOUT)
    same(process.returncode, 3)
    assert f"hapax tasks cancel {task['id']}" in err.decode(), err
    hx.until(lambda: b.queue(q)["dead"] == 0, "the task goes on")


@test
def hapax_runs_commands_on_every_kind_of_queue(q):
    b = hx.broker
    for semantics in ("exactly_once", "at_least_once", "at_most_once"):
        queue = f"{q}-{semantics}"
        b.rules(queue, semantics=semantics)
        same(b.send(queue, "k", "keyed").status, 202)
        if semantics != "exactly_once":
            identity = b.send(queue, None, "keyless").json()["id"]
        seen = {}
        for _ in range(1 if semantics == "exactly_once" else 2):
            with open(os.path.join(b.data, queue), "w+", encoding="utf-8") as out:
                ran = hapax("receive", queue, "--exec", f'printf "%s|%s|" "$HAPAX_KEY" "$HAPAX_EFFECT_KEY" > {out.name}; cat >> {out.name}')
                key, effect_key, payload = out.read().split("|")
                seen[payload] = (key, effect_key)
            assert "done" in ran.text, ran
            os.unlink(os.path.join(b.data, queue))
        same(seen["keyed"][0], "k")
        if semantics != "exactly_once":
            same(seen["keyless"], ("", identity))
        same(b.receive(queue), [])


def at_a_terminal(typed, *words):
    """The command with a person in front of it: exit code, what it printed, what the screen showed."""
    person, terminal = pty.openpty()
    env = {**os.environ, "HAPAX_URL": hx.broker.url}
    process = subprocess.Popen([hx.HAPAX, *words], stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, env=env)
    os.close(terminal)
    os.write(person, typed)
    out = process.communicate(timeout=hx.TIMEOUT)[0]
    screen = b""
    try:
        while piece := os.read(person, 4096):
            screen += piece
    except OSError:
        pass  # how a terminal says that it is over
    os.close(person)
    return process.returncode, out.decode(), screen.decode()


@test
def what_cannot_be_undone_is_asked_about_at_a_terminal(q):
    b = hx.broker
    b.put(q, "k")
    code, _, screen = at_a_terminal(b"no\n", "queues", "purge", q)
    same((code, b.state(q, "k")), (1, "pending"))
    assert "1 pending, 0 held and 0 dead" in " ".join(screen.split()), screen
    assert "Type yes" in screen and "nothing was done" in screen, screen
    same(at_a_terminal(b"yes\n", "queues", "purge", q)[0], 0)
    same(b.state(q, "k"), "cancelled")
    same(at_a_terminal(b"", "key", "forget", q, "k", "--yes")[0], 0)


@test
def what_destroys_is_refused_where_there_is_nobody_to_ask(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    b.put(q, "done", payload="the payload")
    b.ok("ack", b.one(q), result="the result")
    b.put(q, "waiting")
    for words in (["queues", "purge", q], ["queues", "delete", q], ["key", "forget", q, "done"], ["key", "erase", q, "done"]):
        for stdin in (b"", b"yes\n"):
            ran = hapax(*words, exits=2, stdin=stdin)
            assert "nothing was done" in ran.err and "--yes" in ran.err and "terminal" in ran.err and not ran.text, ran
    members(b.key(q, "done"), state="done", payload_kept=True)
    same(b.key(q, "done")["result"]["body"], "the result")
    same(b.state(q, "waiting"), "pending")
    same([e for e in b.get(f"/v1/audit?queue={q}").json()["items"] if e["what"] != "queue_put"], [])
    for words in (["key", "erase", q, "done"], ["key", "forget", q, "done"], ["queues", "purge", q]):
        hapax(*words, "--yes")


@test
def progress_is_shown_at_a_terminal_only(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    b.put(q, *(f"k{i}" for i in range(8)))
    code, out, screen = at_a_terminal(b"", "replay", q, "--since", "1h", "--rate", "16")
    same(code, 0, screen)
    assert "[####" in screen and "8 of 8" in screen and "[#" not in out, (out, screen)
    assert "[#" not in hapax("replay", q, "--since", "1h").err
    for m in b.receive(q, max=8):
        b.ok("nack", m, **{"class": "poison"})
    code, out, screen = at_a_terminal(b"", "dead", "redrive", q, "--rate", "10")
    same(code, 0, screen)
    assert "redriving" in screen and "of 8" in screen and "redriving" not in out, (out, screen)


@test
def ctrl_c_at_a_decision_says_that_it_goes_on_at_the_broker(q):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(hx.TIMEOUT)
        broker = types.SimpleNamespace(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        process = hx.start_hapax("queues", "purge", q, "--yes", of=broker)
        asked, said = silent.accept()[0], b""
        with asked:
            while b"/purge" not in said:
                said += asked.recv(4096)
            process.send_signal(signal.SIGINT)
            err = process.communicate(timeout=hx.TIMEOUT)[1].decode()
    same(process.returncode, 3)
    assert "goes on" in err and "hapax audit" in err, err


hx.main(threads=40)
