#!/usr/bin/env python3
"""The hapax command against a real broker: every verb, every exit code, every error a user is likely to meet. Prints TAP.

HAPAXD and HAPAX name the binaries (default build/hapaxd, build/hapax). The broker listens on a free port and keeps its
data in a temporary directory; it is stopped by its pid."""
import atexit
import base64
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading

import hx
from hx import HAPAX, ROOT, test

WORK = tempfile.mkdtemp(prefix="hapax-cli-")


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return "exit %d\nstdout: %r\nstderr: %r" % (self.code, self.out, self.err)

    @property
    def text(self):
        return self.out.decode()

    @property
    def json(self):
        return json.loads(self.out)


def env(url=None, **more):
    e = {k: v for k, v in os.environ.items() if not k.startswith("HAPAX")}
    e["HAPAX_URL"] = url or hx.broker.url
    e.update(more)
    return e


def hapax(*args, stdin=b"", url=None, timeout=60, **more):
    p = subprocess.run([HAPAX, *args], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env(url, **more),
                       timeout=timeout)
    return Ran(p.returncode, p.stdout, p.stderr.decode())


def unheard(*args, shell=">/dev/full"):
    """With streams as the shell makes them: a standard output that is full, or some of them closed."""
    p = subprocess.run(["sh", "-c", f'"$@" {shell}', "sh", HAPAX, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env=env(), timeout=60, check=False)
    return Ran(p.returncode, p.stdout, p.stderr.decode())


def unread(*args):
    """Into a pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    p = subprocess.run([HAPAX, *args], stdout=write, stderr=subprocess.PIPE, env=env(), timeout=60, check=False)
    os.close(write)
    return Ran(p.returncode, b"", p.stderr.decode())


def ok(ran):
    assert ran.code == 0, ran
    return ran


def exits(code, ran, *said):
    assert ran.code == code, ran
    for words in said:
        assert words in ran.err, ran
    return ran


def send(queue, key, payload="p", *flags):
    return ok(hapax("send", queue, payload, "--key", key, "--json", *flags)).json


def take(queue, *flags):
    messages = ok(hapax("receive", queue, "--json", *flags)).json["messages"]
    assert len(messages) == 1, messages
    return messages[0]


def state_of(queue, key):
    return ok(hapax("key", "show", queue, key, "--json")).json["state"]


def closed_port():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    return port


# ---- help and usage

VERBS = ["send", "receive", "ack", "nack", "extend", "step", "start", "release", "key show", "key find", "key result", "key try",
         "key resolve", "key replay", "key erase", "key forget", "queues list", "queues show", "queues explain", "queues pause",
         "queues resume", "queues set", "queues purge", "queues delete", "messages list", "messages show", "messages cancel", "revoke",
         "dead list", "dead redrive", "held list", "held show", "held resolve", "tasks list", "tasks show", "tasks cancel", "replay", "inject",
         "find", "consumers", "alerts", "audit", "stats", "doctor", "tail", "top", "lint", "bench", "token new", "token hash", "verify", "push status", "push test", "push pause", "push resume", "gate install", "gate upgrade", "gate status",
         "gate uninstall", "gate sweep", "gate reconcile", "relay init", "relay status", "relay", "version", "help"]


@test
def help_lists_every_verb_and_explains_each():
    listing = ok(hapax("help")).text
    listed = {}
    for line in re.findall(r"^  ([a-z]+ .*(?:\n {8,}.*)*)", listing, re.M):
        first, rest = line.split(None, 1)
        listed[first] = re.findall(r"\w+", rest.split("alone:")[0])
    for verb in VERBS:
        first, *second = verb.split()
        assert first in listed and set(second) <= set(listed[first]), verb
        page = ok(hapax("help", *verb.split())).text
        assert page.startswith("hapax " + verb) and page.split("\n")[2].strip(), page
        assert "--url" in page and "--json" in page
        assert ok(hapax(*verb.split(), "--help")).text == page, verb
    assert set(listed) == {verb.split()[0] for verb in VERBS}, listed
    family = ok(hapax("help", "key")).text
    assert "hapax key show" in family and "hapax help key VERB" in family and len(family.splitlines()) < 24, family
    assert "hapax relay init" in ok(hapax("help", "relay")).text
    for first in {verb.split()[0] for verb in VERBS if " " in verb}:
        page = ok(hapax("help", first)).text
        for flag in ("--help", "-h"):
            assert ok(hapax(first, flag)).text == page, (first, flag)
    assert ok(hapax("key", "show", "-h")).text == ok(hapax("help", "key", "show")).text
    assert ok(hapax("-h")).text == listing
    assert ok(hapax("--help")).text == listing


@test
def the_man_page_names_every_verb_and_flag():
    page = os.path.join(ROOT, "docs", "man", "hapax.1")
    text = open(page, encoding="utf-8").read().replace("\\-", "-")
    for verb in VERBS:
        assert re.search(r"^\.B hapax %s\b" % re.escape(verb), text, re.M), verb
        for flag in re.findall(r"^  (--[a-z-]+)", ok(hapax("help", *verb.split())).text, re.M):
            assert flag in text, (verb, flag)


@test
def the_brokers_man_page_and_the_table_of_its_values_name_all_it_takes():
    usage = subprocess.run([hx.HAPAXD, "--help"], stdout=subprocess.PIPE, check=True).stdout.decode()
    page = open(os.path.join(ROOT, "docs", "man", "hapaxd.1"), encoding="utf-8").read().replace("\\-", "-")
    table = open(os.path.join(ROOT, "docs", "CONFIG.md"), encoding="utf-8").read()
    synopsis, options, environment = (page.split(".SH " + name + "\n")[1].split("\n.SH ")[0] for name in ("SYNOPSIS", "OPTIONS", "ENVIRONMENT"))
    flags, variables = re.findall(r"^  (--[a-z-]+)", usage, re.M), re.findall(r"HAPAX_[A-Z]+", usage)
    assert "--memory" in flags and "HAPAX_MEMORY" in variables, usage
    for flag in flags:
        assert flag in options and (flag in synopsis or flag == "--version"), flag
        assert "`" + flag in table or flag in ("--check-config", "--version"), flag
    for name in variables:
        assert name in environment and name in table, name


@test
def the_version_is_the_one_of_the_tree():
    version = open(os.path.join(ROOT, "VERSION"), encoding="utf-8").read().strip()
    assert ok(hapax("version")).text == "hapax %s\n" % version
    assert ok(hapax("version", "--json")).json == {"version": version}
    assert ok(hapax("--version")).text == "hapax %s\n" % version


@test
def wrong_usage_exits_2_and_names_the_nearest_word():
    exits(2, hapax())
    exits(2, hapax("sned"), 'Did you mean "send"')
    exits(2, hapax("key"), "hapax key show QUEUE KEY", "hapax key result")
    exits(2, hapax("queues", "lst"), 'Did you mean "queues list"')
    exits(2, hapax("nonsense"), "hapax help")
    exits(2, hapax("--json", "stats"), "after the verb")
    exits(2, hapax("send", "q", "x", "--kye", "1"), "did you mean --key? See")
    exits(2, hapax("send", "q", "x", "--key"), "needs a value")
    exits(2, hapax("send"), "QUEUE")
    exits(2, hapax("stats", "extra"), "too many")
    exits(2, hapax("stats", "-j"), "two dashes")
    exits(2, hapax("stats", "--json=1"), "takes no value")
    exits(2, hapax("key", "resolve", "q", "k"), "--as is done")
    exits(2, hapax("key", "resolve", "q", "k", "--as", "gone"), "--as is done")
    exits(2, hapax("key", "resolve", "q", "k", "--as", "done", "--result", "r", "--file", "f"), "both")
    exits(2, hapax("queues", "set", "q"), "KEY=VALUE")
    exits(2, hapax("find", "order-1"), 'what is "order-1"? Say --key')
    exits(2, hapax("queues", "purge", "q", "--state", "leased"), "pending, held or dead")
    exits(2, hapax("queues", "pause", "q", "--note", "two\nlines"), "one line")
    exits(2, hapax("dead", "redrive", "q", "--rate", "0"), "1 to 1000000")
    exits(2, hapax("replay", "q"), "--since or --file")
    exits(2, hapax("send", "q", "x", "--key", "k", "--delay", "soon"), "not a duration")
    exits(2, hapax("send", "q", "x", "--key", "k", "--attr", "novalue"), "NAME=VALUE")
    exits(2, hapax("send", "q", "x", "--key", "k", "--file", "f"), "both")
    exits(2, hapax("send", "q", "--key", "k", "--file", os.path.join(WORK, "missing")), "No such file")
    exits(2, hapax("receive", "q", "--max", "0"), "1 to 1000")
    exits(2, hapax("receive", "q", "--wait", "2m"), "60s")
    exits(2, hapax("receive", "q", "--lease", "0s"), "12h")
    exits(2, hapax("receive", "q", "--count", "1", "--forever"), "not both")
    exits(2, hapax("nack", "t", "--class", "meh"), "transient")
    exits(2, hapax("messages", "list", "q", "--state", "done"), "pending")
    exits(2, hapax("bench", "--mode", "fast"), "single")
    for queue in ("b ad", "", "a/b", "x" * 300):
        exits(2, hapax("relay", "--once", "--queue", queue), "--queue: a queue name")
    exits(2, hapax("ack", "-"), "HAPAX_TOKEN")
    exits(2, hapax("stats", url="ftp://127.0.0.1:1"), "https")
    exits(2, hapax("stats", "--url", "nonsense"), "http://")
    exits(2, hapax("queues", "purge", "q", "--yes", "--url", ""), "--url is empty")  # --url "$PRODUCTION" is not the broker at hand
    exits(2, hapax("queue"), 'Did you mean "queues"?')
    exits(1, hapax("queues", "resume", "never-made"), "no_such_queue")
    exits(2, hapax("help", "nonsense"), "hapax help")


@test
def a_broker_that_cannot_be_reached_exits_3_and_says_what_to_do():
    url = "http://127.0.0.1:%d" % closed_port()
    for args in (["send", "q", "x", "--key", "k"], ["receive", "q"], ["receive", "q", "--exec", "true"], ["ack", "t"],
                 ["stats"], ["key", "show", "q", "k"], ["key", "result", "q", "k"], ["queues", "list"], ["audit"], ["dead", "redrive", "q"],
                 ["queues", "set", "q", "window=1h"], ["replay", "q", "--since", "1h"], ["key", "forget", "q", "k", "--yes"],
                 ["bench", "--seconds", "1", "--mode", "single"]):
        exits(3, hapax(*args, url=url), "cannot reach")
    ran = exits(3, hapax("stats", "--json", url=url), "Connection refused", "Is hapaxd running?", url)
    assert ran.json["code"] == "unreachable" and ran.json["applied"] == "no"


@test
def an_address_with_a_path_is_named_where_nothing_is_found():
    url = hx.broker.url + "/v1"
    exits(1, hapax("queues", "list", url=url), "not_found", f"Is {url} the broker's address?")


@test
def an_answer_that_never_comes_exits_3_and_says_unknown():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)

    def hang_up():
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            c.recv(65536)
            c.close()

    threading.Thread(target=hang_up, daemon=True).start()
    url = "http://127.0.0.1:%d" % listener.getsockname()[1]
    ran = exits(3, hapax("send", "q", "x", "--key", "k", "--json", url=url), "not known whether", "same key")
    listener.close()
    assert ran.json["applied"] == "unknown", ran


# ---- sending

@test
def send_accepts_then_recognises_the_duplicate_and_the_conflict():
    first = send("s1", "order-1", "hello")
    assert first["outcome"] == "accepted" and first["state"] == "pending", first
    again = send("s1", "order-1", "hello")
    assert again["outcome"] == "duplicate" and again["id"] == first["id"], again
    ran = exits(1, hapax("send", "s1", "other", "--key", "order-1", "--json"), "key_reused")
    assert ran.json["code"] == "key_reused" and ran.json["id"] == first["id"], ran
    assert ok(hapax("send", "s1", "hello", "--key", "order-1")).text.startswith("duplicate of " + first["id"])
    assert ok(hapax("send", "s1", "hello", "--key", "order-2")).text.startswith("accepted ")


@test
def the_payload_comes_from_argument_file_or_standard_input_byte_for_byte():
    raw = bytes(range(256)) * 8
    path = os.path.join(WORK, "payload")
    open(path, "wb").write(raw)
    ok(hapax("send", "s2", "--key", "file", "--file", path))
    ok(hapax("send", "s2", "--key", "stdin", stdin=raw))
    ok(hapax("send", "s2", "--key", "dash", "--file", "-", stdin=raw))
    ok(hapax("send", "s2", "--key", "arg", "--", "--dashes"))
    ok(hapax("send", "s2", "--key", "empty", ""))
    got = {m["key"]: m for m in ok(hapax("receive", "s2", "--max", "10", "--json")).json["messages"]}
    for key in ("file", "stdin", "dash"):
        assert got[key]["encoding"] == "base64" and base64.b64decode(got[key]["payload"]) == raw, key
    assert got["arg"]["payload"] == "--dashes" and got["empty"]["payload"] == ""


@test
def everything_sent_with_a_message_reaches_the_consumer():
    send("s3", "k \"ü\" %/", "{}", "--content-type", "application/json", "--group", "g1", "--attr", "Color=blue",
         "--attr", "size=a=b", "--request-id", "hop-1", "--ttl", "1h")
    m = take("s3")
    assert m["key"] == "k \"ü\" %/" and m["content_type"] == "application/json" and m["group"] == "g1", m
    assert m["attrs"] == {"color": "blue", "size": "a=b"}, m
    shown = ok(hapax("key", "show", "s3", "k \"ü\" %/", "--json")).json
    assert shown["arrivals"][0]["request_id"] == "hop-1", shown


@test
def a_delayed_message_is_not_handed_out_yet():
    send("s4", "later", "x", "--delay", "1h")
    exits(1, hapax("receive", "s4"), "nothing received")


@test
def sending_with_wait_brings_the_result():
    got = {}

    def work():
        got["ran"] = hapax("receive", "s5", "--wait", "30s", "--exec", "printf done-%s \"$(cat)\"")

    worker = threading.Thread(target=work)
    worker.start()
    ran = ok(hapax("send", "s5", "seven", "--key", "k", "--wait", "30s", "--json"))
    worker.join()
    ok(got["ran"])
    assert ran.json["state"] == "done" and ran.json["result"]["body"] == "done-seven", ran


@test
def a_batch_is_sent_line_by_line_and_bad_lines_fail_alone():
    path = os.path.join(WORK, "batch.ndjson")
    lines = [json.dumps({"key": "b%d" % i, "payload": "p%d" % i}) for i in range(2500)]
    open(path, "w", encoding="utf-8").write("\n".join(lines))
    assert ok(hapax("send", "s6", "--batch", path)).text == "accepted 2500, duplicate 0, refused 0\n"
    bad = "\n".join([lines[0], "nonsense", json.dumps({"payload": "x"}), json.dumps({"key": "b1", "payload": "other"}),
                     json.dumps({"key": "new", "payload": {"a": 1}})]) + "\n"
    ran = exits(1, hapax("send", "s6", "--batch", "-", stdin=bad.encode()), "line 2:", "line 3:", "line 4: key_reused")
    assert ran.text == "accepted 1, duplicate 1, refused 3\n", ran
    ran = hapax("send", "s6", "--batch", "-", "--json", stdin=bad.encode())
    replies = [json.loads(line) for line in ran.text.splitlines()]
    assert [r["status"] // 100 for r in replies] == [2, 4, 4, 4, 2], replies
    exits(2, hapax("send", "s6", "x", "--batch", path), "in the file")


@test
def a_batch_that_is_wrong_throughout_has_one_reason():
    same = "".join(json.dumps({"payload": "x"}) + "\n" for _ in range(2000))
    ran = exits(1, hapax("send", "s6b", "--batch", "-", stdin=same.encode()), "line 1: key_missing", "as line 1: 1999 more, the last is line 2000")
    assert len(ran.err.splitlines()) == 2 and ran.text == "accepted 0, duplicate 0, refused 2000\n", ran
    odd = "".join(json.dumps({"key": "k", "payload": "x", "odd%d" % i: 1}) + "\n" for i in range(100))
    ran = hapax("send", "s6b", "--batch", "-", stdin=odd.encode())
    assert len(ran.err.splitlines()) <= 21, ran


@test
def rules_wrong_in_several_places_are_told_in_all():
    ran = exits(1, hapax("queues", "set", "s6c", "lease=x", "windwo=1h", "retry.unknown.attempts=0"), "lease: ", "windwo", "retry.unknown.attempts: ")
    assert len(ran.err.splitlines()) == 3, ran


@test
def a_missing_batch_file_is_wrong_usage():
    exits(2, hapax("send", "s6", "--batch", os.path.join(WORK, "missing")), "No such file")


@test
def refusals_exit_1_with_the_brokers_code():
    exits(1, hapax("send", "r1", "--key", "big", stdin=b"x" * ((1 << 20) + 1)), "too_large")
    exits(1, hapax("key", "show", "r1-none", "k"), "no_such_queue: queue 'r1-none' does not exist; `hapax queues list`")
    exits(1, hapax("key", "result", "r1-none", "k"), "no_such")
    exits(1, hapax("ack", "garbage"), "token_invalid")
    exits(1, hapax("send", "r1", "x", "--key", "tab\there"), "key_invalid")
    for queue in ("r1", "r1-none"):
        ran = exits(1, hapax("send", queue, "x"), "key_missing: name the intent with --key")
        assert "Idempotency-Key" not in ran.err, ran
    # Tokens are opaque: one may begin with dashes, and is no flag.
    for dashes in ("-", "--"):
        exits(1, hapax("release", dashes + "x" * 46), "token_invalid")


# ---- receiving and settling by hand

@test
def receive_prints_a_message_and_ack_settles_it_with_its_result():
    send("h1", "k1", "the payload")
    ran = ok(hapax("receive", "h1", "--lease", "60s", "--consumer", "me"))
    assert "the payload" in ran.text and "k1" in ran.text and "attempt" in ran.text, ran
    token = re.search(r"^token\s+(\S+)$", ran.text, re.M).group(1)
    assert "done" in ok(hapax("ack", token, "the result", "--effect-id", "tx-1")).text
    assert ok(hapax("key", "result", "h1", "k1")).out == b"the result"
    again = ok(hapax("ack", token, "another result", "--json")).json
    assert again["duplicate"] is True, again
    shown = ok(hapax("key", "show", "h1", "k1", "--json")).json
    assert shown["state"] == "done" and shown["result"]["body"] == "the result", shown
    assert "tx-1" in json.dumps(shown["effect_ids"]), shown
    exits(1, hapax("receive", "h1", "--json"))
    exits(1, hapax("nack", token, "--class", "poison"), "settled")


@test
def results_are_kept_byte_for_byte():
    raw = bytes(range(256))
    send("h2", "k")
    ok(hapax("ack", take("h2")["token"], "--file", "-", "--content-type", "image/x", stdin=raw))
    assert ok(hapax("key", "result", "h2", "k")).out == raw
    shown = ok(hapax("key", "result", "h2", "k", "--json")).json
    assert base64.b64decode(shown["body"]) == raw and shown["content_type"] == "image/x", shown
    assert shown["encoding"] == "base64" and shown["state"] == "done", shown


@test
def nack_classes_do_what_they_say():
    for name, expected in (("poison", "dead"), ("rejected", "rejected"), ("transient", "pending"), ("unknown", "pending")):
        send("h3", name)
        token = take("h3")["token"]
        ran = ok(hapax("nack", token, "--class", name, "--reason", "r", "--result", "res", "--delay", "1h", "--json")
                 if name == "rejected" else
                 hapax("nack", token, "--class", name, "--reason", "r", "--delay", "1h", "--json"))
        assert ran.json["state"] == expected, (name, ran)
        assert state_of("h3", name) == expected, name
    assert ok(hapax("key", "result", "h3", "rejected")).out == b"res"
    exits(1, hapax("key", "result", "h3", "poison"), "not_settled")


@test
def extend_start_release_and_step_work_by_token():
    send("h4", "k")
    m = take("h4", "--explicit", "--lease", "5s")
    ok(hapax("start", m["token"]))
    ok(hapax("extend", m["token"], "--lease", "10m"))
    assert ok(hapax("step", m["token"], "charge", "tx-1", "--json")).json["status"] == "new"
    again = ok(hapax("step", m["token"], "charge", "tx-2", "--json")).json
    assert again["status"] == "duplicate", again
    assert ok(hapax("step", "-", "charge", "tx-3", HAPAX_TOKEN=m["token"])).out == b"tx-1\n"
    ok(hapax("release", m["token"]))
    again = take("h4")
    assert [s["name"] for s in again["steps"]] == ["charge"], again
    exits(1, hapax("ack", m["token"]), "fenced")
    ok(hapax("ack", again["token"]))


@test
def a_released_reservation_costs_no_attempt():
    send("h5", "k")
    for _ in range(3):
        m = take("h5", "--explicit")
        ok(hapax("release", m["token"]))
    assert take("h5")["attempt"] == 1


@test
def receive_counts_waits_and_acks():
    for i in range(5):
        send("h6", "k%d" % i)
    ran = ok(hapax("receive", "h6", "--count", "3", "--max", "2", "--json"))
    got = [m for line in ran.text.splitlines() for m in json.loads(line)["messages"]]
    assert [m["key"] for m in got] == ["k0", "k1", "k2"], got
    ok(hapax("receive", "h6", "--max", "10", "--ack"))
    assert state_of("h6", "k4") == "done"
    exits(1, hapax("receive", "h6"), "nothing received")
    waiter = subprocess.Popen([HAPAX, "receive", "h6", "--wait", "30s", "--json"], stdout=subprocess.PIPE, env=env())
    send("h6", "late")
    out, _ = waiter.communicate(timeout=30)
    assert waiter.returncode == 0 and json.loads(out)["messages"][0]["key"] == "late"


@test
def key_result_waits_for_the_settlement():
    send("h7", "k")
    exits(1, hapax("key", "result", "h7", "k"), "not_settled")
    for path, args in (("/v1/queues/h7/keys/k/result", ["key", "result", "h7", "k"]), ("/v1/queues/h7/keys/no/result", ["key", "result", "h7", "no"])):
        assert exits(1, hapax(*args, "--json")).json == hx.broker.get(path).json(), "the broker's own words"
    refused = hx.broker.call("POST", "/v1/queues/b%20ad/receive")
    assert exits(1, hapax("receive", "b ad", "--json")).json == refused.json(), "the broker's own words"
    waiter = subprocess.Popen([HAPAX, "key", "result", "h7", "k", "--wait", "30s"], stdout=subprocess.PIPE, env=env())
    ok(hapax("ack", take("h7")["token"], "finally"))
    out, _ = waiter.communicate(timeout=30)
    assert waiter.returncode == 0 and out == b"finally"


@test
def a_message_that_cannot_be_printed_is_neither_acked_nor_kept():
    for n, receive in enumerate((unheard, lambda *args: unheard(*args, shell=">&-"), unread)):
        for flags in ([], ["--json"], ["--ack"], ["--ack", "--json"], ["--explicit"], ["--ack", "--count", "5"], ["--max", "9", "--json"]):
            q = "unprinted-%d%s" % (n, "".join(flags))
            send(q, "k")
            exits(1, receive("receive", q, *flags), "cannot write to standard output", "1 message could not be printed and went back")
            again = take(q)
            assert (again["key"], again["attempt"]) == ("k", 1), (n, flags, again)


@test
def of_many_messages_those_that_were_printed_stay_taken_and_the_rest_goes_back():
    for key in ("k1", "k2", "k3"):
        send("half", key, "x" * 6000)
    out = os.path.join(WORK, "half")
    with open(out, "wb") as file:  # room for the first two
        p = subprocess.run(["bash", "-c", 'ulimit -f 13; trap "" XFSZ; exec "$@"', "bash", HAPAX, "receive", "half", "--max", "3", "--ack"], stdout=file,
                           stderr=subprocess.PIPE, env=env(), timeout=60, check=False)
    exits(1, Ran(p.returncode, b"", p.stderr.decode()), "File too large", "1 message could not be printed")
    assert open(out, "rb").read().count(b"x" * 6000) == 2
    assert [state_of("half", key) for key in ("k1", "k2", "k3")] == ["done", "done", "pending"]


@test
def an_unprinted_message_that_cannot_be_given_back_is_named():
    ok(hapax("queues", "set", "once", "semantics=at_most_once"))
    send("once", "k")
    exits(1, unheard("receive", "once"), "neither printed nor given back", "the first is k")


@test
def output_that_cannot_be_written_is_said_and_exits_3():
    q = "unheard"
    send(q, "done")
    ok(hapax("ack", take(q)["token"], "result"))
    for args in (["send", q, "x", "--key", "k", "--json"], ["send", q, "x", "--key", "k2"], ["stats"], ["stats", "--json"], ["audit"], ["queues", "list"],
                 ["queues", "list", "--json"], ["queues", "show", q], ["key", "show", q, "k"], ["key", "result", q, "done"],
                 ["key", "result", q, "done", "--json"], ["messages", "list", q], ["queues", "pause", q], ["version"], ["help"], ["--help"], ["key", "--help"],
                 ["top"], ["alerts", "--json"], ["consumers"], ["token", "new", "me", "--allow", "observe"]):
        for shell, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
            ran = unheard(*args, shell=shell)
            if not (args == ["audit"] and "none" in ran.err):  # which said all it had on standard error
                exits(3, ran, "cannot write to standard output: " + why, "is done")
            assert ran.err.count("cannot write") <= 1, ran
    assert state_of(q, "k") == "pending"
    exits(1, unheard("key", "show", q, "nobody", "--json"), "no_such_key", "cannot write")
    exits(0, unheard("queues", "resume", q, shell="2>&- <&-"))


@test
def a_closed_stream_is_never_taken_for_the_connection_to_the_broker():
    for shell in ("<&- >&- 2>&-", "<&-", "2>&-", "<&- 2>&-"):
        ran = unheard("receive", "shut", "--exec", "cat", "--json", shell=shell)
        assert ran.code == 1, (shell, ran)
        send("shut", "k" + shell)
        ran = unheard("receive", "shut", "--exec", "cat", "--json", shell=shell)
        assert ran.code == (3 if ">&- 2" in shell else 0), (shell, ran)
        assert state_of("shut", "k" + shell) == "done"


# ---- looking

@test
def key_show_tells_why_an_event_was_ignored():
    send("l1", "k", "same")
    for i in range(3):
        send("l1", "k", "same", "--request-id", "retry-%d" % i)
    ran = ok(hapax("key", "show", "l1", "k"))
    assert "3 repeats since" in ran.text and "arrived: expected replay, request retry-2" in ran.text, ran
    assert ok(hapax("key", "show", "l1", "k", "--json")).json["duplicates"] == 3


@test
def a_list_of_queues_that_goes_on_says_so():
    for name in ("many1", "many2", "many3"):
        ok(hapax("queues", "set", name, "lease=30s"))
    cursor = re.search(r"there are more: --cursor (\S+)", ok(hapax("queues", "list", "--limit", "2")).err)
    assert cursor
    names = [q["name"] for q in ok(hapax("queues", "list", "--limit", "2", "--json")).json["items"]]
    rest = ok(hapax("queues", "list", "--limit", "1000", "--cursor", cursor.group(1), "--json")).json
    assert len(names) == 2 and rest["next_cursor"] is None, rest
    names += [q["name"] for q in rest["items"]]
    assert len(set(names)) == len(names) and {"many1", "many2", "many3"} <= set(names), names


@test
def queues_are_listed_shown_paused_and_resumed():
    send("l2", "k")
    names = [q["name"] for q in ok(hapax("queues", "list", "--json")).json["items"]]
    assert "l2" in names, names
    assert re.search(r"^l2\s+1\s+0\b", ok(hapax("queues", "list")).text, re.M)
    assert ok(hapax("queues", "show", "l2", "--json")).json["pending"] == 1
    assert "pending" in ok(hapax("queues", "show", "l2")).text
    ok(hapax("queues", "pause", "l2"))
    assert re.search(r"^l2\s+1\s.*\bpaused\b", ok(hapax("queues", "list")).text, re.M)
    assert ok(hapax("queues", "show", "l2", "--json")).json["paused"] is True
    exits(1, hapax("receive", "l2"), "nothing received")
    ok(hapax("queues", "resume", "l2"))
    ok(hapax("ack", take("l2")["token"]))
    exits(1, hapax("queues", "show", "l2-none"), "no_such_queue")


@test
def messages_are_listed_by_state_shown_and_cancelled():
    for i in range(3):
        send("l3", "k%d" % i, "payload %d" % i)
    first = ok(hapax("messages", "list", "l3", "--limit", "2", "--json")).json
    assert len(first["items"]) == 2 and first["next_cursor"], first
    rest = ok(hapax("messages", "list", "l3", "--cursor", first["next_cursor"], "--json")).json
    keys = [m["key"] for m in first["items"] + rest["items"]]
    assert sorted(keys) == ["k0", "k1", "k2"], keys
    table = ok(hapax("messages", "list", "l3"))
    assert "payload 1" in table.text and table.text.splitlines()[0].startswith("key"), table
    exits(0, hapax("messages", "list", "l3", "--limit", "1"), "--cursor")
    ident = first["items"][0]["id"]
    assert ok(hapax("messages", "show", "l3", ident, "--json")).json["id"] == ident
    ok(hapax("messages", "cancel", "l3", ident, "--by", "me", "--note", "a test"))
    assert state_of("l3", first["items"][0]["key"]) == "cancelled"
    assert ok(hapax("messages", "list", "l3", "--state", "dead", "--json")).json["items"] == []
    exits(1, hapax("messages", "cancel", "l3", "0" * 32), "no_such_message")


@test
def a_key_where_an_id_is_wanted_is_told_so_and_how_to_find_the_id():
    send("l4", "order-17")
    for words in (["messages", "show"], ["messages", "cancel"], ["held", "show"], ["held", "resolve", "--as", "retry"]):
        for key in ("order-17", "a" * 31, "a" * 33, "g" * 32):
            exits(2, hapax(*words[:2], "l4", key, *words[2:]), "no id", "32 hex digits", "`hapax key show l4 %s`" % key)
    ident = ok(hapax("key", "show", "l4", "order-17", "--json")).json["id"]
    assert ident in ok(hapax("key", "show", "l4", "order-17")).text
    ok(hapax("messages", "show", "l4", ident.upper()))
    assert state_of("l4", "order-17") == "pending"
    ok(hapax("messages", "cancel", "l4", ident))
    assert state_of("l4", "order-17") == "cancelled"


@test
def stats_are_printed_for_people_and_for_programs():
    assert ok(hapax("stats", "--json")).json["version"]
    assert re.search(r"^version\s+\S+$", ok(hapax("stats")).text, re.M)


@test
def nothing_stored_can_drive_a_terminal():
    evil = b"\x1b]0;owned\x07\x1b[2J\x9b31m\xe2\x80\xae\r\n"
    ok(hapax("send", "l4", "--key", "k\u202ex", "--attr", "a=\u202eb", stdin=evil))
    outputs = [ok(hapax("messages", "list", "l4")), ok(hapax("key", "show", "l4", "k\u202ex")),
               ok(hapax("receive", "l4"))]
    outputs.append(ok(hapax("send", "l4", "--key", "k\u202ex", stdin=evil)))
    for ran in outputs:
        both = ran.out + ran.err.encode()
        for byte in (b"\x1b", b"\x07", b"\x9b", b"\xe2\x80\xae", b"\r"):
            assert byte not in both, (byte, ran)


@test
def lines_of_a_pipe_are_sent_as_they_come_and_need_not_fit_into_memory():
    q = "piped"
    with subprocess.Popen([HAPAX, "send", q, "--batch", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env(None)) as p:
        p.stdin.write(b'{"key":"a","payload":1}\n{"key":"b","payload":2}\n{"key":"c",')
        p.stdin.flush()
        hx.until(lambda: hx.broker.get(f"/v1/queues/{q}").status == 200 and hx.broker.queue(q)["pending"] == 2, "two are there, the pipe is open")
        p.stdin.write(b'"payload":3}\n{"key":"d","payload":4}')
        p.stdin.close()
        assert p.stdout.read() == b"accepted 4, duplicate 0, refused 0\n"
        assert p.wait(60) == 0


# ---- bench and verify

@test
def bench_measures_every_mode_and_checks_every_answer():
    ran = ok(hapax("bench", "--count", "2000", "--connections", "2", "--depth", "8", "--json"))
    runs = {r["mode"]: r for r in ran.json["runs"]}
    assert sorted(runs) == ["batch", "consume", "dup", "latency", "single"], runs
    for mode, r in runs.items():
        assert r["messages"] >= 2000 and r["rate"] > 0, (mode, r)
        assert 0 < r["p50_us"] <= r["p99_us"] <= r["p999_us"], (mode, r)
    table = ok(hapax("bench", "--count", "100", "--mode", "single"))
    assert "messages/s" in table.text and "single" in table.text, table


@test
def verify_reads_a_data_directory_and_names_what_is_wrong():
    data = os.path.join(WORK, "verify-data")
    broker = hx.Broker(data)
    ok(hapax("send", "q", "x", "--key", "the-one-key", url=broker.url))
    ok(hapax("send", "q", "x", "--key", "another", url=broker.url))
    assert broker.stop() == 0
    ran = ok(hapax("verify", data))
    assert "nothing is damaged" in ran.text, ran
    assert ok(hapax("verify", data, "--json")).json["ok"] is True
    segment = os.path.join(data, "journal-0000000000000001.seg")
    with open(segment, "r+b") as f:
        text = f.read()
        at = text.find(b"the-one-key")
        assert at > 0, segment
        f.seek(at)
        f.write(b"THE")
    ran = exits(1, hapax("verify", data), os.path.basename(segment))
    assert "DAMAGE" in ran.text, ran
    assert exits(1, hapax("verify", data, "--json")).json["ok"] is False
    ran = exits(1, hapax("verify", os.path.join(WORK, "missing"), "--json"), "No such file")
    assert ran.json["ok"] is False and "No such file" in ran.json["error"], ran
    os.remove(os.path.join(data, "meta"))
    exits(1, hapax("verify", data), "meta is missing, but other files of a journal are there")
    empty = os.path.join(WORK, "empty")
    os.mkdir(empty)
    exits(1, hapax("verify", empty), "holds no journal")


@test
def verify_does_not_call_a_directory_damaged_that_a_broker_is_writing_to():
    data = os.path.join(WORK, "verify-running")
    broker = hx.Broker(data)
    ran = exits(1, hapax("verify", data), f"in use by process {broker.process.pid}")
    assert "DAMAGE" not in ran.text and "stop it first" in ran.err, ran
    ran = exits(1, hapax("verify", data, "--json"))
    assert ran.json["ok"] is False and "in use by process" in ran.json["error"], ran
    assert broker.stop() == 0
    ok(hapax("verify", data))


atexit.register(shutil.rmtree, WORK, ignore_errors=True)
hx.main(threads=1)
