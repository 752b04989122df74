#!/usr/bin/env python3
"""Dead letters are a state with a history, not a second queue: listed with filters, redriven with filters, a maximum and a
rate, as a task when it is long."""
import time

import hx
from hx import members, problem, same, test

FAST = {"backoff": "1ms", "max": "1ms"}


def redrive(q, **body):
    reply = hx.broker.post(f"/v1/queues/{q}/redrive", body)
    same(reply.status, 200, repr(reply))
    return reply.json()


def bury(q, *keys, reason="broken", **members_):
    """Messages that are dead by one poison attempt."""
    hx.broker.put(q, *keys)
    for m in hx.broker.receive(q, max=len(keys)):
        same(hx.broker.ok("nack", m, **{"class": "poison"}, reason=reason, **members_)["state"], "dead")


def graveyard(q):
    """One dead by each way there."""
    b = hx.broker
    b.rules(q, retry={"transient": {"attempts": 2, **FAST}, "unknown": {"attempts": 1}})
    for key, classes in [("poison", ["poison"]), ("transient", ["transient"] * 2), ("unknown", ["unknown"])]:
        b.put(q, key, payload=f"work of {key}")
        same(b.fail(q, *classes, reason=f"Gateway said {key}")["state"], "dead")


def keys(items):
    return sorted(item["key"] for item in items)


@test
def the_dead_are_listed_with_their_last_attempt_and_filtered(q):
    b = hx.broker
    graveyard(q)
    yield
    items = {item["key"]: item for item in b.list(q, state="dead")}
    same(sorted(items), ["poison", "transient", "unknown"])
    members(items["transient"], payload="work of transient", **{"class": "transient", "reason": "Gateway said transient"})
    same(len(b.key(q, "transient")["attempts"]), 2)
    same(keys(b.list(q, state="dead", **{"class": "unknown"})), ["unknown"])
    same(keys(b.list(q, state="dead", reason="gateway SAID p")), ["poison"])
    same(keys(b.list(q, state="dead", reason="nothing like it")), [])
    same(len(b.list(q, state="dead", since="1h")), 3)
    same(len(b.list(q, state="dead", since="2020-01-31T12:00:00Z")), 3)
    same(b.list(q, state="dead", since="2120-01-31T12:00:00Z"), [])
    same(len(b.list(q, state="dead", limit=1)), 3, "page by page")
    for wrong in ("class=worse", "since=yesterday", "limit=0"):
        same(b.get(f"/v1/queues/{q}/messages?state=dead&{wrong}").status, 400, wrong)


@test
def a_dry_run_counts_and_changes_nothing(q):
    b = hx.broker
    graveyard(q)
    members(redrive(q, dry_run=True), matched=3, redriven=0, no_op=0, dry_run=True)
    members(redrive(q, dry_run=True, **{"class": "poison"}), matched=1)
    yield
    same(b.queue(q)["dead"], 3)
    same(b.receive(q), [])


@test
def a_filter_that_finds_one_among_ten_thousand_does_not_say_none(q):
    """A page of the list looks at 10,000; the one that is asked for lies behind them."""
    b = hx.broker
    for first in range(0, 11000, 1000):
        same(b.batch(q, [{"key": f"k{i}", "payload": i} for i in range(first, first + 1000)]).status, 200)
        while taken := b.receive(q, max=1000):
            said = [{"token": m["token"], "class": "poison", "reason": "needle" if m["key"] == "k10500" else "hay"} for m in taken]
            same({r["state"] for r in b.post("/v1/nack", said).json()}, {"dead"})
    page = b.get(f"/v1/queues/{q}/messages?state=dead&reason=needle").json()
    assert page["items"] == [] and page["next_cursor"], page
    found = hx.hapax("dead", "list", q, "--reason", "needle")
    assert "k10500" in found.text and "none" not in found.err, found
    same(keys(hx.hapax("dead", "list", q, "--reason", "needle", "--json").json["items"]), ["k10500"])
    none = hx.hapax("dead", "list", q, "--reason", "nothing like it")
    assert "none" in none.err and "there are more" not in none.err, none
    summary = next(a["summary"] for a in hx.until(
        lambda: [a for a in b.get("/v1/alerts").json()["items"] if a.get("queue") == q and a["value"] >= 11000], "the alert"))
    assert summary.startswith("11000 (alert at"), summary


@test
def a_redrive_takes_what_its_filters_name(q):
    b = hx.broker
    graveyard(q)
    members(redrive(q, reason="said TRANS"), matched=1, redriven=1, no_op=0)
    same(b.one(q)["key"], "transient")
    members(redrive(q, since="2120-01-31T12:00:00Z"), matched=0, redriven=0)
    yield
    members(redrive(q, max=1), redriven=1)
    same(b.queue(q)["dead"], 1)
    members(redrive(q), matched=1, redriven=1)
    members(redrive(q), matched=0, redriven=0, no_op=0)
    for wrong in ({"class": "worse"}, {"max": 0}, {"rate": -1}, {"since": "soon"}, {"dry_run": 1}, {"colour": "red"}):
        same(b.post(f"/v1/queues/{q}/redrive", wrong).status, 400, str(wrong))
    problem(b.post(f"/v1/queues/{q}-none/redrive", {}), 404, "no_such_queue")


@test
def a_redrive_takes_the_messages_it_names_and_no_other(q):
    b = hx.broker
    graveyard(q)
    ids = {item["key"]: item["id"] for item in b.list(q, state="dead")}
    members(redrive(q, ids=[ids["poison"], ids["unknown"]], dry_run=True), matched=2, would_run=1, would_reconcile=1)
    members(redrive(q, ids=[ids["poison"], ids["unknown"]], **{"class": "unknown"}, dry_run=True), matched=1)
    members(redrive(q, ids=[]), matched=0, redriven=0)
    same(b.queue(q)["dead"], 3, "none named is none, not all")
    members(redrive(q, ids=[ids["poison"], ids["poison"]]), matched=1, redriven=1)
    same(keys(b.list(q, state="dead")), ["transient", "unknown"])
    members(redrive(q, ids=[ids["poison"]]), matched=0, redriven=0)
    same(b.get(f"/v1/audit?queue={q}&what=redrive").json()["items"][1]["detail"], {"ids": 2})
    other = f"{q}-other"
    b.rules(other)
    members(redrive(other, ids=[ids["unknown"]]), matched=0, redriven=0)
    for wrong in (["no id"], [7], "x", {}, None, [ids["poison"]] * 1001, [[ids["poison"]]]):
        problem(b.post(f"/v1/queues/{q}/redrive", {"ids": wrong}), 400, "param_invalid")
    same(b.queue(q)["dead"], 2)


@test
def a_redriven_message_keeps_key_effect_key_steps_and_history(q):
    b = hx.broker
    b.rules(q, retry={"transient": {"attempts": 1, **FAST}})
    b.put(q, "k")
    m = b.one(q)
    b.ok("step", m, name="charge", result="tx-1")
    same(b.ok("nack", m, **{"class": "transient"}, reason="no mail server")["state"], "dead")
    redrive(q)
    yield
    again = b.one(q)
    members(again, key="k", effect_key="k", id=m["id"], generation=m["generation"], delivery="retry")
    same([step["name"] for step in again["steps"]], ["charge"])
    assert int(again["fence"]) > int(m["fence"])
    problem(b.settle("ack", m), 409, "fenced")
    b.ok("ack", again, result="ok")
    shown = b.key(q, "k")
    same([a.get("class") for a in shown["attempts"]][:1], ["transient"])
    same(len(shown["attempts"]), 2)


@test
def a_redrive_gives_all_attempts_anew(q):
    b = hx.broker
    b.rules(q, retry={"transient": {"attempts": 2, **FAST}})
    b.put(q, "k")
    b.fail(q, "transient", "transient")
    redrive(q)
    yield
    same(b.fail(q, "transient")["state"], "pending")
    same(b.fail(q, "transient")["state"], "dead")


@test
def what_any_attempt_left_unknown_comes_back_as_reconcile(q):
    b = hx.broker
    b.rules(q, on_unknown="retry", retry={"unknown": {"attempts": 2}, "transient": {"attempts": 9, **FAST}})
    b.put(q, "k", "clean")
    while b.queue(q)["dead"] < 2:
        m = b.one(q)
        same(m["delivery"] in ("first", "retry"), True)
        b.ok("nack", m, **{"class": "poison" if m["key"] == "clean" else "unknown"})
    redrive(q)
    yield
    same({m["key"]: m["delivery"] for m in b.receive(q, max=2)}, {"k": "reconcile", "clean": "retry"})


@test
def a_late_ack_with_the_newest_token_settles_the_dead(q):
    b = hx.broker
    b.rules(q, lease="1s", retry={"crashes": {"attempts": 1}})
    b.put(q, "k")
    m = b.one(q)
    hx.until(lambda: b.state(q, "k") == "dead", "the crash is one too many")
    members(b.key(q, "k"), reason="its lease ran out 1 time")
    yield
    same(b.ok("ack", m, result="it was done")["state"], "done")
    members(redrive(q), matched=0)


# ---- tasks

def task(q, **body):
    reply = hx.broker.post(f"/v1/queues/{q}/redrive", body)
    same(reply.status, 202, repr(reply))
    identity = reply.json()["task"]
    same(reply.header("Location"), f"/v1/tasks/{identity}")
    return identity


def look(identity):
    reply = hx.broker.get(f"/v1/tasks/{identity}")
    same(reply.status, 200, repr(reply))
    return reply.json()


def ended(identity):
    return hx.until(lambda: (lambda t: t if t["state"] != "running" else None)(look(identity)), "the task ends")


@test
def a_rated_redrive_is_a_task_and_keeps_its_rate(q):
    bury(q, *(f"k{i}" for i in range(8)))
    began = time.monotonic()
    identity = task(q, rate=8)
    members(look(identity), id=identity, kind="redrive", queue=q, state="running")
    done = ended(identity)
    members(done, state="done", matched=8, redriven=8, no_op=0)
    assert time.monotonic() - began > 0.5, time.monotonic() - began
    assert hx.stamp(done["ended_at"]) >= hx.stamp(done["started_at"])
    same(len(hx.broker.receive(q, max=20)), 8)
    assert identity in [t["id"] for t in hx.broker.get("/v1/tasks").json()["items"]]


@test
def who_stopped_a_task_is_in_the_audit_trail_once_and_why(q):
    b = hx.broker
    bury(q, *(f"k{i}" for i in range(30)))
    identity = task(q, rate=1)
    for _ in range(2):
        same(b.call("DELETE", f"/v1/tasks/{identity}", b'{"by":"ada","note":"still broken"}').status, 200)
    items = b.get(f"/v1/audit?queue={q}&what=task_cancel").json()["items"]
    same(len(items), 1)
    members(items[0], who="ada", why="still broken", detail={"task": identity})


@test
def a_cancelled_task_stops_and_what_it_did_stays(q):
    b = hx.broker
    bury(q, *(f"k{i}" for i in range(30)))
    identity = task(q, rate=20)
    hx.until(lambda: look(identity)["redriven"] >= 2, "it has begun")
    cancelled = b.call("DELETE", f"/v1/tasks/{identity}")
    same(cancelled.status, 200)
    done = ended(identity)
    same(done["state"], "cancelled")
    yield
    counts = b.queue(q)
    same(counts["dead"] + counts["pending"], 30)
    assert 2 <= counts["pending"] < 30, counts
    members(redrive(q), redriven=counts["dead"])
    problem(b.get(f"/v1/tasks/{identity}"), 404, "no_such_task")


@test
def what_was_settled_meanwhile_is_a_no_op(q):
    b = hx.broker
    bury(q, *(f"k{i}" for i in range(10)))
    identity = task(q, rate=10)
    same(b.post(f"/v1/queues/{q}/keys/k9/resolve", {"as": "done", "by": "me"}).status, 200)
    done = ended(identity)
    members(done, state="done", matched=10, redriven=9, no_op=1)
    same(b.state(q, "k9"), "done")


@test
def a_long_redrive_is_a_task_by_itself(q):
    b = hx.broker
    b.batch(q, [{"key": f"k{i}", "payload": "x"} for i in range(1100)])
    while True:
        got = b.receive(q, max=1000)
        if not got:
            break
        b.post("/v1/nack", [{"token": m["token"], "class": "poison"} for m in got])
    members(ended(task(q)), state="done", matched=1100, redriven=1100)
    same(b.queue(q)["pending"], 1100)


@test
def there_is_no_such_task(q):
    problem(hx.broker.get(f"/v1/tasks/{q}"), 404, "no_such_task")
    problem(hx.broker.call("DELETE", f"/v1/tasks/{q}"), 404, "no_such_task")


@test
def a_dry_run_foresees_what_a_redrive_then_does(q):
    b = hx.broker
    rules = {"key": "${id}", "retry": {"unknown": {"attempts": 1}, "transient": {"attempts": 1}}}
    b.rules(q, schema={"required": ["amount"]}, **rules)
    for n in range(3):
        same(b.event(q, {"id": n, "amount": n}).status, 202)
    b.fail(q, "transient", "poison", "unknown")
    for value in ({"id": "a", "wrong": 1}, {"id": "b", "euros": 2}):
        problem(b.event(q, value), 422, "schema")
    b.rules(q, schema={"required": ["euros"]}, **rules)
    deeds = len(b.get(f"/v1/audit?queue={q}").json()["items"])
    foreseen = redrive(q, dry_run=True)
    same(foreseen, {"matched": 5, "redriven": 0, "no_op": 0, "dry_run": True, "would_run": 3, "would_reconcile": 1, "would_refuse": 1})
    same(b.queue(q)["dead"], 5, "nothing was done")
    same(len(b.get(f"/v1/audit?queue={q}").json()["items"]), deeds, "a dry run is no deed")
    same([t for t in b.get("/v1/tasks").json()["items"] if t["queue"] == q], [], "nor a task")
    same(redrive(q, dry_run=True, rate=1), foreseen, "whatever the rate")
    text = hx.hapax("dead", "redrive", q, "--dry-run").text
    assert "5 match" in text and "3 would run" in text and "1 would be looked up first" in text and "1 would fail the schema" in text, text
    members(redrive(q), matched=5, redriven=4, still_refused=1)
    same(sorted(m["delivery"] for m in b.receive(q, max=9)), ["first", "reconcile", "retry", "retry"])


@test
def what_failed_the_schema_is_let_in_later_under_the_key_it_was_sent_with(q):
    b = hx.broker
    b.rules(q, schema={"required": ["a"]})
    for key in ("order-1", "order-2"):
        problem(b.event(q, {"b": 1}, key), 422, "schema")
    same(sorted(item["key"] for item in b.list(q, state="dead")), ["order-1", "order-2"], "the same payload, and two intents")
    b.rules(q)
    members(redrive(q), matched=2, redriven=2)
    same(sorted(m["key"] for m in b.receive(q, max=9)), ["order-1", "order-2"])
    same(b.event(q, {"b": 1}, "order-1").json()["duplicate"], True)


@test
def a_dry_run_counts_what_comes_back_with_its_head(q):
    b = hx.broker
    b.rules(q, on_dead="dead_letter_group")
    for n in range(4):
        b.send(q, f"k{n}", headers=[("Hapax-Group", "g")])
    b.fail(q, "poison")
    members(redrive(q, dry_run=True), matched=1, would_run=1, with_group=3)
    members(redrive(q), matched=1, redriven=1, with_group=3)


hx.main(threads=40)
