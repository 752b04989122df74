"""Medians, ratios, tables and the verdict on each target."""

import json
import os
import platform
import statistics
from pathlib import Path

COLUMNS = [("send", "send/s"), ("batch", "batch 100/s"), ("duplicate", "duplicates/s"),
           ("duplicate_settled", "dup. settled/s"), ("consume", "receive+ack/s"), ("p50", "p50 us"), ("p99", "p99 us")]

# What is compared with what: Hapax's figure, the rival and its figure, at least this many times (or at most).
TARGETS = [
    ("single pipelined sends", "send", "redis", "send", "at least", 2.5),
    ("single pipelined sends", "send", "nats", "send", "at least", 1.0),
    ("NDJSON batches of 100", "batch", "redis", "send", "at least", 4.0),
    ("duplicates of pending keys", "duplicate", "redis", "duplicate", "at least", 2.5),
    ("duplicates of settled keys", "duplicate_settled", "redis", "duplicate", "at least", 2.5),
    ("receive + ack", "consume", "redis", "consume", "at least", 2.5),
    ("key and schema from 1 KiB of JSON, against a header key, in the worst round", "json_derived", "hapax", "json_header",
     "at least", 0.75),
    ("over TLS 1.3 with AES-GCM, sessions resumed, against plain, in the worst round", "send_tls", "hapax", "send_plain",
     "at least", 0.60),
    ("with a token, against none being asked for, in the median round", "send_token", "hapax", "send_open", "at least", 0.97),
    ("depth 1, p50", "p50", "redis", "p50", "at most", 1.0),
    ("depth 1, p99", "p99", "redis", "p99", "at most", 1.0),
]


def ratio(bench, figure, rival, rival_figure):
    """The median of the rounds' ratios, or the worst of Hapax against itself: both sides of each were measured within seconds of
    one another."""
    ours, theirs = bench.results.get(("hapax", figure)), bench.results.get((rival, rival_figure))
    if not ours or not theirs:
        return None
    shares = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
    of = min if rival == "hapax" and figure != "send_token" else statistics.median # 3 % is less than a round varies by
    return of(shares) if shares else None


def steadiness(bench):
    """Does the rate hold while keys gather and compaction runs beside? Round against round, so noise of the machine is in it: what Redis
    makes of the same rounds says how much. The loop's own time feels neither the disk nor who else runs."""
    sends = list(bench.results.get(("hapax", "send"), {}).values())
    if len(sends) < 2:
        return
    loop = list(bench.results.get(("hapax", "send_loop_ns"), {}).values())
    rival = list(bench.results.get(("redis", "send"), {}).values())
    theirs = f" (Redis {min(rival) / max(rival):.2f})" if rival else ""
    for what, got, bound in (("sends, last round against the first", sends[-1] / sends[0], 0.85),
                             (f"sends, slowest round against the fastest{theirs}", min(sends) / max(sends), 0.9),
                             ("sends, the loop's time for each, cheapest against dearest round", min(loop) / max(loop), 0.9)):
        yield {"target": what, "rival": "hapax", "ratio": round(got, 2), "sense": "at least", "bound": bound,
               "verdict": "PASS" if round(got, 2) >= bound else "short"}


def cell(bench, system, figure):
    values = bench.results.get((system, figure))
    return f"{statistics.median(values.values()):,.0f}" if values else "-"


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0])] + [text.rjust(width) for text, width in zip(row[1:], widths[1:])]
        print("  ".join(cells))
        if number == 0:
            print("  ".join("-" * width for width in widths))


def machine():
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().split("\n"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores, {model}, Linux {platform.release()}"


def verdicts(bench):
    lines = []
    for what, figure, rival, rival_figure, sense, bound in TARGETS:
        got = ratio(bench, figure, rival, rival_figure)
        if got is None:
            lines.append({"target": what, "rival": rival, "ratio": None, "bound": bound, "verdict": "not measured"})
            continue
        met = round(got, 2) >= bound if sense == "at least" else round(got, 2) <= bound
        lines.append({"target": what, "rival": rival, "ratio": round(got, 2), "sense": sense, "bound": bound,
                      "verdict": "PASS" if met else "short"})
    return lines + list(steadiness(bench))


def print_verdicts(bench):
    for line in verdicts(bench):
        if line["ratio"] is None:
            print(f"{line['verdict']:12} {line['target']}, against {line['rival']}")
        else:
            print(f"{line['verdict']:12} {line['target']}: {line['ratio']:.2f} x {line['rival']} "
                  f"({line['sense']} {line['bound']:g})")


def print_comparison(bench, opened):
    elsewhere = statistics.median(bench.elsewhere) if bench.elsewhere else 0.0
    print(f"{machine()}; {bench.rounds} rounds of {bench.seconds:g} s, medians; {bench.conns} connections x depth "
          f"{bench.depth}, 200-byte payloads, 36-character keys")
    print(f"other work on the machine took {elsewhere:.0%} of it (median over the measurements)"
          + ("; the figures are NOT to be trusted" if elsewhere > 0.15 else ""))
    print()
    rows = [["system"] + [title for _, title in COLUMNS]]
    for name, server in opened.items():
        rows.append([server.title] + [cell(bench, name, figure) for figure, _ in COLUMNS])
    if "hapax" in opened and "redis" in opened:
        shares = [ratio(bench, f, "redis", {"batch": "send", "duplicate_settled": "duplicate"}.get(f, f))
                  for f, _ in COLUMNS]
        rows.append(["Hapax : Redis"] + [f"{s:.2f} x" if s else "-" for s in shares])
    print_table(rows)
    for name, why in bench.absent.items():
        print(f"{name}: left out, {why}")
    print()
    print("limits of the machine: fdatasync of a 4 KiB append " + cell(bench, "disk", "append") + "/s, of an overwrite "
          + cell(bench, "disk", "overwrite") + "/s; 256 KiB appends with fdatasync " + cell(bench, "disk", "stream")
          + " MB/s; loopback echo " + cell(bench, "echo", "send") + "/s")
    print()
    print_verdicts(bench)
    for why in bench.errors:
        print(f"FAILED       {why}")


def comparison(bench, opened):
    """Prints everything; the exit status is 1 only if a system answered wrongly: being slow is no error."""
    if bench.options.json:
        figures = {}
        for (system, figure), values in bench.results.items():
            figures.setdefault(system, {})[figure] = {
                "median": statistics.median(values.values()), "rounds": list(values.values())}
        print(json.dumps({
            "machine": machine(), "rounds": bench.rounds, "round_seconds": bench.seconds, "conns": bench.conns,
            "depth": bench.depth, "versions": {name: server.version() for name, server in opened.items()},
            "elsewhere": round(statistics.median(bench.elsewhere or [0]), 3), "figures": figures,
            "targets": verdicts(bench), "absent": bench.absent, "errors": bench.errors}, indent=2))
    else:
        print_comparison(bench, opened)
    return 1 if bench.errors else 0
