#!/usr/bin/env python3
"""hapax key try: a template on past payloads. No broker is needed. Prints TAP."""
import json
import subprocess

import hx
from hx import HAPAX, test

MILESTONE = "m:${shipmentId}:${type}:${date}"


def key_try(template, lines, *flags):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    p = subprocess.run([HAPAX, "key", "try", "--template", template, *flags, "-"], input=text.encode(), stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=60)
    return p.returncode, p.stdout.decode(), p.stderr.decode()


def milestone(shipment, date="2026-03-14", **more):
    return dict({"shipmentId": shipment, "type": "GATE_OUT", "date": date}, **more)


@test
def repeats_of_an_intent_are_counted_and_all_is_well():
    code, out, err = key_try(MILESTONE, [milestone("S1"), milestone("S1"), "", milestone("S2")])
    assert (code, err) == (0, ""), (code, err)
    assert out == "3 messages, 2 keys, 1 repeat, 0 conflicts, 0 failures\n", out


@test
def a_key_too_broad_shows_as_conflicts_with_the_fields_that_differ():
    lines = [milestone("S1", "2026-03-14", amount=n, eta={"day": n}) for n in range(8)]
    code, out, _ = key_try("m:${shipmentId}", lines)
    assert code == 1
    assert "1 key, 0 repeats, 7 conflicts" in out, out
    assert "m:S1  lines 1 and 2: amount, eta.day\n" in out and "and 2 more" in out, out
    assert "too broad?" in out and "amount (7), eta.day (7)" in out, out


@test
def a_volatile_field_is_ignored_by_the_fingerprint():
    lines = [milestone("S1", sent_at=n) for n in range(3)]
    assert key_try(MILESTONE, lines)[0] == 1
    code, out, _ = key_try(MILESTONE, lines, "--fingerprint", "{ignore: [sent_at]}")
    assert code == 0 and "2 repeats, 0 conflicts" in out, out
    lines.append(milestone("S1", sent_at=9, amount=1))
    code, out, _ = key_try(MILESTONE, lines, "--fingerprint", "{ignore: [sent_at]}")
    assert code == 1 and "lines 1 and 4: amount\n" in out and "sent_at" not in out, out


@test
def a_key_too_narrow_names_the_field_that_never_repeats():
    code, out, _ = key_try("m:${shipmentId}:${messageId}", [milestone("S1", messageId=n) for n in range(5)])
    assert code == 0
    assert "too narrow?" in out and "messageId is different in every message" in out, out


@test
def failures_come_with_the_senders_sentence_and_are_grouped():
    lines = [milestone(None), milestone(None), {"x": 1}, "not json", milestone("S" * 300), milestone("S1", amount="1")]
    code, out, _ = key_try("${a}", [{"a": "k~g1"}, {"a": "k~gx"}])
    assert code == 1 and "1 key," in out and "1, first in line 1: the key ends in ~g and digits" in out, out
    code, out, _ = key_try(MILESTONE, lines, "--schema", "{types: {amount: integer}}")
    assert code == 1
    for expected in ("6 failures", "2, first in line 1: field shipmentId is null", "first in line 3: field shipmentId is missing",
                     "first in line 4: the payload is not JSON: expected a value at byte 0",
                     "first in line 5: the key is longer than 255 bytes",
                     'first in line 6: field amount: expected integer, found text "1"'):
        assert expected in out, (expected, out)


@test
def batch_lines_bring_their_payload_and_their_attributes():
    lines = [{"key": "old", "payload": {"id": 1}, "attrs": {"Region": "eu"}},
             {"key": "old", "payload": '{"id":1}', "attrs": {"region": "eu"}},
             {"key": "old", "payload_base64": "eyJpZCI6Mn0=", "attrs": {"region": "eu"}}]
    code, out, _ = key_try("${header.hapax-attr-region}:${id}", lines, "--batch", "--fingerprint", "json")
    assert code == 0 and out.startswith("3 messages, 2 keys, 1 repeat, 0 conflicts, 0 failures"), out
    code, _, err = key_try("${id}", lines + ["{"], "--batch")
    assert code == 1 and "line 4 is no batch line" in err, err


@test
def json_says_the_same_for_programs():
    lines = [milestone("S1", amount=1), milestone("S1", amount=2), {"x": 1}]
    code, out, _ = key_try(MILESTONE, lines, "--json")
    found = json.loads(out)
    assert code == 1
    assert [found[n] for n in ("messages", "keys", "repeats", "conflicts", "failures")] == [3, 1, 0, 1, 1], found
    assert found["conflict_examples"] == [
        {"key": "m:S1:GATE_OUT:2026-03-14", "first_line": 1, "line": 2, "changed": ["amount"]}], found
    assert found["failure_reasons"] == [{"reason": "field shipmentId is missing", "count": 1, "first_line": 3}], found
    assert found["too_broad"].startswith("too broad?") and found["too_narrow"] is None, found


@test
def what_others_stored_cannot_drive_the_terminal():
    lines = [{"id": "\x1b[31mred\u202e", "n\x1b": n} for n in range(2)]
    _, out, _ = key_try("${id}", lines)
    assert "\x1b" not in out and "\u202e" not in out and "%1B[31mred" in out, out


@test
def wrong_usage_is_told_where():
    for template, flags, expected in (
            ("m:${a", [], "--template, character 3: the brace opened here is not closed"),
            ("m", [], "no field in it"),
            ("${a}", ["--fingerprint", "sha1"], "--fingerprint:1:1: expected bytes, json, none"),
            ("${a}", ["--fingerprint", "{ignore: [a..b]}"], "a field name is missing"),
            ("${a}", ["--schema", "{required: a}"], "expected a list of fields")):
        code, out, err = key_try(template, [], *flags)
        assert (code, out) == (2, "") and expected in err, (template, flags, err)
    p = subprocess.run([HAPAX, "key", "try", "-"], input=b"", stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert p.returncode == 2 and b"--template is missing" in p.stderr, p
    assert key_try("${a}", [])[0] == 1


hx.main(threads=1, shared=False)
