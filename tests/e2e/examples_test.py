#!/usr/bin/env python3
"""The consumers in examples/, run as they are against a broker: what they do is a line in a ledger, and the promise is about
the number of those lines."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import hx
from hx import members, same, test, until

EXAMPLES = os.path.join(hx.ROOT, "examples")
WORKERS = {"python": [sys.executable, os.path.join(EXAMPLES, "python", "worker.py")],
           "node": [shutil.which("node") or "node", os.path.join(EXAMPLES, "node", "worker.mjs")]}


class Worker:
    """One of them, in a directory of its own or another's."""

    def __init__(self, language, q, home=None, lease="30s", of=None):
        self.home = home or tempfile.mkdtemp(prefix="hapax-e2e-")
        self.log = tempfile.TemporaryFile()
        env = dict(os.environ, HAPAX_URL=(of or hx.broker).url, LEASE=lease)
        self.process = subprocess.Popen([*WORKERS[language], q], cwd=self.home, env=env, stdin=subprocess.DEVNULL, stderr=self.log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def ledger(self):
        try:
            with open(os.path.join(self.home, "ledger.jsonl"), encoding="utf-8") as file:
                return [json.loads(line) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def said(self):
        self.log.seek(0)
        return self.log.read().decode()

    def ends(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(hx.TIMEOUT)


def order(q, key, **more):
    same(hx.broker.event(q, {"amount": 5, **more}, key).status, 202)


def becomes(q, key, state):
    until(lambda: hx.broker.state(q, key) == state, f"{key} is {state}")


def for_each_language(function):
    for language in WORKERS:
        def body(q, language=language):
            function(q, language)
        body.__name__ = f"{language}_{function.__name__}"
        test(body)
    return function


@for_each_language
def does_each_once_and_keeps_the_result(q, language):
    b = hx.broker
    with Worker(language, q) as worker:
        for n in range(5):
            order(q, f"k{n}")
        b.put(q, "poison", payload="no order")
        for n in range(5):
            becomes(q, f"k{n}", "done")
        becomes(q, "poison", "dead")
        same(worker.ends(), 0, worker.said())
        same(sorted(c["effect_key"] for c in worker.ledger()), [f"k{n}" for n in range(5)])
        same(json.loads(b.get(f"/v1/queues/{q}/keys/k3/result").body)["amount"], 5)
        assert b.key(q, "k3")["attempts"][0]["consumer"].startswith(language), b.key(q, "k3")


@for_each_language
def renews_its_lease_while_the_work_goes_on(q, language):
    b = hx.broker
    b.rules(q, retry={"unknown": {"attempts": 9}})
    with Worker(language, q, lease="5") as worker:
        order(q, "slow", seconds=7)
        until(worker.ledger, "it is begun")
        until(lambda: same(b.receive(q), [], "nobody else is handed it") or b.state(q, "slow") == "done", "it is done")
        same((len(b.key(q, "slow")["attempts"]), len(worker.ledger())), (1, 1), worker.said())


@for_each_language
def looks_up_what_a_killed_one_left_behind(q, language):
    b = hx.broker
    b.rules(q, on_unknown="reconcile")
    with Worker(language, q, lease="1s") as first:
        order(q, "charged", seconds=60)
        until(first.ledger, "it is charged")
        first.ends(signal.SIGKILL)
        with Worker(language, q, home=first.home) as second:
            becomes(q, "charged", "done")
            same(len(second.ledger()), 1, "charged once")
            members(json.loads(b.get(f"/v1/queues/{q}/keys/charged/result").body), effect_key="charged", amount=5)


@for_each_language
def does_what_is_not_found(q, language):
    b = hx.broker
    b.rules(q, on_unknown="reconcile")
    order(q, "k")
    b.ok("nack", b.one(q), **{"class": "unknown"})
    with Worker(language, q) as worker:
        becomes(q, "k", "done")
        same([c["effect_key"] for c in worker.ledger()], ["k"])


@for_each_language
def says_when_its_lease_is_lost_and_goes_on(q, language):
    b = hx.broker
    with Worker(language, q, lease="3s") as worker:
        order(q, "k", seconds=3)
        until(worker.ledger, "it is begun")
        b.post(f"/v1/queues/{q}/messages/{b.key(q, 'k')['id']}/cancel")
        until(lambda: "settled" in worker.said() or "lost" in worker.said(), "it is told")
        order(q, "next")
        becomes(q, "next", "done")


@for_each_language
def does_not_let_go_of_done_work_while_the_broker_is_away(q, language):
    """For longer than a lease: it is settled by who did it, and nobody does it again."""
    with hx.Broker() as b, Worker(language, q, lease="1s", of=b) as worker:
        same(b.event(q, {"amount": 5, "seconds": 1}, "k").status, 202)
        until(worker.ledger, "it is begun")
        b.kill()
        until(lambda: worker.said().count("again") >= 12, "it is tried again and again")
        b.start()
        until(lambda: b.state(q, "k") == "done", "it is settled")
        same((len(b.key(q, "k")["attempts"]), len(worker.ledger())), (1, 1), worker.said())


hx.main()
