#!/usr/bin/env python3
"""The broker watched live: hapax tail and hapax top, on a terminal, into a pipe, and over the broker's restarts."""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import types

import hx
from hx import members, same, test, until

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """hapax with everything at a terminal, going on."""

    def __init__(self, *words, columns=80, rows=24, of=None, **more):
        self.person, self.terminal = pty.openpty()
        self.size(columns, rows)
        self.before = termios.tcgetattr(self.terminal)
        env = {n: v for n, v in os.environ.items() if not n.startswith("HAPAX") and n not in ("NO_COLOR", "COLUMNS")}
        env.update({"HAPAX_URL": (of or hx.broker).url, "TERM": "xterm", **more})
        self.process = subprocess.Popen([hx.HAPAX, *words], stdin=self.terminal, stdout=self.terminal, stderr=self.terminal, env=env,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.raw = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.person)
        os.close(self.terminal)

    def size(self, columns, rows):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def text(self):
        return self.raw.decode("utf-8", "surrogateescape").replace("\r\n", "\n")

    def until(self, condition, what):
        """Reads what it prints until that is so."""
        deadline = time.monotonic() + hx.TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}\n{self.text}"
            if select.select([self.person], [], [], 0.1)[0]:
                self.raw += os.read(self.person, 65536)

    def type(self, keys):
        os.write(self.person, keys.encode())

    def wait(self):
        """The exit code; what it still prints is read."""
        deadline = time.monotonic() + hx.TIMEOUT
        while self.process.poll() is None or select.select([self.person], [], [], 0)[0]:
            assert time.monotonic() < deadline, f"it goes on\n{self.text}"
            if select.select([self.person], [], [], 0.1)[0]:
                self.raw += os.read(self.person, 65536)
        return self.process.returncode


def readers(of=None):
    return (of or hx.broker).get("/v1/stats").json()["events"]["readers"]


@contextlib.contextmanager
def piped_tail(*words, of):
    """hapax tail into a pipe, once it reads."""
    before = readers(of)
    process = hx.start_hapax("tail", *words, of=of)
    until(lambda: readers(of) > before, "a reader")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@test
def tail_tells_events_in_lines_that_fit_and_drive_nothing():
    evil = "\x1b]0;owned\x07\u202e"
    with hx.Broker() as b, Terminal("tail", of=b) as screen:
        until(lambda: readers(b) == 1, "a reader")
        b.put("payments", "order-1", headers=[("X-Request-Id", "r-1")])
        b.send("payments", "order-1")
        b.ok("nack", b.one("payments", consumer="worker-7"), **{"class": "poison"}, reason=f"{evil} no such account: " + "x" * 90)
        b.put("payments", '"' + "k" * 200 + '"')
        screen.until(lambda: "k" * 20 in screen.text, "the last event")
        lines = COLOUR.sub("", screen.text).strip("\n").split("\n")
        same([line[13:22].strip() for line in lines], ["accepted", "duplicate", "delivered", "failed", "dead", "accepted"])
        for line in lines:
            assert re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line) and len(line) <= 80, line
            assert "payments" in line and ("order-1" in line or "kkk" in line), line
        assert "request r-1" in lines[0] and "to worker-7" in lines[2] and "poison" in lines[3], lines
        assert "\x1b[31mdead" in screen.text and "\x07" not in screen.text and "\u202e" not in screen.text
        screen.process.send_signal(signal.SIGINT)
        same(screen.wait(), 0)


@test
def tail_honours_no_color_and_its_filters():
    with hx.Broker() as b, contextlib.ExitStack() as ends:
        b.put("a", "earlier")
        screen = ends.enter_context(Terminal("tail", "a", "--kind", "settled,accepted", "--key", "k", of=b, NO_COLOR="1"))
        until(lambda: readers(b) == 1, "a reader")
        b.put("b", "k")
        b.put("a", "other", "k")
        for m in b.receive("a", max=3):
            b.ok("ack", m)
        screen.until(lambda: "settled" in screen.text, "the last event")
        same([line.split()[1:3] for line in screen.text.strip("\n").split("\n")], [["accepted", "k"], ["settled", "k"]])
        assert "\x1b" not in screen.text


@test
def tail_goes_on_after_a_restart_and_says_the_gap():
    with hx.Broker() as b, piped_tail("q", "--json", of=b) as tail:
        b.put("q", "a")
        members(hx.strict_json(tail.stdout.readline()), kind="accepted", key="a", queue="q")
        b.restart()
        b.put("q", "b")
        same(hx.strict_json(tail.stdout.readline())["kind"], "gap")
        members(hx.strict_json(tail.stdout.readline()), kind="accepted", key="b")
        tail.terminate()
        said = tail.stderr.read().decode()
        same(tail.wait(hx.TIMEOUT), 0)
        assert "gone" in said and "connected again" in said, said


@test
def tail_ends_quietly_when_nobody_reads_it():
    with hx.Broker() as b, piped_tail(of=b) as tail:
        tail.stdout.close()
        b.put("q", "a")
        same(tail.wait(hx.TIMEOUT), -signal.SIGPIPE)
        same(tail.stderr.read(), b"")
        tail.stdout = None


@test
def tail_of_a_queue_that_is_not_there_says_so():
    with hx.Broker() as b, piped_tail("nope", of=b) as tail:
        assert b"no queue nope so far" in tail.stderr.readline()
        b.put("nope", "k")
        assert b"accepted" in tail.stdout.readline(), "it may come"
    with hx.Broker(config="queues: {pay: {}}\n") as b:
        same(hx.hapax("tail", "nope", "--json", of=b, exits=1).json["code"], "no_such_queue")
        hx.problem(b.get("/v1/events?queue=nope"), 404, "no_such_queue")
        with piped_tail("pay", of=b):
            pass


@test
def tail_of_nobody_or_of_nonsense_fails_at_once(q):
    same(hx.hapax("tail", "--kind", "nothing", exits=1).text, "")
    problem = hx.hapax("tail", q, "--kind", "nothing", "--json", exits=1).json
    same(problem["code"], "param_invalid")
    with hx.Broker() as b:
        pass
    b.port = 1
    hx.hapax("tail", exits=3, of=b)


# ---- top

ESCAPES = re.compile(r"\x1b\[(?:[0-9;]*m|K|J|H|\?1049[hl]|\?25[hl])")


def frame(screen):
    """The last whole frame, as lines."""
    whole = [f for f in screen.text.split("\x1b[H")[1:] if re.search("sort:.*(q quit|…)", f)]
    lines = ESCAPES.sub("", whole[-1]).replace("\r", "").split("\n") if whole else []
    for line in lines:
        assert not re.search("[\x00-\x1f\x7f-\x9f]", line), f"drives the terminal: {line!r}"
    return lines


def row(lines, name):
    """The figures of a queue."""
    found = [line.replace("! ", "").split() for line in lines if line.replace("! ", "").startswith(name + " ")]
    return dict(zip(("in", "out", "dup", "lag", "ready", "leased", "dead", "held", "blocked", "consumers"), found[0][1:])) if found else None


def busy(b):
    for i in range(30):
        b.put(f"queue-{i:02}", "k")
    b.put("payments", *[f"order-{i}" for i in range(20)])
    b.ok("nack", b.one("payments", consumer="w1"), **{"class": "poison"})
    b.one("payments", consumer="w2", lease="1h")


@test
def top_fits_80_by_24_sorts_by_its_keys_and_leaves_the_terminal_as_it_was():
    with hx.Broker() as b:
        busy(b)
        with Terminal("top", of=b) as screen:
            screen.until(lambda: frame(screen), "a frame")
            lines = frame(screen)
            assert len(lines) <= 24 and all(len(line) <= 80 for line in lines), lines
            assert screen.text.startswith("\x1b[?1049h"), "a screen of its own"
            assert "queues 31" in lines[1] and "dead 1" in lines[1] and "consumers 1" in lines[1], lines
            assert lines[-1].endswith("q quit") and "more" in lines[-2], lines
            screen.type("n")
            screen.until(lambda: "[n name]" in frame(screen)[-1], "sorted by name")
            same(frame(screen)[3].split()[0], "payments")
            b.put("a-first-one", "k")
            screen.until(lambda: frame(screen)[3].startswith("a-first-one "), "the next frame")
            screen.type("d")
            screen.until(lambda: "[d dead]" in frame(screen)[-1], "sorted by dead")
            members(row(frame(screen)[:4], "payments"), dead="1", leased="1", ready="18", consumers="1")
            screen.size(100, 10)
            os.killpg(screen.process.pid, signal.SIGWINCH)
            screen.until(lambda: len(frame(screen)) == 10, "a frame of the new size")
            screen.type("q")
            same(screen.wait(), 0)
            assert screen.text.endswith("\x1b[?25h\x1b[?1049l"), repr(screen.text[-80:])
            same(termios.tcgetattr(screen.terminal), screen.before)


@test
def top_restores_the_terminal_when_it_is_told_to_end():
    with hx.Broker() as b:
        for number in (signal.SIGINT, signal.SIGTERM):
            with Terminal("top", of=b, NO_COLOR="1") as screen:
                screen.until(lambda: frame(screen), "a frame")
                screen.process.send_signal(number)
                same(screen.wait(), 0)
                assert screen.text.endswith("\x1b[?1049l") and "\x1b[31m" not in screen.text
                same(termios.tcgetattr(screen.terminal), screen.before)


@test
def top_says_that_the_broker_is_gone_and_goes_on_when_it_is_back():
    with hx.Broker() as b:
        b.put("payments", "k")
        with Terminal("top", of=b) as screen:
            screen.until(lambda: row(frame(screen), "payments"), "a frame")
            b.kill()
            screen.until(lambda: "trying again" in frame(screen)[0], "trouble")
            lines = frame(screen)
            assert row(lines, "payments") and len(lines) <= 24, lines
            b.start()
            screen.until(lambda: "trying again" not in frame(screen)[0], "it is back")
            screen.type("q")
            same(screen.wait(), 0)


@test
def top_names_alerts_with_their_keys_says_how_many_more_there_are_and_never_wraps():
    names = ("doubled_effect", "disk_low", "dead_letters", "held_waiting", "oldest_unsettled", "lag", "late_replays")
    alerts = [{"name": n, "queue": "payments", "key": f"order-{i}", "state": "firing", "summary": "a sentence that is rather long for a line " * 2}
              for i, n in enumerate(names)]
    live = {"oldest_ready_ms": 1000, "wait_p95_ms": 180000}
    queues = [{"name": f"queue-{i:02}", "ready": 1, "leased": 0, "dead": 0, "held": 0, "live": live} for i in range(30)]
    answers = {"/v1/stats": '{"version":"x","queues":30}', "/v1/queues": json.dumps({"items": queues}), "/v1/consumers": '{"items":[]}',
               "/v1/alerts": json.dumps({"items": alerts, "judged": True})}
    with hx.answering(answers) as url, Terminal("top", of=types.SimpleNamespace(url=url)) as screen:
        def told(columns, lines):
            screen.size(columns, lines)
            os.killpg(screen.process.pid, signal.SIGWINCH)
            screen.until(lambda: len(frame(screen)) == lines and max(map(len, frame(screen))) <= columns, f"a frame of {columns} by {lines}")
            return [line for line in frame(screen) if line.startswith("! ")]
        same([line.split()[1:4] for line in told(80, 24)], [[n, "payments", f"order-{i}:"] for i, n in enumerate(names)])
        members(row(frame(screen), "queue-00"), lag="3m")
        shown = told(80, 14)
        same([line.split()[1] for line in shown[:-1]], list(names[:len(shown) - 1]))
        same(shown[-1], f"! and {len(names) - len(shown) + 1} more: hapax alerts")
        assert len(told(40, 12)) >= 1
        answers["/v1/alerts"] = '{"items":[],"judged":false}'
        told(90, 23)
        screen.until(lambda: "alerts not judged yet" in frame(screen)[1], "silence is no all-clear")


@test
def top_once_says_what_the_broker_says_without_escapes():
    with hx.Broker() as b:
        busy(b)
        name = "a-queue-whose-name-is-rather-long-for-a-terminal"
        b.put(name, "k")
        ran = hx.hapax("top", "--once", of=b)
        assert "\x1b" not in ran.text
        lines = ran.text.splitlines()
        for queue in ("payments", "queue-07", name):
            told = b.queue(queue)
            members(row(lines, queue), ready=str(told["ready"]), leased=str(told["leased"]), dead=str(told["dead"]))
        same(len(lines), 3 + 32)
        same(len(hx.hapax("top", "--json", of=b).json["items"]), 32)
        hx.hapax("top", "--sort", "z", exits=2, of=b)
    b.port = 1
    hx.hapax("top", "--once", exits=3, of=b)


if __name__ == "__main__":
    hx.main()
