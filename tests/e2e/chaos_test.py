#!/usr/bin/env python3
"""Clients that do everything wrong at once on queues of different rules, operators in between, a broker that is killed now and
then: nothing but promised answers, and what was answered stays true. HAPAX_SEED repeats a run's choices (not its timing);
HAPAX_SECONDS makes it longer."""
import collections
import json
import os
import random
import threading
import time

import hx
from hx import same, test

SEED = int(os.environ.get("HAPAX_SEED", random.SystemRandom().randrange(1 << 32)))
SECONDS = float(os.environ.get("HAPAX_SECONDS", 8))
PATIENCE = 120
CODES = {400, 404, 409, 413, 422, 503}
CLASSES = ["transient", "unknown", "poison", "rejected", "absent"]
RETRY = {"transient": {"attempts": 20, "backoff": "1ms", "max": "20ms"}, "unknown": {"attempts": 20}, "crashes": {"attempts": 20}}
RULES = {"q0": {}, "q1": {"on_unknown": "reconcile", "retry": RETRY}, "q2": {"on_unknown": "hold", "on_conflict": "hold", "on_dead": "skip", "retry": RETRY}}


class History:
    """What clients were told, checked as it comes in."""

    def __init__(self):
        self.lock = threading.Lock()
        self.ids, self.settled, self.fences, self.tokens, self.wrong = {}, {}, {}, [], []
        self.leases = collections.defaultdict(dict)  # (queue, key): fence: its message
        self.verbs = collections.defaultdict(set)    # (queue, key, fence): what was said about that lease, heard or not

    def complain(self, text):
        with self.lock:
            self.wrong.append(text)

    def enough(self, at_most=float("inf")):
        """Has something happened that is worth judging? A slow machine gets the time it needs for that."""
        return (len(self.ids) > 50 and len(self.settled) > 20) or time.monotonic() > at_most

    def admitted(self, queue, key, body):
        with self.lock:
            known = self.ids.setdefault((queue, key), body["id"])
            if known != body["id"]:
                self.wrong.append(f"{queue}/{key} has two ids: {known}, {body['id']}")
            if body["state"] in ("done", "rejected", "cancelled"):
                self.outcome(queue, key, body["state"], body.get("result", {}).get("body"))

    def outcome(self, queue, key, state, result):
        known = self.settled.setdefault((queue, key), (state, result))
        if known[0] != state or (None not in (known[1], result) and known[1] != result):
            self.wrong.append(f"{queue}/{key} was {known}, now {(state, result)}")

    def settled_as(self, queue, key, state, result):
        with self.lock:
            self.outcome(queue, key, state, result)

    def blind_retries(self, queue):
        """P5: under `reconcile`, what follows an outcome nobody knows is a delivery that asks. A lease nobody spoke about ran
        out; one that asked goes on asking until it is answered."""
        found = []
        for where, leases in self.leases.items():
            fences = sorted(leases)
            for before, after in zip(fences, fences[1:]):
                said = self.verbs[*where, before]
                unknown = leases[before]["started"] and said <= {"unknown", "extend", "step", "start"}
                unanswered = leases[before]["delivery"] == "reconcile" and said <= {"unknown", "extend", "step", "start", "transient", "release"}
                if where[0] == queue and (unknown or unanswered) and leases[after]["delivery"] != "reconcile":
                    found.append((where, leases[before], said, leases[after]))
        return found

    def delivered(self, m, asked):
        """Whoever was held up longer than the lease hears old news: another may have been handed it meanwhile."""
        where = (m["queue"], m["key"])
        with self.lock:
            fresh = time.monotonic() - asked < 0.8
            if fresh and where in self.settled:
                self.wrong.append(f"{where} delivered after {self.settled[where]}")
            if fresh and int(m["fence"]) <= self.fences.get(where, 0):
                self.wrong.append(f"{where}: fence {m['fence']} after {self.fences[where]}")
            self.fences[where] = max(int(m["fence"]), self.fences.get(where, 0))
            self.leases[where][int(m["fence"])] = m
            self.tokens.append(m)


class Client:
    def __init__(self, broker, history, seed):
        self.broker, self.history, self.random = broker, history, random.Random(seed)

    def run(self, until):
        while not self.history.wrong and (time.monotonic() < until or not self.history.enough(until + PATIENCE)):
            try:
                self.random.choice([self.send, self.batch, self.receive, self.receive, self.settle, self.settle, self.look, self.leave, self.operate])()
            except (OSError, AssertionError, IndexError) as error:
                self.excuse(error)

    def excuse(self, error):
        """A broker that was just killed may leave any request without an answer; everything else is a finding."""
        if isinstance(error, AssertionError) and "closed" not in str(error):
            self.history.complain(repr(error))
        time.sleep(0.01)

    def name(self):
        return f"q{self.random.randrange(3)}", f"k{self.random.randrange(400)}"

    def expect(self, reply, *good):
        if reply.status in good:
            return reply.json()
        if reply.status not in CODES:
            self.history.complain(f"unexpected {reply!r}")
        hx.problem(reply, reply.status, reply.json()["code"])
        return None

    def headers(self):
        pick = self.random.random
        fields = []
        if pick() < 0.3:
            fields.append(("Hapax-Group", f"g{self.random.randrange(5)}"))
        if pick() < 0.2:
            fields.append(("Hapax-Delay", f"{self.random.randrange(300)}ms"))
        if pick() < 0.1:
            fields.append(("Hapax-Ttl", f"{self.random.randrange(1, 500)}ms"))
        if pick() < 0.1:
            fields.append(("Prefer", "wait=1"))
        return fields

    def send(self):
        queue, key = self.name()
        payload = "other" if self.random.random() < 0.05 else key
        body = self.expect(self.broker.send(queue, key, payload, self.headers()), 200, 202)
        if body:
            self.history.admitted(queue, body["key"], body)  # a held conflict has a key of its own

    def batch(self):
        queue, _ = self.name()
        keys = [f"k{self.random.randrange(400)}" for _ in range(self.random.randrange(30))]
        lines = [b"nonsense" if self.random.random() < 0.1 else {"key": key, "payload": key} for key in keys]
        reply = self.broker.batch(queue, lines)
        same(reply.status, 200)
        for key, line, got in zip(keys, lines, reply.lines()):
            if isinstance(line, dict) and got["status"] < 300:
                self.history.admitted(queue, got["key"], got)

    def receive(self):
        queue, _ = self.name()
        asked = time.monotonic()
        start = self.random.choice(["auto", "explicit"])
        for m in self.broker.receive(queue, max=self.random.randrange(1, 20), wait=self.random.choice(["0s", "50ms"]), lease="1s", start=start):
            self.history.delivered({**m, "started": start == "auto"}, asked)

    def settle(self):
        m = self.random.choice(self.history.tokens[-200:])
        verb = self.random.choice(["ack", "ack", "nack", "extend", "step", "start", "release"])
        result = f"r{self.random.randrange(1000)}"
        extra = {"ack": {"result": result, "effect_id": result}, "nack": {"class": self.random.choice(CLASSES), "result": result, "delay": "20ms"},
                 "extend": {"lease": "1s"}, "step": {"name": f"s{self.random.randrange(3)}", "result": result}}.get(verb, {})
        newest = self.history.fences[m["queue"], m["key"]]  # before asking: a later lease may come in between
        self.history.verbs[m["queue"], m["key"], int(m["fence"])].add(extra.get("class", verb))
        body = self.expect(self.broker.settle(verb, m, **extra), 200)
        if body and int(m["fence"]) < newest:
            self.history.complain(f"{verb} of {m['key']} with fence {m['fence']} went through, though {newest} was handed out")
        if body and verb in ("ack", "nack") and body["state"] in ("done", "rejected"):
            self.history.settled_as(m["queue"], m["key"], body["state"], None if body.get("duplicate") else result)

    def look(self):
        queue, key = self.name()
        path = self.random.choice([f"/v1/queues/{queue}/keys/{key}", f"/v1/queues/{queue}/messages?state=dead", f"/v1/queues/{queue}/messages?limit=7",
                                   f"/v1/queues/{queue}", "/v1/stats", "/v1/queues"])
        self.expect(self.broker.get(path), 200)

    def operate(self):
        """What operators do meanwhile. Under q1's rules nobody decides by hand: only the workers' answers count there."""
        queue, _ = self.name()
        verb = self.random.choice(["redrive", "pause", "rules", "resolve", "purge"])
        if verb == "redrive":
            self.expect(self.broker.post(f"/v1/queues/{queue}/redrive", {"max": 5}), 200)
        elif verb == "pause":
            self.expect(self.broker.post(f"/v1/queues/{queue}/pause", {"by": "chaos"}), 200)
            self.expect(self.broker.post(f"/v1/queues/{queue}/resume", {"by": "chaos"}), 200)
        elif verb == "rules":
            rules = {**RULES[queue], "lease": f"{self.random.randrange(1, 60)}s"}
            self.expect(self.broker.call("PUT", f"/v1/queues/{queue}", json.dumps(rules).encode()), 200, 201)
        elif verb == "resolve" and queue == "q2":
            self.resolve(queue)
        elif verb == "purge" and queue == "q0" and self.random.random() < 0.2:
            self.expect(self.broker.post(f"/v1/queues/{queue}/purge", {"state": "dead"}), 200)

    def resolve(self, queue):
        held = self.expect(self.broker.get(f"/v1/queues/{queue}/messages?state=held&limit=5"), 200)["items"]
        for item in held:
            way = self.random.choice(["new", "duplicate"] if item["held_because"] == "conflict" else ["done", "rejected", "retry", "dead"])
            result = {"result": f"r{self.random.randrange(1000)}"} if way in ("done", "rejected") else {}
            body = self.expect(self.broker.post(f"/v1/queues/{queue}/messages/{item['id']}/resolve", {"as": way, "by": "chaos", **result}), 200)
            if body and way in ("done", "rejected"):
                self.history.settled_as(queue, item["key"], way, result["result"])

    def leave(self):
        queue, key = self.name()
        with self.broker.connect() as c:
            c.start("POST", f"/v1/queues/{queue}/receive?wait=1s&lease=1s&max=3", b"")
            if self.random.random() < 0.5:
                c.start("POST", f"/v1/queues/{queue}/messages", key.encode(), [("Idempotency-Key", key)])


@test
def answers_stay_true_through_abuse_and_kills():
    print(f"# HAPAX_SEED={SEED}", flush=True)
    chance, history = random.Random(SEED), History()
    with hx.Broker() as b:
        for queue, rules in RULES.items():
            b.rules(queue, **rules)
        until = time.monotonic() + SECONDS
        clients = [hx.Later(Client(b, history, chance.randrange(1 << 32)).run, until) for _ in range(8)]
        while time.monotonic() < until - 2 and not history.wrong:
            time.sleep(chance.uniform(0.3, 1.5))  # when it strikes is what the chance is about
            code = b.stop(chance.choice([9, 9, 15]))
            if code not in (0, -9):
                history.complain(f"the broker ended with {code}: {b.stderr()[-3000:]}")
            b.start()
        for client in clients:
            client.value()
        same(history.wrong, [])
        same(history.blind_retries("q1"), [])
        for (queue, key), identity in history.ids.items():
            view = b.key(queue, key)
            same(view["id"], identity, "nothing acknowledged is lost")
            if (queue, key) in history.settled:
                state, result = history.settled[queue, key]
                same(view["state"], state, f"{queue}/{key}")
                assert result is None or view["result"]["body"] == result, (view, result)
        assert history.enough(), "too little happened"
        same(b.stop(), 0)


hx.main(shared=False)
