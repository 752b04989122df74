#!/usr/bin/env python3
"""Settling: the order of checks, every verb and its repetition, tokens of all sorts, retries by class, steps, results."""
import base64
import json
import string
import time

import hx
from hx import members, problem, problem_members, same, stamp, test


def leased(queue, key="k", **params):
    hx.broker.put(queue, key)
    return hx.broker.one(queue, **params)


def nack(message, kind, **more):
    return hx.broker.ok("nack", message, **{"class": kind}, **more)


def superseded(queue, key="k"):
    """An expired lease and the newer one of the same message."""
    old = leased(queue, key, lease="1s")
    return old, hx.broker.one(queue)


def wait_until(queue, key, state):
    """For changes nobody announces, such as a lease that runs out on a paused queue."""
    deadline = time.monotonic() + hx.TIMEOUT
    while hx.broker.key(queue, key)["state"] != state:
        assert time.monotonic() < deadline, f"never {state}"
        time.sleep(0.02)


# ---- ack

@test
def ack_settles_as_done(q):
    m = leased(q)
    got = hx.broker.ok("ack", m)
    members(got, state="done", id=m["id"], key="k")
    assert "duplicate" not in got or got["duplicate"] is False, got
    members(hx.broker.key(q, "k"), state="done")
    same(hx.broker.receive(q), [])


@test
def the_same_ack_again_gets_the_stored_answer_and_the_first_result_stands(q):
    m = leased(q)
    hx.broker.ok("ack", m, result="first")
    for result in ("first", "second"):
        got = hx.broker.ok("ack", m, result=result)
        members(got, state="done", id=m["id"], key="k", duplicate=True)
    same(hx.broker.key(q, "k")["result"]["body"], "first")


@test
def another_verb_after_the_ack_is_409_settled_with_the_state(q):
    m = leased(q)
    hx.broker.ok("ack", m)
    for verb, more in (("nack", {"class": "transient"}), ("release", {}), ("extend", {"lease": "5s"}), ("start", {}),
                       ("step", {"name": "s"})):
        members(problem(hx.broker.settle(verb, m, **more), 409, "settled"), state="done")


@test
def a_stale_token_is_fenced_whatever_it_asks(q):
    old, new = superseded(q)
    for verb, more in (("ack", {}), ("nack", {"class": "transient"}), ("release", {}), ("extend", {"lease": "5s"}), ("start", {}),
                       ("step", {"name": "s"})):
        problem(hx.broker.settle(verb, old, **more), 409, "fenced")
    same(hx.broker.ok("ack", new)["state"], "done")


@test
def a_stale_token_is_fenced_even_after_the_newer_one_has_settled(q):
    # Check (b) comes before check (c).
    old, new = superseded(q)
    hx.broker.ok("ack", new)
    problem(hx.broker.settle("ack", old), 409, "fenced")


@test
def the_settling_token_keeps_its_answer_although_others_were_fenced(q):
    # Check (a) comes first.
    old, new = superseded(q)
    hx.broker.ok("ack", new, result="r")
    problem(hx.broker.settle("ack", old, result="x"), 409, "fenced")
    members(hx.broker.ok("ack", new), duplicate=True, state="done")
    same(hx.broker.key(q, "k")["result"]["body"], "r")


@test
def an_expired_lease_that_is_the_newest_still_settles_from_pending(q):
    m = leased(q, lease="1s")
    hx.broker.post(f"/v1/queues/{q}/pause")  # nobody else gets it
    wait_until(q, "k", "pending")
    members(hx.broker.ok("ack", m, result="late"), state="done")
    same(hx.broker.send(q, "k").json()["result"]["body"], "late")


@test
def an_expired_lease_that_is_the_newest_still_settles_from_dead(q):
    hx.broker.put(q, "k")
    for _ in range(3):
        m = hx.broker.one(q, lease="1s")
    wait_until(q, "k", "dead")
    members(hx.broker.ok("ack", m, result="late"), state="done")
    same(hx.broker.queue(q)["dead"], 0)


@test
def effect_ids_are_kept_even_from_refused_acks(q):
    old, new = superseded(q)
    hx.broker.ok("ack", new, effect_id="charge-2")
    problem(hx.broker.settle("ack", old, effect_id="charge-1"), 409, "fenced")
    hx.broker.ok("ack", new, effect_id="charge-3")  # a duplicate
    same(sorted(hx.broker.key(q, "k")["effect_ids"]), ["charge-1", "charge-2", "charge-3"])


@test
def an_effect_id_from_a_fenced_ack_shows_while_the_newer_lease_still_works(q):
    old, new = superseded(q)
    problem(hx.broker.settle("ack", old, effect_id="charge-1"), 409, "fenced")
    same(hx.broker.key(q, "k")["effect_ids"], ["charge-1"])
    hx.broker.ok("ack", new, effect_id="charge-2")
    same(sorted(hx.broker.key(q, "k")["effect_ids"]), ["charge-1", "charge-2"])


# ---- results

@test
def a_string_result_is_raw_text_and_any_other_value_is_json(q):
    cases = [({"result": "tex\u00e9"}, "text/plain", "texé"), ({"result": {"a": [1, None]}}, "application/json", '{"a": [1, null]}'),
             ({"result": 17}, "application/json", "17"), ({"result": None}, "application/json", "null"), ({"result": True}, "application/json", "true"),
             ({"result": "<p>", "content_type": "text/html"}, "text/html", "<p>"),
             ({"result": [1], "content_type": "application/x"}, "application/x", "[1]")]
    for number, (given, content_type, body) in enumerate(cases):
        hx.broker.ok("ack", leased(q, f"k{number}"), **given)
        same(hx.broker.key(q, f"k{number}")["result"], {"content_type": content_type, "body": body, "encoding": "utf8"})


@test
def a_base64_result_is_its_bytes(q):
    blob = b"\x00\xff" * 50
    hx.broker.ok("ack", leased(q), result_base64=base64.b64encode(blob).decode(), content_type="application/pdf")
    reply = hx.broker.get(f"/v1/queues/{q}/keys/k/result")
    same((reply.status, reply.body, reply.header("Content-Type"), reply.header("Hapax-State")), (200, blob, "application/pdf", "done"))


@test
def bad_results_are_refused_and_the_lease_lives_on(q):
    m = leased(q)
    problem(hx.broker.settle("ack", m, result="a", result_base64="YQ=="), 400, "param_invalid")
    problem(hx.broker.settle("ack", m, result_base64="a"), 400, "param_invalid")
    problem(hx.broker.settle("ack", m, result="a", content_type="a\nb"), 400, "param_invalid")
    problem(hx.broker.settle("ack", m, effect_id="a\u0000b"), 400, "param_invalid")
    problem(hx.broker.settle("ack", m, result="r" * ((1 << 20) + 1)), 413, "too_large")
    same(hx.broker.key(q, "k")["state"], "leased")
    same(hx.broker.ok("ack", m, result="r" * (1 << 20))["state"], "done")
    same(len(hx.broker.get(f"/v1/queues/{q}/keys/k/result").body), 1 << 20)


# ---- nack

@test
def a_transient_failure_is_tried_again_after_a_backoff_that_doubles(q):
    m = leased(q)
    began = time.monotonic()
    with hx.bracket() as asked:
        got = nack(m, "transient", reason="timeout")
    members(got, state="pending", id=m["id"], key="k")
    asked.holds(got["not_before"], 1, 1.25)
    m = hx.broker.one(q)
    assert time.monotonic() - began >= 0.98
    members(m, attempt=2, failures=1, crashes=0, delivery="retry")
    with hx.bracket() as asked:
        got = nack(m, "transient")
    asked.holds(got["not_before"], 2, 2.5)
    first, second = hx.broker.key(q, "k")["attempts"]
    members(first, attempt=1, reason="timeout", **{"class": "transient"})
    members(second, attempt=2, **{"class": "transient"})


@test
def transient_failures_are_forgiven_more_often_than_unknown_ones(q):
    # Six in all; the backoffs up to the sixth add up to half a minute, so the core's own tests count that far.
    m = leased(q)
    for attempt in (1, 2, 3):
        members(m, attempt=attempt, failures=attempt - 1)
        same(nack(m, "transient")["state"], "pending")
        if attempt < 3:
            m = hx.broker.one(q)
    members(hx.broker.key(q, "k"), state="pending", failures=3)


@test
def unknown_outcomes_are_tried_three_times_in_all(q):
    m = leased(q)
    for attempt in (1, 2, 3):
        members(m, attempt=attempt)
        got = nack(m, "unknown", reason="no answer")
        if attempt < 3:
            same(got["state"], "pending")
            m = hx.broker.one(q)
    same(got["state"], "dead")
    view = hx.broker.key(q, "k")
    members(view, state="dead")
    assert "no answer" in view["reason"], view
    same(hx.broker.receive(q), [])


@test
def poison_is_dead_at_once(q):
    got = nack(leased(q), "poison", reason="not JSON")
    members(got, state="dead", key="k")
    members(hx.broker.key(q, "k"), state="dead", reason="not JSON")


@test
def rejected_is_an_outcome_with_its_result(q):
    m = leased(q)
    members(nack(m, "rejected", reason="declined", result="51", content_type="text/x"), state="rejected", id=m["id"], key="k")
    members(hx.broker.key(q, "k"), state="rejected", reason="declined",
            result={"content_type": "text/x", "body": "51", "encoding": "utf8"})
    reply = hx.broker.get(f"/v1/queues/{q}/keys/k/result")
    same((reply.status, reply.body, reply.header("Hapax-State")), (200, b"51", "rejected"))


@test
def a_delay_is_a_floor_under_the_backoff(q):
    for key, kind, delay, least in (("long", "transient", "10m", 600), ("short", "transient", "1ms", 1), ("number", "unknown", 600, 600)):
        m = leased(q, key)
        with hx.bracket() as asked:
            got = nack(m, kind, delay=delay)
        asked.holds(got["not_before"], least, least + 1)


@test
def absent_is_refused_where_nothing_was_to_be_reconciled(q):
    m = leased(q)
    problem(hx.broker.settle("nack", m, **{"class": "absent"}), 400, "class_invalid")
    same(hx.broker.ok("ack", m)["state"], "done")


@test
def a_nack_wants_one_of_the_five_classes(q):
    m = leased(q)
    for more in ({}, {"class": ""}, {"class": "Transient"}, {"class": "fatal"}):
        problem(hx.broker.settle("nack", m, **more), 400, "param_invalid")
    for delay in ("soon", "-1s", -1, 1.5, ""):
        problem(hx.broker.settle("nack", m, delay=delay, **{"class": "transient"}), 400, "param_invalid")
    same(hx.broker.key(q, "k")["state"], "leased")


@test
def the_same_nack_again_gets_the_stored_answer(q):
    m = leased(q)
    first = nack(m, "transient", delay="10m")
    again = nack(m, "transient", delay="10m")
    members(again, state="pending", duplicate=True)
    assert abs(stamp(again["not_before"]) - stamp(first["not_before"])) < 0.1, (first, again)
    members(hx.broker.key(q, "k"), failures=1)
    m = leased(q, "k2")
    nack(m, "rejected", result="first")
    members(nack(m, "rejected", result="second"), state="rejected", duplicate=True)
    same(hx.broker.key(q, "k2")["result"]["body"], "first")
    m = leased(q, "k3")
    nack(m, "poison")
    members(nack(m, "poison"), state="dead", duplicate=True)


@test
def a_token_dies_by_its_own_nack(q):
    m = leased(q)
    nack(m, "transient", delay="10m")
    for verb, more in (("ack", {}), ("extend", {"lease": "5s"}), ("step", {"name": "s"}), ("release", {}), ("start", {})):
        problem(hx.broker.settle(verb, m, **more), 409, "settled")


@test
def a_nacked_token_is_fenced_once_the_message_is_leased_again(q):
    old = leased(q)
    nack(old, "unknown")
    hx.broker.one(q)
    problem(hx.broker.settle("ack", old), 409, "fenced")


# ---- release, extend, start

@test
def release_twice_is_answered_twice(q):
    m = leased(q)
    hx.broker.post(f"/v1/queues/{q}/pause")
    hx.broker.ok("release", m)
    members(hx.broker.ok("release", m), state="pending", duplicate=True)
    problem(hx.broker.settle("ack", m), 409, "settled")


@test
def extend_counts_from_now(q):
    m = leased(q, lease="1s")
    with hx.bracket() as asked:
        got = hx.broker.ok("extend", m, lease="10m")
    members(got, id=m["id"], key="k", state="leased")
    asked.holds(got["lease_expires_at"], 600)
    same(hx.broker.receive(q, wait="1500ms"), [])
    same(hx.broker.ok("ack", m)["state"], "done")


@test
def extend_may_also_shorten(q):
    m = leased(q, lease="10m")
    hx.broker.ok("extend", m, lease="1s")
    members(hx.broker.one(q), attempt=2, crashes=1)


@test
def extend_revives_an_expired_lease_nobody_else_has(q):
    m = leased(q, lease="1s")
    hx.broker.post(f"/v1/queues/{q}/pause")
    wait_until(q, "k", "pending")
    members(hx.broker.ok("extend", m, lease="30s"), state="leased")
    view = hx.broker.key(q, "k")
    members(view, state="leased", crashes=0)
    same([(a["attempt"], a["fence"], a["ended"]) for a in view["attempts"]], [(1, m["fence"], None)])
    hx.broker.post(f"/v1/queues/{q}/resume")
    same(hx.broker.receive(q, wait="100ms"), [])
    same(hx.broker.ok("ack", m)["state"], "done")


@test
def extend_wants_a_lease_in_range(q):
    m = leased(q)
    for bad in ("0s", "999ms", "12h1s", "13h", "x", -5, 43201, ""):
        problem(hx.broker.settle("extend", m, lease=bad), 400, "param_invalid")
    for good in ("1s", "12h", 43200):
        hx.broker.ok("extend", m, lease=good)


@test
def start_twice_is_harmless(q):
    m = leased(q, start="explicit", lease="10s")
    for _ in range(2):
        members(hx.broker.ok("start", m), state="leased", id=m["id"], key="k")
    same(hx.broker.ok("ack", m)["state"], "done")


@test
def extending_a_reservation_does_not_start_it(q):
    m = leased(q, start="explicit", lease="10s")
    hx.broker.ok("extend", m, lease="1s")
    members(hx.broker.one(q), attempt=1, crashes=0, delivery="first")


@test
def release_after_the_lease_ran_out_takes_the_crash_back(q):
    # Silent contract: the caller vouches that nothing was done, and nobody else has it.
    m = leased(q, lease="1s")
    hx.broker.post(f"/v1/queues/{q}/pause")
    wait_until(q, "k", "pending")
    members(hx.broker.ok("release", m), state="pending")
    hx.broker.post(f"/v1/queues/{q}/resume")
    members(hx.broker.one(q), attempt=1, crashes=0)


@test
def a_late_nack_is_a_failure_and_no_crash(q):
    # One attempt counts once: its end is known after all.
    m = leased(q, lease="1s")
    hx.broker.post(f"/v1/queues/{q}/pause")
    wait_until(q, "k", "pending")
    members(nack(m, "unknown"), state="pending")
    members(hx.broker.key(q, "k"), failures=1, crashes=0)
    hx.broker.post(f"/v1/queues/{q}/resume")
    members(hx.broker.one(q), attempt=2, failures=1, crashes=0)


@test
def a_reservation_cannot_be_started_after_its_ttl(q):
    # "Not at all unless started by then", and a reservation is not started.
    hx.broker.put(q, "k", headers=[("Hapax-Ttl", "1s")])
    m = hx.broker.one(q, start="explicit", lease="30s")
    same(hx.broker.receive(q, wait="1200ms"), [])
    members(problem(hx.broker.settle("start", m), 409, "settled"), state="cancelled")
    members(hx.broker.key(q, "k"), state="cancelled")


@test
def a_failed_reservation_is_a_failed_attempt(q):
    m = leased(q, start="explicit")
    nack(m, "unknown")
    members(hx.broker.one(q), attempt=2, failures=1, delivery="retry")


# ---- steps

@test
def a_step_is_recorded_once_and_comes_back_with_the_next_delivery(q):
    m = leased(q)
    members(hx.broker.ok("step", m, name="reserve", result={"id": 7}), status="new",
            result={"content_type": "application/json", "body": '{"id": 7}', "encoding": "utf8"})
    members(hx.broker.ok("step", m, name="reserve", result={"id": 8}), status="duplicate",
            result={"content_type": "application/json", "body": '{"id": 7}', "encoding": "utf8"})
    members(hx.broker.ok("step", m, name="charge", result="ch_1"), status="new")
    hx.broker.ok("step", m, name="empty")
    hx.broker.ok("release", m)
    again = hx.broker.one(q)
    same([s["name"] for s in again["steps"]], ["reserve", "charge", "empty"])
    same(again["steps"][0]["result"], {"content_type": "application/json", "body": '{"id": 7}', "encoding": "utf8"})
    same(again["steps"][1]["result"]["body"], "ch_1")
    members(hx.broker.ok("step", again, name="charge", result="other"), status="duplicate")
    hx.broker.ok("ack", again)
    same([s["name"] for s in hx.broker.key(q, "k")["steps"]], ["reserve", "charge", "empty"])


@test
def a_step_needs_a_good_name(q):
    m = leased(q)
    for more in ({}, {"name": ""}, {"name": "a\nb"}, {"name": "n" * 256}):
        problem(hx.broker.settle("step", m, result="x", **more), 400, "param_invalid")
    members(hx.broker.ok("step", m, name="n" * 255), status="new")
    members(hx.broker.ok("step", m, name="schrïtt 1"), status="new")


@test
def steps_beyond_the_limit_are_refused_and_the_message_can_still_be_settled(q):
    m = leased(q)
    problem(hx.broker.settle("step", m, name="huge", result="r" * ((1 << 20) + 1)), 413, "too_large")
    for number in range(40):
        reply = hx.broker.settle("step", m, name=f"s{number}", result="r" * 100000)
        if reply.status != 200:
            break
    problem(reply, 413, "too_large")
    same(hx.broker.ok("ack", m)["state"], "done")


# ---- tokens

@test
def garbage_is_no_token(q):
    m = leased(q)
    token = m["token"]
    flipped = token[:10] + ("A" if token[10] != "A" else "B") + token[11:]
    bad = ["", "x", token[:-1], token + "A", token[1:], token.swapcase(), flipped, token + "=", " " + token, "é" * 20, "0" * 48,
           "A" * 10000, "\u0000"]
    for verb, more in (("ack", {}), ("nack", {"class": "transient"}), ("extend", {"lease": "5s"}), ("step", {"name": "s"}), ("start", {}),
                       ("release", {})):
        for text in bad:
            problem(hx.broker.settle(verb, text, **more), 400, "token_invalid")
        problem(hx.broker.post(f"/v1/{verb}", more), 400, "token_invalid")
    same(hx.broker.ok("ack", m)["state"], "done")


@test
def no_single_changed_character_makes_another_token(q):
    m = leased(q)
    for place in range(len(m["token"])):
        for char in string.ascii_letters[place % 26], string.digits[place % 10], "-", "_":
            if char == m["token"][place]:
                continue
            reply = hx.broker.settle("ack", m["token"][:place] + char + m["token"][place + 1:])
            assert reply.status in (400, 404), reply
    same(hx.broker.key(q, "k")["state"], "leased")


@test
def a_token_of_another_broker_is_unknown(q):
    with hx.Broker() as other:
        other.put(q, "k")
        foreign = other.one(q)
        leased(q)
        problem(hx.broker.settle("ack", foreign), 404, "no_such_message")
        same(other.ok("ack", foreign)["state"], "done")


# ---- bodies

@test
def an_array_is_answered_by_an_array_with_problems_in_their_places(q):
    a, b, c = leased(q, "a"), leased(q, "b"), leased(q, "c")
    hx.broker.ok("ack", c)
    items = [{"token": a["token"], "result": 1}, {"token": "garbage"}, {"token": b["token"]}, {}, {"token": c["token"]},
             {"token": a["token"], "result": "x", "result_base64": "YQ=="}]
    reply = hx.broker.post("/v1/ack", items)
    same(reply.status, 200)
    got = reply.json()
    same(len(got), 6)
    members(got[0], state="done", key="a")
    problem_members(got[1], 400, "token_invalid")
    members(got[2], state="done", key="b")
    problem_members(got[3], 400, "token_invalid")
    members(got[4], state="done", key="c", duplicate=True)
    problem_members(got[5], 400, "param_invalid")


@test
def an_item_of_the_wrong_kind_fails_alone_too(q):
    a, b = leased(q, "a"), leased(q, "b")
    reply = hx.broker.post("/v1/ack", [{"token": a["token"]}, 5, None, {"token": 7}, {"token": b["token"]}])
    same(reply.status, 200)
    got = reply.json()
    same([g["status"] if "status" in g else g["state"] for g in got], ["done", 400, 400, 400, "done"])


@test
def the_same_token_twice_in_an_array_settles_once(q):
    m = leased(q)
    first, second = hx.broker.post("/v1/ack", [{"token": m["token"], "result": "1"}, {"token": m["token"], "result": "2"}]).json()
    members(first, state="done")
    members(second, state="done", duplicate=True)
    same(hx.broker.key(q, "k")["result"]["body"], "1")


@test
def a_small_array_cannot_ask_for_gigabytes(q):
    done, stepped = leased(q, "done"), leased(q, "stepped")
    hx.broker.ok("ack", done, result="r" * (1 << 20))
    hx.broker.ok("step", stepped, name="s", result="r" * 1000000)
    for verb, item in (("ack", {"token": done["token"]}), ("step", {"token": stepped["token"], "name": "s"})):
        reply = hx.broker.post(f"/v1/{verb}", [item] * 200)
        same(reply.status, 200)
        assert len(reply.body) < 64 << 20, f"{len(reply.body)} bytes"
        same(len(reply.json()), 200)


@test
def an_empty_array_is_answered_by_an_empty_array(q):
    same(hx.broker.post("/v1/ack", []).json(), [])


@test
def an_array_of_every_verb_works(q):
    for verb, more in (("start", {}), ("extend", {"lease": "9s"}), ("step", {"name": "s"}), ("nack", {"class": "poison"})):
        ms = [leased(q, f"{verb}{n}") for n in range(2)]
        got = hx.broker.post(f"/v1/{verb}", [dict(more, token=m["token"]) for m in ms]).json()
        same([g["key"] for g in got], [f"{verb}0", f"{verb}1"])


@test
def bodies_that_are_no_settling_json_are_refused_whole(q):
    m = leased(q)
    token = json.dumps({"token": m["token"]}).encode()
    for body in (b"", b"nonsense", b"{", b'"text"', b"17", b"null", token + b"x", token + token, b"[" + token, b"[" + token + b",]",
                 b"[" * 70 + b"]" * 70, b'{"token":"a","token":"b"}', b"\xff", b'{"token":"\\ud800"}'):
        reply = hx.broker.call("POST", "/v1/ack", body)
        problem(reply, 400, "json_invalid")
    same(hx.broker.key(q, "k")["state"], "leased")
    problem(hx.broker.post("/v1/ack", [{"token": "x"}] * 10001), 413, "too_large")


@test
def ten_racing_acks_of_one_token_settle_once(q):
    m = leased(q)
    replies = [x.value() for x in [hx.Later(hx.broker.settle, "ack", m, result=str(n)) for n in range(10)]]
    same({r.status for r in replies}, {200})
    same(sorted(bool(r.json().get("duplicate")) for r in replies), [False] + [True] * 9)


@test
def a_long_reason_is_kept_as_far_as_it_goes(q):
    # Silent contract: losing the report of a failure because it is long would help nobody.
    nack(leased(q), "poison", reason="é" * 5000)
    reason = hx.broker.key(q, "k")["reason"]
    assert reason.startswith("é" * 100), reason


# ---- groups

def grouped(queue, *pairs):
    got = hx.broker.batch(queue, [{"key": key, "payload": "", "group": group} for key, group in pairs]).lines()
    same({g["status"] for g in got}, {202})


@test
def a_group_is_in_order_and_has_one_in_flight(q):
    grouped(q, ("a1", "a"), ("a2", "a"), ("a3", "a"))
    for key in ("a1", "a2", "a3"):
        taken = hx.broker.receive(q, max=10)
        same([m["key"] for m in taken], [key])
        same(hx.broker.receive(q, max=10), [])
        hx.broker.ok("ack", taken[0])


@test
def groups_do_not_wait_for_each_other(q):
    grouped(q, ("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"))
    hx.broker.put(q, "free")
    taken = {m["key"]: m for m in hx.broker.receive(q, max=10)}
    same(sorted(taken), ["a1", "b1", "free"])
    hx.broker.ok("ack", taken["b1"])
    same([m["key"] for m in hx.broker.receive(q, max=10)], ["b2"])


@test
def settling_the_head_wakes_a_poll_for_the_next(q):
    grouped(q, ("a1", "a"), ("a2", "a"))
    head = hx.broker.one(q)
    later = hx.Later(hx.broker.one, q)
    hx.broker.ok("ack", head)
    same(later.value()["key"], "a2")


@test
def a_retried_head_holds_back_its_group_and_no_other(q):
    grouped(q, ("a1", "a"), ("a2", "a"), ("b1", "b"))
    head = hx.broker.one(q)
    same(head["key"], "a1")
    nack(head, "unknown")
    same([m["key"] for m in hx.broker.receive(q, max=10)], ["b1"])
    members(hx.broker.one(q), key="a1", attempt=2)
    same(hx.broker.receive(q), [])


@test
def a_delayed_head_holds_back_its_group(q):
    got = hx.broker.batch(q, [{"key": "a1", "payload": "", "group": "a", "delay": "1s"}, {"key": "a2", "payload": "", "group": "a"}]).lines()
    same({g["status"] for g in got}, {202})
    same(hx.broker.receive(q, max=10), [])
    first = hx.broker.one(q, max=10)
    same(first["key"], "a1")
    hx.broker.ok("ack", first)
    same(hx.broker.one(q)["key"], "a2")


@test
def a_dead_head_blocks_its_group_until_it_is_cancelled(q):
    grouped(q, ("a1", "a"), ("a2", "a"), ("b1", "b"))
    head = hx.broker.one(q)
    nack(head, "poison")
    taken = hx.broker.receive(q, max=10)
    same([m["key"] for m in taken], ["b1"])
    same(hx.broker.post(f"/v1/queues/{q}/messages/{head['id']}/cancel").status, 200)
    same(hx.broker.one(q)["key"], "a2")


@test
def cancelling_a_leased_head_lets_the_next_go(q):
    grouped(q, ("a1", "a"), ("a2", "a"), ("a3", "a"))
    head = hx.broker.one(q)
    behind = hx.broker.key(q, "a2")
    for identity in (behind["id"], head["id"]):
        same(hx.broker.post(f"/v1/queues/{q}/messages/{identity}/cancel").status, 200)
    same(hx.broker.one(q)["key"], "a3")


@test
def a_released_head_stays_the_head(q):
    grouped(q, ("a1", "a"), ("a2", "a"))
    for _ in range(3):
        m = hx.broker.one(q, start="explicit")
        same(m["key"], "a1")
        hx.broker.ok("release", m)


@test
def an_expired_head_stays_the_head(q):
    grouped(q, ("a1", "a"), ("a2", "a"))
    hx.broker.one(q, lease="1s")
    members(hx.broker.one(q), key="a1", attempt=2)


hx.main(threads=32)
