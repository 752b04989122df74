#!/usr/bin/env python3
"""examples/terminal-slots, run as `make demo` runs it, only faster: what it claims is counted here."""
import base64
import collections
import json
import os
import subprocess
import sys
import tempfile
import xml.dom.minidom

import hx
from hx import members, same, test

EXAMPLE = os.path.join(hx.ROOT, "examples", "terminal-slots")
SECONDS = "2"  # for two hours


def demo(home):
    """What it printed, drew and counted."""
    svg, counts = os.path.join(home, "both.svg"), os.path.join(home, "counts.json")
    env = dict(os.environ, HAPAX=hx.HAPAX, HAPAXD=hx.HAPAXD)
    done = subprocess.run([sys.executable, os.path.join(EXAMPLE, "demo.py"), "--seconds", SECONDS, "--svg", svg, "--json", counts], env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    same(done.returncode, 0, done.stdout + done.stderr)
    with open(counts, encoding="utf-8") as file:
        return done.stdout, xml.dom.minidom.parse(svg), json.load(file)


@test
def straight_to_the_terminal_39_containers_get_87_slots_and_through_hapax_39():
    with tempfile.TemporaryDirectory() as home:
        text, svg, told = demo(home)
    members(told, webhooks=79, containers=39, bare={"booked": 87, "containers": 39, "answers_lost": 8})
    hapax = told["hapax"]
    members(hapax, booked=39, containers=39)
    assert hapax["answers_lost"] > 0, "no push died half-way: nothing was shown"
    members(hapax["states"], held=0, dead=0)
    same(collections.Counter(k["state"] for k in hapax["keys"].values()), {"done": 39})
    same(sum(k["duplicates"] for k in hapax["keys"].values()), 79 - 39, "every repeat was known")
    for key in hapax["keys"].values():
        container = key["key"].rsplit(":", 1)[1]
        same([hapax["booked_as"][e] for e in key["effect_ids"]], [container], "the booking is known by its name")
    looks_right(text.splitlines(), [t.firstChild.data for t in svg.getElementsByTagName("text")])


def looks_right(lines, texts):
    same([line for line in lines if len(line) > 80 and ".svg" not in line], [], "eighty columns")
    same(len([line for line in lines if line.count("|") == 4]), 39)
    assert "Straight: 87 slots for 39 containers. Through Hapax: 39 slots for 39 containers." in lines, lines
    assert {"straight to the terminal: 87 slots", "through Hapax: 39 slots"} < set(texts), texts


@test
def its_rules_have_nothing_that_will_hurt():
    env = dict(os.environ, FEED_SECRET="whsec_" + base64.b64encode(bytes(32)).decode())
    done = subprocess.run([hx.HAPAX, "lint", os.path.join(EXAMPLE, "hapax.yaml")], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and "nothing found" in done.stdout, done.stdout


hx.main(shared=False)
