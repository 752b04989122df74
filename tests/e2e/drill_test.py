#!/usr/bin/env python3
"""Replay as a drill (M29): what was accepted is sent again with one command, and nothing happens. What does happen is counted,
named, and makes the exit code."""
import json
import re
import signal
import socket
import threading
import time

import hx
from hx import hapax, members, same, test


def replay(q, *flags, exits=0, of=None, stdin=b""):
    return hapax("replay", q, *flags, "--json", exits=exits, of=of, stdin=stdin).json


def ndjson(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def busy_day(q, **rules):
    """Messages in every state a day leaves behind; their number."""
    b = hx.broker
    b.rules(q, keep_payload="1h", on_unknown="hold", **rules)
    names = ["done", "rejected", "dead", "held", "leased", "pending"]
    for name in names[:5]:
        b.event(q, {"id": name, "n": 1}, name, [("Hapax-Attr-Colour", "blue")])
    got = {json.loads(m["payload"])["id"]: m for m in b.receive(q, max=5, lease="1h")}
    b.ok("ack", got["done"], result="r")
    for name, failure in (("rejected", "rejected"), ("dead", "poison"), ("held", "unknown")):
        b.ok("nack", got[name], **{"class": failure})
    b.event(q, {"id": "pending", "n": 1}, "pending")
    same(b.send(q, "binary", bytes(range(256))).status if "key" not in rules else 202, 202)
    return 7 if "key" not in rules else 6


@test
def replaying_a_day_is_a_no_op_to_the_last_message(q):
    b = hx.broker
    count = busy_day(q)
    before = b.queue(q)
    yield
    members(replay(q, "--since", "24h", "--dry-run"), dry_run=True, would_send=count, payload_gone=0)
    same(b.key(q, "done")["duplicates"], 0, "a dry run sends nothing")
    report = replay(q, "--since", "24h", "--approved-by", "ada")
    members(report, sent=count, no_op=count, conflict=0, new=0, refused=0, no_op_percent=100, ok=True, approved_by="ada")
    after = b.queue(q)
    same([after[n] for n in ("pending", "leased", "held", "dead")], [before[n] for n in ("pending", "leased", "held", "dead")])
    shown = b.key(q, "done")
    same(shown["duplicates"], 1)
    members(shown["arrivals"][-1], request_id="replay, approved by ada")
    yield
    same(replay(q, "--since", "24h")["no_op"], count, "as often as one likes")
    text = hapax("replay", q, "--since", "24h").text
    assert "no-op" in text and "100 %" in text, text


@test
def a_queue_that_derives_keys_derives_them_again(q):
    count = busy_day(q, key="${id}", order_by="${id}")
    members(replay(q, "--since", "1h"), sent=count, no_op=count)


@test
def conflicting_arrivals_of_the_day_are_no_ops_too(q):
    b = hx.broker
    for rule in ("hold", "new"):
        queue = f"{q}-{rule}"
        b.rules(queue, on_conflict=rule, keep_payload="1h", key="${id}")
        b.event(queue, {"id": 1, "n": 1})
        b.event(queue, {"id": 1, "n": 2})
        members(replay(queue, "--since", "1h"), sent=2, no_op=2)


@test
def forgotten_keys_show_as_new(q):
    b = hx.broker
    b.rules(q, window="1s", keep_payload="1h")
    b.put(q, "k1", "k2")
    b.ok("ack", b.one(q))
    lines = ndjson({"key": "k1", "payload": "x"}, {"key": "k2", "payload": "x"}, {"key": "never", "payload": "x"})
    hx.until(lambda: b.get(f"/v1/queues/{q}/keys/k1").status == 404, "the window ends")
    ran = hapax("replay", q, "--file", "-", exits=1, stdin=lines)
    assert "new: k1" in ran.err and "new: never" in ran.err and "k2" not in ran.err, ran
    same(sorted(m["key"] for m in b.list(q, state="pending")), ["k1", "k2", "never"])


@test
def conflicts_and_refusals_are_counted_apart(q):
    b = hx.broker
    b.put(q, "k", payload="original")
    lines = ndjson({"key": "k", "payload": "original"}, {"key": "k", "payload": "changed"}, {"payload": "keyless"}) + b"nonsense\n"
    members(replay(q, "--file", "-", stdin=lines, exits=1), sent=4, no_op=1, conflict=1, refused=2, new=0, no_op_percent=25, ok=False)
    members(replay(q, "--file", "-", "--expect", "25%", stdin=lines), ok=True, expected_percent=25)
    members(replay(q, "--file", "-", "--expect", "25.1%", stdin=lines, exits=1), ok=False)


@test
def nothing_to_replay_is_no_success(q):
    b = hx.broker
    b.rules(q)
    members(replay(q, "--since", "24h", exits=1), sent=0, ok=False)
    b.put(q, "k")
    b.ok("ack", b.one(q))
    ran = hapax("replay", q, "--since", "24h", exits=1)
    assert "keep_payload" in ran.err, ran


def only_half_kept(q, **rules):
    """Ten accepted and settled, six of them when payloads were not kept."""
    b = hx.broker
    b.rules(q, **rules)
    b.put(q, *(f"gone{n}" for n in range(6)))
    for m in b.receive(q, max=6):
        b.ok("ack", m)
    b.rules(q, keep_payload="1h", **rules)
    b.put(q, *(f"kept{n}" for n in range(4)))
    for m in b.receive(q, max=4):
        b.ok("ack", m)


@test
def what_was_not_checked_is_not_green(q):
    only_half_kept(q)
    ran = hapax("replay", q, "--since", "1h", exits=1)
    assert "checked 4 of 10" in ran.err and re.search(r"^checked +4 of 10$", ran.text, re.M) and "100 %," not in ran.text, ran
    members(replay(q, "--since", "1h", exits=1), sent=4, no_op=4, payload_gone=6, checked=4, total=10, no_op_percent=40, ok=False)
    members(replay(q, "--since", "1h", "--expect", "40%", exits=1), ok=False)
    assert "will not pass" in hapax("replay", q, "--since", "1h", "--dry-run").text


@test
def an_at_most_once_queue_is_never_replayed(q):
    b = hx.broker
    b.rules(q, semantics="at_most_once", keep_payload="1h")
    for key in ("k", None, None):
        same(b.send(q, key, "x").status, 202)
    same(len(b.receive(q, max=9)), 3)
    line = ndjson({"key": "another", "payload": "x"})
    for flags in (["--since", "1h"], ["--since", "1h", "--expect", "0%"], ["--file", "-"], ["--since", "1h", "--dry-run"]):
        ran = hapax("replay", q, *flags, exits=1, stdin=line)
        assert "at_most_once" in ran.err and "Nothing was sent" in ran.err, ran
    same(b.receive(q, max=9), [], "nothing was handed out again")


@test
def a_drill_is_in_the_audit_trail(q):
    b = hx.broker
    count = busy_day(q)
    replay(q, "--since", "24h", "--dry-run")
    replay(q, "--since", "24h", "--by", "bea", "--approved-by", "ada", "--note", "monthly drill")
    replay(q, "--file", "-", stdin=ndjson({"key": "pending", "payload": {"id": "pending", "n": 1}}))
    yield
    entries = [e for e in b.get(f"/v1/audit?queue={q}&what=drill").json()["items"]]
    same(len(entries), 2, "a dry run is none")
    members(entries[1], who="bea", why="approved by ada: monthly drill", detail={"since": "24h", "messages": count})
    members(entries[0], who="tester", detail={"messages": 1})
    assert "approved by ada" in hapax("audit", "--queue", q, "--what", "drill").text
    hx.problem(b.post(f"/v1/queues/{q}/drill", {"since": "yesterday"}), 400, "param_invalid")
    hx.problem(b.post(f"/v1/queues/{q}/drill", {"what": "x"}), 400, "json_invalid")
    hx.problem(b.post(f"/v1/queues/{q}-none/drill", {}), 404, "no_such_queue")


class Roundabout:
    """A broker whose list of messages never ends: its cursors come round again, after as many pages as it is told."""

    def __init__(self, pages):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.pages, self.asked = pages, 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            with client:
                while b"\r\n\r\n" in (request := client.recv(65536)):
                    body = {"config": {"semantics": "exactly_once"}}
                    if b"/messages?" in request:
                        self.asked += 1
                        body = {"items": [{"key": "k", "payload": "x", "encoding": "utf8"}], "next_cursor": f"c{self.asked % self.pages}"}
                    text = json.dumps(body).encode()
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)


@test
def a_list_that_goes_round_is_not_walked_for_ever():
    for pages in (1, 2, 7):
        way = Roundabout(pages)
        ran = hapax("replay", "q", "--since", "1h", exits=3, of=way)
        assert "does not end" in ran.err, ran
        assert way.asked < 10 * pages + 10, way.asked
        way.listener.close()


@test
def a_drill_of_thousands_has_pages_and_keeps_its_rate(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    for part in range(3):
        b.batch(q, [{"key": f"k{part}-{n}", "payload": {"n": n}} for n in range(700)])
    members(replay(q, "--since", "1h"), sent=2100, no_op=2100)
    began = time.monotonic()
    lines = ndjson(*({"key": f"k0-{n}", "payload": {"n": n}} for n in range(40)))
    members(replay(q, "--file", "-", "--rate", "50", stdin=lines), sent=40, no_op=40)
    assert time.monotonic() - began >= 0.5, "40 at 50 a second"


@test
def backpressure_is_waited_out(q):
    b = hx.broker
    b.rules(q, limits={"pending": 2})
    b.put(q, "k1", "k2")
    process = hx.start_hapax("replay", q, "--file", "-", "--expect", "50%", "--json")
    process.stdin.write(ndjson(*({"key": f"k{n}", "payload": "x"} for n in (1, 2, 3, 4))))
    process.stdin.close()
    process.stdin = None
    hx.until(lambda: b.key(q, "k2")["duplicates"] >= 1, "the first try came")
    while process.poll() is None:
        for m in b.receive(q, max=10, wait="100ms"):
            b.ok("ack", m)
    out, err = process.communicate()
    same(process.returncode, 0, err.decode())
    members(json.loads(out), sent=4, no_op=2, new=2)
    assert "presses back" in err.decode(), err


@test
def an_appending_queue_is_not_replayed_by_accident(q):
    b = hx.broker
    b.rules(q, semantics="at_least_once")
    b.send(q, "k", "x")
    ran = hapax("replay", q, "--since", "1h", exits=1)
    assert "appended" in ran.err, ran
    same(b.queue(q)["pending"], 1)
    members(replay(q, "--since", "1h", "--expect", "0%"), sent=1, new=1)


@test
def a_drill_lives_through_a_restart_of_the_broker(q):
    with hx.Broker() as b:
        b.rules(q, keep_payload="1h")
        b.batch(q, [{"key": f"k{n}", "payload": "x"} for n in range(60)])
        process = hx.start_hapax("replay", q, "--since", "1h", "--rate", "40", "--json", of=b)
        hx.until(lambda: b.key(q, "k0")["duplicates"] >= 1, "it has begun")
        b.restart()
        out, err = process.communicate(timeout=hx.TIMEOUT)
        same(process.returncode, 0, err.decode())
        members(json.loads(out), sent=60, no_op=60)


@test
def a_drill_that_is_stopped_tells_what_it_has_found_and_is_not_green(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    b.batch(q, [{"key": f"k{n}", "payload": "x"} for n in range(400)])
    process = hx.start_hapax("replay", q, "--since", "1h", "--rate", "4")
    hx.until(lambda: b.queue(q)["counters"]["duplicates"] >= 1, "it has begun")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=hx.TIMEOUT)
    same(process.returncode, 1, err.decode())
    assert " of 400\n" in out.decode() and "no-op rate" in out.decode() and "100 %," not in out.decode(), out
    assert "stopped after" in err.decode(), err


class Lossy:
    """A way to the broker on which the answer to the first batch is lost."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.lost = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            with client, hx.broker.connect() as there:
                while self.carry(client, there):
                    pass

    def carry(self, client, there):
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0 or len(data) < end + 4 + self.length(data[:end]):
            piece = client.recv(65536)
            if not piece:
                return False
            data += piece
        there.write(data)
        there.more()
        if b"/batch" in data[:100] and not self.lost:
            self.lost += 1
            return False
        client.sendall(there.take(len(there.data)))
        return True

    @staticmethod
    def length(head):
        found = re.search(rb"\r\ncontent-length: (\d+)", head, re.I)
        return int(found.group(1)) if found else 0


@test
def a_lost_answer_does_not_pass_for_a_no_op(q):
    b = hx.broker
    b.put(q, "known")
    time.sleep(1.5)  # so that it is older than the first try beyond doubt
    way = Lossy()
    lines = ndjson({"key": "known", "payload": "x"}, {"key": "fresh", "payload": "x"})
    members(replay(q, "--file", "-", of=way, stdin=lines, exits=1), sent=2, no_op=1, new=1)
    same(way.lost, 1)
    same(b.key(q, "fresh")["duplicates"], 1, "it was sent twice")
    way.listener.close()


@test
def a_template_is_tried_on_what_a_queue_accepted(q):
    b = hx.broker
    count = busy_day(q)
    yield
    tried = hapax("key", "try", "--queue", q, "--template", "${id}:${header.hapax-attr-colour}", "--json", exits=1).json
    members(tried, messages=count, keys=5, repeats=0, conflicts=0, failures=2)
    same({r["reason"].split(":")[0] for r in tried["failure_reasons"]}, {"header hapax-attr-colour is missing", "the payload is not JSON"})
    tried = hapax("key", "try", "--queue", q, "--since", "1h", "--template", "all:${n}", "--json", exits=1).json
    members(tried, messages=count, keys=1, conflicts=5, failures=1)
    same(b.post(f"/v1/queues/{q}/keys/done/erase").status, 200)
    assert "1 more have no payload" in hapax("key", "try", "--queue", q, "--template", "${n}", exits=1).err
    for flags in ([], ["--queue", q, "-"], ["--since", "1h", "-"]):
        assert "--queue" in hapax("key", "try", "--template", "${n}", *flags, exits=2).err, flags
    assert "no_such_queue" in hapax("key", "try", "--queue", q + "-none", "--template", "${n}", exits=1).err


@test
def a_broker_that_is_away_makes_the_exit_code_3(q):
    with hx.Broker() as b:
        b.rules(q, keep_payload="1h")
    hapax("replay", q, "--since", "1h", exits=3, of=b)


@test
def wrong_usage_is_said(q):
    hx.broker.rules(q)
    for flags, word in [([], "--since"), (["--since", "1h", "--file", "f"], "either"), (["--since", "1h", "--rate", "0"], "rate"),
                        (["--since", "1h", "--expect", "all"], "98%"), (["--since", "1h", "--expect", "101%"], "98%"),
                        (["--file", "/nonexistent"], "No such file"), (["--since", "1h", "--approved-by", "a\nb"], "approved-by")]:
        assert word in hapax("replay", q, *flags, exits=2).err, flags
    assert "param_invalid" in hapax("replay", q, "--since", "yesterday", exits=1).err
    hapax("replay", q + "-none", "--since", "1h", exits=1)


hx.main(threads=40)
