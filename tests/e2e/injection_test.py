#!/usr/bin/env python3
"""Whatever is stored, by a client, an operator or the config file, stays what it is: it is never a field of a head, a line of the log, a
metric, an event of a stream. Every string somebody can set is set as bad as it can be; then everything the broker says is read to the
letter. (For terminals: terminal_test.py; for pages: the dashboard's own tests.)"""
import hashlib
import json
import re

import hx
from hx import Broker, same, test

LINE_ENDS = "\r\nInjected: yes\r\n\r\nInjected 1\nevent: injected\ndata: injected\n\ninjected_total{queue=\"q\"} 1\n\u2028\u0085"
EVIL = f'e"\\\' }} {{ , ={LINE_ENDS}\x1b[2J\x00\x7f'
MILD = 'e"\\\' } { , = level=error \u2028\u202e'  # no control characters
TOKEN = "hx_" + "T" * 43
CONFIG = f"""\
tokens: [{{name: all, sha256: ["{hashlib.sha256(TOKEN.encode()).hexdigest()}"], allow: ["admin", "operate:*", "observe", "send:*", "receive:*", "result:*"]}}]
queues:
  q: {{keep_payload: 1h, on_unknown: hold, log_duplicates: true, event_type: "${{type}}", order_by: "${{group}}", window: 1h}}
"""
FIELDS = {"connection", "content-length", "content-type", "date", "server", "retry-after", "www-authenticate", "location", "etag", "cache-control",
          "hapax-state", "idempotent-replayed", "preference-applied", "allow", "x-content-type-options", "content-security-policy",
          "referrer-policy", "vary", "hapax-request-id", "transfer-encoding", "link", "x-frame-options"}
METRIC = re.compile(r'^[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\["\\n])*"(,[a-z]+="(?:[^"\\\n]|\\["\\n])*")*\})? \S+( # .*)?$')
LOGFMT = re.compile(r'^([a-z_]+=("(?:[^"\\]|\\.)*"|[^ "\\=]*)( |$))+$')


class Asking:
    """A broker's client that keeps every byte it got, and looks at every head."""

    def __init__(self, b):
        self.b, self.heads = b, 0

    def call(self, method, path, body=None, headers=()):
        with self.b.connect() as c:
            c.start(method, path, body, [("Authorization", f"Bearer {TOKEN}"), ("Connection", "close"), *headers])
            head, _, body = c.rest().partition(b"\r\n\r\n")
        line, *fields = head.split(b"\r\n")
        assert re.fullmatch(rb"HTTP/1\.1 \d{3} [A-Za-z -]+", line), line
        for field in fields:
            assert re.fullmatch(rb"[A-Za-z0-9-]+: [\x20-\x7e\t]*", field), field
            name = field.split(b":")[0].decode().lower()
            assert name in FIELDS, field
        self.heads += 1
        return int(line[9:12]), body

    def post(self, path, value=None, headers=()):
        return self.call("POST", path, b"" if value is None else json.dumps(value).encode(), headers)


def one(ask):
    """The token of a message; there is one."""
    body = json.dumps({"type": EVIL, "group": f"{next(hx.numbers)}"}).encode()
    ask.call("POST", "/v1/queues/q/messages", body, [("Idempotency-Key", f'"n{next(hx.numbers)}"'), ("Content-Type", "application/json")])
    status, body = ask.post("/v1/queues/q/receive?wait=5s")
    same(status, 200)
    return json.loads(body)["messages"][0]["token"]


def set_everything(ask):
    """Every string of the API, refused or taken: either is fine, as long as nothing comes of it."""
    key = '%"' + "".join(f"%{byte:02x}" for byte in EVIL.encode()) + '"'
    payload = json.dumps({"type": EVIL, "group": EVIL}).encode()
    bad = EVIL.encode().translate(None, b"\r\n\x00\x1b\x7f")  # what a field of a head can have at all
    for name, extra in (("plain", []), ("attr", [("Hapax-Attr-A", bad)]), ("id", [("Hapax-Request-Id", bad)]), ("agent", [("User-Agent", bad)])):
        ask.call("POST", "/v1/queues/q/messages", payload, [("Idempotency-Key", f'"{name}"'), ("Content-Type", "application/json"), *extra])
    for text in (EVIL, "k\u2028x", 'k"\\x'):
        line = {"key": text, "payload": {"type": text, "group": text}, "attributes": {text: text, "a": text}, "group": text}
        for _ in range(2):  # the second is a duplicate, and logged
            ask.call("POST", "/v1/queues/q/batch", json.dumps(line).encode() + b"\n", [("Content-Type", "application/x-ndjson"), ("Hapax-Request-Id", "a")])
    for _ in range(2):
        ask.call("POST", "/v1/queues/q/messages", payload, [("Idempotency-Key", key), ("Content-Type", "application/json")])
    ask.post("/v1/step", {"token": one(ask), "name": EVIL, "result": EVIL})
    ask.post("/v1/nack", {"token": one(ask), "class": "permanent", "reason": EVIL, "effect_id": EVIL})
    ask.post("/v1/nack", {"token": one(ask), "class": "unknown", "reason": EVIL})
    for type_ in (EVIL, "text/plain\r\nInjected: yes", "text/plain; x=\u2028"):
        ask.post("/v1/ack", {"token": one(ask), "result": EVIL, "content_type": type_, "effect_id": EVIL})
        ask.call("POST", "/v1/queues/q/messages", b'{"type":"t","group":"x"}', [("Idempotency-Key", '"more"'), ("Content-Type", "application/json")])
    actor = [("Hapax-Actor", bad), ("Hapax-Reason", bad)]
    for path in ("pause", "resume", "purge", "redrive"):
        for text in (EVIL, MILD):
            ask.post(f"/v1/queues/q/{path}", {"by": text, "note": text})
        ask.post(f"/v1/queues/q/{path}", None, actor)
    for evil in ("q%0d%0aInjected:%20yes", "q%22%0ainjected", "q%1b%5b2J", "%e2%80%a8"):
        for path in (f"/v1/queues/{evil}", f"/v1/queues/{evil}/messages", f"/v1/queues/q/keys/{evil}", f"/v1/queues/q/keys/{evil}/result", f"/{evil}",
                     f"/v1/queues/q/messages?state={evil}", f"/v1/queues/q?{evil}=1", f"/v1/audit?queue={evil}", f"/in/{evil}"):
            ask.call("GET", path)
            ask.call("POST", path, b"{}")
        ask.call("PUT", f"/v1/queues/{evil}", json.dumps({"window": EVIL, EVIL: 1}).encode())


def look_at_everything(ask):
    for path in ("/v1/queues", "/v1/queues/q", "/v1/stats", "/v1/audit", "/v1/alerts?all=true", "/v1/queues/q/messages?state=dead",
                 "/v1/queues/q/messages?state=held", "/v1/queues/q/messages?state=pending", "/v1/queues/q/keys/plain", "/v1/queues/q/keys/more/result"):
        status, body = ask.call("GET", path)
        if b"\n" in body.strip() and status == 200:
            raise AssertionError(f"{path}: {body!r}")


@test
def nothing_that_is_stored_becomes_a_field_of_a_head_or_a_line_of_the_log():
    for form in ("logfmt", "json"):
        with Broker(config=CONFIG, options=["--log", form, "--log-level", "debug"]) as b:
            ask = Asking(b)
            set_everything(ask)
            look_at_everything(ask)
            assert ask.heads > 100, ask.heads
            for line in b.stderr().split("\n")[:-1]:
                assert not re.search(r"[\x00-\x1f\x7f]", line), repr(line)
                if form == "json":
                    assert isinstance(json.loads(line), dict), line
                else:
                    assert LOGFMT.match(line), repr(line)
                assert not line.startswith(("Injected", "injected", "event:", "data:")), line
            assert "duplicate" in b.stderr() and "operator" in b.stderr()
            same(b.stop(), 0)


@test
def what_is_shown_is_kept_by_no_cache():
    with Broker(config=CONFIG) as b:
        auth = [("Authorization", f"Bearer {TOKEN}")]
        same(b.call("POST", "/v1/queues/q/messages", b'{"group":"g"}', [*auth, ("Idempotency-Key", '"k"'), ("Content-Type", "application/json")]).status, 202)
        token = b.call("POST", "/v1/queues/q/receive", b"", auth).json()["messages"][0]["token"]
        same(b.call("POST", "/v1/ack", json.dumps({"token": token, "result": "r"}).encode(), auth).status, 200)
        for path in ("/v1/queues", "/v1/queues/q", "/v1/queues/q/messages?state=pending", "/v1/queues/q/keys/k", "/v1/queues/q/keys/k/result", "/v1/stats",
                     "/v1/audit", "/v1/alerts"):
            for method in ("GET", "HEAD"):
                reply = b.call(method, path, None, auth)
                same((path, reply.status, reply.header("Cache-Control")), (path, 200, "no-store"))


@test
def nothing_that_is_stored_becomes_a_metric():
    with Broker(config=CONFIG) as b:
        ask = Asking(b)
        set_everything(ask)
        for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
            status, body = ask.call("GET", "/metrics", headers=[("Accept", accept)])
            same(status, 200)
            for line in body.decode().split("\n")[:-1]:
                assert line.startswith(("# HELP ", "# TYPE ", "# EOF", "# UNIT ")) or METRIC.match(line), repr(line)
                assert not line.startswith("injected"), line


@test
def nothing_that_is_stored_becomes_an_event_of_the_stream():
    with Broker(config=CONFIG) as b, b.connect() as c:
        c.start("GET", "/v1/events", headers=[("Authorization", f"Bearer {TOKEN}")])
        c.head()
        ask = Asking(b)
        set_everything(ask)
        status, _ = ask.post("/v1/queues/q/messages", None, [("Idempotency-Key", '"the-last-one"')])
        assert status < 500, status
        ask.call("POST", "/v1/queues/q/batch", b'{"key":"the-very-last","payload":{"group":"z","type":"z"}}\n', [("Content-Type", "application/x-ndjson")])
        while b"the-very-last" not in c.data:
            assert c.more(), bytes(c.data[-500:])
        lines = re.split(r"\r\n|[\r\n]", bytes(c.data).rpartition(b"\n\n")[0].decode())
        known = re.compile(r"(|:.*|id: \S+|event: [a-z_.]+|data: \{.*\}|retry: \d+|[0-9a-f]+)")
        for line in lines:
            assert known.fullmatch(line), repr(line)
            assert "event: injected" != line and "data: injected" != line
        assert sum(line.startswith("data: ") for line in lines) > 10, lines


@test
def who_is_turned_away_is_in_the_log_with_his_address():
    few = CONFIG.replace("[\"admin\"", "[\"observe\"").replace('"operate:*", "observe", "send:*", "receive:*", "result:*"', '"send:other"')
    with Broker(config=few, options=["--log", "json"]) as b:
        auth = [("Authorization", f"Bearer {TOKEN}")]
        same(b.call("POST", "/v1/queues/q/purge", b"", auth).status, 403)
        same(b.call("GET", "/v1/queues", None, [("Authorization", "Bearer hx_not-a-token-of-anybody")]).status, 401)
        hx.until(lambda: "token_refused" in b.stderr(), "it is told")
        said = {line["event"]: line for line in map(json.loads, b.stderr().splitlines())}
        same((said["right_refused"]["why"], said["right_refused"]["address"]), ("token all lacks the right operate:q", "127.0.0.1"))
        same((said["token_refused"]["why"], said["token_refused"]["address"]), ("wrong", "127.0.0.1"))
        assert "not-a-token" not in b.stderr() and TOKEN not in b.stderr()


@test
def names_of_the_config_file_say_no_more_than_a_name():
    """Of tokens, tenants, sources, hosts, queues: refused, in one line that names the place."""
    hexes = "0" * 64
    for text in ('tokens: [{name: "%s", sha256: ["' + hexes + '"], allow: [observe]}]\n', 'tenants: {"%s": {prefix: "a."}}\n', 'hosts: ["%s"]\n',
                 'queues: {"%s": {}}\n', 'sources: {"%s": {queue: q, verify: {scheme: standard, secrets: ["${X}"]}}}\nqueues: {q: {}}\n',
                 'tenants: {a: {prefix: "%s"}}\n', 'tokens: [{name: a, sha256: ["%s"], allow: [observe]}]\n', 'tokens: [{name: a, sha256: ["' + hexes + '"], allow: ["%s"]}]\n'):
        for evil in (r"a\r\nInjected: yes", r"a\e[2Jb", r"a\nlevel=error b", r"a\x00b"):
            with Broker(config="queues: {q: {}}\n") as b:
                said = b.reload(text.replace("%s", evil))
                assert "reload refused" in said, (text, evil, said)
                for line in said.split("\n")[:-1]:
                    assert LOGFMT.match(line) and not re.search(r"[\x00-\x1f\x7f]", line), repr(line)


hx.main(shared=False, threads=4)
