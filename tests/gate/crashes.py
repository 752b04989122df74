"""Consumers, connections and the server itself die at every step; a successor picks the work up. One effect per key.

A consumer is a list of steps, each one request on one of its two connections: the database with the gate, and the
downstream, a table in another database that has no unique key and so shows every effect it was asked for. A crash is a
step, a moment (before it is sent, while it runs, after its answer) and a kind:

    drop        the client vanishes, its requests unanswered
    terminate   pg_terminate_backend, as an administrator or a failover proxy does
    immediate   the server loses its memory (pg_ctl -m immediate) and recovers from its log

Then the message is delivered again, with the next fence, to a consumer that is let live.
"""

import itertools
import os
import random

from harness import equal, test

MOMENTS = ("before", "while", "after")


class Consumer:
    def __init__(self, env, key, fence):
        self.key, self.fence = key, fence
        self.gate = env.session()
        self.downstream = env.session(database="downstream")

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


@test
def a_crash_at_any_step_leaves_one_effect_per_key(env):
    count = int(os.environ.get("CRASHES") or 50)
    env.monitor.rows("CREATE TABLE effects (key text)")
    env.monitor.rows("DROP DATABASE IF EXISTS downstream")
    env.monitor.rows("CREATE DATABASE downstream")
    env.session(database="downstream").rows("CREATE TABLE calls (key text)")
    env.close()
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

