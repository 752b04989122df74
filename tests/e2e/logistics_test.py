#!/usr/bin/env python3
"""Chaos as logistics teams do it: the same event at random delays, near-duplicates with one field changed, a thousand clients
on one key, and a crash at every step between receive and ack. A ledger stands for the world outside: it does what it is told as
often as it is told, and is asked at the end. HAPAX_SEED repeats a run's choices; HAPAX_ROUNDS makes the race longer."""
import collections
import json
import os
import random
import resource
import threading
import time

import hx
from hx import members, problem, same, test

SEED = int(os.environ.get("HAPAX_SEED", random.SystemRandom().randrange(1 << 32)))
RACERS = 1000
ROUNDS = int(os.environ.get("HAPAX_ROUNDS", 1))


class Ledger:
    """Effects in the world outside, by effect key."""

    def __init__(self):
        self.lock, self.effects = threading.Lock(), collections.Counter()

    def act(self, effect_key):
        with self.lock:
            self.effects[effect_key] += 1

    def happened(self, effect_key):
        with self.lock:
            return self.effects[effect_key] > 0


def milestone(n, **change):
    return {"shipmentId": f"S{n}", "milestoneType": "DELIVERED", "effectiveDate": "2026-01-31", "place": {"unlocode": "DEHAM"}, "sent_at": 0, **change}


def shipments(q, **rules):
    hx.broker.rules(q, **{"class": "money"}, key="${shipmentId}:${milestoneType}:${effectiveDate}", fingerprint={"ignore": ["sent_at"]}, lease="1s", **rules)


def work(q, ledger, until):
    """A worker that does what it is handed."""
    while not until():
        for m in hx.broker.receive(q, wait="200ms", max=5):
            ledger.act(m["effect_key"])
            hx.broker.ok("ack", m, result=f"done {m['key']}")


@test
def identical_payloads_at_random_delays_take_effect_once(q):
    print(f"# HAPAX_SEED={SEED}", flush=True)
    shipments(q)
    chance, ledger, done = random.Random(SEED), Ledger(), threading.Event()
    events = [(chance.uniform(0, 2), n) for n in range(60) for _ in range(chance.randrange(1, 6))]
    workers = [hx.Later(work, q, ledger, done.is_set) for _ in range(2)]
    began, answers = time.monotonic(), collections.defaultdict(set)
    for at, n in sorted(events):
        time.sleep(max(0, began + at - time.monotonic()))  # when it comes again is what this is about
        reply = hx.broker.event(q, milestone(n, sent_at=at))
        assert reply.status in (200, 202), reply
        answers[n].add(reply.json()["id"])
    hx.until(lambda: hx.broker.queue(q)["pending"] + hx.broker.queue(q)["leased"] == 0, "all of it is done")
    done.set()
    for worker in workers:
        worker.value()
    same({len(ids) for ids in answers.values()}, {1}, "every copy hears of the one original")
    same(set(ledger.effects.values()), {1})
    same(len(ledger.effects), 60)


@test
def near_duplicates_with_one_field_changed_are_told_apart(q):
    shipments(q, keep_payload="1h")
    b, chance = hx.broker, random.Random(SEED)
    b.event(q, milestone(1))
    b.ok("ack", b.one(q))
    for field, change in [("place.unlocode", {"place": {"unlocode": "NLRTM"}}), ("place", {"place": None}), ("weight", {"weight": 1}),
                          ("place.terminal", {"place": {"unlocode": "DEHAM", "terminal": "CTA"}})]:
        refused = problem(b.event(q, milestone(1, sent_at=chance.random(), **change)), 422, "key_reused")
        same(refused["changed"], [field])
    for change in ({"shipmentId": "S2"}, {"milestoneType": "PICKED_UP"}, {"effectiveDate": "2026-02-01"}):
        members(b.event(q, {**milestone(1), **change}).json(), outcome="accepted")
    members(b.event(q, milestone(1, sent_at=99)).json(), outcome="duplicate", state="done")
    kinds = collections.Counter(a["kind"] for a in b.key(q, "S1:DELIVERED:2026-01-31")["arrivals"])
    same(kinds["conflict"], 4)


def race(request, count):
    """The same request on that many connections at once; the replies."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * count)), hard))
    conns = [hx.broker.connect() for _ in range(count)]
    try:
        for conn in conns:
            conn.start(*request[:-1])  # all but the last byte of the body: everybody is at the line
        for conn in conns:
            conn.write(request[-1])
        return [conn.reply() for conn in conns]
    finally:
        for conn in conns:
            conn.close()


@test(alone=True)
def a_thousand_clients_race_for_one_key_and_one_execution():
    shipments("race")
    for number in range(ROUNDS):
        race_round("race", number)


def race_round(q, number):
    b, key = hx.broker, f"S{number}:DELIVERED:2026-01-31"
    body = json.dumps(milestone(number)).encode()
    send = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    replies = race(("POST", f"/v1/queues/{q}/messages", None, send, body), RACERS)
    outcomes = collections.Counter(r.json()["outcome"] for r in replies)
    same(outcomes, {"accepted": 1, "duplicate": RACERS - 1})
    same(len({r.json()["id"] for r in replies}), 1)
    b.restart()
    handed = race(("POST", f"/v1/queues/{q}/receive?lease=60s", None, [("Content-Length", "1")], b" "), RACERS)
    messages = [m for r in handed for m in r.json()["messages"]]
    same(len(messages), 1, "one worker has it")
    token = json.dumps({"token": messages[0]["token"], "result": "done"}).encode()
    acks = race(("POST", "/v1/ack", None, [("Content-Length", str(len(token)))], token), RACERS)
    same({r.status for r in acks}, {200})
    same(sum(not r.json().get("duplicate") for r in acks), 1)
    b.restart()
    replies = race(("POST", f"/v1/queues/{q}/messages", None, send, body), RACERS)
    same({(r.status, r.json()["result"]["body"]) for r in replies}, {(200, "done")})
    assert b.key(q, key)["duplicates"] >= RACERS  # a kill may cost a second's counting


# ---- a crash at every step between receive and ack

STEPS = ["received", "started", "acted", "stepped", "extended", "acked unheard"]


def reconcile(q, ledger):
    """The worker that comes after a crash: asked what became of it, it looks before it acts."""
    while True:
        m = hx.broker.one(q)
        if m["delivery"] == "reconcile":
            if not ledger.happened(m["effect_key"]):
                hx.broker.ok("nack", m, **{"class": "absent"})
                continue
        else:
            ledger.act(m["effect_key"])
        hx.broker.ok("ack", m, result="done")
        return m


def crash_at(q, step, ledger):
    """A worker that gets as far as this step and is never heard of again."""
    b = hx.broker
    m = b.one(q, start="explicit")
    for name in STEPS[1:STEPS.index(step) + 1]:
        if name == "started":
            b.ok("start", m)
        elif name == "acted":
            ledger.act(m["effect_key"])
        elif name == "stepped":
            b.ok("step", m, name="booked", result="b-1")
        elif name == "extended":
            b.ok("extend", m, lease="1s")
        else:
            with b.connect() as c:  # the ack leaves, and the answer is not waited for
                c.start("POST", "/v1/ack", json.dumps({"token": m["token"], "result": "done"}).encode())


def crash_test(step, with_the_broker):
    def body(q):
        b, ledger = hx.broker, Ledger()
        shipments(q)
        same(b.event(q, milestone(1)).status, 202)
        key = "S1:DELIVERED:2026-01-31"
        crash_at(q, step, ledger)
        if with_the_broker:
            yield
        hx.until(lambda: b.state(q, key) in ("pending", "done"), "the lease runs out, or the ack was heard")
        if b.state(q, key) == "pending":
            reconcile(q, ledger)
        else:
            same(step, "acked unheard")
        if with_the_broker:
            yield
        members(b.event(q, milestone(1)).json(), outcome="duplicate", state="done")
        same(dict(ledger.effects), {key: 1}, "one effect in the world")
    body.__name__ = f"a_worker{'_and_the_broker' if with_the_broker else ''}_that_crashed_when_it_had_{step.replace(' ', '_')}_leaves_one_effect"
    return body


for crash_step in STEPS:
    for both in (False, True):
        test(crash_test(crash_step, both))


hx.main(threads=40)
