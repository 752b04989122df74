#!/usr/bin/env python3
"""Messages leave as HTTP requests: leased before they are sent, with their key, and settled by what was answered. What nobody
answered is unknown, and looked up (P5)."""
import base64
import email.utils
import json
import re
import signal
import time

import hx
from hx import hapax, members, same, test, until
from receiver import CLOSE, HANG, RESET, Answer, Receiver, refused_port, reserved

FAST = {"transient": {"attempts": 9, "backoff": "1ms", "max": "1ms"}}
OFF = {"ratio": "100%", "of": 1000, "within": "1m", "open": "1s"}  # a circuit that no test of another thing opens
JSON = [("Content-Type", "application/json")]


def queue(q, r, path="/book", of=None, retry=FAST, downstream={"idempotency": "key"}, reconcile=None, deliver={}, **rules):
    """The queue's messages go to the receiver (or to an address)."""
    to = r if isinstance(r, str) else r.url
    if reconcile is not None:
        rules["reconcile"] = {"url": to + "/slots?key=${hapax.effect_key}", "after": "1ms", "every": "1ms", "allow_private": True, **reconcile}
    return (of or hx.broker).rules(q, retry=retry, downstream=downstream, **rules,
                                   deliver={"url": to + path, "allow_private": True, "timeout": "20s", "circuit": OFF, **deliver})


def becomes(q, key, state, of=None):
    """The key, once it is in that state."""
    b = of or hx.broker
    until(lambda: b.state(q, key) == state, f"{key} is {state}; it is {b.key(q, key)}")
    return b.key(q, key)


def http(shown):
    return shown["result"]["http"] if "http" in shown["result"] else shown["http"]


# ---- what is sent

@test
def a_message_leaves_once_with_its_key_and_its_answer_is_the_result(q):
    b = hx.broker
    with Receiver(Answer(201, '{"booking":{"id":"B7"}}', JSON + [("Location", "/b/7"), ("X-Other", "no")])) as r:
        queue(q, r, deliver={"effect_id": "booking.id", "keep": {"headers": ["location"]}})
        id = b.put(q, "k1", payload='{"a":1}', headers=JSON + [("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"), ("tracestate", "x=y")])
        request = r.next()
        same((request.method, request.path, request.body), ("POST", "/book", b'{"a":1}'))
        same(request.header("idempotency-key"), "k1")
        same(request.header("webhook-id"), id)
        same(request.header("hapax-attempt"), "1")
        same(request.header("content-type"), "application/json")
        same(request.header("traceparent"), "00-" + "a" * 32 + "-" + "b" * 16 + "-01")
        same(request.header("tracestate"), "x=y")
        same(request.header("webhook-signature"), None)
        assert abs(int(request.header("webhook-timestamp")) - time.time()) < hx.TIMEOUT
        shown = becomes(q, "k1", "done")
        same(shown["result"]["body"], '{"booking":{"id":"B7"}}')
        same(shown["result"]["content_type"], "application/json")
        same(http(shown), {"status": 201, "headers": {"location": "/b/7"}})
        same(shown["effect_ids"], ["B7"])
        members(shown["attempts"][0], consumer="push", ended="acked")
        again = b.send(q, "k1", '{"a":1}').json()
        members(again, duplicate=True, state="done")
        same(again["result"]["body"], '{"booking":{"id":"B7"}}')
        assert r.quiet()


@test
def every_attempt_has_the_same_id_and_key_and_its_own_number(q):
    with Receiver(Answer(500), Answer(503), Answer(200)) as r:
        queue(q, r)
        id = hx.broker.put(q, "k")
        requests = [r.next() for _ in range(3)]
        same([(x.header("webhook-id"), x.header("idempotency-key"), x.header("hapax-attempt")) for x in requests],
             [(id, "k", str(n)) for n in (1, 2, 3)])
        shown = becomes(q, "k", "done")
        same([(a["ended"], a.get("class")) for a in shown["attempts"]], [("nacked", "transient"), ("nacked", "transient"), ("acked", None)])
        assert "500" in shown["attempts"][0]["reason"], shown


@test
def a_key_is_bare_where_it_can_be_and_else_a_string_or_a_display_string(q):
    b = hx.broker
    with Receiver() as r:
        queue(q, r)
        for sent, header in (("slot:A:1%2F", "slot:A:1%2F"), ("two words", '"two words"'), ('q"b\\', '"q\\"b\\\\"'), ("a;b", '"a;b"'), ("a,b", '"a,b"'),
                             ("sch\u00f6n %", '%"sch%c3%b6n %25"')):
            same(b.call("POST", f"/v1/queues/{q}/batch", json.dumps({"key": sent, "payload": "x"}).encode()).lines()[0]["status"], 202)
            same(r.next().header("idempotency-key"), header)
            becomes(q, sent, "done")


@test
def a_message_without_a_key_is_an_effect_of_its_own(q):
    with Receiver() as r:
        queue(q, r, semantics="at_least_once")
        id = hx.broker.put(q, None)
        same(r.next().header("idempotency-key"), id)


@test
def a_replay_is_a_new_effect(q):
    b = hx.broker
    with Receiver() as r:
        queue(q, r, keep_payload="1h")
        b.put(q, "k")
        same(r.next().key, "k")
        becomes(q, "k", "done")
        same(b.post(f"/v1/queues/{q}/keys/k/replay", {"by": "ann"}).status, 202)
        same(r.next().key, "k~g1")
        becomes(q, "k", "done")


@test
def the_page_of_a_key_has_what_the_downstream_was_handed(q):
    b = hx.broker
    with Receiver() as r:
        queue(q, r, keep_payload="1h")
        b.put(q, "k")
        same(becomes(q, "k", "done")["effect_key"], r.next().key)
        same(b.post(f"/v1/queues/{q}/keys/k/replay", {"by": "ann"}).json()["effect_key"], "k~g1")
        same(becomes(q, "k", "done")["effect_key"], r.next().key)
        assert re.search(r"^effect key +k~g1$", hapax("key", "show", q, "k", of=b).text, re.M)
        queue(q + "-all", r, semantics="at_least_once")
        id = b.put(q + "-all", None)
        same(b.get(f"/v1/queues/{q}-all/messages/{id}").json()["effect_key"], r.next().key)


@test
def templates_reach_path_query_and_headers(q):
    with Receiver() as r:
        queue(q, r, path="/slots/${a.b}/x?k=${hapax.effect_key}&i=${hapax.id}",
              deliver={"headers": {"x-who": "n-${who}", "x-trace": "${header.traceparent}", "x-region": "${header.hapax-attr-region}"}, "method": "PUT"})
        id = hx.broker.event(q, {"a": {"b": "C/1 \u00f6"}, "who": 7}, "k:1", [("Hapax-Attr-Region", "eu")]).json()["id"]
        request = r.next()
        same((request.method, request.path), ("PUT", f"/slots/C%2F1%20%C3%B6/x?k=k%3A1&i={id}"))
        same((request.header("x-who"), request.header("x-region")), ("n-7", "eu"))
        same(request.header("x-trace"), request.header("traceparent"))
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", request.header("traceparent")), request


@test
def each_secret_signs_and_secret_headers_are_sent_and_shown_nowhere():
    secrets = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
    with Receiver() as r, hx.Broker(env={"NEW": secrets[0], "OLD": secrets[1], "API": "top-secret-value"}, config=f"""
queues:
  q:
    deliver: {{url: "{r.url}/hook", allow_private: true, sign: {{secrets: ["${{NEW}}", "${{OLD}}"]}}, secret_headers: {{x-api-key: "Bearer ${{API}}"}}}}
""") as b:
        b.put("q", "k", payload="hello")
        request = r.next()
        assert all(request.is_signed_with(secret) for secret in secrets), request
        same(request.header("x-api-key"), "Bearer top-secret-value")
        becomes("q", "k", "done", of=b)
        shown = b"".join(b.get(path).body for path in ("/v1/queues/q", "/v1/queues/q/keys/k", "/v1/targets", "/metrics", "/v1/audit"))
        assert b"top-secret" not in shown and secrets[0].encode() not in shown
        assert "top-secret" not in b.stderr()


# ---- what cannot be sent

@test
def what_no_request_can_be_made_of_is_dead_with_the_reason_and_nothing_is_lost(q):
    b = hx.broker
    with Receiver() as r:
        queue(q, r, path="/slots/${container}", deliver={"headers": {"x-who": "${who}"}})
        for key, payload, why in (("text", "not json", "JSON"), ("dots", {"container": "..", "who": 1}, "container"), ("none", {"who": 1}, "container"),
                                  ("list", {"container": [1], "who": 1}, "container"), ("crlf", {"container": "c", "who": "a\r\nx-evil: 1"}, "x-who")):
            same(b.event(q, payload, key).status, 202)
            shown = becomes(q, key, "dead")
            members(shown["attempts"][-1], **{"class": "poison"})
            assert why in shown["attempts"][-1]["reason"], shown["attempts"]
        same(len(b.list(q, state="dead")), 5)
        b.event(q, {"container": "C1", "who": 2}, "good")
        same(r.next().path, "/slots/C1")
        becomes(q, "good", "done")
        same(len(r.requests), 1)


# ---- what an answer means

@test
def each_status_means_what_classify_says(q):
    b = hx.broker
    meaning = {200: "done", 201: "done", 204: "done", 299: "done", 301: "dead", 302: "dead", 307: "dead", 304: "dead", 400: "dead", 404: "dead",
               405: "dead", 402: "rejected", 422: "rejected", 413: "dead"}
    again = [401, 403, 408, 409, 425, 429, 500, 502, 503, 504, 599]
    for downstream in ({"idempotency": "key"}, {"idempotency": "none"}):
        with Receiver(always=lambda request: Answer(int(request.path[1:4]), "why", effect=False) if request.header("hapax-attempt") == "1" else Answer(200)) as r:
            name = f"{q}-{downstream['idempotency']}"
            queue(name, r, path="/${status}", downstream=downstream)
            for status in [*meaning, *again]:
                b.event(name, {"status": str(status)}, f"k{status}")
            for status, state in meaning.items():
                shown = becomes(name, f"k{status}", state)
                if state == "rejected":
                    same((shown["result"]["body"], http(shown)["status"]), ("why", status))
                if state == "dead":
                    assert f"answered {status}" in shown["attempts"][-1]["reason"], shown
            for status in again:
                unknown = downstream["idempotency"] == "none" and status in (408, 500, 502, 504, 599)
                shown = becomes(name, f"k{status}", "held" if unknown else "done")
                members(shown["attempts"][0], **{"class": "unknown" if unknown else "transient"})
            sent = [x.key for x in r.requests]
            for status in [*meaning, *again]:
                same(sent.count(f"k{status}"), 2 if becomes_twice(status, again, downstream) else 1, f"{status} under {downstream}")


def becomes_twice(status, again, downstream):
    return status in again and not (downstream["idempotency"] == "none" and status in (408, 500, 502, 504, 599))


@test
def classify_of_the_queue_wins_where_it_is_more_specific(q):
    with Receiver(always=lambda request: Answer(int(request.path[1:4]))) as r:
        queue(q, r, path="/${status}", deliver={"classify": {"rejected": [404], "poison": ["4xx", 503]}})
        for status, state in ((404, "rejected"), (422, "dead"), (503, "dead"), (400, "dead")):
            hx.broker.event(q, {"status": status}, f"k{status}")
            becomes(q, f"k{status}", state)


@test
def a_refused_connection_is_transient_and_sent_when_somebody_listens(q):
    away = reserved()
    queue(q, f"http://127.0.0.1:{away.getsockname()[1]}",
          retry={"transient": {"attempts": 1000, "backoff": "50ms", "max": "50ms"}})
    hx.broker.put(q, "k")
    shown = until(lambda: [a for a in hx.broker.key(q, "k")["attempts"] if a["ended"]], "it was tried")
    members(shown[0], **{"class": "transient"})
    assert shown[0]["reason"].startswith("not sent"), shown
    with Receiver(at=away) as r:
        same(r.next().key, "k")
        becomes(q, "k", "done")


@test
def a_private_address_is_not_called_unless_it_may_be(q):
    with Receiver() as r:
        queue(q, r, deliver={"allow_private": False}, retry={"transient": {"attempts": 2, "backoff": "1ms", "max": "1ms"}})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "dead")
        assert shown["attempts"][-1]["reason"].startswith("not sent"), shown
        same((r.requests, r.connections), ([], 0))


@test
def an_answer_cut_at_any_byte_is_unknown_and_a_whole_one_is_not(q):
    whole = len(Answer(200, "0123456789").bytes(None))
    for how in (CLOSE, RESET, HANG):
        name = f"{q}-{how.split()[0]}"
        with Receiver(always=lambda request: Answer(200, "0123456789", at=int(request.path[1:]), then=how)) as r:
            queue(name, r, path="/${n}", downstream={"idempotency": "none"}, deliver={"timeout": "2s" if how is HANG else "20s", "concurrency": 64})
            for n in range(whole + 1):
                hx.broker.event(name, {"n": n}, f"k{n}")
            for n in range(whole + 1):
                becomes(name, f"k{n}", "done" if n == whole else "held")
            same(len(r.requests), whole + 1)


@test
def a_request_that_was_read_in_part_is_unknown(q):
    for number, (read, how) in enumerate((n, how) for n in (1, 40, 300) for how in (CLOSE, RESET)):
        with Receiver(Answer(read=read, then=how)) as r:
            queue(f"{q}-{number}", r, downstream={"idempotency": "none"})
            hx.broker.put(f"{q}-{number}", "k", payload="x" * 1000)
            becomes(f"{q}-{number}", "k", "held")
            same(len(r.requests), 1)


@test
def an_answer_that_does_not_come_in_time_is_unknown(q):
    with Receiver(Answer(at=0, then=HANG)) as r:
        queue(q, r, deliver={"timeout": "1s"}, downstream={"idempotency": "none"})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "held")
        members(shown["attempts"][-1], **{"class": "unknown"})
        same(len(r.requests), 1)


@test
def where_the_downstream_deduplicates_an_unknown_outcome_is_sent_again_with_the_same_key(q):
    with Receiver(Answer(200, at=30, then=RESET, effect=True), dedupes=True) as r:
        queue(q, r)
        hx.broker.put(q, "k")
        becomes(q, "k", "done")
        same([x.key for x in r.requests], ["k", "k"])
        same(r.effects, {"k": 1})


@test
def nothing_said_of_the_downstream_is_as_none(q):
    with Receiver(Answer(200, at=30, then=RESET, effect=True)) as r:
        queue(q, r, downstream={})
        hx.broker.put(q, "k")
        becomes(q, "k", "held")
        same(len(r.requests), 1)


@test
def a_body_beyond_keep_is_cut_and_said_to_be_and_its_effect_id_is_found(q):
    body = json.dumps({"pad": "p" * 5000, "id": 77})
    with Receiver(Answer(200, body, JSON)) as r:
        queue(q, r, deliver={"keep": {"body": "1KiB"}, "effect_id": "id"})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "done")
        same(shown["result"]["body"], body[:1024])
        same(shown["effect_ids"], ["77"])
        assert (shown["result"] if "truncated" in shown["result"] else shown)["truncated"] is True, shown


@test
def an_effect_id_is_found_in_the_first_64_KiB_of_a_longer_answer_kept_or_not(q):
    body = json.dumps({"a": [{"id": "e1"}], "pad": "p" * 70000})
    with Receiver(Answer(200, body, JSON), Answer(200, body, JSON)) as r:
        queue(q, r, deliver={"keep": {"body": 10}, "effect_id": "a[0].id"})
        hx.broker.put(q, "k")
        members(becomes(q, "k", "done"), effect_ids=["e1"])
        queue(q, r, deliver={"effect_id": "a[0].id"})
        hx.broker.put(q, "k2")
        members(becomes(q, "k2", "done"), effect_ids=["e1"])


@test
def retry_after_pauses_the_target_in_seconds_or_as_a_date(q):
    b = hx.broker
    date = lambda seconds: email.utils.formatdate(time.time() + seconds, usegmt=True)
    for number, header in enumerate((lambda: "3000", lambda: date(3000))):
        name = f"{q}-{number}"
        with Receiver(Answer(429, headers=[("Retry-After", header())])) as r:
            queue(name, r)
            b.put(name, "k1")
            r.next()
            shown = until(lambda: [a for a in b.key(name, "k1")["attempts"] if a["ended"] == "nacked"], "it was answered")
            members(shown[0], **{"class": "transient"})
            b.put(name, "k2")
            target = [t for t in b.get("/v1/targets").json()["items"] if t["queue"] == name][0]
            members(target, state="paused")
            assert 2900 < hx.stamp(target["waits_until"]) - time.time() < 3100, target
            same(b.state(name, "k2"), "pending")
            assert r.quiet(), target


@test
def gone_on_a_fixed_address_pauses_pushing_until_somebody_resumes_it(q):
    b = hx.broker
    with Receiver(Answer(410)) as r:
        queue(q, r)
        b.put(q, "k")
        r.next()
        until(lambda: b.key(q, "k")["state"] == "pending", "it waits")
        same(b.key(q, "k")["attempts"], [])
        same([x["what"] for x in b.get(f"/v1/audit?queue={q}").json()["items"]][:1], ["push_pause"])
        b.put(q, "k2")
        yield
        same((b.state(q, "k"), b.state(q, "k2")), ("pending", "pending"))
        assert r.quiet()
        same(b.post(f"/v1/targets/{q}/resume", {"by": "ann"}).status, 200)
        same(sorted([r.next().key, r.next().key]), ["k", "k2"])
        becomes(q, "k", "done")


@test
def gone_on_a_templated_address_is_about_that_message(q):
    with Receiver(always=lambda request: Answer(410 if "/a" in request.path else 200)) as r:
        queue(q, r, path="/${x}")
        hx.broker.event(q, {"x": "a"}, "ka")
        hx.broker.event(q, {"x": "b"}, "kb")
        becomes(q, "ka", "dead")
        becomes(q, "kb", "done")


# ---- people

@test
def with_approve_nothing_is_sent_before_a_person_has_decided(q):
    b = hx.broker
    with Receiver() as r:
        queue(q, r, deliver={"approve": True})
        b.put(q, "yes")
        b.put(q, "no")
        becomes(q, "yes", "held")
        becomes(q, "no", "held")
        yield
        same(r.requests, [])
        same(b.post(f"/v1/queues/{q}/keys/yes/resolve", {"as": "retry", "by": "ann"}).status, 200)
        same(b.post(f"/v1/queues/{q}/keys/no/resolve", {"as": "dead", "by": "ann"}).status, 200)
        same(r.next().key, "yes")
        becomes(q, "yes", "done")
        same(len(r.requests), 1)


@test
def who_decides_while_it_is_under_way_is_not_overruled_by_the_answer():
    with Receiver() as r, hx.Broker() as b:
        let_go = hx.threading.Event()
        r.then(Answer(200, '{"id":"E1"}', JSON, acted=lambda _: let_go.wait(hx.TIMEOUT)))
        queue("q", r, of=b, deliver={"effect_id": "id"})
        id = b.put("q", "k")
        r.next()
        same(b.post(f"/v1/queues/q/messages/{id}/cancel", {"by": "ann"}).status, 200)
        let_go.set()
        until(lambda: "push_overtaken" in b.stderr(), "the log tells of it")
        members(b.key("q", "k"), state="cancelled", effect_ids=["E1"])


# ---- looking up

@test
def an_unknown_outcome_that_is_found_is_settled_and_not_sent_again(q):
    with Receiver(Answer(200, at=20, then=RESET, effect=True)) as r:
        queue(q, r, reconcile={"exists": "items[0].id", "effect_id": "items[0].id"})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "done")
        same((len(r.requests), len(r.asked), r.effects), (1, 1, {"k": 1}))
        same(shown["effect_ids"], ["e1"])
        same(json.loads(shown["result"]["body"])["items"][0]["id"], "e1")
        same(http(shown)["status"], 200)
        members(shown["attempts"][-1], consumer="reconcile", ended="acked")
        same((r.asked[0].method, r.asked[0].header("idempotency-key")), ("GET", None))


@test
def an_unknown_outcome_that_is_absent_is_sent_again_with_the_same_key(q):
    with Receiver(Answer(200, at=20, then=RESET, effect=False)) as r:
        queue(q, r, reconcile={"exists": "items[0].id"})
        hx.broker.put(q, "k")
        becomes(q, "k", "done")
        same(([x.key for x in r.requests], len(r.asked), r.effects), (["k", "k"], 1, {"k": 1}))


@test
def a_found_answer_without_the_field_is_absent_and_one_that_cannot_be_read_is_none(q):
    with Receiver(Answer(200, at=20, then=RESET, effect=False)) as r:
        r.lookups.extend([Answer(200, "<html>log in</html>"), Answer(200, '{"items":[]}', JSON)])
        queue(q, r, reconcile={"exists": "items[0].id"})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "done")
        same((len(r.requests), len(r.asked)), (2, 2))
        same([a.get("class") for a in shown["attempts"]], ["unknown", "unknown", "absent", None])


@test
def a_found_answer_that_is_cut_says_what_was_read_of_it_and_never_that_the_field_is_absent(q):
    pad = {"pad": "p" * 70000}
    with Receiver(Answer(200, at=20, then=RESET, effect=True)) as r:
        r.lookups.extend([Answer(200, json.dumps({**pad, "a": [{"id": "e1"}]}), JSON), Answer(200, json.dumps({"a": [{"id": "e1"}], **pad}), JSON)])
        queue(q, r, reconcile={"exists": "a[0].id", "effect_id": "a[0].id"})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "done")
        same((len(r.requests), len(r.asked), shown["effect_ids"]), (1, 2, ["e1"]))
        same([a.get("class") for a in shown["attempts"]], ["unknown", "unknown", None])


@test
def look_ups_without_an_answer_are_repeated_and_then_a_person_decides(q):
    with Receiver(Answer(200, at=20, then=RESET, effect=True)) as r:
        r.lookups.extend([Answer(500), Answer(200, at=10, then=CLOSE), Answer(403), Answer(302)])
        queue(q, r, reconcile={"attempts": 4})
        hx.broker.put(q, "k")
        shown = becomes(q, "k", "held")
        same((len(r.requests), len(r.asked)), (1, 4))
        assert "302" in shown["attempts"][-1]["reason"], shown
        assert shown["reason"].startswith("looked up 4 times in vain: answered 302"), shown["reason"]


@test
def what_is_absent_is_held_where_the_downstream_does_not_deduplicate(q):
    for number, downstream in enumerate(({"idempotency": "none"}, {})):
        with Receiver(Answer(200, at=20, then=RESET, effect=False)) as r:
            queue(f"{q}-{number}", r, downstream=downstream, reconcile={})
            hx.broker.put(f"{q}-{number}", "k")
            shown = becomes(f"{q}-{number}", "k", "held")
            same((len(r.requests), len(r.asked)), (1, 1))
            members(shown["attempts"][-1], **{"class": "absent"})


@test
def what_is_absent_is_held_when_the_downstream_may_have_forgotten_the_first_attempt(q):
    with Receiver(Answer(200, at=20, then=RESET, effect=False)) as r:
        queue(q, r, downstream={"idempotency": "key", "remembers": "1s"}, reconcile={"after": "1500ms"})
        hx.broker.put(q, "k")
        becomes(q, "k", "held")
        same((len(r.requests), len(r.asked)), (1, 1))


@test
def a_queue_that_is_pulled_is_looked_up_by_the_broker_too(q):
    b = hx.broker
    with Receiver() as r:
        b.rules(q, downstream={"idempotency": "key"}, retry=FAST,
                reconcile={"url": r.url + "/slots?key=${hapax.effect_key}", "after": "1ms", "every": "1ms", "allow_private": True})
        b.put(q, "done", "undone")
        r.table.told["done"] = "e9"
        for m in (b.one(q), b.one(q)):
            b.ok("nack", m, **{"class": "unknown"})
        becomes(q, "done", "done")
        m = b.one(q)
        members(m, key="undone", delivery="retry")
        b.ok("ack", m)
        same(len(r.asked), 2)


# ---- the broker dies, the disk is full, it is told to stop

@test
def a_delivery_under_way_when_the_broker_is_killed_is_looked_up_and_done_once(q):
    b = hx.broker
    r = Receiver(Answer(at=0, then=HANG, effect=True), Answer(at=0, then=HANG, effect=False))
    with r:
        queue(q, r, reconcile={"exists": "items[0].id"}, deliver={"timeout": "1s"})
        b.put(q, "k1", "k2")
        r.next(), r.next()
        yield
        becomes(q, "k1", "done")
        becomes(q, "k2", "done")
        same(r.effects, {"k1": 1, "k2": 1})
        same(len(r.requests), 3)  # the one that had not been done


@test
def told_to_stop_it_waits_for_what_is_under_way_and_begins_nothing():
    with Receiver() as r, hx.Broker() as b:
        let_go = hx.threading.Event()
        r.then(Answer(200, "late", acted=lambda _: let_go.wait(hx.TIMEOUT)))
        queue("q", r, of=b, deliver={"concurrency": 1})
        b.put("q", "k1", "k2")
        r.next()
        b.signal(signal.SIGTERM)
        until(lambda: not accepts(b.port), "it takes no more connections")
        let_go.set()
        same(b.wait_exit(), 0)
        same(len(r.requests), 1)
        b.start()
        becomes("q", "k1", "done", of=b)
        becomes("q", "k2", "done", of=b)
        same(sorted(x.key for x in r.requests), ["k1", "k2"])


def accepts(port):
    try:
        with hx.Conn(port, timeout=5) as c:
            return c.request("GET", "/readyz").status == 200
    except OSError:
        return False


@test
def a_reload_changes_what_is_sent_next_and_not_what_is_under_way():
    with Receiver() as r, hx.Broker(config="queues: {}\n") as b:
        rules = lambda more: f'queues: {{q: {{downstream: {{idempotency: key}}, deliver: {{url: "{r.url}/a", allow_private: true, {more}}}}}}}\n'
        b.reload(rules("classify: {rejected: [418]}, keep: {body: 4}"))
        let_go = hx.threading.Event()
        r.then(Answer(418, "123456789", acted=lambda _: let_go.wait(hx.TIMEOUT)), Answer(418))
        b.put("q", "k1")
        r.next()
        b.reload(rules("keep: {body: 100}").replace("/a", "/b"))
        let_go.set()
        shown = becomes("q", "k1", "rejected", of=b)
        same(shown["result"]["body"], "1234")
        b.put("q", "k2")
        same(r.next().path, "/b")
        becomes("q", "k2", "dead", of=b)
        r.then(Answer(200, "123456789", acted=lambda _: let_go.wait(hx.TIMEOUT)))
        let_go.clear()
        b.put("q", "k3")
        r.next()
        b.reload("queues: {q: {}}\n")
        let_go.set()
        same(becomes("q", "k3", "done", of=b)["result"]["body"], "123456789")
        b.put("q", "k4")
        same(b.one("q")["key"], "k4")
        assert r.quiet()


# ---- many

@test
def pushed_and_pulled_messages_of_one_queue_go_to_one_of_the_two(q):
    b = hx.broker
    with Receiver() as r:
        queue(q, r, deliver={"concurrency": 2})
        keys = [f"k{n}" for n in range(40)]
        poll = hx.Later(lambda: [b.ok("ack", m)["key"] for _ in range(20) for m in b.receive(q, max=1, wait="0s")])
        b.put(q, *keys)
        pulled = poll.value()
        for key in keys:
            becomes(q, key, "done")
        same(sorted(pulled + [x.key for x in r.requests]), sorted(keys))


@test
def order_within_a_group_is_kept(q):
    with Receiver(always=lambda request: Answer(503 if request.header("hapax-attempt") == "1" else 200)) as r:
        queue(q, r)
        for n in range(12):
            hx.broker.put(q, f"{n % 3}-{n:02}", headers=[("Hapax-Group", str(n % 3))])
        for n in range(12):
            becomes(q, f"{n % 3}-{n:02}", "done")
        for group in range(3):
            taken = [x.key for x in r.requests if x.key.startswith(f"{group}-")]
            same(taken, sorted(taken))


@test
def no_more_than_concurrency_are_under_way(q):
    go, most, lock = hx.threading.Event(), [0, 0], hx.threading.Lock()

    def hold(request):
        with lock:
            most[0] += 1
            most[1] = max(most)
        if most[0] >= 3:
            go.set()
        go.wait(hx.TIMEOUT)
        with lock:
            most[0] -= 1
        return Answer()
    with Receiver(always=hold) as r:
        queue(q, r, deliver={"concurrency": 3})
        hx.broker.put(q, *[f"k{n}" for n in range(12)])
        for n in range(12):
            becomes(q, f"k{n}", "done")
        same(most[1], 3)


def metric(b, name):
    """The values of a metric, by what follows its name."""
    lines = b.get("/metrics").body.decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)}


@test
def requests_and_look_ups_are_counted_by_what_came_of_them(q):
    with Receiver(Answer(503), Answer(200, at=20, then=RESET, effect=True), Answer(422), Answer(404)) as r:
        r.lookups.append(Answer(500))
        queue(q, r, reconcile={}, deliver={"concurrency": 1})
        for key in ("k1", "k2", "k3"):
            hx.broker.put(q, key)
            until(lambda: hx.broker.state(q, key) in ("done", "rejected", "dead"), "it is settled")
        pushes = {re.search('class="([^"]*)"', name).group(1): n for name, n in metric(hx.broker, f'hapax_push_requests_total{{queue="{q}"').items() if n}
        same(pushes, {"transient": 1, "unknown": 1, "rejected": 1, "poison": 1})
        looked = {re.search('answer="([^"]*)"', name).group(1): n for name, n in metric(hx.broker, f'hapax_reconciliations_total{{queue="{q}"').items() if n}
        same(looked, {"found": 1, "unknown": 1})


@test
def ten_thousand_messages_for_a_dead_target_cost_it_a_few_calls_and_the_broker_no_time():
    with refused_port() as port, Receiver() as r, hx.Broker() as b:
        queue("dead", f"http://127.0.0.1:{port}", of=b, retry={"transient": {"attempts": 6, "backoff": "1ms", "max": "1ms"}},
              deliver={"circuit": {"ratio": "50%", "of": 10, "within": "1m", "open": "5m"}})
        queue("alive", r, of=b)
        for part in range(10):
            b.batch("dead", [{"key": f"k{part}-{n}", "payload": "x"} for n in range(1000)])
        until(lambda: [t for t in b.get("/v1/targets").json()["items"] if t["queue"] == "dead" and t["state"] == "open"], "the circuit is open")
        until(lambda: [t for t in b.get("/v1/targets").json()["items"] if t["queue"] == "dead" and t["in_flight"] == 0], "nothing is under way")
        before = metric(b, "process_cpu_seconds_total")["process_cpu_seconds_total"]
        calls = sum(metric(b, 'hapax_push_requests_total{queue="dead"').values())
        for n in range(50):
            b.put("alive", f"a{n}")
            r.next()
        time.sleep(2)
        after = metric(b, "process_cpu_seconds_total")["process_cpu_seconds_total"]
        same(sum(metric(b, 'hapax_push_requests_total{queue="dead"').values()), calls)
        assert calls < 100, f"{calls} calls to a dead target"
        assert after - before < 1, f"{after - before} s of processor time, of about 2"
        same(b.list("dead", state="dead"), [])


@test(alone=True)
def a_thousand_queues_deliver_side_by_side():
    rules = lambda port: "".join(f'  q{n}: {{deliver: {{url: "http://127.0.0.1:{port}/q{n}", allow_private: true}}}}\n' for n in range(1000))
    with Receiver() as r, hx.Broker(config="queues:\n" + rules(r.port)) as b:
        for n in range(1000):
            b.put(f"q{n}", "k")
        paths = {r.next().path for _ in range(1000)}
        same(len(paths), 1000)
        until(lambda: all(q["counters"]["acked"] == 1 for q in b.get("/v1/queues?limit=1000").json()["items"]), "all are done")


if __name__ == "__main__":
    hx.main()
