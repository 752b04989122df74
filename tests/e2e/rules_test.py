#!/usr/bin/env python3
"""Every queue its own rules: semantics, retry limits, order, windows, backpressure; through restarts in the middle."""
import json
import time

import hx
from hx import members, problem, same, stamp, test


# ---- semantics

@test
def an_at_least_once_queue_appends_every_arrival(q):
    b = hx.broker
    b.rules(q, semantics="at_least_once")
    first, again = b.send(q, "k", "same").json(), b.send(q, "k", "same").json()
    members(again, outcome="accepted", duplicate=False, key="k")
    assert first["id"] != again["id"]
    members(b.send(q, None, "keyless").json(), outcome="accepted", key=None)
    yield
    got = b.receive(q, max=10)
    same(sorted((m["key"] or "", m["payload"]) for m in got), [("", "keyless"), ("k", "same"), ("k", "same")])
    for m in got:
        same(b.ok("ack", m)["state"], "done")
    members(b.send(q, "k", "same").json(), outcome="accepted")
    items = b.key(q, "k")["items"]
    same(sorted(item["state"] for item in items), ["done", "done", "pending"])
    assert {first["id"], again["id"]} < {item["id"] for item in items}


@test
def an_at_least_once_queue_retries_what_failed(q):
    b = hx.broker
    b.rules(q, semantics="at_least_once", retry={"transient": {"attempts": 2, "backoff": "1ms", "max": "1ms"}})
    b.send(q, "k", "x")
    same(b.fail(q, "transient")["state"], "pending")
    yield
    same(b.fail(q, "transient")["state"], "dead")


@test
def an_at_most_once_queue_settles_by_handing_out(q):
    b = hx.broker
    b.rules(q, semantics="at_most_once")
    same(b.send(q, "k", "click").status, 202)
    members(b.send(q, "k", "click").json(), outcome="duplicate")
    members(b.send(q, None, "keyless").json(), outcome="accepted", key=None)
    got = b.receive(q, max=10)
    same(sorted(m["payload"] for m in got), ["click", "keyless"])
    members(b.queue(q), pending=0, leased=0)
    yield
    same(b.receive(q, max=10), [])
    same(b.state(q, "k"), "done")
    members(b.send(q, "k", "click").json(), outcome="duplicate", state="done")
    assert b.settle("nack", got[0], **{"class": "transient"}).status in (200, 409)
    same(b.receive(q, max=10), [], "what was handed out is not handed out again")


@test
def the_accepted_loss_of_an_analytics_queue_is_stated_and_counted(q):
    b = hx.broker
    shown = b.rules(q, **{"class": "analytics", "loss": "0.01%"})
    same(shown["config"]["loss"], "0.01%")
    b.put(q, "lost", "kept")
    lost, kept = b.receive(q, max=2)
    b.settle("nack", lost, **{"class": "unknown"})
    b.settle("ack", kept)
    yield
    members(b.queue(q)["accepted_loss"], handed_out=2, lost=1)


@test
def presets_are_what_the_contract_says(q):
    b = hx.broker
    wanted = {
        "money": dict(semantics="exactly_once", window="forever", on_unknown="reconcile"),
        "notification": dict(semantics="exactly_once", window="24h", on_unknown="retry"),
        "analytics": dict(semantics="at_most_once"),
        "audit": dict(semantics="at_least_once"),
    }
    for name, rules in wanted.items():
        config = b.rules(f"{q}-{name}", **{"class": name})["config"]
        members({**config, "window": config["window"].replace("1d", "24h")}, **rules)
    members(b.rules(f"{q}-own", **{"class": "money", "window": "7d"})["config"], on_unknown="reconcile", window="7d")


# ---- rules through the API

@test
def rules_put_through_the_api_are_kept_and_replaced_whole(q):
    b = hx.broker
    reply = b.call("PUT", f"/v1/queues/{q}", b'{"window":"1h","lease":"5s"}')
    same(reply.status, 201)
    etag = reply.header("ETag")
    assert etag and etag.startswith('"'), etag
    members(reply.json(), window="1h", window_ms=3600000, origin="api")
    yield
    shown = b.get(f"/v1/queues/{q}")
    members(shown.json(), window="1h", window_ms=3600000, origin="api")
    same(shown.header("ETag"), etag)
    same(b.call("PUT", f"/v1/queues/{q}", b'{"window":"1h","lease":"5s"}').header("ETag"), etag, "the same rules")
    other = b.call("PUT", f"/v1/queues/{q}", b'{"window":"2h"}')
    same(other.status, 200)
    same(other.json()["config"]["lease"], "30s", "what is not given goes back to its default")
    assert other.header("ETag") != etag
    problem(b.call("PUT", f"/v1/queues/{q}", b'{}', [("If-Match", etag)]), 412, "precondition_failed")
    problem(b.call("PUT", f"/v1/queues/{q}", b'{}', [("If-None-Match", "*")]), 412, "precondition_failed")
    same(b.call("PUT", f"/v1/queues/{q}", b'{}', [("If-Match", other.header("ETag"))]).status, 200)
    problem(b.call("DELETE", f"/v1/queues/{q}", headers=[("If-Match", etag)]), 412, "precondition_failed")


@test
def wrong_rules_are_refused_by_the_name_of_their_key(q):
    b = hx.broker
    b.rules(q, window="1h")
    for body, words in [
            (b'{"windwo":"1h"}', "window"), (b'{"window":true}', "window"), (b'{"window":"soon"}', "window"), (b'[]', ""), (b'{', ""),
            (b'{"window":{"min":"2h","max":"1h"}}', "window"), (b'{"semantics":"twice"}', "semantics"), (b'{"lease":"1ms"}', "lease"),
            (b'{"retry":{"transient":{"attempts":0}}}', "retry.transient.attempts"), (b'{"key":"${a"}', "key"), (b'{"key":"${f(x)}"}', "key"),
            (b'{"limits":{"pending":-1}}', "limits.pending"), (b'{"limits":{"payload":"2MiB"}}', "limits.payload"), (b'{"loss":"200%"}', "loss"),
            (b'{"schema":{"types":{"a":"money"}}}', "schema"), (b'{"schema":{"pattern":{"a":"("}}}', "schema"),
            (b'{"fingerprint":{"onyl":["a"]}}', "fingerprint"), (b'{"window":"1h","window":"2h"}', "repeated")]:
        reply = b.call("PUT", f"/v1/queues/{q}", body)
        assert words in problem(reply, 400, "config_invalid")["detail"], reply
    reply = b.call("PUT", f"/v1/queues/{q}", b'{"windwo":"1h","lease":"x","retry":{"unknown":{"attempts":0}}}')
    told = problem(reply, 400, "config_invalid")
    same([error.split(":")[0] for error in told["errors"]], ['no key "windwo". Did you mean window?', "lease", "retry.unknown.attempts"])
    assert told["detail"].startswith(told["errors"][0]), told
    same(b.queue(q)["window"], "1h", "the old rules stay")
    problem(b.call("PUT", "/v1/queues/a%20b", b"{}"), 400, "queue_invalid")
    problem(b.call("PUT", f"/v1/queues/{q}", b""), 400, "config_invalid")
    problem(b.call("GET", f"/v1/queues/{q}/messages?accepted_since=1h&state=dead"), 400, "param_invalid")


@test
def a_queue_can_be_deleted_once_it_is_empty(q):
    b = hx.broker
    b.rules(q, window="1h")
    b.put(q, "k")
    problem(b.call("DELETE", f"/v1/queues/{q}"), 409, "queue_not_empty")
    b.ok("ack", b.one(q))
    same(b.call("DELETE", f"/v1/queues/{q}").status, 204)
    yield
    problem(b.get(f"/v1/queues/{q}"), 404, "no_such_queue")
    members(b.send(q, "k").json(), outcome="accepted")
    same(b.queue(q)["config"]["window"].replace("1d", "24h"), "24h", "a new queue of the same name is another one")


# ---- retries

FAST = {"backoff": "1ms", "max": "1ms"}


@test
def each_class_has_its_own_limit(q):
    b = hx.broker
    b.rules(q, retry={"transient": {"attempts": 3, **FAST}, "unknown": {"attempts": 2}})
    b.put(q, "t", "u", "p", "r")
    same([b.fail(q, c)["state"] for c in ("transient", "unknown", "poison", "rejected")], ["pending", "pending", "dead", "rejected"])
    yield
    states = {}
    while len(states) < 2:
        m = b.one(q)
        state = b.ok("nack", m, **{"class": "transient" if m["key"] == "t" else "unknown"}, reason="again")["state"]
        if state == "dead":
            states[m["key"]] = m["attempt"]
    same(states, {"t": 3, "u": 2})
    shown = b.key(q, "t")
    same([a["class"] for a in shown["attempts"]], ["transient"] * 3)


@test
def crashes_are_limited_apart_from_failures(q):
    b = hx.broker
    b.rules(q, lease="1s", retry={"transient": {"attempts": 9, **FAST}, "crashes": {"attempts": 2}})
    b.put(q, "k")
    b.fail(q, "transient", "transient", "transient")
    members(b.one(q), failures=3, crashes=0)
    members(b.one(q), failures=3, crashes=1)
    hx.until(lambda: b.state(q, "k") == "dead", "the second crash is one too many")
    yield
    same(b.state(q, "k"), "dead")


@test
def limits_can_be_changed_while_work_is_failing(q):
    b = hx.broker
    b.rules(q, retry={"transient": {"attempts": 2, **FAST}})
    b.put(q, "k")
    b.fail(q, "transient")
    b.rules(q, retry={"transient": {"attempts": 4, **FAST}})
    yield
    same(b.fail(q, "transient", "transient")["state"], "pending")
    same(b.fail(q, "transient")["state"], "dead")
    b.put(q, "other")
    b.fail(q, "transient", "transient")
    b.rules(q, retry={"transient": {"attempts": 2, **FAST}})
    same(b.fail(q, "transient")["state"], "dead", "a lower limit counts at the next failure")


@test
def the_delay_of_a_nack_is_a_floor(q):
    b = hx.broker
    b.rules(q, retry={"transient": {"attempts": 9, "backoff": "1h", "max": "1h"}})
    b.put(q, "slow")
    b.fail(q, "transient", delay="1ms")
    same(b.receive(q), [], "the queue's backoff is longer")
    b.rules(q, retry={"transient": {"attempts": 9, **FAST}})
    b.put(q, "floor")
    began = time.monotonic()
    b.fail(q, "transient", delay="1s")
    same(b.one(q)["key"], "floor")
    assert time.monotonic() - began >= 0.99, "the delay was not waited for"


# ---- order

def ordered(q, **rules):
    hx.broker.rules(q, order_by="${user}", retry={"transient": {"attempts": 2, **FAST}}, **rules)


def order(q, key, user):
    reply = hx.broker.event(q, {"user": user}, key)
    same(reply.status, 202)
    return reply.json()["id"]


def keys(messages):
    return [m["key"] for m in messages]


@test
def a_message_that_belongs_to_no_group_is_refused_for_that(q):
    b = hx.broker
    b.rules(q, order_by="${user}")
    for value in ({}, {"user": None}, {"user": {}}):
        reply = b.event(q, value, "k")
        members(reply.json(), status=422, code="schema")
        assert "no group can be made of it: field user is " in reply.json()["detail"], reply


@test
def a_retrying_head_holds_its_group_back_and_nothing_else(q):
    b = hx.broker
    b.rules(q, order_by="${user}", retry={"transient": {"attempts": 3, "backoff": "1h", "max": "1h"}})
    for key, user in [("a1", "ann"), ("a2", "ann"), ("b1", "bob"), ("b2", "bob")]:
        order(q, key, user)
    got = {m["key"]: m for m in b.receive(q, max=10)}
    same(sorted(got), ["a1", "b1"])
    same(got["a1"]["group"], "ann")
    b.ok("nack", got["a1"], **{"class": "transient"})
    b.ok("ack", got["b1"])
    yield
    same(keys(b.receive(q, max=10)), ["b2"])


@test
def block_keeps_the_group_waiting_behind_its_dead_head(q):
    b = hx.broker
    ordered(q, on_dead="block")
    for key in ("a1", "a2"):
        order(q, key, "ann")
    b.fail(q, "poison")
    same(b.receive(q, max=10), [])
    yield
    same(b.receive(q, max=10), [])
    same(b.post(f"/v1/queues/{q}/keys/a1/resolve", {"as": "rejected", "by": "me"}).status, 200)
    same(keys(b.receive(q, max=10)), ["a2"])


@test
def skip_goes_on_without_the_dead_head(q):
    b = hx.broker
    ordered(q, on_dead="skip")
    for key in ("a1", "a2"):
        order(q, key, "ann")
    b.fail(q, "poison")
    yield
    same(keys(b.receive(q, max=10)), ["a2"])
    same(b.state(q, "a1"), "dead")


@test
def a_dead_letter_group_dies_and_comes_back_together(q):
    b = hx.broker
    ordered(q, on_dead="dead_letter_group")
    for key in ("a1", "a2"):
        order(q, key, "ann")
    order(q, "b1", "bob")
    b.fail(q, "poison")
    same(order(q, "a3", "ann") and b.state(q, "a3"), "dead", "who comes later joins the dead")
    yield
    same(keys(b.receive(q, max=10)), ["b1"])
    same([b.state(q, key) for key in ("a1", "a2", "a3")], ["dead"] * 3)
    reply = b.post(f"/v1/queues/{q}/redrive", {})
    same(reply.status, 200)
    yield
    for key in ("a1", "a2", "a3"):
        m = b.one(q)
        same(m["key"], key)
        b.ok("ack", m)


# ---- windows

def settle(q, key):
    hx.broker.put(q, key)
    hx.broker.ok("ack", hx.broker.one(q))


def forgotten(q, key):
    return hx.broker.get(f"/v1/queues/{q}/keys/{key}").status == 404


@test
def a_window_starts_at_settlement_and_ends(q):
    b = hx.broker
    b.rules(q, window="1s")
    b.put(q, "k")
    time.sleep(1.1)  # longer than the window: an unsettled key is not forgotten
    members(b.send(q, "k").json(), outcome="duplicate", state="pending")
    b.ok("ack", b.one(q))
    members(b.send(q, "k").json(), outcome="duplicate", state="done")
    yield
    hx.until(lambda: forgotten(q, "k"), "the window ends")
    members(b.send(q, "k").json(), outcome="accepted")


@test
def forever_is_forever(q):
    b = hx.broker
    b.rules(q, window="forever")
    settle(q, "k")
    yield
    members(b.send(q, "k").json(), outcome="duplicate", state="done", expires_at=None)


@test
def a_shorter_window_never_shortens_a_promise(q):
    b = hx.broker
    b.rules(q, window="2h")
    settle(q, "old")
    promised = stamp(b.key(q, "old")["expires_at"])
    b.rules(q, window="1s")
    settle(q, "new")
    yield
    hx.until(lambda: forgotten(q, "new"), "the short window ends")
    kept = b.send(q, "old").json()
    members(kept, outcome="duplicate", state="done")
    assert stamp(kept["expires_at"]) >= promised - 1, (kept, promised)
    b.rules(q, window="4h")
    assert stamp(b.key(q, "old")["expires_at"]) >= promised - 1


@test
def an_adaptive_window_follows_the_oldest_replay_within_its_bounds(q):
    b = hx.broker
    shown = b.rules(q, window={"min": "4s", "max": "9s"})
    same(shown["window_ms"], 4000)
    settle(q, "k")
    time.sleep(2.6)  # how late the replay is, is what this is about
    members(b.send(q, "k").json(), outcome="duplicate")
    shown = b.queue(q)
    assert shown["oldest_replay_ms"] >= 2600, shown
    assert 2 * shown["oldest_replay_ms"] <= shown["window_ms"] <= 2 * shown["oldest_replay_ms"] + 1000, shown
    yield
    members(b.queue(q), window_ms=shown["window_ms"], oldest_replay_ms=shown["oldest_replay_ms"])
    settle(q, "late")
    time.sleep(4.6)
    members(b.send(q, "late").json(), outcome="duplicate")
    same(b.queue(q)["window_ms"], 9000, "never above its bound")
    b.rules(q, window={"min": "1s", "max": "2s"})
    same(b.queue(q)["window_ms"], 2000)


# ---- backpressure

def pressed(q, key, payload="x"):
    reply = hx.broker.send(q, key, payload)
    if reply.status != 429:
        same(reply.status, 202)
        return False
    assert int(reply.header("Retry-After")) >= 1
    same(problem(reply, 429, "backpressure")["retryable"], True)
    return True


@test
def above_the_limit_sends_are_refused_until_it_is_below_80_percent(q):
    b = hx.broker
    b.rules(q, limits={"pending": 10})
    b.put(q, *(f"k{i}" for i in range(10)))
    assert pressed(q, "more")
    problem(b.get(f"/v1/queues/{q}/keys/more"), 404, "no_such_key")
    members(b.send(q, "k0").json(), outcome="duplicate")  # nothing new: no reason to refuse it
    lines = b.batch(q, [{"key": "k1", "payload": "x"}, {"key": "b", "payload": "x"}]).lines()
    same([line["status"] for line in lines], [202, 429])
    same(b.queue(q)["pressed"], True)
    yield
    assert pressed(q, "more"), "also after a restart"
    for left in (9, 8):
        b.ok("ack", b.one(q))
        assert pressed(q, "more"), f"{left} of 10 are not below 80 %"
    b.ok("ack", b.one(q))
    assert not pressed(q, "more")
    same(b.queue(q)["pressed"], False)


@test
def bytes_are_limited_too(q):
    b = hx.broker
    b.rules(q, limits={"bytes": "1KiB", "payload": "1KiB"})
    b.put(q, "big", payload="x" * 1000)
    assert pressed(q, "more", "x" * 100)
    yield
    assert pressed(q, "more", "x" * 100)
    b.ok("ack", b.one(q))
    assert not pressed(q, "more")


@test
def lag_is_limited_too(q):
    b = hx.broker
    b.rules(q, limits={"lag": "500ms"})
    b.put(q, "waits")
    hx.until(lambda: b.queue(q)["oldest_ready_ms"] > 500, "it waits long enough")
    assert pressed(q, "more")
    b.ok("ack", b.one(q))
    assert not pressed(q, "more")


@test
def a_payload_above_the_queues_limit_is_too_large(q):
    b = hx.broker
    b.rules(q, limits={"payload": "1KiB"})
    same(b.send(q, "fits", b"x" * 1024).status, 202)
    problem(b.send(q, "not", b"x" * 1025), 413, "too_large")
    lines = b.batch(q, [{"key": "not", "payload": "x" * 1025}, {"key": "small", "payload": "x"}]).lines()
    same([line["status"] for line in lines], [413, 202])


@test
def consumers_are_never_throttled(q):
    b = hx.broker
    b.rules(q, limits={"pending": 4}, retry={"transient": {"attempts": 9, **FAST}})
    b.put(q, "a", "b", "c", "d")
    assert pressed(q, "more")
    b.fail(q, "transient")
    for m in b.receive(q, max=10, wait="5s") + b.receive(q, max=10, wait="1s"):
        b.ok("ack", m)
    same(b.queue(q)["pressed"], False)


@test
def the_queue_list_shows_rules_made_by_use_and_by_the_api(q):
    b = hx.broker
    b.put(q + "-auto", "k")
    b.rules(q + "-api", window="1h")
    shown = {item["name"]: item for item in json.loads(b.get("/v1/queues").body)["items"]}
    same(shown[q + "-auto"]["origin"], "auto")
    same(shown[q + "-api"]["origin"], "api")


hx.main()
