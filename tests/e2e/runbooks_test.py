#!/usr/bin/env python3
"""docs/runbooks: every command is run on a queue in the trouble the page is about, and says what the page says it does."""
import glob
import os
import re
import subprocess
import tempfile

import hx
from hx import same, test

PAGES = sorted(glob.glob(os.path.join(hx.ROOT, "docs", "runbooks", "*.md")))
RULES = {"key": "capture:${payment_intent_id}", "fingerprint": "json", "keep_payload": "24h"}
RETRY = {"transient": {"attempts": 2, "backoff": "1ms", "max": "1ms"}}


# ---- the scene: a queue in every kind of trouble

def event(b, n):
    same(b.event("payments", {"payment_intent_id": f"pi_{n}", "amount": 5}).status, 202)
    return b.one("payments", consumer="worker-1", lease="1h")


def good_day(b):
    for n in (1, 2, 3):
        b.ok("ack", event(b, n), result={"tx": n}, effect_id=f"tx-{n}")


def bad_day(b):
    """pi_1: two effects. pi_4: poison. pi_8, pi_9: dead by timeouts. pi_7: retrying. pi_6: held. pi_5: in flight."""
    b.rules("payments", **RULES, retry=RETRY)
    m = event(b, 1)
    b.ok("release", m)
    b.ok("ack", b.one("payments"), effect_id="tx-1")
    b.settle("ack", m, effect_id="tx-2")
    b.ok("nack", event(b, 4), **{"class": "poison"}, reason="account closed")
    for n in (8, 9):
        b.ok("nack", event(b, n), **{"class": "transient"}, reason="gateway timeout")
        b.ok("nack", b.one("payments"), **{"class": "transient"}, reason="gateway timeout")
    b.rules("payments", **RULES, on_unknown="hold", retry={"transient": {"attempts": 6, "backoff": "1h", "max": "1h"}})
    b.ok("nack", event(b, 6), **{"class": "unknown"}, reason="connection lost")
    b.ok("nack", event(b, 7), **{"class": "transient"}, reason="gateway timeout")
    event(b, 5)
    b.post("/v1/queues/payments/pause", {"by": "ada", "note": "a look around"})
    b.post("/v1/queues/payments/resume", {"by": "ada", "note": "a look around"})


def scene(page):
    b = hx.Broker()
    b.rules("payments", **RULES)
    (good_day if os.path.basename(page) == "replay.md" else bad_day)(b)
    return b


# ---- the pages

def commands(text):
    """(command, expected output) of every console block, in order."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            yield command, expected


def pattern(expected):
    """The ellipsis stands for anything in its line; alone on a line for any lines, also none. Blanks only part."""
    parts = []
    for line in expected.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(r"\s*" + ".*".join(r"\s+".join(map(re.escape, piece.split(" "))) if piece.strip() else r"\s*" for piece in re.sub(" +", " ", line).split("…")) + r"\s*?\n")
    return re.compile("".join(parts) + r"\Z")


def run(b, command):
    env = {n: v for n, v in os.environ.items() if not n.startswith("HAPAX")}
    env.update(HAPAX_URL=b.url, PATH=os.path.dirname(hx.HAPAX) + os.pathsep + os.environ["PATH"], USER="tester")
    with tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
        done = subprocess.run(["sh", "-c", command], env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=hx.TIMEOUT)
    said = done.stdout.decode() + (done.stderr.decode() if done.stdout == b"" else "")
    return done.returncode, said, done.stderr.decode()


def page_test(page):
    def body():
        with open(page, encoding="utf-8") as file:
            text = file.read()
        count = 0
        with scene(page) as b:
            for command, expected in commands(text):
                code, said, err = run(b, command)
                same(code, 0, f"$ {command}\n{said}{err}")
                assert pattern(expected).match(said), f"$ {command}\nsaid:\n{said}\nthe page says:\n{expected}"
                count += 1
        assert count >= 2, "a page without commands helps nobody"
    body.__name__ = f"the_commands_of_{os.path.basename(page).replace('-', '_').replace('.md', '')}_do_what_they_say"
    return body


for name in PAGES:
    test(page_test(name))


@test
def every_page_says_what_not_to_do_and_its_links_lead_somewhere():
    assert len(PAGES) >= 7
    for page in PAGES:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        assert re.search(r"^## Do not$", text, re.M), page
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert os.path.exists(os.path.join(os.path.dirname(page), link)), (page, link)


hx.main(shared=False, threads=4)
