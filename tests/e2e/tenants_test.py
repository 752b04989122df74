#!/usr/bin/env python3
"""Tenants: each has the queues under its prefix, and what these may take together is bounded, whoever sends. Every test has a
broker of its own."""
import hashlib
import json
import signal
import socket
import time

import hx
from hx import members, problem, problem_members, same, test

MIB = 1 << 20


def config(limits="", others="", shop="shop."):
    return f"""\
auto_create: true
tenants:
  shop: {{prefix: "{shop}", limits: {{{limits}}}}}
  mill: {{prefix: "mill."}}
{others}"""


def use(broker, tenant="shop", headers=()):
    reply = broker.call("GET", "/v1/stats", None, headers)
    same(reply.status, 200)
    return next(t for t in reply.json()["tenants"] if t["name"] == tenant)


def used(broker, limit):
    return use(broker)[limit]["used"]


def over(reply, limit):
    """Refused for this limit. Its problem."""
    p = problem(reply, 429, "quota")
    members(p, limit=limit, retryable=True)
    assert f"limits.{limit}" in p["detail"] and "shop" in p["detail"], p
    assert int(reply.header("Retry-After")) >= 1, reply.headers
    return p


def journal_end(broker):
    return broker.get("/v1/stats").json()["journal"]["tail"]


# ---- pending

@test
def queues_of_a_tenant_share_its_pending_messages_and_a_duplicate_is_answered_all_the_same():
    with hx.Broker(config=config("pending: 3")) as b:
        b.put("shop.a", "k1", "k2")
        b.put("shop.b", "k1")
        over(b.send("shop.b", "k2"), "pending")
        over(b.send("shop.c", "k1"), "pending")
        members(b.send("shop.a", "k1").json(), outcome="duplicate")
        problem(b.send("shop.a", "k1", "another payload"), 422, "key_reused")
        b.put("mill.a", "k1", "k2", "k3", "k4")
        b.put("elsewhere", "k1")
        b.restart()
        over(b.send("shop.b", "k2"), "pending")
        same(used(b, "pending"), 3)
        b.ok("ack", b.one("shop.a"))
        b.put("shop.b", "k2")
        over(b.send("shop.a", "k3"), "pending")


@test
def lines_over_the_quota_are_refused_one_by_one_and_nothing_of_them_is_written():
    with hx.Broker(config=config("pending: 3")) as b:
        b.put("shop.a", "k0")
        lines = b.batch("shop.a", [{"key": f"k{i}", "payload": "x"} for i in range(6)]).lines()
        same([line["status"] for line in lines], [202, 202, 202, 429, 429, 429])
        same(lines[0]["outcome"], "duplicate")
        for line in lines[3:]:
            problem_members(line, 429, "quota")
        end = journal_end(b)
        for _ in range(50):
            over(b.send("shop.a", "other"), "pending")
        same(journal_end(b), end)
        members(use(b)["pending"], used=3, limit=3, refused=53)


@test
def a_send_that_is_refused_for_a_limit_makes_no_queue():
    for limit, name in (("pending: 1", "pending"), ("bytes: 4KiB", "bytes"), ("rate: 1/s", "rate")):
        with hx.Broker(config=config(limit)) as b:
            b.put("shop.a", "k1", payload=b"x" * 1000)
            replies = [b.send(f"shop.b{i}", "k1", b"x" * 4000) for i in range(5)]
            refused = [r for r in replies if r.status != 202]  # of the rate: those of the first second
            for reply in refused:
                over(reply, name)
            if name == "pending":
                over(b.batch("shop.c", [{"key": "k1", "payload": "x"}]), name)
            if name != "rate":
                same(len(refused), 5)
            same(used(b, "queues"), 1 + 5 - len(refused))
            same(len(b.get("/v1/queues").json()["items"]), 1 + 5 - len(refused))


@test
def purging_and_cancelling_give_the_quota_back():
    with hx.Broker(config=config("pending: 2")) as b:
        b.put("shop.a", "k1")
        id = b.put("shop.a", "k2")
        over(b.send("shop.a", "k3"), "pending")
        same(b.post(f"/v1/queues/shop.a/messages/{id}/cancel").status, 200)
        b.put("shop.a", "k3")
        same(b.post("/v1/queues/shop.a/purge").status, 200)
        same(used(b, "pending"), 0)
        b.put("shop.a", "k4", "k5")


@test
def operators_redrive_and_replay_over_the_quota():
    with hx.Broker(config=config("pending: 2") + "queues: {shop.a: {keep_payload: 1h, schema: {required: [n]}}}\n") as b:
        problem(b.event("shop.a", {"wrong": 1}, "refused"), 422, "schema")
        same(used(b, "pending"), 0)
        b.event("shop.a", {"n": 1}, "k1")
        b.ok("ack", b.one("shop.a"))
        b.event("shop.a", {"n": 2}, "k2")
        b.fail("shop.a", "poison")
        b.event("shop.a", {"n": 3}, "k3")
        over(b.event("shop.a", {"n": 4}, "k4"), "pending")
        same(b.post("/v1/queues/shop.a/keys/k1/replay").status, 202)
        same(used(b, "pending"), 3)
        members(b.post("/v1/queues/shop.a/redrive", {"class": "poison"}).json(), redriven=1)
        over(b.event("shop.a", {"n": 4}, "k4"), "pending")


@test
def a_copy_of_what_failed_the_schema_comes_in_over_the_quota_when_an_operator_redrives_it():
    rules = "queues: {shop.a: {key: 'n:${n}', schema: {required: [n]}}}\n"
    with hx.Broker(config=config("pending: 1") + rules) as b:
        problem(b.event("shop.a", {"m": 7}), 422, "schema")
        b.reload(config("pending: 1") + rules.replace("n:${n}", "m:${m}").replace("[n]", "[m]"))
        same(b.event("shop.a", {"m": 1}).status, 202)
        over(b.event("shop.a", {"m": 2}), "pending")
        members(b.post("/v1/queues/shop.a/redrive", {"class": "refused"}).json(), redriven=1)
        same(used(b, "pending"), 2)
        same({b.one("shop.a")["key"] for _ in range(2)}, {"m:1", "m:7"})


# ---- bytes

@test
def bytes_are_those_of_messages_and_of_the_keys_that_are_remembered():
    with hx.Broker(config=config("bytes: 1MiB") + "queues: {shop.a: {window: 1s}, shop.b: {}}\n") as b:
        b.put("shop.a", "k1", payload=b"x" * (600 << 10))
        over(b.send("shop.b", "k2", b"x" * (600 << 10)), "bytes")
        b.put("shop.b", "small")
        assert 600 << 10 <= used(b, "bytes") < 602 << 10, use(b)
        b.ok("ack", b.one("shop.a"), result="y" * (700 << 10))
        over(b.send("shop.b", "k2", b"x" * (600 << 10)), "bytes")
        b.restart()
        hx.until(lambda: used(b, "bytes") < 4096, "the key is forgotten, and its result with it")
        b.put("shop.b", "k2", payload=b"x" * (600 << 10))


# ---- rate

@test
def a_second_has_so_many_sends_duplicates_and_lines_of_a_batch_among_them():
    with hx.Broker(config=config("rate: 10/s")) as b:
        b.put("mill.a", "warm")
        began = time.monotonic()
        lines = b.batch("shop.a", [{"key": "same", "payload": "x"}] * 200).lines()
        seconds = time.monotonic() - began
        statuses = [line["status"] for line in lines]
        taken = statuses.count(202)
        assert 10 <= taken <= 10 + 10 * seconds + 1, (taken, seconds)
        same(statuses.count(429), 200 - taken)
        for line in lines:
            if line["status"] == 429:
                members(problem_members(line, 429, "quota"), limit="rate")
        same(b.batch("mill.a", [{"key": f"k{i}", "payload": "x"} for i in range(200)]).lines()[-1]["status"], 202)


@test
def who_comes_back_when_told_to_is_not_refused_for_the_same_reason():
    with hx.Broker(config=config("rate: 1/s")) as b:
        for i in range(30):
            reply = b.send("shop.a", f"k{i}")
            if reply.status == 429:
                break
        over(reply, "rate")
        time.sleep(int(reply.header("Retry-After")))
        same(b.send("shop.a", "later").status, 202)


@test
def what_is_left_of_a_second_outlives_a_reload():
    with hx.Broker(config=config("rate: 10/s")) as b:
        began = time.monotonic()
        taken = 0
        for n in range(10):
            lines = b.batch("shop.a", [{"key": f"{n}.{i}", "payload": "x"} for i in range(50)]).lines()
            taken += sum(line["status"] == 202 for line in lines)
            b.reload(config("rate: 10/s", f"audit_keep: {n + 1}d\n"))
        seconds = time.monotonic() - began
        assert taken <= 10 + 10 * seconds + 1, f"{taken} in {seconds} s"


@test
def metrics_say_how_near_a_tenant_is_to_its_limits():
    with hx.Broker(config=config("pending: 2, rate: 1000/s")) as b:
        b.put("shop.a", "k1", "k2")
        over(b.send("shop.a", "k3"), "pending")
        text = b.get("/metrics").body.decode()
        for line in ('hapax_tenant_used{tenant="shop",limit="pending"} 2', 'hapax_tenant_limit{tenant="shop",limit="pending"} 2',
                     'hapax_tenant_limit{tenant="shop",limit="rate"} 1000', 'hapax_tenant_refused_total{tenant="shop",limit="pending"} 1',
                     'hapax_tenant_used{tenant="mill",limit="queues"} 0'):
            assert line + "\n" in text, (line, [at for at in text.splitlines() if "tenant" in at])


# ---- queues

@test
def queues_are_counted_however_they_are_made_until_they_are_deleted():
    with hx.Broker(config=config("queues: 3") + "queues: {shop.declared: {}}\n") as b:
        b.put("shop.sent", "k")
        b.rules("shop.put")
        over(b.send("shop.more", "k"), "queues")
        over(b.call("PUT", "/v1/queues/shop.more", b"{}"), "queues")
        over(b.post("/v1/queues/shop.more/pause"), "queues")
        over(b.batch("shop.more", [{"key": "k", "payload": "x"}]), "queues")
        problem(b.get("/v1/queues/shop.more"), 404, "no_such_queue")
        b.rules("shop.put", lease="10s")
        b.rules("mill.more")
        b.restart()
        over(b.send("shop.more", "k"), "queues")
        same(b.call("DELETE", "/v1/queues/shop.put").status, 204)
        same(used(b, "queues"), 2)
        b.put("shop.more", "k")
        over(b.send("shop.another", "k"), "queues")


# ---- reloads

@test
def a_reload_counts_what_is_there_and_changes_what_may_be():
    with hx.Broker(config="auto_create: true\n") as b:
        b.put("shop.a", "k1", "k2")
        b.put("shop.b", "k1")
        assert "tenants" not in b.get("/v1/stats").json()
        said = b.reload(config("pending: 3"))
        assert "tenant shop: added" in said, said
        over(b.send("shop.a", "k3"), "pending")
        said = b.reload(config("pending: 5"))
        assert "tenant shop: limits.pending: 3 -> 5" in said, said
        b.put("shop.a", "k3", "k4")
        over(b.send("shop.a", "k5"), "pending")
        b.reload(config("pending: 4"))
        same(used(b, "pending"), 5)
        over(b.send("shop.a", "k5"), "pending")
        b.reload(config("pending: 3", shop="shop.a"))
        same(used(b, "pending"), 4)
        b.put("shop.b", "k5")
        said = b.reload("auto_create: true\n")
        assert "tenant shop: removed" in said, said
        b.put("shop.a", "k5")
        b.ok("ack", b.one("shop.a"))
        b.reload(config("pending: 6"))
        members(use(b), **{"prefix": "shop.", "queues": {"used": 2, "limit": None, "refused": 0}})
        same(used(b, "pending"), 6)
        over(b.send("shop.a", "k6"), "pending")


@test
def prefixes_that_overlap_are_refused_and_the_old_ones_stay():
    with hx.Broker(config=config("pending: 1")) as b:
        said = b.reload(config("pending: 2") + "  eu: {prefix: shop.eu.}\n")
        assert "reload refused" in said and "overlaps with the prefix" in said, said
        b.put("shop.a", "k1")
        over(b.send("shop.eu.a", "k1"), "pending")


# ---- whose they are

def token(name, allow, tenant=None):
    text = "hx_" + name * 8
    line = f"  - {{name: {name}, sha256: ['{hashlib.sha256(text.encode()).hexdigest()}'], allow: {json.dumps(allow)}"
    return line + (f", tenant: {tenant}" if tenant else "") + "}\n", [("Authorization", f"Bearer {text}")]


@test
def a_tenants_token_means_nothing_beyond_its_prefix_and_its_limits_hold_for_others_too():
    shop, as_shop = token("shop", ["admin"], "shop")
    root, as_root = token("root", ["admin"])
    with hx.Broker(config=config("pending: 2, queues: 1") + "tokens:\n" + shop + root) as b:
        same(b.send("shop.a", "k1", headers=as_shop).status, 202)
        same(b.send("mill.a", "k1", headers=as_root).status, 202)
        problem(b.send("mill.a", "k2", headers=as_shop), 404, "no_such_queue")
        problem(b.send("unmade", "k2", headers=as_shop), 404, "no_such_queue")
        problem(b.send("shop", "k2", headers=as_shop), 404, "no_such_queue")
        problem(b.call("GET", "/v1/queues/mill.a", None, as_shop), 404, "no_such_queue")
        same([q["name"] for q in b.call("GET", "/v1/queues", None, as_shop).json()["items"]], ["shop.a"])
        found = b.call("GET", "/v1/find?key=k1", None, as_shop).json()["items"]
        same({item["queue"] for item in found}, {"shop.a"})
        same(b.call("GET", "/v1/queues/mill.a/keys/k1", None, as_shop).status, 404)
        same(b.send("shop.a", "k2", headers=as_root).status, 202)
        over(b.send("shop.a", "k3", headers=as_root), "pending")
        over(b.send("shop.b", "k1", headers=as_root), "queues")
        over(b.send("shop.a", "k3", headers=as_shop), "pending")
        members(use(b, headers=as_root)["pending"], used=2, limit=2, refused=2)
        own = b.call("GET", "/v1/stats", None, as_shop).json()
        same([t["name"] for t in own.pop("tenants")], ["shop"])
        same(own, {})


# ---- one does not slow another

@test
def a_tenant_at_its_rate_does_not_keep_another_waiting():
    """What a flood of sends over the limit brings in is taken a share at a time. The broker is stopped until all of it is
    there, and the other's send comes last: how much of the flood was worked off before it is counted, not timed."""
    with hx.Broker(config=config("rate: 1/s")) as b:
        b.put("shop.a", "first")
        b.put("mill.a", "first")
        request = b"POST /v1/queues/shop.a/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx"
        flood = [socket.create_connection(("127.0.0.1", b.port), source_address=("127.0.0.2", 0)) for _ in range(4)]
        other = b.connect()
        same(other.request("GET", "/healthz").status, 200)
        b.signal(signal.SIGSTOP)
        sent = 0
        for sock in flood:
            sock.setblocking(False)
            try:
                while sent < 400000:
                    sent += sock.send(request * 1000) // len(request)
            except BlockingIOError:
                pass
        other.start("POST", "/v1/queues/mill.a/messages", b"x", [("Idempotency-Key", "second")])
        other.start("GET", "/v1/stats")
        b.signal(signal.SIGCONT)
        same(other.reply().status, 202)
        before = next(t for t in other.reply().json()["tenants"] if t["name"] == "shop")["rate"]["refused"]
        assert sent > 10000 and before < sent / 2, f"{before} of {sent} came first"
        for sock in flood:
            sock.close()
        other.close()


hx.main(shared=False, threads=6)
