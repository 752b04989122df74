"""The parts about many keys: is the cost of a message flat, what does a key weigh, how long does a restart take.

SCALE is the number of settled keys to build up (5 million unless set; `full` stops at 10 and at 50 million, the sizes
the targets name). A restart's bound is stated for those sizes; at others it is compared in proportion.
"""

import json
import os
import signal
import statistics
import time
import urllib.request

import servers

CHUNK = 100_000             # messages sent before they are consumed: keeps what is pending small while keys build up
FEW = 1_000_000             # pending messages; and the keys of the small broker that the large one is compared with
FLAT_ROUNDS = 5


class Scale:
    def __init__(self, bench):
        self.bench = bench
        self.lines = []         # {"what", "value", "bound", "verdict"}
        self.opened = []

    def open(self, name):
        directory = self.bench.dir / name
        directory.mkdir()
        server = servers.Hapax(directory)
        server.start()
        self.opened.append(server)
        return server

    def note(self, what, value, bound="", met=None):
        verdict = "" if met is None else "PASS" if met else "short"
        self.lines.append({"what": what, "value": value, "bound": bound, "verdict": verdict})
        self.bench.progress(f"{verdict:5} {what}: {value} {bound and '(' + bound + ')'}")

    def stats(self, server):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/stats", timeout=10) as reply:
            return json.load(reply)

    # ---- building up

    def fill(self, server, count):
        """Sends `count` new messages in batches of 100; returns their range."""
        sent = {"first": server.next_number, "count": count}
        self.bench.load(server, "batch", depth=self.bench.batch_depth, **sent)
        server.next_number += count
        return sent

    def drain(self, server, sent):
        self.bench.load(server, "consume", depth=1, **sent)

    def settle_up_to(self, server, keys):
        while server.next_number < keys:
            self.drain(server, self.fill(server, min(CHUNK, keys - server.next_number)))

    # ---- what is measured

    def memory_of_pending(self, server, count):
        """On a fresh broker, so that nothing but the messages can have made the process grow."""
        before = server.rss_bytes()
        sent = self.fill(server, count)
        memory = self.stats(server)["memory"]
        told = (memory["pending_bytes"] + memory["index_bytes"]) / count
        grown = (server.rss_bytes() - before) / count
        self.note_memory(f"memory per pending message, {count:,} of them", told, grown, 200)
        self.drain(server, sent)

    def memory_of_keys(self, server, before):
        keys = server.next_number
        told = self.stats(server)["memory"]["index_bytes"] / keys
        self.note_memory(f"memory per settled key, {keys:,} keys", told, (server.rss_bytes() - before) / keys, 64)

    def note_memory(self, what, told, grown, bound):
        self.note(what, f"{told:.1f} B by /v1/stats, {grown:.1f} B by growth of the process", f"at most {bound} B",
                  max(told, grown) <= bound)

    def longest_turn(self, server):
        longest = self.stats(server)["loop"]["turn_us_max"] / 1000
        self.note(f"longest turn of the loop while growing to {server.next_number:,} keys", f"{longest:.1f} ms",
                  "at most 50 ms", longest <= 50)

    def disk(self, server):
        data = server.dir / "data"
        used = settled_disk(data)
        live = self.stats(server)["journal"]["live_bytes"]
        self.note(f"disk after {server.next_number:,} churned messages",
                  f"{used / 1e6:,.0f} MB for {live / 1e6:,.0f} MB live, {used / live:.2f} x",
                  "at most 3 x", used <= 3 * live)

    def restart(self, server, how, pending):
        name = "kill -9" if how == signal.SIGKILL else "SIGTERM"
        keys = server.next_number - pending
        server.stop(how)
        took = server.start()
        bound = 60 * keys / 50e6 if keys > 10e6 else 10 * (keys + pending) / 11e6
        self.note(f"restart after {name}, {keys:,} settled + {pending:,} pending", f"{took:.2f} s to the ready line",
                  f"at most {bound:.1f} s at this size", took <= bound)

    def at_size(self, server, keys):
        before = server.rss_bytes() if server.next_number == 0 else None
        self.settle_up_to(server, keys)
        self.longest_turn(server)
        self.disk(server)
        if before is not None:
            self.memory_of_keys(server, before)
        pending = few(keys)
        sent = self.fill(server, pending)
        self.restart(server, signal.SIGTERM, pending)
        self.restart(server, signal.SIGKILL, pending)
        # Nothing forgotten, nothing twice: the client checks every reply and every payload.
        self.drain(server, sent)
        known = {"first": 0, "known": server.next_number, "seconds": self.bench.seconds}
        result = self.bench.load(server, "duplicate", **known)
        self.note(f"duplicates after the restart, {server.next_number:,} keys", f"{result['rate']:,.0f}/s")

    def flatness(self, small, large):
        small_rates, large_rates = [], []
        for _ in range(FLAT_ROUNDS):
            os.sync()
            of_small, of_large = (self.send_rate(server) for server in (small, large))
            small_rates.append(of_small)
            large_rates.append(of_large)
        share = statistics.median(a / b for a, b in zip(large_rates, small_rates))
        self.note(f"send rate with {large.next_number:,} keys against {small.next_number:,}",
                  f"{statistics.median(large_rates):,.0f}/s : {statistics.median(small_rates):,.0f}/s = {share:.2f}",
                  "at least 0.75", share >= 0.75)

    def send_rate(self, server):
        first = server.next_number
        result = self.bench.load(server, "send", first=first, seconds=1)
        server.next_number += result["messages"]
        self.drain(server, {"first": first, "count": result["messages"]})
        return result["rate"]


def settled_disk(directory):
    """Bytes the directory takes, once background work has stopped changing it (or after 20 s)."""
    def used():
        return sum(f.stat().st_blocks * 512 for f in directory.rglob("*") if f.is_file())
    before, deadline = used(), time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(1)
        now = used()
        if now == before:
            break
        before = now
    return before


def few(keys):
    return min(FEW, keys // 5)


def sizes():
    text = os.environ.get("SCALE", "5000000")
    return [10_000_000, 50_000_000] if text == "full" else [int(text)]


def run(bench):
    scale = Scale(bench)
    failure = None
    try:
        small = scale.open("small")
        scale.memory_of_pending(small, few(sizes()[-1]))
        large = scale.open("large")
        for keys in sizes():
            scale.at_size(large, keys)
        scale.flatness(small, large)
    except (RuntimeError, OSError) as why:
        failure = str(why)
        scale.lines.append({"what": "wrong answer or failed start", "value": failure, "bound": "", "verdict": "FAILED"})
    finally:
        for server in scale.opened:
            server.stop()
    if bench.options.json:
        print(json.dumps(scale.lines, indent=2))
    else:
        for line in scale.lines:
            bound = f" ({line['bound']})" if line["bound"] else ""
            print(f"{line['verdict']:6} {line['what']}: {line['value']}{bound}")
    return 1 if failure else 0
