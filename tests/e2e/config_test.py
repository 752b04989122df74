#!/usr/bin/env python3
"""hapax.yaml as an operator meets it: what it declares is there, what is wrong in it is said with its place, and a reload is all
or nothing."""
import os
import re
import signal
import subprocess
import tempfile

import hx
from hx import members, problem, same, test

PAYMENTS = """\
queues:
  payments:
    class: money
    key: "capture:${payment_intent_id}"
    lease: 20s
  mails:
    class: notification
"""


def check(text, name="hapax.yaml", env=None):
    """hapaxd --check-config on this text: exit code, what it said."""
    with tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
        path = os.path.join(home, name)
        with open(path, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        done = subprocess.run([hx.HAPAXD, "--config", path, "--data", os.path.join(home, "data"), "--check-config"], env={**os.environ, **(env or {})},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=hx.TIMEOUT)
        assert not os.path.exists(os.path.join(home, "data")), "a check must not touch the data"
        return done.returncode, done.stdout.decode(errors="replace")


@test
def a_check_counts_the_queues_that_were_written():
    code, said = check("queues: {q: {}}\nproxies: {p: {upstream: 'https://api.example'}, r: {upstream: 'https://api.example'}}\n")
    assert code == 0 and said.endswith(": valid, 1 queue\n"), said


def queue_of(rules):
    return "queues:\n  q:\n" + "".join(f"    {line}\n" for line in rules.splitlines())


# ---- what it declares

@test
def declared_queues_are_there_and_no_others():
    with hx.Broker(config=PAYMENTS) as b:
        shown = b.queue("payments")
        members(shown, origin="file")
        members(shown["config"], **{"class": "money"}, key="capture:${payment_intent_id}", window="forever", on_unknown="reconcile", lease="20s")
        assert re.search(r"hapax\.yaml:2$", shown["defined_at"]), shown
        same(sorted(q["name"] for q in b.get("/v1/queues").json()["items"]), ["mails", "payments"])
        problem(b.send("undeclared", "k"), 404, "no_such_queue")
        problem(b.call("POST", "/v1/queues/undeclared/receive", b""), 404, "no_such_queue")
        problem(b.get("/v1/queues/undeclared"), 404, "no_such_queue")
        members(b.event("payments", {"payment_intent_id": "pi_1"}).json(), outcome="accepted", key="capture:pi_1")
        b.restart()
        members(b.event("payments", {"payment_intent_id": "pi_1"}).json(), outcome="duplicate")


@test
def auto_create_makes_the_others():
    with hx.Broker(config="auto_create: true\n" + PAYMENTS) as b:
        same(b.send("undeclared", "k").status, 202)
        same(b.queue("undeclared")["origin"], "auto")


@test
def thresholds_of_alerts_stand_under_config_only():
    with hx.Broker() as b:
        b.rules("q", origin="${header.x-client-key}", event_type="${type}", alerts={"held_waiting": "2h", "off": ["lag"]},
                dead={"owner": "ada", "alert": {"count": 3, "within": "1m"}})
        b.restart()
        shown = b.queue("q")
        members(shown, origin="api", owner="ada", event_type="${type}", dead=0)
        assert "alerts" not in shown, shown
        members(shown["config"], origin="${header.x-client-key}", event_type="${type}", dead={"owner": "ada", "alert": {"count": 3, "within": "1m"}},
                alerts={"duplicates_high": "20%", "late_replays": 10, "oldest_unsettled": "10m", "held_waiting": "2h", "group_blocked": "15m", "off": ["lag"]})
        detail = problem(b.call("PUT", "/v1/queues/q", b'{"alerts":{"off":["lagg"]}}'), 400, "config_invalid")["detail"]
        assert detail.endswith("Did you mean lag?"), detail


@test
def queues_of_the_file_cannot_be_changed_through_the_api():
    with hx.Broker(config=PAYMENTS) as b:
        for method, body in (("PUT", b'{"window":"1h"}'), ("DELETE", None)):
            detail = problem(b.call(method, "/v1/queues/payments", body), 409, "defined_in_file")["detail"]
            assert "hapax.yaml:2" in detail, detail
        b.rules("own", window="1h")
        b.put("own", "k")
        b.restart()
        members(b.queue("own"), origin="api", window="1h")
        b.ok("ack", b.one("own"))


@test
def a_file_takes_over_a_queue_that_was_there_before():
    with hx.Broker(config="auto_create: true\n") as b:
        b.rules("payments", window="1h")
        b.event("payments", {"payment_intent_id": "pi_1"}, "capture:pi_1")
        b.reload(PAYMENTS)
        members(b.queue("payments"), origin="file", window="forever")
        members(b.event("payments", {"payment_intent_id": "pi_1"}).json(), outcome="duplicate")


@test
def flags_beat_the_environment_beats_the_file():
    with tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
        path = os.path.join(home, "hapax.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"listen: 127.0.0.1:0\ndata: {home}/by-file\n")

        def started(flags, env):
            known = {n: v for n, v in os.environ.items() if not n.startswith("HAPAX_")}
            p = subprocess.Popen([hx.HAPAXD, "--config", path, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**known, **env})
            line = p.stdout.readline()
            p.send_signal(signal.SIGTERM)
            p.stdout.read()
            same(p.wait(hx.TIMEOUT), 0)
            assert line.startswith(b"hapaxd ready on http://127.0.0.1:"), line
            return {name for name in os.listdir(home) if name.startswith("by-")}

        same(started([], {}), {"by-file"})
        same(started([], {"HAPAX_DATA": f"{home}/by-env"}), {"by-file", "by-env"})
        same(started(["--data", f"{home}/by-flag"], {"HAPAX_DATA": f"{home}/by-nobody"}), {"by-file", "by-env", "by-flag"})
        p = subprocess.run([hx.HAPAXD, "--config", path, "--listen", "0.0.0.0:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=hx.TIMEOUT)
        assert p.returncode != 0 and b"insecure" in p.stderr, p


# ---- what is wrong in it

WRONG = {
    "an unknown key": ("lisen: 127.0.0.1:1\n", "1:1", "listen"),
    "an unknown key of a queue": (queue_of("windwo: 1h"), "3:5", "window"),
    "an unknown word": (queue_of("semantics: exactly-once"), "3:16", "exactly_once"),
    "an unknown class": (queue_of("class: mony"), "3:12", "money"),
    "a wrong unit": (queue_of("window: 3 weeks"), "3:13", ""),
    "a negative duration": (queue_of("lease: -1s"), "3:12", ""),
    "a lease too short": (queue_of("lease: 10ms"), "3:12", ""),
    "a huge number": (queue_of("retry: {transient: {attempts: 99999999999999999999999}}"), "3:", ""),
    "no attempts": (queue_of("retry: {unknown: {attempts: 0}}"), "3:", ""),
    "a map for a word": (queue_of("class: {a: b}"), "3:", ""),
    "a word for a map": (queue_of("retry: often"), "3:12", ""),
    "a list for a map": ("queues: [a, b]\n", "1:9", ""),
    "a list at the top": ("- a\n- b\n", "1:1", ""),
    "a tab": ("queues:\n\tq: {}\n", "2:", ""),
    "a key given twice": ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "2:1", "listen"),
    "a queue given twice": ("queues:\n  q: {}\n  q: {}\n", "3:3", ""),
    "an anchor": ("queues:\n  a: &x {lease: 5s}\n  b: *x\n", "2:", ""),
    "a cyclic alias": ("queues: &x\n  q: *x\n", "", ""),
    "a merge key": ("queues:\n  q:\n    <<: {lease: 5s}\n", "3:", ""),
    "a tag": ("listen: !!python/object:os.system x\n", "1:", ""),
    "two documents": ("listen: 127.0.0.1:1\n---\nlisten: 127.0.0.1:2\n", "", ""),
    "an open bracket": ("queues: {q: {lease: 5s\n", "", ""),
    "an open quote": ('listen: "127.0.0.1:1\n', "", ""),
    "a queue's bad name": ("queues:\n  'a b': {}\n", "2:3", ""),
    "a window upside down": (queue_of("window: {min: 2h, max: 1h}"), "3:", ""),
    "half a window": (queue_of("window: {min: 2h}"), "3:", ""),
    "a template with an open brace": (queue_of('key: "a:${id"'), "3:", ""),
    "a template with a function": (queue_of('key: "${sha256(id)}"'), "3:", ""),
    "a template with nothing in it": (queue_of('key: "${}"'), "3:", ""),
    "a template of fixed text": (queue_of('key: "always"'), "3:", ""),
    "an empty template": (queue_of('key: ""'), "3:", ""),
    "a schema with an unknown check": (queue_of("schema: {requires: [a]}"), "3:", "required"),
    "a schema with an unknown type": (queue_of("schema: {types: {a: int}}"), "3:", "integer"),
    "a broken pattern": (queue_of('schema: {pattern: {a: "("}}'), "3:", ""),
    "a pattern that overflows stacks": (queue_of("schema: {pattern: {a: '((" + "a?" * 100 + ")){1000}'}}"), "3:27", "too large"),
    "a fingerprint of two kinds": (queue_of("fingerprint: {only: [a], ignore: [b]}"), "3:", ""),
    "a limit beyond the limit": (queue_of("limits: {payload: 2MiB}"), "3:", ""),
    "a percentage above all": (queue_of("loss: 101%"), "3:", ""),
    "half an alert": (queue_of("dead: {owner: x, alert: {count: 10}}"), "3:", ""),
    "not UTF-8": (b"listen: \xff\xfe\n", "", ""),
    "a NUL": (b"listen: 127.0.0.1:1\0\n", "", ""),
    "an open address": ("listen: 0.0.0.0:4279\n", "1:", ""),
    "no address": ("listen: here\n", "1:", ""),
    "ten megabytes": ("#" + "x" * (10 << 20) + "\nlisten: 127.0.0.1:1\n", "", ""),
    "deep nesting": ("queues: " + "{a: " * 2000 + "}" * 2000 + "\n", "", ""),
    "nothing": ("# nothing\n", "", "empty"),
}


@test
def every_wrong_file_gets_one_clear_line_with_its_place():
    for name, (text, place, word) in WRONG.items():
        code, said = check(text)
        lines = said.strip().splitlines()
        same(code, 1, f"{name}: {said[:500]}")
        same(len(lines), 1, f"{name}: {said[:500]}")
        assert "hapax.yaml" in lines[0] and len(lines[0]) < 600, (name, said[:500])
        assert not place or f"hapax.yaml:{place}" in lines[0], (name, place, said)
        assert word in lines[0], (name, word, said)
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", lines[0]), (name, said)


MISTAKES = """\
lisen: 127.0.0.1:1
queues:
  pay:
    class: mony
    window: soon
    schema: {pattern: {a: "("}, types: {b: int}}
    lease: 5s
    lease: 6s
  mail: {retry: often}
"""
PLACES = ["1:1", "4:12", "5:13", "6:27", "6:44", "8:5", "9:17"]


@test
def every_mistake_of_a_file_is_told_in_its_order():
    code, said = check(MISTAKES)
    same((code, re.findall(r"^hapaxd: .*?hapax\.yaml:(\d+:\d+): ", said, re.M)), (1, PLACES))
    same(len(said.splitlines()), len(PLACES))
    code, said = check("queues:\n" + "".join(f"  q{i}: {{lease: x}}\n" for i in range(2000)))
    lines = said.splitlines()
    same((code, len(lines), lines[-1]), (1, 51, "hapaxd: and 1950 more"))
    with hx.Broker(config=PAYMENTS) as b:
        said = b.reload(MISTAKES)
        same(re.findall(r"config: \S*hapax\.yaml:(\d+:\d+): ", said), PLACES)
        assert "reload refused, the old rules stay" in said, said


@test
def a_group_without_a_field_is_not_called_a_key():
    for name in ("key", "order_by"):
        code, said = check(queue_of(f"{name}: user"))
        same((code, said.split(": ", 2)[2]), (1, f"queue q: {name}: no field in it: it would be the same for every message\n"))


@test
def a_wrong_file_keeps_the_broker_from_starting():
    with tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
        path = os.path.join(home, "hapax.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("queues: {}\nwindwo: 1h\n")
        p = subprocess.run([hx.HAPAXD, "--config", path, "--data", os.path.join(home, "data"), "--listen", "127.0.0.1:0"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=hx.TIMEOUT)
        assert p.returncode not in (0, -6, -11) and p.stdout == b"", p
        assert b"hapax.yaml:2:1: " in p.stderr, p
        p = subprocess.run([hx.HAPAXD, "--config", path + ".none", "--data", os.path.join(home, "data")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=hx.TIMEOUT)
        assert p.returncode not in (0, -6, -11) and b"No such file" in p.stderr, p


@test
def good_files_pass_the_check():
    for text in ("{}\n", PAYMENTS, "queues: {}\n", "queues:\n  q: {}\n", queue_of("window: {min: 72h, max: 14d}"), queue_of("window: 30"),
                 "\ufefflisten: 127.0.0.1:0\n", '{"queues":{"q":{"window":"1h"}}}'):
        code, said = check(text)
        same(code, 0, f"{text!r}: {said}")


@test
def the_example_file_is_a_good_one():
    with open(os.path.join(hx.ROOT, "hapax.example.yaml"), "rb") as file:
        code, said = check(file.read(), env={"HAPAX_PG_PASSWORD": "x"})
    same(code, 0, said)


# ---- reloading

@test
def a_reload_changes_rules_and_leaves_running_work_alone():
    with hx.Broker(config=PAYMENTS) as b:
        b.event("payments", {"payment_intent_id": "pi_1"})
        m = b.one("payments")
        said = b.reload(PAYMENTS.replace("20s", "40s") + "  added: {}\n")
        assert "payments" in said and "lease" in said and "40s" in said and "added" in said, said
        same(b.queue("payments")["config"]["lease"], "40s")
        same(b.send("added", "k").status, 202)
        b.ok("ack", m, result="done under the old rules")
        entry = b.get("/v1/audit?what=config_reload").json()["items"][0]
        same(entry["what"], "config_reload")
        b.restart()
        same(b.queue("payments")["config"]["lease"], "40s")


@test
def a_bad_reload_keeps_the_old_rules_and_says_why():
    with hx.Broker(config=PAYMENTS) as b:
        said = b.reload(PAYMENTS.replace("20s", "40s").replace("class: notification", "class: notifications"))
        assert re.search(r"hapax\.yaml:7:\d+", said), said
        same(b.queue("payments")["config"]["lease"], "20s", "all or nothing")
        same(b.queue("mails")["config"]["class"], "notification")
        b.reload(PAYMENTS.replace("20s", "50s"))
        same(b.queue("payments")["config"]["lease"], "50s")
        os.unlink(b.config)
        b.process.send_signal(signal.SIGHUP)
        hx.until(lambda: "No such file" in b.stderr(), "the missing file is named")
        same(b.queue("payments")["config"]["lease"], "50s")


@test
def the_trail_says_when_it_has_not_all_that_a_reload_changed():
    def reload(count):
        b.reload("anonymous: [admin]\ntokens:\n" + "".join(f'  - {{name: t{i:03}, sha256: ["{i:064x}"], allow: [send]}}\n' for i in range(count)))
        return b.get("/v1/audit?limit=1").json()["items"][0]["detail"].get("cut")
    with hx.Broker(config="auto_create: true\n") as b:
        same((reload(10), reload(900)), (None, True))


@test
def a_queue_taken_out_of_the_file_keeps_its_work():
    with hx.Broker(config=PAYMENTS) as b:
        b.put("mails", "m1", "m2")
        b.reload(PAYMENTS.replace("  mails:\n    class: notification\n", "    window: 30d\n"))
        problem(b.send("mails", "m3"), 404, "no_such_queue")
        m = b.one("mails")
        b.restart()
        b.ok("ack", m)
        same(b.one("mails")["key"], "m2", "what it holds can still be worked off")
        same(b.queue("mails")["config"]["class"], "notification", "and it keeps its last rules")
        b.reload(PAYMENTS)
        members(b.send("mails", "m1").json(), outcome="duplicate", state="done")


@test
def without_a_file_a_hangup_changes_nothing():
    with hx.Broker() as b:
        b.put("q", "k")
        b.process.send_signal(signal.SIGHUP)
        b.ok("ack", b.one("q"))
        same(b.stop(), 0)


hx.main(shared=False, threads=6)
