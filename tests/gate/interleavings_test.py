#!/usr/bin/env python3
"""Every interleaving of three workers on one key, executed for real.

A worker is a generator: it yields the SQL of its next step (or a pair of SQL and what to do the moment it is sent) and
is sent the rows, or the SqlError, that came back. The
explorer runs three of them on three sessions, one step at a time. Where more than one worker could go next it takes one
and remembers the others; when all have finished it starts over on a fresh key and takes the next remembered way, until
none is left (stateless search, depth first). A worker that waits for a lock cannot be chosen; it goes on when the
database lets it. So the schedules are exactly those PostgreSQL admits.

Two things are checked: at every answer, that it is the one the model below allows at this moment; at the end, that the
key's effect is there once.
"""

import os
import random

import harness
import pg
from harness import equal, test

FULL = bool(os.environ.get("CRASHES"))


class Explorer:
    def __init__(self, env, scope):
        self.env = env
        self.scope = scope
        self.sessions = [env.session() for _ in range(3)]
        self.runs = 0

    def exhaust(self, make_workers, check):
        """make_workers(key) -> three generators; check(key) after they have ended."""
        ways = [[]]
        while ways:
            prefix = ways.pop()
            taken, choices = self._run(make_workers, check, prefix, lambda options: options[0])
            for at in range(len(prefix), len(taken)):
                ways += [taken[:at] + [other] for other in choices[at] if other != taken[at]]

    def sample(self, make_workers, check, count, seed):
        rng = random.Random(seed)
        for _ in range(count):
            self._run(make_workers, check, [], rng.choice)

    def _run(self, make_workers, check, prefix, choose):
        self.runs += 1
        key = "%s %d" % (self.scope, self.runs)
        workers = make_workers(key)
        steps = [next(w) for w in workers]
        waiting, taken, choices = [], [], []
        try:
            while any(s is not None for s in steps):
                options = [i for i in range(3) if steps[i] is not None and i not in waiting]
                wish = prefix[len(taken)] if len(taken) < len(prefix) else choose(options)
                # Of two waiters either may win a race, so a remembered way can turn out different the second time.
                i = wish if wish in options else options[0]
                taken.append(i)
                choices.append(options)
                sql, sent = steps[i] if isinstance(steps[i], tuple) else (steps[i], lambda: None)
                sent()
                self.sessions[i].send(sql)
                waiting.append(i)
                self._collect(workers, steps, waiting)
            check(key)
        except Exception as e:
            raise AssertionError("schedule %s of key %r: %s" % (taken, key, e)) from e
        return taken, choices

    def _collect(self, workers, steps, waiting):
        """Hands every answer that has arrived to its worker, until all that is left waits for a lock."""
        progress = True
        while progress:
            progress = False
            for i in list(waiting):
                if self.env.blocked(self.sessions[i]):
                    continue
                waiting.remove(i)
                progress = True
                try:
                    answer = self.sessions[i].finish()
                except pg.SqlError as e:
                    answer = e
                try:
                    steps[i] = workers[i].send(answer)
                except StopIteration:
                    steps[i] = None


class OneTransaction:
    """claim, write, end; with the exact model of who must be told what."""

    def __init__(self, key, scope, level):
        self.key, self.scope, self.level = key, scope, level
        self.holder = None
        self.done_by = None

    def worker(self, name, ends):
        """Claims and ends as told by `ends`, one attempt each; stops early when it is told `duplicate`."""
        for end in ends:
            while True:
                told = yield from self.attempt(name, end)
                if told != "40001":
                    break
            if told == "duplicate":
                return

    def attempt(self, name, end):
        begin = "BEGIN ISOLATION LEVEL %s; SELECT 1 FROM sink LIMIT 1;" % self.level
        claim = "SELECT status, convert_from(result, 'UTF8') FROM hapax.claim('%s', '%s')" % (self.scope, self.key)
        if self.level == "READ COMMITTED":
            answer = yield begin + claim
        else:
            # The snapshot is taken some time before the claim: that is where stricter levels lose races.
            yield begin
            answer = yield claim
        if isinstance(answer, pg.SqlError):
            equal((answer.code, self.level != "READ COMMITTED"), ("40001", True), "error of a claim")
            yield "ROLLBACK"
            return "40001"
        assert self.holder is None, "%s was answered %r while %s holds the key" % (name, answer, self.holder)
        if self.done_by:
            equal(answer, [("duplicate", self.done_by)], "claim after a commit")
            yield "COMMIT"
            return "duplicate"
        equal(answer, [("new", None)], "claim of a free key")
        self.holder = name
        answer = yield ("INSERT INTO sink VALUES ('{1}', '{2}'); SELECT hapax.commit_outcome('{0}', '{1}', '{2}')"
                        .format(self.scope, self.key, name))
        equal(answer, [("committed",)])
        answer = yield end, lambda: self.let_go(name, end)
        equal(answer, [], end)
        return "new"

    def let_go(self, name, end):
        self.holder, self.done_by = None, name if end == "COMMIT" else None


class TwoPhase:
    """reserve and commit; write and settle; commit. Fences 1, 2, 3, so that successors and zombies meet in every order."""

    def __init__(self, key, scope):
        self.key, self.scope = key, scope
        self.highest = 0

    def worker(self, fence):
        answer = yield "SELECT status FROM hapax.reserve('%s', '%s', fence => %d, owner => 'w%d')" % (
            self.scope, self.key, fence, fence)
        told = answer[0][0]
        legal = {"new", "duplicate"} if fence > self.highest == 0 else {"unknown", "duplicate"} if fence > self.highest else {
            "stale", "duplicate"}
        assert told in legal, "fence %d, highest seen %d: told %r" % (fence, self.highest, told)
        self.highest = max(self.highest, fence)
        if told not in ("new", "unknown"):
            return
        settle = "BEGIN; INSERT INTO sink VALUES ('{1}', 'w{2}'); SELECT hapax.commit_outcome('{0}', '{1}', 'effect', fence => {2})"
        answer = yield settle.format(self.scope, self.key, fence)
        if isinstance(answer, pg.SqlError):
            equal((answer.code, fence < self.highest), ("HX001", True))
            yield "ROLLBACK"
        else:
            equal(answer, [("committed",)])
            yield "COMMIT"


def sink_rows(env, key):
    return env.monitor.rows("SELECT who FROM sink WHERE key = '%s'" % key)


def one_transaction(env, scope, level, search, *ends):
    env.monitor.rows("CREATE TABLE IF NOT EXISTS sink (key text, who text)")
    explorer = Explorer(env, scope)
    models = {}

    def make(key):
        model = models[key] = OneTransaction(key, scope, level)
        return [model.worker("w%d" % i, e) for i, e in enumerate(ends)]

    def check(key):
        winner = models.pop(key).done_by
        equal(sink_rows(env, key), [(winner,)] if winner else [], "effects")
        stored = env.monitor.rows("SELECT convert_from(result, 'UTF8') FROM hapax.keys WHERE scope = '%s' AND key = '%s'" % (scope, key))
        equal(stored, [(winner,)] if winner else [], "stored result")

    search(explorer, make, check)
    return explorer.runs


C, R = ["COMMIT"], ["ROLLBACK"]
RC = R + C


@test
def every_interleaving_of_three_claimants_has_one_effect(env):
    casts = [(C, C, C), (C, C, R), (C, R, R), (R, R, R), (C, C, RC)] + ([(C, R, RC), (C, RC, RC), (R, RC, RC)] if FULL else [])
    runs = [one_transaction(env, "rc%d" % n, "READ COMMITTED", Explorer.exhaust, *cast) for n, cast in enumerate(casts)]
    print("# schedules: %s" % runs)
    assert min(runs) > 50, runs


@test
def stricter_levels_lose_races_with_40001_and_succeed_on_retry(env):
    count = 2000 if FULL else 60
    for scope, level in (("rr", "REPEATABLE READ"), ("ser", "SERIALIZABLE")):
        search = lambda e, make, check: e.sample(make, check, count, seed=count)
        one_transaction(env, scope, level, search, C, RC, RC)


@test
def every_interleaving_of_three_reservations_with_fences_has_one_ledger_row(env):
    env.monitor.rows("CREATE TABLE IF NOT EXISTS sink (key text, who text)")
    explorer = Explorer(env, "two")

    def make(key):
        model = TwoPhase(key, "two")
        return [model.worker(f) for f in (1, 2, 3)]

    def check(key):
        equal(len(sink_rows(env, key)), 1, "ledger rows")
        equal(env.monitor.rows("SELECT state FROM hapax.keys WHERE scope = 'two' AND key = '%s'" % key), [("done",)])

    explorer.exhaust(make, check)
    print("# schedules: %d" % explorer.runs)


harness.main()
