#!/usr/bin/env python3
"""The hapax command as a person meets it: on a terminal of 80 columns. Tables fit and show the key, colour means something
and can be turned off, and nothing that was stored drives the terminal."""
import base64
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios

import hx
from hx import hapax, same, test

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What a terminal obeys instead of showing it: controls, C1 in both spellings, what reorders or hides text.
DRIVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")
EVIL = b"\x1b]0;owned\x07\x1b[2J\x9b31m\xc2\x9b31m\xe2\x80\xae evil \xe2\x81\xa6\xd8\x9c\xf3\xa0\x81\x81\r\n\xff"
EVIL_TEXT = EVIL.decode("utf-8", "ignore")
EVIL_KEY = "k\u202e\u2066\u061cx"


class Screen:
    def __init__(self, words, code, raw):
        self.words, self.code, self.raw = words, code, raw
        self.text = raw.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
        self.plain = COLOUR.sub("", self.text)

    def __repr__(self):
        return f"$ hapax {' '.join(self.words)}\nexit {self.code}\n{self.text}"


def look(*words, exits=0, columns=80, of=None, **more):
    """The command with everything at a terminal."""
    person, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {n: v for n, v in os.environ.items() if not n.startswith("HAPAX") and n not in ("NO_COLOR", "COLUMNS")}
    env.update({"HAPAX_URL": (of or hx.broker).url, "USER": "tester", "TERM": "xterm", **more})
    process = subprocess.Popen([hx.HAPAX, *words], stdin=terminal, stdout=terminal, stderr=terminal, env=env)
    os.close(terminal)
    raw = b""
    try:
        while piece := os.read(person, 65536):
            raw += piece
    except OSError:
        pass  # how a terminal says that it is over
    os.close(person)
    screen = Screen(words, process.wait(hx.TIMEOUT), raw)
    same(screen.code, exits, repr(screen))
    return screen


def fits(screen, columns=80):
    for line in screen.plain.split("\n"):
        assert len(line) <= columns, f"{len(line)} columns: {line!r}\n{screen!r}"
    return screen


def troubled(q):
    """A queue with something in every list."""
    b = hx.broker
    b.rules(q, on_conflict="hold", on_unknown="hold", fingerprint="json", keep_payload="1h",
            retry={"transient": {"attempts": 2, "backoff": "1ms", "max": "1ms"}})

    def event(n, **more):
        return b.event(q, {"payment_intent_id": f"pi_3N7x{n:04}", "amount": 5, "currency": "eur", "customer": f"cus_{n:06}", **more},
                       f"capture:pi_3N7x{n:04}")
    event(1)
    b.ok("ack", b.one(q, consumer="worker-1"), result={"tx": 1}, effect_id="tx-1")
    event(2)
    b.ok("nack", b.one(q), **{"class": "poison"}, reason="account closed by the bank on 2026-01-03, code 4711, branch 12")
    event(3)
    b.ok("nack", b.one(q), **{"class": "unknown"}, reason="connection lost")
    event(4)
    event(4, amount=6, currency="usd")
    b.one(q, consumer="worker-host-17:4242", lease="1h")
    event(5)
    b.post(f"/v1/queues/{q}/pause", {"by": "ada", "note": "INC-42: the gateway is down and nobody knows why, so nothing is handed out"})
    b.post(f"/v1/queues/{q}/resume", {"by": "ada"})


# ---- tables

@test
def every_table_fits_80_columns_and_names_the_key(q):
    troubled(q)
    troubled(q + "-redriven")
    hapax("dead", "redrive", q + "-redriven", "--rate", "1000")
    for words, key in ((["messages", "list", q], "capture:pi_3N7x0005"), (["messages", "list", q, "--state", "leased"], "capture:pi_3N7x0004"),
                       (["dead", "list", q], "capture:pi_3N7x0002"), (["held", "list", q], "capture:pi_3N7x0003"),
                       (["key", "show", q, "capture:pi_3N7x0001"], "capture:pi_3N7x0001"), (["queues", "list"], q),
                       (["audit", "--queue", q], "resume"), (["tasks", "list"], "redrive")):
        screen = fits(look(*words))
        assert re.search(rf"(^|\s){key}(\s|$)", screen.plain, re.M), screen
        assert re.search(r"no room for: .*--wide", screen.plain.replace("\n  ", " ")) or "\u2026" not in screen.plain, screen
    assert not re.search(r"^[0-9a-f]{32}", look("messages", "list", q).plain, re.M), "the key comes first"


@test
def the_targets_fit_80_columns_and_say_why_one_is_not_called(q):
    for name, url in ((q, "https://terminal.example/slots/${container}?by=${hapax.effect_key}"), (q + "-b", "https://partner.example/events")):
        hx.broker.rules(name, deliver={"url": url})
    hx.broker.post(f"/v1/targets/{q}/pause", {"by": "ada", "note": "INC-42: the terminal books everything twice and nobody knows why, so nothing is sent"})
    screen = fits(look("push", "status", exits=1))
    assert re.search(rf"^{q}\s+paused\s+0\s", screen.plain, re.M) and "ada: INC" in screen.plain, screen
    assert screen.plain.count("\n") <= 24, screen
    one = look("push", "status", q, exits=1)
    assert "nobody knows why, so nothing is sent" in re.sub(r"\s+", " ", one.plain) and one.plain.count("\n") <= 24, one


@test
def what_found_no_room_is_named_and_wide_shows_it(q):
    troubled(q)
    identity = hx.broker.list(q, state="dead")[0]["id"]
    narrow, wide = look("dead", "list", q), look("dead", "list", q, "--wide")
    assert identity not in narrow.plain and re.search(r"no room for: [^(]*\bid\b", narrow.plain), narrow
    assert identity in wide.plain and "branch 12" in wide.plain and "no room" not in wide.plain, wide
    assert identity in hapax("dead", "list", q).text, "a pipe has room for everything"
    fits(look("dead", "list", q, columns=60), 60)
    fits(look("dead", "list", q, columns=200), 200)


@test
def outside_a_terminal_nothing_is_cut(q):
    b = hx.broker
    long = "the bank said no, and then it said why at length: " + "because " * 100 + "of code 4711"
    b.put(q, "short", "k", payload="p" * 5000 + " the end")
    for key in ("short", "k"):
        b.ok("nack", b.one(q), **{"class": "poison"}, reason="no" if key == "short" else long)
    b.post(f"/v1/queues/{q}/pause", {"by": "ada", "note": long[:300]})
    for words, whole in ((["dead", "list", q], (long, "p" * 5000 + " the end")), (["dead", "list", q, "--wide"], (long,)),
                         (["audit", "--queue", q], (long[:300],)), (["key", "show", q, "k"], (long,))):
        table = hapax(*words).text
        assert "\u2026" not in table and all(text in table for text in whole), table
    lines = hapax("dead", "list", q).text.splitlines()
    same(len(lines), 3)
    assert any(re.match(r"short .* no {2,70}\d", line) for line in lines), "a long cell does not pad the others: %r" % lines
    fits(look("dead", "list", q))


@test
def a_long_key_is_shown_whole_on_a_line_of_its_own(q):
    key = "order:" + "0123456789" * 6
    hx.broker.put(q, key)
    hx.broker.fail(q, "poison", reason="no such account")
    screen = fits(look("dead", "list", q))
    assert re.search(rf"^{key}\n  poison +\w+ +no such account", screen.plain, re.M), screen
    cell = look("messages", "list", q, "--state", "dead", columns=40)
    assert key in cell.plain.replace("\n", ""), "whole, though it wraps"
    wide = "\u6ce8\u6587" * 10 + "!"
    hx.broker.put(q + "-w", '%"' + "".join(f"%{byte:02x}" for byte in wide.encode()) + '"')
    assert wide in look("messages", "list", q + "-w").plain


@test
def a_message_without_a_key_is_named_by_its_id(q):
    hx.broker.rules(q, semantics="at_least_once")
    identity = hx.broker.send(q, None, "x").json()["id"]
    assert re.search(rf"^{identity}\b", fits(look("messages", "list", q)).plain, re.M)


@test
def leased_lists_tell_who_has_it_and_for_how_long(q):
    troubled(q)
    screen = look("messages", "list", q, "--state", "leased")
    assert re.search(r"^key +age +consumer +leased for", screen.plain, re.M), screen
    assert re.search(r"^capture:pi_3N7x0004 +\d+m?s +worker-host-17:4242 +\d+m?s", screen.plain, re.M), screen


@test
def a_window_without_end_is_called_forever(q):
    hx.broker.rules(q, window="forever")
    page = look("queues", "show", q).plain
    assert re.search(r"^window +forever$", page, re.M) and not re.search(r"window +-", page), page


@test
def a_queue_says_how_many_of_it_are_dead(q):
    troubled(q)
    assert re.search(r"^dead +1$", hapax("queues", "show", q).text, re.M)


@test
def the_page_of_a_key_fits_the_screen(q):
    b = hx.broker
    b.put(q, "order-1")
    hapax("receive", q, "--exec", "wc -c; echo bytes")
    b.send(q, "order-1")
    page = fits(look("key", "show", q, "order-1"))
    assert page.plain.count("\n") < 24, page
    assert re.search(r"^attempt +1$", page.plain, re.M) and re.search(r"^duplicates +1$", page.plain, re.M), page
    assert not re.search(r"^.* {2,}(0|none|utf8)$|^effect key", page.plain, re.M), page
    same(b.key(q, "order-1")["generation"], 0, "JSON has every member")


@test
def a_line_feed_looks_like_one_where_a_line_is_all_there_is(q):
    b = hx.broker
    b.put(q, "k", payload="one\n")
    assert re.search(r" one↵( |$)", look("messages", "list", q).plain, re.M)
    hapax("receive", q, "--exec", "echo 1; echo 2")
    assert re.search(r"^result body +1↵2↵$", look("key", "show", q, "k").plain, re.M)
    same(hapax("key", "show", q, "k", "--json").json["result"]["body"], "1\n2\n")
    same(hapax("key", "result", q, "k").text, "1\n2\n")


@test
def an_explanation_is_wrapped_at_a_terminal_and_whole_in_a_pipe(q):
    hx.broker.rules(q, **{"class": "money"}, reconcile={"url": "https://bank.example/payments?key=${hapax.effect_key}", "exists": "items[0].id"})
    screen, piped = fits(look("queues", "explain", q)), hapax("queues", "explain", q).text
    same(screen.plain.split(), piped.split())
    assert max(map(len, piped.split("\n"))) > 80, piped
    for line in screen.plain.split("\n"):
        assert re.match(r"|\S|  \S|    \S", line) and not line.endswith(" "), repr(line)


# ---- one line for one deed, and why nothing came

@test
def pausing_and_setting_print_one_line(q):
    hx.broker.put(q, "k")
    for words, said in ((["queues", "pause", q], "is paused: 1 pending"), (["queues", "resume", q], "hands out"),
                        (["queues", "set", q, "window=2h"], "queues show"), (["key", "forget", q, "k", "--yes"], "forgotten"),
                        (["queues", "delete", q, "--yes"], "forgotten")):
        ran = hapax(*words)
        same((ran.text.count("\n"), ran.err), (1, ""), repr(ran))
        assert said in ran.text, ran
        fits(look(*words, exits=1 if words[1] in ("forget", "delete") else 0))
    same(json.loads(hapax("queues", "pause", q, "--json").text)["paused"], True)


@test
def a_receive_of_nothing_says_why(q):
    b = hx.broker
    assert "nothing received" in hapax("receive", q + "-none", exits=1).err
    b.put(q, "k")
    b.ok("ack", b.one(q))
    assert f"{q} is empty" in hapax("receive", q, exits=1).err
    b.put(q, "k2", headers=[("Hapax-Delay", "1h")])
    assert "1 delayed" in hapax("receive", q, exits=1).err
    b.put(q, "k3")
    b.post(f"/v1/queues/{q}/pause")
    for flags in ([], ["--exec", "true"]):
        ran = hapax("receive", q, *flags, exits=1)
        assert "is paused" in ran.err and "queues resume" in ran.err, ran
    process = hx.start_hapax("receive", q, "--forever", "--exec", "true")
    line = process.stderr.readline().decode()
    process.terminate()
    process.communicate()
    assert "is paused" in line, line


@test
def a_conflict_names_what_changed(q):
    b = hx.broker
    b.event(q, {"amount": 5, "currency": "eur", "id": 1}, "k")
    other = json.dumps({"amount": 6, "currency": "usd", "id": 1})
    assert "changed: amount, currency" in hapax("send", q, other, "--key", "k", exits=1).err
    line = json.dumps({"key": "k", "payload": json.loads(other)}).encode()
    assert "line 1: key_reused" in hapax("send", q, "--batch", "-", stdin=line, exits=1).err
    assert "changed: amount, currency" in hapax("send", q, "--batch", "-", stdin=line, exits=1).err
    assert "changed: amount, currency" in hapax("replay", q, "--file", "-", stdin=line, exits=1).err
    troubled(q + "-held")
    assert re.search(r"conflict +amount, currency", hapax("held", "list", q + "-held").text)


# ---- help and errors

@test
def a_family_alone_names_its_verbs():
    for family, verbs in (("dead", ("list", "redrive")), ("held", ("list", "show", "resolve")), ("queues", ("list", "purge")),
                          ("key", ("show", "forget")), ("tasks", ("cancel",)), ("messages", ("cancel",)), ("gate", ("install",))):
        screen = fits(look(family, exits=2))
        for verb in verbs:
            assert re.search(rf"hapax {family} {verb}\b", screen.plain), screen
        assert "Did you mean" not in screen.plain, screen
    assert 'Did you mean "dead list"' in look("dead", "lst", exits=2).plain


@test
def every_help_fits_80_columns():
    overview = fits(look("help"))
    assert overview.plain.count("\n") <= 40, "no more than a screen and a half"
    with open(os.path.join(hx.ROOT, "src", "cli", "verbs.def"), encoding="utf-8") as file:
        verbs = re.findall(r'^VERB\(\w+, "([^"]+)"', file.read(), re.M)
    assert len(verbs) > 40
    for verb in verbs:
        page = fits(look("help", *verb.split()))
        same(hapax("help", *verb.split()).text, page.plain, "the same in a pipe")


@test
def errors_wrap_at_words(q):
    for words, code in ((["queues", "purge", q, "--state", "all"], 2), (["tasks", "show", "1"], 1), (["messages", "cancel", q, "0" * 32], 1),
                        (["send", q, "x", "--key", "k\ttab"], 1), (["stats", "--url", "http://127.0.0.1:1"], 3)):
        screen = fits(look(*words, exits=code))
        assert screen.plain.startswith("hapax: "), screen


# ---- colour

@test
def colour_is_for_terminals_and_can_be_turned_off(q):
    troubled(q)
    for words in (["queues", "list"], ["dead", "list", q], ["key", "show", q, "capture:pi_3N7x0002"]):
        coloured = look(*words)
        assert COLOUR.search(coloured.text), coloured
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            assert "\x1b" not in look(*words, **env).text, (words, env)
        assert COLOUR.search(look(*words, NO_COLOR="").text), "empty says nothing"
        assert "\x1b" not in hapax(*words).text
        assert "\x1b" not in look(*words, "--json").text
    assert "\x1b[31mdead" in look("key", "show", q, "capture:pi_3N7x0002").text
    assert "\x1b[31m" in look("key", "show", q, "none", exits=1).text


# ---- what was stored by others

def evil_queue(q):
    """Everything that can be stored, as bad as it can be."""
    b = hx.broker
    b.rules(q, keep_payload="1h", on_unknown="hold")
    key = '%"' + "".join(f"%{byte:02x}" for byte in EVIL_KEY.encode()) + '"'
    b.send(q, key, EVIL, [("Hapax-Attr-A", "\u202eb".encode()), ("Content-Type", "text/plain")])
    m = b.one(q, consumer=EVIL_KEY)
    same(b.settle("step", m, name="s\u202e", result=EVIL_TEXT).status, 200)
    b.ok("nack", m, **{"class": "unknown"}, reason=EVIL_TEXT)


@test
def nothing_stored_reaches_a_terminal_as_a_command(q):
    b = hx.broker
    evil_queue(q)
    shows = [["key", "show", q, EVIL_KEY], ["held", "list", q], ["held", "list", q, "--wide"], ["messages", "list", q, "--state", "held"],
             ["audit", "--queue", q], ["queues", "list"], ["key", "try", "--queue", q, "--template", "${header.hapax-attr-a}"]]
    for words in shows:
        for flags in ([], ["--json"]):
            screen = look(*words, *flags, NO_COLOR="1")
            assert not DRIVING.search(screen.text), (DRIVING.search(screen.text), screen)
    assert not DRIVING.search(look("send", q, "another", "--key", EVIL_KEY, exits=1, NO_COLOR="1").text)
    hapax("key", "resolve", q, EVIL_KEY, "--as", "retry", "--by", "a\u202eb", "--note", "n\u2066")
    assert not DRIVING.search(look("audit", "--queue", q, NO_COLOR="1").text)
    for flags in ([], ["--json"]):
        screen = look("receive", q, "--lease", "1h", *flags, NO_COLOR="1")
        assert not DRIVING.search(screen.text), screen
        b.ok("release", re.search(r'token"?[: ]+"?([\w-]{40,})', screen.plain).group(1))
    b.ok("ack", b.one(q), result_base64=base64.b64encode(EVIL).decode(), content_type="text/plain")
    for flags in ([], ["--json"]):
        screen = look("key", "result", q, EVIL_KEY, *flags, NO_COLOR="1")
        assert not DRIVING.search(screen.text) and ("evil" in screen.text or "base64" in screen.text), screen
    for flags in ([], ["--json"]):
        assert not DRIVING.search(look("send", q, "another", "--key", EVIL_KEY, *flags, exits=1, NO_COLOR="1").text)


@test
def json_on_a_terminal_is_still_the_same_json(q):
    evil_queue(q)
    at_terminal = json.loads(look("key", "show", q, EVIL_KEY, "--json").text)
    piped = json.loads(hapax("key", "show", q, EVIL_KEY, "--json").text)
    same({n: at_terminal[n] for n in ("key", "steps", "reason")}, {n: piped[n] for n in ("key", "steps", "reason")})
    same(piped["key"], EVIL_KEY)


@test
def a_pipe_gets_every_byte_as_it_is(q):
    b = hx.broker
    b.put(q, "k")
    b.ok("ack", b.one(q), result_base64=base64.b64encode(EVIL).decode(), content_type="text/plain")
    process = hx.start_hapax("key", "result", q, "k")
    same(process.communicate()[0], EVIL)


@test
def what_a_command_prints_does_not_drive_the_terminal_either(q):
    hx.broker.put(q, "k", payload=EVIL)
    screen = look("receive", q, "--exec", "cat >&2; echo; exit 65", NO_COLOR="1")
    assert not DRIVING.search(screen.text) and "evil" in screen.text, screen
    hx.broker.put(q, "k2", payload=EVIL)
    process = hx.start_hapax("receive", q, "--exec", "cat >&2; exit 65")
    assert EVIL.split(b"\r\n")[0] in process.communicate()[1]


@test
def what_an_alert_means_and_its_page_are_never_cut_off(_):
    item = {"name": "dead_letters", "queue": "payments", "state": "firing", "since": "2026-01-31T12:00:00.000Z", "count_1h": 1,
            "runbook": "docs/runbooks/dlq-filling.md", "summary": "12 (alert at 10). Messages die, and wait for somebody to look."}
    with hx.answering({"/v1/alerts": json.dumps({"items": [item], "judged": True}, separators=(",", ":"))}) as url:
        screen = fits(look("alerts", "--url", url, exits=1))
    assert "no room for" not in screen.plain, screen
    assert "dead_letters of payments: 12 (alert at 10). Messages die, and wait for somebody" in screen.plain, screen
    assert "\n  docs/runbooks/dlq-filling.md\n" in screen.plain, screen


hx.main()
