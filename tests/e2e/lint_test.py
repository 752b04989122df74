#!/usr/bin/env python3
"""hapax lint and hapax queues explain, as a person and as CI use them. Prints TAP. Needs no broker."""
import atexit
import json
import os
import re
import shutil
import subprocess
import tempfile

import hx
from hx import HAPAX, HAPAXD, ROOT, same, test

EXAMPLE = os.path.join(ROOT, "hapax.example.yaml")
WORK = tempfile.mkdtemp(prefix="hapax-lint-")
BAD = """\
queues:
  payments:
    class: money
    window: 3d
    upstream_replay: 7d
    dead: {owner: payments-oncall, alert: {count: 10, within: 15m}}
    limits: {pending: 5}
"""


def hapax(*args):
    ran = subprocess.run([HAPAX, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return ran.returncode, ran.stdout.decode(), ran.stderr.decode()


def written(text):
    path = os.path.join(WORK, "hapax.yaml")
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    return path


def rule_codes():
    text = open(os.path.join(ROOT, "src", "config", "lint.def")).read()
    return re.findall(r'_RULE\(\w+, "([a-z0-9-]+)"', text)


@test
def the_example_is_clean():
    code, out, err = hapax("lint", EXAMPLE)
    same((code, out), (0, ""))
    assert "nothing found" in err, err
    code, out, _ = hapax("lint", EXAMPLE, "--format", "json")
    same((code, json.loads(out)), (0, {"ok": True, "findings": []}))


@test
def a_finding_has_file_line_rule_and_exit_code_1():
    path = written(BAD)
    code, out, err = hapax("lint", path)
    same(code, 1)
    same(out, path + ":4:5: error: queue payments: window 3d is below 14d, twice the longest upstream replay "
         "[window-below-replay]\n")
    assert "--explain" in err


@test
def json_findings_are_for_programs():
    path = written(BAD)
    for flags in (["--format", "json"], ["--json"]):
        code, out, err = hapax("lint", path, *flags)
        same((code, err), (1, ""))
        same(json.loads(out), {"ok": False, "findings": [{
            "code": "window-below-replay", "severity": "error", "file": path, "line": 4, "column": 5, "queue": "payments",
            "message": "window 3d is below 14d, twice the longest upstream replay"}]})


@test
def a_config_error_is_one_line_with_its_place():
    path = written("queues:\n  payments:\n    windw: 3d\n")
    code, out, err = hapax("lint", path)
    same((code, err), (1, ""))
    same(out, path + ':3:5: error: queue payments: no key "windw". Did you mean window? [config]\n')
    code, out, _ = hapax("lint", path, "--format", "json")
    found = json.loads(out)["findings"]
    same((code, len(found)), (1, 1))
    same((found[0]["code"], found[0]["line"], found[0]["column"]), ("config", 3, 5))


@test
def lint_and_the_daemon_judge_a_file_alike():
    relay = "relay: [{dsn: d, queue: q}]\nqueues: {q: {%s}}\n"
    for text, lines in (("listen: 0.0.0.0:4279\n", 1), ("listen: broker.example:4279\n", 1), (relay % "key: '${a}'", 1), (relay % "class: audit", 1),
                        ("lisen: 1\nqueues: {a: {lease: x, window: y}, b: {lease: z}}\n", 4),
                        ("queues: {q: {schema: {enum: {a: [" + "1234567, " * 5000 + "1]}}}}\n", 1), (relay % "dead: {owner: me}", 0),
                        ("listen: 0.0.0.0:4279\ninsecure_listen: true\n", 0)):
        path = written(text)
        code, out, _ = hapax("lint", path)
        errors = [line.replace(": error: ", ": ").removesuffix(" [config]") for line in out.splitlines() if line.endswith("[config]")]
        ran = subprocess.run([HAPAXD, "--config", path, "--check-config"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        same([line.removeprefix("hapaxd: ") for line in ran.stderr.decode().splitlines()], errors)
        same(len(errors), lines)
        same(ran.returncode, 1 if lines else 0)
        assert not lines or code == 1, (code, out)


@test
def what_cannot_be_read_is_an_error_too():
    missing = os.path.join(WORK, "missing.yaml")
    code, out, _ = hapax("lint", missing)
    same(code, 1)
    assert "No such file" in out, out
    same(hapax("lint", WORK)[0], 1)
    large = written(b"#" * (10 << 20))
    code, out, _ = hapax("lint", large)
    same((code, out), (1, large + ":1:1: error: larger than 1048576 bytes [config]\n"))


@test
def hostile_files_print_clean_text_and_valid_json():
    for text in (b"queues: {'\x1b[31m': {}}\n", b"\xff\xfe", b"a: \x00", b"\xc3\xbc" * 300 + b": 1\n", b"? " * 5000, b"&a [*a]"):
        path = written(text)
        code, out, _ = hapax("lint", path)
        same(code, 1)
        same(out.count("\n"), 1)
        assert "\x1b" not in out, out
        code, out, _ = hapax("lint", path, "--json")
        same(code, 1)
        assert json.loads(out)["findings"][0]["message"], out


@test
def a_hostile_pattern_is_an_error_with_its_place():
    for bomb in ("((" + "a?" * 100 + ")){1000}", "(" + "a?" * 30 + "){1000}"):
        path = written("queues:\n  q:\n    schema: {pattern: {a: '" + bomb + "'}}\n")
        code, out, _ = hapax("lint", path)
        same(code, 1)
        same(out, f"{path}:3:27: error: queue q: schema.pattern.a: too large: with all repetitions written out it takes more than 2048 steps "
             f"(at its byte {len(bomb) - 5}) [config]\n")


@test
def advice_is_printed_and_is_no_failure():
    code, out, _ = hapax("lint", written("queues: {q: {dead: {owner: me}}}\n"))
    same(code, 0)
    assert ": advice: queue q: " in out and "error" not in out and "warning" not in out, out


@test
def every_rule_explains_itself():
    assert len(rule_codes()) >= 20
    for rule in rule_codes():
        code, out, _ = hapax("lint", "--explain", rule)
        same(code, 0)
        assert out.startswith(rule + " (") and "\n    " in out, out


@test
def every_config_key_explains_itself():
    paths = re.findall(r'_KEY\(\w+, "([a-z0-9_.]+)"', open(os.path.join(ROOT, "src", "config", "keys.def")).read())
    assert len(paths) > 40
    for path in paths:
        code, out, _ = hapax("lint", "--explain", path)
        same(code, 0)
        assert out.startswith(path + ", a key of ") and "Default: " in out, out
    code, out, _ = hapax("lint", "--explain", "deliver.timeout")  # as mistakes in it are told
    same((code, out.count(", a key of "), out.startswith("timeout, a key of a queue's deliver: ")), (0, 1, True))


@test
def wrong_usage_is_exit_code_2():
    for args, said in ((["lint"], "expected FILE"), (["lint", EXAMPLE, "--format", "xml"], "text or json"),
                       (["lint", "--explain", "window-below-repla"], "did you mean window-below-replay"),
                       (["lint", "--explain", "zzz"], "window-below-replay"), (["lint", "a", "b"], "too many"),
                       (["queues", "explain"], "expected QUEUE")):
        code, out, err = hapax(*args)
        same((code, out), (2, ""))
        assert said in err, err


@test
def a_queue_is_explained_from_its_file():
    code, out, _ = hapax("queues", "explain", "payments", "--config", EXAMPLE)
    same(code, 0)
    for words in ("Queue payments, class money", "capture:${payment_intent_id}", "remembered forever", "reconcile",
                  "payments-oncall", "hapax dead redrive payments"):
        assert words in out, words
    code, out, _ = hapax("queues", "explain", "payments", "--config", EXAMPLE, "--json")
    same((code, json.loads(out)["window"]), (0, "forever"))
    code, _, err = hapax("queues", "explain", "nope", "--config", EXAMPLE)
    same(code, 1)
    assert "declares no queue nope" in err, err
    same(hapax("queues", "explain", "q", "--config", written("queues: 5\n"))[0], 1)


atexit.register(shutil.rmtree, WORK, ignore_errors=True)
hx.main(threads=1, shared=False)
