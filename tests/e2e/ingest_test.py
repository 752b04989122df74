#!/usr/bin/env python3
"""Webhooks come in signed, become messages once, and their senders are told to stop."""
import base64
import hashlib
import hmac
import json
import tempfile
import time

import hx
from hx import members, problem, same, test

KEY = bytes(range(32))
ENV = {"STANDARD": "whsec_" + base64.b64encode(KEY).decode(), "OTHER": "whsec_" + base64.b64encode(b"o" * 32).decode(),
       "STRIPE": "whsec_notdecoded", "GITHUB": "It's a Secret to Everybody", "PLAIN": "plain-secret-of-the-sender"}
CONFIG = """\
sources:
  terminal: {queue: slots, verify: {scheme: standard, secrets: ["${OTHER}", "${STANDARD}"]}}
  stripe: {queue: money, verify: {scheme: stripe, secrets: ["${STRIPE}"]}}
  github: {queue: pushes, verify: {scheme: github, secrets: ["${GITHUB}"]}}
  own: {queue: pushes, verify: {scheme: hmac, secrets: ["${PLAIN}"], header: X-Sign, prefix: "v=", encoding: base64}, content_types: [application/json]}
  open: {queue: events, verify: {scheme: none}}
queues:
  slots: {key: "slot:${container}", schema: {required: [container]}, fingerprint: {ignore: [sent_at]}}
  money: {}
  pushes: {}
  events: {}
  tiny: {}
"""


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256)


def standard(body, key=KEY, id="msg_1", at=None):
    at = str(int(time.time() if at is None else at))
    sign = base64.b64encode(mac(key, f"{id}.{at}.".encode(), body).digest()).decode()
    return [("webhook-id", id), ("webhook-timestamp", at), ("webhook-signature", "v1," + sign), ("Content-Type", "application/json")]


def broker(config=CONFIG):
    return hx.Broker(config=config, env=ENV)


def slot(container, **more):
    return json.dumps({"container": container, **more}).encode()


def post(b, source, body, headers=()):
    return b.call("POST", f"/in/{source}", body, headers)


def taken(reply, status, outcome):
    same(reply.status, status, repr(reply))
    members(reply.json(), outcome=outcome)
    return reply.json()["id"]


def counted(b, source, outcome):
    line = f'hapax_ingest_total{{source="{source}",outcome="{outcome}"}} '
    found = [l for l in b.get("/metrics").body.decode().splitlines() if l.startswith(line)]
    return int(found[0].removeprefix(line)) if found else 0


# ---- what is taken

@test
def a_signed_event_becomes_one_message_however_often_it_comes():
    with broker() as b:
        body = slot("C1", sent_at=1)
        id = taken(post(b, "terminal", body, standard(body)), 202, "accepted")
        body = slot("C1", sent_at=2)
        same(taken(post(b, "terminal", body, standard(body, id="msg_2")), 200, "duplicate"), id)
        m = b.one("slots")
        members(m, id=id, key="slot:C1", content_type="application/json")
        b.ok("ack", m, result={"slot": 7})
        same(taken(post(b, "terminal", body, standard(body, id="msg_3")), 200, "duplicate"), id)
        same((counted(b, "terminal", "accepted"), counted(b, "terminal", "duplicate")), (1, 2))


@test
def it_is_durable_before_its_sender_hears_a_2xx():
    with broker() as b:
        for i in range(20):
            body = slot(f"C{i}")
            taken(post(b, "terminal", body, standard(body)), 202, "accepted")
        b.kill()
        b.start()
        for i in range(20):
            body = slot(f"C{i}")
            taken(post(b, "terminal", body, standard(body)), 200, "duplicate")


@test
def each_scheme_has_its_own_key_behind_the_sources_name():
    with broker() as b:
        body, at = b'{"id":"evt_1","amount":5}', str(int(time.time()))
        stripe = [("Stripe-Signature", f"t={at},v1=" + mac(ENV["STRIPE"].encode(), at.encode(), b".", body).hexdigest())]
        taken(post(b, "stripe", body, stripe), 202, "accepted")
        taken(post(b, "stripe", body, stripe), 200, "duplicate")
        same(b.one("money")["key"], "stripe:evt_1")
        hello = b"Hello, World!"
        github = [("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
                  ("X-GitHub-Delivery", "72d3162e-cc78-11e3"), ("X-GitHub-Event", "push")]
        taken(post(b, "github", hello, github), 202, "accepted")
        taken(post(b, "github", hello, github), 200, "duplicate")
        m = b.one("pushes")
        same(m["key"], "github:72d3162e-cc78-11e3")
        same(m["attrs"]["x-github-event"], "push")
        own = [("x-sign", "v=" + base64.b64encode(mac(ENV["PLAIN"].encode(), b"{}").digest()).decode()), ("webhook-id", "n1"),
               ("Content-Type", "application/json; charset=utf-8")]
        taken(post(b, "own", b"{}", own), 202, "accepted")
        same(b.one("pushes")["key"], "own:n1")


@test
def a_sender_that_signs_in_one_way_and_names_in_another_has_a_key_still():
    def own(body):
        return [("x-sign", "v=" + base64.b64encode(mac(ENV["PLAIN"].encode(), body).digest()).decode()), ("Content-Type", "application/json")]

    def stripe(body, at=str(int(time.time()))):
        return [("Stripe-Signature", f"t={at},v1=" + mac(ENV["STRIPE"].encode(), at.encode(), b".", body).hexdigest())]

    def github(body):
        return [("X-Hub-Signature-256", "sha256=" + mac(ENV["GITHUB"].encode(), body).hexdigest())]

    named, bare = b'{"id":"evt_1"}', b'{"a":1}'
    hook, delivery = ("webhook-id", "msg_1"), ("X-GitHub-Delivery", "d1")
    cases = [("own", named, own(named), "evt_1"), ("own", bare, own(bare) + [delivery], "d1"), ("own", named, own(named) + [hook, delivery], "msg_1"),
             ("own", bare, own(bare) + [("webhook-id", ""), delivery], "d1"), ("open", named, [delivery], "evt_1"), ("open", b"no json", [delivery], "d1"),
             ("github", bare, github(bare) + [hook], "msg_1"), ("github", named, github(named), "evt_1"), ("github", named, github(named) + [hook, delivery], "d1"),
             ("stripe", named, stripe(named) + [hook, delivery], "evt_1"), ("stripe", bare, stripe(bare) + [hook], "msg_1"), ("stripe", bare, stripe(bare) + [delivery], "d1")]
    for source, body, headers, key in cases:
        with broker() as b:
            id = taken(post(b, source, body, headers), 202, "accepted")
            queue = {"own": "pushes", "open": "events", "github": "pushes", "stripe": "money"}[source]
            same(b.get(f"/v1/queues/{queue}/messages/{id}").json()["key"], f"{source}:{key}", (source, body, headers))


@test
def what_is_too_large_for_its_queue_is_refused_before_anybody_looks_at_its_signature():
    with broker(CONFIG.replace("pushes: {}", "pushes: {limits: {payload: 1KiB}}").replace("events: {}", "events: {limits: {payload: 1KiB}}")) as b:
        problem(post(b, "github", b"x" * 1025, [("X-GitHub-Delivery", "d1")]), 413, "too_large")
        problem(post(b, "github", b"x" * 1024, [("X-GitHub-Delivery", "d1")]), 401, "signature_invalid")
        same((counted(b, "github", "too_large"), counted(b, "github", "signature")), (1, 1))
        # of an event in its envelope the data counts
        event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "note": "n" * 1024, "data": "d"}
        taken(post(b, "open", json.dumps(event).encode(), [("Content-Type", "application/cloudevents+json")]), 202, "accepted")
        event.update(id="2", data="d" * 1025)
        problem(post(b, "open", json.dumps(event).encode(), [("Content-Type", "application/cloudevents+json")]), 413, "too_large")


@test
def an_idempotency_key_that_nobody_signed_is_not_looked_at():
    with broker() as b:
        body = slot("C1")
        taken(post(b, "terminal", body, standard(body) + [("Idempotency-Key", "mine")]), 202, "accepted")
        same(b.one("slots")["key"], "slot:C1")


@test
def the_same_cloudevent_is_one_message_in_every_mode():
    event = {"specversion": "1.0", "id": "e%41:1", "source": "/terminals/7", "type": "slot.booked", "partitionkey": "t7",
             "datacontenttype": "application/json", "data": {"container": "C1"}}
    with broker() as b:
        structured = json.dumps(event).encode()
        id = taken(post(b, "open", structured, [("Content-Type", "application/cloudevents+json; charset=utf-8")]), 202, "accepted")
        binary = [("ce-specversion", "1.0"), ("ce-id", '"e%2541:1"'), ("ce-source", "/terminals/7"), ("ce-type", "slot.booked"), ("ce-partitionkey", "t7"),
                  ("Content-Type", "application/json")]
        same(taken(post(b, "open", b'{"container": "C1"}', binary), 200, "duplicate"), id)
        reply = post(b, "open", b"[" + structured + b"]", [("Content-Type", "application/cloudevents-batch+json")])
        same(reply.status, 200, repr(reply))
        same([(i["outcome"], i["id"]) for i in reply.json()["items"]], [("duplicate", id)])
        m = b.one("events")
        members(m, id=id, group="t7", content_type="application/json")
        same(json.loads(m["payload"]), {"container": "C1"})
        same((m["attrs"]["ce-type"], m["attrs"]["ce-id"]), ("slot.booked", "e%41:1"))
        event["id"] = "eA:1"  # which is another id
        taken(post(b, "open", json.dumps(event).encode(), [("Content-Type", "application/cloudevents+json")]), 202, "accepted")


@test
def its_group_and_type_are_the_senders_however_much_room_its_attributes_take():
    config = CONFIG.replace("{queue: events, verify: {scheme: none}}", '{queue: events, verify: {scheme: standard, secrets: ["${STANDARD}"]}}')
    env = {**ENV, "MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # what is freed does not keep its bytes
    with hx.Broker(config=config, env=env) as b:
        for size in range(0, 4000, 400):  # their memory grows by the webhook-id
            event = {"specversion": "1.0", "id": str(size), "source": "s", "type": "t", "partitionkey": "the group", "datacontenttype": "application/x-it",
                     "more": "x" * size, "data": "x" * 5000}
            body = json.dumps(event).encode()
            signed = standard(body, id=f"{size}_" + "long" * 2000)[:3] + [("Content-Type", "application/cloudevents+json")]
            taken(post(b, "open", body, signed), 202, "accepted")
            m = b.one("events")
            members(m, group="the group", content_type="application/x-it")
            b.post("/v1/ack", {"token": m["token"]})


@test
def an_event_of_a_batch_is_no_larger_than_any_message():
    def event(id, size):
        return {"specversion": "1.0", "id": id, "source": "s", "type": "t", "data": "x" * size}

    with broker() as b:
        events = [event("large", (1 << 20) - 1), event("largest", (1 << 20) - 2), event("small", 1)]  # and two quotes
        reply = post(b, "open", json.dumps(events).encode(), [("Content-Type", "application/cloudevents-batch+json")])
        p = problem(reply, 413, "too_large", applied="unknown")
        same([i["status"] for i in p["items"]], [413, 202, 202])
        for large in (event("huge", 3 << 19), {**event("list", 0), "data": [0] * (3 << 18)}):
            reply = post(b, "open", json.dumps([event("new", 1), large]).encode(), [("Content-Type", "application/cloudevents-batch+json")])
            problem(reply, 400, "event_invalid")
        same(b.queue("events")["ready"], 2)


@test
def an_event_whose_group_cannot_be_kept_is_refused_not_put_out_of_order():
    with broker() as b:
        event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "partitionkey": "g" * 256}
        problem(post(b, "open", json.dumps(event).encode(), [("Content-Type", "application/cloudevents+json")]), 400, "event_invalid")
        event["partitionkey"] = "g" * 255
        taken(post(b, "open", json.dumps(event).encode(), [("Content-Type", "application/cloudevents+json")]), 202, "accepted")
        same(b.one("events")["group"], "g" * 255)


@test
def a_batch_is_looked_at_before_any_of_it_is_applied():
    def batch(b, events):
        body = events if isinstance(events, bytes) else json.dumps(events).encode()
        return post(b, "open", body, [("Content-Type", "application/cloudevents-batch+json")])

    def event(n, **more):
        return {"specversion": "1.0", "id": str(n), "source": "s", "type": "t", "data": n, **more}

    with broker() as b:
        for wrong in (b"", b"{}", b"[", b"[]x", b'[{"specversion":"1.0"}]', [event(1), {"id": 2}], [event(1), 5], [event(1)] + [event(2, data_base64="====")],
                      [event(n) for n in range(1001)], [event(1), event(2, Big="x")], [event(1), event(2, x={"a": 1})]):
            problem(batch(b, wrong), 400, "event_invalid")
        same(b.queue("events")["ready"], 0)
        same(batch(b, []).json(), {"outcome": "batch", "items": []})
        reply = batch(b, [event(n) for n in range(1000)] )
        same(reply.status, 200)
        same({i["status"] for i in reply.json()["items"]}, {202})
        same(b.queue("events")["ready"], 1000)


@test
def the_worst_of_a_batch_is_its_status_and_the_others_are_applied():
    config = CONFIG.replace("  events: {}", "  events: {limits: {pending: 2}}")
    with broker(config) as b:
        events = [{"specversion": "1.0", "id": str(n), "source": "s", "type": "t"} for n in range(3)]
        reply = post(b, "open", json.dumps(events).encode(), [("Content-Type", "application/cloudevents-batch+json")])
        p = problem(reply, 429, "backpressure", applied="unknown")
        same([i["status"] for i in p["items"]], [202, 202, 429])
        assert int(reply.header("Retry-After")) > 0


# ---- what is not

@test
def what_is_not_verified_is_only_counted():
    with broker() as b:
        body = slot("C1")
        for headers in ([], standard(body, key=b"x" * 32), standard(body, at=time.time() - 400), standard(body, at=time.time() + 400),
                        standard(body) + [("webhook-id", "msg_1")], [h for h in standard(body) if h[0] != "webhook-timestamp"]):
            p = problem(post(b, "terminal", body, headers), 401, "signature_invalid")
            assert "whsec" not in json.dumps(p), p
        problem(post(b, "terminal", slot("C2"), standard(body)), 401, "signature_invalid")
        same((counted(b, "terminal", "signature"), counted(b, "terminal", "accepted")), (7, 0))
        same(b.queue("slots")["ready"], 0)
        problem(post(b, "nobody", body, standard(body)), 404, "not_found")
        body = slot("C1", fill="x" * 100000)
        taken(post(b, "%74erminal", body, standard(body)), 202, "accepted")
        problem(post(b, "nobod%79", body, standard(body)), 404, "not_found")


@test
def a_schema_failure_and_a_conflict_are_kept_as_copies_and_the_sender_may_stop():
    with broker() as b:
        body = b'{"box":1}'
        id = taken(post(b, "terminal", body, standard(body)), 200, "refused")
        same(taken(post(b, "terminal", body, standard(body, id="msg_2")), 200, "refused"), id)
        body = slot("C1", n=1)
        taken(post(b, "terminal", body, standard(body)), 202, "accepted")
        body = slot("C1", n=2)
        copy = taken(post(b, "terminal", body, standard(body)), 200, "conflict")
        dead = {m["id"]: m for m in b.list("slots", state="dead")}
        same(set(dead), {id, copy})
        assert "slot:C1" in json.dumps(dead[copy]), dead[copy]


@test
def where_no_copy_can_be_kept_the_sender_is_told_so():
    with broker(CONFIG.replace("schema: {required: [container]}", "schema: {required: [container]}, refused: {keep: 0}")) as b:
        body = b'{"box":1}'
        problem(post(b, "terminal", body, standard(body)), 422, "schema")
        for n in (1, 2):
            body = slot("C1", n=n)
            reply = post(b, "terminal", body, standard(body))
        problem(reply, 422, "key_reused")
        same(counted(b, "terminal", "lost"), 2)


@test
def what_cannot_be_read_says_why():
    with broker() as b:
        sign = [("x-sign", "v=" + base64.b64encode(mac(ENV["PLAIN"].encode(), b"{}").digest()).decode())]
        json_type = [("Content-Type", "application/json")]
        problem(post(b, "own", b"{}", sign + [("Content-Type", "text/plain")]), 415, "unsupported_media")
        problem(post(b, "own", b"{}", sign), 415, "unsupported_media")
        problem(post(b, "own", b"{}", sign + json_type + [("Content-Encoding", "gzip")]), 415, "unsupported_media")
        problem(post(b, "own", b"{}", sign + json_type), 400, "key_missing")
        problem(post(b, "own", b"{}", sign + json_type + [("webhook-id", "x" * 300)]), 400, "key_invalid")
        problem(post(b, "open", b"x", [("Content-Type", "application/cloudevents+avro")]), 415, "unsupported_media")
        problem(post(b, "open", b"x", [("ce-specversion", "0.3"), ("ce-id", "1"), ("ce-source", "s"), ("ce-type", "t")]), 400, "event_invalid")
        problem(post(b, "open", b"x", [("ce-specversion", "1.0"), ("ce-id", "%zz"), ("ce-source", "s"), ("ce-type", "t")]), 400, "event_invalid")
        problem(post(b, "open", b"x", [("ce-specversion", "1.0"), ("ce-id", "%ff"), ("ce-source", "s"), ("ce-type", "t")]), 400, "event_invalid")
        same(b.call("POST", "/in/open", b"x" * ((1 << 20) + 1)).status, 413)
        same(b.call("GET", "/in/open").status, 405)
        same((counted(b, "own", "media"), counted(b, "own", "malformed"), counted(b, "open", "malformed"), counted(b, "open", "too_large")), (3, 2, 3, 1))


# ---- its config

@test
def secrets_are_changed_by_a_reload_and_never_shown():
    with broker() as b:
        body = slot("C1")
        said = b.reload(CONFIG.replace('"${OTHER}", "${STANDARD}"', '"${OTHER}"'))
        assert "source terminal: verify.secrets: changed" in said, said
        problem(post(b, "terminal", body, standard(body)), 401, "signature_invalid")
        taken(post(b, "terminal", body, standard(body, key=b"o" * 32)), 202, "accepted")
        said = b.reload(CONFIG.replace("  github:", "  gitlab:"))
        assert "source github: removed" in said and "source gitlab: added" in said, said
        problem(post(b, "github", b"x"), 404, "not_found")
        for secret in ENV.values():
            assert secret not in b.stderr()
            for path in ("/v1/stats", "/v1/queues/slots", "/v1/audit", "/metrics"):
                assert secret not in b.get(path).body.decode(), path


@test
def a_secret_may_come_from_a_file_that_is_read_again_with_the_config():
    with tempfile.NamedTemporaryFile() as file:
        def secret(text):
            file.seek(0)
            file.truncate()
            file.write(text)
            file.flush()
        secret(ENV["STANDARD"].encode() + b"\n")
        config = CONFIG.replace('"${OTHER}", "${STANDARD}"', f"{{secret_file: {file.name}}}")
        with broker(config) as b:
            body = slot("C1")
            taken(post(b, "terminal", body, standard(body)), 202, "accepted")
            secret(ENV["OTHER"].encode())
            assert "source terminal: verify.secrets: changed" in b.reload(config)
            problem(post(b, "terminal", body, standard(body)), 401, "signature_invalid")
            taken(post(b, "terminal", body, standard(body, key=b"o" * 32)), 200, "duplicate")
            secret(b"")
            said = b.reload(config)
            assert "empty" in said and "the old rules stay" in said, said


@test
def a_source_that_makes_no_sense_is_refused_with_its_line():
    def said(text):
        with hx.Broker(config=f"sources:\n  s: {text}\nqueues: {{q: {{}}}}\n", env={**ENV, "EMPTY": ""}, start=False) as b:
            b.spawn()
            same(b.wait_exit(), 1)
            return b.stderr()

    for text, word in (("{}", "queue is missing"), ("{queue: q}", "verify.scheme is missing"),
                       ("{queue: q, verify: {scheme: standard}}", "needs verify.secrets"),
                       ('{queue: q, verify: {scheme: standard, secrets: ["${NOT_THERE}"]}}', "NOT_THERE is not set"),
                       ('{queue: q, verify: {scheme: standard, secrets: ["${EMPTY}"]}}', "empty"),
                       ('{queue: q, verify: {scheme: standard, secrets: ["${PLAIN}"]}}', "whsec_"),
                       ('{queue: q, verify: {scheme: hmac, secrets: ["${PLAIN}"]}}', "verify.header"),
                       ('{queue: q, verify: {scheme: github, secrets: ["${PLAIN}"], header: x}}', "for the scheme hmac"),
                       ('{queue: q, verify: {scheme: none, secrets: ["${PLAIN}"]}}', "no secrets"),
                       ("{queue: q, verify: {scheme: stirpe}}", "stripe"), ("{queue: 'a b', verify: {scheme: none}}", "queue"),
                       ("{queue: q, verify: {scheme: standard, secrets: []}}", "1 to 4")):
        words = said(text)
        assert "hapax.yaml:2:" in words and word in words, (text, words)
        assert ENV["PLAIN"] not in words


hx.main(shared=False, threads=4)
