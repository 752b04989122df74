#!/usr/bin/env python3
"""Targets: what is told of them, and how operators steer them. Every test has a broker of its own."""
import hashlib
import json

import hx
from hx import members, problem, same, test

CONFIG = """\
auto_create: true
queues:
  slots:
    key: "slot:${container}"
    downstream: {idempotency: key}
    deliver:
      url: "http://127.0.0.1:9/slots/${container}"
      secret_headers: {x-api-key: "${SLOTS_KEY}"}
      sign: {secrets: ["${SLOTS_SECRET}"]}
      rate: 2/s
      allow_private: true
    reconcile: {url: "http://127.0.0.1:9/slots?key=${hapax.effect_key}", found: [200], absent: [404]}
  pulled: {reconcile: {url: "http://127.0.0.1:9/?key=${hapax.key}", found: [200], absent: [404], allow_private: true}}
  plain: {}
"""
ENV = {"SLOTS_KEY": "open sesame", "SLOTS_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}


def broker(more="", **kw):
    return hx.Broker(config=CONFIG + more, env=ENV, **kw)


def target(b, queue="slots", headers=()):
    reply = b.call("GET", f"/v1/targets?queue={queue}", None, headers)
    same(reply.status, 200, reply)
    (item,) = reply.json()["items"]
    return item


def token(name, *allow):
    known = hashlib.sha256(f"hx_{name}".encode()).hexdigest()
    return f"  - {{name: {name}, sha256: [{known}], allow: {json.dumps(allow)}}}\n"


def bearer(name):
    return [("Authorization", f"Bearer hx_{name}")]


# ---- the list

@test
def queues_that_deliver_or_look_up_are_listed_and_no_others():
    with broker() as b:
        same([t["queue"] for t in b.get("/v1/targets").json()["items"]], ["slots", "pulled"])
        members(target(b), url="http://127.0.0.1:9/slots/${container}", method="POST", reconcile_url="http://127.0.0.1:9/slots?key=${hapax.effect_key}",
                state="closed", waiting=0, in_flight=0, concurrency=32, rate_per_min=120, lookups=0, latency={"count": 0},
                requests={"done": 0, "transient": 0, "rejected": 0, "poison": 0, "unknown": 0})
        assert "url" not in target(b, "pulled")
        problem(b.get("/v1/targets?queue=plain"), 404, "no_such_target")
        problem(b.get("/v1/targets?queue=nothing"), 404, "no_such_queue")


@test
def the_list_comes_in_pages():
    many = "".join(f'  q{i:03}: {{deliver: {{url: "https://example.com/{i}"}}}}\n' for i in range(150))
    with broker(many) as b:
        names, cursor = [], ""
        while cursor is not None:
            page = b.get(f"/v1/targets?limit=40{cursor and '&cursor=' + cursor}").json()
            assert len(page["items"]) <= 40
            names += [t["queue"] for t in page["items"]]
            cursor = page["next_cursor"]
        same(sorted(names), sorted(["slots", "pulled"] + [f"q{i:03}" for i in range(150)]))


@test
def secrets_are_nowhere_in_what_is_told_of_a_target():
    with broker() as b:
        told = b.get("/v1/targets").body + b.get("/metrics").body + b.get("/v1/queues/slots").body
        for secret in ENV.values():
            assert secret.encode() not in told, secret


@test
def who_sees_and_steers_targets_is_asked_per_queue():
    more = "tokens:\n" + token("eye", "observe:slots") + token("hand", "operate:slots") + token("other", "operate:pulled", "observe:pulled")
    with broker(more) as b:
        same([t["queue"] for t in b.call("GET", "/v1/targets", None, bearer("eye")).json()["items"]], ["slots"])
        same(target(b, headers=bearer("eye"))["may"], ["observe"])
        assert "operate" in target(b, headers=bearer("hand"))["may"]
        problem(b.call("GET", "/v1/targets?queue=slots", None, bearer("other")), 404, "no_such_queue")
        for deed in ("pause", "resume"):
            problem(b.call("POST", f"/v1/targets/slots/{deed}", None, bearer("eye")), 403, "forbidden")
            problem(b.call("POST", f"/v1/targets/slots/{deed}", None, bearer("other")), 404, "no_such_queue")
            same(b.call("POST", f"/v1/targets/slots/{deed}", None, bearer("hand")).status, 200)


# ---- pause and resume

@test
def a_pause_says_who_and_why_and_stays_over_restarts_and_reloads_until_it_is_ended():
    with broker() as b:
        paused = b.post("/v1/targets/slots/pause", {"by": "ann", "note": "the terminal asked us to"}).json()
        members(paused, queue="slots", state="paused")
        assert "ann: the terminal asked us to" in paused["why"] and paused["since"], paused
        same(target(b, "pulled")["state"], "closed")
        b.reload(CONFIG.replace("2/s", "3/s"))
        members(target(b), state="paused", since=paused["since"], rate_per_min=180)
        b.restart()
        same(target(b)["state"], "paused")
        members(b.post("/v1/targets/slots/resume", {"by": "bob", "note": "they are back"}).json(), state="closed")
        b.restart()
        same(target(b)["state"], "closed")
        for who, what, why in (("bob", "push_resume", "they are back"), ("ann", "push_pause", "the terminal asked us to")):
            (entry,) = b.get(f"/v1/audit?queue=slots&what={what}").json()["items"]
            members(entry, who=who, why=why)


@test
def pausing_twice_is_pausing_once():
    with broker() as b:
        first = b.post("/v1/targets/slots/pause", {"by": "ann"}).json()
        again = b.post("/v1/targets/slots/pause", {"by": "bob"}).json()
        same((again["since"], again["why"]), (first["since"], first["why"]))
        same(len(b.get("/v1/audit?queue=slots&what=push_pause").json()["items"]), 1)


@test
def a_queue_that_delivers_nowhere_has_nothing_to_pause():
    with broker() as b:
        problem(b.post("/v1/targets/plain/pause"), 404, "no_such_target")
        problem(b.post("/v1/targets/nothing/pause"), 404, "no_such_queue")


@test
def a_target_comes_and_goes_with_the_rules():
    with hx.Broker() as b:
        same(b.get("/v1/targets").json()["items"], [])
        b.rules("q", deliver={"url": "https://example.com/a"})
        same(target(b, "q")["url"], "https://example.com/a")
        b.rules("q", deliver={"url": "https://example.com/b", "concurrency": 2})
        members(target(b, "q"), url="https://example.com/b", concurrency=2)
        b.rules("q")
        same(b.get("/v1/targets").json()["items"], [])
        b.rules("q", deliver={"url": "https://example.com/a"})
        same(b.call("DELETE", "/v1/queues/q").status, 204)
        same(b.get("/v1/targets").json()["items"], [])


hx.main(shared=False)
