#!/usr/bin/env python3
"""Sending many: a line answered per line, in order; a bad line fails alone; limits hold before anything is applied."""
import base64
import json

import hx
from hx import members, problem, problem_members, same, test


def line(key, payload="x", **more):
    return dict(more, key=key, payload=payload)


def raw(queue, body, headers=(("Content-Type", "application/x-ndjson"),)):
    return hx.broker.call("POST", f"/v1/queues/{queue}/batch", body, list(headers))


def nothing_arrived(queue):
    reply = hx.broker.get(f"/v1/queues/{queue}")
    if reply.status == 200:
        same(reply.json()["pending"], 0)
    else:
        problem(reply, 404, "no_such_queue")


@test
def every_line_is_answered_in_order_as_a_single_send_would_be(q):
    hx.broker.put(q, "b", payload="x")
    reply = hx.broker.batch(q, [line("a"), line("b"), line("c", "y")])
    same(reply.status, 200)
    same(reply.header("Content-Type"), "application/x-ndjson")
    assert reply.body.endswith(b"\n"), reply
    a, b, c = reply.lines()
    same(set(a), {"outcome", "duplicate", "id", "queue", "key", "state", "expires_at", "status"})
    members(a, outcome="accepted", duplicate=False, key="a", queue=q, state="pending", expires_at=None, status=202)
    members(b, outcome="duplicate", duplicate=True, key="b", status=202, duplicates=1)
    members(c, outcome="accepted", key="c", status=202)
    same([m["key"] for m in hx.broker.receive(q, max=10)], ["b", "a", "c"])


@test
def a_duplicate_of_something_settled_has_status_200_and_its_result(q):
    hx.broker.put(q, "k")
    hx.broker.ok("ack", hx.broker.one(q), result="r")
    got = hx.broker.batch(q, [line("k")]).lines()[0]
    members(got, status=200, state="done", result={"content_type": "text/plain", "body": "r", "encoding": "utf8"})


@test
def a_conflict_is_a_problem_on_its_own_line(q):
    original = hx.broker.put(q, "k", payload='{"a":1}')
    first, second = hx.broker.batch(q, [line("k", {"a": 2}), line("n")]).lines()
    members(problem_members(first, 422, "key_reused"), id=original, changed=["a"])
    members(second, outcome="accepted", status=202)
    assert "id" in second and second["id"] != original


@test
def every_conflict_names_what_changed_in_it_whatever_was_read_before(q):
    """Rules may have read both payloads already, one of them, or none; of this message, or only of the one before."""
    rules = ({}, {"fingerprint": "json"}, {"fingerprint": {"ignore": ["n"]}}, {"key": "${id}"}, {"key": "${id}", "fingerprint": "json"})
    for n, given in enumerate(rules):
        queue, names = f"{q}-{n}", ["a", "b", "c"]
        hx.broker.rules(queue, **given)
        payload = lambda name, **changed: dict({"id": name, "a": 1, "b": 1, "c": 1}, **changed)
        hx.broker.batch(queue, [line(name, payload(name)) for name in names])
        conflicts = [line(name, payload(name, **{name: 2})) for name in names]
        repeats = [line(name, payload(name)) for name in names]
        order = [conflicts[0], conflicts[1], repeats[2], conflicts[2], line("new", payload("new")), conflicts[0], repeats[1], conflicts[1]]
        got = hx.broker.batch(queue, order).lines()
        same([g.get("changed") for g in got], [["a"], ["b"], None, ["c"], None, ["a"], None, ["b"]])
        singly = [hx.broker.send(queue, o["key"], json.dumps(o["payload"])).json() for o in order]
        same([g.get("changed") for g in singly], [["a"], ["b"], None, ["c"], None, ["a"], None, ["b"]])


@test
def in_an_ordered_batch_what_is_behind_a_line_that_is_put_off_is_put_off_too(q):
    hx.broker.rules(q, limits={"pending": 1})
    hx.broker.put(q, "there", payload="x")
    lines = b"".join(json.dumps(m).encode() + b"\n" for m in ({"key": "bad"}, line("new"), line("there")))
    for query, statuses in (("", [400, 429, 202]), ("?ordered=false", [400, 429, 202]), ("?ordered=true", [400, 429, 429])):
        answers = hx.broker.call("POST", f"/v1/queues/{q}/batch{query}", lines).lines()
        same([a["status"] for a in answers], statuses, query)
        problem_members(answers[1], 429, "backpressure")
    same(answers[2], answers[1])
    problem(hx.broker.call("POST", f"/v1/queues/{q}/batch?ordered=yes", lines), 400, "param_invalid")


@test
def the_same_key_twice_in_one_batch_is_one_message(q):
    a, b, c = hx.broker.batch(q, [line("k", "p"), line("k", "p"), line("k", "other")]).lines()
    members(a, outcome="accepted", status=202)
    members(b, outcome="duplicate", id=a["id"], duplicates=1, status=202)
    problem_members(c, 422, "key_reused")
    same(len(hx.broker.receive(q, max=10)), 1)


BAD = [
    (b"nonsense", 400, "json_invalid"),
    (b"{", 400, "json_invalid"),
    (b'{"key":"x","payload":"1"', 400, "json_invalid"),
    (b'{"key":"x","payload":"1"}}', 400, "json_invalid"),
    (b'{"key":"x","payload":"1"} {"key":"y","payload":"1"}', 400, "json_invalid"),
    (b"[]", 400, "json_invalid"),
    (b"null", 400, "json_invalid"),
    (b'"text"', 400, "json_invalid"),
    (b"17", 400, "json_invalid"),
    (b'{"key":"x","key":"y","payload":"1"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"1","payload":"1"}', 400, "json_invalid"),
    (b'{"key":"x","\\u006bey":"x","payload":"1"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"1","colour":"red"}', 400, "json_invalid"),
    (b'{"key":7,"payload":"1"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"1","attrs":[]}', 400, "json_invalid"),
    (b'{"key":"x","payload":"1","attrs":{"a":1}}', 400, "json_invalid"),
    (b'{"key":"x","payload":"1","group":1}', 400, "json_invalid"),
    (b'{"key":"x","payload":01}', 400, "json_invalid"),
    (b'{"key":"x","payload":NaN}', 400, "json_invalid"),
    (b'{"key":"x","payload":1.}', 400, "json_invalid"),
    (b'{"key":"x","payload":"\\ud800"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"\\udc00\\ud800"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"a\xff"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"tab\there"}', 400, "json_invalid"),
    (b'{"key":"x","payload":"\\x41"}', 400, "json_invalid"),
    (b"{'key':'x','payload':'1'}", 400, "json_invalid"),
    (b'{"key":"x","payload":"1",}', 400, "json_invalid"),
    (b'\xef\xbb\xbf{"key":"x","payload":"1"}', 400, "json_invalid"),
    (b'{"payload":"1"}', 400, "key_missing"),
    (b'{"key":"","payload":"1"}', 400, "key_invalid"),
    (b'{"key":"' + b"k" * 256 + b'","payload":"1"}', 400, "key_invalid"),
    (b'{"key":"a\\u0000b","payload":"1"}', 400, "key_invalid"),
    (b'{"key":"x"}', 400, "param_invalid"),
    (b'{"key":"x","payload":"1","payload_base64":"MQ=="}', 400, "param_invalid"),
    (b'{"key":"x","payload_base64":"*"}', 400, "param_invalid"),
    (b'{"key":"x","payload_base64":"MQ="}', 400, "param_invalid"),
    (b'{"key":"x","payload":"1","delay":"soon"}', 400, "param_invalid"),
    (b'{"key":"x","payload":"1","delay":-1}', 400, "param_invalid"),
    (b'{"key":"x","payload":"1","ttl":"-5s"}', 400, "param_invalid"),
    (b'{"key":"x","payload":"1","delay":""}', 400, "param_invalid"),
    (b'{"key":"x","payload":"1","group":"a\\nb"}', 400, "param_invalid"),
    (b'{"key":"x","payload":"' + b"p" * ((1 << 20) + 1) + b'"}', 413, "too_large"),
]


@test
def a_bad_line_among_good_ones_fails_alone(q):
    lines, want = [], []
    for number, (bad, status, code) in enumerate(BAD):
        lines += [line(f"good{number}"), bad]
        want += [None, (status, code)]
    got = hx.broker.batch(q, lines).lines()
    same(len(got), len(want))
    wrong = []
    for text, have, expected in zip(lines, got, want):
        if expected is None:
            members(have, outcome="accepted", status=202)
        elif (have["status"], have.get("code")) != expected:
            wrong.append((text[:60], have["status"], have.get("code"), expected))
        else:
            problem_members(have, *expected)
    same(wrong, [])
    same(len(hx.broker.receive(q, max=1000)), len(BAD))


@test
def json_nests_64_deep_and_no_deeper(q):
    # The line's own object is the first level.
    deep = lambda n: b'{"key":"d%d","payload":' % n + b"[" * (n - 1) + b"]" * (n - 1) + b"}"
    ok, bad, awful = hx.broker.batch(q, [deep(64), deep(65), b'{"key":"d","payload":' + b"[" * 100000]).lines()
    members(ok, outcome="accepted")
    problem_members(bad, 400, "json_invalid")
    problem_members(awful, 400, "json_invalid")


@test
def huge_numbers_are_kept_as_they_were_written(q):
    huge = b"1" * 4000 + b".5e-999999"
    same(raw(q, b'{"key":"k","payload":' + huge + b"}").lines()[0].get("outcome"), "accepted")
    members(hx.broker.one(q), payload=huge.decode(), content_type="application/json")


@test
def a_string_payload_is_its_bytes_and_any_other_value_is_its_text(q):
    values = [b'"a\\u00e9\\n\\"b"', b'{"b": 1,  "a":[1.50,null]}', b"null", b"true", b"0", b"[]", b'""']
    want = ['aé\n"b', '{"b": 1,  "a":[1.50,null]}', "null", "true", "0", "[]", ""]
    got = raw(q, b"".join(b'{"key":"k%d","payload":%s}\n' % (n, v) for n, v in enumerate(values))).lines()
    same([g.get("outcome") for g in got], ["accepted"] * len(values))
    messages = hx.broker.receive(q, max=20)
    same([m["payload"] for m in messages], want)
    same([m["content_type"] == "application/json" for m in messages], [False, True, True, True, True, True, False])


@test
def a_line_and_a_single_send_with_the_same_bytes_are_the_same_payload(q):
    hx.broker.put(q, "k", payload='{"a": 1}')
    same(raw(q, b'{"key":"k","payload":{"a": 1}}').lines()[0]["outcome"], "duplicate")
    same(raw(q, b'{"key":"k","payload":"{\\"a\\": 1}"}').lines()[0]["outcome"], "duplicate")
    same(raw(q, b'{"key":"k","payload_base64":"eyJhIjogMX0="}').lines()[0]["outcome"], "duplicate")


@test
def payload_base64_carries_any_bytes(q):
    blob = bytes(range(256))
    hx.broker.batch(q, [{"key": "b", "payload_base64": base64.b64encode(blob).decode(), "content_type": "image/png"},
                        {"key": "e", "payload_base64": ""}])
    first, second = hx.broker.receive(q, max=2)
    members(first, encoding="base64", content_type="image/png")
    same(hx.decoded(first["payload"], "base64"), blob)
    members(second, payload="", encoding="utf8")


@test
def every_member_of_a_line_is_handed_on(q):
    hx.broker.batch(q, [line("k", {"x": 1}, content_type="text/x", group="g", attrs={"a": "1", "b": "zwei"}, request_id="r-9", ttl="1h")])
    members(hx.broker.one(q), content_type="text/x", group="g", attrs={"a": "1", "b": "zwei"}, payload='{"x": 1}')
    same(hx.broker.key(q, "k")["arrivals"][0]["request_id"], "r-9")


@test
def delay_and_ttl_of_a_line_count(q):
    hx.broker.batch(q, [line("later", delay="2h"), line("number", delay=3600), line("short", ttl="300ms"), line("now")])
    same(hx.broker.get(f"/v1/queues/{q}/keys/short/result?wait=20s").header("Hapax-State"), "cancelled")
    same([m["key"] for m in hx.broker.receive(q, max=10)], ["now"])


@test
def line_ends_may_be_crlf_and_the_last_one_may_be_missing(q):
    got = raw(q, b'{"key":"a","payload":"1"}\r\n{"key":"b","payload":"2"}\r\n\r\n{"key":"c","payload":"3"}').lines()
    same([g["key"] for g in got], ["a", "b", "c"])
    same([m["payload"] for m in hx.broker.receive(q, max=9)], ["1", "2", "3"])


@test
def an_empty_batch_has_an_empty_answer(q):
    # The contract is silent: no lines, no answers.
    for body in (b"", b"\n", b"\r\n\n  \n"):
        reply = raw(q, body)
        same(reply.status, 200)
        same(reply.body, b"")


@test
def ten_thousand_lines_are_fine(q):
    got = hx.broker.batch(q, [line(f"k{n}") for n in range(10000)]).lines()
    same(len(got), 10000)
    same([g["key"] for g in got], [f"k{n}" for n in range(10000)])
    same({g["status"] for g in got}, {202})
    same(hx.broker.queue(q)["pending"], 10000)


@test
def one_line_more_is_refused_and_nothing_is_applied(q):
    problem(hx.broker.batch(q, [line(f"k{n}") for n in range(10001)]), 413, "too_large")
    nothing_arrived(q)


@test
def more_than_8_mib_are_refused_unread_and_nothing_is_applied(q):
    limit = 8 << 20
    with hx.broker.connect() as c:
        c.write(f"POST /v1/queues/{q}/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {limit + 1}\r\n\r\n".encode())
        problem(c.reply(), 413, "too_large")
    with hx.broker.connect() as c:
        first = json.dumps(line("k")).encode() + b"\n"
        c.write(f"POST /v1/queues/{q}/batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        c.write(b"%x\r\n%s\r\n%x\r\n" % (len(first), first, limit))
        problem(c.reply(), 413, "too_large")
    nothing_arrived(q)


@test
def exactly_8_mib_are_read(q):
    limit = 8 << 20
    part = b'{"key":"k%d","payload":"' + b"p" * 1000000 + b'"}\n'
    body = b"".join(part % n for n in range(8))
    body += b" " * (limit - len(body))
    got = raw(q, body).lines()
    same([g.get("status") for g in got], [202] * 8)


@test
def a_batch_is_bytes_in_any_content_type_but_never_compressed(q):
    same(raw(q, b'{"key":"k","payload":"1"}', []).status, 200)
    problem(raw(q, b"x", [("Content-Encoding", "gzip")]), 415, "unsupported_media")


@test
def a_batch_for_a_bad_queue_name_is_refused_whole(q):
    problem(raw("a%20b", b'{"key":"k","payload":"1"}'), 400, "queue_invalid")


@test
def a_small_batch_cannot_ask_for_gigabytes(q):
    # Every line is answered; how a result that does not fit is left out is the broker's choice, dying of it is not.
    hx.broker.put(q, "k")
    hx.broker.ok("ack", hx.broker.one(q), result="r" * (1 << 20))
    reply = raw(q, b'{"key":"k","payload":"x"}\n' * 200)
    same(reply.status, 200)
    assert len(reply.body) < 64 << 20, f"{len(reply.body)} bytes for a request of 5 KB"
    same([g["status"] for g in reply.lines()][:1], [200])
    same(len(reply.lines()), 200)
    same(hx.broker.key(q, "k")["duplicates"] >= 1, True)


@test
def a_batch_that_breaks_off_applies_nothing(q):
    body = b"".join(json.dumps(line(f"k{n}")).encode() + b"\n" for n in range(100))
    with hx.broker.connect() as c:
        c.write(f"POST /v1/queues/{q}/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
    with hx.broker.connect() as c:
        c.write(f"POST /v1/queues/{q}/batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n")
    nothing_arrived(q)


hx.main()
