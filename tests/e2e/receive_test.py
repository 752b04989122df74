#!/usr/bin/env python3
"""Receiving: parameters, long polls, leases and reservations that run out or are given back, clients that vanish."""
import time

import hx
from hx import members, problem, same, stamp, test

FIELDS = {"id", "key", "queue", "token", "fence", "attempt", "failures", "crashes", "generation", "effect_key", "delivery",
          "attrs", "content_type", "payload", "encoding", "first_seen", "enqueued_at", "lease_expires_at", "steps"}


def poll(c, queue, query):
    """Sends a poll without waiting for its answer."""
    c.start("POST", f"/v1/queues/{queue}/receive?{query}", b"")


def messages_of(c):
    reply = c.reply()
    same(reply.status, 200)
    return reply.json()["messages"]


# ---- what is delivered

@test
def a_delivery_has_every_promised_field(q):
    with hx.bracket() as sent:
        identity = hx.broker.put(q, "k", payload="p")
    with hx.bracket() as asked:
        m = hx.broker.one(q, lease="20s", consumer="worker-1")
    same(set(m), FIELDS)
    members(m, id=identity, key="k", queue=q, attempt=1, failures=0, crashes=0, generation=0, effect_key="k", delivery="first",
            attrs={}, payload="p", encoding="utf8", steps=[])
    assert isinstance(m["token"], str) and m["token"]
    assert isinstance(m["fence"], str) and m["fence"].isdigit() and 0 < int(m["fence"]) <= 2 ** 63 - 1, m["fence"]
    for name in ("first_seen", "enqueued_at"):
        sent.holds(m[name])
    asked.holds(m["lease_expires_at"], 20)
    attempt = hx.broker.key(q, "k")["attempts"][0]
    members(attempt, attempt=1, fence=m["fence"], consumer="worker-1")


@test
def the_default_lease_is_30_seconds(q):
    hx.broker.put(q, "k")
    with hx.bracket() as asked:
        m = hx.broker.one(q)
    asked.holds(m["lease_expires_at"], 30)


@test
def messages_come_in_the_order_they_were_sent_and_only_once(q):
    hx.broker.batch(q, [{"key": f"k{n:03}", "payload": str(n)} for n in range(300)])
    got = [m["key"] for _ in range(3) for m in hx.broker.receive(q, max=100)]
    same(got, [f"k{n:03}" for n in range(300)])
    same(hx.broker.receive(q, max=100), [])


@test
def max_bounds_what_one_poll_takes(q):
    hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(1010)])
    same(len(hx.broker.receive(q)), 1)
    same(len(hx.broker.receive(q, max=7)), 7)
    same(len(hx.broker.receive(q, max=1000)), 1000)
    same(len(hx.broker.receive(q, max=1000)), 2)


@test
def fences_grow_with_every_lease_of_any_message(q):
    hx.broker.put(q, "a", "b", "c")
    fences = []
    for _ in range(3):
        taken = hx.broker.receive(q, max=3)
        fences += [int(m["fence"]) for m in taken]
        for m in taken:
            hx.broker.ok("release", m)
    same(len(fences), 9)
    same(fences, sorted(set(fences)))


# ---- parameters

@test
def parameters_out_of_range_are_refused(q):
    bad = ["max=0", "max=1001", "max=-1", "max=", "max=x", "max=1.5", "max=99999999999999999999", "max=1&max=1", "max=1&max=2",
           "wait=61s", "wait=60001ms", "wait=-1s", "wait=", "wait=soon", "wait=1s&wait=1s", "wait=99999999999999999999",
           "lease=0", "lease=0s", "lease=999ms", "lease=500ms", "lease=0.5s", "lease=43201s", "lease=12h1s", "lease=13h", "lease=x",
           "lease=", "lease=5s&lease=5s", "start=", "start=never", "start=auto&start=auto", "consumer=a&consumer=b",
           "consumer=%ff", "consumer=a%00b", "consumer=" + "c" * 129, "max=%zz"]
    for query in bad:
        problem(hx.broker.call("POST", f"/v1/queues/{q}/receive?{query}", b""), 400, "param_invalid")


@test
def parameters_at_the_ends_of_their_ranges_are_taken(q):
    hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(12)])
    good = ["max=1", "max=1000&lease=1s", "wait=0", "wait=0s", "wait=60s", "wait=60", "lease=1s", "lease=1000ms", "lease=12h", "lease=43200",
            "start=auto", "start=explicit", "consumer=", "consumer=" + "c" * 128, "consumer=%C3%A9"]
    for number, query in enumerate(good):
        hx.broker.put(q, f"more{number}")
        same(hx.broker.call("POST", f"/v1/queues/{q}/receive?{query}", b"").status, 200, query)


@test
def receive_without_a_body_or_its_length_is_enough(q):
    hx.broker.put(q, "k")
    same(hx.broker.call("POST", f"/v1/queues/{q}/receive").status, 200)


@test
def receiving_from_a_queue_that_is_not_there_leaves_nothing_behind(q):
    same(hx.broker.receive(q), [])
    same(hx.broker.receive(q, wait="100ms"), [])
    problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")
    with hx.broker.connect() as conn:
        conn.start("POST", f"/v1/queues/{q}/receive?wait=60s", b"")
        problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")
        hx.broker.put(q, "k", payload="the first")
        same([m["payload"] for m in conn.reply().json()["messages"]], ["the first"])


# ---- waiting

@test
def a_poll_without_a_message_is_answered_empty_after_its_wait(q):
    began = time.monotonic()
    same(hx.broker.receive(q, wait="700ms"), [])
    took = time.monotonic() - began
    assert took >= 0.65, took
    same(hx.broker.receive(q), [])


@test
def a_send_wakes_a_waiting_poll_at_once(q):
    with hx.broker.connect() as c:
        poll(c, q, "wait=60s")
        same(hx.broker.receive(q, wait="100ms"), [])  # by now the other one waits
        hx.broker.put(q, "k")
        same(messages_of(c)[0]["key"], "k")  # nobody here waits for 60 seconds


@test
def many_waiting_polls_get_one_message_each(q):
    conns = [hx.broker.connect() for _ in range(20)]
    for c in conns:
        poll(c, q, "wait=30s&max=1")
    same(hx.broker.receive(q, wait="100ms"), [])
    hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(20)])
    got = [messages_of(c) for c in conns]
    same([len(g) for g in got], [1] * 20)
    same(sorted(g[0]["key"] for g in got), sorted(f"k{n}" for n in range(20)))
    for c in conns:
        c.close()


@test
def a_poll_takes_all_that_came_in_one_turn_up_to_its_max(q):
    with hx.broker.connect() as c:
        poll(c, q, "wait=30s&max=3")
        same(hx.broker.receive(q, wait="100ms"), [])
        hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(5)])
        assert 1 <= len(messages_of(c)) <= 3
    assert hx.broker.receive(q, max=10)


@test
def the_end_of_a_delay_a_lease_or_a_pause_wakes_a_poll(q):
    hx.broker.put(q, "k", headers=[("Hapax-Delay", "300ms")])
    m = hx.broker.one(q, lease="1s")
    again = hx.broker.one(q)
    members(again, key="k", attempt=2)
    hx.broker.post(f"/v1/queues/{q}/pause")
    with hx.broker.connect() as c:
        poll(c, q, "wait=30s")
        hx.broker.ok("release", again)
        same(hx.broker.receive(q, wait="100ms"), [])
        hx.broker.post(f"/v1/queues/{q}/resume")
        same(messages_of(c)[0]["key"], "k")
    assert int(again["fence"]) > int(m["fence"])


@test
def requests_behind_a_waiting_poll_are_answered_after_it_in_order(q):
    with hx.broker.connect() as c:
        poll(c, q, "wait=400ms")
        c.start("GET", "/healthz")
        same(messages_of(c), [])
        same(c.reply().json(), {"status": "ok"})


# ---- pause

@test
def a_paused_queue_takes_messages_and_hands_none_out(q):
    same(hx.broker.post(f"/v1/queues/{q}/pause").json()["paused"], True)
    hx.broker.put(q, "k")
    same(hx.broker.receive(q, wait="300ms"), [])
    same(hx.broker.queue(q)["pending"], 1)
    same(hx.broker.post(f"/v1/queues/{q}/resume").json()["paused"], False)
    hx.broker.one(q)


@test
def pausing_does_not_touch_what_is_leased(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    hx.broker.post(f"/v1/queues/{q}/pause")
    same(hx.broker.ok("ack", m)["state"], "done")


# ---- leases that run out

@test
def a_started_lease_that_runs_out_counts_a_crash_and_not_a_failure(q):
    hx.broker.put(q, "k")
    first = hx.broker.one(q, lease="1s")
    second = hx.broker.one(q)
    members(second, key="k", attempt=2, crashes=1, failures=0, delivery="retry", effect_key="k")
    assert int(second["fence"]) > int(first["fence"])
    assert second["token"] != first["token"]
    attempts = hx.broker.key(q, "k")["attempts"]
    same([a["attempt"] for a in attempts], [1, 2])
    assert attempts[0]["ended"] and not attempts[1]["ended"], attempts


@test
def a_lease_does_not_run_out_early(q):
    hx.broker.put(q, "k")
    began = time.monotonic()
    hx.broker.one(q, lease="2s")
    hx.broker.one(q)
    assert time.monotonic() - began >= 1.9


@test
def three_crashes_make_it_dead(q):
    hx.broker.put(q, "k")
    for attempt in (1, 2, 3):
        members(hx.broker.one(q, lease="1s"), attempt=attempt, crashes=attempt - 1)
    same(hx.broker.get(f"/v1/queues/{q}/keys/k/result?wait=20s").status, 409)
    view = hx.broker.key(q, "k")
    same(view["state"], "dead")
    assert view["reason"], view
    same(hx.broker.receive(q), [])
    same(hx.broker.queue(q)["dead"], 1)


# ---- reservations

@test
def a_reservation_is_started_with_start(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q, start="explicit", lease="1s")
    got = hx.broker.ok("start", m)
    members(got, key="k", id=m["id"])
    second = hx.broker.one(q)  # the lease ran out after it was started: a crash
    members(second, attempt=2, crashes=1)


@test
def a_reservation_that_runs_out_costs_no_attempt(q):
    hx.broker.put(q, "k")
    for _ in range(4):  # more often than crashes would be forgiven
        m = hx.broker.one(q, start="explicit", lease="1s")
        members(m, attempt=1, crashes=0, failures=0, delivery="first")


@test
def a_reservation_given_back_costs_no_attempt_and_is_ready_at_once(q):
    hx.broker.put(q, "k")
    for _ in range(10):
        m = hx.broker.one(q, start="explicit")
        members(m, attempt=1, crashes=0, failures=0, delivery="first")
        members(hx.broker.ok("release", m), state="pending", key="k", id=m["id"])


@test
def a_reservation_can_be_acknowledged_without_start(q):
    # Silent contract: whoever acks has done the work.
    hx.broker.put(q, "k")
    same(hx.broker.ok("ack", hx.broker.one(q, start="explicit"))["state"], "done")


@test
def release_of_a_started_lease_spends_no_attempt(q):
    hx.broker.put(q, "k")
    for _ in range(8):
        m = hx.broker.one(q)
        members(m, attempt=1, crashes=0, failures=0)
        hx.broker.ok("release", m)


# ---- clients that vanish

@test
def a_poll_whose_client_is_gone_eats_no_message(q):
    for number in range(5):
        c = hx.broker.connect()
        poll(c, q, "wait=30s")
        same(hx.broker.receive(q, wait="50ms"), [])
        c.close()
        hx.broker.put(q, f"k{number}")
        members(hx.broker.one(q, wait="5s"), key=f"k{number}", attempt=1, crashes=0, delivery="first")


@test
def polls_that_vanish_while_messages_rain_lose_none(q):
    # Some leases are undone, some replies are lost on the way and expire: all is delivered in the end.
    for number in range(40):
        c = hx.broker.connect()
        poll(c, q, "wait=30s&lease=1s&max=2")
        hx.broker.put(q, f"k{number}")
        c.close()
    seen = set()
    while len(seen) < 40:
        for m in hx.broker.receive(q, wait="20s", max=40) or [None]:
            assert m, f"{len(seen)} of 40 came"
            seen.add(m["key"])
            hx.broker.ok("ack", m)


@test
def the_same_connection_can_be_used_on_after_an_empty_poll(q):
    with hx.broker.connect() as c:
        for _ in range(3):
            poll(c, q, "wait=50ms")
            same(messages_of(c), [])


hx.main()
