#!/usr/bin/env python3
"""A rate that holds: sends to a broker that compacts beside them, to its twin that has done so already, and to one that has just started.

The first two have KEYS settled keys and have lost GARBAGE messages of 1 KiB to a purge; what is kept of those and lies in front of
them has to be carried away. They take short turns, one after the other, and whoever has none stands still (SIGSTOP), for in a quiet
moment compaction would be over. Rates of rounds that lie a minute apart say as much about the machine: what memory and disk give it
differs by a third (docs/BENCHMARK.md). tests/bench/pairs.py says how turns are compared.

Environment: KEYS (2000000), GARBAGE (3000000), TURN_SECONDS (0.1), TURNS (200) at most, BENCH_DIR (/var/tmp), BUILD (build).
`tests/bench/run`, which `make bench` runs first, builds what is needed.
"""
import os
import signal
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from pairs import PAIRS_LEAST, PARENT, Broker, line  # noqa: E402

KEYS = int(os.environ.get("KEYS", 2000000))
GARBAGE = int(os.environ.get("GARBAGE", 3000000))
TURN_SECONDS = float(os.environ.get("TURN_SECONDS", 0.1))
TURNS = int(os.environ.get("TURNS", 200))
OWN_BYTES = 1.03  # a send beside which nothing was carried wrote no more than that of the least one


def aged(directory):
    broker = Broker(directory)
    sent = broker.next
    broker.load("batch", "old", depth=4, count=KEYS)
    broker.load("consume", "old", depth=1, first=sent, count=KEYS)
    broker.load("send", "purged", kind="json", count=GARBAGE)
    return broker


def await_compaction(broker):
    """Nothing is asked meanwhile but this; what is written then is a clock now and then."""
    before = None
    while before is None or broker.stats()["journal"]["tail"] - before > 4096:
        before = broker.stats()["journal"]["tail"]
        time.sleep(0.5)


def turn(broker):
    broker.process.send_signal(signal.SIGCONT)
    before = broker.stats()["journal"]["tail"]
    result = broker.load("send", "new", seconds=TURN_SECONDS)
    result["bytes"] = (broker.stats()["journal"]["tail"] - before) / result["messages"]
    broker.process.send_signal(signal.SIGSTOP)
    return result


def rounds(brokers):
    """[{name: turn}], as long as the one that compacts does."""
    found, least = [], None
    while len(found) < TURNS:
        first = len(found) % len(brokers)
        order = list(brokers.items())
        found.append({name: turn(broker) for name, broker in order[first:] + order[:first]})
        least = min([least or 1e9] + [t["bytes"] for t in found[-1].values()])
        if found[-1]["compacts"]["bytes"] < least * OWN_BYTES:
            return found[:-1]
    return found


def main():
    with tempfile.TemporaryDirectory(dir=PARENT) as directory:
        brokers = {}
        try:
            for name in ("compacted", "compacts"):
                brokers[name] = aged(f"{directory}/{name}")
                brokers[name].ask("/v1/queues/purged/purge", method="POST")
                if name == "compacted":
                    await_compaction(brokers[name])
                brokers[name].process.send_signal(signal.SIGSTOP)
            brokers["new"] = Broker(f"{directory}/new")
            found = rounds(brokers)
        finally:
            for broker in brokers.values():
                broker.end()
    if len(found) < PAIRS_LEAST:
        sys.exit(f"steady: compaction was over after {len(found)} turns: more GARBAGE")
    of = {name: {figure: [r[name][figure] for r in found] for figure in ("rate", "loop_ns", "bytes")} for name in found[0]}
    print(f"{f'sends beside compaction; {len(found)} turns each':<46}{'without':>10}{'beside':>10}{'ratio':>8}   certainly")
    line("sends a second", of["compacted"]["rate"], of["compacts"]["rate"], 0.90, True)
    line("  the loop's ns for each", of["compacted"]["loop_ns"], of["compacts"]["loop_ns"], 1.10, False)
    own, beside = (statistics.median(of[name]["bytes"]) for name in ("compacted", "compacts"))
    print(f"  {own:,.0f} bytes written for each, and {beside - own:,.0f} carried beside it")
    print(f"{f'sends after {KEYS + GARBAGE:,} keys':<46}{'new':>10}{'later':>10}{'ratio':>8}   certainly")
    line("sends a second", of["new"]["rate"], of["compacted"]["rate"], 0.85, True)
    line("  the loop's ns for each", of["new"]["loop_ns"], of["compacted"]["loop_ns"], 1.15, False)


if __name__ == "__main__":
    main()
