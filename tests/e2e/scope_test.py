#!/usr/bin/env python3
"""Keys of two senders: where a queue says key_scope: credential, equal keys of two tokens are two keys, and they never meet. Nobody
who may not look learns anything of another's. A token's name is the credential: what is rotated stays the same one."""
import hashlib
import hmac
import json
import os
import subprocess
import tempfile
import time

import hx
from hx import members, problem, problem_members, quote, same, test

NAMES = {
    "shop": ["send", "result"],
    "mill": ["send", "result"],
    "worker": ["receive"],
    "oncall": ["operate", "send"],
    "eye": ["observe"],
    "root": ["admin"],
}


def text(name, version=1):
    return f"hx_{name}{version}" + "x" * 40


def digest(name, version=1):
    return hashlib.sha256(text(name, version).encode()).hexdigest()


def tokens(**rights):
    return "tokens:\n" + "".join(f"  - {{name: {n}, sha256: ['{digest(n)}'], allow: {json.dumps(a)}}}\n" for n, a in rights.items())


QUEUES = """\
queues:
  q: {key_scope: credential, keep_payload: 1h}
  made: {key_scope: credential, key: "n:${n}", schema: {required: [n]}, fingerprint: json}
  forks: {key_scope: credential, on_conflict: new}
  held: {key_scope: credential, on_conflict: hold}
  all: {key_scope: credential, semantics: at_least_once}
  most: {key_scope: credential, semantics: at_most_once}
  plain: {}
"""
CONFIG = tokens(**NAMES) + QUEUES


class As(hx.Verbs):
    """Somebody with a token, or with none."""

    def __init__(self, broker, name=None, version=1):
        self.broker, self.name = broker, name
        self.fields = [("Authorization", "Bearer " + text(name, version))] if name else []

    def call(self, method, path, body=None, headers=()):
        return self.broker.call(method, path, body, [*headers, *self.fields])


class World:
    def __init__(self, config=CONFIG):
        self.config = config

    def __enter__(self):
        self.broker = hx.Broker(config=self.config)
        for name in NAMES:
            setattr(self, name, As(self.broker, name))
        return self

    def __exit__(self, *_):
        self.broker.remove()


def settle_all(w, queue):
    """Acks what is there, each with its own effect key as the result."""
    while True:
        messages = w.worker.receive(queue, max=100)
        if not messages:
            return
        for m in messages:
            w.worker.ok("ack", m, result="of " + m["effect_key"])


# ---- sending

@test
def equal_keys_of_two_senders_are_two_messages_and_each_hears_of_its_own():
    with World() as w:
        first = w.shop.send("q", "k", "one")
        same(first.status, 202)
        second = w.mill.send("q", "k", "two")
        members(second.json(), outcome="accepted", key="k")
        assert first.json()["id"] != second.json()["id"]
        assert "credential" not in first.json()
        members(w.shop.send("q", "k", "one").json(), outcome="duplicate", key="k", id=first.json()["id"], duplicates=1)
        p = problem(w.mill.send("q", "k", "one"), 422, "key_reused")
        same(p["id"], second.json()["id"])
        messages = w.worker.receive("q", max=10)
        same([(m["key"], m["credential"], m["effect_key"], m["payload"]) for m in messages],
             [("k", "shop", "shop/k", "one"), ("k", "mill", "mill/k", "two")])
        for m in messages:
            members(w.worker.ok("ack", m, result="of " + m["effect_key"]), key="k", credential=m["credential"])
        same(w.shop.send("q", "k", "one").json()["result"]["body"], "of shop/k")
        same(w.mill.send("q", "k", "two").json()["result"]["body"], "of mill/k")
        w.broker.restart()
        same(w.shop.send("q", "k", "one").json()["result"]["body"], "of shop/k")
        same(w.mill.send("q", "k", "two").json()["result"]["body"], "of mill/k")


@test
def lines_of_a_batch_made_keys_and_keys_of_conflicts_are_their_senders_too():
    with World() as w:
        for who in (w.shop, w.mill):
            lines = who.batch("q", [{"key": "b1", "payload": "x"}, {"key": "b2", "payload": "x"}, {"key": "b1", "payload": "x"}]).lines()
            same([line["outcome"] for line in lines], ["accepted", "accepted", "duplicate"])
            members(who.event("made", {"n": 1}).json(), outcome="accepted", key="n:1")
            members(who.event("made", {"n": 1}).json(), outcome="duplicate", key="n:1")
            same(who.send("forks", "k", "one").json()["outcome"], "accepted")
            fork = who.send("forks", "k", "two").json()
            members(fork, outcome="accepted")
            assert fork["key"].startswith("k~"), fork
            members(who.send("forks", "k", "two").json(), outcome="duplicate", key=fork["key"], id=fork["id"])
            same(who.send("held", "k", "one").json()["outcome"], "accepted")
            members(who.send("held", "k", "two").json(), outcome="held")
            for _ in range(2):
                same(who.send("all", "k", "one").json()["outcome"], "accepted")
        forks = w.worker.receive("forks", max=10)
        same(sorted(m["effect_key"][:6] for m in forks), ["mill/k", "mill/k", "shop/k", "shop/k"])
        held = w.eye.list("held", state="held")
        same(sorted((h["credential"], h["conflict_with"]["credential"]) for h in held), [("mill", "mill"), ("shop", "shop")])
        same(len(w.worker.receive("all", max=10)), 4)
        for who in (w.shop, w.mill):
            members(who.send("most", "k").json(), outcome="accepted")
        same(len(w.worker.receive("most", max=10)), 2)
        for who in (w.shop, w.mill):
            members(who.send("most", "k").json(), outcome="duplicate")


@test
def a_name_in_front_is_a_part_of_the_keys_length():
    with World() as w:
        longest = "k" * (255 - len("shop/"))
        same(w.shop.send("q", longest).status, 202)
        members(w.shop.send("q", longest).json(), key=longest, outcome="duplicate")
        p = problem(w.shop.send("q", longest + "k"), 400, "key_invalid")
        assert "256" in p["detail"] and "255" in p["detail"], p
        problem(As(w.broker, "shop").call("GET", f"/v1/queues/q/keys/{longest}k/result"), 404, "no_such_key")


@test
def a_key_that_looks_like_anothers_is_none():
    with World() as w:
        w.shop.put("q", "k", payload="shop's")
        w.mill.put("q", "shop/k", payload="mill's")
        settle_all(w, "q")
        same(w.shop.call("GET", "/v1/queues/q/keys/k/result").body, b"of shop/k")
        same(w.mill.call("GET", "/v1/queues/q/keys/shop%2Fk/result").body, b"of mill/shop/k")
        problem(w.mill.call("GET", "/v1/queues/q/keys/k/result"), 404, "no_such_key")
        members(w.eye.key("q", "shop/k"), key="k", credential="shop")
        members(w.eye.key("q", "mill/shop/k"), key="shop/k", credential="mill")


@test
def without_a_token_a_sender_is_the_anonymous_one():
    with World("anonymous: [send, result]\n" + CONFIG) as w:
        nobody = As(w.broker)
        nobody.put("q", "k", payload="nobody's")
        w.shop.put("q", "k", payload="shop's")
        same({m["effect_key"] for m in w.worker.receive("q", max=10)}, {"anonymous/k", "shop/k"})
        members(nobody.send("q", "k", "nobody's").json(), outcome="duplicate")


@test
def a_webhook_known_by_its_signature_is_its_sources():
    sources = 'sources: {shop: {queue: made, verify: {scheme: hmac, header: x-sig, secrets: ["a secret"]}}}\n'
    with World(CONFIG + sources) as w:
        body = b'{"n": 1}'
        signed = [("x-sig", hmac.new(b"a secret", body, "sha256").hexdigest()), ("Content-Type", "application/json")]
        same(w.broker.call("POST", "/in/shop", body, signed).status, 202)
        members(w.shop.event("made", {"n": 1}).json(), outcome="accepted")
        same(w.broker.call("POST", "/in/shop", body, signed).status, 200)
        same({m["effect_key"] for m in w.worker.receive("made", max=10)}, {"in:shop/n:1", "shop/n:1"})


# ---- who may look

@test
def who_has_none_of_that_name_gets_the_same_answer_whether_another_has_one_or_not():
    """Every way to a key that a sender has: what it says of another's is what it says of nobody's, byte for byte."""
    with World() as w:
        id = w.shop.put("q", "theirs", payload="secret")
        settle_all(w, "q")
        w.shop.put("all", "theirs", payload="secret")
        ways = [
            ("GET", "/v1/queues/q/keys/{key}/result", None),
            ("GET", "/v1/queues/q/keys/{key}/result?wait=1s", None),
            ("GET", "/v1/queues/all/keys/{key}/result", None),
            ("GET", "/v1/queues/q/keys/{key}", None),
            ("GET", "/v1/queues/q/keys?key={key}", None),
            ("GET", "/v1/queues/q/keys?prefix={key}", None),
            ("GET", "/v1/find?key={key}", None),
            ("GET", "/v1/events?queue=q&key={key}", None),
            ("POST", "/v1/queues/q/keys/{key}/replay", b""),
            ("POST", "/v1/queues/q/keys/{key}/erase", b""),
            ("POST", "/v1/queues/q/keys/{key}/resolve", b'{"as":"done","by":"me"}'),
            ("DELETE", "/v1/queues/q/keys/{key}", b""),
        ]
        for method, path, body in ways:
            for spelled in ("theirs", "shop/theirs"):
                of_another = w.mill.call(method, path.format(key=quote(spelled)), body)
                of_nobody = w.mill.call(method, path.format(key=quote(spelled.replace("theirs", "nobody"))), body)
                assert of_another.status in (403, 404), (path, of_another)
                same((of_another.status, of_another.headers, of_another.body), (of_nobody.status, of_nobody.headers, of_nobody.body), path)
        for path in (f"/v1/queues/q/messages/{id}", f"/v1/find?id={id}"):
            assert w.mill.call("GET", path).status in (403, 404)
        same(w.shop.call("GET", "/v1/queues/q/keys/theirs/result").body, b"of shop/theirs")


@test
def who_may_look_sees_whose_key_it_is_and_names_it_whole():
    with World() as w:
        ids = {}
        for who in (w.shop, w.mill):
            ids[who.name] = who.put("q", "k", payload=who.name)
        for name, id in ids.items():
            members(w.eye.key("q", f"{name}/k"), key="k", credential=name, id=id)
            members(w.eye.get(f"/v1/queues/q/messages/{id}").json(), key="k", credential=name)
            found = w.eye.get(f"/v1/find?key={name}%2Fk").json()["items"]
            same({(item["key"], item["credential"]) for item in found}, {("k", name)})
        problem(w.eye.get("/v1/queues/q/keys/k"), 404, "no_such_key")
        listed = w.eye.list("q", state="pending")
        same(sorted((m["key"], m["credential"]) for m in listed), [("k", "mill"), ("k", "shop")])
        for prefix, who in (("k", {"shop", "mill"}), ("shop/", {"shop"}), ("mill/k", {"mill"})):
            items = w.eye.get(f"/v1/queues/q/keys?prefix={quote(prefix)}").json()["items"]
            same({item["credential"] for item in items}, who, prefix)
        for words in (("key", "find", "q", "k"), ("find", "--key", "shop/k")):
            ran = subprocess.run([hx.HAPAX, *words, "--url", w.broker.url], env={**os.environ, "HAPAX_API_TOKEN": text("eye")},
                                 capture_output=True, timeout=hx.TIMEOUT)
            assert ran.returncode == 0 and b"shop/k" in ran.stdout, ran
        w.broker.restart()
        members(w.eye.key("q", "mill/k"), key="k", credential="mill")


@test
def who_looks_and_sends_meets_its_own_key_first():
    with World() as w:
        w.shop.put("q", "k", payload="shop's")
        w.oncall.put("q", "shop/k", payload="oncall's")
        members(w.oncall.key("q", "shop/k"), key="shop/k", credential="oncall")
        members(w.eye.key("q", "shop/k"), key="k", credential="shop")


@test
def events_tell_whose_key_it_was_and_can_be_had_of_one():
    with World() as w:
        with w.broker.connect() as stream:
            stream.start("GET", "/v1/events?queue=q&key=shop%2Fk", None, w.eye.fields)
            stream.head()
            w.mill.put("q", "k")
            w.shop.put("q", "k")
            while b"accepted" not in stream.data:
                stream.more()
            data = [json.loads(line[6:]) for line in bytes(stream.data).decode().splitlines() if line.startswith("data: {")]
            same([(d["kind"], d["key"], d["credential"]) for d in data], [("accepted", "k", "shop")])


# ---- what operators do

@test
def a_deed_on_one_senders_key_leaves_the_others_alone():
    with World() as w:
        for who in (w.shop, w.mill):
            who.put("q", "k", payload=who.name)
        settle_all(w, "q")
        replayed = w.oncall.post("/v1/queues/q/keys/shop%2Fk/replay")
        same(replayed.status, 202)
        members(replayed.json(), key="k", credential="shop", effect_key="shop/k~g1")
        m = w.worker.one("q")
        members(m, key="k", credential="shop", effect_key="shop/k~g1", payload="shop")
        members(w.eye.get("/v1/queues/q/keys?key=shop/k").json(), key="k", credential="shop", effect_key="shop/k~g1")
        w.worker.ok("ack", m, result="again")
        same(w.shop.call("GET", "/v1/queues/q/keys/k/result").body, b"again")
        same(w.mill.call("GET", "/v1/queues/q/keys/k/result").body, b"of mill/k")
        members(w.oncall.post("/v1/queues/q/keys/shop%2Fk/erase").json(), key="k", credential="shop", erased=True)
        same(w.mill.call("GET", "/v1/queues/q/keys/k/result").body, b"of mill/k")
        same(w.oncall.call("DELETE", "/v1/queues/q/keys/shop%2Fk").status, 204)
        problem(w.shop.call("GET", "/v1/queues/q/keys/k/result"), 404, "no_such_key")
        members(w.mill.send("q", "k", "mill").json(), outcome="duplicate")
        problem(w.oncall.post("/v1/queues/q/keys/k/replay"), 404, "no_such_key")
        same({e["key"] for e in w.eye.get("/v1/audit?queue=q").json()["items"] if e.get("key")}, {"shop/k"})


@test
def where_keys_repeat_those_of_one_sender_are_forgotten_and_no_others():
    with World() as w:
        for who in (w.shop, w.mill):
            who.put("all", "k", "k")
        same(len(w.eye.key("all", "shop/k")["items"]), 2)
        same(w.oncall.call("DELETE", "/v1/queues/all/keys/shop%2Fk").status, 204)
        problem(w.eye.get("/v1/queues/all/keys/shop%2Fk"), 404, "no_such_key")
        same(len(w.eye.key("all", "mill/k")["items"]), 2)


@test
def a_copy_of_what_failed_the_schema_is_its_senders_when_it_is_let_in():
    with World() as w:
        for who in (w.shop, w.mill):
            problem(who.event("made", {"m": 1}), 422, "schema")
        same(sorted(m["credential"] for m in w.eye.list("made", state="dead")), ["mill", "shop"])
        w.broker.restart()
        w.broker.reload(CONFIG.replace('"n:${n}"', '"m:${m}"').replace("required: [n]", "required: [m]"))
        members(w.oncall.post("/v1/queues/made/redrive", {"class": "refused"}).json(), redriven=2)
        same({m["effect_key"] for m in w.worker.receive("made", max=10)}, {"shop/m:1", "mill/m:1"})
        members(w.mill.event("made", {"m": 1}).json(), outcome="duplicate", key="m:1")


@test
def a_drill_sends_again_under_the_senders_names_or_not_at_all():
    with World() as w:
        for who in (w.shop, w.mill):
            who.put("q", "k", payload="same")
        line = {"key": "k", "payload": "same"}
        body = lambda **more: json.dumps(dict(line, **more)).encode()
        drill = lambda who, b: who.call("POST", "/v1/queues/q/batch?drill=true", b).lines()[0]
        members(drill(w.oncall, body(credential="shop")), outcome="duplicate")
        problem_members(drill(w.oncall, body()), 400, "param_invalid")
        problem_members(drill(w.shop, body(credential="shop")), 403, "forbidden")
        problem_members(w.oncall.batch("q", [dict(line, credential="shop")]).lines()[0], 400, "param_invalid")
        problem_members(drill(w.oncall, body(credential="shop/k")), 400, "param_invalid")
        ran = subprocess.run([hx.HAPAX, "replay", "q", "--since", "1h", "--approved-by", "me", "--json", "--url", w.broker.url],
                             env={**os.environ, "HAPAX_API_TOKEN": text("oncall")}, capture_output=True, timeout=hx.TIMEOUT)
        same(ran.returncode, 0, str(ran))
        members(json.loads(ran.stdout), no_op=2, new=0)
        same(len(w.eye.list("q", state="pending")), 2)


# ---- rotation, and rules that change

@test
def a_rotated_token_is_the_same_credential():
    with World() as w:
        w.shop.put("q", "k", payload="one")
        w.broker.reload(CONFIG.replace(digest("shop"), digest("shop", 2)))
        same(w.shop.send("q", "k", "one").status, 401)
        members(As(w.broker, "shop", 2).send("q", "k", "one").json(), outcome="duplicate")


@test
def key_scope_does_not_change_while_keys_are_known():
    with World() as w:
        w.shop.put("q", "k")
        w.shop.put("plain", "k")
        for text in (CONFIG.replace("q: {key_scope: credential, ", "q: {"), CONFIG.replace("plain: {}", "plain: {key_scope: credential}")):
            said = w.broker.reload(text)
            assert "reload refused" in said and "key_scope" in said, said
        w.broker.configure(CONFIG.replace("plain: {}", "plain: {key_scope: credential}"))
        w.broker.stop()
        try:
            w.broker.start()
            raise AssertionError("it started")
        except hx.NotReady as refused:
            assert "queue plain: key_scope: it knows 1 keys" in str(refused), refused
        w.broker.configure(CONFIG)
        w.broker.start()
        members(w.shop.send("q", "k").json(), outcome="duplicate")
        same(w.root.rules("api", key_scope="credential")["config"]["key_scope"], "credential")
        w.shop.put("api", "k")
        p = problem(w.root.call("PUT", "/v1/queues/api", b"{}"), 409, "keys_known")
        assert "key_scope" in p["detail"], p
        same(w.root.post("/v1/queues/api/purge").status, 200)
        problem(w.root.call("PUT", "/v1/queues/api", b"{}"), 409, "keys_known")
        same(w.root.call("DELETE", "/v1/queues/api/keys/shop%2Fk").status, 204)
        same(w.root.call("PUT", "/v1/queues/api", b"{}").status, 200)
        w.shop.put("api", "k")
        members(w.mill.send("api", "k").json(), outcome="duplicate")


hx.main(shared=False, threads=6)
