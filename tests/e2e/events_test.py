#!/usr/bin/env python3
"""Events: what happened is told to whoever reads /v1/events, once it is durable; a reader resumes where he was or hears of the
gap; one who does not read is dropped, and nobody waits for him."""
import collections
import json
import socket

import hx
from hx import members, problem, same, stamp, test, until

FAST = {"transient": {"attempts": 2, "backoff": "1ms", "max": "1ms"}, "crashes": {"attempts": 2}}
Event = collections.namedtuple("Event", "id kind data")


class Feed:
    """A reader of events, as a browser is one."""

    def __init__(self, query="", last_id=None, of=None, head=True):
        self.conn = (of or hx.broker).connect()
        self.last_id, self.events, self.text = None, [], bytearray()
        fields = [("Accept", "text/event-stream")] + ([("Last-Event-ID", last_id)] if last_id else [])
        self.conn.start("GET", "/v1/events" + ("?" + query if query else ""), headers=fields)
        if head:
            self.reply = hx.Reply(*self.conn.head(), b"")
            same(self.reply.status, 200)
            self.begin()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.conn.close()

    def line(self):
        while b"\r\n" not in self.conn.data:
            if not self.conn.more():
                raise hx.Lost("closed")
        end = self.conn.data.index(b"\r\n")
        return self.conn.take(end + 2)[:-2]

    def chunk(self):
        size = int(self.line(), 16)
        data = self.conn.take(size)
        same(self.conn.take(2), b"\r\n")
        if size == 0:
            raise EOFError("the feed has ended")
        self.text += data

    def block(self):
        while b"\n\n" not in self.text:
            self.chunk()
        end = self.text.index(b"\n\n")
        block = self.text[:end].decode()
        del self.text[:end + 2]
        return block

    def begin(self):
        """The place to resume at comes first, before anything has happened."""
        while self.last_id is None:
            self.take(self.block())

    def take(self, block):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        self.last_id = fields.get("id", self.last_id)
        if "data" in fields:
            data = hx.strict_json(fields["data"].encode())
            same(data["kind"], fields["event"])
            stamp(data["at"])
            self.events.append(Event(fields["id"], fields["event"], data))

    def next(self):
        while not self.events:
            self.take(self.block())
        return self.events.pop(0)

    def expect(self, *kinds):
        """The next events, which are of these kinds; their data."""
        events = [self.next() for _ in kinds]
        same([e.kind for e in events], list(kinds), repr(events))
        return [e.data for e in events]


def events_stats(of=None):
    return (of or hx.broker).get("/v1/stats").json()["events"]


@test
def every_kind_appears_for_its_cause(q):
    b = hx.broker
    with Feed(f"queue={q}") as feed:
        same(feed.reply.header("Content-Type"), "text/event-stream")
        b.rules(q, [("Hapax-Actor", "ann")], retry=FAST, on_conflict="hold")
        audit, config = feed.expect("audit", "config")
        for data in (audit, config):
            members(data, queue=q, who="ann", what="queue_put")

        trace = "0af7651916cd43dd8448eb211c80319c"
        id = b.put(q, "k", headers=[("X-Request-Id", "r-1"), ("traceparent", f"00-{trace}-b7ad6b7169203331-01")])
        members(feed.expect("accepted")[0], queue=q, key="k", id=id, request_id="r-1", trace_id=trace)
        same(b.send(q, "k", headers=[("X-Request-Id", "r-2")]).status, 202)
        duplicate, = feed.expect("duplicate")
        members(duplicate, key="k", id=id, request_id="r-2", arrival="replay")
        assert duplicate["age_ms"] >= 0, duplicate

        message = b.one(q, consumer="worker-7")
        delivered, = feed.expect("delivered")
        members(delivered, key="k", id=id, request_id="r-1", consumer="worker-7", delivery="first")
        b.ok("nack", message, **{"class": "transient"}, reason="down")
        members(feed.expect("failed")[0], key="k", consumer="worker-7", **{"class": "transient"}, reason="down")
        b.ok("ack", b.one(q))
        retried, settled = feed.expect("delivered", "settled")
        members(retried, delivery="retry")
        members(settled, key="k", id=id, state="done")
        assert settled["age_ms"] >= 0, settled

        b.put(q, "p")
        b.ok("nack", b.one(q), **{"class": "poison"}, reason="cannot be")
        *_, failed, dead = feed.expect("accepted", "delivered", "failed", "dead")
        members(failed, key="p", **{"class": "poison"})
        members(dead, key="p", reason="cannot be")
        same(b.post(f"/v1/queues/{q}/keys/p/resolve", {"as": "rejected", "by": "bob"}).status, 200)
        audit, settled, resolved = feed.expect("audit", "settled", "resolved")
        members(audit, key="p", who="bob", what="resolve")
        members(settled, key="p", state="rejected")
        members(resolved, key="p", decision="rejected", by="bob")

        same(b.send(q, "k", "another payload").status, 202)
        same(sorted(feed.next().kind for _ in range(3)), ["accepted", "conflict", "held"])


@test
def a_lease_that_runs_out_and_a_decision_are_told(q):
    b = hx.broker
    b.rules(q, retry=FAST)
    with Feed(f"queue={q}&kind=expired,dead,resolved") as feed:
        b.put(q, "k")
        b.one(q, lease="1s", consumer="gone")
        members(feed.expect("expired")[0], key="k", consumer="gone")
        b.one(q, lease="1s")
        feed.expect("expired", "dead")
        same(b.post(f"/v1/queues/{q}/keys/k/resolve", {"as": "retry", "by": "bob", "note": "it is safe"}).status, 200)
        members(feed.expect("resolved")[0], key="k", decision="retry", by="bob", reason="it is safe")


@test
def an_alert_that_fires_is_told(q):
    b = hx.broker
    b.rules(q, dead={"alert": {"count": 1, "within": "15m"}})
    with Feed(f"queue={q}&kind=alert") as feed:
        b.put(q, "k")
        b.ok("nack", b.one(q), **{"class": "poison"})
        members(feed.expect("alert")[0], queue=q, name="dead_letters", state="firing")


@test
def data_has_no_payload_and_stays_one_line_whatever_is_stored(q):
    secret, odd = "swordfish", 'a"b\\c<script>\u2028\U0001f40d'
    with Feed(f"queue={q}") as feed:
        field = '%"' + "".join(f"%{byte:02x}" for byte in odd.encode()) + '"'
        same(hx.broker.send(q, field, secret, [("Hapax-Attr-a", secret)]).status, 202)
        m = hx.broker.one(q)
        hx.broker.ok("step", m, name="one", result=secret)
        hx.broker.ok("ack", m, result=secret)
        got = feed.expect("accepted", "delivered", "settled")
        for data in got:
            same(data["key"], odd)
            assert secret not in json.dumps(data), data


@test
def filters_choose_and_what_cannot_be_is_refused(q):
    b = hx.broker
    with Feed(f"queue={q}&key=b") as key, Feed(f"queue={q}&kind=settled") as kind:
        b.put(q, "a", "b")
        for m in b.receive(q, max=2):
            b.ok("ack", m)
        key.expect("accepted", "delivered", "settled")
        same([d["key"] for d in kind.expect("settled", "settled")], ["a", "b"])
    for wrong, code in (("kind=nothing", "param_invalid"), ("kind=gap", "param_invalid"),
                        ("kind=dead&kind=held", "param_invalid"), ("queue=a%2Fb", "queue_invalid"), ("key=%01", "key_invalid")):
        problem(b.get("/v1/events?" + wrong), 400, code)
    with b.connect() as conn:
        reply = conn.request("HEAD", f"/v1/events?queue={q}")
        same((reply.status, reply.header("Content-Type")), (200, "text/event-stream"))
        same(conn.request("GET", "/healthz").status, 200, "the connection goes on")
    same(b.call("POST", "/v1/events", b"").status, 405)


@test
def a_reader_resumes_where_it_was(q):
    b = hx.broker
    with Feed(f"queue={q}") as feed:
        b.put(q, "a", "b")
        first = feed.next()
        feed.expect("accepted")
    b.put(q, "c")
    with Feed(f"queue={q}", last_id=first.id) as again:
        same([d["key"] for d in again.expect("accepted", "accepted")], ["b", "c"])


@test
def a_restart_is_a_gap(q):
    b = hx.broker
    with Feed(f"queue={q}") as feed:
        b.put(q, "a")
        feed.expect("accepted")
    last = feed.last_id
    yield
    b.put(q, "b")
    with Feed(f"queue={q}", last_id=last) as again:
        gap, accepted = again.expect("gap", "accepted")
        assert gap["reason"], gap
        same(accepted["key"], "b")
    with Feed(f"queue={q}", last_id=again.last_id) as third:
        b.put(q, "c")
        same(third.expect("accepted")[0]["key"], "c")


@test
def an_old_client_reads_until_the_end(q):
    with hx.broker.connect() as conn:
        conn.write(f"GET /v1/events?queue={q} HTTP/1.0\r\n\r\n".encode())
        conn.head()
        hx.broker.put(q, "k")
        while b'"key":"k"' not in conn.data:
            assert conn.more()
        assert b"\r\n" not in conn.data, "no chunks"


@test
def a_clean_end_ends_the_feeds(q):
    with hx.Broker() as b, Feed(of=b) as feed:
        b.put("q", "k")
        feed.expect("accepted")
        same(b.stop(), 0)
        try:
            feed.next()
        except EOFError:
            return
        assert False, "the feed goes on"


def flood(queue, stop):
    """Sends until told to stop; how many."""
    sent, client, lines = 0, hx.broker.client(), 200
    while not stop():
        reply = client.batch(queue, [{"key": f"{queue}-{sent + i}-{'x' * 200}", "payload": "x"} for i in range(lines)])
        same({line["status"] for line in reply.lines()}, {202})
        sent += lines
    client.close()
    return sent


def ended(sock):
    """How a connection ends for one who reads what is left of it."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        return "reset"
    return "end"


@test
def a_reader_that_stops_is_dropped_and_the_sender_goes_on(q):
    before = events_stats()["dropped"]
    stopped = Feed(f"queue={q}", head=False)
    stopped.conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with stopped:
        until(lambda: events_stats()["readers"] >= 1, "a reader")
        sent = flood(q, lambda: events_stats()["dropped"] > before)  # as long as that takes: megabytes, at a few hundredths of the broker's time
        assert sent > 0
        assert hx.broker.queue(q)["pending"] == sent
        same(ended(stopped.conn.sock), "reset", "what was left to say is not kept for it")


@test(alone=True)
def two_hundred_readers_one_of_them_stopped_hear_everything(q):
    b = hx.broker
    readers = [Feed(f"queue={q}") for _ in range(199)]
    stopped = Feed(f"queue={q}")
    same(events_stats()["readers"], 200)
    keys = [f"k{i}" for i in range(20)]
    b.put(q, *keys)
    for feed in readers:
        same([d["key"] for d in feed.expect(*["accepted"] * len(keys))], keys)
    for feed in readers + [stopped]:
        feed.conn.close()
    until(lambda: events_stats()["readers"] == 0, "their places are free again")


@test(alone=True)
def a_reader_too_many_is_refused_and_told_to_come_back(q):
    feeds = [Feed() for _ in range(256)]
    refused = hx.broker.get("/v1/events")
    problem(refused, 503, "overloaded")
    assert int(refused.header("Retry-After")) >= 1
    feeds.pop().conn.close()
    until(lambda: hx.broker.call("HEAD", "/v1/events").status == 200, "a free place")
    for feed in feeds:
        feed.conn.close()


@test
def a_queue_has_nothing_of_a_deleted_one_whose_number_it_was_given(_):
    with hx.Broker() as broker:
        feed = Feed(of=broker)
        began = feed.last_id
        broker.rules("former", window="1s")
        id = broker.put("former", "k", payload="secret", headers=[("X-Request-Id", "r-1")])
        message = broker.one("former", consumer="their-worker")
        broker.ok("ack", message, result="secret")
        broker.put("former", "other")
        same(broker.call("DELETE", "/v1/queues/former/keys/other", headers=[("Hapax-Actor", "ann")]).status, 204)
        until(lambda: broker.send("former", "k", payload="secret").status == 202, "its window is over")
        broker.ok("ack", broker.one("former"))
        until(lambda: broker.get("/v1/queues/former/keys/k").status == 404, "and again")
        until(lambda: broker.queue("former")["counters"]["keys_expired"] >= 1, "it is let go")
        same(broker.call("DELETE", "/v1/queues/former").status, 204)

        broker.rules("present", window="1h")
        own = broker.put("present", "k", payload="mine")
        broker.put("present", "other")
        counters = broker.queue("present")["counters"]
        members(counters, accepted=2, duplicates=0, keys_expired=0, forgotten=0)
        for path in (f"messages/{id}", f"messages/{id}/timeline"):
            same(broker.get(f"/v1/queues/present/{path}").status, 404, path)
        assert broker.settle("ack", message).status >= 400
        same([i["id"] for i in broker.get("/v1/find?key=k").json()["items"]], [own])
        same(broker.get("/v1/find?request_id=r-1").json()["items"], [])
        page = broker.key("present", "other")
        assert "ann" not in str(page), page
        same(broker.get("/v1/consumers?queue=present").json()["items"], [])
        metrics = broker.get("/metrics").body.decode()
        assert 'hapax_replay_age_seconds_count{queue="present"} 0\n' in metrics, "none of its keys came after its window"
        assert "former" not in metrics
        with Feed("queue=present", last_id=began, of=broker) as again:
            told = again.expect("audit", "config", "accepted", "accepted")
            members(told[2], queue="present", key="k", id=own)
            assert "secret" not in str(told) and "ann" not in str(told), told
        for event in [feed.next() for _ in range(6)]:
            assert event.data.get("queue") != "present", event
        feed.conn.close()


if __name__ == "__main__":
    hx.main()
