#!/usr/bin/env python3
"""What the broker writes to stderr: docs/LOGS.md."""
import fcntl
import json
import os
import re
import select
import signal
import subprocess

import hx
from hx import same, test

FIELD = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "]*)(?: |$)')


def logfmt(line):
    """A line as a dict; every byte of it must belong to a field."""
    at, out = 0, {}
    while at < len(line):
        m = FIELD.match(line, at)
        assert m, f"not logfmt from {at} on: {line!r}"
        name, value = m.groups()
        assert name not in out, line
        out[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        at = m.end()
    return out


def lines(broker, event=None):
    """The log so far, whichever way it is written; whole lines only."""
    read = json.loads if "json" in broker.options else logfmt
    whole = broker.stderr().rpartition("\n")[0].splitlines()
    return [line for line in map(read, whole) if event in (None, line["event"])]


def line(broker, event, count=1):
    """The count-th line of that event, awaited."""
    hx.until(lambda: len(lines(broker, event)) >= count, f"{event} is logged")
    return lines(broker, event)[count - 1]


def own(*options, **kw):
    return hx.Broker(options=options, **kw)


@test
def a_life_is_told_in_lines_that_are_logfmt():
    with own() as broker:
        said = line(broker, "listening")
        same((said["level"], said["url"], said["data"]), ("info", f"http://127.0.0.1:{broker.port}", broker.data))
        same(said["pid"], str(broker.process.pid))
        broker.stop()
        same([s["event"] for s in lines(broker)], ["replayed", "listening", "stopping", "stopped"])
        for s in lines(broker):
            assert hx.RFC3339.match(s["ts"]), s
            same(list(s)[:4], ["ts", "level", "event", "msg"])


@test
def a_stream_that_is_closed_is_never_taken_for_a_file_or_a_socket_of_the_brokers():
    with own("--allow-dumps", wrapper=("sh", "-c", 'exec "$@" <&- 2>&-', "sh")) as broker:
        broker.put("q", "k")
        same([os.readlink(f"/proc/{broker.process.pid}/fd/{fd}") for fd in (0, 2)], ["/dev/null", "/dev/null"])
        same(broker.stop(), 0)


@test
def with_json_every_line_is_an_object():
    with own("--log", "json") as broker:
        line(broker, "listening")
        broker.stop()
        same([s["event"] for s in lines(broker)], ["replayed", "listening", "stopping", "stopped"])
        assert all(isinstance(s.get("pid", 0), int) for s in lines(broker))


@test
def the_level_says_what_is_written_and_a_wrong_word_is_refused():
    with own(env={"HAPAX_LOG_LEVEL": "warn"}) as broker:
        broker.stop()
        same(broker.stderr(), "")
    for flag, word in (("--log", "xml"), ("--log-level", "loud")):
        done = subprocess.run([hx.HAPAXD, flag, word], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=hx.TIMEOUT)
        assert done.returncode == 2 and f"not '{word}'".encode() in done.stderr, done


@test
def a_start_that_fails_is_a_line_too():
    with own() as broker:
        second = own("--log", "json", data=broker.data, log=broker.log + ".second", start=False)
        try:
            second.start()
            assert False, "two brokers on one directory"
        except hx.NotReady:
            said = line(second, "start_failed")
            assert said["level"] == "error" and "in use" in said["msg"], said
        os.unlink(second.log)


@test
def a_reader_who_stops_reading_does_not_stop_the_broker():
    """Its log is a small pipe nobody empties; a reload with forty mistakes is more than it takes."""
    with own(config="queues: {a: {}}\n", start=False) as broker:
        broken = "queues: {" + ", ".join(f"q{i}: {{windw: 1d}}" for i in range(40)) + "}\n"
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 8192)
        broker.process = subprocess.Popen([hx.HAPAXD, "--listen", "127.0.0.1:0", "--data", broker.data, *broker.options],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=write, start_new_session=True)
        broker.wait_ready()
        broker.configure(broken)
        broker.signal(signal.SIGHUP)
        hx.until(lambda: not select.select([], [write], [], 0)[1], "the pipe is full")
        for i in range(100):
            broker.signal(signal.SIGHUP)
            same(broker.send("a", f"k{i}").status, 202)
        same(broker.stop(), 0)
        os.close(write)
        said = os.read(read, 1 << 20)
        assert b"event=listening" in said and b"event=stopped" not in said, said
        os.close(read)


@test
def what_operators_do_is_a_line_with_who_and_which_request():
    with own(config="auto_create: true\nqueues: {filed: {}}\n") as broker:
        same(broker.call("PUT", "/v1/queues/q", b'{"window": "1h"}', [("Hapax-Actor", "ada lovelace"), ("X-Request-Id", "r-1")]).status, 201)
        said = line(broker, "operator")
        same({n: said.get(n) for n in ("what", "queue", "by", "request_id", "audit")},
             {"what": "queue_put", "queue": "q", "by": "ada lovelace", "request_id": "r-1", "audit": "1"})
        same(broker.call("DELETE", "/v1/queues/q", b"", [("Hapax-Actor", "bob")]).status, 204)
        said = line(broker, "operator", 2)
        same((said["what"], said["queue"], said["by"], said.get("request_id")), ("queue_delete", "q", "bob", None))
        broker.reload("queues: {filed: {window: 2h}}\n")
        said = line(broker, "operator", 3)
        same((said["what"], said["by"]), ("config_reload", "SIGHUP"))
        assert "queue filed: window: 1d -> 2h" in broker.stderr(), broker.stderr()


@test
def repeats_are_logged_only_where_that_was_asked_for_and_at_a_bounded_rate():
    with own("--log", "json", config="queues: {loud: {log_duplicates: true}, quiet: {}}\n") as broker:
        for q in ("loud", "quiet"):
            for i in range(300):
                broker.send(q, "k-7", b"secret payload", [("Hapax-Request-Id", f"hop-{i}")])
        same(broker.send("loud", "k-7", b"another").status, 422)
        said = line(broker, "duplicate")
        same((said["queue"], said["key"], said["kind"], said["request_id"]), ("loud", "k-7", "replay", "hop-1"))
        assert said["age_ms"] >= 0 and said["level"] == "info", said
        assert 10 <= len(lines(broker, "duplicate")) < 60, len(lines(broker, "duplicate"))
        same({s["queue"] for s in lines(broker, "duplicate")}, {"loud"})
        assert "secret payload" not in broker.stderr()

        def another():  # a second or more after the flood
            broker.send("loud", "k-7", b"secret payload")
            return [s for s in lines(broker, "duplicate") if s.get("suppressed", 0) > 100]
        hx.until(another, "the next line says how many were held back")


@test
def what_lint_calls_an_error_is_a_warning_at_start_after_a_reload_and_when_checked():
    bad = "queues:\n" + "".join(f'  q{i:02}: {{key: "${{message_id}}"}}\n' for i in range(23))
    with own(config="queues:\n  sound: {}\n  q: {key: \"${message_id}\"}\n") as broker:
        said = lines(broker, "config_lint")
        same([(s["level"], s["queue"], s["rule"], s["line"]) for s in said], [("warn", "q", "key-from-transport", "3")])
        broker.reload(bad)
        said = lines(broker, "config_lint")[1:]
        same([s["queue"] for s in said[:-1]], [f"q{i:02}" for i in range(20)])
        path = broker.config
        assert f"and 3 more: hapax lint {path} shows all" in said[-1]["msg"], said[-1]
        done = subprocess.run([hx.HAPAXD, "--config", path, "--check-config"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=hx.TIMEOUT, check=True)
        same(len([s for s in done.stderr.decode().splitlines() if "event=config_lint" in s]), 21)


@test
def what_a_restart_changes_in_a_queue_is_logged_and_in_its_audit_trail():
    with own(config="queues:\n  q: {window: 1h}\n  r: {}\n") as broker:
        same(lines(broker, "rules_changed"), [])
        same(broker.send("q", "k").status, 202)  # what was written before it is durable, too
        broker.configure("queues:\n  q: {window: 2h}\n  r: {}\n")
        broker.restart()
        said = line(broker, "rules_changed")
        same((said["queue"], said["changes"]), ("q", "window: 1h -> 2h"))
        same(len(lines(broker, "rules_changed")), 1)
        text = hx.hapax("audit", "--queue", "q", of=broker).text
        assert "start" in text and "window: 1h -> 2h" in text, text
        same(broker.get("/v1/audit?queue=r").json()["items"], [])


hx.main(shared=False, threads=6)
