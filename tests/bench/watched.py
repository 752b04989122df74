#!/usr/bin/env python3
"""What watching costs: one broker under the same load, alone and looked at, in short turns that follow each other.

Looked at by a scraper once a second, by a dashboard (its requests every two seconds) and by `hapax tail`; then one sender's
latency beside 200 readers of /v1/events, one of which has stopped reading. tests/bench/pairs.py says how turns are compared.

Environment: NOBODY (1: nobody looks, to see what the noise alone says), SECONDS (150) in all, MESSAGES (100000) in a turn, BENCH_DIR (/var/tmp), BUILD (build).
`tests/bench/run`, which `make bench` runs first, builds what is needed.
"""
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from pairs import BUILD, PAIRS_LEAST, PARENT, Broker, line  # noqa: E402

SECONDS = float(os.environ.get("SECONDS", 150))
MESSAGES = int(os.environ.get("MESSAGES", 100000))
NOBODY = os.environ.get("NOBODY") == "1"
LATENCY_SECONDS = 0.4  # of one turn
READERS = 200
QUEUE = "watched"
DASHBOARD = ["/v1/queues?live=true&limit=100", "/v1/alerts", "/v1/stats", "/v1/history"]


def work(broker):
    """One turn: new messages, all of them once more, and out."""
    ours = {"first": broker.next, "count": MESSAGES}
    sends = broker.load("send", QUEUE, **ours)
    return {"sends": sends, "duplicates": broker.load("duplicate", QUEUE, known=MESSAGES, **ours),
            "receive + ack": broker.load("consume", QUEUE, **{**ours, "depth": 1})}


def one_sender(broker):
    return {"one sender": broker.load("send", QUEUE, seconds=LATENCY_SECONDS, conns=1, depth=1)}


def await_readers(broker, count):
    while broker.stats()["events"]["readers"] != count:
        time.sleep(0.01)


class Watchers:
    """A scraper, a dashboard, a tail. Turns are shorter than a second, so the two count the time that they are there for."""
    STEP = 0.05

    def __init__(self, broker):
        self.broker, self.there, self.over = broker, threading.Event(), False
        self.threads = [threading.Thread(target=self.look, args=of) for of in ((1, ["/metrics"]), (2, DASHBOARD))]
        for thread in self.threads:
            thread.start()

    def look(self, every, paths):
        watched = 0
        while True:
            self.there.wait()
            if self.over:
                return
            time.sleep(self.STEP)
            watched += self.STEP
            if watched >= every:
                watched -= every
                for path in paths:
                    self.broker.ask(path)

    def __enter__(self):
        self.tail = subprocess.Popen([BUILD / "hapax", "tail", "--json", "--url", self.broker.url],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_readers(self.broker, 1)
        self.there.set()

    def __exit__(self, *_):
        self.there.clear()
        self.tail.kill()
        self.tail.wait()
        await_readers(self.broker, 0)

    def end(self):
        self.over = True
        self.there.set()
        for thread in self.threads:
            thread.join()


class Readers:
    """READERS of the events; the first stops reading at once, one process reads for the others."""

    def __init__(self, broker):
        self.broker = broker

    def __enter__(self):
        self.reader = subprocess.Popen([sys.executable, __file__, "--read", str(self.broker.port), str(READERS)],
                                       stdout=subprocess.PIPE, text=True)
        assert self.reader.stdout.readline() == "reading\n"

    def __exit__(self, *_):
        self.reader.kill()
        self.reader.wait()
        await_readers(self.broker, 0)

    def end(self):
        pass


def read(port, count):
    """Runs in a process of its own: what is read is thrown away; whoever was dropped comes again."""
    import selectors
    poll = selectors.DefaultSelector()

    def open_one():
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return s

    stopped = open_one()
    for _ in range(count - 1):
        poll.register(open_one(), selectors.EVENT_READ)
    print("reading", flush=True)
    while stopped:
        for key, _ in poll.select():
            if not key.fileobj.recv(1 << 18):
                poll.unregister(key.fileobj)
                key.fileobj.close()
                poll.register(open_one(), selectors.EVENT_READ)


def pairs(broker, turn, watchers, seconds):
    """[(alone, watched)]: who comes first alternates, so that what grows from turn to turn favours neither."""
    until, found = time.monotonic() + seconds, []
    turn(broker)  # warm
    while time.monotonic() < until or len(found) < PAIRS_LEAST:
        pair = {}
        for watched in ((False, True) if len(found) % 2 else (True, False)):
            if watched and not NOBODY:
                with watchers:
                    pair[watched] = turn(broker)
            else:
                pair[watched] = turn(broker)
        found.append((pair[False], pair[True]))
    watchers.end()
    return found


def figures(found, mode, figure):
    return [[turn[mode][figure] for turn in turns] for turns in zip(*found)]


def main():
    if sys.argv[1:2] == ["--read"]:
        return read(int(sys.argv[2]), int(sys.argv[3]))
    with tempfile.TemporaryDirectory(dir=PARENT) as directory:
        broker = Broker(directory)
        try:
            broker.ask(f"/v1/queues/{QUEUE}", {"window": "30s"})  # what is known stays as much from turn to turn
            found = pairs(broker, work, Watchers(broker), SECONDS * 2 / 3)
            print(f"{f'scraper, dashboard, tail; {len(found)} pairs':<46}{'alone':>10}{'watched':>10}{'ratio':>8}   certainly")
            for mode in found[0][0]:
                line(f"{mode} a second", *figures(found, mode, "rate"), 0.95, True)
                line("  the loop's ns for each", *figures(found, mode, "loop_ns"), 1.05, False)
            found = pairs(broker, one_sender, Readers(broker), SECONDS / 3)
            print(f"{READERS} readers, one stopped; {len(found)} pairs")
            line("p99 of one sender in us", *figures(found, "one sender", "p99_us"), 1.10, False)
            line("  p50", *figures(found, "one sender", "p50_us"), 1.10, False)
        finally:
            broker.end()


if __name__ == "__main__":
    main()
