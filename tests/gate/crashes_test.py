#!/usr/bin/env python3
"""Consumers, connections and the server itself die at every step; a successor picks the work up. One effect per key.

A consumer is a list of steps, each one request on one of its two connections: the database with the gate, and the
downstream, a table in another database that has no unique key and so shows every effect it was asked for. A crash is a
step, a moment (before it is sent, while it runs, when it is answered but nobody has read it, after its answer) and a
kind:

    drop        the client vanishes, its requests unanswered
    terminate   pg_terminate_backend, as an administrator or a failover proxy does
    immediate   the server loses its memory (pg_ctl -m immediate) and recovers from its log

Then the message is delivered again, with the next fence, to a consumer that is let live.
"""

import collections
import itertools
import os
import random
import threading
import time

import harness
import pg
from harness import equal, test

MOMENTS = ("before", "while", "unread", "after")


class Consumer:
    def __init__(self, env, key, fence, gate=None, downstream=None):
        self.key, self.fence = key, fence
        self.gate = gate or env.session()
        self.downstream = downstream or env.session(database="downstream")

    def one_transaction(self):
        yield self.gate, "BEGIN"
        told = yield self.gate, "SELECT status FROM hapax.claim('crash', '%s', fence => %d)" % (self.key, self.fence)
        if told == "new":
            yield self.gate, "INSERT INTO effects VALUES ('%s')" % self.key
            told = yield self.gate, "SELECT hapax.commit_outcome('crash', '%s', 'r')" % self.key
            equal(told, "committed")
        yield self.gate, "COMMIT"

    def two_phase(self):
        reserve = "SELECT status FROM hapax.reserve('crash', '%s', fence => %d, owner => 'w')" % (self.key, self.fence)
        yield self.gate, "BEGIN"
        told = yield self.gate, reserve
        yield self.gate, "COMMIT"
        if told == "unknown":
            found = yield self.downstream, "SELECT count(*) FROM calls WHERE key = '%s'" % self.key
            if found == "0":
                yield self.gate, "SELECT hapax.release('crash', '%s', %d)" % (self.key, self.fence)
                told = yield self.gate, reserve
                equal(told, "new", "after release")
        if told == "duplicate":
            return
        assert told in ("new", "unknown"), told
        if told == "new":
            yield self.downstream, "INSERT INTO calls VALUES ('%s')" % self.key
        yield self.gate, "BEGIN"
        yield self.gate, "INSERT INTO effects VALUES ('%s')" % self.key
        told = yield self.gate, "SELECT hapax.commit_outcome('crash', '%s', 'r', fence => %d)" % (self.key, self.fence)
        equal(told, "committed")
        yield self.gate, "COMMIT"


STEPS = {"one_transaction": 5, "two_phase": 8}


def live(steps, dies_at=None, moment=None):
    """Runs a consumer's steps; returns True if it got to its end, False once its moment to die has come."""
    answer = None
    for at in itertools.count():
        try:
            session, sql = steps.send(answer)
        except StopIteration:
            return True
        if at == dies_at and moment == "before":
            return False
        session.send(sql)
        if at == dies_at and moment == "while":
            return False
        if at == dies_at and moment == "unread":
            while not session.answered(1):
                pass
            return False
        rows = session.finish()
        answer = rows[0][0] if rows else None
        if at == dies_at:
            return False


def kill(env, consumer, kind):
    if kind == "immediate":
        env.server.stop("immediate")
        env.server.start()
        env.monitor = env.server.connect()
    elif kind == "terminate":
        for session in (consumer.gate, consumer.downstream):
            env.monitor.rows("SELECT pg_terminate_backend(%d, 60000)" % session.pid)
    env.close()
    env.settled_down()


def schedule(count):
    """Each step, moment and kind in turn, shuffled; a restart of the server costs a second, so they are one in ten."""
    rng = random.Random(count)
    points = [(form, step, moment) for form in STEPS for step in range(STEPS[form]) for moment in MOMENTS]
    gentle = [p + (kind,) for p in points for kind in ("drop", "terminate")]
    harsh = [p + ("immediate",) for p in points]
    rng.shuffle(gentle)
    rng.shuffle(harsh)
    gentle, harsh = itertools.cycle(gentle), itertools.cycle(harsh)
    return [next(harsh if n % 10 == 9 else gentle) for n in range(count)]


def fresh_downstream(env):
    env.monitor.rows("DROP DATABASE IF EXISTS downstream")
    env.monitor.rows("CREATE DATABASE downstream")
    env.session(database="downstream").rows("CREATE TABLE calls (key text)")
    env.close()


@test
def a_crash_at_any_step_leaves_one_effect_per_key(env):
    count = int(os.environ.get("CRASHES") or 50)
    env.monitor.rows("CREATE TABLE effects (key text)")
    fresh_downstream(env)
    for n, (form, step, moment, kind) in enumerate(schedule(count)):
        key, what = "%s %d" % (form, n), "%s, %s step %d, %s" % (form, moment, step, kind)
        victim = Consumer(env, key, fence=1)
        live(getattr(victim, form)(), step, moment)
        kill(env, victim, kind)
        successor = Consumer(env, key, fence=2)
        assert live(getattr(successor, form)()), what
        late = Consumer(env, key, fence=3)
        equal(late.gate.one("SELECT status FROM hapax.claim('crash', '%s', fence => 3)" % key), "duplicate", what)
        effects = env.monitor.one("SELECT count(*) FROM effects WHERE key = '%s'" % key)
        calls = late.downstream.one("SELECT count(*) FROM calls WHERE key = '%s'" % key)
        equal((effects, calls), ("1", "1" if form == "two_phase" else "0"), what)
        env.close()
    equal(env.monitor.one("SELECT count(*) FROM hapax.stranded('0') WHERE scope = 'crash'"), "0")



@test
def failover_to_a_synchronous_standby_leaves_one_effect_per_key(env):
    """Consumers at every step and moment at once; the primary loses its memory and its place. The downstream lives on."""
    fresh_downstream(env)
    points = [(form, step, moment) for form in STEPS for step in range(STEPS[form]) for moment in MOMENTS]
    with pg.Server(settings=["fsync=off"]) as primary:
        primary.psql("-v", "ON_ERROR_STOP=1", "-f", env.gate, "-c", "CREATE TABLE effects (key text)")
        with pg.Standby(primary) as standby:
            admin = primary.connect()
            admin.rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.rows("SELECT pg_reload_conf()")
            while admin.one("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "1":
                pass
            victims = [Consumer(env, "%s %d %s" % point, 1, gate=primary.connect()) for point in points]
            done = [live(getattr(victim, form)(), step, moment) for victim, (form, step, moment) in zip(victims, points)]
            equal(any(done), False, "all of them died")
            primary.stop("immediate")
            standby.promote()
            new_primary = standby.connect()
            new_primary.rows("ALTER SYSTEM RESET synchronous_standby_names")
            new_primary.rows("SELECT pg_reload_conf()")
            env.close()
            env.settled_down()
            for form, step, moment in points:
                key, what = "%s %d %s" % (form, step, moment), "%s, %s step %d" % (form, moment, step)
                if moment in ("unread", "after") and step == STEPS[form] - 1:
                    equal(new_primary.one("SELECT count(*) FROM effects WHERE key = '%s'" % key), "1", "answered, so kept: " + what)
                successor = Consumer(env, key, 2, gate=standby.connect())
                assert live(getattr(successor, form)()), what
                effects = new_primary.one("SELECT count(*) FROM effects WHERE key = '%s'" % key)
                calls = successor.downstream.one("SELECT count(*) FROM calls WHERE key = '%s'" % key)
                equal((effects, calls), ("1", "1" if form == "two_phase" else "0"), what)
                successor.gate.drop()
                env.close()


class Deliverer(threading.Thread):
    """Takes deliveries from a shared list and gives back what it could not finish; some come twice anyway."""

    def __init__(self, env, deliveries, fences, seed):
        super().__init__(daemon=True)
        self.env, self.deliveries, self.fences, self.rand = env, deliveries, fences, random.Random(seed)

    def handle(self, key):
        """True once its effect is known to be there."""
        gate = self.env.server.connect()
        consumer = Consumer(self.env, key, next(self.fences), gate, gate)
        dies_at = self.rand.choice([None, None, None, 1, 2, 3, 4])
        finished = live(consumer.one_transaction(), dies_at, self.rand.choice(MOMENTS))
        settled = finished and gate.one("SELECT count(*) FROM effects WHERE key = '%s'" % key) != "0"
        gate.drop()
        return settled

    def run(self):
        while True:
            try:
                key = self.deliveries.pop()
            except IndexError:
                return
            try:
                again = not self.handle(key) or self.rand.random() < 0.1
            except (pg.Lost, pg.SqlError, OSError):
                again = True
                time.sleep(0.005)
            if again:
                self.deliveries.appendleft(key)


@test
def the_server_dies_at_random_moments_under_racing_deliveries_and_each_key_has_one_effect(env):
    faults = max(5, int(os.environ.get("CRASHES") or 0) // 20)
    rand = random.Random(faults)
    env.monitor.rows("DROP TABLE IF EXISTS effects; CREATE TABLE effects (key text)")
    keys = ["storm %d" % n for n in range(faults * 40)]
    # Each is delivered twice from the start, to whoever comes by.
    deliveries, fences = collections.deque(keys + keys), itertools.count(1)
    workers = [Deliverer(env, deliveries, fences, n) for n in range(4)]
    for w in workers:
        w.start()
    for n in range(faults):
        time.sleep(rand.uniform(0.02, 0.2))
        if n % 2:
            env.monitor.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                             " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
        else:
            env.server.stop("immediate")
            env.server.start()
            env.monitor = env.server.connect()
    for w in workers:
        w.join()
    equal(env.monitor.rows("SELECT count(*), count(DISTINCT key) FROM effects"), [(str(len(keys)), str(len(keys)))])


harness.main()
