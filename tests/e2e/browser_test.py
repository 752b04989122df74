#!/usr/bin/env python3
"""What a web page of another origin may make its visitor's browser send: nothing of it is applied, nothing is told, on every
route. What is no browser goes on as ever. (RELIABILITY.md S12; tests/web has the same with a real browser.)"""
import itertools
import os
import re

import hx
from hx import members, same, test

HOST = {"own": lambda b: f"127.0.0.1:{b.port}", "name": lambda b: f"localhost:{b.port}", "forwarded": lambda b: "localhost:8080",
        "rebound": lambda b: f"evil.example:{b.port}", "lookalike": lambda b: "127.0.0.1.evil.example"}
ORIGIN = {"none": lambda host: None, "own": lambda host: "http://" + host, "other": lambda host: "http://evil.example",
          "null": lambda host: "null", "port": lambda host: "http://localhost:3000"}
SITE = [None, "none", "same-origin", "same-site", "cross-site"]


def verdict(host, origin, site):
    if host in ("rebound", "lookalike"):
        return 421
    if origin not in ("none", "own") or site == "cross-site" or (site == "same-site" and origin != "own"):
        return 403
    return None


def routes():
    """Every route there is, with names in the place of its arguments."""
    table = open(os.path.join(hx.ROOT, "src/broker/route.def")).read()
    for method, path in re.findall(r'ROUTE\(HTTP_(\w+), "([^"]*)"', table):
        words = iter(["q", "k"])
        yield method, "/" + re.sub(r"\*", lambda _: next(words), path)


def ask(c, b, method, path, host, origin, site, body=b"", more=()):
    name = HOST[host](b)
    fields = [f"Host: {name}", *more]
    if ORIGIN[origin](name):
        fields.append(f"Origin: {ORIGIN[origin](name)}")
    if site:
        fields.append(f"Sec-Fetch-Site: {site}")
    if body:
        fields.append(f"Content-Length: {len(body)}")
    c.write("\r\n".join([f"{method} {path} HTTP/1.1", *fields]).encode() + b"\r\n\r\n" + body)
    return c.reply(to_head=method == "HEAD")


def seen(b):
    """All there is to change."""
    queues = b.get("/v1/queues").json()["items"]
    for q in queues:
        del q["oldest_ready_ms"]
    return queues, b.get("/v1/audit").json()["items"], b.get("/v1/tasks").json()["items"]


def refused(reply, status, what):
    assert reply.status == status, f"{what}: {reply}"
    members(reply.json(), code={421: "misdirected", 403: "foreign_origin"}[status], applied="no", retryable=False)
    cors = [n for n, _ in reply.headers if n.lower().startswith("access-control")]
    same(cors, [], what)


@test
def whatever_the_route_a_foreign_page_gets_nothing_done():
    with hx.Broker() as b:
        b.send("q", "k", "secret-payload")
        before = seen(b)
        foreign = [("own", "other", None), ("own", "none", "cross-site"), ("name", "null", None), ("rebound", "own", "same-origin"),
                   ("own", "port", "same-site")]
        with b.connect() as c:
            for (method, path), (host, origin, site) in itertools.product(routes(), foreign):
                reply = ask(c, b, method, path, host, origin, site)
                refused(reply, verdict(host, origin, site), (method, path, host, origin, site))
                assert b"secret" not in reply.body
        same(seen(b), before)


@test
def host_origin_and_site_decide_together():
    with hx.Broker() as b:
        b.send("q", "k0", "x")
        count = 1
        for host, origin, site in itertools.product(HOST, ORIGIN, SITE):
            what, want = (host, origin, site), verdict(host, origin, site)
            with b.connect() as c:
                reads = ask(c, b, "GET", "/v1/queues/q", host, origin, site)
                sends = ask(c, b, "POST", "/v1/queues/q/messages", host, origin, site, b"x", [f"Idempotency-Key: {count}"])
                if want:
                    refused(reads, want, what)
                    refused(sends, want, what)
                else:
                    count += 1
                    same((reads.status, sends.status), (200, 202), what)
        same(b.queue("q")["ready"], count)


@test
def a_form_of_another_site_posts_into_nothing():
    types = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
    with hx.Broker() as b:
        b.send("q", "k", "x")
        before = seen(b)
        for kind, path in itertools.product(types, ["messages", "purge", "pause", "receive", "batch"]):
            with b.connect() as c:
                reply = ask(c, b, "POST", f"/v1/queues/q/{path}", "own", "other", None, b"{}", [f"Content-Type: {kind}"])
                refused(reply, 403, (kind, path))
        same(seen(b), before)


@test
def a_preflight_is_not_granted():
    with hx.Broker() as b, b.connect() as c:
        for origin, status in (("other", 403), ("null", 403), ("own", 405)):
            reply = ask(c, b, "OPTIONS", "/v1/queues/q/purge", "own", origin, None, more=["Access-Control-Request-Method: POST"])
            same(reply.status, status)
            assert not any(n.lower().startswith("access-control") for n, _ in reply.headers), reply.headers


@test
def the_body_of_a_refused_request_is_not_waited_for():
    with hx.Broker() as b, b.connect() as c:
        c.write(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: evil.example\r\nIdempotency-Key: k\r\nContent-Length: 1000000\r\n\r\n")
        reply = c.reply()
        refused(reply, 421, "a long body")
        same(reply.header("Connection"), "close")
        same(c.rest(), b"")


@test
def a_refused_request_without_a_body_keeps_the_connection():
    with hx.Broker() as b, b.connect() as c:
        for _ in range(3):
            refused(ask(c, b, "GET", "/v1/queues", "rebound", "none", None), 421, "GET")
            same(ask(c, b, "GET", "/v1/queues", "own", "none", None).status, 200)


@test
def a_doubt_about_the_framing_comes_first():
    with hx.Broker() as b, b.connect() as c:
        c.write(b"POST /v1/ack HTTP/1.1\r\nHost: evil.example\r\nOrigin: null\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n")
        same(c.reply().status, 400)


@test
def hosts_of_the_file_are_known_and_follow_a_reload():
    with hx.Broker(config="auto_create: true\nhosts: [queue.example.com]\n") as b:
        def status(name):
            with b.connect() as c:
                c.write(f"GET /v1/queues HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
                return c.reply().status
        same([status(n) for n in ("queue.example.com", "Queue.Example.COM:443", "localhost", "evil.example")], [200, 200, 200, 421])
        said = b.reload("auto_create: true\nhosts: [other.example.com]\n")
        assert "hosts: [" in said and "other.example.com" in said, said
        same([status(n) for n in ("other.example.com", "queue.example.com")], [200, 421])


@test
def on_every_address_numeric_hosts_are_known_and_names_are_not():
    with hx.Broker(options=["--listen", "0.0.0.0:0", "--insecure-listen"], start=False) as b:
        b.spawn()
        line = b.process.stdout.readline().decode()
        b.port = int(re.fullmatch(r"hapaxd ready on http://0\.0\.0\.0:(\d+)\n", line)[1])
        with b.connect() as c:
            for name, status in (("10.1.2.3:4279", 200), ("[2001:db8::1]", 200), ("localhost", 200), ("evil.example", 421), ("hapax", 421)):
                c.write(f"GET /v1/queues HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
                same(c.reply().status, status, name)


hx.main()
