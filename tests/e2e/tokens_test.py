#!/usr/bin/env python3
"""Tokens: a request may do what its token allows. Sentence by sentence of the contract, over the wire."""
import hashlib
import json
import time

import hx
from hx import Later, problem, same, test, until
from receiver import Answer, Receiver

PAYLOAD = b'{"secret":"PAYLOAD"}'


def token(name, allow, more="", texts=None):
    hashes = ", ".join(hashlib.sha256(t.encode()).hexdigest() for t in (texts or [f"hx_{name}"]))
    return f"  - {{name: {name}, sha256: [{hashes}], allow: {json.dumps(allow)}{more}}}\n"


def config(*tokens, more="queues: {payments: {}, orders: {}}\n"):
    return more + ("tokens:\n" + "".join(tokens) if tokens else "")


ADMIN = token("admin", ["admin"])


def bearer(name):
    return [("Authorization", f"Bearer hx_{name}")] if name else []


def call(b, name, method, path, body=None, headers=()):
    return b.call(method, path, body, [*bearer(name), *headers])


def send(b, name, queue, key, payload=PAYLOAD):
    return call(b, name, "POST", f"/v1/queues/{queue}/messages", payload, [("Idempotency-Key", key)])


def refused(reply, status, code):
    told = problem(reply, status, code)
    if status == 401:
        same(reply.header("WWW-Authenticate"), "Bearer")
    return told


@test
def no_or_a_wrong_token_is_401_and_health_is_open():
    with hx.Broker(config=config(ADMIN)) as b:
        for name in (None, "wrong", "admi", "admin2"):
            refused(send(b, name, "payments", "k"), 401, "unauthorized")
            refused(call(b, name, "GET", "/v1/queues"), 401, "unauthorized")
            refused(call(b, name, "GET", "/v1/queues/nowhere"), 401, "unauthorized")
            same(call(b, name, "GET", "/healthz").status, 200)
            same(call(b, name, "GET", "/readyz").status, 200)
            same(call(b, name, "GET", "/").status, 200)
        for field in ("Basic hx_admin", "hx_admin", "Bearer", "Bearer  ", "Bearer hx_admin hx_admin"):
            refused(b.call("GET", "/v1/queues", headers=[("Authorization", field)]), 401, "unauthorized")
        same(b.call("GET", "/v1/queues", headers=[("authorization", "bearer hx_admin")]).status, 200)
        same(call(b, "admin", "HEAD", "/v1/queues").status, 200)
        same(call(b, None, "HEAD", "/v1/queues").status, 401)


@test
def no_grant_on_a_queue_looks_like_no_queue_and_some_grant_is_403_with_what_is_missing():
    with hx.Broker(config=config(ADMIN, token("shop", ["send:payments", "result:payments"]))) as b:
        same(send(b, "shop", "payments", "k").status, 202)
        told = refused(call(b, "shop", "POST", "/v1/queues/payments/purge", b""), 403, "forbidden")
        assert "operate:payments" in told["detail"], told
        for method, rest in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("POST", "/messages"), ("POST", "/pause"), ("GET", "/keys/k")):
            there = refused(call(b, "shop", method, f"/v1/queues/orders{rest}", b"{}" if method != "GET" else None), 404, "no_such_queue")
            absent = refused(call(b, "shop", method, f"/v1/queues/absent{rest}", b"{}" if method != "GET" else None), 404, "no_such_queue")
            same(json.dumps(there).replace("orders", "X"), json.dumps(absent).replace("absent", "X"))
        same(call(b, "admin", "GET", "/v1/queues/absent").status, 404)


@test
def a_body_that_nobody_may_send_is_not_waited_for():
    with hx.Broker(config=config(ADMIN)) as b, b.connect() as c:
        c.write(b"POST /v1/queues/payments/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 1000000\r\n\r\n")
        same(c.reply().status, 401)
        assert c.closed()


@test
def two_authorization_fields_are_400_and_huge_ones_431():
    with hx.Broker(config=config(ADMIN)) as b:
        with b.connect() as c:
            same(c.request("GET", "/v1/queues", headers=[*bearer("admin"), *bearer("admin")]).status, 400)
        with b.connect() as c:
            same(c.request("GET", "/v1/queues", headers=[("Authorization", "Bearer hx_" + "a" * 65536)]).status, 431)
        with b.connect() as c:
            refused(c.request("GET", "/v1/queues", headers=[("Authorization", "Bearer hx_" + "a" * 9000)]), 401, "unauthorized")


@test
def requests_of_one_connection_are_each_judged_by_their_own_token():
    with hx.Broker(config=config(ADMIN, token("shop", ["send:payments"]))) as b, b.connect() as c:
        names = ["admin", "shop", None, "wrong", "shop", "admin"] * 20
        for i, name in enumerate(names):
            c.start("GET", "/v1/queues/payments", headers=bearer(name))
        want = {"admin": 200, "shop": 403, None: 401, "wrong": 401}
        for name in names:
            same(c.reply().status, want[name])


@test
def who_may_send_may_not_look_and_who_looks_sees_no_payload():
    tokens = [ADMIN, token("shop", ["send:payments"]), token("watch", ["observe"]), token("worker", ["receive:payments"]), token("reader", ["result:payments"])]
    with hx.Broker(config=config(*tokens)) as b:
        same(send(b, "shop", "payments", "k").status, 202)
        refused(call(b, "shop", "GET", "/v1/queues/payments/keys/k"), 403, "forbidden")
        page = call(b, "watch", "GET", "/v1/queues/payments/keys/k")
        assert b"PAYLOAD" not in page.body and page.json()["payload_hidden"] is True, page
        assert b"PAYLOAD" in call(b, "admin", "GET", "/v1/queues/payments/keys/k").body
        refused(call(b, "watch", "POST", "/v1/queues/payments/receive", b""), 403, "forbidden")
        got = call(b, "worker", "POST", "/v1/queues/payments/receive", b"").json()["messages"][0]
        same(got["payload"].encode(), PAYLOAD)
        ack = json.dumps({"token": got["token"], "result": "OUTCOME"}).encode()
        refused(call(b, "shop", "POST", "/v1/ack", ack), 403, "forbidden")
        same(call(b, "worker", "POST", "/v1/ack", ack).status, 200)
        same(call(b, "reader", "GET", "/v1/queues/payments/keys/k/result").body, b"OUTCOME")
        refused(call(b, "watch", "GET", "/v1/queues/payments/keys/k/result"), 403, "forbidden")
        assert b"OUTCOME" not in call(b, "watch", "GET", "/v1/queues/payments/keys/k").body


@test
def why_a_copy_was_refused_tells_who_only_looks_nothing_of_the_payload():
    rules = "queues: {payments: {schema: {types: {card: integer}, pattern: {holder: '^[a-z]+$'}}}}\n"
    with hx.Broker(config=config(token("shop", ["send"]), token("watch", ["observe"]), token("oncall", ["operate"]), more=rules)) as b:
        for i, payload in enumerate((b'{"card":"4111-secret"}', b'{"card":1,"holder":"A secret"}')):
            reply = send(b, "shop", "payments", f"k{i}", payload)
            assert "secret" in refused(reply, 422, "schema")["detail"], reply
        path = "/v1/queues/payments/messages"
        seen = call(b, "watch", "GET", path + "?state=dead")
        reasons = [m["reason"] for m in seen.json()["items"]]
        same(reasons, ["field card: expected integer", "field holder: expected a match of ^[a-z]+$"])
        pages = [seen] + [call(b, "watch", "GET", f"{path}/{m['id']}") for m in seen.json()["items"]]
        for page in pages:
            same(page.status, 200)
            assert b"secret" not in page.body, page
        same(call(b, "oncall", "GET", path + "?state=dead").body.count(b"secret"), 2)


@test
def what_a_queue_has_called_is_changed_and_ended_by_an_admin_alone():
    oncall = ("oncall", ["operate"])
    with hx.Broker(config=config(ADMIN, token(*oncall), more="")) as b:
        def put(name, rules):
            return call(b, name, "PUT", "/v1/queues/payments", json.dumps(rules).encode())

        calls = {"deliver": {"url": "https://bank.example/pay"}, "reconcile": {"url": "https://bank.example/pay/${hapax.key}"}}
        same(put("oncall", {"lease": "20s"}).status, 201)
        assert "admin" in refused(put("oncall", calls), 403, "forbidden")["detail"]
        same(put("admin", calls).status, 200)
        less = {"deliver": calls["deliver"]}
        for rules in ({"lease": "10s"}, {}, less, {**calls, "deliver": {"url": "https://thief.example/pay"}}, {**calls, "deliver": {**calls["deliver"], "timeout": "9s"}}):
            assert "admin" in refused(put("oncall", rules), 403, "forbidden")["detail"], rules
        assert "admin" in refused(call(b, "oncall", "DELETE", "/v1/queues/payments"), 403, "forbidden")["detail"]
        same(call(b, "admin", "GET", "/v1/queues/payments").json()["config"]["deliver"]["url"], "https://bank.example/pay")
        same(put("oncall", {"lease": "10s", **calls}).status, 200)  # repeated as they are
        shown = call(b, "oncall", "GET", "/v1/queues/payments", headers=()).json()["config"]
        same(put("oncall", {"lease": "11s", "deliver": shown["deliver"], "reconcile": shown["reconcile"]}).status, 200)  # or as they are shown
        same(put("admin", {"lease": "10s"}).status, 200)
        same(put("oncall", {"lease": "12s"}).status, 200)
        same(call(b, "oncall", "DELETE", "/v1/queues/payments").status, 204)


@test
def what_a_target_answered_is_told_to_those_who_may_see_payloads_and_is_in_no_event_or_log():
    echo = '{"error":"no such card: PAYLOAD"}'
    statuses = {"settled": 422, "dead": 400, "again": 503}
    with Receiver(always=lambda request: Answer(statuses[request.key], echo)) as r:
        rules = f"queues: {{payments: {{retry: {{transient: {{attempts: 9, backoff: 1h, max: 1h}}}}, deliver: {{url: '{r.url}', allow_private: true, circuit: {{ratio: 30%, of: 3}}}}}}}}\n"
        with hx.Broker(config=config(ADMIN, token("watch", ["observe"]), token("oncall", ["operate"]), more=rules)) as b, b.connect() as c:
            c.start("GET", "/v1/events", headers=bearer("watch"))
            until(lambda: call(b, "admin", "GET", "/v1/stats").json()["events"]["readers"] == 1, "it reads")
            for key, status in statuses.items():
                same(send(b, "admin", "payments", key).status, 202)
                path = f"/v1/queues/payments/keys/{key}"
                until(lambda: call(b, "admin", "GET", path).json()["attempts"][-1:], "it was handed out")
                until(lambda: call(b, "admin", "GET", path).json()["attempts"][-1]["ended"], "it was answered")
                assert call(b, "oncall", "GET", path).body.count(b"no such card") >= 3, path  # attempt, why, timeline
                seen = call(b, "watch", "GET", path)
                assert b"no such card" not in seen.body, seen
                same(seen.json()["attempts"][-1]["reason"], f"answered {status}")
            # on-call finds the dead by what was answered; who may not read it does not find out by asking
            dead = "/v1/queues/payments/messages?state=dead"
            same([len(call(b, who, "GET", dead + "&reason=such%20card").json()["items"]) for who in ("oncall", "watch")], [1, 0])
            same(len(call(b, "watch", "GET", dead + "&reason=answered%20400").json()["items"]), 1)
            known, shown = (call(b, who, "GET", "/v1/targets").json()["items"][0] for who in ("oncall", "watch"))
            same((known["state"], known["last_error"]["detail"]), ("open", f"answered 503: {echo}"))
            same((shown["last_error"]["detail"], shown["why"]), ("answered 503", "too many calls failed: answered 503"))
            while b'"again"' not in c.data.rpartition(b"event: failed")[2]:
                assert c.more()
            same(c.data.count(b'"reason":"answered '), c.data.count(b"event: settled") + c.data.count(b"event: failed") + c.data.count(b"event: dead"))
            assert b"no such card" not in c.data + call(b, "watch", "GET", "/v1/audit").body
            assert "no such card" not in b.stderr() and "target_down" in b.stderr(), b.stderr()


@test
def a_source_of_a_queue_that_a_token_does_not_see_is_not_there_for_it():
    rules = "queues: {payments: {}, orders: {}}\nsources: {till: {queue: payments, verify: {scheme: none}}}\n"
    with hx.Broker(config=config(token("shop", ["send:payments"]), token("watch", ["observe:payments"]), token("mill", ["send:orders"]), more=rules)) as b:
        def come(name, source):
            return call(b, name, "POST", f"/in/{source}", b"{}", [("webhook-id", "e1"), ("Content-Type", "application/json")])

        same(come("shop", "till").status, 202)
        refused(come("watch", "till"), 403, "forbidden")
        refused(come(None, "till"), 401, "unauthorized")
        refused(come("mill", "till"), 404, "not_found")
        same(come("mill", "till").body, come("mill", "elsewhere").body)


@test
def a_removed_token_ends_its_long_poll_and_takes_no_new_request():
    worker, other = token("worker", ["receive:payments"]), token("other", ["receive:payments"])
    with hx.Broker(config=config(ADMIN, worker, other)) as b, b.connect() as gone, b.connect() as stays:
        gone.start("POST", "/v1/queues/payments/receive?wait=60s", b"", bearer("worker"))
        stays.start("POST", "/v1/queues/payments/receive?wait=60s", b"", bearer("other"))
        until(lambda: call(b, "admin", "GET", "/v1/stats").json()["waiting"] == 2, "both wait")
        said = b.reload(config(ADMIN, other))
        assert "token worker: removed" in said, said
        refused(gone.reply(), 401, "unauthorized")
        refused(call(b, "worker", "POST", "/v1/queues/payments/receive", b""), 401, "unauthorized")
        same(send(b, "admin", "payments", "k").status, 202)
        same(len(stays.reply().json()["messages"]), 1)


@test
def whose_token_is_removed_while_it_waits_is_not_told_that_nothing_was_applied():
    shop = token("shop", ["send:payments"])
    with hx.Broker(config=config(ADMIN, shop)) as b, b.connect() as c:
        c.start("POST", "/v1/queues/payments/messages", b"x", [*bearer("shop"), ("Idempotency-Key", "k"), ("Prefer", "wait=60")])
        until(lambda: call(b, "admin", "GET", "/v1/stats").json()["waiting"] == 1, "it waits")
        b.reload(config(ADMIN))
        reply = c.reply()
        same((reply.status, reply.json()["outcome"], reply.json()["state"]), (202, "accepted", "pending"))
        same(call(b, "admin", "GET", "/v1/queues/payments/keys/k").json()["state"], "pending")


@test
def a_removed_token_ends_its_stream():
    watch = token("watch", ["observe"])
    with hx.Broker(config=config(ADMIN, watch)) as b, b.connect() as c:
        c.start("GET", "/v1/events", headers=bearer("watch"))
        assert " 200 " in c.head()[0]
        until(lambda: call(b, "admin", "GET", "/v1/stats").json()["events"]["readers"] == 1, "it reads")
        b.reload(config(ADMIN))
        until(lambda: call(b, "admin", "GET", "/v1/stats").json()["events"]["readers"] == 0, "it is told no more")
        while not c.data.endswith(b"\r\n0\r\n\r\n"):
            assert c.more()


@test
def events_tell_of_the_queues_that_may_be_observed():
    with hx.Broker(config=config(ADMIN, token("some", ["observe:payments"]))) as b, b.connect() as c:
        refused(call(b, "some", "GET", "/v1/events?queue=orders"), 404, "no_such_queue")
        c.start("GET", "/v1/events", headers=bearer("some"))
        until(lambda: call(b, "admin", "GET", "/v1/stats").json()["events"]["readers"] == 1, "it reads")
        same(send(b, "admin", "orders", "theirs").status, 202)
        same(call(b, "admin", "POST", "/v1/queues/orders/pause", b"").status, 200)
        same(send(b, "admin", "payments", "ours").status, 202)
        while b"ours" not in c.data:
            assert c.more()
        assert b"theirs" not in c.data and b"orders" not in c.data, c.data


@test
def an_expired_token_is_a_wrong_one():
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))
    with hx.Broker(config=config(ADMIN, token("brief", ["receive"], f", expires: '{soon}'"))) as b, b.connect() as c:
        c.start("POST", "/v1/queues/payments/receive?wait=60s", b"", bearer("brief"))
        told = refused(c.reply(), 401, "unauthorized")
        assert "expired" in told["detail"], told
        refused(call(b, "brief", "POST", "/v1/queues/payments/receive", b""), 401, "unauthorized")


@test
def a_token_is_rotated_without_a_gap():
    both, new = token("worker", ["receive"], texts=["hx_old", "hx_new"]), token("worker", ["receive"], texts=["hx_new"])
    with hx.Broker(config=config(ADMIN, token("worker", ["receive"], texts=["hx_old"]))) as b:
        same(call(b, "old", "POST", "/v1/queues/payments/receive", b"").status, 200)
        refused(call(b, "new", "POST", "/v1/queues/payments/receive", b""), 401, "unauthorized")
        said = b.reload(config(ADMIN, both))
        assert "token worker: sha256: changed" in said, said
        for name in ("old", "new"):
            same(call(b, name, "POST", "/v1/queues/payments/receive", b"").status, 200)
        b.reload(config(ADMIN, new))
        refused(call(b, "old", "POST", "/v1/queues/payments/receive", b""), 401, "unauthorized")
        same(call(b, "new", "POST", "/v1/queues/payments/receive", b"").status, 200)


@test
def the_trail_and_the_log_name_the_token_and_never_its_text():
    with hx.Broker(config=config(ADMIN, token("oncall", ["operate:*", "observe"]))) as b:
        same(call(b, "oncall", "POST", "/v1/queues/payments/pause", b'{"by":"admin"}').status, 200)
        same(call(b, "oncall", "GET", "/v1/audit?what=pause").json()["items"][0]["who"], "oncall/admin")
        same(call(b, "oncall", "GET", "/v1/audit?who=admin").json()["items"], [])
        refused(call(b, "secret", "GET", "/v1/queues"), 401, "unauthorized")
        until(lambda: "token_refused" in b.stderr() or "not known" in b.stderr(), "it is told")
        assert "hx_" not in b.stderr(), b.stderr()
        assert 'hapax_unauthorized_total{why="wrong"} 1' in call(b, "oncall", "GET", "/metrics").body.decode()


@test
def while_there_are_no_tokens_everything_is_allowed_and_anonymous_says_otherwise():
    with hx.Broker(config=config()) as b:
        same(send(b, None, "payments", "k").status, 202)
        same(send(b, "whatever", "payments", "k").status, 202)
        b.reload(config(more="anonymous: [observe]\nqueues: {payments: {}}\n"))
        same(call(b, None, "GET", "/v1/queues/payments").status, 200)
        refused(send(b, None, "payments", "k"), 401, "unauthorized")


@test
def a_reload_with_a_token_twice_is_refused_and_the_old_ones_stay():
    with hx.Broker(config=config(ADMIN)) as b:
        said = b.reload(config(ADMIN, token("other", ["send"], texts=["hx_admin"])))
        assert "the same token twice" in said and "reload refused" in said, said
        same(call(b, "admin", "GET", "/v1/queues").status, 200)


@test
def many_ask_while_tokens_come_and_go():
    worker = token("worker", ["send", "receive"])
    with hx.Broker(config=config(ADMIN, worker)) as b:
        def ask(n):
            with b.connect() as c:
                seen = set()
                for i in range(200):
                    reply = c.request("POST", "/v1/queues/payments/messages", b"x", [*bearer("worker"), ("Idempotency-Key", f"{n}-{i}")])
                    seen.add(reply.status)
                    if reply.header("Connection") == "close":
                        c.close()
                        c.__init__(b.port)
                return seen
        askers = [Later(ask, n) for n in range(4)]
        for i in range(6):
            b.reload(config(ADMIN) if i % 2 == 0 else config(ADMIN, worker))
        for asker in askers:
            assert asker.value() <= {200, 202, 401}, asker.value()


hx.main(shared=False, threads=6)
