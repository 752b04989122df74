#!/usr/bin/env python3
"""Targets: what is told of them, and how operators steer them. Every test has a broker of its own."""
import hashlib
import json
import re
import threading

import hx
from hx import hapax, members, problem, same, test, until
from receiver import CLOSE, HANG, Answer, Receiver, refused_port

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
        for deed in ("pause", "resume", "test"):
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
def the_story_of_a_key_says_that_its_target_keeps_it_waiting():
    with hx.Broker() as b, refused_port() as nobody:
        b.rules("q", **at(f"http://127.0.0.1:{nobody}", circuit={"of": 1, "open": "5m"}))
        b.put("q", "k1")
        stands(b, "open")
        b.put("q", "k2")
        why = b.get("/v1/queues/q/keys/k2").json()["why"]
        assert "it waits to be delivered, and its target is down" in why, why
        b.post("/v1/targets/q/pause")
        why = b.get("/v1/queues/q/keys/k2").json()["why"]
        assert "it waits to be delivered, and its target is paused" in why, why


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


# ---- the circuit

def at(url, **deliver):
    return {"deliver": {"url": f"{url}/book?now=yes", "headers": {"x-trace": "t"}, "allow_private": True, **deliver}}


def stands(b, state, queue="q"):
    return until(lambda: next((t for t in [target(b, queue)] if t["state"] == state), None), f"the target is {state}")


def metric(b, name, labels):
    found = re.search(rf"^{name}{{{labels}}} (\S+)$", b.get("/metrics").body.decode(), re.M)
    return int(found.group(1))


def many(b, queue, count):
    """They wait, all of them, before the first is sent."""
    b.post(f"/v1/targets/{queue}/pause")
    for first in range(0, count, 1000):
        same(b.batch(queue, [{"key": f"k{n}", "payload": "x"} for n in range(first, min(first + 1000, count))]).status, 200)
    b.post(f"/v1/targets/{queue}/resume")


@test
def an_outage_with_ten_thousand_waiting_burns_no_attempts_beyond_those_under_way():
    with hx.Broker() as b, Receiver(always=Answer(503)) as r:
        b.rules("q", **at(r.url, concurrency=4, circuit={"of": 5, "open": "1ms"}), retry={"transient": {"attempts": 1}})
        many(b, "q", 10000)
        until(lambda: len(r.requests) >= 5 + 3 + 6, "it was probed six times and more")  # 5 open it, 3 more were under way
        b.post("/v1/targets/q/pause")
        until(lambda: target(b, "q")["in_flight"] == 0, "the last one has ended")
        failed = metric(b, "hapax_failures_total", 'queue="q",class="transient"')
        assert 5 <= failed <= 8, failed
        members(b.queue("q"), dead=failed, pending=10000 - failed)
        told = target(b, "q")
        same(told["requests"]["transient"], len(r.requests), told)
        members(told["last_error"], **{"class": "transient", "status": 503})


@test
def one_target_that_fails_or_hangs_leaves_the_others_alone():
    with hx.Broker() as b, Receiver(always=Answer(500)) as bad, Receiver(always=Answer(at=0, then=HANG)) as hung, Receiver() as good:
        b.rules("bad", **at(bad.url, circuit={"of": 2, "open": "5m"}))
        b.rules("hung", **at(hung.url, concurrency=2, timeout="5m"))
        b.rules("good", **at(good.url))
        many(b, "bad", 500)
        many(b, "hung", 500)
        stands(b, "open", "bad")
        until(lambda: target(b, "hung")["in_flight"] == 2, "it hangs")
        many(b, "good", 500)
        until(lambda: b.queue("good")["keys"] == 500, "all of the good one's are done")
        members(target(b, "good"), state="closed", waiting=0, requests={"done": 500, "transient": 0, "rejected": 0, "poison": 0, "unknown": 0})
        members(target(b, "hung"), state="closed", in_flight=2, waiting=498)
        same((target(b, "bad")["state"], sorted(good.effects.values())), ("open", [1] * 500))


@test
def a_reload_lets_a_target_that_failed_for_its_rules_be_tried_at_once():
    config = "queues:\n  q:\n    deliver: {url: '%s/', allow_private: true, concurrency: 2, headers: {x-api-key: '%s'}, circuit: {of: 2, open: 5m}}\n"
    answer = lambda request: Answer(200 if request.header("x-api-key") == "new" else 401)  # noqa: E731
    with Receiver(always=answer) as r, hx.Broker(config=config % (r.url, "old")) as b:
        b.put("q", "k1", "k2", "k3")
        stands(b, "open")
        until(lambda: target(b, "q")["in_flight"] == 0, "those of before have ended")
        b.reload(config % (r.url, "new"))
        stands(b, "closed")
        until(lambda: b.queue("q")["keys"] == 3, "all are done")


@test
def a_rejection_is_an_answer_and_opens_nothing():
    with hx.Broker() as b, Receiver(always=Answer(422)) as r:
        b.rules("q", **at(r.url, circuit={"of": 2, "open": "5m"}))
        b.put("q", *[f"k{n}" for n in range(20)])
        until(lambda: target(b, "q")["requests"]["rejected"] == 20, "all are answered")
        same(target(b, "q")["state"], "closed")


@test
def one_probe_tells_that_it_is_back_and_then_it_gets_more_call_by_call():
    turns, up = threading.Semaphore(0), threading.Event()

    def answer(_):
        if not up.is_set():
            return Answer(503)
        turns.acquire(timeout=hx.TIMEOUT)
        return Answer(200)

    with hx.Broker() as b, Receiver(always=answer) as r:
        b.rules("q", **at(r.url, concurrency=8, circuit={"of": 2, "open": "5m"}))
        many(b, "q", 200)
        down = stands(b, "open")
        until(lambda: "event=target_down" in b.stderr(), "the log has it")
        assert "too many calls failed" in down["why"] and hx.stamp(down["next_probe"]) > hx.stamp(down["since"]), down
        until(lambda: target(b, "q")["in_flight"] == 0, "those of before have ended")
        before = len(r.requests)
        up.set()
        b.post("/v1/targets/q/resume")
        stands(b, "half_open")
        for under_way in (1, 1, 2, 4, 8):  # the probe; then one, and twice as many each round trip
            until(lambda: len(r.requests) == before + under_way, f"{under_way} are under way")
            members(target(b, "q"), in_flight=under_way)
            before += under_way
            turns.release(under_way)
        turns.release(1000)
        until(lambda: b.queue("q")["keys"] == 200, "all are done")
        same((b.stderr().count("event=target_down"), b.stderr().count("event=target_back")), (1, 1), b.stderr())
        same(sorted(set(r.effects.values())), [1])


@test
def a_target_that_asks_for_time_is_paused_for_an_hour_at_most_and_resume_ends_it():
    with hx.Broker() as b, Receiver(Answer(429, headers=[("Retry-After", "86400")])) as r:
        b.rules("q", **at(r.url))
        with hx.bracket() as asked:
            b.put("q", "k1")
            told = stands(b, "paused")
        assert "Retry-After" in told["why"], told
        asked.holds(told["waits_until"], 3600)
        members(told["last_error"], **{"class": "transient", "status": 429})
        b.put("q", "k2")
        members(b.post("/v1/targets/q/resume").json(), state="closed")
        until(lambda: b.state("q", "k2") == "done", "the next one is done")


@test
def what_a_target_refuses_for_good_is_among_what_failed():
    with hx.Broker() as b, Receiver(always=Answer(404)) as r:
        b.rules("q", **at(r.url))
        b.put("q", "k1")
        until(lambda: target(b, "q")["requests"]["poison"] == 1, "it is answered")
        assert re.search(r"^q +closed +0 +0 +0 +1 ", hapax("push", "status", of=b).text, re.M)


@test
def who_lets_a_target_be_called_before_its_time_is_in_the_audit_trail():
    with hx.Broker() as b, Receiver(Answer(429, headers=[("Retry-After", "3600")]), always=Answer(503)) as r:
        b.rules("q", **at(r.url, circuit={"of": 1, "open": "5m"}))
        b.put("q", "k1")
        stands(b, "paused")
        b.post("/v1/targets/q/resume", {"by": "ann", "note": "they have time"})
        b.put("q", "k2")
        stands(b, "open")
        b.post("/v1/targets/q/resume", {"by": "bob", "note": "they are back"})
        told = [(e["who"], e["why"]) for e in b.get("/v1/audit?queue=q&what=push_resume").json()["items"]]
        same(told, [("bob", "they are back"), ("ann", "they have time")])


@test
def a_target_that_is_gone_says_so_until_somebody_resumes_it():
    with hx.Broker() as b, Receiver(Answer(410)) as r:
        b.rules("q", **at(r.url))
        b.put("q", "k1")
        told = stands(b, "paused")
        assert "410" in told["why"] and told["since"] and told["gone"], told
        b.restart()
        told = stands(b, "paused")
        assert "410" in told["why"] and told["gone"], told
        b.post("/v1/targets/q/pause", {"by": "ann", "note": "they have moved"})
        told = stands(b, "paused")
        assert told["why"] == "by ann: they have moved" and "gone" not in told, told
        same([e["who"] for e in b.get("/v1/audit?queue=q&what=push_pause").json()["items"]], ["ann", "push"])
        b.post("/v1/targets/q/resume")
        until(lambda: b.queue("q")["keys"] == 1, "it is done")


@test
def deliveries_and_look_ups_are_counted_by_what_came_of_them():
    with hx.Broker() as b, Receiver(Answer(200), Answer(422), Answer(400), Answer(at=0, then=CLOSE, effect=True), Answer(at=0, then=CLOSE, effect=False), Answer(200), Answer(503)) as r:
        r.lookups.extend([Answer(200, '{"id":"B4"}'), Answer(500), Answer(404)])
        b.rules("q", **at(r.url, concurrency=1), downstream={"idempotency": "key"}, retry={"transient": {"backoff": "1ms", "max": "1ms"}},
                reconcile={"url": r.url + "/slots?key=${hapax.effect_key}", "after": "1ms", "every": "1ms", "allow_private": True})
        for key in ("taken", "rejected", "poison", "found", "absent", "busy"):
            b.put("q", key)
            until(lambda: b.state("q", key) in ("done", "rejected", "dead"), f"{key} has an end")  # noqa: B023
        want = {"done": 3, "transient": 1, "rejected": 1, "poison": 1, "unknown": 2}
        members(target(b, "q"), requests=want, lookups=3)
        for name, count in want.items():
            same(metric(b, "hapax_push_requests_total", f'queue="q",class="{name}"'), count, name)
        for answer in ("found", "absent", "unknown"):
            same(metric(b, "hapax_reconciliations_total", f'queue="q",answer="{answer}"'), 1, answer)
        same(target(b, "q")["latency"]["count"], sum(want.values()) + 3)
        assert re.search(r"^latency p95 +[0-9.]+ms$", hapax("push", "status", "q", of=b).text, re.M), "a time has its unit"


# ---- the test


@test
def a_test_reaches_the_target_and_brings_it_nothing_it_could_act_on():
    with hx.Broker() as b, Receiver(always=Answer(405, effect=False)) as r:
        b.rules("q", **at(r.url))
        b.post("/v1/targets/q/pause")  # whatever keeps deliveries back
        b.put("q", "k1")
        reply = b.post("/v1/targets/q/test", {"by": "ann", "note": "is it up?"})
        members(reply.json(), queue="q", sent="OPTIONS", url=f"{r.url}/", reached=True, status=405)
        request = r.next()
        same((request.method, request.path, request.body), ("OPTIONS", "/", b""))
        same([name for name, _ in request.headers if name.startswith(("idempotency", "webhook", "hapax", "x-"))], [])
        members(b.get("/v1/audit?queue=q&what=push_test").json()["items"][0], who="ann", why="is it up?")
        members(target(b, "q"), requests={"done": 0, "transient": 0, "rejected": 0, "poison": 0, "unknown": 0}, in_flight=0)
        same(b.queue("q")["ready"], 1)
        assert r.quiet()


@test
def a_test_says_why_a_target_is_not_reached():
    with hx.Broker() as b, refused_port() as port:
        for url, more, why in ((f"http://127.0.0.1:{port}", {}, "connect"), ("http://127.0.0.1:9", {"allow_private": False}, "allow_private"),
                               ("https://no.such.host.invalid", {}, "")):
            b.rules("q", **at(url, **more))
            said = b.post("/v1/targets/q/test").json()
            same(said["reached"], False)
            assert why in said["why"] and said["why"], said


@test
def a_test_of_a_target_that_hangs_ends_and_whoever_left_meanwhile_leaves_nothing_behind():
    with hx.Broker() as b, Receiver(always=Answer(at=0, then=HANG)) as r:
        b.rules("q", **at(r.url))
        with b.connect() as left:
            left.start("POST", "/v1/targets/q/test")
            r.next()
        members(b.post("/v1/targets/q/test").json(), reached=False)
        same(b.get("/v1/targets?queue=q").json()["items"][0]["in_flight"], 0)


@test
def no_more_than_sixteen_tests_are_under_way():
    with hx.Broker() as b, Receiver(always=Answer(at=0, then=HANG)) as r:
        b.rules("q", **at(r.url))
        calls = [b.connect() for _ in range(16)]
        for c in calls:
            c.start("POST", "/v1/targets/q/test")
            r.next()
        problem(b.post("/v1/targets/q/test"), 503, "overloaded")
        for c in calls:
            members(c.reply().json(), reached=False)
            c.close()
        r.close()
        members(b.post("/v1/targets/q/test").json(), reached=False)


# ---- the command

@test
def hapax_push_shows_and_steers_targets():
    with hx.Broker() as b, refused_port() as nobody, Receiver(always=Answer(204, effect=False)) as r:
        b.rules("q", **at(r.url))
        b.rules("plain")
        assert "closed" in hapax("push", "status", of=b).text
        said = hapax("push", "pause", "q", "--by", "ann", "--note", "INC-7", of=b)
        assert "q is not delivered: 0 waiting, 0 in flight" in said.text, said
        assert "ann: INC-7" in hapax("push", "status", exits=1, of=b).text
        one = hapax("push", "status", "q", exits=1, of=b)
        assert "paused" in one.text and f"{r.url}/book" in one.text, one
        same(hapax("push", "status", "--json", exits=1, of=b).json, b.get("/v1/targets").json())
        said = hapax("push", "test", "q", of=b)
        assert f"{r.url}/ is reached: OPTIONS was answered with 204" in said.text, said
        assert "q is delivered" in hapax("push", "resume", "q", of=b).text
        hapax("push", "status", of=b)
        b.rules("q", **at(f"http://127.0.0.1:{nobody}"))
        assert "is not reached" in hapax("push", "test", "q", exits=1, of=b).text
        same(hapax("push", "test", "q", "--json", exits=1, of=b).json["reached"], False)
        hapax("push", "status", "plain", exits=1, of=b)
        hapax("push", "pause", "nothing", exits=1, of=b)


hx.main(shared=False)
