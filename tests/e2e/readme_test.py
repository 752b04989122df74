#!/usr/bin/env python3
"""The README from its first command to its last, as somebody types it who has nothing else; and what `make run` and `make help` say."""
import base64
import contextlib
import os
import re
import subprocess
import tempfile

import hx
from hx import same, test

with open(os.path.join(hx.ROOT, "README.md"), encoding="utf-8") as page:
    README = page.read()
ELSEWHERE = {"make demo": "terminal_slots_test.py"}  # typed there
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
ENV = {**{n: v for n, v in os.environ.items() if not n.startswith("HAPAX")}, "HAPAXD": hx.HAPAXD, "FEED_SECRET": SECRET}


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


# ---- the whole page

def steps():
    """(prose, language, block) in the order of the page, as far as the reader types along."""
    text = README[:README.index("## Tests and figures")]
    at = 0
    for match in re.finditer(r"^```(sh|yaml)\n(.*?)^```$", text, re.M | re.S):
        yield text[at:match.start()], match.group(1), match.group(2)
        at = match.end()


class Reader:
    """Two terminals in one folder: a broker runs in the first, the rest is typed in the second."""

    def __init__(self, home):
        self.home, self.shown, self.addresses = home, [], ["", ""]
        self.broker, self.log = contextlib.ExitStack(), open(os.path.join(home, "log"), "w+", encoding="utf-8")
        os.mkdir(os.path.join(home, "build"))
        for name, program in (("hapax", hx.HAPAX), ("hapaxd", hx.HAPAXD)):
            os.symlink(os.path.abspath(program), os.path.join(home, "build", name))

    def path(self, name):
        return os.path.join(self.home, name)

    def here(self, text):
        """The page's ports are those of the machine it is read at; here any free ones are taken."""
        for said, address in zip(("4279", "4280"), self.addresses):
            text = text.replace(said, address.rpartition(":")[2])
        return text

    def serve(self, command):
        self.broker.close()  # Ctrl-C
        env, words = {"HAPAX_DATA": self.path("hapax-data")}, command.split()
        if command == "make run":
            words = [os.path.join(hx.ROOT, "tools", "run")]
        if command == "make run" or "listen:" not in open(self.path("hapax.yaml"), encoding="utf-8").read():
            env["HAPAX_LISTEN"] = "127.0.0.1:0"
        self.addresses = self.broker.enter_context(running(words, self.home, self.log, **env))[0]
        assert self.addresses, self.told()

    def type(self, block):
        *before, last = block.rstrip("\n").split("\n")
        command = last.split("  #")[0].strip()
        if command in ELSEWHERE:
            return
        serves = command == "make run" or command.startswith("build/hapaxd")
        if before or not serves:
            self.run("\n".join(before) if serves else block)
        if serves:
            self.serve(command)

    def run(self, block):
        for token in re.findall(r'"token":"([^"]+)"', self.told())[-1:]:
            block = block.replace("PASTE-IT-HERE", token)
        env = {**ENV, "HAPAX_URL": self.addresses[0]}
        done = subprocess.run(["bash", "-euc", self.here(block)], cwd=self.home, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=3 * hx.TIMEOUT)
        self.shown.append((block, done.stdout))
        same(done.returncode, 0, f"{block}\n{done.stdout}\n{self.told()}")

    def write(self, prose, block):
        how = re.search(r"(Write a file|Add to) `(hapax\.yaml)`[^\n]*:\n+$", prose)
        if not how:
            return self.lint(self.kept("other.yaml", "w", block))
        for line in re.findall(r"^- \{name.*$", self.told(), re.M)[-1:]:
            block = re.sub(r"^- \{name.*$", line, block, flags=re.M)
        free = re.sub(r"(address: [\d.]+:)\d+", r"\g<1>0", block)
        return self.lint(self.kept(how.group(2), "w" if how.group(1) == "Write a file" else "a", free))

    def kept(self, name, mode, text):
        with open(self.path(name), mode, encoding="utf-8") as file:
            file.write(text)
        return name

    def lint(self, name):
        self.run(f"build/hapax lint {name}")
        assert "nothing found" in self.shown[-1][1], f"{name}: {self.shown[-1][1]}"

    def told(self):
        self.log.flush()
        self.log.seek(0)
        return "".join(f"$ {block}\n{output}" for block, output in self.shown) + self.log.read()

    def close(self):
        self.broker.close()
        self.log.close()


def shows(reader, command, *words):
    """What was shown for the block that has this command."""
    outputs = [output for block, output in reader.shown if command in block]
    assert outputs, f"nobody typed {command}"
    for word in words:
        assert word in outputs[-1], f"{command}: no {word!r} in\n{outputs[-1]}"


@test
def the_readme_can_be_typed_from_top_to_bottom():
    with tempfile.TemporaryDirectory() as home, contextlib.closing(Reader(home)) as reader:
        for prose, language, block in steps():
            (reader.type(block) if language == "sh" else reader.write(prose, block))
        promised = re.search(r"^> `(.*)`$", README, re.M).group(1)
        accepted = reader.shown[0][1]
        assert re.fullmatch(re.escape(promised).replace("…", "[0-9a-f]+") + "\n", accepted), accepted
        shows(reader, "/receive?", '"token":"', '"payload":"{\\"amount\\":42}"')
        shows(reader, "/v1/ack", '"state":"done"')
        shows(reader, "/keys/order-1", '"charged')
        shows(reader, "build/hapax key show", "order-2  done\n12\n", "settled: done", "orders")
        shows(reader, "inject", "2 accepted, 4 duplicates, 0 conflicts", "; 0 done again")
        shows(reader, "queues explain", "Queue payments, class money")
        shows(reader, "export HAPAX_URL", "accepted ", '"code":"not_settled"')


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
