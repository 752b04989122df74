#!/usr/bin/env python3
"""What watching costs: the same load in turns without and with somebody looking, against one broker.

Looked at by a scraper once a second, by a dashboard (its requests every two seconds) and by `hapax tail`; then the latency of
one sender beside 200 readers of /v1/events, one of which has stopped reading. Medians of ROUNDS rounds (5) of ROUND_SECONDS (2).
"""
import json
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

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
ROUNDS = int(os.environ.get("ROUNDS", 5))
SECONDS = os.environ.get("ROUND_SECONDS", "2")
READERS = 200


class Broker:
    def __init__(self, directory):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([BUILD / "hapaxd", "--listen", f"127.0.0.1:{self.port}", "--data", directory],
                                        stderr=subprocess.DEVNULL)
        while True:
            try:
                return self.get("/readyz") and None
            except OSError:
                time.sleep(0.05)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as reply:
            return reply.read()

    def bench(self, mode, figure):
        ran = subprocess.run([BUILD / "hapax", "bench", "--mode", mode, "--seconds", SECONDS, "--json", "--url", self.url,
                              "--queue", mode], capture_output=True, check=True)
        return find(json.loads(ran.stdout), figure)


def find(value, name):
    """The first number under this name, however deep."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, inner in value.items():
        if key == name and isinstance(inner, (int, float)):
            return inner
        if isinstance(inner, (dict, list)) and (got := find(inner, name)) is not None:
            return got
    return None


class Watchers:
    """A scraper, a dashboard, a tail."""

    def __init__(self, broker):
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.look, args=(broker, every, paths)) for every, paths in (
            (1, ["/metrics"]), (2, ["/v1/queues?live=true&limit=100", "/v1/alerts", "/v1/stats", "/v1/history"]))]
        self.tail = subprocess.Popen([BUILD / "hapax", "tail", "--json", "--url", broker.url], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)

    def look(self, broker, every, paths):
        while not self.over.wait(every):
            for path in paths:
                broker.get(path)

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.tail.kill()
        self.tail.wait()
        for thread in self.threads:
            thread.join()


class Readers:
    """READERS of the events; the first stops reading at once, one process reads for the others."""

    def __init__(self, broker):
        self.ready = threading.Event()
        self.reader = subprocess.Popen([sys.executable, __file__, "--read", str(broker.port), str(READERS)],
                                       stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        assert self.reader.stdout.readline() == "reading\n"

    def __exit__(self, *_):
        self.reader.kill()
        self.reader.wait()


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


def compare(broker, mode, figure, watchers):
    alone, watched = [], []
    broker.bench(mode, figure)
    for n in range(ROUNDS):
        for looked_at in ((False, True) if n % 2 else (True, False)):
            if looked_at:
                with watchers(broker):
                    watched.append(broker.bench(mode, figure))
            else:
                alone.append(broker.bench(mode, figure))
    return statistics.median(alone), statistics.median(watched), watched


def line(what, alone, watched, goal, good):
    ratio = watched / alone
    print(f"{what:<44}{alone:>12,.0f}{watched:>12,.0f}{ratio:>8.2f}   goal {goal}: {'met' if good(ratio) else 'short'}")


def main():
    if sys.argv[1:2] == ["--read"]:
        return read(int(sys.argv[2]), int(sys.argv[3]))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "/var/tmp")) as directory:
        broker = Broker(directory)
        try:
            print(f"{'':<44}{'alone':>12}{'watched':>12}{'ratio':>8}")
            for mode, what in (("single", "sends a second"), ("dup", "duplicates a second"), ("consume", "receive + ack a second")):
                alone, watched, _ = compare(broker, mode, "rate", Watchers)
                line(f"{what}; scraper, dashboard, tail", alone, watched, ">= 0.95", lambda r: r >= 0.95)
            alone, watched, _ = compare(broker, "latency", "p99_us", Readers)
            line(f"p99 of a sender in us; {READERS} readers, one stopped", alone, watched, "<= 1.10", lambda r: r <= 1.1)
        finally:
            broker.process.terminate()
            broker.process.wait()


if __name__ == "__main__":
    main()
