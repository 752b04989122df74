#!/usr/bin/env python3
"""Every program of examples/ that has to do with the gate is run, twice where it keeps anything, and its result checked."""

import os
import re
import shutil
import subprocess
import sys

import harness
from harness import BUILD, ROOT, Bench, Skip, equal, test

EXAMPLES = os.path.join(ROOT, "examples")


def run(env, command, cwd=None, **variables):
    done = subprocess.run(command, env=dict(env.server.environment(), **variables), cwd=cwd, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout


def ends_well(env, word, command, cwd=None):
    for _ in range(2):
        code, out = run(env, command, cwd)
        equal((code, out.splitlines()[-1].startswith(word + ": ok")), (0, True), out)


def program(name):
    path = os.path.join(BUILD, "examples", name)
    if not os.path.exists(path):
        raise Skip("%s is not built" % os.path.relpath(path, ROOT))
    return path


def node(name):
    if not shutil.which("node"):
        raise Skip("no node here")
    if not os.path.exists(os.path.join(EXAMPLES, "node", "node_modules", "pg")):
        raise Skip("examples/node has no packages: tools/deps --test installs them, online")
    return ["node", name]


@test
def the_capture_example_in_psql_comes_out_right(env):
    ends_well(env, "capture", ["psql", "-X", "-q", "-f", os.path.join(EXAMPLES, "psql", "capture.sql")])


@test
def the_wallet_example_in_c_comes_out_right_on_postgresql(env):
    ends_well(env, "wallet", [program("wallet"), "pg"])


@test
def the_wallet_example_in_c_comes_out_right_on_sqlite(env):
    with Bench(env) as bench:
        ends_well(env, "wallet", [program("wallet"), "sqlite", os.path.join(bench.home, "wallet.db")])


@test
def the_wallet_example_in_node_comes_out_right(env):
    ends_well(env, "wallet", node("wallet.mjs"), os.path.join(EXAMPLES, "node"))


def python_with_psycopg():
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", "import psycopg"], capture_output=True).returncode == 0:
            return python
    raise Skip("no psycopg here: tools/deps --test installs it")


@test
def the_wallet_example_in_python_comes_out_right(env):
    ends_well(env, "wallet", [python_with_psycopg(), os.path.join(EXAMPLES, "python", "wallet.py")])


@test
def the_capture_example_in_node_comes_out_right(env):
    ends_well(env, "capture", node("capture.mjs"), os.path.join(EXAMPLES, "node"))


@test
def the_capture_example_in_c_charges_once_though_its_consumer_is_killed_after_the_charge(env):
    env.monitor.rows("DROP TABLE IF EXISTS ledger; DROP TABLE IF EXISTS gateway")
    env.monitor.rows("CREATE TABLE ledger (payment text, cents bigint); CREATE TABLE gateway (id serial, key text, cents bigint)")
    capture = program("capture")
    with Bench(env) as bench:
        where = {"HAPAX_URL": "http://127.0.0.1:%d" % bench.broker.port}
        queue = bench.name
        bench.broker.put(queue, "pi_1", payload="700")
        bench.broker.put(queue, "pi_2", payload="300")
        equal(bench.broker.send(queue, "pi_1", payload="700").json()["outcome"], "duplicate")
        equal(run(env, [capture, queue, "--die"], **where)[0], -9)
        code, out = run(env, [capture, queue], **where)
        equal(code, 0, out)
        assert "pi_1: found at the gateway, ch_1" in out, out
        for key, charge in (("pi_1", "ch_1"), ("pi_2", "ch_2")):
            equal(bench.broker.key(queue, key)["state"], "done", key)
            result = bench.broker.get("/v1/queues/%s/keys/%s/result" % (queue, key))
            equal(result.body.decode(), charge)
    equal(env.monitor.rows("SELECT key, cents FROM gateway ORDER BY id"), [("pi_1", "700"), ("pi_2", "300")])
    equal(env.monitor.rows("SELECT payment, cents FROM ledger ORDER BY payment"), [("pi_1", "700"), ("pi_2", "300")])


@test
def the_c_in_the_guide_compiles(env):
    with open(os.path.join(ROOT, "docs", "GATE.md")) as f:
        blocks = re.findall(r"<!-- compiles -->\n```c\n(.*?)```", f.read(), re.S)
    equal(len(blocks), 2)
    for block in blocks:
        done = subprocess.run(["gcc", "-std=c17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", os.path.join(ROOT, "include"),
                               "-I/usr/include/postgresql", "-x", "c", "-"], input=block, text=True, capture_output=True)
        equal((done.returncode, done.stderr), (0, ""), block)


harness.main()
