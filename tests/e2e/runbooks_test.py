#!/usr/bin/env python3
"""docs/runbooks: every command is run on a queue in the trouble the page is about, and says what the page says it does."""
import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
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
    """pi_1: two effects. pi_4: poison. pi_8, pi_9: dead by timeouts. pi_7: retrying. pi_6, pi_11: held. pi_5: in flight."""
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
    for n in (6, 11):
        b.ok("nack", event(b, n), **{"class": "unknown"}, reason="connection lost")
    b.ok("nack", event(b, 7), **{"class": "transient"}, reason="gateway timeout")
    event(b, 5)
    b.post("/v1/queues/payments/pause", {"by": "ada", "note": "a look around"})
    b.post("/v1/queues/payments/resume", {"by": "ada", "note": "a look around"})


def blocked_day(b):
    """pi_1 is dead, and pi_2 of the same user waits behind it."""
    b.rules("payments", **RULES, order_by="${user_id}")
    for n in (1, 2):
        same(b.event("payments", {"payment_intent_id": f"pi_{n}", "user_id": "user-7"}).status, 202)
    b.ok("nack", b.one("payments"), **{"class": "poison"}, reason="account closed")


def vanished_day(b):
    bad_day(b)
    b.event("payments", {"payment_intent_id": "pi_10", "amount": 5})


FILE = "queues:\n  payments: {lease: 30s}\n"


def file_scene():
    """The file was edited, and not read again yet."""
    b = hx.Broker(config=FILE)
    b.configure(FILE.replace("30s", "1m"))
    return b


def relay_scene():
    b = hx.Broker(config='relay: [{dsn: "host=127.0.0.1 port=1 connect_timeout=2", queue: orders}]\nqueues: {orders: {}}\n')
    hx.until(lambda: b"trouble" in b.get("/v1/stats").body, "the relay has found no database")
    return b


def down_scene():
    """Nobody listens where the queue delivers to."""
    b = hx.Broker(config="queues:\n  payments:\n    deliver: {url: 'http://127.0.0.1:1/charge', allow_private: true, circuit: {of: 2}}\n")
    b.put("payments", "k1", "k2", "k3")
    hx.until(lambda: b.get("/v1/targets").json()["items"][0]["state"] == "open", "the circuit is open")
    return b


def refused_scene():
    b = hx.Broker(config='sources: {terminal: {queue: slots, verify: {scheme: github, secrets: ["${SECRET}"]}}}\nqueues: {slots: {}}\n', env={"SECRET": "s"})
    same(b.call("POST", "/in/terminal", b"{}").status, 401)
    return b


def damaged_scene():
    """A byte in the middle of what was durable is another one. The backup is from before."""
    b = hx.Broker()
    b.put("payments", "k1", "k2", "k3")
    b.stop()
    shutil.copytree(b.data, b.data + "-backup")
    segment = sorted(glob.glob(os.path.join(b.data, "journal-*.seg")))[0]
    with open(segment, "r+b") as file:
        at = file.read().index(b"k2")
        file.seek(at)
        file.write(b"X")
    return b


def leaked_scene():
    """shop's token has leaked, and somebody has paused a queue with it."""
    def line(name, allow):
        return f'  - {{name: {name}, sha256: ["{hashlib.sha256(f"hx_{name}".encode()).hexdigest()}"], allow: {json.dumps(allow)}}}\n'
    b = hx.Broker(config="queues: {payments: {}}\ntokens:\n" + line("shop", ["send:payments", "operate:payments"]) + line("ops", ["admin"]))
    shop = [("Authorization", "Bearer hx_shop")]
    same(b.send("payments", "order-1", headers=shop).status, 202)
    same(b.post("/v1/queues/payments/pause", {"by": "ada"}, shop).status, 200)
    same(b.post("/v1/queues/payments/resume", {"by": "ada"}, shop).status, 200)
    b.at_hand = {"shop.token": "hx_shop\n", "ops.token": "hx_ops\n"}
    return b


def stopped_scene():
    b = file_scene()
    b.put("payments", "k1", "k2")
    b.stop()
    return b


def day(made, **kw):
    def scene():
        b = hx.Broker(**kw)
        b.rules("payments", **RULES)
        made(b)
        return b
    return scene


SCENES = {
    "README.md": file_scene,
    "broker-does-not-start.md": file_scene,
    "backup-and-move.md": stopped_scene,
    "blocked-group.md": day(blocked_day),
    "damage-and-restore.md": damaged_scene,
    "duplicates-vanished.md": day(vanished_day),
    "ingest-refused.md": refused_scene,
    "memory.md": day(bad_day, options=["--memory", "64MiB"]),
    "push-down.md": down_scene,
    "relay-stuck.md": relay_scene,
    "replay.md": day(good_day),
    "token-leaked.md": leaked_scene,
}


@contextlib.contextmanager
def scene(page):
    """A broker in that trouble, and a directory as its operator has it: hapax.yaml, data, backup."""
    with SCENES.get(os.path.basename(page), day(bad_day))() as b, tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
        for name, path in (("hapax.yaml", b.config), ("data", b.data), ("backup", b.data + "-backup")):
            if not os.path.exists(path):
                continue
            if b.running():
                os.symlink(path, os.path.join(home, name))
            else:
                shutil.move(path, os.path.join(home, name))
        for name, text in getattr(b, "at_hand", {}).items():
            with open(os.path.join(home, name), "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(text)
        yield b, home


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


def run(b, home, command):
    env = {n: v for n, v in os.environ.items() if not n.startswith("HAPAX")}
    env.update(HAPAX_URL=b.url, PATH=os.path.dirname(hx.HAPAX) + os.pathsep + os.environ["PATH"], USER="tester")
    before = len(b.stderr())
    done = subprocess.run(["sh", "-c", command], env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=hx.TIMEOUT)
    if command.startswith("kill -HUP"):
        hx.until(lambda: "is in force" in b.stderr()[before:], "the file is read again")
    said = done.stdout.decode() + (done.stderr.decode() if done.stdout == b"" else "")
    return done.returncode, said, done.stderr.decode()


def page_test(page):
    def body():
        with open(page, encoding="utf-8") as file:
            text = file.read()
        count = 0
        with scene(page) as (b, home):
            for command, expected in commands(text):
                code, said, err = run(b, home, command)
                exits = re.search(r"# exit (\d+)$", command)
                same(code, int(exits.group(1)) if exits else 0, f"$ {command}\n{said}{err}")
                assert pattern(expected).match(said), f"$ {command}\nsaid:\n{said}\nthe page says:\n{expected}"
                count += 1
        assert count >= 2, "a page without commands helps nobody"
    body.__name__ = f"the_commands_of_{os.path.basename(page).replace('-', '_').replace('.md', '')}_do_what_they_say"
    return body


for name in PAGES:
    test(page_test(name))


@test
def every_page_says_what_not_to_do_and_its_links_lead_somewhere():
    assert len(PAGES) >= 14
    for page in PAGES:
        with open(page, encoding="utf-8") as file:
            text = file.read()
        assert re.search(r"^## Do not$", text, re.M), page
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert os.path.exists(os.path.join(os.path.dirname(page), link)), (page, link)


@test
def what_the_pages_say_to_write_into_the_file_is_valid():
    count = 0
    for page in PAGES:
        with open(page, encoding="utf-8") as file, tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
            for block in re.findall(r"^```yaml\n(.*?)^```$", file.read(), re.M | re.S):
                path = os.path.join(home, "hapax.yaml")
                with open(path, "w", encoding="utf-8") as out:
                    out.write(block)
                done = subprocess.run([hx.HAPAXD, "--config", path, "--check-config"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=hx.TIMEOUT)
                same(done.returncode, 0, f"{page}: {done.stdout.decode()}")
                count += 1
    assert count >= 6


@test
def no_page_sends_its_reader_to_change_what_a_file_defines():
    for page in PAGES:
        with open(page, encoding="utf-8") as file:
            assert not re.search(r"^\$ .*queues set", file.read(), re.M), page


@test
def every_alert_has_its_page():
    with open(os.path.join(hx.ROOT, "docs", "runbooks", "README.md"), encoding="utf-8") as file:
        have = re.findall(r"^\| `(\w+)` \| \[(\S+\.md)\]\(\2\) \|$", file.read(), re.M)
    same(len(have), len({name for name, _ in have}))
    with open(os.path.join(hx.ROOT, "docs", "CONFIG.md"), encoding="utf-8") as file:
        table = file.read().partition("| alert | threshold |")[2].partition("\n\n")[0]
    want = {name for row in re.findall(r"^\| (`.+?`) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert len(want) > 10
    same({name for name, _ in have}, want)


@test
def the_operators_page_of_a_queue_leads_to_the_same_pages():
    with open(os.path.join(hx.ROOT, "docs", "runbooks", "README.md"), encoding="utf-8") as file:
        table = dict(re.findall(r"^\| `(\w+)` \| \[(\S+\.md)\]", file.read(), re.M))
    with day(bad_day)() as b, tempfile.TemporaryDirectory() as home:
        b.rules("payments", **RULES, lag={"alert": "5m"}, origin="${header.x}", dead={"owner": "payments-oncall"})
        code, said, _ = run(b, home, "hapax queues explain payments --runbook")
        same(code, 0, said)
        assert said.startswith("# Queue payments\n\nOwner: payments-oncall."), said
        linked = dict(re.findall(r"^\| `(\w+)` \| .* \[\S+\]\(docs/runbooks/(\S+\.md)\) \|$", said, re.M))
        assert len(linked) > 8, said
        same(linked, {name: table[name] for name in linked})


@test
def the_operators_page_tells_what_the_repeats_of_each_event_type_look_like():
    pages = {"/v1/queues/q": json.dumps({"name": "q", "config": {"event_type": "${type}"}}), "/metrics": """
hapax_accepted_total{queue="q",type="paid"} 90
hapax_duplicates_total{queue="q",kind="replay",type="paid"} 9
hapax_duplicates_total{queue="q",kind="late",type="paid"} 1
hapax_accepted_total{queue="other",type="paid"} 1000
hapax_accepted_total{queue="q"} 95
hapax_conflicts_total{queue="q",type="re\\"funded"} 2
"""}
    with hx.answering(pages) as url:
        done = subprocess.run([hx.HAPAX, "queues", "explain", "q", "--runbook", "--url", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=hx.TIMEOUT)
        said = done.stdout.decode()
        assert "| paid | 90 | 10 | 0 | 10 % of what comes |" in said, said
        assert '| re"funded | 0 | 0 | 2 |' in said, said


def words_of_the_source():
    text = ""
    for folder, _, files in os.walk(os.path.join(hx.ROOT, "src")):
        for name in files:
            if name.endswith((".c", ".h")):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    text += file.read()
    return re.sub(r'"\s*\n\s*"', "", text)


@test
def what_a_start_is_refused_with_is_told_in_the_brokers_own_words():
    with open(os.path.join(hx.ROOT, "docs", "runbooks", "broker-does-not-start.md"), encoding="utf-8") as file:
        cells = re.findall(r"^\| (`.+?) \| ", file.read(), re.M)
    source = words_of_the_source()
    for cell in cells:
        for quoted in re.findall(r"`(.+?)`", cell):
            for piece in re.split(r"…|hapax\.yaml:7:5:|No space left on device|cannot preallocate|address already in use", quoted):
                words = piece.strip().replace('"', '\\"')
                assert words in source, f"nobody says {piece!r}"


hx.main(shared=False, threads=4)
