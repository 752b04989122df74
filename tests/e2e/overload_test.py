#!/usr/bin/env python3
"""Overload: no address and no token keeps others out, operators are answered all the same, and whoever is refused is told when to
come back. (RELIABILITY.md S4; docs/HTTP.md "Overload".)"""
import contextlib
import hashlib
import os
import re
import socket
import time

import hx
from hx import problem, same, test

THEM, US = "127.0.0.2", "127.0.0.3"
PLACES, RESERVE = 80, 2
CROWDED = f"auto_create: true\nlimits: {{connections: {PLACES}}}\n"
TOKENS = {name: f"hx_{name}_0123456789abcdefghijklmnopqrstuvwxyz" for name in ("shop", "cart", "oncall")}


def with_tokens(limits):
    rights = {"shop": '["send:*", "receive:*", "result:*"]', "cart": '["send:*", "receive:*"]', "oncall": '["operate:*", observe]'}
    lines = [f"  - {{name: {name}, sha256: [{hashlib.sha256(TOKENS[name].encode()).hexdigest()}], allow: {rights[name]}}}" for name in TOKENS]
    return f"limits: {limits}\ntokens:\n" + "\n".join(lines) + "\nqueues: {q: {}}\n"


def bearer(name):
    return [("Authorization", f"Bearer {TOKENS[name]}")]


def key(text):
    return [("Idempotency-Key", text)]


@contextlib.contextmanager
def broker(config):
    with hx.Broker(config=config) as b, contextlib.ExitStack() as held:
        def dial(source):
            return held.enter_context(hx.Conn(b.port, source=source))
        b.dial = dial
        yield b


def polls(b, source, count, queue="idle", headers=()):
    """So many connections, each waiting for a message that does not come."""
    conns = [b.dial(source) for _ in range(count)]
    for c in conns:
        c.start("POST", f"/v1/queues/{queue}/receive?wait=60s", b"", headers)
    return conns


def waiting(b, count, headers=()):
    hx.until(lambda: b.call("GET", "/v1/stats", None, headers).json()["waiting"] >= count, f"{count} requests wait")


def once(b, source, method, path, body=None, headers=()):
    """A call over a connection of its own, which may be refused before it was heard; None then."""
    try:
        with hx.Conn(b.port, source=source) as c:
            return c.request(method, path, body, headers)
    except OSError:
        return None


def answered(b, source, method, path, body=None, headers=()):
    """The answer, once it is another one than 503: a client that was slow to speak is told to come again."""
    got = []

    def there():
        reply = once(b, source, method, path, body, headers)
        got.append(reply)
        return reply is not None and reply.status != 503
    hx.until(there, f"{method} {path} is answered")
    return got[-1]


def metric(b, reason, source, headers=()):
    text = answered(b, source, "GET", "/metrics", None, headers).body.decode()
    return int(re.search(rf'^hapax_refused_total{{reason="{reason}"}} (\d+)$', text, re.M).group(1))


# ---- connections

@test
def one_address_with_all_connections_keeps_nobody_out():
    with broker(CROWDED) as b:
        crowd = polls(b, THEM, PLACES - RESERVE)
        waiting(b, PLACES - RESERVE - 1)
        for n in range(30):
            c = b.dial(US)
            same(c.request("POST", "/v1/queues/q/messages", b"x", key(f"k{n}")).status, 202)
            c.start("POST", "/v1/queues/idle/receive?wait=60s", b"")  # and stays
        early = 0
        for c in crowd:
            c.sock.setblocking(False)
            try:
                early += c.more()
            except BlockingIOError:
                continue
            if not c.data:
                continue
            c.sock.settimeout(hx.TIMEOUT)
            reply = c.reply()  # what waited was answered as if its time were over
            same((reply.status, reply.json(), reply.header("Connection")), (200, {"messages": []}, "close"))
        assert early >= 28, early
        assert f"address={THEM}" in b.stderr() and "event=address_held_back" in b.stderr(), b.stderr()


@test
def an_address_that_begins_its_requests_anew_all_the_time_keeps_nobody_out():
    begun = {"head": b"GET /v1/sta", "body": b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 9\r\n\r\nx"}
    for what, data in begun.items():
        with broker(CROWDED) as b:
            for _ in range(PLACES):
                b.dial(THEM).sock.sendall(data)
            received = lambda: answered(b, THEM, "GET", "/v1/stats").json()["http"]["bytes_in"]
            hx.until(lambda: received() >= (PLACES - RESERVE) * len(data), "all places are taken")
            for n in range(10):
                same(b.dial(US).request("POST", "/v1/queues/q/messages", b"x", key(f"{what}{n}")).status, 202)


@test
def operators_are_answered_where_all_connections_are_taken():
    with broker(CROWDED) as b:
        polls(b, THEM, PLACES - RESERVE)
        hx.until(lambda: answered(b, THEM, "GET", "/v1/stats").json()["waiting"] == PLACES - RESERVE, "all places are taken")
        for path in ("/healthz", "/readyz", "/metrics", "/v1/stats", "/v1/queues", "/v1/alerts"):
            same(answered(b, THEM, "GET", path).status, 200, path)
        same(answered(b, THEM, "POST", "/v1/queues/idle/pause", b"").status, 200)
        for path in ("/v1/queues/q/messages", "/v1/queues/idle/receive?wait=1s"):
            with hx.Conn(b.port, source=THEM) as c:
                c.start("POST", path, b"", key("k"))
                reply = c.reply()
                problem(reply, 503, "overloaded")
                assert 1 <= int(reply.header("Retry-After")) <= 30
        assert metric(b, "connections", THEM) >= 2


@test
def with_tokens_the_last_places_are_for_operators_tokens():
    with broker(with_tokens(f"{{connections: {PLACES}}}")) as b:
        polls(b, THEM, PLACES - RESERVE, queue="q", headers=bearer("shop"))
        stats = lambda: answered(b, THEM, "GET", "/v1/stats", None, bearer("oncall")).json()["waiting"]
        hx.until(lambda: stats() == PLACES - RESERVE, "all places are taken")
        for headers in ([], bearer("shop"), [("Authorization", "Bearer hx_wrong")]):
            with hx.Conn(b.port, source=THEM) as c:
                c.start("GET", "/v1/stats", None, headers)
                problem(c.reply(), 503, "overloaded")
        same(answered(b, THEM, "POST", "/v1/queues/q/pause", b"", bearer("oncall")).status, 200)


@test
def a_place_is_found_again_when_the_crowd_has_gone():
    with broker(CROWDED) as b:
        crowd = polls(b, THEM, PLACES - RESERVE)
        hx.until(lambda: answered(b, THEM, "GET", "/v1/stats").json()["waiting"] == PLACES - RESERVE, "all places are taken")
        reply = once(b, THEM, "POST", "/v1/queues/q/messages", b"x", key("k"))
        assert reply is None or reply.status == 503, reply
        for c in crowd[:10]:
            c.close()
        same(answered(b, THEM, "POST", "/v1/queues/q/messages", b"x", key("k")).status, 202)


@test
def an_address_has_no_more_connections_than_it_may():
    with broker("auto_create: true\nlimits: {per_address: {connections: 5}}\n") as b:
        polls(b, THEM, 5)
        waiting(b, 5)
        with hx.Conn(b.port, source=THEM) as c:
            reply = c.reply()
            problem(reply, 429, "rate_limited")
            assert int(reply.header("Retry-After")) >= 1
        same(once(b, US, "GET", "/healthz").status, 200)
        same(metric(b, "address", US), 1)
        b.reload("auto_create: true\nlimits: {per_address: {connections: 6}}\n")
        same(once(b, THEM, "GET", "/healthz").status, 200)


@test
def slow_clients_do_not_keep_good_ones_from_being_answered():
    """What slowhttptest does, -H, -B and -X, from one address; `make slow` has the tool itself."""
    with broker("auto_create: true\nlimits: {connections: 300}\n") as b:
        b.put("large", "k", payload="x" * 500000)
        for n in range(300):
            c = b.dial(THEM)
            with contextlib.suppress(OSError):
                if n % 3 == 0:
                    c.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-a: ")
                elif n % 3 == 1:
                    c.write(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4096\r\n\r\nx")
                else:
                    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    c.write(b"GET /v1/queues/large/keys/k HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40)
        told = [answered(b, US, "POST", "/v1/queues/q/messages", b"x", key(f"k{n}")).status for n in range(200)]
        same(told, [202] * 200)
        same(answered(b, US, "GET", "/v1/queues/q").json()["counters"]["accepted"], 200)


@test
def replies_that_are_being_made_stay_within_the_memory_limit():
    """A few hundred bytes that name one key with a large result again and again, on many connections that read nothing."""
    hx.needs_plain("a sanitizer keeps freed memory, and has much of its own")
    limit, buffers = 200 << 20, 40 << 20
    with hx.Broker(options=["--memory", "200MiB"]) as b, contextlib.ExitStack() as held:
        def bytes_held():
            return b.get("/v1/stats").json()["metrics"]['hapax_memory_bytes{kind="buffers"}']

        def status(field):
            with open(f"/proc/{b.process.pid}/status") as f:
                return int(re.search(rf"^{field}:\s+(\d+) kB$", f.read(), re.M).group(1)) << 10
        b.put("q", "k")
        token = b.post("/v1/queues/q/receive").json()["messages"][0]["token"]
        same(b.post("/v1/ack", {"token": token, "result": "r" * 1000000}).status, 200)
        lines, crowd = b'{"key":"k","payload":"x"}\n' * 100, 40
        conns = [held.enter_context(hx.Conn(b.port, source=THEM)) for _ in range(crowd)]
        for c in conns:
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.start("POST", "/v1/queues/q/batch", lines)
        # each would be 17 MB: but for a few they cannot all be kept
        most = []
        hx.until(lambda: most.append(bytes_held()) or metric(b, "memory", US) >= crowd - buffers // (15 << 20) - 2, "most of them have paid")
        b.put("q", "small")
        assert max(most) < 2 * buffers, most  # in the middle of a turn; at its end it is below
        assert status("VmHWM") < limit, status("VmHWM")
        for c in conns:
            c.close()
        hx.until(lambda: bytes_held() == 0, "nothing is kept for those who are gone")
        hx.until(lambda: status("VmRSS") < limit // 2, "the memory is given back")


@test
def a_flood_of_wrong_tokens_takes_nothing_from_others():
    with broker(with_tokens("{per_token: {rate: 1000000/s}}")) as b:
        wrong = b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer hx_%d\r\nContent-Length: 0\r\n\r\n"
        silent = [b.dial(THEM) for _ in range(200)]  # they never say who they are
        floods = [b.dial(THEM) for _ in range(50)]
        for n in range(60):
            for c in floods:
                with contextlib.suppress(OSError):
                    c.write(wrong % n)
            reply = once(b, US, "POST", "/v1/queues/q/messages", b"x", key(f"k{n}") + bearer("shop"))
            same(reply.status, 202)
        for c in floods:
            problem(c.reply(), 401, "unauthorized")
        same(len(silent), 200)


# ---- rates

@test
def an_address_that_asks_too_often_is_told_when_to_come_back():
    with broker("auto_create: true\nlimits: {per_address: {rate: 4/s}}\n") as b:
        with hx.Conn(b.port, source=THEM) as c:
            told, n = [], 0
            while 429 not in told:
                reply = c.request("POST", "/v1/queues/q/messages", b"x", key(f"k{n}"))
                told.append(reply.status)
                n += 1
            assert told[:4] == [202] * 4, told
            problem(reply, 429, "rate_limited")
            assert reply.header("Connection") is None  # the connection stays
            same(c.request("GET", "/v1/stats").status, 200)  # operators have a rate of their own
            same({c.request("GET", path).status for path in ["/healthz", "/readyz"] * 50}, {200})
            same(once(b, US, "POST", "/v1/queues/q/messages", b"x", key("u")).status, 202)
            time.sleep(int(reply.header("Retry-After")))
            same(c.request("POST", "/v1/queues/q/messages", b"x", key(f"k{n - 1}")).status, 202)
        assert metric(b, "address", US) >= 1
        assert re.search(rf"event=address_held_back .*address={THEM} limit=rate most=4", b.stderr()), b.stderr()


@test
def a_token_that_asks_too_often_is_told_so_and_others_are_not():
    with broker(with_tokens("{per_token: {rate: 2/s}}")) as b:
        with hx.Conn(b.port, source=THEM) as c:
            told, n = [], 0
            while 429 not in told:
                n += 1
                told.append(once(b, US, "POST", "/v1/queues/q/messages", b"x", [("Authorization", "Bearer hx_guess")]).status)
                reply = c.request("POST", "/v1/queues/q/messages", b"x", key(f"k{n}") + bearer("shop"))
                told.append(reply.status)
            same(set(told), {401, 202, 429})  # who guesses uses up nobody's rate
            assert told.count(202) >= 2
            problem(reply, 429, "rate_limited")
            assert "shop" in reply.json()["detail"], reply
            same(c.request("POST", "/v1/queues/q/messages", b"x", key("c") + bearer("cart")).status, 202)
            time.sleep(int(reply.header("Retry-After")))
            same(c.request("POST", "/v1/queues/q/messages", b"x", key(f"k{n}") + bearer("shop")).status, 202)
        same(answered(b, US, "GET", "/v1/stats", None, bearer("oncall")).status, 200)
        assert re.search("event=token_held_back .*token=shop limit=rate most=2", b.stderr()), b.stderr()


# ---- waiting

@test
def a_token_has_no_more_requests_waiting_than_it_may():
    with broker(with_tokens("{per_token: {waiting: 2}}")) as b:
        first = polls(b, US, 2, queue="q", headers=bearer("shop"))
        waiting(b, 2, bearer("oncall"))
        with hx.Conn(b.port, source=US) as c:
            c.start("POST", "/v1/queues/q/receive?wait=20s", b"", bearer("shop"))
            reply = c.reply()
            problem(reply, 429, "rate_limited")
            assert 1 <= int(reply.header("Retry-After")) <= 60
            same(c.request("POST", "/v1/queues/q/receive", b"", bearer("shop")).status, 200)  # without waiting
        polls(b, US, 1, queue="q", headers=bearer("cart"))
        waiting(b, 3, bearer("oncall"))
        told = once(b, US, "POST", "/v1/queues/q/messages", b"x", key("a") + bearer("shop") + [("Prefer", "wait=30")])
        same(told.status, 202)  # taken, and not waited for: nobody said no to the message
        got = first[0].reply()
        same((got.status, len(got.json()["messages"])), (200, 1))
        second = polls(b, US, 1, queue="q", headers=bearer("shop"))
        waiting(b, 3, bearer("oncall"))
        b.reload(with_tokens("{per_token: {waiting: 3}}"))  # what waits is counted on
        polls(b, US, 1, queue="q", headers=bearer("shop"))
        waiting(b, 4, bearer("oncall"))
        problem(once(b, US, "POST", "/v1/queues/q/receive?wait=20s", b"", bearer("shop")), 429, "rate_limited")
        second[0].close()
        hx.until(lambda: once(b, US, "POST", "/v1/queues/q/receive?wait=1s", b"", bearer("shop")).status == 200,
                 "the place of one that left is another's")


@test
def an_address_has_no_more_requests_waiting_than_it_may():
    with broker("auto_create: true\nlimits: {per_address: {waiting: 3}}\n") as b:
        polls(b, THEM, 3)
        waiting(b, 3)
        problem(once(b, THEM, "POST", "/v1/queues/q/receive?wait=20s", b""), 429, "rate_limited")
        polls(b, US, 3)
        waiting(b, 6)


hx.main(threads=4 if os.environ.get("ASAN_OPTIONS") else 8, shared=False)
