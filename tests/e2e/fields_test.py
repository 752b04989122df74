#!/usr/bin/env python3
"""Keys from business fields, fingerprints over some of them, and schemas: the same intent is one message, another intent is
another one, and what has no intent is refused."""
import json

import hx
from hx import members, problem, same, test


def keyed(q, template, **rules):
    hx.broker.rules(q, key=template, **rules)


def key_of(q, value, headers=()):
    """The key under which it was accepted or known."""
    reply = hx.broker.event(q, value, headers=headers)
    assert reply.status in (200, 202), reply
    return reply.json()["key"]


# ---- templates

@test
def a_key_is_made_of_the_payloads_fields(q):
    keyed(q, "shipment-milestone:${shipmentId}:${milestoneType}:${effectiveDate}")
    event = {"shipmentId": "S1", "milestoneType": "PICKED_UP", "effectiveDate": "2026-01-31", "noise": 1}
    same(key_of(q, event), "shipment-milestone:S1:PICKED_UP:2026-01-31")
    members(hx.broker.event(q, event).json(), outcome="duplicate")
    yield
    members(hx.broker.event(q, event).json(), outcome="duplicate")
    members(hx.broker.event(q, {**event, "milestoneType": "DELIVERED"}).json(), outcome="accepted")


@test
def fields_may_be_nested_indexed_or_headers(q):
    keyed(q, "${a.b[1]}:${header.x-region}")
    same(key_of(q, {"a": {"b": [0, "one"]}}, [("X-Region", "eu")]), "one:eu")
    reply = hx.broker.event(q, {"a": {"b": [0, "one"]}})
    assert "x-region" in problem(reply, 422, "schema")["detail"].lower(), reply


@test
def a_cloudevent_is_known_by_its_source_and_id(q):
    keyed(q, "${cloudevent}", fingerprint="none")
    structured = key_of(q, {"specversion": "1.0", "source": "/orders", "id": "7", "type": "t", "data": {}})
    binary = hx.broker.event(q, {}, headers=[("ce-source", "/orders"), ("ce-id", "7")])
    members(binary.json(), outcome="duplicate", key=structured)


@test
def one_intent_has_one_key_however_it_is_written(q):
    keyed(q, "k:${n}:${s}", fingerprint="none")
    spellings = ['{"n":10,"s":"\\u00e9"}', '{"s":"é", "n":1e1}', '{"n":10.0,"s":"é"}', '{"n":"10","s":"é"}']
    same({key_of(q, text) for text in spellings}, {"k:10:é"})


@test
def values_never_run_into_each_other(q):
    keyed(q, "${a}:${b}", fingerprint="none")
    pairs = [("x:y", "z"), ("x", "y:z"), ("x%3Ay", "z"), ("x", "y%3Az"), ("x", "yz")]
    found = [key_of(q, {"a": a, "b": b}) for a, b in pairs]
    same(len(set(found)), len(pairs), str(found))
    same(found[0], "x%3Ay:z")


@test
def no_message_is_called_like_a_replays_effect(q):
    b = hx.broker
    for key in ("k~g1", "~g7", "k~g1~g20"):
        detail = problem(b.send(q, key), 400, "key_invalid")["detail"]
        assert "~g" in detail and "replay" in detail, detail
    line = json.loads(b.batch(q, [{"key": "k~g1", "payload": "x"}]).body)
    members(line, status=400, code="key_invalid", applied="no")
    for key in ("k~g", "k~gx1", "kg1", "k~g1x", "k~0123456789abcdef"):
        same(b.send(q, key).status, 202, key)
    b.put(q, "k")
    yield
    problem(b.get(f"/v1/queues/{q}/keys/k~g1"), 404, "no_such_key")
    keyed(q, "${a}", fingerprint="none")
    problem(b.event(q, {"a": "x~g1"}), 400, "key_invalid")
    same(key_of(q, {"a": "x~g1x"}), "x~g1x")
    problem(b.call("PUT", f"/v1/queues/{q}", b'{"key":"${a}~g1"}'), 400, "config_invalid")


@test
def a_payload_without_the_intent_is_refused(q):
    b = hx.broker
    keyed(q, "order:${order.id}")
    for value in ({}, {"order": None}, {"order": {}}, {"order": {"id": None}}, {"order": {"id": ""}}, {"order": {"id": {}}},
                  {"order": {"id": []}}, [], 1, "order", {"order": {"id": "x" * 300}}):
        reply = b.event(q, value)
        problem(reply, 422, "schema")
    for text in (b"", b"not json", b"\xff", b'{"order":{"id":1}'):
        problem(b.event(q, text), 422, "schema")
    members(b.queue(q), pending=0)
    same(key_of(q, {"order": {"id": False}}), "order:false")
    same(key_of(q, {"order": {"id": 0}}), "order:0")


@test
def a_differing_header_is_a_mismatch_and_an_equal_one_is_fine(q):
    b = hx.broker
    keyed(q, "order:${id}")
    problem(b.event(q, {"id": 1}, "order:2"), 400, "key_mismatch")
    members(b.event(q, {"id": 1}, "order:1").json(), outcome="accepted", key="order:1")
    members(b.event(q, {"id": 1}, '"order:1"').json(), outcome="duplicate")


@test
def the_lines_of_a_batch_get_their_keys_too(q):
    keyed(q, "order:${id}")
    lines = [{"payload": {"id": 1}}, {"payload": {"id": 1}}, {"payload": {}}, {"payload": {"id": 2}, "key": "order:3"},
             {"payload": '{"id":4}', "content_type": "application/json"}]
    got = hx.broker.batch(q, lines).lines()
    same([line["status"] for line in got], [202, 202, 422, 400, 202])
    same([got[0]["key"], got[1]["outcome"], got[3]["code"], got[4]["key"]], ["order:1", "duplicate", "key_mismatch", "order:4"])


@test
def a_new_template_counts_from_the_next_send_on(q):
    b = hx.broker
    keyed(q, "a:${id}")
    same(key_of(q, {"id": 1}), "a:1")
    keyed(q, "b:${id}")
    yield
    same(key_of(q, {"id": 1}), "b:1")
    same(sorted(m["key"] for m in b.receive(q, max=10)), ["a:1", "b:1"])


# ---- fingerprints

@test
def ignored_fields_do_not_make_a_conflict(q):
    b = hx.broker
    keyed(q, "${id}", fingerprint={"ignore": ["sent_at", "meta.retry"]})
    event = {"id": 1, "amount": 5, "sent_at": 1, "meta": {"retry": 0}}
    b.event(q, event)
    yield
    members(b.event(q, {**event, "sent_at": 2, "meta": {"retry": 3}}).json(), outcome="duplicate")
    reply = b.event(q, {**event, "amount": 6, "sent_at": 3})
    same(problem(reply, 422, "key_reused")["changed"], ["amount"])


@test
def a_fingerprint_may_be_of_some_fields_of_the_meaning_or_of_nothing(q):
    b = hx.broker
    for name, rule, same_again, other in [
            ("json", "json", '{ "b":1.0,"id":1 , "a":"\\u0078"}', '{"id":1,"a":"x","b":2}'),
            ("only", {"only": ["a"]}, '{"id":1,"a":"x","b":99}', '{"id":1,"a":"y","b":1}'),
            ("bytes", "bytes", '{"id":1,"a":"x","b":1}', '{"id":1,"a":"x", "b":1}'),
            ("none", "none", '{"id":1,"a":"y"}', None)]:
        queue = f"{q}-{name}"
        keyed(queue, "${id}", fingerprint=rule)
        b.event(queue, '{"id":1,"a":"x","b":1}')
        members(b.event(queue, same_again).json(), outcome="duplicate")
        if other:
            problem(b.event(queue, other), 422, "key_reused")


@test
def a_new_fingerprint_rule_knows_the_repeats_of_before(q):
    b = hx.broker
    before = [{"id": n, "sent_at": 1} for n in range(3)]
    keyed(q, "${id}", keep_payload="1h")
    for event in before:
        b.event(q, event)
    b.ok("ack", b.one(q))
    keyed(q, "${id}", keep_payload="1h", fingerprint={"ignore": ["sent_at"]})
    yield
    for event in before:
        members(b.event(q, event).json(), outcome="duplicate")
        members(b.event(q, {**event, "sent_at": 2}).json(), outcome="duplicate")
    problem(b.event(q, {**before[1], "amount": 5}), 422, "key_reused")


# ---- schemas

SCHEMA = {"required": ["id", "amount"], "types": {"amount": "integer", "note": ["string", "null"]}, "enum": {"currency": ["EUR", "USD"]},
          "pattern": {"id": "^pi_[a-z0-9]+$"}, "max_length": {"note": 5}}
GOOD = {"id": "pi_1", "amount": 5, "currency": "EUR", "note": None}


@test
def what_fails_the_schema_is_refused_by_the_name_of_its_field(q):
    b = hx.broker
    keyed(q, "${id}", schema=SCHEMA)
    for change, field in [({"amount": None}, "amount"), ({"amount": "5"}, "amount"), ({"amount": 5.5}, "amount"), ({"currency": "GBP"}, "currency"),
                          ({"id": "x_1"}, "id"), ({"note": "longer than five"}, "note"), ({"note": 1}, "note")]:
        reply = b.event(q, {**GOOD, **change})
        assert field in problem(reply, 422, "schema")["detail"], reply
    same(b.queue(q)["pending"], 0)
    members(b.event(q, GOOD).json(), outcome="accepted", key="pi_1")
    members(b.event(q, {**GOOD, "id": "pi_2", "amount": 5.0}).json(), outcome="accepted")


@test
def a_pattern_counts_characters_and_knows_common_escapes(q):
    b = hx.broker
    b.rules(q, schema={"pattern": {"id": r"^(EUR|USD)-\d{4}(-.{2})?$"}})
    for key, (text, status) in enumerate([("EUR-2026", 202), ("USD-2026-\u00e9\U0001f600", 202), ("EUR-dddd", 422), ("GBP-2026", 422), ("EUR-2026-abc", 422)]):
        same(b.event(q, {"id": text}, f"k{key}").status, status, text)


# Each of these overflowed the stack, or took seconds and gigabytes.
BOMBS = ["((" + "a?" * 100 + ")){1000}", "(" + "a?" * 30 + "){1000}", "(" * 128 + "a" + ")" * 127, "(((a{1000}){1000}){1000}){1000}", "(a*)*" * 50,
         "(" * 30 + "a" + "*)" * 30, "(a|" * 80 + ")" * 80, "[" * 256, "a{0,1000}" * 28]


@test
def no_pattern_hurts_the_broker(q):
    b = hx.broker
    for bomb in BOMBS:
        reply = b.call("PUT", f"/v1/queues/{q}", json.dumps({"schema": {"pattern": {"a": bomb}}}).encode())
        if reply.status != 200 and reply.status != 201:
            assert "schema.pattern.a: " in problem(reply, 400, "config_invalid")["detail"], reply
    many = {f"f{i}": "(.?){1000}y" for i in range(32)}
    reply = b.call("PUT", f"/v1/queues/{q}", json.dumps({"schema": {"pattern": many}}).encode())
    problem(reply, 400, "config_invalid")
    b.rules(q, schema={"pattern": {f"f{i}": "(a|b)*a(a|b){12}y" for i in range(60)}})
    text = "abbaabababbabbaaab" * 50
    problem(b.event(q, {f"f{i}": text for i in range(60)}, "k"), 422, "schema")
    same(b.event(q, {f"f{i}": text + "a" * 13 + "y" for i in range(60)}, "k").status, 202)


@test
def a_copy_of_what_was_refused_is_kept_once_with_its_reason(q):
    b = hx.broker
    keyed(q, "${id}", schema=SCHEMA)
    raw = '{"id":"pi_1",  "amount":"five"}'
    for _ in range(3):
        problem(b.event(q, raw), 422, "schema")
    problem(b.event(q, b"\xff not json"), 422, "schema")
    yield
    problem(b.event(q, raw), 422, "schema")
    copies = b.list(q, state="dead")
    same(len(copies), 2)
    copy = next(c for c in copies if c["encoding"] == "utf8")
    members(copy, payload=raw, refused=True)
    assert "amount" in copy["reason"], copy
    same(b.receive(q), [], "copies are not handed out")
    b.rules(q, key="${id}")
    members(b.event(q, raw).json(), outcome="accepted")  # the rules were wrong, not the message
    same(b.post(f"/v1/queues/{q}/purge", {"state": "dead"}).json(), {"purged": 2})


@test
def copies_are_bounded_by_number(q):
    b = hx.broker
    keyed(q, "${id}", schema=SCHEMA, refused={"keep": 3, "bytes": "1MiB"})
    for n in range(10):
        problem(b.event(q, {"id": f"pi_{n}", "amount": "?"}), 422, "schema")
    yield
    same(len(b.list(q, state="dead")), 3)


@test
def copies_are_bounded_by_bytes(q):
    b = hx.broker
    keyed(q, "${id}", schema=SCHEMA, refused={"keep": 100, "bytes": "2KiB"})
    for n in range(10):
        problem(b.event(q, {"id": f"pi_{n}", "amount": "?" * 900}), 422, "schema")
    assert 1 <= len(b.list(q, state="dead")) <= 2


@test
def a_redrive_checks_a_refused_copy_again(q):
    b = hx.broker
    keyed(q, "${id}", schema=SCHEMA)
    problem(b.event(q, {"id": "pi_1", "amount": "5"}), 422, "schema")
    reply = b.post(f"/v1/queues/{q}/redrive", {})
    same(reply.status, 200)
    same(b.receive(q), [], "it still fails")
    keyed(q, "${id}")
    b.post(f"/v1/queues/{q}/redrive", {})
    yield
    m = b.one(q)
    same((m["key"], json.loads(m["payload"])), ("pi_1", {"id": "pi_1", "amount": "5"}))
    same(b.list(q, state="dead"), [])


@test
def a_key_template_alone_checks_that_its_fields_are_there(q):
    b = hx.broker
    keyed(q, "${id}")
    problem(b.event(q, '{"no":"id"}'), 422, "schema")
    yield
    copy, = b.list(q, state="dead")
    members(copy, payload='{"no":"id"}', refused=True)
    assert "id" in copy["reason"], copy


hx.main()
