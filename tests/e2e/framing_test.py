#!/usr/bin/env python3
"""The wire: every doubt about where a message ends is refused and the connection closed, with exactly one response;
pipelining keeps its order; what breaks off applies nothing. (RELIABILITY.md S1 and S5.)"""
import gzip
import re
import socket
import struct
import time

import hx
from hx import members, problem, same, test

RESPONSE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
CODES = {400: {"bad_request"}, 413: {"too_large"}, 414: {"uri_too_long"}, 417: {"expectation_failed"}, 431: {"fields_too_large"},
         501: {"not_implemented"}, 505: {"http_version"}}


def head(*fields, line=b"POST /v1/ack HTTP/1.1", host=b"Host: localhost"):
    return b"\r\n".join([line] + ([host] if host else []) + list(fields)) + b"\r\n\r\n"


def send_head(queue, key, *fields):
    return head(b"Idempotency-Key: %s" % key.encode(), *fields, line=b"POST /v1/queues/%s/messages HTTP/1.1" % queue.encode())


def chunked(body):
    return head(b"Transfer-Encoding: chunked") + body


CASES = [
    # name, bytes, acceptable statuses
    ("content-length and transfer-encoding", head(b"Content-Length: 5", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", {400}),
    ("transfer-encoding and content-length", head(b"Transfer-Encoding: chunked", b"Content-Length: 5") + b"0\r\n\r\n", {400}),
    ("two equal content-lengths", head(b"Content-Length: 0", b"Content-Length: 0"), {400}),
    ("two different content-lengths", head(b"Content-Length: 0", b"Content-Length: 35"), {400}),
    ("content-length list", head(b"Content-Length: 0,0"), {400}),
    ("content-length list with a space", head(b"Content-Length: 0, 0"), {400}),
    ("content-length with a plus", head(b"Content-Length: +0"), {400}),
    ("content-length with a minus", head(b"Content-Length: -0"), {400}),
    ("content-length in hex", head(b"Content-Length: 0x0"), {400}),
    ("content-length with an underscore", head(b"Content-Length: 0_0"), {400}),
    ("content-length that is empty", head(b"Content-Length:"), {400}),
    ("content-length of blanks", head(b"Content-Length:   "), {400}),
    ("content-length of 2^64", head(b"Content-Length: 18446744073709551616"), {400, 413}),
    ("content-length of 2^64 + 1", head(b"Content-Length: 18446744073709551617"), {400, 413}),
    ("content-length of 2^63", head(b"Content-Length: 9223372036854775808"), {400, 413}),
    ("content-length with a space inside", head(b"Content-Length: 1 0"), {400}),
    ("content-length with a decimal point", head(b"Content-Length: 0.0"), {400}),
    ("content-length with text behind", head(b"Content-Length: 0x"), {400}),
    ("content-length with a vertical tab", head(b"Content-Length: \x0b0"), {400}),
    ("content-length quoted", head(b'Content-Length: "0"'), {400}),
    ("transfer-encoding xchunked", head(b"Transfer-Encoding: xchunked") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding chunked twice in one", head(b"Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding in two fields", head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", {400}),
    ("transfer-encoding ,chunked", head(b"Transfer-Encoding: ,chunked") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding identity", head(b"Transfer-Encoding: identity"), {400, 501}),
    ("transfer-encoding gzip, chunked", head(b"Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding chunked, identity", head(b"Transfer-Encoding: chunked, identity") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding quoted", head(b'Transfer-Encoding: "chunked"') + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding with a control byte", head(b"Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding with a parameter", head(b"Transfer-Encoding: chunked;q=1") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding that is empty", head(b"Transfer-Encoding:") + b"0\r\n\r\n", {400, 501}),
    ("transfer-encoding with a space before the colon", head(b"Transfer-Encoding : chunked") + b"0\r\n\r\n", {400}),
    ("transfer-encoding on http/1.0", head(b"Transfer-Encoding: chunked", line=b"POST /v1/ack HTTP/1.0") + b"0\r\n\r\n", {400}),
    ("space before the colon", head(b"X : 1"), {400}),
    ("tab before the colon", head(b"X\t: 1"), {400}),
    ("a folded line", head(b"X: 1", b" folded"), {400}),
    ("a folded line with a tab", head(b"X: 1", b"\tfolded"), {400}),
    ("a space before the first field", b"GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n", {400}),
    ("an empty field name", head(b": 1"), {400}),
    ("a line without a colon", head(b"nonsense"), {400}),
    ("bare LF after the request line", b"GET /healthz HTTP/1.1\nHost: localhost\r\n\r\n", {400}),
    ("bare LF after a field", b"GET /healthz HTTP/1.1\r\nHost: localhost\nX: 1\r\n\r\n", {400}),
    ("bare LF for the empty line", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\n", {400}),
    ("bare CR in a value", head(b"X: a\rb"), {400}),
    ("bare CR in the request line", b"GET /healthz\r HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    ("NUL in a name", head(b"X\0Y: 1"), {400}),
    ("NUL in a value", head(b"X: a\0b"), {400}),
    ("NUL in the target", b"GET /health\0z HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    ("a control byte in a value", head(b"X: a\x01b"), {400}),
    ("DEL in a value", head(b"X: a\x7fb"), {400}),
    ("a byte above 0x7f in a name", head(b"X\xe9: 1"), {400}),
    ("a byte above 0x7f in the target", b"GET /healthz\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
    ("chunk size with an underscore", chunked(b"0_2e\r\n"), {400}),
    ("chunk size 0x", chunked(b"0x5\r\nhello\r\n0\r\n\r\n"), {400}),
    ("chunk size negative", chunked(b"-1\r\n"), {400}),
    ("chunk size with a plus", chunked(b"+5\r\nhello\r\n0\r\n\r\n"), {400}),
    ("chunk size overflowing", chunked(b"fffffffffffffffff\r\n"), {400, 413}),
    ("chunk size wrapping", chunked(b"10000000000000005\r\nhello\r\n0\r\n\r\n"), {400, 413}),
    ("chunk size empty", chunked(b"\r\nhello\r\n0\r\n\r\n"), {400}),
    ("chunk size followed by garbage", chunked(b"1 garbage\r\na\r\n0\r\n\r\n"), {400}),
    ("chunk size after a space", chunked(b" 5\r\nhello\r\n0\r\n\r\n"), {400}),
    ("CR in a chunk extension", chunked(b"5;a\rb\r\nhello\r\n0\r\n\r\n"), {400}),
    ("a control byte in a chunk extension", chunked(b"5;a\x00b\r\nhello\r\n0\r\n\r\n"), {400}),
    ("LF for a chunk's line", chunked(b"5\nhello\r\n0\r\n\r\n"), {400}),
    ("LF in a chunk extension", chunked(b"5;a\nhello\r\n0\r\n\r\n"), {400}),
    ("a chunk longer than it says", chunked(b"3\r\nhello\r\n0\r\n\r\n"), {400}),
    ("a chunk ended by LF", chunked(b"5\r\nhello\n0\r\n\r\n"), {400}),
    ("a chunk not ended", chunked(b"5\r\nhello0\r\n\r\n"), {400}),
    ("garbage for the final CRLF", chunked(b"0\r\nXX\r\n\r\n"), {400}),
    ("a trailer with Content-Length", chunked(b"0\r\nContent-Length: 5\r\n\r\n"), {400}),
    ("a trailer with Transfer-Encoding", chunked(b"0\r\nTransfer-Encoding: chunked\r\n\r\n"), {400}),
    ("a trailer with Host", chunked(b"0\r\nHost: x\r\n\r\n"), {400}),
    ("a folded trailer", chunked(b"0\r\nX: 1\r\n 2\r\n\r\n"), {400}),
    ("an endless chunk line", chunked(b"5;" + b"a" * 20000), {400, 413, 431}),
    ("no Host", head(host=None), {400}),
    ("two Hosts", head(b"Host: u"), {400}),
    ("two equal Hosts", head(b"Host: localhost"), {400}),
    ("an empty Host", head(host=b"Host:"), {400}),
    ("a Host with a path", head(host=b"Host: localhost/x"), {400}),
    ("a Host with a user", head(host=b"Host: u@localhost"), {400}),
    ("an absolute target and another Host", head(line=b"GET http://other/healthz HTTP/1.1"), {400}),
    ("an https target", head(line=b"GET https://localhost/healthz HTTP/1.1"), {400}),
    ("an authority target", head(line=b"CONNECT localhost:80 HTTP/1.1"), {400}),
    ("a target without a slash", head(line=b"GET healthz HTTP/1.1"), {400}),
    ("HTTP/1.32", head(line=b"GET /healthz HTTP/1.32"), {400, 505}),
    ("HTTP/1.2", head(line=b"GET /healthz HTTP/1.2"), {400, 505}),
    ("HTTP/2.0", head(line=b"GET /healthz HTTP/2.0"), {400, 505}),
    ("HTTP/0.9 by name", head(line=b"GET /healthz HTTP/0.9"), {400, 505}),
    ("HTTP/0.9 by form", b"GET /healthz\r\n\r\n", {400, 505}),
    ("http in lower case", head(line=b"GET /healthz http/1.1"), {400, 505}),
    ("two spaces before the target", head(line=b"GET  /healthz HTTP/1.1"), {400}),
    ("two spaces before the version", head(line=b"GET /healthz  HTTP/1.1"), {400}),
    ("a tab for a space", head(line=b"GET\t/healthz HTTP/1.1"), {400}),
    ("a space behind the version", head(line=b"GET /healthz HTTP/1.1 "), {400}),
    ("a space before the method", head(line=b" GET /healthz HTTP/1.1"), {400}),
    ("a bad method", head(line=b"G(T /healthz HTTP/1.1"), {400}),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60, {400}),
    ("a fragment in the target", head(line=b"GET /healthz#x HTTP/1.1"), {400, 404}),
    ("an unknown expectation", head(b"Expect: 200-maybe", b"Content-Length: 0"), {400, 417}),
    ("two expectations", head(b"Expect: 100-continue", b"Expect: 100-continue", b"Content-Length: 0"), {400, 417}),
    ("a request line of more than 8 KiB", head(line=b"GET /" + b"a" * 8192 + b" HTTP/1.1"), {414}),
    ("an endless request line", b"GET /" + b"a" * 100000, {414}),
    ("a method without end", b"A" * 100000, {400, 414}),
    ("headers of more than 16 KiB", head(b"X: " + b"a" * 16384), {431}),
    ("an endless header", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000, {431}),
    ("101 fields", head(*[b"X%d: 1" % n for n in range(100)]), {431}),
    ("thousands of fields", head(*[b"X: 1"] * 3000), {431}),
]


def judge(name, data, statuses, split):
    """Sends the case with a valid request behind it; complains unless there is one refusal and then the end."""
    with hx.broker.connect() as c:
        try:
            if split:
                for at in range(0, len(data), split):
                    c.write(data[at:at + split])
            else:
                c.write(data + SMUGGLED)
        except OSError:
            pass  # refused before it was all sent
        c.sock.settimeout(5)
        try:
            got = c.rest()
        except TimeoutError:
            return f"{name}: the connection stays open after {c.data[:300]!r}"
    responses = RESPONSE.findall(got)
    if len(responses) != 1:
        return f"{name}: {len(responses)} responses: {got[:300]!r}"
    status = int(responses[0])
    top, _, body = got.partition(b"\r\n\r\n")
    if status not in statuses:
        return f"{name}: {status}, want {statuses}"
    if b"connection: close" not in top.lower():
        return f"{name}: no Connection: close"
    if not data.startswith(b"HEAD") and status in CODES:
        p = hx.strict_json(body)
        if p["code"] not in CODES[status] or p["applied"] != "no" or p["status"] != status:
            return f"{name}: {p}"
    return None


@test
def every_framing_doubt_gets_one_refusal_and_the_end_of_the_connection():
    assert len(CASES) >= 60
    same([bad for bad in (judge(*case, split=0) for case in CASES) if bad], [])


@test
def every_framing_doubt_is_refused_in_small_pieces_too():
    # Nothing behind it: what was refused has to be refused without help of the next bytes.
    same([bad for bad in (judge(*case, split=7) for case in CASES if len(case[1]) < 2000) if bad], [])


# ---- what is allowed although it looks odd

ODD = [
    ("an empty line first", b"\r\n" + head(line=b"GET /healthz HTTP/1.1")),
    ("names in any case", b"GET /healthz HTTP/1.1\r\nhOsT: localhost\r\n\r\n"),
    ("blanks around values", head(b"X:\t a \t", line=b"GET /healthz HTTP/1.1")),
    ("an empty value", head(b"X:", line=b"GET /healthz HTTP/1.1")),
    ("bytes above 0x7f in a value", head(b"X: \xe9", line=b"GET /healthz HTTP/1.1")),
    ("an absolute target", head(line=b"GET http://localhost/healthz HTTP/1.1")),
    ("a GET with a body of none", head(b"Content-Length: 0", line=b"GET /healthz HTTP/1.1")),
    ("a GET with a body", head(b"Content-Length: 35", line=b"GET /healthz HTTP/1.1") + SMUGGLED[:35].ljust(35, b"x")),
    ("a GET with a chunked body", head(b"Transfer-Encoding: chunked", line=b"GET /healthz HTTP/1.1") + b"3\r\nabc\r\n0\r\nX: 1\r\n\r\n"),
    ("chunked in capitals", head(b"Transfer-Encoding: CHUNKED", line=b"GET /healthz HTTP/1.1") + b"0\r\n\r\n"),
    ("a size with zeros before it", head(b"Transfer-Encoding: chunked", line=b"GET /healthz HTTP/1.1") + b"0003;a=\"b c\"\r\nabc\r\n000\r\n\r\n"),
    ("99 fields and Host", head(*[b"X%d: 1" % n for n in range(99)], line=b"GET /healthz HTTP/1.1")),
    ("an empty query", head(line=b"GET /healthz?&& HTTP/1.1")),
]


@test
def what_is_odd_but_clear_is_understood_and_the_next_request_too():
    for name, data in ODD:
        with hx.broker.connect() as c:
            c.write(data + b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            same((c.reply().json(), c.reply().json()), ({"status": "ok"}, {"status": "ready"}), name)


@test
def a_request_line_of_exactly_8_kib_is_read():
    with hx.broker.connect() as c:
        line = b"GET /healthz?" + b"&" * 8192
        line = line[:8192 - len(b" HTTP/1.1")] + b" HTTP/1.1"
        same(len(line), 8192)
        c.write(head(line=line))
        same(c.reply().status, 200)


# ---- keep-alive, pipelining, continue

@test
def a_thousand_pipelined_requests_are_answered_in_order(q):
    with hx.broker.connect() as c:
        sender = hx.Later(lambda: [c.start("POST", f"/v1/queues/{q}/messages", b"p%d" % n, [("Idempotency-Key", f"k{n}")])
                                   for n in range(1000)])
        replies = [c.reply() for _ in range(1000)]
        sender.value()
    same([r.json()["key"] for r in replies], [f"k{n}" for n in range(1000)])
    same({r.status for r in replies}, {202})
    got = hx.broker.receive(q, max=1000)
    same([(m["key"], m["payload"]) for m in got], [(f"k{n}", f"p{n}") for n in range(1000)])


@test
def a_thousand_pipelined_requests_in_one_write_of_mixed_kinds_keep_their_order(q):
    with hx.broker.connect() as c:
        data = b""
        for n in range(250):
            data += send_head(q, f"k{n}", b"Content-Length: 1") + b"x"
            data += b"GET /v1/queues/%s/keys/k%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % (q.encode(), n)
            data += b"GET /v1/nothing%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % n
            data += send_head(q, f"k{n}", b"Transfer-Encoding: chunked") + b"1\r\nx\r\n0\r\n\r\n"
        sender = hx.Later(c.write, data)
        for n in range(250):
            members(c.reply().json(), key=f"k{n}", outcome="accepted")
            members(c.reply().json(), key=f"k{n}", state="pending")  # reads its own write
            same(c.reply().status, 404)
            members(c.reply().json(), key=f"k{n}", outcome="duplicate")
        sender.value()


@test
def a_key_is_the_same_key_pipelined_or_alone_bare_or_quoted(q):
    """Pipelined requests are looked at ahead of their turn, their keys hashed then: for the right queue, and the right bytes."""
    other, keys = q + "-other", [f"key-{n}" for n in range(300)]
    with hx.broker.connect() as c:
        data = b""
        for n, key in enumerate(keys):
            quoted = f'"{key}"' if n % 3 else key
            data += send_head(q, key, b"Content-Length: 1") + b"x"
            data += send_head(other if n % 2 else q, quoted, b"Content-Length: 1") + b"x"
        sender = hx.Later(c.write, data)
        for n, key in enumerate(keys):
            members(c.reply().json(), key=key, outcome="accepted")
            members(c.reply().json(), key=key, outcome="accepted" if n % 2 else "duplicate")
        sender.value()
    for n, key in enumerate(keys):
        members(hx.broker.send(q, key).json(), outcome="duplicate")
        members(hx.broker.send(other, key).json(), outcome="duplicate" if n % 2 else "accepted")


@test
def a_payload_is_the_same_payload_pipelined_or_alone(q):
    """Payloads of pipelined requests are hashed ahead, several at once: of unsettled keys, settled ones and new ones, of any length."""
    def payload(n, last=b"x"):
        return b"%d " % n * (n * n // 40) + last

    def settle(count):
        for m in hx.broker.receive(q, max=count):
            hx.broker.ok("ack", m)

    def pipelined(last):
        data = b"".join(send_head(q, f"k{n}", b"Content-Length: %d" % len(payload(n, last))) + payload(n, last) for n in range(240))
        with hx.broker.connect() as c:
            sender = hx.Later(c.write, data)
            replies = [c.reply() for _ in range(240)]
            sender.value()
        return replies

    for n in range(0, 160, 2):
        hx.broker.put(q, f"k{n}", payload=payload(n))
    settle(40)
    known = ["duplicate" if n < 160 and n % 2 == 0 else "accepted" for n in range(240)]
    same([r.json()["outcome"] for r in pipelined(b"x")], known)
    same([r.json()["outcome"] for r in pipelined(b"x")], ["duplicate"] * 240)
    settle(150)
    same([r.json()["code"] for r in pipelined(b"y")], ["key_reused"] * 240)
    same({hx.broker.send(q, f"k{n}", payload=payload(n)).json()["outcome"] for n in range(240)}, {"duplicate"})


@test
def a_payload_is_the_same_payload_pipelined_where_its_key_is_made_of_it_too(q):
    def payload(n, last=b"x"):
        return b'{"id":"k%d","text":"%s%s"}' % (n, b"%d " % n * (n * n // 40), last)

    def pipelined(last):
        bodies = [payload(n, last) for n in range(240)]
        line = b"POST /v1/queues/%s/messages HTTP/1.1" % q.encode()
        with hx.broker.connect() as c:
            sender = hx.Later(c.write, b"".join(head(b"Content-Length: %d" % len(body), line=line) + body for body in bodies))
            replies = [c.reply() for _ in range(240)]
            sender.value()
        return replies

    hx.broker.rules(q, key="${id}", schema={"pattern": {"id": "^k[0-9]+$"}})
    same([r.json()["outcome"] for r in pipelined(b"x")], ["accepted"] * 240)
    for m in hx.broker.receive(q, max=100):
        hx.broker.ok("ack", m)
    same([r.json()["outcome"] for r in pipelined(b"x")], ["duplicate"] * 240)
    same([r.json()["code"] for r in pipelined(b"y")], ["key_reused"] * 240)
    same({hx.broker.event(q, payload(n)).json()["outcome"] for n in range(240)}, {"duplicate"})


@test
def a_refusal_in_a_pipeline_comes_after_the_answers_before_it(q):
    with hx.broker.connect() as c:
        for n in range(5):
            c.start("POST", f"/v1/queues/{q}/messages", b"x", [("Idempotency-Key", f"k{n}")])
        c.write(b"BAD\x01 / HTTP/1.1\r\n\r\n" + SMUGGLED)
        same([c.reply().status for _ in range(6)], [202] * 5 + [400])
        same(c.rest(), b"")


@test
def connection_close_is_honoured():
    with hx.broker.connect() as c:
        c.write(head(b"Connection: close", line=b"GET /healthz HTTP/1.1") + SMUGGLED)
        reply = c.reply()
        same((reply.status, reply.header("Connection").lower()), (200, "close"))
        same(c.rest(), b"")


@test
def http_1_0_closes_unless_it_asks_to_stay():
    with hx.broker.connect() as c:
        c.write(b"GET /healthz HTTP/1.0\r\n\r\n")
        same(c.reply().status, 200)
        same(c.rest(), b"")
    with hx.broker.connect() as c:
        c.write(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        same(c.reply().status, 200)
        c.write(SMUGGLED)
        same(c.reply().status, 200)


@test
def a_client_that_shuts_its_side_still_gets_its_answers(q):
    with hx.broker.connect() as c:
        c.start("POST", f"/v1/queues/{q}/messages", b"x", [("Idempotency-Key", "k")])
        c.sock.shutdown(socket.SHUT_WR)
        same(c.reply().status, 202)
        same(c.rest(), b"")


@test
def expect_100_continue_is_answered_before_the_body(q):
    with hx.broker.connect() as c:
        c.start("POST", f"/v1/queues/{q}/messages", None, [("Idempotency-Key", "k"), ("Content-Length", "5"), ("Expect", "100-continue")])
        same(c.head()[0], "HTTP/1.1 100 Continue")
        c.write(b"hello")
        same(c.reply().status, 202)
        c.start("POST", f"/v1/queues/{q}/messages", None, [("Idempotency-Key", "k"), ("Content-Length", str(2 << 20)), ("Expect", "100-continue")])
        same(c.reply().status, 413)  # no 100 for what will be refused


@test
def a_request_in_single_bytes_is_a_request(q):
    with hx.broker.connect() as c:
        for byte in send_head(q, "k", b"Transfer-Encoding: chunked") + b"2;x\r\nab\r\n1\r\nc\r\n0\r\nT: x\r\n\r\n":
            c.write(bytes([byte]))
        same(c.reply().status, 202)
    same(hx.broker.one(q)["payload"], "abc")


# ---- what breaks off

@test
def a_body_shorter_than_promised_applies_nothing(q):
    partial = [b"Content-Length: 10\r\n\r\n123456789", b"Content-Length: 10\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
               b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel", b"Content-Length: 10\r\n"]
    for number, rest in enumerate(partial):
        for reset in (False, True):
            with hx.broker.connect() as c:
                c.write(b"POST /v1/queues/%s/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k%d\r\n" % (q.encode(), number) + rest)
                if reset:
                    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    c.sock.shutdown(socket.SHUT_WR)
                    c.rest()
    hx.broker.put(q, "after")
    same([m["key"] for m in hx.broker.receive(q, max=100)], ["after"])


@test
def an_ack_that_breaks_off_settles_nothing(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    body = b'{"token":"%s"}' % m["token"].encode()
    with hx.broker.connect() as c:
        c.write(b"POST /v1/ack HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body)
    same(hx.broker.key(q, "k")["state"], "leased")


@test
def clients_that_leave_in_the_middle_of_anything_hurt_nobody(q):
    request = send_head(q, "cut", b"Prefer: wait=5", b"Content-Length: 5") + b"hello"
    for cut in range(1, len(request) + 1):
        with hx.broker.connect() as c:
            c.write(request[:cut])
            if cut % 2:
                c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    hx.broker.put(q, "after")
    # Only the whole request counted, if its bytes came before its reset did.
    assert {m["key"] for m in hx.broker.receive(q, max=100)} <= {"cut", "after"}
    same(hx.broker.queue(q)["leased"] >= 1, True)


@test
def a_head_that_does_not_come_within_10_seconds_is_given_up():
    with hx.broker.connect() as c:
        began = time.monotonic()
        c.write(b"GET /healthz HTTP/1.1\r\nHo")
        reply = c.reply()
        assert time.monotonic() - began > 9
        members(problem(reply, 408, "request_timeout"), retryable=True)
        assert c.closed()


@test
def a_body_that_only_drips_is_given_up_and_applies_nothing(q):
    hx.broker.put(q, "first")
    with hx.broker.connect() as c:
        c.write(send_head(q, "k", b"Content-Length: 100000"))
        answered = hx.Later(c.reply)
        while not answered.future.done():
            try:
                c.write(b"x")
            except OSError:
                break
            time.sleep(0.1)  # the dripping itself
        problem(answered.value(), 408, "request_timeout")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/k"), 404, "no_such_key")


@test
def a_client_that_reads_nothing_does_not_block_the_others(q):
    hx.broker.put(q, "k", payload="x" * 500000)
    with hx.broker.connect() as deaf:
        deaf.sock.setblocking(False)
        request = b"GET /v1/queues/%s/keys/k HTTP/1.1\r\nHost: localhost\r\n\r\n" % q.encode()
        try:
            for _ in range(2000):
                deaf.sock.send(request)
        except BlockingIOError:
            pass
        for _ in range(50):
            same(hx.broker.get("/healthz").status, 200)
        # A gigabyte was asked for; what nobody takes is not made.
        assert hx.broker.get("/v1/stats").json()["process"]["resident_bytes"] < 300 << 20
    hx.broker.ok("ack", hx.broker.one(q))


@test(alone=True)
def more_unfinished_bodies_than_fit_are_turned_away_and_the_rest_is_served(q):
    conns, turned_away = [], 0
    try:
        for _ in range(40):
            c = hx.broker.connect()
            conns.append(c)
            try:
                c.write(b"POST /v1/queues/%s/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (q.encode(), 8 << 20))
                for _ in range(8):
                    c.write(b" " * ((1 << 20) - 1))
            except OSError:
                pass
            same(hx.broker.get("/healthz").status, 200)
        for c in conns:
            c.sock.setblocking(False)
            try:
                c.more()
            except OSError:
                continue
            c.sock.settimeout(hx.TIMEOUT)
            reply = c.reply()
            problem(reply, 503, "overloaded")
            assert 1 <= int(reply.header("Retry-After")) <= 30
            turned_away += 1
        assert 1 <= turned_away < 40, turned_away
    finally:
        for c in conns:
            c.close()
    same(hx.broker.send(q, "k").status, 202)


@test
def a_compressed_body_is_refused_wherever_it_comes(q):
    coded = [("Content-Encoding", "gzip")]
    body = gzip.compress(b'{"lease":"30s"}' + b" " * 50000)
    hx.broker.put(q, "k")
    message = hx.broker.one(q)
    calls = [("POST", f"/v1/{verb}") for verb in ("ack", "nack", "extend", "step", "start", "release")]
    calls += [("PUT", f"/v1/queues/{q}"), ("POST", f"/v1/queues/{q}/messages"), ("POST", f"/v1/queues/{q}/batch"), ("POST", f"/v1/queues/{q}/pause"),
              ("POST", f"/v1/queues/{q}/purge"), ("POST", f"/v1/queues/{q}/keys/k/replay")]
    for method, path in calls:
        problem(hx.broker.call(method, path, body, coded + [("Idempotency-Key", "k2")]), 415, "unsupported_media")
    hx.broker.ok("ack", message)


@test
def a_thousand_idle_connections_are_no_burden():
    conns = [hx.broker.connect() for _ in range(900)]
    try:
        same(hx.broker.get("/healthz").status, 200)
        same({c.request("GET", "/healthz").status for c in conns[::50]}, {200})
    finally:
        for c in conns:
            c.close()


@test
def replies_name_their_length_and_carry_no_surprises(q):
    for method, path in (("GET", "/healthz"), ("GET", "/nothing"), ("POST", "/v1/ack"), ("DELETE", "/healthz")):
        reply = hx.broker.call(method, path, b"" if method == "POST" else None)
        same(reply.header("Content-Length"), str(len(reply.body)))
        assert reply.header("Transfer-Encoding") is None


hx.main(threads=8)
