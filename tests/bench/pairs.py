"""What watched.py and steady.py have in common: a broker under load in short turns, and what pairs of turns say.

Turns of a kind differ by a tenth and more, so each is compared with its neighbour: a figure is the median of the pairs' ratios, and beside it
stands where that median lies with 95 % certainty. A goal is met or short when all of that is on one side of it; otherwise the noise
was too much to tell (`open`)."""
import json
import math
import os
import socket
import statistics
import subprocess
import urllib.request
from pathlib import Path

from servers import loop_ns

BUILD = Path(__file__).resolve().parents[2] / os.environ.get("BUILD", "build")
PARENT = os.environ.get("BENCH_DIR", "/var/tmp")  # of what brokers write
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

    def ask(self, path, rules=None, method=None):
        asked = urllib.request.Request(self.url + path, data=json.dumps(rules).encode() if rules else None,
                                       method=method or ("PUT" if rules else "GET"), headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return reply.read()

    def stats(self):
        return json.loads(self.ask("/v1/stats"))

    def load(self, mode, queue, **flags):
        """One run of the load client; new messages go on from where the last ones ended."""
        command = [BUILD / "tests" / "bench_hapax", "--port", str(self.port), "--mode", mode, "--queue", queue]
        for name, value in {"conns": 8, "depth": 64, "first": self.next, **flags}.items():
            command += [f"--{name}", str(value)]
        before = loop_ns(self.process.pid)
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        result["loop_ns"] = (loop_ns(self.process.pid) - before) / result["messages"]
        if mode in ("send", "batch"):
            self.next += result["messages"]
        return result

    def end(self):
        self.process.kill()
        self.process.wait()


def between(ratios):
    """Where the median of all such ratios lies with 95 % certainty: as many are below it as above, like tossed coins."""
    off = max(0, math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))))
    return ratios[off], ratios[len(ratios) - 1 - off]


def line(what, first, second, goal, at_least):
    """Of the second against the first, turn by turn: met or short when all of where the median may lie is on one side of the goal."""
    ratios = sorted(b / a for a, b in zip(first, second))
    low, high = between(ratios)
    verdict = "open"
    if low >= goal or high <= goal:
        verdict = "met" if (low >= goal) == at_least else "short"
    print(f"{what:<46}{statistics.median(first):>10,.0f}{statistics.median(second):>10,.0f}{statistics.median(ratios):>8.3f}"
          f"   {low:.3f} to {high:.3f}   goal {'>=' if at_least else '<='} {goal:.2f}: {verdict}", flush=True)
