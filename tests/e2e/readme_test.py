#!/usr/bin/env python3
"""What `make run` and `make help` say to somebody who has nothing but the README."""
import contextlib
import os
import re
import subprocess
import tempfile

import hx
from hx import same, test

with open(os.path.join(hx.ROOT, "README.md"), encoding="utf-8") as page:
    README = page.read()
ENV = {**{n: v for n, v in os.environ.items() if not n.startswith("HAPAX")}, "HAPAXD": hx.HAPAXD}


@contextlib.contextmanager
def running(words, home, log, **env):
    """A server whose standard output begins with its addresses; those, and what it says first. It ends as Ctrl-C ends it."""
    process = subprocess.Popen(words, cwd=home, env={**ENV, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        said = ""
        while (line := process.stdout.readline()) and "http" not in (said := said + line):
            pass
        yield re.findall(r"https?://[\w.]+:\d+", said), process, said
    finally:
        process.terminate()
        process.communicate(timeout=hx.STOP_BOUND_S)
    same(process.returncode, 0, " ".join(words))


# ---- make

def run_with(home, **env):
    return running([os.path.join(hx.ROOT, "tools", "run")], hx.ROOT, subprocess.PIPE, HAPAX_DATA=os.path.join(home, "data"), **env)


@test
def make_run_says_where_it_serves_and_three_lines_that_work():
    with tempfile.TemporaryDirectory() as home, run_with(home, HAPAX_LISTEN="127.0.0.1:0") as (_, process, said):
        while "Ctrl-C" not in said:
            said += process.stdout.readline()
        port = re.search(r"^Hapax on http://127\.0\.0\.1:(\d+), data in " + re.escape(home), said, re.M).group(1)
        for line in said.split("\n"):
            assert len(line.replace(port, "4279")) <= 80 or home in line, line
        lines, answers = re.findall(r"^ +(curl .*)$", said, re.M), []
        for line in lines:
            answers.append(subprocess.run(["bash", "-c", line + " -s"], stdout=subprocess.PIPE, text=True, check=True, timeout=hx.TIMEOUT).stdout)
        same(len(lines), 3)
        for answer, words in zip(answers, ('"outcome":"accepted"', '"content_type":"application/json","payload":"42"', '"state":"leased"')):
            assert words in answer, answers


@test
def make_run_claims_nothing_when_the_port_is_taken():
    taken = f"127.0.0.1:{hx.broker.port}"
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([os.path.join(hx.ROOT, "tools", "run")], env={**ENV, "HAPAX_LISTEN": taken, "HAPAX_DATA": home}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=hx.START_BOUND_S)
    same((done.returncode, done.stdout), (1, ""))
    assert f"listen on {taken} (--listen or HAPAX_LISTEN names another)" in done.stderr and "already in use" in done.stderr, done.stderr


@test
def make_help_has_every_target_within_80_columns():
    listing = subprocess.run(["make", "-s", "help"], cwd=hx.ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=hx.TIMEOUT).stdout
    same([line for line in listing.split("\n") if len(line) > 80], [])
    with open(os.path.join(hx.ROOT, "Makefile"), encoding="utf-8") as file:
        targets = re.search(r"^\.PHONY: (.*)$", file.read(), re.M).group(1).split()
    inner = {"all", "help", "test-tools"}
    same(sorted(re.findall(r"^make (\w+)", listing, re.M)), sorted(set(targets) - inner))
    same(set(re.findall(r"^make (\w+)", README, re.M)) - set(targets), set())


hx.main()
