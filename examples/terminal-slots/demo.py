#!/usr/bin/env python3
"""Both runs of the same bad day, and a picture of them: demo.py [--seconds N] [--svg FILE] [--json FILE]

First the feed goes straight to the terminal, then through Hapax, which has the rules of hapax.yaml and nothing else. Two hours of feed take N
seconds (10 unless said). The programs are those of HAPAX and HAPAXD, else of the build directory."""
import argparse
import base64
import collections
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(HERE, "..", "..", os.environ.get("BUILD", "build"))
HAPAX = os.environ.get("HAPAX", os.path.join(BUILD, "hapax"))
HAPAXD = os.environ.get("HAPAXD", os.path.join(BUILD, "hapaxd"))
INJECT = ["inject", "slots.ndjson", "--to", "slots", "--repeat", "6", "--over", "2h", "--reorder", "--change", "sent_at", "--seed", "3"]
HOURS_S, BOUND_S, COLUMNS = 7200, 120, 29
ENV = dict(os.environ, FEED_SECRET="whsec_" + base64.b64encode(os.urandom(32)).decode())


@contextlib.contextmanager
def server(*words):
    """A program that says on its first line where it listens; its URL."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, cwd=HERE, env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                sys.exit(f"{words[0]} did not start:\n{log.read()}")
            yield re.search(r"http://\S+", line).group()
        finally:
            process.terminate()
            process.communicate()


def fetch(url):
    with urllib.request.urlopen(url, timeout=BOUND_S) as reply:
        return json.load(reply)


def plan():
    """What the feed will send: its lines, and (seconds, container) of each."""
    text = subprocess.run([HAPAX, *INJECT, "--dry-run"], cwd=HERE, check=True, stdout=subprocess.PIPE, text=True).stdout
    fields = [line.split("\t") for line in text.splitlines()]
    return text, [(int(f[0].rstrip("ms")) / (1000 if f[0].endswith("ms") else 1), json.loads(f[3])["container"]) for f in fields]


def feed(url, text, seconds):
    began = time.time()
    done = subprocess.run([sys.executable, "feed.py", url, str(HOURS_S / seconds)], cwd=HERE, env=ENV, input=text, stdout=subprocess.PIPE, text=True)
    print("  " + done.stdout.strip(), file=sys.stderr)
    if done.returncode:
        sys.exit("the feed gave up")
    return began


def bookings(terminal, began, seconds):
    items = fetch(terminal + "/bookings")["items"]
    return [(b["container"], min((b["at"] - began) / seconds, 1) * HOURS_S, b["answered"], b["id"]) for b in items]


def run_bare(text, seconds):
    print("the feed, straight to the terminal:", file=sys.stderr)
    with server(sys.executable, "terminal.py", "0") as terminal:
        began = feed(terminal + "/slots", text, seconds)
        return {"bookings": bookings(terminal, began, seconds)}


def run_hapax(text, seconds):
    print("the same feed, through Hapax:", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hapax-demo-") as home, server(sys.executable, "terminal.py", "0") as terminal:
        with open(os.path.join(HERE, "hapax.yaml"), encoding="utf-8") as file:
            rules = file.read().replace("http://127.0.0.1:4290", terminal)
        config = os.path.join(home, "hapax.yaml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(rules)
        with server(HAPAXD, "--listen", "127.0.0.1:0", "--data", os.path.join(home, "data"), "--config", config) as hapax:
            began = feed(hapax + "/in/forwarder", text, seconds)
            queue = settled(hapax)
            return {"bookings": bookings(terminal, began, seconds), "queue": queue, "keys": keys(hapax)}


def settled(hapax):
    """The queue, when nothing in it is on its way any more."""
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        queue = fetch(hapax + "/v1/queues/slots")
        if queue["pending"] + queue["leased"] == 0:
            return queue
        time.sleep(0.1)
    sys.exit(f"not done within {BOUND_S} s: {queue}")


def keys(hapax):
    return [fetch(hapax + f"/v1/queues/slots/keys/slot:{e['terminal']}:{e['date']}:{e['container']}") for e in events()]


# ---- the picture

def place(at):
    return min(int(at / HOURS_S * COLUMNS), COLUMNS - 1)


def row(marks):
    """(time, mark) on one line; several at one place are a number, but a dot gives way."""
    cells = collections.defaultdict(list)
    for at, mark in marks:
        cells[place(at)].append(mark)
    return "".join(show(cells.get(i, [])) for i in range(COLUMNS))


def show(marks):
    loud = [m for m in marks if m != "·"]
    return str(len(loud)) if len(loud) > 1 else loud[0] if loud else marks[0] if marks else " "


def rows(arrivals, bare, through):
    """Of each container: its webhooks and bookings in both runs."""
    for container in containers():
        left = [(at, "●" if answered else "○") for c, at, answered, _ in bare if c == container]
        right = [(at, "●" if answered else "○") for c, at, answered, _ in through if c == container]
        yield container, left, right, [(at, "·") for at, c in arrivals if c == container]


def containers():
    return [event["container"] for event in events()]


def events():
    with open(os.path.join(HERE, "slots.ndjson"), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def text_picture(arrivals, bare, through):
    out = [f"{'':11}  {'straight to the terminal':{COLUMNS + 1}} {'':3} {'through Hapax':{COLUMNS}}"]
    for container, left, right, came in rows(arrivals, bare, through):
        out.append(f"{container:11} |{row(left)}|{len(left):2}  |{row(came + right)}|{len(right):2}")
    out.append(f"{'':11}  {'0 h':{COLUMNS - 3}}2 h {len(bare):2}   {'0 h':{COLUMNS - 3}}2 h {len(through):2}")
    out.append("● a slot booked   ○ booked, but the answer was lost   2 3 4 so many at once")
    out.append("· a webhook that Hapax took   behind each line: slots in all")
    return "\n".join(line.rstrip() for line in out)


def svg_picture(arrivals, bare, through):
    """The same with circles; a slot too many is red."""
    line, width, name = 14, 360, 110
    out = []
    for number, (container, left, right, came) in enumerate(rows(arrivals, bare, through)):
        y = 50 + line * number
        out.append(f'<text x="4" y="{y + 4}">{container}</text>')
        for x0, marks in ((name, left), (name + width + 60, right)):
            out.append(f'<line x1="{x0}" y1="{y}" x2="{x0 + width}" y2="{y}" stroke="#ddd"/><text x="{x0 + width + 12}" y="{y + 4}">{len(marks)}</text>')
            if x0 != name:
                out += [f'<circle cx="{x0 + at / HOURS_S * width:.1f}" cy="{y}" r="1.5" fill="#888"/>' for at, _ in came]
            for nth, (at, mark) in enumerate(sorted(marks)):
                color = "#c0392b" if nth else "#2c7a4b"
                out.append(f'<circle cx="{x0 + at / HOURS_S * width:.1f}" cy="{y}" r="4" stroke="{color}" fill="{color if mark == "●" else "white"}"/>')
    height = 80 + line * len(containers())
    out.append(f'<text x="{name}" y="{height - 16}" fill="#555">green: a slot booked; red: booked again; hollow: the answer was lost; small dot: a webhook</text>')
    titles = [f"straight to the terminal: {len(bare)} slots", f"through Hapax: {len(through)} slots"]
    out += [f'<text x="{name + i * (width + 60)}" y="24" font-weight="bold">{title}</text>' for i, title in enumerate(titles)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{name + 2 * width + 100}" height="{height}" font-family="monospace" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(out)}</svg>\n')


def summary(arrivals, bare, through, hapax):
    answers = {b: c for c, _, _, b in through}
    return {"webhooks": len(arrivals), "containers": len(set(containers())), "bare": {"booked": len(bare), "containers": len({b[0] for b in bare}), "answers_lost": sum(not b[2] for b in bare)},
            "hapax": {"booked": len(through), "containers": len({b[0] for b in through}), "answers_lost": sum(not b[2] for b in through),
                      "states": {name: hapax["queue"][name] for name in ("done", "held", "dead", "rejected") if name in hapax["queue"]},
                      "keys": {k["key"]: k for k in hapax["keys"]}, "booked_as": answers}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--svg")
    parser.add_argument("--json")
    args = parser.parse_args()
    text, arrivals = plan()
    bare, hapax = run_bare(text, args.seconds)["bookings"], run_hapax(text, args.seconds)
    through = hapax["bookings"]
    print(text_picture(arrivals, bare, through))
    print(f"\nStraight: {len(bare)} slots for {len({b[0] for b in bare})} containers. Through Hapax: {len(through)} slots for {len({b[0] for b in through})} containers.")
    if args.svg:
        with open(args.svg, "w", encoding="utf-8") as file:
            file.write(svg_picture(arrivals, bare, through))
        print(f"The picture is in {args.svg}, too.")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(summary(arrivals, bare, through, hapax), file)


main()
