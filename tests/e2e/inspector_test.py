#!/usr/bin/env python3
"""The inspector: what became of a key and why, who holds what, and how anything is found again."""
import hx
from hx import hapax, members, problem, same, test


def revoke(q, message, **body):
    return hx.broker.post(f"/v1/queues/{q}/messages/{message['id']}/revoke", body)


def consumers(q):
    reply = hx.broker.get(f"/v1/consumers?queue={q}")
    same(reply.status, 200)
    return {item["name"]: item for item in reply.json()["items"]}


# ---- revoke

@test
def a_revoked_lease_is_over_at_once_and_no_crash_is_counted(q):
    b = hx.broker
    b.rules(q, retry={"crashes": {"attempts": 1}})
    b.put(q, "k")
    first = b.one(q, lease="1h", consumer="w1")
    members(revoke(q, first, by="ann", note="it hangs").json(), state="pending", id=first["id"], key="k")
    yield
    again = b.one(q, consumer="w2")
    members(again, attempt=2, crashes=0, failures=0, delivery="retry")
    attempt = b.key(q, "k")["attempts"][0]
    members(attempt, ended="revoked", consumer="w1", reason="revoked by ann: it hangs")
    problem(b.settle("ack", first), 409, "fenced")
    b.ok("ack", again)


@test
def the_token_of_a_revoked_lease_still_settles_until_somebody_else_has_it(q):
    b = hx.broker
    for key, verb, says, state in (("a", "ack", {}, "done"), ("n", "nack", {"class": "rejected"}, "rejected"), ("r", "release", {}, "pending")):
        b.put(q, key)
        m = b.one(q, lease="1h")
        same(revoke(q, m).status, 200)
        yield
        same(b.ok(verb, m, **says)["state"], state)
        if state == "pending":
            members(b.one(q), attempt=1, crashes=0)


@test
def a_revoked_lease_comes_back_to_a_worker_that_extends_it(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, lease="1h")
    revoke(q, m)
    yield
    same(b.ok("extend", m)["state"], "leased")
    same(b.receive(q), [])
    same(b.ok("ack", m)["state"], "done")
    members(b.key(q, "k"), crashes=0, attempt=1)


@test
def a_crash_before_it_is_not_taken_back_by_the_word_after_a_revoke(q):
    b = hx.broker
    b.put(q, "k")
    b.one(q, lease="1s")
    m = b.one(q, lease="1h")
    same(m["crashes"], 1)
    revoke(q, m)
    b.ok("nack", m, **{"class": "transient"})
    members(b.key(q, "k"), crashes=1, failures=1)


@test
def what_was_revoked_is_looked_up_or_held_as_if_it_had_run_out(q):
    b = hx.broker
    b.rules(q, on_unknown="reconcile", retry={"crashes": {"attempts": 1}})
    b.put(q, "k")
    same(revoke(q, b.one(q, lease="1h")).json()["state"], "pending")
    yield
    asked = b.one(q, lease="1h")
    same(asked["delivery"], "reconcile")
    same(revoke(q, asked).json()["state"], "pending")
    same(b.one(q)["delivery"], "reconcile")
    b.rules(q + ".h", on_unknown="hold")
    b.put(q + ".h", "k")
    same(revoke(q + ".h", b.one(q + ".h", lease="1h")).json()["state"], "held")


@test
def only_a_lease_is_revoked_and_refusals_are_not_in_the_trail(q):
    b = hx.broker
    id = b.put(q, "k")
    members(problem(revoke(q, {"id": id}), 409, "not_leased"), state="pending")
    m = b.one(q, lease="1h", start="explicit")
    same(revoke(q, m, by="ann", note="why not").json()["state"], "pending")
    members(b.one(q), attempt=1, delivery="first")
    trail = b.get(f"/v1/audit?queue={q}&what=revoke").json()["items"]
    same([(d["who"], d["why"], d["id"]) for d in trail], [("ann", "why not", id)])


@test
def the_command_revokes_and_says_who(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, lease="1h")
    hapax("revoke", q, m["id"], "--by", "bob", "--note", "stuck")
    members(b.key(q, "k"), state="pending")
    assert "lease" in hapax("revoke", q, m["id"], exits=1).err
    same(b.get(f"/v1/audit?queue={q}").json()["items"][0]["who"], "bob")


# ---- the story of a key

def told(q, key):
    return [(e["what"], e.get("kind") or e.get("state") or e.get("consumer") or e.get("effect_id") or e.get("name") or e.get("by")) for e in hx.broker.key(q, key)["timeline"]]


@test
def a_repeat_is_explained_in_one_sentence_and_one_timeline(q):
    b = hx.broker
    b.rules(q, window="7d")
    b.put(q, "k", headers=[("X-Request-Id", "r-1")])
    b.ok("ack", b.one(q, consumer="w1"), result="r")
    for _ in range(3):
        b.send(q, "k")
    page = b.key(q, "k")
    for words in ("Accepted once on 20", " UTC and done on 20", "3 repeats since were answered with its outcome", "inside its window of 7d"):
        assert words in page["why"], page["why"]
    same(told(q, "k"), [("arrived", "new intent"), ("handed out", "w1"), ("settled", "done")] + 3 * [("arrived", "expected replay")])
    same(page["timeline"][0]["request_id"], "r-1")
    assert [e["at"] for e in page["timeline"]] == sorted(e["at"] for e in page["timeline"]), page
    assert "not_kept" not in page, page
    yield
    same(b.key(q, "k")["timeline"][:3], page["timeline"][:3])
    assert "Accepted once" in b.get(f"/v1/queues/{q}/messages/{page['id']}").json()["why"]


@test
def what_is_not_kept_any_more_is_said(q):
    b = hx.broker
    b.put(q, "k")
    for _ in range(12):
        b.send(q, "k")
    same(b.key(q, "k")["not_kept"], ["4 earlier repeats are only counted"])


@test
def attempts_steps_lookups_and_ends_are_in_the_timeline(q):
    b = hx.broker
    b.rules(q, on_unknown="reconcile", retry={"transient": {"backoff": "1ms", "max": "1ms"}})
    b.put(q, "k")
    m = b.one(q, consumer="w1")
    b.ok("step", m, name="charged")
    b.ok("nack", m, **{"class": "unknown"}, reason="timed out")
    b.ok("nack", b.one(q, consumer="w2"), **{"class": "absent"})
    b.one(q, consumer="w3", lease="1s")
    b.ok("ack", b.one(q, consumer="w4"))
    same(told(q, "k"), [("arrived", "new intent"), ("handed out", "w1"), ("step", "charged"), ("attempt ended", None), ("handed out", "w2"), ("looked up", None),
                        ("handed out", "w3"), ("lease ran out", None), ("handed out", "w4"), ("looked up", None), ("settled", "done")])
    answers = [e.get("answer") for e in b.key(q, "k")["timeline"] if e["what"] == "looked up"]
    same(answers, ["absent", "found"])


@test
def a_second_effect_is_called_a_harmful_duplicate(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q)
    b.ok("ack", m, effect_id="ch_1")
    assert "armful" not in b.key(q, "k")["why"]
    b.settle("ack", m, effect_id="ch_2")
    assert "Harmful duplicate: it took effect more than once, as ch_1, ch_2." in b.key(q, "k")["why"]
    assert ("harmful duplicate", "ch_2") in told(q, "k") and ("effect", "ch_1") in told(q, "k"), told(q, "k")


@test
def a_held_conflict_names_the_fields_that_changed(q):
    b = hx.broker
    b.rules(q, on_conflict="hold")
    b.event(q, {"amount": 1, "to": "x"}, key="k")
    held = b.event(q, {"amount": 2, "to": "x"}, key="k").json()
    first = b.key(q, held["key"])["timeline"][0]
    members(first, what="arrived", kind="conflict", conflict_with="k", changed=["amount"])
    assert "known with another payload" in b.key(q, held["key"])["why"]
    assert "1 more came with another payload" in b.key(q, "k")["why"], b.key(q, "k")["why"]
    same(told(q, "k")[-1], ("arrived", "conflict"))


@test
def what_operators_did_to_a_key_is_in_its_timeline_once(q):
    b = hx.broker
    b.rules(q, keep_payload="1h")
    b.put(q, "k")
    b.ok("ack", b.one(q, consumer="w1"))
    same(b.call("DELETE", f"/v1/queues/{q}/keys/k", b"", [("Hapax-Actor", "ann"), ("Hapax-Reason", "wrong customer")]).status, 204)
    b.put(q, "k")
    same(told(q, "k"), [("operator", "ann"), ("arrived", "new intent")])
    b.ok("ack", b.one(q, consumer="w2"))
    same(b.post(f"/v1/queues/{q}/keys/k/replay", {"by": "bob", "note": "once more"}).status, 202)
    m = b.one(q, lease="1h", consumer="w3")
    revoke(q, m, by="cyd")
    b.ok("ack", b.one(q))
    same([t for t in told(q, "k") if t[0] in ("replayed", "operator", "lease revoked")], [("operator", "ann"), ("replayed", "bob"), ("lease revoked", None)])
    assert "Run again on purpose, as generation 1" in b.key(q, "k")["why"]
    same(b.post(f"/v1/queues/{q}/keys/k/erase", {"by": "dan"}).status, 200)
    same([t for t in told(q, "k") if t[1] == "dan"], [("erased", "dan")])
    assert "erased since" in b.key(q, "k")["why"]


@test
def the_sentence_says_what_an_unsettled_one_waits_for(q):
    b = hx.broker
    b.put(q, "k")
    assert "it waits to be handed out; it came once." in b.key(q, "k")["why"], b.key(q, "k")["why"]
    m = b.one(q, lease="1h", consumer="w1")
    assert "w1 has it since 20" in b.key(q, "k")["why"]
    b.ok("nack", m, **{"class": "transient"}, reason="bank is down", delay="1h")
    assert "it waits until 20" in b.key(q, "k")["why"] and "attempt 1 ended transient: bank is down" in b.key(q, "k")["why"]
    b.put(q + ".d", "d")
    b.fail(q + ".d", "poison", reason="no such account")
    assert "; dead: no such account" in b.key(q + ".d", "d")["why"]


@test
def a_late_replay_is_called_so(q):
    b = hx.broker
    b.rules(q, window="4s")
    b.put(q, "k")
    b.ok("ack", b.one(q))
    hx.until(lambda: b.send(q, "k") and (("arrived", "late replay") in told(q, "k") or b.state(q, "k") != "done"), "it came past half its window")
    if b.state(q, "k") == "done":  # else the machine slept through the rest of it
        assert "late in its window of 4s" in b.key(q, "k")["why"], b.key(q, "k")["why"]


@test
def thousands_of_steps_leave_a_timeline_that_ends(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, lease="1h")
    b.post("/v1/step", [{"token": m["token"], "name": f"s{i}"} for i in range(3000)])
    page = b.key(q, "k")
    same(len(page["steps"]), 3000)
    same([e["name"] for e in page["timeline"] if e["what"] == "step"], [f"s{i}" for i in range(2936, 3000)])
    assert page["not_kept"][0].startswith("2936 earlier steps"), page["not_kept"]


@test
def key_show_begins_with_the_sentence_and_has_a_line_an_event(q):
    b = hx.broker
    b.put(q, "k")
    b.ok("ack", b.one(q, consumer="w1"))
    b.send(q, "k")
    page, lines = b.key(q, "k"), hapax("key", "show", q, "k").text.splitlines()
    same(lines[0], page["why"])
    same([line[22:] for line in lines[2:2 + len(page["timeline"])]], [e["text"] for e in page["timeline"]])
    same(hapax("messages", "show", q, page["id"]).text.splitlines()[0], page["why"])
    b.rules(q + ".r", semantics="at_least_once")
    b.put(q + ".r", "k", "k")
    same(hapax("key", "show", q + ".r", "k").text.count("Accepted on"), 2)


# ---- finding

def find(**by):
    (name, value), = by.items()
    reply = hx.broker.get(f"/v1/find?{name}={hx.quote(value)}")
    same(reply.status, 200)
    return reply.json()["items"]


def hop(q, key, trace, request):
    return hx.broker.put(q, key, headers=[("traceparent", f"00-{trace}-00f067aa0ba902b7-01"), ("X-Request-Id", request)])


@test
def a_flow_over_several_queues_is_one_list_in_the_order_of_time(q):
    b = hx.broker
    trace = f"{hash(q) & 0xffff:04x}" + "4bf92f3577b34da6a3ce929d0e0e"
    ids = [hop(f"{q}.{i}", f"k{i}", trace, f"{q}-r{i}") for i in range(3)]
    hop(f"{q}.0", "another", "9" * 32, "other")
    b.ok("ack", b.one(f"{q}.1", consumer="w1"))
    items = find(trace_id=trace)
    same([i["id"] for i in items if i["kind"] == "accepted"], ids)
    same([(i["kind"], i["queue"], i["key"]) for i in items][-2:], [("delivered", f"{q}.1", "k1"), ("settled", f"{q}.1", "k1")])
    same([i["at"] for i in items], sorted(i["at"] for i in items))
    same(find(trace_id=f"00-{trace}-00f067aa0ba902b7-01"), items)
    same({i["id"] for i in find(request_id=f"{q}-r2")}, {ids[2]})
    same(find(request_id="nobody said this"), [])


@test
def a_repeat_is_found_by_its_own_request_id(q):
    b = hx.broker
    first = b.put(q, "k", headers=[("X-Request-Id", f"{q}-first")])
    b.send(q, "k", headers=[("X-Request-Id", f"{q}-again")])
    items = find(request_id=f"{q}-again")
    same([(i["kind"], i["id"]) for i in items], [("accepted", first), ("duplicate", first)])


@test
def ids_and_keys_are_found_after_a_restart_too(q):
    b = hx.broker
    id = b.put(q, f"order-{q}/%")
    b.put(q + ".other", f"order-{q}/%")
    yield
    members(find(id=id)[0], kind="accepted", queue=q, key=f"order-{q}/%", id=id)
    same({i["queue"] for i in find(key=f"order-{q}/%")}, {q, q + ".other"})
    same(b.get(f"/v1/find?request_id=x{q}").json(), {"items": [], "complete": False})
    same(b.get("/v1/find?id=garbage").json(), {"items": [], "complete": True})


@test
def what_to_find_is_said_once(q):
    b = hx.broker
    for query in ("", "?id=", "?id=1&key=2", "?key=" + "k" * 256):
        problem(b.get("/v1/find" + query), 400, "param_invalid")


@test
def keys_are_found_by_how_they_begin(q):
    b = hx.broker
    b.put(q, "order-1", "order-2", "mail-1", "ord")
    b.put(q + ".other", "order-3")
    b.ok("ack", b.one(q))
    yield
    found = b.get(f"/v1/queues/{q}/keys?prefix=order-").json()
    same({k["key"]: k["state"] for k in found["items"]}, {"order-1": "done", "order-2": "pending"})
    assert found["complete"] is True and all(k["id"] and k["at"] for k in found["items"]), found
    cut = b.get(f"/v1/queues/{q}/keys?prefix=&limit=2").json()
    same((len(cut["items"]), cut["complete"]), (2, False))
    same(b.get(f"/v1/queues/{q}/keys?prefix=none").json(), {"items": [], "complete": True})
    problem(b.get(f"/v1/queues/{q}.none/keys?prefix=o"), 404, "no_such_queue")
    problem(b.get(f"/v1/queues/{q}/keys?prefix=o&key=k"), 400, "param_invalid")
    problem(b.get(f"/v1/queues/{q}/keys"), 400, "param_invalid")


@test
def the_command_finds_keys_and_flows(q):
    b = hx.broker
    id = b.put(q, "order-1", headers=[("X-Request-Id", f"{q}-req")])
    assert "order-1" in hapax("key", "find", q, "order").text
    assert "order-1" in hapax("key", "find", q, "order", "--limit", "1").text
    assert "order-1" in hapax("find", "--request-id", f"{q}-req").text
    assert id in hapax("find", "--id", id).text
    hapax("find", exits=2)
    hapax("find", "--id", id, "--key", "k", exits=2)


@test
def a_search_that_finds_nothing_exits_1(q):
    hx.broker.put(q, "order-1")
    for args in (("find", "--key", f"{q}-none"), ("find", "--request-id", f"{q}-none"), ("key", "find", q, "none")):
        hapax(*args, exits=1)
        same(hapax(*args, "--json", exits=1).json["items"], [])


# ---- consumers

@test
def consumers_are_named_with_their_leases(q):
    b = hx.broker
    b.put(q, "a", "b", "c", "d")
    b.receive(q, max=2, lease="1h", consumer="w1")
    b.receive(q, max=1, lease="1h", consumer="größer & \"7\"")
    b.receive(q, max=1, lease="1h")
    b.receive(q, max=1, consumer="idle")
    yield
    have = consumers(q)
    want = {"w1": 2, "größer & \"7\"": 1, "": 1}
    same({n: c["count"] for n, c in have.items() if c["count"]}, want)
    assert all(have[n]["oldest"] and (have[n]["last_seen"] or not n) for n in want), have


@test
def an_idle_consumer_is_listed_with_nothing_and_its_last_word(q):
    b = hx.broker
    b.put(q, "k")
    m = b.one(q, consumer="w1")
    taken = consumers(q)["w1"]
    b.ok("ack", m)
    members(consumers(q)["w1"], count=0, oldest=None, queue=q)
    assert consumers(q)["w1"]["last_seen"] >= taken["last_seen"]
    assert any(c["name"] == "w1" and c["queue"] == q for c in b.get("/v1/consumers").json()["items"])


@test
def a_queue_that_is_not_there_has_no_consumers(q):
    problem(hx.broker.get(f"/v1/consumers?queue={q}"), 404, "no_such_queue")


@test
def a_queue_made_anew_does_not_inherit_consumers(q):
    b = hx.broker
    b.put(q, "k")
    b.ok("ack", b.one(q, consumer="w1"))
    same(b.call("DELETE", f"/v1/queues/{q}").status, 204)
    same([c for c in b.get("/v1/consumers").json()["items"] if c["queue"] == q], [])
    b.put(q, "k2")
    same(consumers(q), {})


@test(alone=True)
def more_names_than_are_kept_forget_the_longest_silent_but_no_lease(q):
    b = hx.broker
    n = 4200
    same(b.batch(q, [{"key": f"k{i}", "payload": "x"} for i in range(n)]).status, 200)
    for i in range(n):
        b.receive(q, lease="1h", consumer=f"w{i}")
    have = consumers(q)
    same(sum(c["count"] for c in have.values()), n, "every lease is counted, however many were looked at in time")
    same(len(have), 4097)
    assert f"w{n - 1}" in have and "w0" not in have and have[""]["count"] >= n - 4096, have[""]


@test
def the_command_lists_consumers(q):
    b = hx.broker
    b.put(q, "k")
    b.one(q, lease="1h", consumer="w\x20one")
    shown = hapax("consumers", q).text
    assert "w one" in shown and "LAST SEEN" in shown.upper(), shown


@test
def a_message_behind_a_dead_head_names_the_message_it_waits_behind(q):
    b = hx.broker
    for key in ("head", "next", "last"):
        b.send(q, key, headers=[("Hapax-Group", "user-7")])
    head = b.one(q)
    assert f"it waits behind message {head['id']} of its group, which is leased;" in b.key(q, "last")["why"], b.key(q, "last")["why"]
    b.ok("nack", head, **{"class": "poison"})
    assert f"it waits behind message {head['id']} of its group, which is dead;" in b.key(q, "last")["why"], b.key(q, "last")["why"]
    assert "user-7" in hx.hapax("dead", "list", q).text


hx.main(threads=20)
