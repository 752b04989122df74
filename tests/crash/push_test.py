#!/usr/bin/env python3
"""kill -9 between lease and commit of a push: the receiver counts what was done, and the broker must know it in the end.

The broker dies at named points, one after the other: while it writes, syncs, connects, sends or reads (its system calls, by strace), when
the receiver has read a request, has acted, has said half of its reply or all of it, when a look-up was asked or answered; and at
random moments. The receiver is no help: it never deduplicates, cuts some connections after it has acted and some before, is busy now and
then. Every key must end with one effect, known to the broker by its name; where the rules say that nothing may be sent again, with one
effect or none, and then in a person's hands.

PUSH_KILLS (20) is how often, PUSH_LOAD (1) how many messages are sent at a time, PUSH_SEED repeats a run's choices. Prints TAP."""
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import kit
from kit import Lost, NotReady, check, complain, new_broker, test, until
from receiver import CLOSE, HANG, Answer, Receiver

KILLS = int(os.environ.get("PUSH_KILLS", 20))
LOAD = int(os.environ.get("PUSH_LOAD", 1))
SEED = int(os.environ.get("PUSH_SEED", random.SystemRandom().randrange(1 << 32)))
DRAIN_BOUND_S = 600

RETRY = "{transient: {attempts: 1000, backoff: 10ms, max: 50ms}, unknown: {attempts: 1000}, crashes: {attempts: 1000}}"
DELIVER = '{url: "URL/book", timeout: 2s, allow_private: true, effect_id: id, circuit: {ratio: 100%, of: 10000}}'
RECONCILE = ('{url: "URL/slots?key=${hapax.effect_key}", exists: "items[0].id", effect_id: "items[0].id", after: 200ms, every: 200ms, '
             'attempts: 1000, timeout: 2s}')
CONFIG = f"""\
queues:
  keyed: {{downstream: {{idempotency: key}}, retry: {RETRY}, deliver: {DELIVER}, reconcile: {RECONCILE}}}
  asked: {{downstream: {{idempotency: none}}, retry: {RETRY}, deliver: {DELIVER}, reconcile: {RECONCILE}}}
  bare: {{downstream: {{idempotency: none}}, on_unknown: hold, retry: {RETRY}, deliver: {DELIVER}}}
"""

# Where the broker dies. The receiver's points are those of its hooks; a system call is met the nth time after the broker was told to go on.
AT_RECEIVER = ["seen", "acted", "half", "said"]
AT_LOOK_UP = ["asked", "answered"]
AT_CALL = [(call, n) for n in (1, 2, 3) for call in ("pwrite64", "fdatasync", "connect", "sendto,sendmsg", "recvfrom")]
AT_RANDOM = ["random"] * 6


def points(kills, rand):
    """So many of them, none a second time before each had its turn."""
    named, chosen = AT_RECEIVER + AT_LOOK_UP + AT_CALL + AT_RANDOM, []
    while len(chosen) < kills:
        chosen += rand.sample(named, len(named))
    return chosen[:kills]


class World:
    """A broker that pushes, the receiver it pushes to, and who sends."""

    def __init__(self, directory, queues, seed):
        self.rand, self.seed, self.queues = random.Random(seed), seed, queues
        self.armed, self.died, self.lock, self.came = None, threading.Event(), threading.Lock(), collections.Counter()
        self.receiver = Receiver(always=self.answer)
        kit.UNDO.append(self.receiver.close)
        self.receiver.look_up, self.plain_look_up = self.look_up, self.receiver.look_up
        self.broker = new_broker(os.path.join(directory, "data"), config=CONFIG.replace("URL", self.receiver.url)).start()
        self.keys, self.unheard, self.struck, self.busy = {q: [] for q in queues}, [], collections.Counter(), collections.Counter()

    # ---- the receiver

    def strike(self, point):
        """Kills the broker, if it is to die here."""
        with self.lock:
            if self.armed != point:
                return
            self.armed = None
        self.broker.signal(signal.SIGKILL)
        self.died.set()

    def answer(self, request):
        with self.lock:
            self.came[request.key] += 1
            chance = random.Random(f"{self.seed} {request.key} {self.came[request.key]}").random()
        hooks = {name: lambda _, name=name: self.strike(name) for name in ("seen", "acted", "said")}
        if self.armed == "half":
            return Answer(at=60, then=HANG, said=lambda _: self.strike("half"))
        if chance < (0.5 if self.armed in AT_LOOK_UP else 0.08):
            return Answer(at=self.rand.randrange(90), then=CLOSE, **hooks)
        if chance > 0.96:
            return Answer(at=0, then=CLOSE, effect=False, **hooks)
        if chance > 0.90:
            self.busy[request.key] += 1
            return Answer(503, **hooks)
        return Answer(**hooks)

    def look_up(self, request):
        self.strike("asked")
        answer = self.plain_look_up(request)
        answer.said = lambda _: self.strike("answered")
        return answer

    # ---- who sends

    def send(self):
        """LOAD more of every queue. What is not heard of is sent again when the broker is back."""
        client = self.broker.client(10)
        for queue in self.queues:
            known = len(self.keys[queue])
            keys = [f"{queue}-{n}" for n in range(known, known + LOAD)]
            self.keys[queue] += keys
            self.tell(client, queue, keys)
        client.close()

    def tell(self, client, queue, keys):
        try:
            reply = client.batch(queue, [{"key": key, "payload": {"slot": key}} for key in keys])
            told = [line["status"] for line in reply.lines()]
            check(reply.status == 200 and len(told) == len(keys) and set(told) <= {200, 202}, f"{keys}: {reply!r}")
        except Lost:
            self.unheard.append((queue, keys))

    # ---- a death

    def die(self, point):
        if isinstance(point, tuple):
            return self.die_in_call(*point)
        if point == "random":
            for _ in range(3):
                self.send()
            time.sleep(self.rand.uniform(0, 0.4))
            self.broker.signal(signal.SIGKILL)
            return True
        self.died.clear()
        self.armed = point
        end = time.monotonic() + 40
        while not self.died.is_set() and time.monotonic() < end:
            self.send()
            self.died.wait(0.05)
        check(self.died.is_set(), f"nothing came as far as `{point}`")
        return True

    def strace(self, fault, call):
        """Around the running broker from now on."""
        strace = subprocess.Popen(["strace", "-f", "-p", str(self.broker.process.pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", fault],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        kit.UNDO.append(strace.kill)
        if not any("attached" in line for line in strace.stderr):
            raise kit.Skip("strace cannot attach")
        return strace

    def die_in_call(self, call, n):
        """In the nth such call from now on; False if it does not make as many."""
        strace = self.strace(f"inject={call}:signal=SIGKILL:when={n}", call)
        end = time.monotonic() + 3
        while self.broker.running() and time.monotonic() < end:
            self.send()
        died = not self.broker.running()
        if not died:
            strace.send_signal(signal.SIGINT)
        strace.communicate()
        return died

    def kill(self, point):
        met = self.die(point)
        self.struck["random" if not met else point if isinstance(point, str) else point[0]] += 1
        self.armed = None
        code = self.broker.kill()
        check(code == -signal.SIGKILL, f"it ended by itself with {code} at {point}: {self.broker.last_words()}")
        for _ in range(self.rand.choice([0, 0, 0, 1])):  # and again while it recovers
            self.broker.spawn()
            time.sleep(self.rand.uniform(0, 0.1))
            self.broker.kill()
        self.broker.start()

    # ---- the end

    def drain(self):
        client, unheard = self.broker.client(), self.unheard
        self.unheard = []
        for queue, keys in unheard:
            self.tell(client, queue, keys)
        for queue in self.queues:
            until(lambda: self.idle(client.queue(queue)), f"{queue} is done with: {client.queue(queue)}", bound=DRAIN_BOUND_S)
        check(not self.unheard, f"never heard of: {self.unheard}")
        return client

    @staticmethod
    def idle(queue):
        return queue["pending"] + queue["leased"] == 0

    def requests(self):
        by_key = collections.defaultdict(list)
        for request in self.receiver.requests:
            by_key[request.key].append(request)
        return by_key

    def summary(self):
        total = sum(map(len, self.keys.values()))
        done = sum(self.receiver.effects.values())
        complain(f"seed {SEED}: {sum(self.struck.values())} kills ({', '.join(f'{n} {p}' for p, n in sorted(self.struck.items()))}), {total} keys, "
                 f"{len(self.receiver.requests)} requests, {done} effects, {len(self.receiver.asked)} look-ups")


def storm(directory, queues, kills, seed):
    if not shutil.which("strace"):
        raise kit.Skip("strace is not installed")
    world = World(directory, queues, seed)
    try:
        for point in points(kills, world.rand):
            world.kill(point)
        client = world.drain()
    except NotReady as e:
        raise AssertionError(f"it did not come back: {e}") from e
    finally:
        world.summary()
    return world, client


def effect_known(client, queue, key):
    """The name the broker has for what was done."""
    result = client.get(f"/v1/queues/{queue}/keys/{key}/result").json()
    return result["id"] if "id" in result else result["items"][0]["id"]


def same_id_always(world, client):
    for key, requests in world.requests().items():
        ids = {r.id for r in requests} | {client.key(key.split("-")[0], key)["id"]}
        check(len(ids) == 1, f"{key} was sent as {ids}")


@test
def nothing_leaves_before_its_lease_is_on_disk(directory):
    """The disk is slow, and the broker dies when the request has arrived: it must know of it afterwards."""
    world = World(directory, ["bare"], SEED)
    world.answer = world.receiver.always = lambda request: Answer(seen=lambda _: world.strike("seen"))
    strace = world.strace("inject=pwrite64:delay_enter=400000", "pwrite64")
    world.armed = "seen"
    world.send()
    check(world.died.wait(60), "nothing was sent")
    world.broker.kill()
    strace.communicate()
    world.broker.start()
    client = world.drain()
    check(client.state("bare", "bare-0") == "held", f"{client.key('bare', 'bare-0')}")
    check(len(world.receiver.requests) == 1, f"it was sent {len(world.receiver.requests)} times: its lease was not written when it left")


@test
def killed_anywhere_between_lease_and_commit_every_key_has_one_effect(directory):
    world, client = storm(directory, ["keyed"], KILLS * 3 // 5, SEED)
    for key in world.keys["keyed"]:
        check(client.state("keyed", key) == "done", f"{key}: {client.key('keyed', key)}")
        check(world.receiver.effects.get(key) == 1, f"{key} was done {world.receiver.effects.get(key)} times: {client.key('keyed', key)}")
        check(effect_known(client, "keyed", key) == world.receiver.table.of(key), f"{key}: another effect is known than was made")
    same_id_always(world, client)


@test
def killed_anywhere_what_may_not_be_repeated_is_never_sent_twice_and_a_person_has_the_rest(directory):
    world, client = storm(directory, ["asked", "bare"], KILLS - KILLS * 3 // 5, SEED + 1)
    sent, held = world.requests(), collections.Counter()
    for queue in world.queues:
        for key in world.keys[queue]:
            state, effects = client.state(queue, key), world.receiver.effects.get(key, 0)
            check(len(sent[key]) - world.busy[key] <= 1, f"{key} was sent {len(sent[key])} times, {world.busy[key]} of them turned away: {client.key(queue, key)}")
            check(effects <= 1 and state in ("done", "held"), f"{key} is {state} and was done {effects} times: {client.key(queue, key)}")
            if state == "done":
                check(effects == 1 and effect_known(client, queue, key) == world.receiver.table.of(key), f"{key} is done, but another effect is known")
            if state == "held" and queue == "asked":
                check(effects == 0, f"{key} could have been found: {client.key(queue, key)}")
            held[queue] += state == "held"
    complain(f"held for a person: {dict(held)}")
    same_id_always(world, client)


if __name__ == "__main__":
    kit.main()
