#!/usr/bin/env python3
"""Calls go through a proxy to an upstream: once under a key, however often they come, and every repeat gets the first one's answer."""
import contextlib
import hashlib
import json
import threading

import hx
from hx import Later, hapax, members, problem, same, test, until
from receiver import CLOSE, HANG, RESET, Answer, Receiver, chunked, informational, refused_port

JSON = ("Content-Type", "application/json")
KEPT = {"content-length", "connection"}  # of this hop alone


def config(upstream, more="", **keys):
    proxy = {"upstream": upstream, "allow_private": True, **keys}
    return f"proxies: {json.dumps({'pay': proxy})}\n{more}"


@contextlib.contextmanager
def proxied(*answers, more="", receiver=None, path="/v1", **keys):
    """A broker with the proxy `pay`, and what it is a proxy of. receiver: how that behaves beside its answers."""
    with Receiver(*answers, **(receiver or {})) as r, hx.Broker(config=config(r.url + path, more, **keys)) as b:
        yield b, r


def call(b, key="k1", body=b'{"amount":1}', headers=(), path="/charges", method="POST"):
    fields = [("Idempotency-Key", key)] if key else []
    return b.call(method, "/gate/pay" + path, body, [*fields, JSON, *headers])


def told(reply):
    """What an answer says, but for what is said of the repeat alone."""
    return reply.status, [h for h in reply.headers if h[0].lower() not in KEPT | {"idempotent-replayed"}], reply.body


def counted(b, result):
    line = f'hapax_gate_requests_total{{proxy="pay",result="{result}"}} '
    return int(next(l for l in b.get("/metrics").body.decode().splitlines() if l.startswith(line)).removeprefix(line))


def number(b, name, labels='queue="gate:pay"'):
    lines = [l for l in b.get("/metrics").body.decode().splitlines() if l.startswith(f"{name}{{{labels}")]
    return sum(int(float(l.rpartition(" ")[2])) for l in lines)


def replayed(reply):
    return reply.header("Idempotent-Replayed") == "true"


def held(b, key="k1"):
    return until(lambda: b.get(f"/v1/queues/gate:pay/keys/{key}").json().get("state") == "held", "it is held")


# ---- once

@test
def a_call_with_a_key_reaches_the_upstream_once_and_every_repeat_gets_its_answer():
    answer = Answer(201, '{"id":"ch_1"}', [JSON, ("Location", "/charges/ch_1"), ("X-Odd", "a,  b")])
    with proxied(answer) as (b, r):
        first = call(b)
        same((first.status, first.body, first.header("Location"), first.header("X-Odd"), replayed(first)), (201, b'{"id":"ch_1"}', "/charges/ch_1", "a,  b", False))
        sent = r.next()
        same((sent.method, sent.path, sent.body, sent.key), ("POST", "/v1/charges", b'{"amount":1}', "k1"))
        for _ in range(3):
            again = call(b)
            assert replayed(again), again.headers
            same(told(again), told(first))
        assert r.quiet(), r.requests
        same((counted(b, "executed"), counted(b, "replayed")), (1, 3))
        members(b.key("gate:pay", "k1"), state="done", duplicates=3)
        same(call(b, "k2").status, 200)
        same(r.next().key, "k2")


@test
def what_was_answered_is_answered_after_a_kill_byte_for_byte():
    body = bytes(range(256)) * 40
    with proxied(Answer(200, body, [("Content-Type", "application/octet-stream"), ("Vary", "a"), ("Vary", "b")])) as (b, r):
        first = call(b)
        same((first.status, first.body, first.all("Vary")), (200, body, ["a", "b"]))
        b.restart()
        same(told(call(b)), told(first))
        same(len(r.requests), 1)


@test
def the_three_spellings_of_a_key_are_one_key_and_go_on_as_they_came():
    with proxied() as (b, r):
        same([replayed(call(b, key)) for key in ('"a b"', '%"a b"', '"a b"')], [False, True, True])
        same(r.next().header("idempotency-key"), '"a b"')
        assert r.quiet()


@test
def a_key_with_another_call_is_refused_and_nothing_is_sent():
    with proxied() as (b, r):
        same(call(b).status, 200)
        others = [dict(body=b'{"amount":2}'), dict(path="/refunds"), dict(path="/charges?x=1"), dict(method="PUT"),
                  dict(headers=[("X-Other", "1")])]
        for other in others[:4]:
            p = problem(call(b, **other), 422, "key_reused")
            assert p["id"] and p["first_seen"], p
        assert replayed(call(b, **others[4])), "a field that is not of the call's meaning"
        b2 = b.call("POST", "/gate/pay/charges", b'{"amount":1}', [("Idempotency-Key", "k1"), ("Content-Type", "text/plain")])
        problem(b2, 422, "key_reused")
        same((len(r.requests), counted(b, "conflict")), (1, 5))


# ---- at the same time

def race(b, many, body=b'{"amount":1}'):
    """So many connections with the same call; what they read later."""
    conns = [b.connect() for _ in range(many)]
    for c in conns:
        c.start("POST", "/gate/pay/charges", body, [("Idempotency-Key", "k1"), JSON])
    return conns


@test
def two_hundred_connections_race_one_call_and_all_get_its_answer():
    go = threading.Event()
    with proxied(Answer(201, "made", [("X-Id", "7")], seen=lambda _: go.wait(hx.TIMEOUT))) as (b, r):
        conns = race(b, 200)
        until(lambda: number(b, "hapax_duplicates_total") == 199, "all others are there")
        go.set()
        answers = [c.reply() for c in conns]
        same({json.dumps(told(a)[:2]) + a.body.decode() for a in answers}, {json.dumps(told(answers[0])[:2]) + "made"})
        same(sum(not replayed(a) for a in answers), 1)
        same((len(r.requests), r.effects), (1, {"k1": 1}))


@test
def two_hundred_connections_race_one_call_and_the_broker_is_killed_yet_it_is_sent_once():
    go = threading.Event()
    with proxied(Answer(201, "made", seen=lambda _: go.wait(hx.TIMEOUT)), timeout="3s") as (b, r):
        conns = race(b, 200)
        sent = r.next()
        b.restart()
        again = race(b, 200)
        answers = [c.reply() for c in again]
        for a in answers:
            problem(a, 409, "outcome_unknown", "unknown")
        go.set()
        sent.answered.wait(hx.TIMEOUT)
        problem(call(b), 409, "outcome_unknown", "unknown")
        held(b)
        same((len(r.requests), r.effects), (1, {"k1": 1}))
        reply = b.post("/v1/queues/gate:pay/keys/k1/resolve", {"as": "done", "result": {"id": 1}, "by": "oncall"})
        same(reply.status, 200, repr(reply))
        same((call(b).status, call(b).json(), len(r.requests)), (200, {"id": 1}, 1))
        for c in conns:
            c.close()


@test
def a_repeat_while_it_runs_gets_409_at_once_where_the_config_says_so():
    go = threading.Event()
    with proxied(Answer(seen=lambda _: go.wait(hx.TIMEOUT)), in_progress="409") as (b, r):
        first = Later(call, b)
        r.next()
        reply = call(b)
        assert problem(reply, 409, "in_progress", "unknown")["retryable"]
        assert int(reply.header("Retry-After")) >= 1
        go.set()
        same((first.value().status, call(b).status, len(r.requests)), (200, 200, 1))


@test
def a_caller_that_leaves_cancels_nothing_and_the_answer_is_there_for_its_repeat():
    go = threading.Event()
    with proxied(Answer(201, "made", seen=lambda _: go.wait(hx.TIMEOUT))) as (b, r):
        with b.connect() as c:
            c.start("POST", "/gate/pay/charges", b'{"amount":1}', [("Idempotency-Key", "k1"), JSON])
            sent = r.next()
        until(lambda: b.get("/v1/stats").json()["http"]["connections"] <= 1, "it is seen gone")
        go.set()
        sent.answered.wait(hx.TIMEOUT)
        reply = until(lambda: (a := call(b)).status == 201 and a, "the answer")
        same((reply.body, len(r.requests)), (b"made", 1))


# ---- what is stored, and what frees the key

FREE = {401, 403, 409, 425, 429, 503}


@test
def every_complete_answer_is_stored_but_those_that_say_come_again():
    statuses = [200, 201, 202, 203, 204, 206, 299, 300, 301, 302, 304, 307, 400, 401, 402, 403, 404, 405, 408, 409, 410, 418, 422, 423,
                425, 429, 451, 500, 501, 502, 503, 504, 507, 599]
    with proxied(receiver={"always": lambda q: Answer(int(q.path.rpartition("/")[2]), None if "204" in q.path or "304" in q.path else f"n{q.number}")}) as (b, r):
        for s in statuses:
            first, again = (call(b, f"k{s}", path=f"/{s}") for _ in range(2))
            same((first.status, again.status), (s, s))
            same((replayed(again), told(again) == told(first) or s in FREE), (s not in FREE, True), s)
            same(len([q for q in r.requests if q.path == f"/v1/{s}"]), 2 if s in FREE else 1, s)
        same(number(b, "hapax_messages"), 0)
        same((b.key("gate:pay", "k201")["state"], b.key("gate:pay", "k404")["state"]), ("done", "rejected"))
        same(b.get("/v1/queues/gate:pay/keys/k429").status, 404)
        same((counted(b, "freed"), counted(b, "executed")), (2 * len(FREE), len(statuses) - len(FREE)))


@test
def store_all_stores_those_too():
    with proxied(*[Answer(s, str(s)) for s in sorted(FREE)], store="all") as (b, r):
        for s in sorted(FREE):
            first, again = call(b, f"k{s}"), call(b, f"k{s}")
            same((first.status, again.status, again.body, replayed(again)), (s, s, str(s).encode(), True))
        same(len(r.requests), len(FREE))


@test
def a_freed_key_may_be_another_call():
    with proxied(Answer(429, "slow down", [("Retry-After", "7")])) as (b, r):
        first = call(b)
        same((first.status, first.header("Retry-After")), (429, "7"))
        same(call(b, body=b'{"amount":2}').status, 200)
        same([q.body for q in r.requests], [b'{"amount":1}', b'{"amount":2}'])


@test
def who_waited_for_an_answer_that_is_not_stored_gets_it_too():
    go = threading.Event()
    with proxied(Answer(503, "busy", [("Retry-After", "3"), ("Set-Cookie", "a=1")], seen=lambda _: go.wait(hx.TIMEOUT))) as (b, r):
        conns = race(b, 20)
        until(lambda: number(b, "hapax_duplicates_total") == 19, "all others are there")
        go.set()
        answers = [c.reply() for c in conns]
        same({(a.status, a.header("Retry-After"), a.body) for a in answers}, {(503, "3", b"busy")})
        same((len(r.requests), sum(bool(a.all("Set-Cookie")) for a in answers), counted(b, "joined")), (1, 1, 19))
        same((call(b).status, len(r.requests)), (200, 2))


@test
def an_upstream_that_refuses_was_not_sent_anything_and_the_key_is_free():
    with refused_port() as port, hx.Broker(config=config(f"http://127.0.0.1:{port}")) as b:
        for _ in range(2):
            assert problem(call(b), 502, "upstream_unreachable")["retryable"]
        same(b.get("/v1/queues/gate:pay/keys/k1").status, 404)
        same((counted(b, "unreachable"), number(b, "hapax_messages")), (2, 0))


@test
def an_answer_that_is_too_large_is_said_so_to_everybody():
    big = Answer(200, b"x" * 5000)
    with proxied(big, Answer(200, b"y" * 4096), max_response="4KiB") as (b, r):
        first = call(b)
        problem(first, 502, "response_too_large", "unknown")
        same(told(call(b)), told(first))
        b.restart()
        same((told(call(b)), len(r.requests)), (told(first), 1))
        same(len(call(b, "k2").body), 4096)
        same((call(b, "k2").body, len(r.requests)), (b"y" * 4096, 2))


@test
def a_cookie_is_set_for_the_first_caller_alone():
    with proxied(Answer(200, "in", [("Set-Cookie", "session=secret"), ("set-cookie", "b=2"), ("X-Keep", "1")])) as (b, r):
        first, again = call(b), call(b)
        same((first.all("Set-Cookie"), again.all("Set-Cookie"), again.header("X-Keep")), (["session=secret", "b=2"], [], "1"))
        b.restart()
        same(call(b).all("Set-Cookie"), [])
        shown = json.dumps(b.key("gate:pay", "k1"))
        assert "secret" not in shown, shown


# ---- unknown

def breaks():
    yield "closed at once", Answer(at=0, then=CLOSE, effect=True)
    yield "reset at once", Answer(at=0, then=RESET, effect=True)
    yield "closed in its head", Answer(at=20, then=CLOSE, effect=True)
    yield "reset in its body", Answer(body="0123456789" * 10, at=70, then=RESET, effect=True)
    yield "shorter than it says", Answer(body="short", length=50, then=CLOSE, effect=True)
    yield "a last chunk missing", Answer(raw=chunked(b"a", b"b", last=b""), then=CLOSE, effect=True)
    yield "no HTTP", Answer(raw=b"220 smtp ready\r\n", then=CLOSE, effect=True)
    yield "a request half read", Answer(read=30, then=RESET)
    yield "a head without end", Answer(raw=b"HTTP/1.1 200 Fine\r\n" + b"".join(b"x%d: %s\r\n" % (i, b"v" * 900) for i in range(80)), then=CLOSE, effect=True)


@test
def what_broke_off_is_unknown_and_never_sent_again():
    cases = list(breaks())
    with proxied(*[a for _, a in cases]) as (b, r):
        for i, (name, _) in enumerate(cases):
            problem(call(b, f"k{i}"), 504, "outcome_unknown", "unknown")
            for _ in range(2):
                problem(call(b, f"k{i}"), 409, "outcome_unknown", "unknown")
            same((b.state("gate:pay", f"k{i}"), len(r.requests)), ("held", i + 1), name)
        b.restart()
        for i in range(len(cases)):
            problem(call(b, f"k{i}"), 409, "outcome_unknown", "unknown")
        same((len(r.requests), counted(b, "still_unknown")), (len(cases), len(cases)))


@test
def a_head_that_is_too_large_is_said_to_be_that():
    fields = b"HTTP/1.1 200 Fine\r\n" + b"".join(b"x%d: %s\r\n" % (i, b"v" * 900) for i in range(80))
    for head in (fields, b"HTTP/1.1 200 Fine\r\nX: " + b"v" * 300000, informational(5000)):
        with proxied(Answer(raw=head, then=CLOSE)) as (b, r):
            same(problem(call(b), 504, "outcome_unknown", "unknown")["detail"], "the answer's head is too large, or is none")


@test
def a_page_of_an_upstream_is_none_of_the_brokers():
    page = Answer(200, "<script>fetch('/v1/queues')</script>", [("Content-Type", "text/html"), ("Content-Security-Policy", "script-src *")])
    with proxied(page, page) as (b, r):
        same(b.get("/gate/pay/page").all("Content-Security-Policy"), ["script-src *", "sandbox"])
        same(call(b).all("Content-Security-Policy"), ["script-src *"])  # no browser sends a key by itself


@test
def an_upstream_that_says_nothing_is_unknown_when_its_time_is_over():
    with proxied(Answer(at=0, then=HANG, effect=True), timeout="1s") as (b, r):
        problem(call(b), 504, "outcome_unknown", "unknown")
        problem(call(b), 409, "outcome_unknown", "unknown")
        problem(call(b, body=b"{}"), 422, "key_reused")
        same((b.state("gate:pay", "k1"), len(r.requests)), ("held", 1))


@test
def who_waits_for_what_becomes_unknown_hears_so():
    go = threading.Event()
    with proxied(Answer(at=0, then=CLOSE, effect=True, seen=lambda _: go.wait(hx.TIMEOUT))) as (b, r):
        conns = race(b, 10)
        until(lambda: number(b, "hapax_duplicates_total") == 9, "all others are there")
        go.set()
        same(sorted(c.reply().status for c in conns), [409] * 9 + [504])
        same(len(r.requests), 1)


@test
def a_lease_of_a_broker_that_was_killed_runs_out_by_itself():
    with proxied(Answer(at=0, then=HANG, effect=True), timeout="1s") as (b, r):
        with b.connect() as c:
            c.start("POST", "/gate/pay/charges", b"{}", [("Idempotency-Key", "k1")])
            r.next()
            b.restart()
        held(b)
        same(len(r.requests), 1)


def resolve(b, key="k1", **decision):
    reply = b.post(f"/v1/queues/gate:pay/keys/{key}/resolve", {"by": "oncall", **decision})
    same(reply.status, 200, repr(reply))


@test
def what_an_operator_says_of_an_unknown_call_is_its_answer():
    with proxied(*[Answer(at=0, then=CLOSE)] * 6) as (b, r):
        keys = [f"k{i}" for i in range(6)]
        for k in keys:
            same(call(b, k).status, 504)
        resolve(b, "k0", **{"as": "done", "result": {"id": "ch_7"}, "status": 201})
        resolve(b, "k1", **{"as": "done"})
        resolve(b, "k2", **{"as": "rejected", "result": "no funds", "status": 402})
        resolve(b, "k3", **{"as": "rejected", "result": "no"})
        resolve(b, "k4", **{"as": "retry"})
        same([(a.status, a.body.replace(b" ", b"")) for a in (call(b, k) for k in keys[:4])], [(201, b'{"id":"ch_7"}'), (200, b""), (402, b"nofunds"), (422, b"no")])
        same((call(b, "k0").header("Content-Type"), call(b, "k2").header("Content-Type"), len(r.requests)), ("application/json", "text/plain", 6))
        same((call(b, "k4").status, len(r.requests)), (200, 7), "retry: the next call with the key is the first")
        hapax("key", "resolve", "gate:pay", "k5", "--as", "done", "--result", "by hand", "--status", "203", "--by", "ann", of=b)
        same((call(b, "k5").status, call(b, "k5").body, len(r.requests)), (203, b"by hand", 7))
        for bad in ({"as": "done", "status": 99}, {"as": "done", "status": 600}, {"as": "retry", "status": 200}):
            same(b.post("/v1/queues/gate:pay/keys/k0/resolve", {"by": "x", **bad}).status in (400, 409), True)


# ---- looked up

def looked_up(r, **keys):
    return {"url": f"{r.url}/slots?key=${{hapax.effect_key}}&plain=${{hapax.key}}", "found": [200], "absent": [404], "after": "0s", "every": "1s", "allow_private": True, **keys}


@contextlib.contextmanager
def reconciled(*answers, idempotency="key", **keys):
    with Receiver(*answers) as r:
        with hx.Broker(config=config(r.url, reconcile=looked_up(r, **keys), downstream={"idempotency": idempotency}, timeout="2s")) as b:
            yield b, r


@test
def what_a_look_up_finds_is_the_answer_and_nothing_is_sent_again():
    with reconciled(Answer(at=0, then=CLOSE, effect=True), exists="items[0].id") as (b, r):
        problem(call(b, "k-1"), 504, "outcome_unknown", "unknown")
        reply = until(lambda: (a := call(b, "k-1")).status == 200 and a, "it was looked up")
        same((reply.json()["items"][0]["key"], reply.header("Content-Type"), replayed(reply)), ("k-1", "application/json", True))
        same((len(r.requests), r.effects, r.asked[0].query), (1, {"k-1": 1}, {"key": "k-1", "plain": "k-1"}))
        members(b.key("gate:pay", "k-1"), state="done")


@test
def what_a_look_up_does_not_find_frees_the_key_and_is_sent_by_its_caller_alone():
    with reconciled(Answer(at=0, then=CLOSE, effect=False), Answer(201, "made")) as (b, r):
        problem(call(b), 504, "outcome_unknown", "unknown")
        until(lambda: b.get("/v1/queues/gate:pay/keys/k1").status == 404, "it is free")
        same(len(r.requests), 1, "nobody has asked again")
        same((call(b).status, call(b).body, len(r.requests)), (201, b"made", 2))


@test
def what_a_look_up_does_not_find_is_for_a_person_where_the_upstream_knows_no_keys():
    with reconciled(Answer(at=0, then=CLOSE, effect=False), idempotency="none") as (b, r):
        problem(call(b), 504, "outcome_unknown", "unknown")
        held(b)
        problem(call(b), 409, "outcome_unknown", "unknown")
        resolve(b, **{"as": "retry"})
        same((call(b).status, len(r.requests)), (200, 2))


@test
def a_call_of_a_broker_that_was_killed_is_looked_up():
    with reconciled(Answer(at=0, then=HANG, effect=True), exists="items[0].id") as (b, r):
        with b.connect() as c:
            c.start("POST", "/gate/pay/charges", b'{"amount":1}', [("Idempotency-Key", "k1"), JSON])
            r.next()
            b.restart()
        reply = until(lambda: (a := call(b)).status == 200 and a, "it was looked up")
        same((reply.json()["items"][0]["key"], len(r.requests), r.effects), ("k1", 1, {"k1": 1}))


@test
def a_look_up_without_an_answer_is_made_again_and_then_a_person_decides():
    with reconciled(Answer(at=0, then=CLOSE), attempts=2) as (b, r):
        r.lookups.extend([Answer(500), Answer(500)])
        problem(call(b), 504, "outcome_unknown", "unknown")
        held(b)
        same((len(r.asked), len(r.requests)), (2, 1))
        problem(call(b), 409, "outcome_unknown", "unknown")


# ---- without a key

@test
def a_method_that_needs_a_key_is_refused_without_one_and_others_pass():
    with proxied(require_key=["POST", "PATCH"]) as (b, r):
        for method in ("POST", "PATCH"):
            problem(call(b, None, method=method), 400, "key_missing")
        assert r.quiet()
        for method in ("PUT", "DELETE", "PUT"):
            same((call(b, None, method=method).status, r.next().method), (200, method))
        same((replayed(call(b, "d1", method="DELETE")), replayed(call(b, "d1", method="DELETE"))), (False, True))
        for bad in ("", '"open', "a,b", "x" * 256):
            same(b.call("POST", "/gate/pay/charges", b"{}", [("Idempotency-Key", bad)]).json()["code"], "key_invalid")
        twice = b.call("POST", "/gate/pay/charges", b"{}", [("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
        problem(twice, 400, "key_invalid")


@test
def what_changes_nothing_passes_through_each_time():
    with proxied(Answer(200, "one", [("ETag", '"1"')]), Answer(200, "two"), Answer(204), Answer(304), Answer(at=0, then=CLOSE)) as (b, r):
        same([call(b, "k1", None, method="GET").body for _ in range(2)], [b"one", b"two"])
        same([call(b, None, None, method=m).status for m in ("OPTIONS", "GET")], [204, 304])
        problem(call(b, None, None, method="GET"), 504, "outcome_unknown", "unknown")
        same([q.method for q in r.requests], ["GET", "GET", "OPTIONS", "GET", "GET"])
        same((r.requests[0].key, counted(b, "passed"), number(b, "hapax_accepted_total")), ("k1", 4, 0))


@test
def a_head_says_how_long_the_answer_would_be_and_has_none():
    with proxied(Answer(raw=b"HTTP/1.1 200 Fine\r\nContent-Length: 4321\r\nX-A: 1\r\n\r\n"), Answer(raw=b"HTTP/1.1 404 No\r\nX-A: 2\r\n\r\n")) as (b, r):
        first = call(b, None, None, method="HEAD")
        same((first.status, first.header("Content-Length"), first.header("X-A"), first.body), (200, "4321", "1", b""))
        second = call(b, None, None, method="HEAD")
        same((second.status, second.header("Content-Length"), second.header("X-A")), (404, None, "2"))
        same(r.requests[1].method, "HEAD")


@test
def answers_in_every_framing_arrive_whole():
    raw = [informational(3) + b"HTTP/1.1 200 Fine\r\nContent-Length: 2\r\n\r\nok", chunked(b"he", b"llo" * 100),
           b"HTTP/1.1 200 Fine\r\nConnection: close\r\n\r\nuntil the end", b"HTTP/1.0 200 Fine\r\n\r\nold", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"]
    want = [b"ok", b"he" + b"llo" * 100, b"until the end", b"old", b""]
    # What says where it ends leaves the connection open: closing it unsaid may meet the next request, whose outcome nobody knows then.
    with proxied(*[Answer(raw=x, then=CLOSE if x in raw[2:4] else None) for x in raw]) as (b, r):
        for i, body in enumerate(want):
            first, again = call(b, f"k{i}"), call(b, f"k{i}")
            same((first.status, first.body, again.body, replayed(again)), (200, body, body, True), str(i))
        same(len(r.requests), len(want))


# ---- what passes

@test
def the_upstream_gets_what_the_caller_said_and_nothing_of_this_hop():
    with proxied() as (b, r):
        with b.connect() as c:
            c.write(b"POST /gate/pay/a%2Fb//c;d=1/?q=%20x&y HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: \"k 1\"\r\nContent-Type: text/plain\r\n"
                    b"Authorization: Basic abc\r\nCookie: a=b\r\nX-Empty:\r\nX-Twice: 1\r\nX-Twice: 2\r\nUser-Agent: me/1\r\nAccept: text/html\r\n"
                    b"Connection: keep-alive, x-hop , Keep-Alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nTrailer: x\r\nUpgrade: websocket\r\n"
                    b"Proxy-Authorization: Basic x\r\nProxy-Connection: x\r\nProxy-Of-Ours: x\r\nRange: bytes=0-1\r\nIf-Range: \"a\"\r\nAccept-Encoding: gzip, br\r\n"
                    b"Hapax-Token: hx_x\r\nHapax-Attr-a: 1\r\nHAPAX-Request-Id: r1\r\nX-Request-Id: r2\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi")
            same(c.reply().status, 200)
        sent = r.next()
        same((sent.path, sent.body), ("/v1/a%2Fb//c;d=1/?q=%20x&y", b"hi"))
        same(sorted(sent.headers), sorted([
            ("host", f"127.0.0.1:{r.port}"), ("idempotency-key", '"k 1"'), ("content-type", "text/plain"), ("authorization", "Basic abc"),
            ("cookie", "a=b"), ("x-empty", ""), ("x-twice", "1"), ("x-twice", "2"), ("user-agent", "me/1"), ("accept", "text/html"),
            ("accept-encoding", "identity"), ("x-request-id", "r2"), ("content-length", "2")]))


@test
def no_field_is_made_up_for_the_upstream():
    with proxied() as (b, r):
        same(b.call("POST", "/gate/pay", b"{}", [("Idempotency-Key", "a")]).status, 200)
        sent = r.next()
        same((sent.path, sorted(n for n, _ in sent.headers)), ("/v1", ["accept-encoding", "content-length", "host", "idempotency-key"]))
        same(b.call("DELETE", "/gate/pay/", None).status, 200)
        sent = r.next()
        same((sent.path, sorted(n for n, _ in sent.headers if n != "content-length")), ("/v1/", ["accept-encoding", "host"]))


@test
def the_caller_gets_what_the_upstream_said_and_nothing_of_that_hop():
    fields = [("Connection", "x-hop, close"), ("X-Hop", "1"), ("Keep-Alive", "5"), ("Proxy-Authenticate", "Basic"), ("Trailer", "x"), ("Upgrade", "h2c"),
              ("X-Stays", "1"), ("Server", "up/1"), ("Date", "Mon, 01 Jan 2024 00:00:00 GMT"), ("Content-Encoding", "gzip"), ("Cache-Control", "no-store")]
    with proxied(Answer(200, b"\x1f\x8b", fields, then=CLOSE)) as (b, r):
        first, again = call(b), call(b)
        stays = [(n, v) for n, v in fields if n in ("X-Stays", "Server", "Date", "Content-Encoding", "Cache-Control")]
        same([h for h in first.headers if h[0] not in ("Content-Length",)], stays)
        same([h for h in again.headers if h[0] not in ("Content-Length",)], stays + [("Idempotent-Replayed", "true")])


@test
def a_path_that_leads_upwards_is_refused_in_every_spelling():
    ups = ["/..", "/../x", "/a/../b", "/a/..", "/%2e%2e/x", "/%2E./x", "/.%2e", "/a%2f..%2fb", "/a%2F%2e%2E", "/a\\..\\b", "/a%5c..%5Cb", "/%252e%252e/x",
           "/%25252e%25252e", "/..;/x", "/..;a=1/x", "/a/..%3b/x", "/%c0%ae%c0%ae/x", "/a%c0%af../x", "/%e0%80%ae%e0%80%ae/x", "/a%e0%80%af../x", "/..%3fx", "/..%23x", "/..%253fx",
           "/..%20/x", "/.%09./x", "/..%0d%0a/x", "/%00", "/a%zz", "/a%2", "/..%00/"]
    fine = ["/a..b", "/...", "/a/.b/", "/..a", "/a..", "/.", "/;..", "/a%2fb", "/%25", "/a%20..b", "/%e0%a4%85", "/a%3f.."]
    with proxied() as (b, r):
        for path in ups:
            for method in ("POST", "GET"):
                p = b.call(method, "/gate/pay" + path, b"{}" if method == "POST" else None, [("Idempotency-Key", "k")])
                same((p.status, p.json()["code"]), (400, "bad_request"), path)
        assert r.quiet(), r.requests
        for path in fine:
            same((b.call("GET", "/gate/pay" + path).status, r.next().path), (200, "/v1" + path))


@test
def methods_that_are_no_calls_get_405():
    with proxied() as (b, r):
        for method in ("TRACE", "CONNECT", "BREW"):
            reply = b.call(method, "/gate/pay/x")
            problem(reply, 405, "method_not_allowed")
            assert "POST" in reply.header("Allow"), reply.headers
        assert r.quiet()
        problem(b.call("POST", "/gate/none/x", b""), 404, "not_found")
        same(b.call("POST", "/gate/", b"").status, 404)
        same(b.call("POST", "/gate/p%61y/x", b"", [("Idempotency-Key", "k")]).status, 200)


@test
def a_request_that_is_too_large_is_refused_before_it_is_read():
    with proxied() as (b, r):
        with b.connect() as c:
            c.write(b"POST /gate/pay/x HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 1048577\r\n\r\n")
            problem(c.reply(), 413, "too_large")
        body = b"z" * (1 << 20)
        same((call(b, "k2", body).status, hashlib.sha256(r.next().body).digest()), (200, hashlib.sha256(body).digest()))


# ---- whose key it is

@test
def equal_keys_of_two_callers_are_two_keys():
    with proxied(receiver={"always": lambda q: Answer(200, q.header("authorization", "none"))}) as (b, r):
        who = [[("Authorization", a)] for a in ("Bearer one", "Bearer two", "Basic b25l")] + [[]]
        first = [call(b, headers=h).body for h in who]
        same(first, [b"Bearer one", b"Bearer two", b"Basic b25l", b"none"])
        same([call(b, headers=h).body for h in who], first)
        same(len(r.requests), 4)


@test
def a_scope_of_the_config_says_whose_key_it_is():
    with proxied(receiver={"always": lambda q: Answer(200, q.header("x-account"))}, scope="${header.x-account}") as (b, r):
        accounts = ["a", "b", "a/b", "a%2Fb", "A", "x" * 250, "x" * 249]
        first = [call(b, headers=[("X-Account", a), ("Authorization", f"Bearer {i}")]).body for i, a in enumerate(accounts)]
        same(first, [a.encode() for a in accounts])
        same([call(b, headers=[("X-Account", a)]).body for a in accounts], first, "whatever Authorization says")
        same(len(r.requests), len(accounts))
        problem(call(b), 400, "key_invalid")
        for twice in (("a", "b"), ("b", "a"), ("a", "a")):
            p = problem(call(b, headers=[("X-Account", a) for a in twice]), 400, "key_invalid")
            assert "more than once" in p["detail"], p
        same(call(b, "b/k1", headers=[("X-Account", "a")]).body, b"a")
        members(b.get("/v1/queues/gate:pay/keys?key=a/b/k1").json(), key="b/k1", credential="a", effect_key="b/k1")
        same(call(b, "k1", headers=[("X-Account", "a/b")]).body, b"a/b")


def token(name, *allow):
    text = f"hx_{name}"
    return f"  - {{name: {name}, sha256: [{hashlib.sha256(text.encode()).hexdigest()}], allow: {json.dumps(allow)}}}\n"


TOKENS = "tokens:\n" + token("shop", "send:gate:pay") + token("other", "send:gate:*") + token("looks", "observe:gate:pay") + token("elsewhere", "send:orders") + token("ops", "operate:*", "observe")


@test
def a_token_lets_in_names_the_caller_and_goes_no_further():
    with proxied(receiver={"always": lambda q: Answer(200, q.header("authorization", "none"))}, more=TOKENS) as (b, r):
        shop, other = [("Hapax-Token", "hx_shop"), ("Authorization", "Bearer upstream")], [("Hapax-Token", "hx_other")]
        same((call(b, headers=shop).body, call(b, headers=other).body), (b"Bearer upstream", b"none"))
        same((replayed(call(b, headers=shop)), replayed(call(b, headers=[("Hapax-Token", "hx_shop")]))), (True, True))
        same(len(r.requests), 2)
        assert not any("hapax" in n or "hx_" in v for q in r.requests for n, v in q.headers), r.requests
        for bad in ([], [("Hapax-Token", "hx_wrong")], [("Authorization", "Bearer hx_shop")]):
            reply = call(b, "k9", headers=bad)
            problem(reply, 401, "unauthorized")
        problem(call(b, "k9", headers=[("Hapax-Token", "hx_looks")]), 403, "forbidden")
        problem(call(b, "k9", headers=[("Hapax-Token", "hx_elsewhere")]), 404, "not_found")
        for scheme in ("Bearer ", "bearer ", "Bearer  ", "Bearer\t", "", "Token "):
            p = problem(call(b, "k9", headers=[("Hapax-Token", "hx_shop"), ("Authorization", scheme + "hx_ops")]), 401, "unauthorized")
            assert "Hapax-Token" in p["detail"], p
        same((b.call("GET", "/gate/pay/x").status, b.call("GET", "/gate/none/x").status), (401, 401), "nobody is told which there are")
        same(len(r.requests), 2)
        shown = b.call("GET", "/v1/queues/gate:pay/keys/shop%2Fk1", None, [("Authorization", "Bearer hx_ops")]).json()
        members(shown, key="k1", credential="shop", state="done")


# ---- its queue

@test
def the_queue_of_a_proxy_is_looked_into_and_not_used():
    with proxied(Answer(201, '{"id":7}', [JSON]), more="auto_create: true\n") as (b, r):
        call(b, path="/charges?x=1")
        shown = b.key("gate:pay", "k1")
        members(shown, state="done", key="k1", credential="anonymous")
        members(shown["result"], body='{"id":7}', content_type="application/json")
        same(shown["http"]["status"] if "http" in shown else shown["result"]["http"]["status"], 201)
        for name in ("gate:pay", "gate:other"):
            problem(b.send(name, "k2"), 409, "gate_queue")
            problem(b.call("POST", f"/v1/queues/{name}/receive", b""), 409, "gate_queue")
            problem(b.batch(name, [{"key": "a", "payload": "b"}]), 409, "gate_queue")
        problem(b.call("PUT", "/v1/queues/gate:other", b"{}"), 409, "gate_queue")
        problem(b.call("PUT", "/v1/queues/gate:pay", b"{}"), 409, "defined_in_file")
        problem(b.call("DELETE", "/v1/queues/gate:pay"), 409, "defined_in_file")
        same((number(b, "hapax_accepted_total"), number(b, "hapax_settled_total")), (1, 1))
        same(b.get("/v1/queues/gate:other").status, 404)


@test
def a_paused_proxy_sends_nothing_and_answers_what_it_knows():
    with proxied(Answer(200, "known")) as (b, r):
        call(b)
        same(b.post("/v1/queues/gate:pay/pause").status, 200)
        problem(call(b, "k2"), 503, "paused")
        same(call(b).body, b"known")
        same(b.post("/v1/queues/gate:pay/resume").status, 200)
        same((call(b, "k2").status, len(r.requests)), (200, 2))


@test
def past_its_window_a_key_is_a_new_call():
    with proxied(Answer(200, "one"), Answer(200, "two"), window="1s") as (b, r):
        same(call(b).body, b"one")
        until(lambda: call(b).body == b"two", "its window is over")
        same(len(r.requests), 2)


@test
def a_reload_changes_the_upstream_for_new_calls_and_keeps_what_was_answered():
    with proxied(Answer(200, "old")) as (b, r), Receiver(Answer(200, "new")) as other:
        call(b)
        b.reload(config(other.url))
        same((call(b).body, call(b, "k2").body, other.next().path), (b"old", b"new", "/charges"))
        b.reload("queues: {}\n")
        problem(call(b), 404, "not_found")
        b.reload(config(other.url))
        same((call(b).body, len(r.requests), len(other.requests)), (b"old", 1, 1))


# ---- others are not hurt

@test
def an_upstream_that_hangs_hurts_no_other_and_no_reader_of_answers():
    hang = {"always": lambda q: Answer(at=0, then=HANG)}
    with Receiver(**hang) as slow, Receiver() as quick:
        two = {"slow": {"upstream": slow.url, "allow_private": True}, "quick": {"upstream": quick.url, "allow_private": True}}
        with hx.Broker(config=f"proxies: {json.dumps(two)}\nqueues: {{q: {{}}}}\n") as b:
            conns = [b.connect() for _ in range(150)]
            for i, c in enumerate(conns):
                c.start("POST", "/gate/slow/x", b"{}", [("Idempotency-Key", f"k{i}")])
            until(lambda: len(slow.requests) == 150, "all of them hang")
            for i in range(20):
                same(b.call("POST", "/gate/quick/x", b"{}", [("Idempotency-Key", f"k{i}")]).status, 200)
            same(b.send("q", "k").status, 202)
            for c in conns:
                c.close()


@test
def a_caller_that_reads_slowly_keeps_nobody_waiting():
    with proxied(Answer(200, b"x" * 1000000)) as (b, r):
        slow = [b.connect() for _ in range(30)]
        for c in slow:
            c.start("POST", "/gate/pay/charges", b'{"amount":1}', [("Idempotency-Key", "k1"), JSON])
        same(len(call(b).body), 1000000)
        same([len(c.reply().body) for c in slow], [1000000] * 30)
        same(len(r.requests), 1)


@test
def a_broker_told_to_stop_waits_for_the_answer():
    go = threading.Event()
    with proxied(Answer(201, "made", seen=lambda _: go.wait(hx.TIMEOUT))) as (b, r):
        first = Later(call, b)
        r.next()
        b.signal(hx.signal.SIGTERM)
        go.set()
        same((first.value().status, b.wait_exit()), (201, 0))
        b.start()
        same((call(b).body, len(r.requests)), (b"made", 1))


if __name__ == "__main__":
    hx.main(threads=8, shared=False)
