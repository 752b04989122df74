#!/usr/bin/env python3
"""Sending one message: admission, duplicates, conflicts, keys in all their spellings, what is handed on, waiting."""
import base64
import hashlib
import json
import time

import hx
from hx import members, problem, quote, same, stamp, test


def key_field(value):
    return [("Idempotency-Key", value)]


# ---- what a send is answered

@test
def a_new_key_is_accepted_with_every_promised_field(q):
    reply = hx.broker.send(q, "k1", '{"a":1}', [("Content-Type", "application/json")])
    same(reply.status, 202)
    same(reply.header("Content-Type"), "application/json")
    same(reply.header("Idempotent-Replayed"), None)
    same(reply.header("Preference-Applied"), None)
    body = reply.json()
    same(set(body), {"outcome", "duplicate", "id", "queue", "key", "state", "expires_at"})
    members(body, outcome="accepted", duplicate=False, queue=q, key="k1", state="pending", expires_at=None)
    assert isinstance(body["id"], str) and body["id"]


@test
def a_duplicate_of_a_pending_message_gets_202_and_the_originals_id(q):
    began = time.time()
    original = hx.broker.put(q, "k")
    for count in (1, 2, 3):
        reply = hx.broker.send(q, "k")
        same(reply.status, 202)
        same(reply.header("Idempotent-Replayed"), "true")
        body = reply.json()
        members(body, outcome="duplicate", duplicate=True, id=original, queue=q, key="k", state="pending", duplicates=count,
                expires_at=None)
        assert "result" not in body and "reason" not in body, body
        assert began - 2 <= stamp(body["first_seen"]) <= time.time() + 2, body
        assert isinstance(body["age_ms"], int) and 0 <= body["age_ms"] < 60000, body
    same(len(hx.broker.receive(q, max=10)), 1, "a duplicate is never delivered")


@test
def a_duplicate_of_a_leased_message_gets_202_and_says_leased(q):
    original = hx.broker.put(q, "k")
    hx.broker.one(q)
    reply = hx.broker.send(q, "k")
    same(reply.status, 202)
    members(reply.json(), outcome="duplicate", id=original, state="leased", expires_at=None)


@test
def a_duplicate_of_a_done_message_gets_200_and_the_stored_result(q):
    original = hx.broker.put(q, "k")
    hx.broker.ok("ack", hx.broker.one(q), result="it worked")
    reply = hx.broker.send(q, "k")
    same(reply.status, 200)
    same(reply.header("Idempotent-Replayed"), "true")
    body = reply.json()
    members(body, outcome="duplicate", duplicate=True, id=original, state="done", duplicates=1,
            result={"content_type": "text/plain", "body": "it worked", "encoding": "utf8"})
    left = stamp(body["expires_at"]) - time.time()
    assert 23.9 * 3600 < left < 24.1 * 3600, f"the default window is 24 h, not {left} s"


@test
def a_duplicate_of_a_rejected_message_gets_200_with_its_result_and_reason(q):
    hx.broker.put(q, "k")
    hx.broker.ok("nack", hx.broker.one(q), **{"class": "rejected", "reason": "card declined", "result": {"code": 51}})
    reply = hx.broker.send(q, "k")
    same(reply.status, 200)
    members(reply.json(), state="rejected", reason="card declined",
            result={"content_type": "application/json", "body": '{"code": 51}', "encoding": "utf8"})


@test
def a_duplicate_of_a_cancelled_message_gets_200_and_the_reason(q):
    original = hx.broker.put(q, "k")
    same(hx.broker.post(f"/v1/queues/{q}/messages/{original}/cancel").status, 200)
    reply = hx.broker.send(q, "k")
    same(reply.status, 200)
    members(reply.json(), state="cancelled", id=original)
    assert reply.json()["reason"], reply


@test
def a_duplicate_of_a_dead_message_gets_202_and_says_dead(q):
    original = hx.broker.put(q, "k")
    hx.broker.ok("nack", hx.broker.one(q), **{"class": "poison"})
    reply = hx.broker.send(q, "k")
    same(reply.status, 202)
    members(reply.json(), outcome="duplicate", id=original, state="dead", expires_at=None)


@test
def a_changed_payload_is_a_conflict_that_names_the_original_and_the_changed_fields(q):
    original = hx.broker.put(q, "k", payload='{"amount":10,"to":"x","same":[1,2]}')
    reply = hx.broker.send(q, "k", '{"amount":11,"same":[1,2],"new":true}')
    body = problem(reply, 422, "key_reused")
    members(body, id=original, retryable=False)
    stamp(body["first_seen"])
    same(sorted(body["changed"]), ["amount", "new", "to"])
    same(hx.broker.one(q)["payload"], '{"amount":10,"to":"x","same":[1,2]}', "the original stands")
    same(hx.broker.receive(q), [])


@test
def changed_fields_are_named_for_large_payloads_too(q):
    large = {f"field{n}": n for n in range(4000)}
    hx.broker.put(q, "k", payload=json.dumps(large))
    large["field7"] = "changed"
    same(problem(hx.broker.send(q, "k", json.dumps(large)), 422, "key_reused").get("changed"), ["field7"])


@test
def changed_fields_may_have_any_name(q):
    hx.broker.put(q, "k", payload='{"":1,"a\\"b":1,"\\u00e9":1,"same":{"":[]}}')
    changed = problem(hx.broker.send(q, "k", '{"":2,"a\\"b":2,"é":2,"same":{"":[]}}'), 422, "key_reused")["changed"]
    same(sorted(changed), ["", 'a"b', "é"])


@test
def a_conflict_of_payloads_that_are_not_json_objects_lists_no_fields(q):
    for number, (one, two) in enumerate((("one", "two"), ("[1]", "[2]"), ('{"a":1}', "{"), ("", '{"a":1}'), ("1", "2"), ('{"a":1,"a":1}', '{"a":2}'))):
        hx.broker.put(q, f"k{number}", payload=one)
        assert not problem(hx.broker.send(q, f"k{number}", two), 422, "key_reused").get("changed"), (one, two)


@test
def the_fingerprint_is_the_payloads_bytes(q):
    # The same JSON with a space more is another payload, unless the queue says otherwise.
    hx.broker.put(q, "k", payload='{"a":1}')
    problem(hx.broker.send(q, "k", '{"a": 1}'), 422, "key_reused")


@test
def headers_are_no_part_of_the_fingerprint(q):
    hx.broker.put(q, "k", payload="p", headers=[("Content-Type", "text/plain"), ("Hapax-Attr-a", "1")])
    same(hx.broker.send(q, "k", "p", [("Content-Type", "text/html"), ("Hapax-Attr-a", "2")]).status, 202)


@test
def a_conflict_with_a_settled_key_is_still_a_conflict(q):
    original = hx.broker.put(q, "k", payload="one")
    hx.broker.ok("ack", hx.broker.one(q))
    members(problem(hx.broker.send(q, "k", "two"), 422, "key_reused"), id=original)


@test
def a_result_comes_back_byte_for_byte(q):
    blob = bytes(range(256)) * 3
    hx.broker.put(q, "bin")
    hx.broker.ok("ack", hx.broker.one(q), result_base64=base64.b64encode(blob).decode(), content_type="image/x-thing")
    result = hx.broker.send(q, "bin").json()["result"]
    same(result["content_type"], "image/x-thing")
    same(result["encoding"], "base64")
    same(hx.decoded(result["body"], "base64"), blob)
    text = 'zé\u2028"\\\n\t\x00\x7f\U0001f600'
    hx.broker.put(q, "text")
    hx.broker.ok("ack", hx.broker.one(q), result=text)
    members(hx.broker.send(q, "text").json()["result"], content_type="text/plain", body=text, encoding="utf8")


@test
def one_key_in_two_queues_is_two_keys(q):
    hx.broker.put(q, "k", payload="a")
    same(hx.broker.send(q + "-other", "k", "b").json()["outcome"], "accepted")


@test
def many_clients_racing_with_one_key_get_one_admission(q):
    replies = [later.value() for later in [hx.Later(hx.broker.send, q, "k") for _ in range(32)]]
    outcomes = sorted(r.json()["outcome"] for r in replies)
    same(outcomes, ["accepted"] + ["duplicate"] * 31)
    same(len({r.json()["id"] for r in replies}), 1)
    same(hx.broker.key(q, "k")["duplicates"], 31)


# ---- keys

@test
def the_three_spellings_of_a_key_are_one_key(q):
    spellings = ["order-17:a/b", '"order-17:a/b"', '%"order-17:a/b"', '%"%6frder-17:a%2fb"', ' \t "order-17:a/b" ']
    ids = set()
    for number, spelling in enumerate(spellings):
        body = hx.broker.send(q, spelling).json()
        members(body, key="order-17:a/b", outcome="duplicate" if number else "accepted")
        ids.add(body["id"])
    same(len(ids), 1)


@test
def escapes_of_a_quoted_key_are_undone(q):
    same(hx.broker.send(q, r'"a \"b\" \\ c"').json()["key"], 'a "b" \\ c')
    same(hx.broker.send(q, '%"a %22b%22 \\ c"').json()["outcome"], "duplicate")


@test
def a_utf8_key_is_the_same_in_every_spelling_and_in_paths(q):
    key = "Zahlung/№ 7 — 支付😀"
    display = '%"' + "".join(chr(b) if 32 < b < 127 and b not in b'%"' else "%%%02x" % b for b in key.encode()) + '"'
    same(hx.broker.send(q, display).json()["key"], key)
    same(hx.broker.batch(q, [{"key": key, "payload": "x"}]).lines()[0]["outcome"], "duplicate")
    same(hx.broker.key(q, key)["key"], key)
    same(hx.broker.get(f"/v1/queues/{q}/keys?key={quote(key)}").json()["key"], key)
    same(hx.broker.one(q)["key"], key)


@test
def a_slash_in_a_key_is_one_escaped_segment_of_a_path(q):
    hx.broker.put(q, "a/b/../c")
    same(hx.broker.key(q, "a/b/../c")["key"], "a/b/../c")
    same(hx.broker.get(f"/v1/queues/{q}/keys/a%2fb%2F..%2Fc").status, 200)
    assert hx.broker.get(f"/v1/queues/{q}/keys/a/b/../c").status == 404
    same(hx.broker.get(f"/v1/queues/{q}/keys/a%2Fb%2F..%2Fc/result").status, 409)


@test
def keys_of_1_and_255_bytes_are_fine(q):
    for key in ("k", "k" * 255):
        same(hx.broker.send(q, key).json()["key"], key)
        same(hx.broker.key(q, key)["key"], key)
    same(hx.broker.send(q, '"' + "k" * 255 + '"').json()["outcome"], "duplicate")
    wide = "é" * 127 + "x"
    same(hx.broker.send(q, '%"' + "%c3%a9" * 127 + 'x"').json()["key"], wide)


@test
def keys_of_0_and_256_bytes_are_refused_in_every_spelling(q):
    for bad in ("", '""', '%""', "k" * 256, '"' + "k" * 256 + '"', '%"' + "k" * 256 + '"', '%"' + "%c3%a9" * 128 + '"'):
        problem(hx.broker.send(q, bad), 400, "key_invalid")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/x"), 404, "no_such_queue")  # and nothing was created


@test
def a_missing_key_is_refused(q):
    problem(hx.broker.send(q, None), 400, "key_missing")


@test
def a_repeated_key_header_is_refused(q):
    for first, second in (("a", "a"), ("a", "b")):
        problem(hx.broker.send(q, first, headers=key_field(second)), 400, "key_invalid")


@test
def malformed_spellings_of_a_key_are_refused(q):
    for bad in ('"open', 'a"b', "a b", "a,b", '"a" "b"', '"a"b', '"a\\n"', '%"open', '%"%4"', '%"%zz"', '%"a"b', b"\xc3\xa9",
                b'"\xc3\xa9"', '%"%ff"', '%"%c3"', '%"%ed%a0%80"', '%"%c0%80"', '%"%f4%90%80%80"', '%a"', '"\\"'):
        problem(hx.broker.send(q, bad), 400, "key_invalid")


@test
def control_characters_in_a_key_are_refused(q):
    hx.broker.put(q, "good")
    for byte in (0, 1, 9, 10, 13, 0x1b, 0x1f, 0x7f):
        problem(hx.broker.send(q, '%%"a%%%02xb"' % byte), 400, "key_invalid")
        problem(hx.broker.get(f"/v1/queues/{q}/keys/a%{byte:02x}b"), 400, "key_invalid")
    # U+0085 and its like are control characters of UTF-8 as much as those of ASCII.
    problem(hx.broker.send(q, '%"a%c2%85b"'), 400, "key_invalid")
    line = hx.broker.batch(q, [{"key": "a\nb", "payload": ""}]).lines()[0]
    hx.problem_members(line, 400, "key_invalid")


@test
def parameters_behind_a_quoted_key_are_ignored_as_structured_fields_have_it(q):
    # The contract is silent; RFC 9651 lets any item carry parameters.
    same(hx.broker.send(q, '"k";v=1').json()["key"], "k")


# ---- queues

@test
def queue_names_of_letters_digits_and_punctuation_are_good(q):
    for name in ("a", "A-b_c.9", "orders.eu:v2", "x" * 128):
        same(hx.broker.send(f"{name}", f"{q}-k").json()["queue"], name)


@test
def bad_queue_names_are_refused(q):
    for bad in ("x" * 129, "a%20b", "a%2Fb", "%00", "%C3%A9", "a%0Ab", "a%7Fb"):
        problem(hx.broker.send(bad, "k"), 400, "queue_invalid")
    problem(hx.broker.send("a%zz", "k"), 400, "bad_request")
    problem(hx.broker.call("POST", "/v1/queues//messages", b"x", key_field("k")), 404, "not_found")


@test
def a_refused_send_creates_no_queue(q):
    problem(hx.broker.send(q, None), 400, "key_missing")
    problem(hx.broker.send(q, "k", headers=[("Hapax-Delay", "soon")]), 400, "param_invalid")
    problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")


# ---- payloads

@test
def a_payload_of_exactly_1_mib_goes_through_unharmed(q):
    payload = (b"0123456789abcdef" * 65536)
    same(hx.broker.send(q, "k", payload).status, 202)
    same(hashlib.sha256(hx.broker.one(q)["payload"].encode()).digest(), hashlib.sha256(payload).digest())


@test
def one_byte_more_than_1_mib_is_refused_before_the_body_is_read(q):
    with hx.broker.connect() as c:
        c.write(f"POST /v1/queues/{q}/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: {(1 << 20) + 1}\r\n\r\n".encode())
        problem(c.reply(), 413, "too_large")  # not one byte of the body was sent
        assert c.closed()
    with hx.broker.connect() as c:
        c.write(f"POST /v1/queues/{q}/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        c.write(b"100001\r\n")
        problem(c.reply(), 413, "too_large")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/k"), 404, "no_such_queue")


@test
def an_empty_payload_is_a_payload(q):
    hx.broker.put(q, "k", payload=b"")
    members(hx.broker.one(q), payload="", encoding="utf8")


@test
def a_chunked_payload_is_the_same_payload(q):
    hx.broker.put(q, "k", payload="hello world")
    with hx.broker.connect() as c:
        c.write(f"POST /v1/queues/{q}/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        c.write(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n")
        same(c.reply().json()["outcome"], "duplicate")


@test
def bytes_that_are_not_utf8_are_handed_on_as_base64(q):
    for number, payload in enumerate((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"ok\x80", bytes(range(256)))):
        hx.broker.put(q, f"k{number}", payload=payload)
        m = hx.broker.one(q)
        same(m["encoding"], "base64")
        same(hx.decoded(m["payload"], "base64"), payload)


@test
def utf8_of_every_kind_is_handed_on_as_text(q):
    for number, payload in enumerate(("\x00\x01\x1f\x7f", '"\\/\b\f\n\r\t', "é€😀\u2028\ufeff", "\U0010ffff")):
        hx.broker.put(q, f"k{number}", payload=payload)
        members(hx.broker.one(q), payload=payload, encoding="utf8")


@test
def an_encoded_body_is_refused(q):
    for coding in ("gzip", "br", "deflate, gzip", "identity, gzip"):
        problem(hx.broker.send(q, "k", headers=[("Content-Encoding", coding)]), 415, "unsupported_media")
    problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")
    same(hx.broker.send(q, "k", headers=[("Content-Encoding", "identity")]).status, 202)


# ---- what is handed on

@test
def content_type_group_attributes_and_trace_reach_the_consumer(q):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    hx.broker.put(q, "k", payload="p", headers=[
        ("Content-Type", "application/vnd.x+json; v=2"), ("Hapax-Group", "cust 9"), ("Hapax-Attr-Color", "red"),
        ("HAPAX-ATTR-SIZE", "größer"), ("traceparent", trace), ("tracestate", "a=1,b=2")])
    m = hx.broker.one(q, consumer="c1")
    members(m, content_type="application/vnd.x+json; v=2", group="cust 9", attrs={"color": "red", "size": "größer"},
            traceparent=trace, tracestate="a=1,b=2", payload="p", key="k", queue=q)


@test
def what_was_not_given_is_not_made_up(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    same(m["attrs"], {})
    for name in ("group", "traceparent", "tracestate"):
        assert name not in m, m
    assert isinstance(m["content_type"], str)


@test
def an_attribute_given_twice_is_either_refused_or_handed_on_once(q):
    # Silent contract. What must not happen is a delivery whose JSON has a member twice; strict_json catches that.
    reply = hx.broker.send(q, "k", headers=[("Hapax-Attr-A", "1"), ("hapax-attr-a", "2")])
    if reply.status == 202:
        assert hx.broker.one(q)["attrs"]["a"] in ("1", "2", "1, 2"), "RFC 9110 joins repeated fields"
    else:
        problem(reply, 400, "param_invalid")
    line = hx.broker.batch(q, [{"key": "k2", "payload": "", "attrs": {"A": "1", "a": "2"}}]).lines()[0]
    if line["status"] == 202:
        hx.broker.one(q)


@test
def a_request_id_is_kept_with_its_arrival(q):
    hx.broker.put(q, "k", headers=[("Hapax-Request-Id", "hop-1")])
    hx.broker.send(q, "k", headers=[("X-Request-Id", "hop-2")])
    hx.broker.send(q, "k", headers=[("X-Request-Id", "no"), ("Hapax-Request-Id", "hop-3")])
    hx.broker.send(q, "k", headers=[("Hapax-Request-Id", "hop-4"), ("X-Request-Id", "no")])
    same([a.get("request_id") for a in hx.broker.key(q, "k")["arrivals"]], ["hop-1", "hop-2", "hop-3", "hop-4"])


# ---- time

@test
def a_delayed_message_is_not_handed_out_before_its_time(q):
    began = time.monotonic()
    hx.broker.put(q, "k", headers=[("Hapax-Delay", "1500ms")])
    same(hx.broker.key(q, "k")["state"], "pending")
    same(hx.broker.receive(q), [])
    hx.broker.one(q)
    took = time.monotonic() - began
    assert took >= 1.45, f"delivered after {took} s"


@test
def a_message_not_started_within_its_ttl_is_cancelled_and_says_so(q):
    reply = hx.broker.send(q, "k", headers=[("Hapax-Ttl", "700ms"), ("Prefer", "wait=20")])
    same(reply.status, 200)
    members(reply.json(), state="cancelled")
    assert "ttl" in reply.json()["reason"].lower() or "time to live" in reply.json()["reason"].lower(), reply
    same(hx.broker.receive(q), [])
    same(hx.broker.key(q, "k")["state"], "cancelled")


@test
def a_message_started_within_its_ttl_is_finished(q):
    hx.broker.put(q, "k", headers=[("Hapax-Ttl", "1s")])
    m = hx.broker.one(q, lease="5s")
    same(hx.broker.get(f"/v1/queues/{q}/keys/k/result?wait=1500ms").status, 409)
    same(hx.broker.ok("ack", m)["state"], "done")


@test
def a_ttl_of_nothing_is_refused(q):
    # Silent contract. Taking it for "no TTL" would do the opposite of what was said.
    problem(hx.broker.send(q, "k", headers=[("Hapax-Ttl", "0s")]), 400, "param_invalid")
    hx.problem_members(hx.broker.batch(q, [{"key": "k", "payload": "", "ttl": 0}]).lines()[0], 400, "param_invalid")


@test
def a_ttl_shorter_than_the_delay_ends_it_undelivered(q):
    reply = hx.broker.send(q, "k", headers=[("Hapax-Ttl", "300ms"), ("Hapax-Delay", "1h"), ("Prefer", "wait=20")])
    members(reply.json(), state="cancelled")


@test
def bad_durations_are_refused(q):
    for name in ("Hapax-Delay", "Hapax-Ttl"):
        for bad in ("", "soon", "-1s", "1.5s", "1 s", "5x", "s", "1h1m", "0x10", "99999999999999999999s", "9223372036854775807s", "1e3", "+5"):
            problem(hx.broker.send(q, "k", headers=[(name, bad)]), 400, "param_invalid")


@test
def a_bare_number_is_seconds_and_every_unit_works(q):
    for text, want in (("3600", 3600), ("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200), ("14d", 14 * 86400)):
        with hx.bracket() as asked:
            hx.broker.put(q, text, headers=[("Hapax-Delay", text)])
        shown = hx.broker.key(q, text)
        if shown["not_before"]:  # half a second may be over
            asked.holds(shown["not_before"], want)


# ---- waiting for the outcome

@test
def prefer_wait_answers_with_the_result_as_soon_as_it_is_there(q):
    later = hx.Later(hx.broker.send, q, "k", b"x", [("Prefer", "wait=60")])
    hx.broker.ok("ack", hx.broker.one(q), result={"ok": True})
    reply = later.value()  # nobody here waits for 60 seconds
    same(reply.status, 200)
    same(reply.header("Preference-Applied"), "wait=60")
    same(reply.header("Idempotent-Replayed"), None)
    body = reply.json()
    members(body, outcome="accepted", duplicate=False, state="done", queue=q, key="k",
            result={"content_type": "application/json", "body": '{"ok": true}', "encoding": "utf8"})
    stamp(body["expires_at"])


@test
def prefer_wait_gives_up_after_its_seconds_and_says_it_was_honoured(q):
    began = time.monotonic()
    reply = hx.broker.send(q, "k", b"x", [("Prefer", "respond-async, wait=1")])
    took = time.monotonic() - began
    assert took >= 0.95, took
    same(reply.status, 202)
    same(reply.header("Preference-Applied"), "wait=1")
    members(reply.json(), outcome="accepted", state="pending", expires_at=None)
    for spelled in ('wait="1"', "WAIT = 1; how=patiently", 'respond-async, wait="1";a=b'):  # as RFC 7240 allows
        same(hx.broker.send(q, "k", b"x", [("Prefer", spelled)]).header("Preference-Applied"), "wait=1", spelled)


@test
def a_duplicate_may_wait_too(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    later = hx.Later(hx.broker.send, q, "k", b"x", [("Prefer", "wait=20")])
    while hx.broker.key(q, "k")["duplicates"] == 0:
        time.sleep(0.01)
    hx.broker.ok("ack", m, result="late")
    reply = later.value()
    same(reply.status, 200)
    same(reply.header("Idempotent-Replayed"), "true")
    members(reply.json(), outcome="duplicate", state="done", duplicates=1)
    same(reply.json()["result"]["body"], "late")


@test
def a_wait_ends_when_the_message_dies(q):
    later = hx.Later(hx.broker.send, q, "k", b"x", [("Prefer", "wait=60")])
    hx.broker.ok("nack", hx.broker.one(q), **{"class": "poison", "reason": "cannot be read"})
    reply = later.value()
    same(reply.status, 202)
    members(reply.json(), state="dead", expires_at=None)


@test
def a_wait_ends_when_the_message_is_cancelled_or_rejected(q):
    later = hx.Later(hx.broker.send, q, "k", b"x", [("Prefer", "wait=60")])
    m = hx.broker.one(q)
    hx.broker.ok("nack", m, **{"class": "rejected", "result": "no"})
    members(later.value().json(), state="rejected")
    later = hx.Later(hx.broker.send, q, "k2", b"x", [("Prefer", "wait=60")])
    m = hx.broker.one(q)
    hx.broker.post(f"/v1/queues/{q}/messages/{m['id']}/cancel")
    same(later.value().status, 200)
    members(later.value().json(), state="cancelled")


@test
def a_duplicate_of_something_settled_does_not_wait(q):
    hx.broker.put(q, "k")
    hx.broker.ok("ack", hx.broker.one(q))
    same(hx.broker.send(q, "k", b"x", [("Prefer", "wait=60")]).status, 200)


@test
def nonsense_in_prefer_is_ignored(q):
    for number, text in enumerate(("wait", "wait=", "wait=abc", "wait=-1", "return=minimal", ",,", "wait=1.5")):
        reply = hx.broker.send(q, f"k{number}", b"x", [("Prefer", text)])
        same(reply.status, 202)
        same(reply.header("Preference-Applied"), None)


@test
def a_sender_that_leaves_while_waiting_has_sent(q):
    with hx.broker.connect() as c:
        c.start("POST", f"/v1/queues/{q}/messages", b"x", [("Idempotency-Key", "k"), ("Prefer", "wait=30")])
        m = hx.broker.one(q)
    same(hx.broker.ok("ack", m, result="r")["state"], "done")
    same(hx.broker.send(q, "k").json()["result"]["body"], "r")


hx.main()
