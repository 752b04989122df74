#!/usr/bin/env python3
"""A push meets every answer there is, and every way to give none. What the user sees of each is the contract's: a refusal before the first
byte is transient; whatever was cut, hung or nonsense after it is unknown, and then never sent twice where nobody deduplicates.

Each case has a queue and a receiver of its own, twice: KEY, where the receiver is said to deduplicate, and NONE, where it is not. One broker serves
them all. The receivers are apart because connections are kept: what one case does to its connection is not another's business."""
import contextlib
import itertools
import json
import sys
import threading
import time

import hx
from hx import members, same, test, until
from receiver import CLOSE, HANG, RESET, Answer, Receiver, chunked, informational, refused_port, silent_port

HANG_S, PATIENT_S = 2, 30  # the timeout of a call: where it is waited for, and where it must not strike
KEEP = 4096
CONCURRENCY = {"idle_none": 2, "crowd_key": 200}

TRANSIENT, UNKNOWN, REJECTED, POISON, TAKEN = "transient", "unknown", "rejected", "poison", None


def expected(status, keyed):
    """§9's table."""
    if 200 <= status < 300:
        return TAKEN
    if status in (402, 422):
        return REJECTED
    if status == 503 or status in (401, 403, 409, 425, 429):
        return TRANSIENT
    if status == 408 or status >= 500:
        return TRANSIENT if keyed else UNKNOWN
    return POISON


# ---- statuses

STATUSES = [200, 201, 202, 203, 204, 205, 206, 226, 299,
            300, 301, 302, 303, 304, 305, 307, 308, 399,
            400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 411, 412, 413, 414, 415, 416, 417, 418, 421, 422, 423, 424, 425, 426, 428, 429, 431, 451, 499,
            500, 501, 502, 503, 504, 505, 507, 508, 511, 599]

# ---- ways to give no answer; each is given once, the next try is answered

WHOLE = Answer(200, '{"id":"e"}', [("X-A", "1")]).bytes(None)
HEAD = WHOLE.index(b"\r\n\r\n") + 4
POINTS = {"before_the_reply": 0, "in_the_status_line": 5, "behind_the_status_line": WHOLE.index(b"\r\n") + 2, "in_the_head": HEAD - 6,
          "behind_the_head": HEAD, "in_the_body": len(WHOLE) - 3, "before_the_last_byte": len(WHOLE) - 1}
WAYS = {"hangs": HANG, "closes": CLOSE, "resets": RESET}
READS = {"unread": 0, "in_the_request_line": 3, "in_the_request_head": 60, "in_the_request_body": 1000}
BROKEN = {
    **{f"{way}_{point}": Answer(200, '{"id":"e"}', [("X-A", "1")], at=at, then=then)
       for (way, then), (point, at) in itertools.product(WAYS.items(), POINTS.items())},
    "promises_more_than_it_gives": Answer(200, "abc", length=100, then=CLOSE),
    "promises_more_and_hangs": Answer(200, "abc", length=100, then=HANG),
    "cuts_its_chunks": Answer(raw=chunked(b"abc", b"def", last=b""), then=CLOSE),
    "cuts_a_chunk_in_the_middle": Answer(raw=chunked(b"abc", last=b"5\r\nde"), then=CLOSE),
    "resets_in_its_chunks": Answer(raw=chunked(b"abc", last=b""), then=RESET),
    "hangs_in_its_chunks": Answer(raw=chunked(b"abc", last=b""), then=HANG),
    "says_garbage": Answer(raw=bytes(range(256)) * 4, then=CLOSE),
    "says_nothing_but_line_ends": Answer(raw=b"\r\n\r\n\r\n", then=CLOSE),
    "speaks_another_protocol": Answer(raw=b"SSH-2.0-OpenSSH_9.2p1\r\n", then=CLOSE),
    "speaks_http_0_9": Answer(raw=b"<html>fine</html>", then=CLOSE),
    "says_a_length_that_is_none": Answer(raw=b"HTTP/1.1 200 Fine\r\nContent-Length: many\r\n\r\nabc", then=CLOSE),
    "says_a_chunk_size_that_is_none": Answer(raw=b"HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n", then=CLOSE),
    "has_a_head_without_end": Answer(raw=lambda: itertools.chain([b"HTTP/1.1 200 Fine\r\n"], itertools.repeat(b"X-A: " + b"a" * 1000 + b"\r\n"))),
    "has_a_header_without_end": Answer(raw=lambda: itertools.chain([b"HTTP/1.1 200 Fine\r\nX-A: "], itertools.repeat(b"a" * 4000))),
    "is_informational_without_end": Answer(raw=lambda: itertools.repeat(informational(50))),
    **{f"answers_{status}": Answer(raw=b"HTTP/1.1 %s What\r\nContent-Length: 0\r\n\r\n" % status.encode()) for status in ("000", "099", "600", "999", "20", "2000", "abc")},
    "switches_protocols": Answer(raw=b"HTTP/1.1 101 Switching\r\nUpgrade: other\r\nConnection: Upgrade\r\n\r\n", then=CLOSE),
    "drips_too_slowly": Answer(200, "x" * 1000, drip=0.05),
}
# ---- what is odd, and an answer

ODD = {
    "says_more_than_it_promised": (Answer(200, "abcdef", length=3), "abc"),
    "ends_with_the_connection": (Answer(200, "abc", length=False, then=CLOSE), "abc"),
    "resets_after_its_reply": (Answer(200, "abc", then=RESET), "abc"),
    "closes_after_its_reply": (Answer(200, "abc", then=CLOSE), "abc"),
    "is_chunked": (Answer(raw=chunked(b"a", b"bc", last=b"0\r\nX-Trailer: 1\r\n\r\n")), "abc"),
    "informs_first": (Answer(200, "abc", before=informational(20)), "abc"),
    "drips": (Answer(200, "abc", drip=0.001), "abc"),
    "speaks_http_1_0": (Answer(raw=b"HTTP/1.0 200 Fine\r\nContent-Length: 3\r\n\r\nabc", then=CLOSE), "abc"),
    "has_no_reason": (Answer(raw=b"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc"), "abc"),
    "has_a_large_head": (Answer(200, "abc", [(f"X-{n}", "v" * 100) for n in range(100)]), "abc"),
}
# ---- where nothing is sent at all; ports are put in when there are some
UNREACHED = {"refused": "http://127.0.0.1:REFUSED/", "silent": "http://127.0.0.1:SILENT/", "unresolved": "http://nowhere.invalid/", "private": "http://127.0.0.1:SILENT/"}

LONG = Answer(200, "y" * (3 * KEEP))
ENDLESS = Answer(raw=lambda: itertools.chain([b"HTTP/1.1 200 Fine\r\n\r\n"], itertools.repeat(b"z" * 4096)))


READ = {f"{way}_{point}": Answer(read=at, then=then) for (way, then), (point, at) in itertools.product(WAYS.items(), READS.items())}


def case_of(name, keyed):
    return f"{name}{'_key' if keyed else '_none'}"


def first_answer(name):
    if name.isdigit():
        return Answer(int(name), None if int(name) in (204, 304) else f"told {name}", [("Location", "/elsewhere"), ("Content-Type", "text/plain")])
    return {"long": LONG, "endless": ENDLESS}.get(name) or BROKEN.get(name) or READ.get(name) or ODD[name][0]


def hangs(name):
    return "hangs" in name or "silent" in name or name.startswith("drips_too_slowly")


def cutting(numbers):
    """An answer, but the connection ends in any way; now and then there is none."""
    def answer(_):
        number = next(numbers)
        return Answer(at=0, then=CLOSE) if number % 5 == 0 else Answer(then=[None, CLOSE, RESET][number % 3])
    return answer


def queue(case, url, attempts=6, allow_private="true"):
    keyed = "key" if case.endswith("_key") else "none"
    more = ", circuit: {ratio: 100%, of: 10000}" if case == "crowd_key" else ""
    return (f'  {case}: {{retry: {{transient: {{attempts: {attempts}, backoff: 10ms, max: 10ms}}, unknown: {{attempts: 100}}}}, downstream: {{idempotency: {keyed}}}, '
            f'deliver: {{url: "{url}", timeout: {HANG_S if hangs(case) else PATIENT_S}s, concurrency: {CONCURRENCY.get(case, 1)}{more}, allow_private: {allow_private}, keep: {{body: {KEEP}}}}}}}\n')


class World:
    """The broker, and the receivers by case. Each gives its answer to the first try, and a plain one to every other."""

    def __init__(self):
        names = [*map(str, STATUSES), *BROKEN, *READ, *ODD, "long", "endless"]
        self.receivers = {case_of(name, keyed): Receiver(first_answer(name), always=Answer(200, "at last"), narrow=name in READ)
                          for name, keyed in itertools.product(names, (True, False))}
        for case in ("twice_none", "unasked_none", "idle_none"):
            self.receivers[case] = Receiver()
        self.receivers["crowd_key"] = Receiver(always=cutting(itertools.count()))
        config = "queues:\n" + "".join(queue(case, receiver.url) for case, receiver in self.receivers.items())
        self.ports = contextlib.ExitStack()
        refused, silent = self.ports.enter_context(refused_port()), self.ports.enter_context(silent_port())
        for (name, url), keyed in itertools.product(UNREACHED.items(), (True, False)):
            url = url.replace("REFUSED", str(refused)).replace("SILENT", str(silent))
            config += queue(case_of(name, keyed), url, attempts=2, allow_private="false" if name == "private" else "true")
        self.broker = hx.Broker(config=config)

    def close(self):
        code = self.broker.stop()
        self.broker.remove()
        self.ports.close()
        for receiver in self.receivers.values():
            receiver.close()
        return code


world = None


def push(case, payload=None, key="k"):
    """Sends one message and waits until it comes to rest; its key as the user sees it."""
    payload = payload or json.dumps({"case": case})
    same(world.broker.event(case, payload, key).status, 202)
    return until(lambda: rested(case, key), f"{case} comes to rest")


def rested(case, key):
    time.sleep(0.05)  # many ask at once
    key = world.broker.key(case, key)
    return key if key["state"] not in ("pending", "leased") else None


def result_of(case, key="k"):
    return world.broker.get(f"/v1/queues/{case}/keys/{key}/result")


def ends(key, case, state, first, tries):
    """It ended so; its first try was of this class (TAKEN: it was the outcome), and so many were made, all under one id."""
    same(key["state"], state, f"{case}: {key}")
    attempts, requests = key["attempts"], world.receivers[case].requests
    if hangs(case):  # the time it has is short: on a busy machine it may be over before anything was sent
        attempts = [a for a in attempts if a.get("class") != TRANSIENT]
    if hangs(case) and state == "done":  # on a busy machine the next try may have run out of time, too
        same(len(attempts), len(requests), f"{case}: {key} {requests}")
        assert len(attempts) >= tries, attempts
    else:
        same((len(attempts), len(requests)), (tries, tries), f"{case}: {key} {requests}")
    same(attempts[0].get("class"), first, f"{case}: {attempts}")
    if first in (TRANSIENT, UNKNOWN, POISON):
        assert attempts[0]["reason"], attempts
    assert {r.id for r in requests if r.id} <= {key["id"]}, (case, requests)


def status_case(status, keyed):
    case, first = case_of(str(status), keyed), expected(status, keyed)
    key = push(case)
    if first is TAKEN or first is REJECTED:
        ends(key, case, "rejected" if first else "done", first, 1)
        same(result_of(case).body, b"" if status == 204 else f"told {status}".encode())
        members(key["http"], status=status)
        same(key["http"]["headers"]["location"], "/elsewhere")
    elif first is POISON:
        ends(key, case, "dead", POISON, 1)
    elif first is UNKNOWN:
        ends(key, case, "held", UNKNOWN, 1)
    else:
        ends(key, case, "done", TRANSIENT, 2)
        same(result_of(case).body, b"at last")
    if first:
        assert str(status) in key["attempts"][0]["reason"], key["attempts"]


def broken_case(name, keyed):
    case = case_of(name, keyed)
    key = push(case, json.dumps({"x": "x" * (900000 if name == "hangs_unread" else 4000)}) if name in READ else None)
    if keyed:
        ends(key, case, "done", UNKNOWN, 2)
        same(result_of(case).body, b"at last")
    else:
        ends(key, case, "held", UNKNOWN, 1)


def unreached_case(name, keyed):
    case = case_of(name, keyed)
    key = push(case)
    same((key["state"], [(a["ended"], a["class"]) for a in key["attempts"]]), ("dead", [("nacked", TRANSIENT)] * 2), f"{case}: {key}")
    assert key["attempts"][0]["reason"], key


def odd_case(name, keyed):
    case = case_of(name, keyed)
    ends(push(case), case, "done", TAKEN, 1)
    same(result_of(case).body, ODD[name][1].encode())


def add(function, title, *args):
    def body():
        for keyed in (True, False):
            function(*args, keyed)
    body.__name__ = title
    test(body)


for one in STATUSES:
    add(status_case, f"a_{one}_is_told_as_what_it_is", one)
for one in [*BROKEN, *READ]:
    add(broken_case, f"a_receiver_that_{one}_leaves_an_unknown_outcome", one)
for one in ODD:
    add(odd_case, f"a_receiver_that_{one}_has_answered", one)


for one in UNREACHED:
    add(unreached_case, f"what_is_{one}_has_not_been_sent_and_is_tried_again", one)


@test
def of_a_long_answer_the_beginning_is_kept_and_said_to_be_one():
    for name, letter in (("long", b"y"), ("endless", b"z")):
        case = case_of(name, True)
        key = push(case)
        ends(key, case, "done", TAKEN, 1)
        same(result_of(case).body, letter * KEEP)
        same(key["truncated"], True)


def until_met(scene):
    """A connection that was idle for a second is not used again: on a busy machine the scene takes another try to come about."""
    for number in range(10):
        if scene(f"-{number}"):
            return
    raise AssertionError("no connection was used twice")


@test
def a_request_on_a_connection_that_is_closed_under_it_is_seen_once():
    receiver = world.receivers["twice_none"]

    def scene(n):
        receiver.then(Answer(), Answer(at=0, then=CLOSE, effect=True))
        same(world.broker.event("twice_none", "{}", "first" + n).status, 202)
        second = push("twice_none", key="second" + n)
        same((second["state"], second["attempts"][0]["class"]), ("held", UNKNOWN))
        same([r.key for r in receiver.requests[-2:]], ["first" + n, "second" + n])
        assert set(receiver.effects.values()) == {1} and len(receiver.effects) == len(receiver.requests), receiver.requests
        if receiver.requests[-1].nth == 1:
            return False
        assert "closed before anything was answered" in second["reason"], second
        return True
    until_met(scene)


@test
def nor_is_it_sent_again_on_another_connection_that_is_idle():
    receiver = world.receivers["idle_none"]

    def scene(n):
        both = threading.Barrier(2)
        receiver.then(*[Answer(acted=lambda _: both.wait(hx.TIMEOUT))] * 2, Answer(at=0, then=CLOSE, effect=True))
        pushed = [hx.Later(push, "idle_none", None, key + n) for key in ("first", "second")]
        same([p.value()["state"] for p in pushed], ["done", "done"])
        third = push("idle_none", key="third" + n)
        same((third["state"], third["attempts"][0]["class"]), ("held", UNKNOWN))
        assert set(receiver.effects.values()) == {1} and len(receiver.effects) == len(receiver.requests), receiver.requests
        return receiver.requests[-1].nth > 1
    until_met(scene)


@test
def connections_that_end_by_the_hundred_at_once_are_no_trouble():
    keys = [f"k{n}" for n in range(1000)]
    told = world.broker.batch("crowd_key", [{"key": key, "payload": {}} for key in keys]).lines()
    same({line["status"] for line in told}, {202})
    until(lambda: crowd_rests(world.broker.queue("crowd_key")), "all are done")
    same(world.broker.queue("crowd_key")["counters"]["acked"], len(keys))
    assert set(world.receivers["crowd_key"].effects) == set(keys)


def crowd_rests(queue):
    return queue["pending"] + queue["leased"] == 0


@test
def what_is_said_before_it_is_asked_answers_nothing():
    receiver = world.receivers["unasked_none"]
    receiver.then(Answer(raw=Answer(200, "abc").bytes(None) + Answer(200, "unasked").bytes(None)), Answer(422, "no"))
    push("unasked_none", key="first")
    same(result_of("unasked_none", "first").body, b"abc")
    same(push("unasked_none", key="second")["state"], "rejected")
    same(len(receiver.requests), 2)


world = World()
try:
    hx.main(shared=False, threads=48)
finally:
    if world.close():
        sys.exit("the broker did not end cleanly")
