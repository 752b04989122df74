#!/usr/bin/env python3
"""hapax inject: a bad feed shows whether the rules hold, before the real one does."""
import collections
import json
import tempfile

import hx
from hx import members, same, test

CONFIG = """\
queues:
  good: {key: "slot:${c}", fingerprint: {ignore: [sent_at]}}
  narrow: {key: "slot:${c}:${sent_at}"}
  strict: {key: "slot:${c}"}
  bare: {}
"""
EVENTS = [{"c": f"C{n}", "sent_at": n, "in": {"a": "x"}} for n in range(20)]


def inject(b, *args, events=EVENTS, **kw):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(e if isinstance(e, str) else json.dumps(e) + "\n" for e in events))
        file.flush()
        return hx.hapax("inject", file.name, *args, of=b, **kw)


def keys(b, queue):
    return [m["key"] for m in b.list(queue, state="pending", limit=1000)]


@test
def rules_that_hold_do_every_event_once_however_it_comes():
    with hx.Broker(config=CONFIG) as b:
        said = inject(b, "--to", "good", "--change", "sent_at", "--reorder", "--json").json
        members(said, events=20, accepted=20, conflicts=0, refused=0, done_again=0)
        assert said["duplicates"] == said["sent"] - 20 > 0, said
        same(sorted(keys(b, "good")), sorted(f"slot:C{n}" for n in range(20)))


@test
def a_key_of_what_changes_is_found_out():
    with hx.Broker(config=CONFIG) as b:
        ran = inject(b, "--to", "narrow", "--change", "sent_at", "--json", exits=1)
        assert ran.json["done_again"] == ran.json["accepted"] - 20 > 0, ran.json
        assert "was done again" in ran.err, ran.err


@test
def a_fingerprint_of_what_changes_is_found_out():
    with hx.Broker(config=CONFIG) as b:
        ran = inject(b, "--to", "strict", "--change", "in.a", "--json", exits=1)
        members(ran.json, accepted=20, done_again=0, conflicts=ran.json["sent"] - 20)


@test
def the_key_may_be_made_here():
    with hx.Broker(config=CONFIG) as b:
        members(inject(b, "--to", "bare", "--key", "k:${c}", "--json").json, accepted=20, done_again=0)
        assert "key" in inject(b, "--to", "bare", exits=1).err


@test
def most_come_once_or_twice_and_a_few_as_often_as_they_may():
    with hx.Broker(config=CONFIG) as b:
        plan = inject(b, "--to", "good", "--dry-run", events=[{"c": f"C{n}"} for n in range(600)]).text.splitlines()
        often = collections.Counter(collections.Counter(line.split("\t")[1] for line in plan).values())
        same(sorted(often), [1, 2, 3, 4, 5, 6])
        assert often[1] + often[2] > 300 > 60 > often[6], often


@test
def without_an_order_asked_for_the_first_of_each_comes_as_the_file_has_it():
    with hx.Broker(config=CONFIG) as b:
        lines = [line.split("\t") for line in inject(b, "--to", "bare", "--key", "${c}", "--dry-run", "--over", "2h").text.splitlines()]
        firsts = list(dict.fromkeys(int(line[1]) for line in lines))
        same(firsts, list(range(1, 21)))
        assert max(map(len, [[n for n in lines if n[1] == str(k)] for k in firsts])) <= 6
        same(inject(b, "--to", "bare", "--key", "${c}", "--dry-run", "--over", "2h", "--seed", "1").text.splitlines(), ["\t".join(line) for line in lines])
        same(keys(b, "bare"), [])


@test
def what_cannot_be_sent_is_said():
    with hx.Broker(config=CONFIG) as b:
        assert "--to" in inject(b, exits=2).err
        assert "line 2 is not JSON" in inject(b, "--to", "good", events=[EVENTS[0], "{oops\n"], exits=1).err
        assert "no event" in inject(b, "--to", "good", events=[], exits=1).err
        assert "not declared" in inject(b, "--to", "nowhere", exits=1).err
        assert "character" in inject(b, "--to", "good", "--change", "a..b", exits=2).err
        inject(b, "--to", "good", "--repeat", "0", exits=2)


hx.main(shared=False, threads=4)
