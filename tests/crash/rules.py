"""Queues with rules of their own under the storm: a config file with several classes that is read again and again, a worker
for each queue that dies, doubts and repeats itself, and an operator who decides, redrives, cancels, replays, erases and
forgets in the middle. Everything asked and told is written down for rules_judge.

A worker does its effect at most once per delivery it was given to do, and on a look-up says truly whether it did: so an
effect done twice is the broker's fault."""
import json
import os
import random
import signal
import threading
import time
import urllib.parse

import kit
from rules_judge import HOLD, RECONCILE, Policy, judge

LEASE_MS = 1000
DRAIN_BOUND_S = 90
POLICIES = {
    "money": Policy("exactly_once", RECONCILE),
    "holds": Policy("exactly_once", HOLD),
    "clicks": Policy("at_most_once"),
    "ledger": Policy("at_least_once"),
}
CONFIG = """queues:
  plain: {{}}
  fifo: {{}}
  money:
    class: money
    lease: 1s
    keep_payload: 1h
    retry: {{transient: {{attempts: {attempts}, backoff: 50ms, max: 400ms}}, crashes: {{attempts: {crashes}}}}}
    dead: {{owner: v{version}}}
  holds:
    on_unknown: hold
    lease: 1s
    window: {window}
    dead: {{owner: v{version}}}
  clicks: {{class: analytics, window: {window}, dead: {{owner: v{version}}}}}
  ledger: {{class: audit, lease: 1s, dead: {{owner: v{version}}}}}
"""


def now():
    return time.monotonic()


class Rules:
    def __init__(self, broker, seed):
        self.broker, self.seed, self.rand = broker, seed, random.Random(seed)
        self.history, self.effects, self.lock = [], set(), threading.Lock()
        self.notes = self.version = self.reloads = 0
        self.chaos = self.running = True
        self.threads, self.problems = [], []
        self.write_config()

    # ---- the config file

    def write_config(self):
        self.version += 1
        text = CONFIG.format(version=self.version, attempts=self.rand.randint(2, 6), crashes=self.rand.randint(2, 4),
                             window=self.rand.choice(["1h", "2h", "forever", "{min: 1h, max: 3h}"]))
        self.broker.configure(text)

    def reload(self):
        """By whoever also kills, so that no start meets a file that is half written, or wrong on purpose."""
        if self.rand.random() < 0.2:
            with open(self.broker.config) as f:
                good = f.read()
            self.broker.configure(good + "  wrong: {on_unknow: hold}\n")
            self.hangup("reload refused")
            self.broker.configure(good)
            return
        self.write_config()
        self.hangup("is in force")

    def hangup(self, sign):
        with open(self.broker.log, errors="replace") as log:
            log.seek(0, os.SEEK_END)
            self.broker.signal(signal.SIGHUP)
            said = []

            def heard():
                said.append(log.read())
                return sign in "".join(said)
            kit.until(heard, f"SIGHUP: a line with `{sign}`")
        self.reloads += 1

    # ---- calls

    def note_down(self, **call):
        with self.lock:
            self.history.append(call)

    def new_note(self):
        with self.lock:
            self.notes += 1
            return f"n{self.notes}"

    def call(self, client, method, path, body=None, headers=None):
        """(phase, reply, asked, told)"""
        asked = now()
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = client.call(method, path, data, {"Content-Type": "application/json", **(headers or {})}.items())
        except kit.Lost:
            time.sleep(0.02)
            return "info", {}, asked, None
        reply = answer.json() if answer.body else {}
        if answer.status < 300:
            return "ok", reply, asked, now()
        return "fail" if reply.get("applied") == "no" else "info", reply, asked, now()

    def verb(self, client, op, queue, method, path, body=None, **about):
        note = self.new_note()
        phase, reply, asked, told = self.call(client, method, path, body, {"Hapax-Actor": "op", "Hapax-Reason": note})
        if reply.get("duplicate"):
            phase = "info"  # done before: nothing new to write down
        self.note_down(op=op, queue=queue, note=note, phase=phase, asked=asked, told=told, **about)
        return phase, reply

    def key_path(self, queue, key, tail=""):
        return f"/v1/queues/{queue}/keys/{urllib.parse.quote(key, safe='')}{tail}"

    # ---- workers

    def send(self, client, queue, key):
        while self.running:
            phase, reply, asked, told = self.call(client, "POST", f"/v1/queues/{queue}/messages", f"payload of {key}".encode(),
                                                  {"Idempotency-Key": key, "Content-Type": "text/plain"})
            self.note_down(op="send", queue=queue, key=key, phase=phase, asked=asked, told=told, id=reply.get("id"),
                           duplicate=reply.get("duplicate", False))
            if phase == "ok" or not self.chaos:
                return

    def settle(self, client, delivery, verb, **members):
        phase, reply, asked, told = self.call(client, "POST", f"/v1/{verb}", {"token": delivery["token"], **members})
        self.note_down(op="settle", queue=delivery["queue"], fence=int(delivery["fence"]), verb=verb, phase=phase, asked=asked,
                       told=told, duplicate=reply.get("duplicate", False), **{"class": members.get("class")})

    def do(self, delivery):
        with self.lock:
            self.effects.add(delivery["id"])
        self.note_down(op="effect", queue=delivery["queue"], key=delivery["key"], id=delivery["id"], asked=now(), told=now(),
                       phase="ok")

    def look_up(self, client, delivery, rand):
        with self.lock:
            was_done = delivery["id"] in self.effects
        if self.chaos and rand.random() < 0.1:
            return
        if was_done:
            self.settle(client, delivery, "ack", result="found")
        else:
            self.settle(client, delivery, "nack", **{"class": "absent"})

    def work(self, client, delivery, rand):
        roll = rand.random() if self.chaos else 1.0
        if delivery["delivery"] == "reconcile":
            return self.look_up(client, delivery, rand)
        if roll < 0.05:
            return None  # dies before it did anything
        if roll < 0.15:
            return self.settle(client, delivery, "nack", **{"class": "transient"})
        if roll < 0.17:
            return self.settle(client, delivery, "nack", **{"class": "poison"})
        if roll < 0.20:
            return self.settle(client, delivery, "release")
        self.do(delivery)
        if roll < 0.30:
            return None  # dies after it did it
        if roll < 0.38:
            return self.settle(client, delivery, "nack", **{"class": "unknown"})
        if roll < 0.42:
            time.sleep(1.2 * LEASE_MS / 1000)  # a zombie
        return self.settle(client, delivery, "ack", result=f"done {delivery['fence']}")

    def receive(self, client, queue, rand):
        path = f"/v1/queues/{queue}/receive?max=3&wait=100ms&consumer=w"
        phase, reply, asked, told = self.call(client, "POST", path, b"")
        for m in reply.get("messages", []):
            self.note_down(op="recv", queue=queue, key=m["key"], id=m["id"], fence=int(m["fence"]), delivery=m["delivery"],
                           generation=m["generation"], effect_key=m["effect_key"], phase=phase, asked=asked, told=told)
            if now() - asked < 0.5 * LEASE_MS / 1000:
                self.work(client, m, rand)

    def worker(self, queue, seed):
        rand, client, made = random.Random(seed), self.broker.client(5), 0
        while self.running:
            if self.chaos and rand.random() < 0.6:
                if rand.random() < 0.85:
                    made += 1
                self.send(client, queue, f"{queue}/{made if rand.random() < 0.8 else rand.randint(0, made)}")
            self.receive(client, queue, rand)

    # ---- the operator

    def listed(self, client, queue, state):
        _, reply, _, _ = self.call(client, "GET", f"/v1/queues/{queue}/messages?state={state}&limit=20")
        return reply.get("items", [])

    def decide(self, client, queue, item, rand):
        with self.lock:
            was_done = item["id"] in self.effects
        as_ = rand.choice(["done", "rejected"]) if was_done else "retry"
        if self.chaos and rand.random() < 0.1:
            as_ = "dead"
        body = {"as": as_, **({"result": "looked up"} if as_ == "done" else {})}
        self.verb(client, "resolve", queue, "POST", f"/v1/queues/{queue}/messages/{item['id']}/resolve", body,
                  key=item["key"], id=item["id"], **{"as": as_})

    def tidy(self, client, rand):
        for queue in ("money", "holds", "ledger"):
            for item in self.listed(client, queue, "held"):
                self.decide(client, queue, item, rand)
            dead = self.listed(client, queue, "dead")
            if dead and rand.random() < 0.5:
                self.verb(client, "redrive", queue, "POST", f"/v1/queues/{queue}/redrive", {})
            for item in dead[:2]:
                self.verb(client, "cancel", queue, "POST", f"/v1/queues/{queue}/messages/{item['id']}/cancel", {},
                          key=item["key"], id=item["id"])

    def meddle(self, client, rand):
        queue = rand.choice(["money", "holds", "clicks"])
        key = f"{queue}/{rand.randint(1, 200)}"
        phase, view, _, _ = self.call(client, "GET", self.key_path(queue, key))
        if phase != "ok":
            return
        op, method, tail = rand.choice([("forget", "DELETE", ""), ("erase", "POST", "/erase"), ("replay", "POST", "/replay")])
        if op == "erase" and view.get("erased"):
            return
        self.verb(client, op, queue, method, self.key_path(queue, key, tail), key=key, id=view["id"])

    def operator(self, seed):
        rand, client = random.Random(seed), self.broker.client(5)
        while self.running:
            self.tidy(client, rand)
            if self.chaos:
                self.meddle(client, rand)
            time.sleep(0.05)

    # ---- the whole

    def begin(self):
        jobs = [(self.worker, (queue, self.seed + i)) for i, queue in enumerate(POLICIES)]
        for f, arguments in [*jobs, (self.operator, (self.seed + 99,))]:
            self.threads.append(threading.Thread(target=f, args=arguments, daemon=True))
            self.threads[-1].start()

    def empty(self, client):
        for queue in POLICIES:
            phase, q, _, _ = self.call(client, "GET", f"/v1/queues/{queue}")
            if phase != "ok" or q["pending"] + q["leased"] + q["held"] + q["dead"]:
                return False
        return True

    def trail(self, client):
        notes, cursor = [], ""
        while cursor is not None:
            _, reply, _, _ = self.call(client, "GET", f"/v1/audit?limit=1000{cursor and '&cursor=' + cursor}")
            notes += [item.get("why", "") for item in reply["items"]]
            cursor = reply["next_cursor"]
        return notes

    def views(self, client):
        erased = {(c["queue"], c["key"]) for c in self.history if c["op"] == "erase" and c["phase"] == "ok"}
        found = {}
        for queue, key in erased:
            phase, view, _, _ = self.call(client, "GET", self.key_path(queue, key))
            if phase == "ok":
                found[queue, key] = view
        return found

    def end(self):
        """The faults are over: drains, stops, judges. What broke, as text."""
        self.chaos = False
        client, end = self.broker.client(), now() + DRAIN_BOUND_S
        drained = self.empty(client)
        while not drained and now() < end:
            time.sleep(0.1)
            drained = self.empty(client)
        self.running = False
        for thread in self.threads:
            thread.join(30)
        _, shown, _, _ = self.call(client, "GET", "/v1/queues/money")
        if shown.get("owner") != f"v{self.version}":
            self.problems.append(f"the last config read is v{self.version}; the queue shows {shown.get('owner')}")
        found = judge(POLICIES, self.history, self.trail(client), self.views(client), drained)
        return self.problems + [f"{what}: {text}" for what, text in found[:20]]

    def stop(self):
        self.chaos = self.running = False

    def summary(self):
        counts = {}
        for call in self.history:
            counts[call["op"]] = counts.get(call["op"], 0) + (call["phase"] == "ok")
        return f"rules: {self.reloads} reloads, " + ", ".join(f"{n} {op}" for op, n in sorted(counts.items()))
