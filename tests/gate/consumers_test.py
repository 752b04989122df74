#!/usr/bin/env python3
"""The C library against real servers: its own tests on PostgreSQL, and consumers (hx_consume behind a gate) that are
killed at every step between receiving a message and having it acked, on PostgreSQL and on SQLite.

A victim is told to die at its Nth step (gate_consumer.c); its message comes back when the lease ends, and
is finished by a consumer that is let live. Then each key must be done, with its result, and have one effect.
"""

import itertools
import os
import random
import re
import signal
import sqlite3
import subprocess

import harness
import hx
from harness import BUILD, ROOT, Bench, Skip, equal, test

CONSUMER = os.path.join(BUILD, "tests", "gate_consumer")
AT_ONCE = 4      # victims
PER_ROUND = 14   # messages of one queue: fewer than a lease's worth of victims, so that each key meets one crash
PATIENCE = 20    # survivors in a row, each waiting longer than a lease


def run_conformance(env, program, database, how="1"):
    if not os.path.exists(program):
        raise Skip("%s is not built" % os.path.relpath(program, ROOT))
    env.monitor.rows("CREATE DATABASE " + database)
    env.install(env.gate, database=database)
    variables = dict(env.server.environment(), PGDATABASE=database, HAPAX_TEST_PG=how, CMOCKA_MESSAGE_OUTPUT="TAP")
    done = subprocess.run([program], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failures = [line for line in done.stdout.splitlines() if line.startswith(("not ok", "# "))]
    assert done.returncode == 0 and not any(f.startswith("not ok") for f in failures), "\n".join(failures) or done.stdout
    assert len(re.findall(r"^ok \d+", done.stdout, re.M)) > 30, done.stdout


@test
def the_c_library_keeps_its_promises_on_postgresql(env):
    run_conformance(env, os.path.join(BUILD, "tests", "gate_test"), "conformance")


@test
def the_c_library_keeps_them_with_named_statements(env):
    run_conformance(env, os.path.join(BUILD, "tests", "gate_test"), "named", "named")


@test
def the_c_library_keeps_them_under_the_sanitizers(env):
    run_conformance(env, os.path.join(ROOT, "build-address", "tests", "gate_test"), "sanitized")


class Sink:
    """One kind of consumer, its queue, and the databases its effects end up in."""

    def __init__(self, bench, database, two_phase):
        self.bench, self.two_phase = bench, two_phase
        self.queue = "%s-%s" % (database, "two" if two_phase else "one")
        self.path = None if database == "pg" else os.path.join(bench.home, self.queue)
        self.keys = []
        self.serial = itertools.count()
        self.points = self.calibrate()

    def command(self, *more):
        return [CONSUMER, "--url", "http://127.0.0.1:%d" % self.bench.broker.port, "--queue", self.queue,
                "--db", self.path or "pg", *(["--two-phase"] if self.two_phase else []), *map(str, more)]

    def start(self, *more):
        return subprocess.Popen(self.command(*more), env=self.bench.env.server.environment(), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, *more):
        """Runs a consumer to its end, alive; what it printed."""
        process = self.start(*more)
        out, err = process.communicate(timeout=120)
        equal(process.returncode, 0, "consumer of %s: %s" % (self.queue, err))
        return out

    def put(self, payload="done"):
        key = "%s:%s:%d" % (self.bench.name, self.queue, next(self.serial))
        self.bench.broker.put(self.queue, key, payload=payload)
        return key

    def calibrate(self):
        """Every way to die: before each step, and while each is under way."""
        self.keys.append(self.put())
        steps = int(self.finish("--messages", 1).split()[0])
        assert steps >= 5, steps
        return [(n, moment) for n in range(1, steps + 1) for moment in ("before", "while")]

    def count(self, table, key):
        if not self.path:
            return int(self.bench.env.monitor.one("SELECT count(*) FROM %s WHERE key = '%s'" % (table, key)))
        with sqlite3.connect(self.path + ("-world" if table == "calls" else "")) as db:
            return db.execute("SELECT count(*) FROM %s WHERE key = ?" % table, (key,)).fetchone()[0]

    def state(self, key):
        return self.bench.broker.key(self.queue, key)["state"]

    def result(self, key):
        return self.bench.broker.get("/v1/queues/%s/keys/%s/result" % (self.queue, hx.quote(key)))

    def check(self):
        for key in self.keys:
            equal(self.count("effects", key), 1, "effects of " + key)
            equal(self.count("calls", key), 1 if self.two_phase else 0, "calls for " + key)
            equal(self.state(key), "done", key)
            equal(self.result(key).body.decode(), "result of " + key)
        self.keys = []


def sinks_of(bench):
    return [Sink(bench, database, two_phase) for database in ("pg", "sqlite") for two_phase in (False, True)]


def kill_some(sinks, ways, wanted):
    """Victims, a few at a time; returns how many died as they were told to."""
    died, running = 0, []
    for sink in sinks:
        sink.keys += [sink.put() for _ in range(PER_ROUND)]
    for sink in itertools.islice(itertools.cycle(sinks), min(wanted, PER_ROUND * len(sinks))):
        step, moment = next(ways[sink.queue])
        running.append(sink.start("--messages", 1, "--idle-ms", 600, "--die", step, *(["--while"] if moment == "while" else [])))
        if len(running) == AT_ONCE:
            died += reap(running.pop(0))
    return died + sum(map(reap, running))


def reap(victim):
    _, err = victim.communicate(timeout=120)
    assert victim.returncode in (-signal.SIGKILL, 0), err
    return victim.returncode == -signal.SIGKILL


def survive(sinks):
    for _ in range(PATIENCE):
        for survivor in [sink.start("--idle-ms", 600) for sink in sinks]:
            _, err = survivor.communicate(timeout=120)
            equal(survivor.returncode, 0, err)
        sinks = [sink for sink in sinks if any(sink.state(key) != "done" for key in sink.keys)]
        if not sinks:
            return
    raise AssertionError("not finished: %s" % [(k, s.state(k)) for s in sinks for k in s.keys if s.state(k) != "done"])


@test
def consumers_killed_at_any_step_between_receive_and_ack_have_one_effect_per_key(env):
    wanted = int(os.environ.get("CRASHES") or 50)
    with Bench(env) as bench:
        sinks = sinks_of(bench)
        rng = random.Random(wanted)
        ways = {}
        for sink in sinks:
            rng.shuffle(sink.points)
            ways[sink.queue] = itertools.cycle(sink.points)
        died = 0
        while died < wanted:
            died += kill_some(sinks, ways, wanted - died)
            survive(sinks)
            for sink in sinks:
                sink.check()
        print("# %d consumers killed; ways to die: %s" % (died, {s.queue: len(s.points) for s in sinks}))
        equal(env.monitor.one("SELECT count(*) FROM hapax.stranded('0') WHERE scope = 'crash'"), "0")


# What the broker is told, by verdict: the table in hapax/gate.h.

def after(sink, payload, *more):
    key = sink.put(payload)
    sink.finish("--messages", 1, *more)
    return key, sink.bench.broker.key(sink.queue, key)


@test
def the_handlers_verdict_decides_what_is_committed_and_what_the_broker_is_told(env):
    with Bench(env) as bench:
        for sink in sinks_of(bench):
            calls = 1 if sink.two_phase else 0
            key, told = after(sink, "reject")
            equal((told["state"], sink.count("effects", key)), ("rejected", 1 - calls), sink.queue)
            key, told = after(sink, "poison")
            equal((told["state"], sink.count("effects", key)), ("dead", 0), sink.queue)
            key, told = after(sink, "fail")
            equal((told["state"], sink.count("effects", key)), ("pending", 0), sink.queue)


@test
def a_connection_lost_in_the_transaction_is_asked_again_or_looked_up(env):
    with Bench(env) as bench:
        for sink in (Sink(bench, "pg", False), Sink(bench, "pg", True)):
            key, told = after(sink, "lost")
            if sink.two_phase:  # not again by this delivery: its reservation would take it for itself, before its call
                equal((told["state"], sink.count("calls", key), sink.count("effects", key)), ("pending", 1, 0))
            sink.keys = [key]
            survive([sink])
            sink.check()
            equal(len(bench.broker.key(sink.queue, key)["attempts"]), 2 if sink.two_phase else 1)


@test
def a_message_delivered_after_its_commit_is_acked_with_the_stored_result(env):
    with Bench(env) as bench:
        sinks = sinks_of(bench)
        for sink in sinks:
            last = max(n for n, _ in sink.points)
            sink.keys = [sink.put() for _ in range(4)]
            for back in range(4):  # the last steps are the ack's; before them is the COMMIT
                reap(sink.start("--messages", 1, "--die", last - back))
            between = [key for key in sink.keys if sink.count("effects", key) == 1 and sink.state(key) != "done"]
            assert between, "nobody died between COMMIT and ack"
        survive(sinks)
        for sink in sinks:
            sink.check()


@test
def a_consumer_whose_database_has_no_gate_gives_its_message_back_and_stops(env):
    with Bench(env) as bench:
        sink = Sink(bench, "pg", False)
        env.monitor.rows("INSERT INTO hapax.schema_version VALUES (99)")
        try:
            key = sink.put()
            process = sink.start()
            _, err = process.communicate(timeout=60)
        finally:
            env.monitor.rows("DELETE FROM hapax.schema_version WHERE version = 99")
        equal((process.returncode, sink.state(key)), (0, "pending"), err)
        assert "HX006" in err, err
        sink.finish("--messages", 1)
        equal(sink.state(key), "done")


harness.main()
