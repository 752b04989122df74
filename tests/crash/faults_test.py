#!/usr/bin/env python3
"""What the broker promises when the world around it fails: frozen processes, torn and damaged files, a failing or full
disk, power cuts, clocks that jump, a thousand clients at once. Prints TAP; arguments choose tests by a part of their
name. FAULTS=long sweeps every index instead of a few."""
import glob
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import kit
from kit import (FS_SHUTDOWN, HAPAX, MAKE_DIRECTORY, UNDO, Client, Lost, NotReady, Skip, check, complain, mounted, mounted_ext4,
                 new_broker, test, until)
import hx
import receiver
from storm import Storm

LONG = os.environ.get("FAULTS") == "long"


def data_in(directory):
    return os.path.join(directory, "data")


# ---- what a client remembers of a broker, to ask for it after a fault


class Ledger:
    """Everything that was answered 2xx. `verify` asks a broker whether it still knows all of it."""

    def __init__(self, queue="ledger"):
        self.queue, self.sent, self.done, self.unknown, self.counter = queue, {}, {}, [], 0

    def send(self, client, payload=b"x"):
        """One new message. Returns the status; raises Lost when there is no answer."""
        self.counter += 1
        key = f"k{self.counter}"
        try:
            status, answer = client.send(self.queue, key, payload + key.encode()).told()
        except Lost:
            self.unknown.append((key, payload + key.encode()))
            raise
        if status == 202:
            self.sent[key] = (answer["id"], payload + key.encode())
        else:
            check(answer.get("applied") in ("no", "unknown"), f"{status} without `applied`: {answer}")
        return status, answer

    def settle_one(self, client, wait="0s"):
        """Receives and acks one. False when there was none. Reserved, not started: a lost answer costs no crash."""
        messages = client.receive(self.queue, wait=wait, lease="2s", start="explicit")
        for m in messages:
            result = "done " + m["key"]
            status, answer = client.settle("ack", m["token"], result=result).told()
            check(status == 200, f"ack answered {status}: {answer}")
            self.done[m["key"]] = result
        return bool(messages)

    def work(self, client, count):
        for _ in range(count):
            status, answer = self.send(client)
            check(status in (202, 507), f"send answered {status}: {answer}")
            if self.counter % 3 == 0:
                self.settle_one(client)

    def verify(self, client):
        for key, (id, payload) in self.sent.items():
            status, answer = client.send(self.queue, key, payload).told()
            check(answer.get("duplicate") is True, f"{key} was acknowledged and is forgotten: {status} {answer}")
            check(answer["id"] == id, f"{key} had id {id}, has {answer['id']}")
            if key in self.done:
                told = (answer["state"], answer.get("result", {}).get("body"))
                check(told == ("done", self.done[key]), f"{key} was settled, and now: {answer}")
            elif answer["state"] == "done":  # by an ack whose answer was lost
                check(answer["result"]["body"] == "done " + key, f"{key} was settled by nobody: {answer}")
                self.done[key] = answer["result"]["body"]

    def resolve(self, client):
        """Sends of unknown outcome, sent again: each is admitted now or was before."""
        for key, payload in self.unknown:
            status, answer = client.send(self.queue, key, payload).told()
            check(status in (200, 202), f"repeated {key}: {status} {answer}")
            self.sent[key] = (answer["id"], payload)
        self.unknown.clear()

    def drain(self, client):
        """Settles everything; afterwards nothing is left and all is done."""
        self.resolve(client)
        self.verify(client)
        while len(self.done) < len(self.sent):
            check(self.settle_one(client, wait="40s"), f"{len(self.sent) - len(self.done)} messages never came")
        self.verify(client)


# ---- frozen processes

ZOMBIE = """
import sys
sys.path.insert(0, sys.argv[2])
from kit import Client
c = Client(int(sys.argv[1]))
m = c.receive("q", lease="1s")[0]
print("holds", flush=True)
sys.stdin.readline()
status, answer = c.settle("ack", m["token"], result="from the zombie").told()
print(status, answer.get("code"), flush=True)
"""


@test
def a_consumer_frozen_past_its_lease_is_fenced_when_it_wakes(directory):
    broker = new_broker(data_in(directory)).start()
    c = broker.client()
    c.send("q", "k")
    here = os.path.dirname(os.path.abspath(__file__))
    zombie = subprocess.Popen([sys.executable, "-B", "-c", ZOMBIE, str(broker.port), here], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    UNDO.append(zombie.kill)
    check(zombie.stdout.readline() == "holds\n", "the consumer got no message")
    zombie.send_signal(signal.SIGSTOP)
    second = c.receive("q", wait="30s")
    check(len(second) == 1 and second[0]["crashes"] == 1, f"not redelivered as a crash: {second}")
    zombie.send_signal(signal.SIGCONT)
    said, _ = zombie.communicate("go\n", timeout=60)
    check(said == "409 fenced\n", f"the zombie's ack was answered: {said}")
    status, _ = c.settle("ack", second[0]["token"], result="from the living").told()
    check(status == 200, f"the living consumer's ack was answered {status}")
    _, answer = c.send("q", "k").told()
    check(answer["result"]["body"] == "from the living", f"the result is not the living consumer's: {answer}")


@test
def a_frozen_broker_expires_no_lease_nobody_could_settle(directory):
    broker = new_broker(data_in(directory)).start()
    c, other = broker.client(), broker.client()
    c.send("q", "k")
    m = c.receive("q", lease="4s")[0]
    broker.signal(signal.SIGSTOP)
    time.sleep(6)
    broker.signal(signal.SIGCONT)
    check(other.receive("q") == [], "the lease ran out while the broker was frozen")
    status, answer = c.settle("ack", m["token"]).told()
    check(status == 200 and answer["state"] == "done", f"ack after the freeze: {status} {answer}")


@test
def a_restart_gives_live_leases_their_full_length_again(directory):
    broker = new_broker(data_in(directory)).start()
    c = broker.client()
    c.send("q", "k")
    m = c.receive("q", lease="3s")[0]
    time.sleep(2)
    broker.kill()
    broker.start()
    back = time.monotonic()
    again = broker.client().receive("q", wait="30s")
    waited = time.monotonic() - back
    check(len(again) == 1, "never redelivered")
    check(waited >= 2.5, f"redelivered {waited:.1f} s after the restart: the lease was 3 s long")
    check(int(again[0]["fence"]) > int(m["fence"]), "the fence did not grow over the restart")


@test
def a_restored_backup_hands_out_fences_above_those_of_its_lost_future(directory):
    broker = new_broker(data_in(directory)).start()
    c, fences = broker.client(), []
    for n in range(5):
        c.send("q", f"k{n}")
    check(broker.stop() == 0, "SIGTERM did not end it cleanly")
    shutil.copytree(broker.data, broker.data + ".backup")
    c = broker.start().client()
    fences += [int(m["fence"]) for m in c.receive("q", max=5)]
    broker.kill()
    shutil.rmtree(broker.data)
    os.rename(broker.data + ".backup", broker.data)
    again = [int(m["fence"]) for m in broker.start().client().receive("q", max=5)]
    check(len(fences) == 5 and len(again) == 5, f"deliveries: {fences} {again}")
    check(min(again) > max(fences), f"fences before {fences}, after the restore {again}")


# ---- torn and damaged files


def segments(data):
    found = sorted(glob.glob(os.path.join(data, "journal-*.seg")))
    check(found, f"no journal segments in {data}")
    return found


def find_bytes(data, needle):
    """(file, offset) of the needle's last occurrence in the journal."""
    for path in reversed(segments(data)):
        with open(path, "rb") as f:
            at = f.read().rfind(needle)
        if at >= 0:
            return path, at
    return None, -1


def overwrite(path, offset, data):
    with open(path, "r+b") as f:
        f.seek(offset)
        old = f.read(len(data))
        f.seek(offset)
        f.write(data)
    return old


def end_of_data(path):
    with open(path, "rb") as f:
        return len(f.read().rstrip(b"\0"))


def refuses(broker, path, what):
    """The broker must not start; it must say where, and `hapax verify` must explain."""
    try:
        broker.start()
    except NotReady as e:
        text = str(e)
        check(re.search(r"exited with [1-9]", text), f"{what}: exit code: {text}")
        check(os.path.basename(path) in text, f"{what}: the file is not named: {text}")
        check(re.search(r"offset \d+", text), f"{what}: the offset is not named: {text}")
    else:
        raise AssertionError(f"{what}: it started")
    done = subprocess.run([HAPAX, "verify", broker.data], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60)
    check(done.returncode == 1, f"{what}: hapax verify exits with {done.returncode}: {done.stdout}")
    check(os.path.basename(path) in done.stdout and re.search(r"\d", done.stdout),
          f"{what}: hapax verify does not explain: {done.stdout}")


@test
def garbage_behind_the_tail_is_cut_and_nothing_acknowledged_is_lost(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    for round in range(5):
        ledger.work(broker.client(), 10)
        broker.kill()
        path, at = find_bytes(broker.data, b"x" + f"k{ledger.counter}".encode())
        check(at >= 0, "the last payload is not in the journal")
        end = end_of_data(path)
        overwrite(path, (end + 64 + 7) // 8 * 8, os.urandom(100 + 1000 * round))
        broker.start()
        ledger.verify(broker.client())
    ledger.drain(broker.client())


def strace(*expressions, log="/dev/null"):
    if not shutil.which("strace"):
        raise Skip("strace is not installed")
    args = ["strace", "-f", "-qq", "-o", log]
    for e in expressions:
        args += ["-e", e]
    return args


@test
def a_batch_torn_before_its_sync_is_cut_and_nothing_acknowledged_is_lost(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    broker.kill()
    torn = 0
    for n in range(2, 160, 3):  # a start that was killed leaves the next one a sync more, so one by one might never get past it
        broker.wrapper = strace("trace=fdatasync", f"inject=fdatasync:signal=SIGKILL:when={n}")
        try:
            c = broker.start().client()
            for _ in range(200):
                ledger.send(c, os.urandom(8).hex().encode() * 20)
        except (Lost, NotReady):
            pass
        broker.kill()
        broker.wrapper = []
        torn += tear_last_unknown(broker.data, ledger)
        ledger.verify(broker.start().client())
        ledger.resolve(broker.client())
        broker.kill()
        if torn >= 4 and not LONG:
            break
    check(torn >= 2, f"only {torn} batches could be torn")
    ledger.drain(broker.start().client())


def tear_last_unknown(data, ledger):
    """If the one unanswered send reached the file, zero the second half of its payload. True if it did."""
    if not ledger.unknown:
        return False
    payload = ledger.unknown[-1][1]
    path, at = find_bytes(data, payload)
    if at < 0:
        return False
    overwrite(path, at + len(payload) // 2, bytes(len(payload) // 2))
    return True


@test
def a_directory_whose_making_was_interrupted_is_finished_by_the_next_start(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=200m", "tmpfs")
    points = [(call, n) for call, short, long in (("openat", (6, 8, 10), 40), ("pwrite64", (1, 7, 9, 10, 11, 12), 30),
                                                  ("fdatasync", (1, 2, 3, 4), 10), ("fsync", (1, 2, 3), 10),
                                                  ("renameat", (1, 2), 5), ("fallocate", (1, 2), 5))
              for n in indexes(short, long)]
    interrupted = 0
    for call, n in points:
        broker, ledger = broker_on(disk, directory), Ledger()
        broker.wrapper = strace(f"trace={call}", f"inject={call}:signal=SIGKILL:when={n}")
        try:
            broker.start()
        except NotReady:
            interrupted += 1
        broker.kill()
        broker.wrapper = []
        ledger.work(broker.start().client(), 3)
        broker.kill()
        ledger.verify(broker.start().client())
        broker.kill()
        shutil.rmtree(broker.data)
    complain(f"interrupted {interrupted} of {len(points)} times")
    check(interrupted >= 8, f"only {interrupted} of {len(points)} starts were interrupted")


@test
def a_flipped_bit_below_the_tail_is_refused_with_file_and_offset(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    marker = b"the-one-to-damage-" + os.urandom(16).hex().encode()
    c = broker.client()
    ledger.work(c, 5)
    ledger.send(c, marker)
    ledger.work(c, 20)
    broker.kill()
    path, at = find_bytes(broker.data, marker)
    check(at >= 0, "the payload is not in the journal")
    for where in (at, at + 5, at - 12):
        old = overwrite(path, where, b"\0")
        overwrite(path, where, bytes([old[0] ^ 0x10]))
        refuses(broker, path, f"bit flipped at {where}")
        overwrite(path, where, old)
    ledger.verify(broker.start().client())


@test
def a_journal_that_lost_its_durable_end_is_refused(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    payload = os.urandom(16).hex().encode()
    c = broker.client()
    ledger.work(c, 10)
    ledger.send(c, payload)
    check(broker.stop() == 0, "SIGTERM did not end it cleanly")
    path, at = find_bytes(broker.data, payload)
    end = end_of_data(path)
    old = overwrite(path, at, bytes(end - at))
    refuses(broker, path, "the last durable batch is gone")
    overwrite(path, at, old)
    ledger.verify(broker.start().client())


@test
def a_missing_segment_is_refused(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    ledger.work(broker.client(), 10)
    check(broker.stop() == 0, "SIGTERM did not end it cleanly")
    path, _ = find_bytes(broker.data, b"xk10")
    os.rename(path, path + ".away")
    refuses(broker, path, "a segment is missing")
    os.rename(path + ".away", path)
    ledger.verify(broker.start().client())


@test
def a_second_daemon_on_the_same_directory_is_turned_away(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    ledger.work(broker.client(), 5)
    second = new_broker(broker.data)
    second.log = broker.log + ".second"
    try:
        second.start()
    except NotReady as e:
        check(re.search(r"exited with [1-9]", str(e)), f"exit code: {e}")
        check(re.search(r"in use|another process|lock", str(e)), f"it does not say why: {e}")
    else:
        raise AssertionError("two daemons serve one directory")
    ledger.work(broker.client(), 5)
    ledger.drain(broker.client())


# ---- a failing disk


def calls_of_start(broker, call):
    """How often the main thread makes this call before it serves. An injection counts each thread's calls apart: only a
    later one reaches the committer."""
    counted = broker.log + ".calls"
    broker.wrapper = strace(f"trace={call}", log=counted)
    broker.start().kill()
    broker.wrapper = []
    with open(counted) as f:
        threads = [line.split()[0] for line in f]
    return threads.count(threads[0])


def under_fault(broker, ledger, expression, rounds=12, bound=20):
    """Works until the fault shows. Returns what became of it: "refused" (did not start), "exited", "full", "unhurt"."""
    call = expression.split(":")[0].split("=")[1]
    broker.wrapper = strace(f"trace={call}", expression)
    try:
        c = broker.start().client(timeout=bound)
    except NotReady as e:
        broker.wrapper = []
        check(re.search(r"exited with [1-9]", str(e)), f"{expression}: it neither started nor failed: {e}")
        return "refused"
    outcome = "unhurt"
    try:
        for _ in range(rounds):
            status, answer = ledger.send(c)
            check(status in (202, 507), f"{expression}: send answered {status}: {answer}")
            if status == 507:
                check(answer["applied"] == "no", f"{expression}: 507 must not be applied: {answer}")
                outcome = "full"
            ledger.settle_one(c)
    except Lost:
        code = broker.wait_exit(bound)
        check(code is not None, f"{expression}: it cut the connection and runs on")
        check(code != 0, f"{expression}: it exited with 0 after a failure")
        outcome = "exited"
    broker.kill()
    broker.wrapper = []
    return outcome


def sweep(directory, expressions, enough):
    outcomes, hurt = faults(directory, lambda broker: (expressions, 12))
    check(hurt >= enough, f"only {hurt} of {len(expressions)} faults were felt")


def faults(directory, plan):
    """plan(broker) names the injections, and how much work each is met with."""
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    ledger.work(broker.client(), 5)
    broker.kill()
    expressions, rounds = plan(broker)
    outcomes = {}
    for expression in expressions:
        outcome = under_fault(broker, ledger, expression, rounds)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        c = broker.start().client()
        ledger.verify(c)
        ledger.resolve(c)
        ledger.work(c, 3)
        broker.kill()
    complain(", ".join(f"{n} {what}" for what, n in sorted(outcomes.items())))
    c = broker.start().client()
    ledger.drain(c)
    return outcomes, sum(n for what, n in outcomes.items() if what != "unhurt")


def indexes(short, long):
    return range(1, long + 1) if LONG else short


@test
def nothing_is_answered_after_a_failed_sync(directory):
    def plan(broker):
        start = calls_of_start(broker, "fdatasync")
        at = range(1, start + 40) if LONG else (1, start // 2, start, start + 1, start + 2, start + 5, start + 9, start + 14)
        later = range(1, start + 20, 2) if LONG else (start // 2, start + 3, start + 8)  # a later start may take some more
        return [f"inject=fdatasync:error=EIO:when={n}" for n in at] + \
               [f"inject=fdatasync:error=EIO:when={n}+" for n in later], start + (60 if LONG else 20)

    outcomes, hurt = faults(directory, plan)
    check(outcomes.get("exited", 0) >= 3, f"a failed sync of a batch must end it: {outcomes}")
    check(hurt >= 6, f"too few faults were felt: {outcomes}")


@test
def nothing_is_answered_after_a_failed_write(directory):
    sweep(directory, [f"inject=pwrite64:error=EIO:when={n}" for n in indexes((1, 2, 3, 4, 6, 9, 14, 20), 60)], enough=5)


@test
def a_write_that_finds_the_disk_full_loses_nothing(directory):
    sweep(directory, [f"inject=pwrite64:error=ENOSPC:when={n}" for n in indexes((2, 5, 10), 40)], enough=1)


@test
def failed_opens_renames_and_reservations_lose_nothing(directory):
    faults = [f"inject={call}:error={error}:when={n}"
              for call, error, short, long in (("renameat", "EIO", (1, 2), 20), ("fallocate", "ENOSPC", (1, 2), 10),
                                               ("fallocate", "EIO", (1,), 10), ("fsync", "EIO", (1, 2, 3), 20),
                                               ("unlinkat", "EIO", (1,), 10), ("openat", "EMFILE", (6, 9, 12), 60),
                                               ("pread64", "EIO", (1, 3, 6), 40))
              for n in indexes(short, long)]
    sweep(directory, faults, enough=4)


# ---- a full disk


def broker_on(disk, directory):
    return new_broker(os.path.join(disk, "data"), log=os.path.join(directory, "log"))


def send_until_full(ledger, client, payload):
    for _ in range(100000):
        status, answer = ledger.send(client, payload)
        if status == 507:
            check(answer["code"] == "storage_full" and answer["applied"] == "no", f"507 must say so: {answer}")
            return
        check(status == 202, f"send answered {status}: {answer}")
    raise AssertionError("the disk never got full")


def flows_again(ledger, client, payload):
    def sent():
        return ledger.send(client, payload)[0] == 202
    until(sent, "sends flow again without a restart")


@test
def a_full_disk_refuses_new_work_settles_the_old_and_recovers(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    broker, ledger = broker_on(disk, directory).start(), Ledger()
    c, payload = broker.client(), os.urandom(8000).hex().encode()
    send_until_full(ledger, c, payload)
    accepted = len(ledger.sent)
    complain(f"{accepted} messages of 16 kB accepted on 64 MiB")
    check(accepted >= 100, f"only {accepted} messages fit")
    for _ in range(accepted):
        check(ledger.settle_one(c), "an accepted message was not delivered")
    flows_again(ledger, c, payload)
    for _ in range(accepted // 2):
        ledger.send(c, payload)
    ledger.drain(c)
    broker.kill()
    ledger.verify(broker.start().client())


@test
def every_message_a_full_disk_accepted_can_be_settled_with_a_result_of_1_kib(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    broker, accepted, result = broker_on(disk, directory).start(), 0, "r" * 1000
    c = broker.client()
    for batch in range(5000):
        reply = c.batch("q", [{"key": f"k{batch * 100 + i}", "payload": "small"} for i in range(100)])
        check(reply.status == 200, f"batch answered {reply}")
        accepted += reply.body.count(b'"accepted"')
        if b"storage_full" in reply.body:
            break
    complain(f"{accepted} small messages accepted on 64 MiB")
    check(accepted >= 1000, f"only {accepted} messages fit")
    left = accepted
    while left:
        messages = c.receive("q", max=200, wait="30s")
        check(messages, f"{left} accepted messages were not delivered")
        status, answers = c.post("/v1/ack", [{"token": m["token"], "result": result} for m in messages]).told()
        refused = [a for a in answers if a.get("state") != "done"] if status == 200 else [answers]
        check(not refused, f"{left} to go, an accepted message cannot be settled: {refused[0] if refused else ''}")
        left -= len(messages)
    broker.kill()
    c = broker.start().client()
    for n in range(0, accepted, 100):
        _, answer = c.send("q", f"k{n}", b"small").told()
        check(answer.get("state") == "done" and answer["result"]["body"] == result, f"k{n} is not settled: {answer}")


@test
def kills_on_a_full_disk_do_not_keep_it_from_starting(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    broker, ledger = broker_on(disk, directory).start(), Ledger()
    payload = os.urandom(8000).hex().encode()
    send_until_full(ledger, broker.client(), payload)
    for _ in range(8):
        broker.kill()
        c = broker.start().client()
        ledger.settle_one(c)
    ledger.verify(c)
    ledger.drain(c)
    flows_again(ledger, c, payload)


@test
def kills_on_a_full_disk_take_no_room_from_those_who_make_some(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    broker, ledger = broker_on(disk, directory).start(), Ledger()
    send_until_full(ledger, broker.client(), os.urandom(8000).hex().encode())

    def room():
        journal = broker.client().get("/v1/stats").json()["journal"]
        return journal["tail"], journal["room_bytes"]

    broker.kill()
    broker.start()
    before = room()
    for _ in range(400):
        broker.kill()
        broker.start()
    check(room() == before, f"the journal ended at, and had room for, {before}, and {room()} after the starts")
    first = next(iter(ledger.sent.values()))[0]
    for method, path in [("POST", f"/v1/queues/ledger/messages/{first}/cancel"), ("POST", "/v1/queues/ledger/purge"),
                         ("DELETE", "/v1/queues/ledger")]:
        reply = broker.client().call(method, path)
        check(reply.status in (200, 204), f"{method} {path} answered {reply}")


@test
def whatever_operators_did_on_a_full_disk_a_paused_queue_can_be_resumed_and_purged(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    broker, ledger = broker_on(disk, directory).start(), Ledger()
    send_until_full(ledger, broker.client(), os.urandom(8000).hex().encode())

    def deed(path, **said):
        return broker.client().post(path, said).status

    check(deed("/v1/queues/ledger/pause", by="ann") == 200, "a full disk lets operators act")
    note = 500
    for _ in range(2000):  # each as small as will still fit
        status = deed("/v1/queues/ledger/drill", by="ann", note="x" * note)
        check(status in (200, 507), f"naming a drill answered {status}")
        if status == 507 and note == 0:
            break
        note = note if status == 200 else note // 2
    check(status == 507, "operators' deeds have no end")
    broker.kill()
    broker.start()
    check(deed("/v1/queues/ledger/purge", by="ann", note="y" * 500) == 200, "there is no room to make room")
    check(deed("/v1/queues/ledger/resume", by="ann") == 200, "a paused queue cannot be resumed")


@test
def room_made_by_others_is_used_without_a_restart(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=96m", "tmpfs")
    filler = os.path.join(disk, "filler")
    broker, ledger = broker_on(disk, directory).start(), Ledger()
    fill = os.open(filler, os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fill, 0, 32 << 20)
    os.close(fill)
    c, payload = broker.client(), os.urandom(8000).hex().encode()
    send_until_full(ledger, c, payload)
    os.unlink(filler)
    flows_again(ledger, c, payload)
    ledger.verify(c)
    broker.kill()
    ledger.drain(broker.start().client())


@test
def a_full_disk_stores_every_answer_that_is_under_way_and_sends_nothing_it_could_not_store(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    broker, ledger, go, body = broker_on(disk, directory).start(), Ledger(), threading.Event(), b"r" * (1 << 20)

    def answer(_):
        go.wait(hx.TIMEOUT)
        return receiver.Answer(200, body)

    with receiver.Receiver(always=answer) as r:
        c = broker.client()
        c.rules("push", downstream={"idempotency": "key"},
                deliver={"url": r.url + "/x", "allow_private": True, "timeout": "60s", "concurrency": 4, "keep": {"body": "1MiB"}})
        c.put("push", *[f"k{n}" for n in range(6)])
        for _ in range(4):
            r.next()
        send_until_full(ledger, c, os.urandom(8000).hex().encode())
        go.set()
        until(lambda: [c.state("push", key) for key in ("k0", "k1", "k2", "k3")] == ["done"] * 4, "what was under way is stored")
        for n in range(4):
            check(c.get(f"/v1/queues/push/keys/k{n}/result").body == body, f"k{n} has another answer")
        check([c.state("push", "k4"), c.state("push", "k5")] == ["pending"] * 2, "sent without room for the answer")
        check(len(r.requests) == 4, f"{len(r.requests)} requests came")
        check(c.post("/v1/queues/ledger/purge", {"by": "ann"}).status == 200, "the rest goes")
        until(lambda: [c.state("push", "k4"), c.state("push", "k5")] == ["done"] * 2, "there is room again")
        broker.kill()
        c = broker.start().client()
        for n in range(6):
            check(c.get(f"/v1/queues/push/keys/k{n}/result").body == body, f"k{n} has another answer after a kill")
        check(len(r.requests) == 6, f"{len(r.requests)} requests came")


@test
def a_proxy_on_a_full_disk_stores_every_answer_under_way_and_sends_nothing_it_could_not_store(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=64m", "tmpfs")
    ledger, go, body = Ledger(), threading.Event(), os.urandom(1 << 19).hex().encode()

    def answer(_):
        go.wait(hx.TIMEOUT)
        return receiver.Answer(200, body)

    def call(c, key):
        return c.call("POST", "/gate/api/x", b"{}", [("Idempotency-Key", key)])

    with receiver.Receiver(always=answer) as r:
        broker = broker_on(disk, directory)
        broker.configure(f'auto_create: true\nproxies: {{api: {{upstream: "{r.url}", allow_private: true, timeout: 60s}}}}\n')
        c = broker.start().client()
        under_way = [hx.Later(call, broker.client(), f"k{n}") for n in range(4)]
        for _ in range(4):
            r.next()
        send_until_full(ledger, c, os.urandom(8000).hex().encode())
        hx.problem(call(c, "k4"), 507, "storage_full")
        check(len(r.requests) == 4, "sent without room for the answer")
        go.set()
        check([(a.status, a.body == body) for a in (one.value() for one in under_way)] == [(200, True)] * 4, "an answer was lost")
        check(all(call(c, f"k{n}").body == body for n in range(4)), "a repeat has another answer")
        check(c.post("/v1/queues/ledger/purge", {"by": "ann"}).status == 200, "the rest goes")
        until(lambda: call(c, "k4").status == 200, "there is room again")
        broker.kill()
        c = broker.start().client()
        check(all(call(c, f"k{n}").body == body for n in range(5)), "a repeat has another answer after a kill")
        check(len(r.requests) == 5, f"{len(r.requests)} requests came")


def used_bytes(data):
    total = 0
    for name in os.listdir(data):
        try:
            total += os.stat(os.path.join(data, name)).st_blocks * 512
        except FileNotFoundError:
            pass  # given back between the two looks
    return total


@test
def churn_does_not_grow_the_disk(directory):
    disk = mounted(directory, "tmpfs", "-o", "size=256m", "tmpfs")
    broker = broker_on(disk, directory).start()
    c, payload, count, per_batch = broker.client(), os.urandom(8000).hex(), 24000, 100
    for batch in range(count // per_batch):
        reply = c.batch("churn", [{"key": f"c{batch}-{i}", "payload": payload} for i in range(per_batch)])
        check(reply.status == 200 and reply.body.count(b'"accepted"') == per_batch, f"batch {batch}: {reply}")
        messages = c.receive("churn", max=per_batch, wait="30s")
        status, answers = c.post("/v1/ack", [{"token": m["token"]} for m in messages]).told()
        check(status == 200 and all(a.get("state") == "done" for a in answers), f"acks of batch {batch}: {answers[:2]}")
    segment = max(os.path.getsize(f) for f in segments(broker.data))
    live = count * 200  # what is known of a settled key: its name, times and an empty result
    complain(f"{count * len(payload) >> 20} MiB went through, {used_bytes(broker.data) >> 20} MiB are used at its end")
    # Room taken ahead of a fast writer is given back when it has gone; what is left is live data and a few segments: three that compaction
    # leaves and the one being written, its own two, two ahead, two spares kept beyond that, and what the start took.
    until(lambda: used_bytes(broker.data) <= 3 * live + 11 * segment, "the disk is given back", bound=300)
    complain(f"{used_bytes(broker.data) >> 20} MiB are used when it is quiet, segments of {segment >> 20} MiB")
    broker.kill()
    _, answer = broker.start().client().send("churn", "c0-0", payload.encode()).told()
    check(answer.get("state") == "done", f"the first key is forgotten: {answer}")


@test
def a_disk_that_loses_pages_of_a_segment_stops_the_broker_with_file_and_offset(directory):
    broker = new_broker(data_in(directory)).start()
    c = broker.client()
    c.send("q", "k")
    for _ in range(10):
        c.send("q", "k")
    lost = segments(broker.data)[0]
    os.truncate(lost, 0)
    try:
        while True:
            c.send("q", "k")
    except Lost:
        pass
    code = broker.wait_exit(30)
    check(code not in (None, 0), f"exit code {code}")
    words = broker.last_words()
    check(os.path.basename(lost) in words and re.search(r"offset[ =]\d+", words), words)


# ---- few descriptors, many segments


def limited(directory, options):
    """A broker of 256 KiB segments that may have so many files open: options of ulimit."""
    broker = new_broker(data_in(directory))
    subprocess.run([MAKE_DIRECTORY, broker.data, str(256 << 10)], check=True)
    broker.wrapper = ["sh", "-c", f'ulimit {options} && exec "$@"', "sh"]
    return broker


def outgrow(ledger, broker, client, segment_count):
    """Sends until there are so many segments."""
    payload = os.urandom(30000).hex().encode()
    while len(segments(broker.data)) < segment_count:
        status, answer = ledger.send(client, payload)
        check(status == 202, f"send answered {status}: {answer}")
    ledger.verify(client)


@test
def a_broker_outgrows_its_descriptors_while_it_runs_and_when_it_starts(directory):
    broker, ledger = limited(directory, "-n 64").start(), Ledger()
    outgrow(ledger, broker, broker.client(), 100)
    for end in (broker.kill, broker.stop):
        end()
        ledger.verify(broker.start().client())
    complain(f"{len(segments(broker.data))} segments and 64 descriptors")
    ledger.drain(broker.client())


@test
def a_low_soft_limit_is_raised_before_the_directory_is_opened(directory):
    broker, ledger = limited(directory, "-Sn 20").start(), Ledger()
    outgrow(ledger, broker, broker.client(), 30)
    broker.kill()
    ledger.verify(broker.start().client())


def answers(broker):
    try:
        return broker.client().get("/healthz").status == 200
    except (Lost, OSError):
        return False


@test
def connections_leave_the_journal_its_descriptors(directory):
    broker, ledger = limited(directory, "-n 64").start(), Ledger()
    idle = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(200)]
    UNDO.append(lambda: [s.close() for s in idle])
    until(lambda: answers(broker), "a place among the idle ones")  # who comes while they are let in may be turned away
    outgrow(ledger, broker, broker.client(), 70)


@test
def too_few_descriptors_are_refused_with_the_number_needed(directory):
    broker = limited(directory, "-n 63")
    try:
        broker.start()
    except NotReady as e:
        check("exited with 1" in str(e) and "limit on open files is 63, and 64 are needed" in str(e), str(e))
    else:
        raise AssertionError("started with 63 descriptors")


# ---- power cuts


@test
def everything_answered_survives_a_power_cut(directory):
    disk, image, cuts = mounted_ext4(directory, 512), os.path.join(directory, "image"), 100 if LONG else 5
    storm = Storm(directory, seed=int.from_bytes(os.urandom(4), "big"), data=os.path.join(disk, "data"), pending_max=1000)
    complain(f"seed {storm.seed}")
    storm.begin()
    for _ in range(cuts):
        time.sleep(0.5)
        subprocess.run([FS_SHUTDOWN, disk], check=True)
        code = storm.broker.wait_exit(30)
        check(code not in (None, 0), f"the broker went on without a disk (exit code {code})")
        subprocess.run(["umount", disk], check=True)
        subprocess.run(["mount", "-t", "ext4", "-o", "loop", image, disk], check=True)
        check(storm.restart(), f"it does not start after a power cut: {storm.problems}")
    storm.end(least_admitted=50 * cuts)
    complain(storm.summary())
    storm.assert_clear()


# ---- clocks

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def faked(directory):
    """A broker whose wall clock obeys a file; its monotonic clock is the real one."""
    if not os.path.exists(FAKETIME):
        raise Skip("libfaketime is not installed")
    for left in glob.glob("/dev/shm/*faketime_*_[0-9]*"):  # by those that were killed
        if not os.path.exists("/proc/" + left.rpartition("_")[2]):
            os.unlink(left)
    control = os.path.join(directory, "faketime")

    def step(offset):
        with open(control + ".new", "w") as f:
            f.write(offset + "\n")
        os.rename(control + ".new", control)
    step("+0")
    env = {"LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": control, "FAKETIME_NO_CACHE": "1",
           "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_XRESET": "1"}
    return new_broker(data_in(directory), env=env), step


@test
def a_clock_that_jumps_ends_no_lease_and_shortens_no_window(directory):
    broker, step = faked(directory)
    c = broker.start().client()
    fences = []
    _, first = c.send("q", "settled").told()
    m = c.receive("q")[0]
    fences.append(int(m["fence"]))
    c.settle("ack", m["token"], result="r")
    for offset in ("+1d", "-1d", "+30d", "-400d"):
        key = "leased" + offset
        c.send("q", key)
        m = c.receive("q", lease="30s")[0]
        fences.append(int(m["fence"]))
        step(offset)
        check(c.receive("q", wait="1s") == [], f"clock {offset}: the lease ended early")
        status, answer = c.settle("ack", m["token"]).told()
        check(status == 200, f"clock {offset}: ack answered {status} {answer}")
        _, answer = c.send("q", "settled").told()
        check(answer["id"] == first["id"] and answer["state"] == "done", f"clock {offset}: window cut short: {answer}")
    check(fences == sorted(set(fences)), f"fences do not grow: {fences}")


@test
def a_restart_under_another_clock_forgets_nothing_and_fences_grow(directory):
    broker, step = faked(directory)
    fences, ids = [], {}
    for offset in ("+0", "+2d", "-2d", "-1000d", "+0"):
        step(offset)
        c = broker.start().client()
        for key, id in ids.items():
            _, answer = c.send("q", key).told()
            check(answer.get("duplicate") is True and answer["id"] == id, f"clock {offset}: {key} forgotten: {answer}")
        ids["k" + offset] = c.send("q", "k" + offset).json()["id"]
        for m in c.receive("q", max=10):
            fences.append(int(m["fence"]))
            c.settle("ack", m["token"])
        broker.kill()
    check(len(fences) >= 4 and fences == sorted(set(fences)), f"fences do not grow: {fences}")


@test
def a_delay_is_not_stretched_by_a_clock_set_back(directory):
    broker, step = faked(directory)
    c = broker.start().client()
    c.send("q", "k", headers=[("Hapax-Delay", "2s")])
    step("-1d")
    check(len(c.receive("q", wait="40s")) == 1, "a delay of 2 s was not over after 40 s")


def month_ahead(directory, options):
    """A broker with a delay and a time to live of 30 days, started again an hour later with a clock that says 31 days."""
    broker, step = faked(directory)
    c = broker.start().client()
    c.send("q", "delayed", headers=[("Hapax-Delay", "30d")])
    c.send("q", "mortal", headers=[("Hapax-TTL", "30d")])
    broker.kill()
    step("+31d")
    broker.options = options
    c = broker.start().client()
    return broker, [m["key"] for m in c.receive("q", max=10, wait="1s")]


@test
def downtime_is_charged_by_the_wall_clock_and_said(directory):
    broker, delivered = month_ahead(directory, [])
    check(delivered == ["delayed"], f"delivered: {delivered}")
    check('level=warn event=downtime msg="down for 31d by the wall clock' in broker.stderr(), broker.stderr())
    broker.kill()
    broker.start()
    check(re.search(r'level=info event=downtime msg="down for \d+s by the wall clock', broker.stderr()), broker.stderr())


@test
def a_wall_clock_that_is_wrong_is_corrected_with_downtime(directory):
    broker, delivered = month_ahead(directory, ["--downtime", "1h"])
    check(delivered == ["mortal"], f"delivered: {delivered}")
    check("--downtime: delays and times to live have gone on by 1h; the wall clock says 31d" in broker.stderr(), broker.stderr())


@test
def a_wall_clock_set_back_charges_nothing_and_is_said(directory):
    broker, step = faked(directory)
    broker.start().client().send("q", "k")
    broker.kill()
    step("-2d")
    broker.start()
    check(re.search('level=warn event=downtime msg="the wall clock stands (47h|2d) before the last time written down', broker.stderr()), broker.stderr())


# ---- a thousand at once

RACERS = 1000


def request_bytes(key, payload):
    return (f"POST /v1/queues/race/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {key}\r\n"
            f"Content-Type: text/plain\r\nContent-Length: {len(payload)}\r\n\r\n").encode() + payload


def read_answer(s):
    """(status, body) or None if the connection was lost."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            chunk = s.recv(65536)
            if not chunk:
                return None
            data += chunk
        head, body = data.split(b"\r\n\r\n", 1)
        length = int(re.search(rb"(?i)content-length: *(\d+)", head).group(1))
        while len(body) < length:
            chunk = s.recv(65536)
            if not chunk:
                return None
            body += chunk
        return int(head.split()[1]), body
    except OSError:
        return None


def race(broker, key, payload, disturb=None):
    """Everybody connects, then everybody sends, then everybody reads."""
    racers = []
    for _ in range(RACERS):
        s = socket.create_connection(("127.0.0.1", broker.port), timeout=60)
        racers.append(s)
    message = request_bytes(key, payload)
    for number, s in enumerate(racers):
        try:
            s.sendall(message)
        except OSError:
            pass
        if disturb and number == RACERS // 2:
            disturb()
    answers = [read_answer(s) for s in racers]
    for s in racers:
        s.close()
    return [(status, json.loads(body), body) for status, body in (a for a in answers if a)]


def raw_member(body, name):
    """The bytes of one object member, as they came."""
    at = body.index(b'"' + name + b'":{')
    return body[at:body.index(b"}", at) + 1]


@test
def of_a_thousand_racing_clients_one_is_accepted_and_all_hear_the_same(directory):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    broker = new_broker(data_in(directory)).start()
    c = broker.client()
    for round in range(3):
        key = f"race{round}"
        answers = race(broker, key, b"payload")
        check(len(answers) == RACERS, f"only {len(answers)} of {RACERS} were answered")
        check(all(status == 202 for status, _, _ in answers), f"not all 202: {[a[:2] for a in answers if a[0] != 202][:3]}")
        accepted = [a for _, a, _ in answers if a["outcome"] == "accepted"]
        check(len(accepted) == 1, f"{len(accepted)} were accepted")
        check(len({a["id"] for _, a, _ in answers}) == 1, "more than one id")
        got = c.receive("race", max=10)
        check([m["key"] for m in got] == [key], f"delivered: {got}")
        c.settle("ack", got[0]["token"], result="\u00e9 the only result \"quoted\"")
        replays = race(broker, key, b"payload")
        check(len(replays) == RACERS and all(s == 200 for s, _, _ in replays), "not every replay was answered 200")
        check(len({raw_member(body, b"result") for _, _, body in replays}) == 1, "replays differ")


@test
def a_race_with_a_kill_in_the_middle_admits_one(directory):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    broker = new_broker(data_in(directory)).start()
    answers = []
    for pause in (0, 0.001, 0.005, 0.02):
        def disturb():
            time.sleep(pause)
            broker.kill()
        answers += race(broker, "k", b"payload", disturb)
        broker.start()
    answers += race(broker, "k", b"payload")
    accepted = [a for _, a, _ in answers if a["outcome"] == "accepted"]
    check(len(accepted) <= 1, f"{len(accepted)} were accepted")
    check(len({a["id"] for _, a, _ in answers}) == 1, "more than one id")
    check(len(broker.client().receive("race", max=10)) == 1, "not delivered exactly once")


@test
def a_stopped_broker_frees_its_port_and_directory_for_the_next(directory):
    broker, ledger = new_broker(data_in(directory)).start(), Ledger()
    for _ in range(5):
        ledger.work(broker.client(), 5)
        polling = threading.Thread(target=lambda: quiet(lambda: Client(broker.port).receive("empty", wait="50s")))
        polling.start()
        check(broker.stop() == 0, "SIGTERM: the exit code is not 0")
        polling.join(60)
        check(not polling.is_alive(), "SIGTERM did not end a long poll")
        broker.start()
    ledger.drain(broker.client())


def quiet(f):
    try:
        f()
    except (Lost, AssertionError):
        pass


kit.main()
