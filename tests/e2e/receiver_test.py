#!/usr/bin/env python3
"""The hostile receiver itself: a suite that trusts it must know that it does what it is told."""
import contextlib
import itertools
import socket

import hx
from hx import Conn, Lost, same, test
from receiver import CLOSE, HANG, RESET, Answer, Effects, Receiver, chunked, informational, refused_port, silent_port


def call(r, method="POST", path="/book", body=b'{"a":1}', key="k1", conn=None):
    conn = conn or Conn(r.port)
    conn.start(method, path, body, [("Idempotency-Key", key), ("webhook-id", "m1")])
    return conn


@test
def it_answers_in_the_order_of_its_script_and_counts_what_was_done():
    with Receiver(Answer(503), Answer(200, "fine", [("X-A", "1")])) as r:
        with call(r) as c:
            same(c.reply().status, 503)
            reply = call(r, conn=c).reply()
            same((reply.status, reply.body, reply.header("X-A")), (200, b"fine", "1"))
            same(call(r, key='"k 2"', conn=c).reply().json(), {"id": "e2"})
        first, second, third = (r.next() for _ in range(3))
        same((first.key, first.id, first.body, first.nth, second.nth, first.connection == second.connection), ("k1", "m1", b'{"a":1}', 1, 2, True))
        same((r.effects, third.key, r.quiet()), ({"k1": 1, "k 2": 1}, "k 2", True))


@test
def a_key_has_a_second_effect_only_where_nobody_dedupes():
    for dedupes, times in ((True, 1), (False, 2)):
        with Receiver(dedupes=dedupes) as r, call(r) as c:
            told = c.reply().body, call(r, conn=c).reply().body
            same((r.effects, told[0] == told[1]), ({"k1": times}, True))


@test
def the_look_up_knows_what_was_done_even_behind_another_receiver():
    table = Effects()
    with Receiver(effects=table) as r, Conn(r.port) as c:
        same(c.request("GET", "/slots?key=k1").status, 404)
        same(call(r, conn=c).reply().status, 200)
        same(call(r, key="k%2", conn=c).reply().status, 200)
    with Receiver(effects=table) as r, Conn(r.port) as c:
        same(c.request("GET", "/slots?key=k1").json(), {"items": [{"id": "e1", "key": "k1"}]})
        same(c.request("GET", "/slots?key=k%252").json()["items"][0]["id"], "e2")
        r.lookups.append(Answer(500))
        same((c.request("GET", "/slots?key=k1").status, len(r.asked), r.quiet()), (500, 3, True))


def rest_of(c):
    """What came, and how it ended."""
    end = CLOSE
    try:
        while c.more():
            pass
    except ConnectionResetError:
        end = RESET
    return c.take(len(c.data)), end


@test
def it_breaks_off_before_in_and_after_its_reply():
    whole = Answer(200, "0123456789").bytes(None)
    for at, then in itertools.product((0, 1, len(whole) - 1, len(whole)), (CLOSE, RESET)):
        with Receiver(Answer(200, "0123456789", at=at, then=then)) as r, call(r) as c:
            same(rest_of(c), (whole[:at], then), f"{then} at {at}")
            same(r.effects, {"k1": 1})
    with Receiver(Answer(200, "0123456789", then=RESET, effect=False)) as r, call(r) as c:
        same((rest_of(c), r.effects), ((whole, RESET), {}))


@test
def it_hangs_until_the_peer_has_gone():
    with Receiver(Answer(200, "0123456789", at=20, then=HANG), Answer(read=3, then=HANG), narrow=True) as r:
        c = call(r)
        first = r.next()
        same(len(c.take(20)), 20)
        assert first.answered.wait(hx.TIMEOUT) and not first.gone.is_set()
        c.close()
        assert first.gone.wait(hx.TIMEOUT)
        with Conn(r.port) as c:
            c.sock.settimeout(0.2)  # the buffers of both systems are full long before
            with contextlib.suppress(TimeoutError):
                call(r, body=b"x" * (8 << 20), conn=c)
                raise AssertionError("it read what it should not")
            same((r.next().line, r.quiet()), ("POS", True))


@test
def it_closes_when_it_has_read_a_part_of_the_request():
    for read in (0, 1, 40, 100):
        for then in (CLOSE, RESET):
            with Receiver(Answer(read=read, then=then)) as r, Conn(r.port) as c:
                with contextlib.suppress(ConnectionError):
                    call(r, body=b"x" * 100000, conn=c)
                same(rest_of(c)[0], b"")
                same((r.next().whole, r.effects), (False, {}))
                same(call(r).reply().status, 200, "only the first")


@test
def it_lies_about_lengths_and_says_things_nobody_asked_for():
    with Receiver(Answer(200, "abc", length=100, then=CLOSE), Answer(200, "abcdef", length=2), Answer(200, "abc", length=False, then=CLOSE),
                  Answer(200, "x", before=informational(1000)), Answer(raw=b"\x00\xff garbage\r\n", then=CLOSE),
                  Answer(raw=chunked(b"abc", b"de", last=b""), then=RESET), Answer(raw=lambda: itertools.repeat(b"HTTP/1.1 100 Wait\r\n\r\n")),
                  Answer(302, headers=[("Location", "http://127.0.0.1:1/")]), Answer(200, "slow", drip=0.001)) as r:
        with call(r) as c:
            same(c.head()[1][0], ("Content-Length", "100"))
            same(rest_of(c), (b"abc", CLOSE))
        with call(r) as c:
            same((c.reply().body, c.take(4)), (b"ab", b"cdef"))
        with call(r) as c:
            assert b"Content-Length" not in rest_of(c)[0]
        with call(r) as c:
            same([c.reply().status for _ in range(1001)], [103] * 1000 + [200])
        with call(r) as c:
            same(rest_of(c), (b"\x00\xff garbage\r\n", CLOSE))
        with call(r) as c:
            same(rest_of(c), (b"HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n", RESET))
        with call(r) as c:
            c.take(1 << 20)
        with call(r) as c:
            same(c.reply().header("Location"), "http://127.0.0.1:1/")
        with call(r) as c:
            same(c.reply().body, b"slow")


@test
def a_test_can_stand_between_the_request_the_effect_and_the_reply():
    order = []
    hooks = {name: (lambda request, name=name: order.append((name, r.effects.get(request.key)))) for name in ("seen", "acted", "said")}
    with Receiver(Answer(**hooks)) as r, call(r) as c:
        same(c.reply().status, 200)
        r.next().answered.wait(hx.TIMEOUT)
        hx.until(lambda: len(order) == 3, "all are called")
        same(order, [("seen", None), ("acted", 1), ("said", 1)])


@test
def who_has_closed_refuses_and_so_does_a_port_where_nobody_listens_but_a_silent_one_says_nothing():
    with Receiver() as r, call(r) as c:
        same(c.reply().status, 200)
    with refused_port() as port:
        for where in (r.port, port):
            try:
                socket.create_connection(("127.0.0.1", where), timeout=hx.TIMEOUT).close()
                raise AssertionError("somebody listens")
            except ConnectionRefusedError:
                pass
    with silent_port() as port:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.3).close()
            raise AssertionError("somebody takes it")
        except TimeoutError:
            pass
    try:
        c.request("GET", "/")
        raise AssertionError("the connection lives")
    except (Lost, OSError):
        pass


hx.main(shared=False)
