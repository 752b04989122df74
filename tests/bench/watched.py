#!/usr/bin/env python3
"""What watching costs: one broker under the same load, alone and looked at, in short turns that follow each other.

Looked at by a scraper once a second, by a dashboard (its requests every two seconds) and by `hapax tail`; then one sender's
latency beside 200 readers of /v1/events, one of which has stopped reading. Turns of a kind differ by a tenth and more, so each
is compared with its neighbour: a figure is the median of the pairs' ratios, and beside it stands where that median lies with 95 %
certainty. A goal is met or short when all of that is on one side of it; otherwise the noise was too much to tell (`open`).

Environment: NOBODY (1: nobody looks, to see what the noise alone says), SECONDS (150) in all, MESSAGES (100000) in a turn, BENCH_DIR (/var/tmp), BUILD (build).
`tests/bench/run`, which `make bench` runs first, builds what is needed.
"""
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
from servers import loop_ns  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
SECONDS = float(os.environ.get("SECONDS", 150))
MESSAGES = int(os.environ.get("MESSAGES", 100000))
NOBODY = os.environ.get("NOBODY") == "1"
LATENCY_SECONDS = 0.4  # of one turn
READERS = 200
DASHBOARD = ["/v1/queues?live=true&limit=100", "/v1/alerts", "/v1/stats", "/v1/history"]
PAIRS_LEAST = 6  # of fewer the median may lie anywhere


class Broker:
    def __init__(self, directory):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([BUILD / "hapaxd", "--listen", f"127.0.0.1:{self.port}", "--data", directory],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while "ready" not in self.process.stdout.readline():
            assert self.process.poll() is None, "the broker did not start"
        self.next = 0

    def ask(self, path, rules=None):
        asked = urllib.request.Request(self.url + path, data=json.dumps(rules).encode() if rules else None,
                                       method="PUT" if rules else "GET", headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return reply.read()

    def await_readers(self, count):
        while json.loads(self.ask("/v1/stats"))["events"]["readers"] != count:
            time.sleep(0.01)

    def load(self, mode, **flags):
        command = [BUILD / "tests" / "bench_hapax", "--port", str(self.port), "--mode", mode, "--queue", "watched"]
        for name, value in {"conns": 8, "depth": 64, **flags}.items():
            command += [f"--{name}", str(value)]
        before = loop_ns(self.process.pid)
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        result["loop_ns"] = (loop_ns(self.process.pid) - before) / result["messages"]
        return result

    def work(self):
        """One turn: new messages, all of them once more, and out."""
        ours = {"first": self.next, "count": MESSAGES}
        self.next += MESSAGES
        return {"sends": self.load("send", **ours), "duplicates": self.load("duplicate", known=MESSAGES, **ours),
                "receive + ack": self.load("consume", **{**ours, "depth": 1})}

    def one_sender(self):
        result = self.load("send", first=self.next, seconds=LATENCY_SECONDS, conns=1, depth=1)
        self.next += result["messages"]
        return {"one sender": result}


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
        self.broker.await_readers(1)
        self.there.set()

    def __exit__(self, *_):
        self.there.clear()
        self.tail.kill()
        self.tail.wait()
        self.broker.await_readers(0)

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
        self.broker.await_readers(0)

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


def pairs(turn, watchers, seconds):
    """[(alone, watched)]: who comes first alternates, so that what grows from turn to turn favours neither."""
    until, found = time.monotonic() + seconds, []
    turn()  # warm
    while time.monotonic() < until or len(found) < PAIRS_LEAST:
        pair = {}
        for watched in ((False, True) if len(found) % 2 else (True, False)):
            if watched and not NOBODY:
                with watchers:
                    pair[watched] = turn()
            else:
                pair[watched] = turn()
        found.append((pair[False], pair[True]))
    watchers.end()
    return found


def between(ratios):
    """Where the median of all such ratios lies with 95 % certainty: as many are below it as above, like tossed coins."""
    off = max(0, math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))))
    return ratios[off], ratios[len(ratios) - 1 - off]


def line(what, found, mode, figure, goal, at_least):
    alone, watched = ([turn[mode][figure] for turn in turns] for turns in zip(*found))
    ratios = sorted(w / a for a, w in zip(alone, watched))
    low, high = between(ratios)
    verdict = "open"
    if low >= goal or high <= goal:
        verdict = "met" if (low >= goal) == at_least else "short"
    print(f"{what:<46}{statistics.median(alone):>10,.0f}{statistics.median(watched):>10,.0f}{statistics.median(ratios):>8.3f}"
          f"   {low:.3f} to {high:.3f}   goal {'>=' if at_least else '<='} {goal:.2f}: {verdict}", flush=True)


def main():
    if sys.argv[1:2] == ["--read"]:
        return read(int(sys.argv[2]), int(sys.argv[3]))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "/var/tmp")) as directory:
        broker = Broker(directory)
        try:
            broker.ask("/v1/queues/watched", {"window": "30s"})  # what is known stays as much from turn to turn
            found = pairs(broker.work, Watchers(broker), SECONDS * 2 / 3)
            print(f"{f'scraper, dashboard, tail; {len(found)} pairs':<46}{'alone':>10}{'watched':>10}{'ratio':>8}   certainly")
            for mode in found[0][0]:
                line(f"{mode} a second", found, mode, "rate", 0.95, True)
                line("  the loop's ns for each", found, mode, "loop_ns", 1.05, False)
            found = pairs(broker.one_sender, Readers(broker), SECONDS / 3)
            print(f"{READERS} readers, one stopped; {len(found)} pairs")
            line("p99 of one sender in us", found, "one sender", "p99_us", 1.10, False)
            line("  p50", found, "one sender", "p50_us", 1.10, False)
        finally:
            broker.process.terminate()
            broker.process.wait()


if __name__ == "__main__":
    main()
