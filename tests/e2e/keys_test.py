#!/usr/bin/env python3
"""Looking: keys, messages, lists, results, cancelling, queues, stats, paths and methods."""
import time

import hx
from hx import members, problem, quote, same, stamp, test

VIEW = {"id", "key", "queue", "state", "generation", "fingerprint", "first_seen", "attempts", "steps", "effect_ids", "duplicates", "arrivals"}


def settled(queue, key="k", **ack):
    hx.broker.put(queue, key)
    m = hx.broker.one(queue)
    hx.broker.ok("ack", m, **ack)
    return m


def pages(path):
    """The items of every page of a list."""
    cursor, got = None, []
    while True:
        reply = hx.broker.get(path + (f"&cursor={quote(cursor)}" if cursor else ""))
        same(reply.status, 200)
        page = reply.json()
        same(set(page), {"items", "next_cursor"})
        got.append(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return got
        assert isinstance(cursor, str) and cursor


# ---- the key view

@test
def a_pending_key_shows_every_promised_field(q):
    identity = hx.broker.put(q, "k", headers=[("Hapax-Request-Id", "r1")])
    view = hx.broker.key(q, "k")
    assert VIEW <= set(view), VIEW - set(view)
    members(view, id=identity, key="k", queue=q, state="pending", generation=0, attempts=[], steps=[], effect_ids=[], duplicates=0)
    assert isinstance(view["fingerprint"], str) and view["fingerprint"]
    stamp(view["first_seen"])
    same(len(view["arrivals"]), 1)
    members(view["arrivals"][0], kind="new", age_ms=0, request_id="r1")
    for name in ("settled_at", "result"):
        assert name not in view, view


@test
def a_done_key_shows_when_and_how_it_was_settled(q):
    with hx.bracket() as asked:
        m = settled(q, result={"r": 1}, effect_id="e1")
    view = hx.broker.key(q, "k")
    members(view, state="done", id=m["id"], effect_ids=["e1"], result={"content_type": "application/json", "body": '{"r": 1}', "encoding": "utf8"})
    asked.holds(view["settled_at"])
    assert abs(stamp(view["expires_at"]) - stamp(view["settled_at"]) - 86400) < 5, view
    attempt, = view["attempts"]
    members(attempt, attempt=1, fence=m["fence"], consumer="")
    stamp(attempt["at"])
    assert attempt["ended"], attempt


@test
def one_view_by_key_by_query_and_by_id(q):
    m = settled(q, "a/b")
    by_key = hx.broker.key(q, "a/b")
    for path in (f"keys?key={quote('a/b')}", f"messages/{m['id']}"):
        other = hx.broker.get(f"/v1/queues/{q}/{path}").json()
        for name in VIEW | {"settled_at"}:
            same(other[name], by_key[name], name)


@test
def arrivals_are_counted_exactly_and_the_last_eight_are_listed(q):
    hx.broker.put(q, "k", payload="p", headers=[("Hapax-Request-Id", "r0")])
    for number in range(1, 21):
        hx.broker.send(q, "k", "p", [("Hapax-Request-Id", f"r{number}")])
    view = hx.broker.key(q, "k")
    same(view["duplicates"], 20)
    listed = [a.get("request_id") for a in view["arrivals"]]
    same(listed[-8:], [f"r{n}" for n in range(13, 21)])
    same({a["kind"] for a in view["arrivals"][-8:]}, {"replay"})
    for a in view["arrivals"]:
        stamp(a["at"])
        assert isinstance(a["age_ms"], int) and a["age_ms"] >= 0, a


@test
def an_arrival_says_what_kind_it_was(q):
    # late is what comes more than half a window after the settlement: hours, with the default rules.
    hx.broker.put(q, "k", payload="p")
    hx.broker.send(q, "k", "p")
    hx.broker.send(q, "k", "other")
    hx.broker.ok("ack", hx.broker.one(q))
    hx.broker.send(q, "k", "p")
    hx.broker.send(q, "k", "other")
    view = hx.broker.key(q, "k")
    same([a["kind"] for a in view["arrivals"]], ["new", "replay", "conflict", "replay", "conflict"])
    same(view["duplicates"], 2, "a conflict is not a duplicate")


@test
def attempts_are_listed_in_order_and_leases_given_back_are_none(q):
    hx.broker.put(q, "k")
    hx.broker.ok("release", hx.broker.one(q, consumer="c0"))
    crashed = hx.broker.one(q, lease="1s", consumer="c1")
    failed = hx.broker.one(q, consumer="c2")
    hx.broker.ok("nack", failed, **{"class": "unknown", "reason": "why"})
    last = hx.broker.one(q, consumer="c3")
    attempts = hx.broker.key(q, "k")["attempts"]
    same([(a["attempt"], a["consumer"], a["fence"]) for a in attempts],
         [(n, f"c{n}", m["fence"]) for n, m in enumerate((crashed, failed, last), 1)])
    members(attempts[1], reason="why", **{"class": "unknown"})
    assert attempts[0]["ended"] and attempts[1]["ended"] and not attempts[2]["ended"], attempts


@test
def a_key_is_never_said_to_end_before_its_window_does(q):
    early = []
    for n in range(60):
        hx.broker.put(q, f"k{n}")
        hx.broker.ok("ack", hx.broker.one(q))
        shown, again = hx.broker.key(q, f"k{n}"), hx.broker.send(q, f"k{n}").json()
        ends = [round(1000 * (stamp(view["expires_at"]) - stamp(shown["settled_at"]))) for view in (shown, again)]
        early += [(n, ends)] if min(ends) < 86400000 else []
    same(early, [])


@test
def of_many_attempts_the_first_and_the_last_eight_are_listed(q):
    hx.broker.rules(q, retry={"transient": {"attempts": 20, "backoff": "0s"}})
    hx.broker.put(q, "k")
    for _ in range(12):
        hx.broker.ok("nack", hx.broker.one(q), **{"class": "transient"})
    same([a["attempt"] for a in hx.broker.key(q, "k")["attempts"]], [1, *range(5, 13)])


@test
def a_dead_key_says_why(q):
    hx.broker.put(q, "k")
    hx.broker.ok("nack", hx.broker.one(q), **{"class": "poison", "reason": "bad row"})
    view = hx.broker.key(q, "k")
    members(view, state="dead", reason="bad row")
    members(view["attempts"][0], reason="bad row", **{"class": "poison"})
    assert view.get("expires_at") is None, "an unsettled key does not expire"


@test
def what_is_not_there_is_404(q):
    problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/k"), 404, "no_such_queue")
    problem(hx.broker.get(f"/v1/queues/{q}/messages"), 404, "no_such_queue")
    identity = hx.broker.put(q, "k")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/other"), 404, "no_such_key")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/other/result"), 404, "no_such_key")
    problem(hx.broker.get(f"/v1/queues/{q}/keys?key=other"), 404, "no_such_key")
    for bad in ("x", "0" * 32, identity[:-1], identity[:-1] + "g", "%C3%A9"):
        problem(hx.broker.get(f"/v1/queues/{q}/messages/{bad}"), 404, "no_such_message")
        problem(hx.broker.post(f"/v1/queues/{q}/messages/{bad}/cancel"), 404, "no_such_message")
    hx.broker.put(q + "b", "k")
    problem(hx.broker.get(f"/v1/queues/{q}b/messages/{identity}"), 404, "no_such_message")
    problem(hx.broker.post(f"/v1/queues/{q}b/messages/{identity}/cancel"), 404, "no_such_message")
    same(hx.broker.key(q, "k")["state"], "pending")


@test
def looking_creates_no_queue(q):
    for path in ("", "/keys/k", "/messages", "/messages/x", "/keys/k/result"):
        hx.broker.get(f"/v1/queues/{q}{path}")
    problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")


@test
def the_key_query_wants_one_key(q):
    hx.broker.put(q, "k")
    for query in ("", "?", "?key=k&key=k", "?key=%zz"):
        problem(hx.broker.get(f"/v1/queues/{q}/keys{query}"), 400, "param_invalid")
    problem(hx.broker.get(f"/v1/queues/{q}/keys?key="), 400, "key_invalid")


@test
def plus_and_percent_in_keys_are_read_as_their_place_has_it(q):
    # A path knows no '+' for a space. In a query both a plus and %2B are heard of; %2B must be a plus.
    hx.broker.put(q, "a+b%25")
    same(hx.broker.get(f"/v1/queues/{q}/keys/a+b%2525").json()["key"], "a+b%25")
    same(hx.broker.get(f"/v1/queues/{q}/keys?key=a%2Bb%2525").json()["key"], "a+b%25")


# ---- results

@test
def the_result_is_raw_with_its_type_and_state(q):
    settled(q, result="hällo", content_type="text/x; charset=utf-8")
    reply = hx.broker.get(f"/v1/queues/{q}/keys/k/result")
    same((reply.status, reply.body), (200, "hällo".encode()))
    same(reply.header("Content-Type"), "text/x; charset=utf-8")
    same(reply.header("Hapax-State"), "done")


@test
def an_empty_result_is_204(q):
    settled(q)
    reply = hx.broker.get(f"/v1/queues/{q}/keys/k/result")
    same((reply.status, reply.body, reply.header("Hapax-State")), (204, b"", "done"))
    same(hx.broker.get("/healthz").status, 200)  # the connection is still in step


@test
def a_result_that_is_not_there_yet_is_409(q):
    hx.broker.put(q, "k")
    members(problem(hx.broker.get(f"/v1/queues/{q}/keys/k/result"), 409, "not_settled"), retryable=True)
    hx.broker.one(q)
    problem(hx.broker.get(f"/v1/queues/{q}/keys/k/result"), 409, "not_settled")


@test
def a_result_can_be_waited_for(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    later = hx.Later(hx.broker.get, f"/v1/queues/{q}/keys/k/result?wait=60s")
    same(hx.broker.receive(q, wait="100ms"), [])
    hx.broker.ok("ack", m, result="r")
    same(later.value().body, b"r")  # nobody here waits for 60 seconds


@test
def a_wait_for_a_result_ends_with_409_and_at_once_when_it_is_dead(q):
    hx.broker.put(q, "k")
    began = time.monotonic()
    problem(hx.broker.get(f"/v1/queues/{q}/keys/k/result?wait=600ms"), 409, "not_settled")
    assert time.monotonic() - began >= 0.55
    m = hx.broker.one(q)
    later = hx.Later(hx.broker.get, f"/v1/queues/{q}/keys/k/result?wait=60s")
    same(hx.broker.receive(q, wait="100ms"), [])
    hx.broker.ok("nack", m, **{"class": "poison"})
    problem(later.value(), 409, "not_settled")
    problem(hx.broker.get(f"/v1/queues/{q}/keys/k/result?wait=60s"), 409, "not_settled")


@test
def a_wait_for_a_result_is_in_range(q):
    hx.broker.put(q, "k")
    for bad in ("61s", "-1s", "x", "", "1s&wait=1s"):
        problem(hx.broker.get(f"/v1/queues/{q}/keys/k/result?wait={bad}"), 400, "param_invalid")


@test
def a_results_content_type_cannot_smuggle_a_header(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    problem(hx.broker.settle("ack", m, result="x", content_type="a\r\nX-Evil: 1"), 400, "param_invalid")
    hx.broker.ok("ack", m, result="x", content_type="text/é")
    reply = hx.broker.get(f"/v1/queues/{q}/keys/k/result")
    same((reply.status, reply.body), (200, b"x"))


# ---- lists

@test
def a_list_pages_through_every_message_once(q):
    hx.broker.batch(q, [{"key": f"k{n:03}", "payload": f"p{n}"} for n in range(250)])
    got = pages(f"/v1/queues/{q}/messages?state=pending&limit=60")
    same([len(p) for p in got], [60, 60, 60, 60, 10])
    same(sorted(m["key"] for p in got for m in p), [f"k{n:03}" for n in range(250)])
    item = got[0][0]
    members(item, queue=q, state="pending", encoding="utf8", payload="p" + str(int(item["key"][1:])))
    same([len(p) for p in pages(f"/v1/queues/{q}/messages?state=pending")], [100, 100, 50])
    same([len(p) for p in pages(f"/v1/queues/{q}/messages?state=pending&limit=250")], [250])


@test
def a_list_shows_one_state(q):
    hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(6)])
    dead, leased = hx.broker.receive(q, max=2)
    hx.broker.ok("nack", dead, **{"class": "poison"})
    by_state = {s: sorted(m["key"] for m in pages(f"/v1/queues/{q}/messages?state={s}&limit=2")[0] or []) for s in ("dead", "leased", "held")}
    same(by_state, {"dead": ["k0"], "leased": ["k1"], "held": []})
    same(sorted(m["key"] for p in pages(f"/v1/queues/{q}/messages?state=pending&limit=3") for m in p), ["k2", "k3", "k4", "k5"])
    assert leased["key"] == "k1"


@test
def delayed_and_group_bound_messages_are_listed_as_pending(q):
    hx.broker.batch(q, [{"key": "d", "payload": "", "delay": "1h"}, {"key": "g1", "payload": "", "group": "g"},
                        {"key": "g2", "payload": "", "group": "g"}])
    same(sorted(m["key"] for p in pages(f"/v1/queues/{q}/messages?state=pending&limit=1") for m in p), ["d", "g1", "g2"])


@test
def large_messages_are_listed_and_handed_out_in_as_many_replies_as_it_takes(q):
    keys = [f"k{n:02}" for n in range(20)]
    for key in keys:
        hx.broker.put(q, key, payload="p" * (1 << 20))
    got = pages(f"/v1/queues/{q}/messages?limit=1000")
    assert len(got) > 1, "a reply of 20 MiB"
    same([m["key"] for page in got for m in page], keys)
    taken = []
    while len(taken) < 20:
        some = hx.broker.receive(q, max=1000)
        assert 0 < len(some) < 20, len(some)
        taken += [m["key"] for m in some]
    same(taken, keys)


@test
def nonsense_in_a_list_query_is_refused(q):
    hx.broker.put(q, "k")
    for query in ("state=done", "state=", "state=x", "limit=0", "limit=1001", "limit=x", "cursor=x", "state=dead&state=dead", "limit=1&limit=1"):
        problem(hx.broker.get(f"/v1/queues/{q}/messages?{query}"), 400, "param_invalid")


@test
def a_page_whose_cursor_was_settled_meanwhile_misses_nothing(q):
    hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(6)])
    page = hx.broker.get(f"/v1/queues/{q}/messages?state=pending&limit=3").json()
    for m in hx.broker.receive(q, max=3):
        hx.broker.ok("ack", m)
    rest = pages(f"/v1/queues/{q}/messages?state=pending&limit=3&cursor={quote(page['next_cursor'])}")
    same({m["key"] for p in rest for m in p}, {"k3", "k4", "k5"})


# ---- cancel

@test
def a_pending_message_can_be_cancelled_by_name_and_with_a_reason(q):
    identity = hx.broker.put(q, "k")
    reply = hx.broker.call("POST", f"/v1/queues/{q}/messages/{identity}/cancel", b"", [("Hapax-Actor", "ann"), ("Hapax-Reason", "sent in error")])
    same(reply.status, 200)
    members(reply.json(), state="cancelled", id=identity, key="k")
    same(hx.broker.receive(q), [])
    view = hx.broker.key(q, "k")
    same(view["state"], "cancelled")
    assert "ann" in view["reason"] and "sent in error" in view["reason"], view
    reply = hx.broker.get(f"/v1/queues/{q}/keys/k/result")
    same((reply.status, reply.header("Hapax-State")), (204, "cancelled"))


@test
def cancelling_takes_by_and_note_from_the_body_too(q):
    identity = hx.broker.put(q, "k")
    same(hx.broker.post(f"/v1/queues/{q}/messages/{identity}/cancel", {"by": "bob", "note": "stop"}).status, 200)
    reason = hx.broker.key(q, "k")["reason"]
    assert "bob" in reason and "stop" in reason, reason


@test
def a_token_of_a_cancelled_message_is_409_settled(q):
    hx.broker.put(q, "k")
    m = hx.broker.one(q)
    same(hx.broker.post(f"/v1/queues/{q}/messages/{m['id']}/cancel").status, 200)
    members(problem(hx.broker.settle("ack", m, effect_id="e"), 409, "settled"), state="cancelled")
    same(hx.broker.key(q, "k")["effect_ids"], ["e"])
    same(hx.broker.key(q, "k")["state"], "cancelled")


@test
def what_is_settled_cannot_be_cancelled(q):
    m = settled(q)
    members(problem(hx.broker.post(f"/v1/queues/{q}/messages/{m['id']}/cancel"), 409, "settled"), state="done")


@test
def cancelling_twice_is_cancelled_once(q):
    # Silent contract: the second caller finds what it asked for.
    identity = hx.broker.put(q, "k")
    for _ in range(2):
        reply = hx.broker.post(f"/v1/queues/{q}/messages/{identity}/cancel")
        same(reply.status, 200)
        members(reply.json(), state="cancelled")


@test
def a_bad_body_cancels_nothing(q):
    identity = hx.broker.put(q, "k")
    for body in (b"nonsense", b"[]", b'{"by":1}', b'{"by":"a","by":"b"}', b'{"by":"a"'):
        problem(hx.broker.call("POST", f"/v1/queues/{q}/messages/{identity}/cancel", body), 400, "json_invalid")
    same(hx.broker.key(q, "k")["state"], "pending")


# ---- queues and operations

@test
def a_queue_shows_its_counts_and_its_rules(q):
    hx.broker.batch(q, [{"key": f"k{n}", "payload": ""} for n in range(5)] + [{"key": "d", "payload": "", "delay": "1h"}])
    a, b = hx.broker.receive(q, max=2)
    hx.broker.ok("nack", a, **{"class": "poison"})
    hx.broker.ok("ack", hx.broker.one(q))
    view = hx.broker.queue(q)
    members(view, name=q, paused=False, pending=3, leased=1, dead=1, held=0)
    assert b["key"] == "k1"


@test
def the_list_of_queues_has_them_all(q):
    names = [f"{q}-{n}" for n in range(5)]
    for name in names:
        hx.broker.put(name, "k")
    listed = [item["name"] for page in pages("/v1/queues?limit=2") for item in page]
    assert set(names) <= set(listed), listed
    same(len(listed), len(set(listed)))
    for bad in ("limit=0", "limit=1001", "limit=x", "cursor=x"):
        problem(hx.broker.get("/v1/queues?" + bad), 400, "param_invalid")


@test
def to_resume_a_queue_that_is_not_there_makes_none(q):
    problem(hx.broker.post(f"/v1/queues/{q}/resume"), 404, "no_such_queue")
    problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")


@test
def pause_and_resume_may_be_repeated_and_a_pause_creates_the_queue(q):
    for verb, paused in (("pause", True), ("pause", True), ("resume", False), ("resume", False)):
        reply = hx.broker.post(f"/v1/queues/{q}/{verb}")
        same(reply.status, 200)
        members(reply.json(), name=q, paused=paused)
        same(hx.broker.queue(q)["paused"], paused)


@test
def stats_are_there(q):
    hx.broker.put(q, "k")
    stats = hx.broker.get("/v1/stats").json()
    assert stats["version"] and stats["uptime_ms"] >= 0, stats
    for name in ("queues", "pending", "leased", "held", "dead"):
        assert isinstance(stats[name], int), stats


@test
def health_and_readiness_are_200(q):
    for path in ("/healthz", "/readyz"):
        reply = hx.broker.get(path)
        same(reply.status, 200)


# ---- paths and methods

@test
def the_wrong_method_is_405_and_names_the_right_ones(q):
    cases = [("DELETE", f"/v1/queues/{q}/messages", {"GET", "HEAD", "POST"}), ("GET", "/v1/ack", {"POST"}), ("PUT", "/v1/nack", {"POST"}),
             ("GET", f"/v1/queues/{q}/receive", {"POST"}), ("POST", "/healthz", {"GET", "HEAD"}), ("POST", "/v1/stats", {"GET", "HEAD"}),
             ("PATCH", f"/v1/queues/{q}/keys/k", {"GET", "HEAD", "DELETE"}), ("OPTIONS", "/readyz", {"GET", "HEAD"}), ("BREW", "/v1/ack", {"POST"})]
    for method, path, want in cases:
        reply = hx.broker.call(method, path, b"")
        problem(reply, 405, "method_not_allowed")
        same({m.strip() for m in reply.header("Allow", "").split(",")} - {"OPTIONS"}, want, f"{method} {path}")


@test
def an_unknown_path_is_404(q):
    for path in ("/v1", "/v2/queues", "/v1/queues/", f"/v1/queues/{q}/", f"/v1/queues/{q}/nothing", "/v1/ack/", "//v1/ack", "/v1//ack", "/V1/ack",
                 f"/v1/queues/{q}/keys/a/b/c", "/healthz/x", "/..", "/v1/../healthz", "/v1/queues/../../healthz"):
        for method in ("GET", "POST"):
            problem(hx.broker.call(method, path, b"" if method == "POST" else None), 404, "not_found")


@test
def head_is_get_without_the_body(q):
    settled(q, result="four")
    for path in ("/healthz", "/v1/queues", f"/v1/queues/{q}", f"/v1/queues/{q}/keys/k", f"/v1/queues/{q}/keys/k/result", "/v1/nothing",
                 f"/v1/queues/{q}/keys/none"):
        with hx.broker.connect() as c:
            whole = c.request("GET", path)
            head = c.request("HEAD", path)
            same(head.status, whole.status)
            same(head.header("Content-Type"), whole.header("Content-Type"))
            if "/keys/k" in path and path.endswith("result"):
                same(head.header("Content-Length"), "4")
            same(c.request("GET", "/healthz").status, 200)  # nothing of a body was left on the line


hx.main()
