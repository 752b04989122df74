#!/usr/bin/env python3
"""`hapax relay`: what commits in the outbox is accepted once, what does not is not, whoever dies in between.

Each test has a database and a queue of its own; the broker is one for all, real, and may be killed."""

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time

import harness
import hx
import pg
from harness import Skip, equal, test
from outbox import Outbox, lines, problem, relayed_by
from proxy import Proxy


@test
def relay_init_makes_debeziums_table_and_adds_to_one_that_is_there_only_what_is_missing(env):
    with Outbox(env, "relay_init", init=False) as o:
        o.drain(code=1, says="hapax relay init")
        assert "CREATE TABLE" in o.hapax("relay", "init", "--dry-run")
        o.drain(code=1, says="no table")
        o.hapax("relay", "init", says="is ready")
        o.hapax("relay", "init", says="was ready")
        equal(o.hapax("relay", "init", "--dry-run"), "")
        o.db.rows('CREATE SCHEMA "My"; CREATE TABLE "My"."Out" (event_id bigint PRIMARY KEY, kind text, body text)')
        columns = ("--table", "My.Out", "--column", "id=event_id", "--column", "payload=body", "--column", "type=kind",
                   "--column", "aggregatetype=", "--column", "aggregateid=")
        o.drain(*columns, code=1, says='no column "refused"')
        equal(o.hapax("relay", "init", *columns, "--dry-run"), 'ALTER TABLE "My"."Out" ADD COLUMN "refused" text;\n')
        o.hapax("relay", "init", *columns)
        o.db.rows("""INSERT INTO "My"."Out" VALUES (7, 'k', E'two\\nlines')""")
        o.drain(*columns)
        (m,) = o.received()
        equal((m["key"], m["payload"], m["attrs"], m["content_type"]), ("7", "two\nlines", {"type": "k"}, "text/plain"))


@test
def each_committed_row_becomes_one_message_and_a_rolled_back_one_none(env):
    with Outbox(env, "relay_once") as o:
        first = o.insert("Placed", '{"n": 1}', "order-1")
        o.db.rows("BEGIN")
        o.insert("Never")
        o.db.rows("ROLLBACK")
        o.drain()
        equal(o.left(), 0)
        (m,) = o.received()
        equal((m["key"], json.loads(m["payload"]), m["content_type"]), (first, {"n": 1}, "application/json"))
        equal(m["attrs"], {"aggregatetype": "order", "aggregateid": "order-1", "type": "Placed"})
        # Replayed from a backup, by hand, after a lost deletion: the same key, hence nothing.
        o.db.rows("""INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES ('%s', 'order', 'order-1', 'Placed', '{"n": 1}')""" % first)
        report = json.loads(o.drain("--json", "--report", "1h"))
        equal((o.left(), report["sent"], report["duplicates"], o.received()), (0, 1, 1, []))


@test
def rows_that_commit_late_are_found_though_later_numbers_were_sent(env):
    with Outbox(env, "relay_late") as o:
        slow = env.session(database="relay_late")
        slow.rows("BEGIN")
        early = o.insert("drawn first", db=slow)
        o.drain()
        late = o.insert("committed first")
        o.drain()
        equal([m["key"] for m in o.received()], [late])
        slow.rows("COMMIT")
        o.drain()
        equal([m["key"] for m in o.received()], [early])


@test
def a_row_the_broker_refuses_is_parked_with_its_reason_and_blocks_nobody(env):
    with Outbox(env, "relay_refused") as o:
        reused, large, good = o.insert("reused"), o.insert("large"), o.insert("good")
        o.broker.client().send("q", reused, b"another payload")
        o.db.rows("""UPDATE outbox SET payload = to_jsonb(repeat('x', 2000000)) WHERE id = '%s'""" % large)
        o.drain(says="1 row refused for good, first %s: key_reused" % reused)
        reasons = dict(o.db.rows("SELECT id, refused FROM outbox"))
        equal(sorted(reasons), sorted([reused, large]))
        assert reasons[reused].startswith("key_reused: ") and reasons[large].startswith("too_large: "), reasons
        equal(sorted(m["key"] for m in o.received()), sorted([reused, good]))
        lag = json.loads(o.hapax("relay", "status", "--json"))
        equal(lag, {"pending": 0, "oldest_ms": 0, "refused_rows": 2})
        o.db.rows("""UPDATE outbox SET payload = '"small now"', refused = NULL WHERE id = '%s'""" % large)
        o.drain()
        equal([m["key"] for m in o.received()], [large])


@test
def payloads_of_every_type_arrive_byte_for_byte(env):
    with Outbox(env, "relay_types", init=False) as o:
        client = o.broker.client()
        for kind, literal, body, content_type in (
                ("json", """'{ "b":1,\n "a":"\\u00e9" }'""", '{ "b":1,\n "a":"\\u00e9" }', "application/json"),
                ("jsonb", "'\"just a string\"'", '"just a string"', "application/json"),
                ("text", "E'grün\\t\\x01'", "grün\t\x01", "text/plain"),
                ("bytea", "decode(repeat('00ff80', 100), 'hex')", "AP+A" * 100, "application/octet-stream"),
                ("text", "NULL", "", "text/plain")):
            o.db.rows("DROP TABLE IF EXISTS outbox; CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY (START 1000) PRIMARY KEY,"
                      " aggregatetype text, aggregateid text, type text, payload %s, refused text)" % kind)
            o.db.rows("INSERT INTO outbox (id, payload) OVERRIDING SYSTEM VALUE VALUES (%d, %s)" % (random.getrandbits(48), literal))
            o.drain()
            (m,) = o.received()
            equal((m["payload"], m["content_type"], m["attrs"]), (body, content_type, {}))


@test
def with_a_sent_column_rows_are_marked_and_stay(env):
    with Outbox(env, "relay_marked", init=False) as o:
        flags = ("--column", "sent=sent_at")
        o.hapax("relay", "init", *flags)
        ids = [o.insert("n%d" % n) for n in range(3)]
        o.broker.client().send("q", ids[1], b"another payload")
        o.drain(*flags)
        o.drain(*flags)
        marked = dict(o.db.rows("SELECT id, sent_at IS NOT NULL AND refused IS NULL FROM outbox"))
        equal(marked, {ids[0]: "t", ids[1]: "f", ids[2]: "t"})
        equal(sorted(m["key"] for m in o.received()), sorted(ids))


@test
def relays_beside_each_other_keep_the_order_of_a_group(env):
    with Outbox(env, "relay_order") as o:
        relays = [o.start("--group", "--batch", "7", "--poll", "1ms") for _ in range(3)]
        for n in range(300):
            o.insert("m%d" % n, group="g%d" % (n % 3))
        o.await_empty()
        for r in relays:
            r.terminate()
            equal(r.wait(), 0)
        seen = {}
        client = o.broker.client()
        while True:
            some = client.receive("q", max=1000)
            for m in some:
                seen.setdefault(m["group"], []).append(int(m["attrs"]["type"][1:]))
            client.post("/v1/ack", [{"token": m["token"]} for m in some])
            if not some:
                break
        equal(seen, {"g%d" % g: list(range(g, 300, 3)) for g in range(3)})


@test
def while_the_broker_is_away_the_relay_waits_without_a_transaction_and_then_goes_on(env):
    with Outbox(env, "relay_away") as o:
        key = o.insert("patient")
        o.broker.kill()
        o.drain(code=3, says="cannot reach")
        r = o.start("--report", "20ms", "--timeout", "500ms", "--json")
        for _ in range(5):
            equal(json.loads(r.stdout.readline())["pending"], 1)
        # Each look finds it between two tries: idle, and holding back nobody's vacuum.
        hx.until(lambda: o.db.rows("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hapax' AND datname ="
                                   " 'relay_away' AND state = 'idle in transaction'")[0][0] == "0", "it is between two tries")
        o.broker.start()
        o.await_empty()
        equal([m["key"] for m in o.received()], [key])


@test
def a_frozen_relay_loses_its_rows_to_another_within_three_timeouts(env):
    with Outbox(env, "relay_frozen") as o:
        frozen = o.start("--timeout", "200ms", "--workers", "1")
        first = o.insert("sent")
        o.await_empty()
        o.broker.signal(signal.SIGSTOP)
        key = o.insert("held")
        held = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'relay_frozen' AND state = 'idle in transaction'"
        while o.db.one(held) == "0":
            pass
        frozen.send_signal(signal.SIGSTOP)
        o.broker.signal(signal.SIGCONT)
        while o.left():
            o.drain()
        frozen.send_signal(signal.SIGCONT)
        equal([m["key"] for m in o.received()], [first, key])


@test
def the_relay_works_behind_pgbouncer_in_transaction_mode(env):
    if not pg.Bouncer.program():
        raise Skip("pgbouncer is not installed")
    with Outbox(env, "relay_bounced") as o, pg.Bouncer(env.server) as bouncer:
        ids = [o.insert("n%d" % n) for n in range(50)]
        dsn = "host=%s port=6432 user=postgres dbname=relay_bounced" % bouncer.home
        o.drain("--workers", "3", "--batch", "5", "--group", dsn=dsn)
        equal(sorted(m["key"] for m in o.received()), sorted(ids))


@test
def a_connection_cut_around_commit_costs_the_relay_a_duplicate_at_most(env):
    for cut, duplicates in (("request", 1), ("reply", 0)):
        with Outbox(env, "relay_cut_" + cut) as o, Proxy(env.server, b"COMMIT\0", cut) as proxy:
            key = o.insert("one")
            dsn = "host=%s user=postgres dbname=relay_cut_%s gssencmode=disable" % (proxy.home, cut)
            o.drain("--workers", "1", dsn=dsn, code=3, says="database: ")
            env.settled_down()
            equal(o.left(), duplicates, cut)
            report = json.loads(o.drain("--json", "--report", "1h", dsn=dsn))
            equal((report["duplicates"], o.left(), [m["key"] for m in o.received()]), (duplicates, 0, [key]), cut)


@test
def what_passes_by_itself_parks_nothing_and_is_tried_again_when_the_broker_wants(env):
    with Outbox(env, "relay_scripted") as o:
        a, c, d = (o.insert(name) for name in "acd")
        batches = relayed_by(o, [
            lambda keys: (429, {"Retry-After": "1"}, json.dumps(problem(429, "backpressure")).encode()),
            lambda keys: lines({"status": 202}, problem(429, "backpressure"), problem(422, "schema")),
            lambda keys: lines(problem(507, "storage_full")),
            lambda keys: (404, {}, json.dumps(problem(404, "no_such_queue")).encode()),
        ])
        equal([keys for _, keys in batches], [[a, c, d], [a, c, d], [c], [c], [c]])
        assert batches[1][0] - batches[0][0] >= 1.0, "came back before Retry-After"
        equal(o.db.rows("SELECT id, refused FROM outbox"), [(d, "schema: because")])


@test
def an_answer_that_makes_no_sense_neither_parks_nor_deletes_a_row(env):
    with Outbox(env, "relay_odd") as o:
        keys = [o.insert(name) for name in "ab"]
        batches = relayed_by(o, [
            lambda keys: (200, {}, b"garbage\n\xff\n"),
            lambda keys: lines({"status": 202}),
            lambda keys: lines({"outcome": "accepted"}),
            lambda keys: (400, {}, b"<html>a proxy's own page</html>"),
            lambda keys: (302, {"Location": "/elsewhere"}, b""),
        ])
        equal(batches[0][1], keys)
        equal(o.db.one("SELECT count(*) FROM outbox"), "0")
        # The one line that was understood is the one row that did not come again.
        equal([k for _, k in batches[2:]], [keys[1:]] * (len(batches) - 2))


@test
def a_request_that_is_too_large_is_halved_until_it_fits(env):
    with Outbox(env, "relay_halved") as o:
        keys = [o.insert("n%d" % n) for n in range(8)]
        too_large = (lambda keys: (413, {}, json.dumps(problem(413, "too_large")).encode()))
        batches = relayed_by(o, [too_large, too_large, too_large, too_large])
        equal([len(k) for _, k in batches], [8, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1][:len(batches)])
        equal(o.db.rows("SELECT id FROM outbox"), [(keys[0],)])


@test
def the_daemon_runs_the_relays_of_its_config_and_waits_for_a_database_that_is_away(env):
    with Outbox(env, "relay_config") as o:
        o.broker.kill()
        away = "host=%s user=postgres dbname=not_there_yet" % env.server.home
        with open(os.path.join(o.home, "hapax.yaml"), "w") as f:
            f.write("queues: {q: {}}\nrelay:\n  - {dsn: '${OUTBOX_DSN}', queue: q, poll: 10ms}\n"
                    "  - {dsn: '%s', queue: q}\n" % away)
        o.broker.env = {"HAPAX_CONFIG": f.name, "OUTBOX_DSN": o.dsn}
        o.broker.start()
        ids = {o.insert("Placed") for _ in range(20)}
        o.await_empty()
        equal({m["key"] for m in o.received()}, ids)
        while True:
            relays = o.broker.get("/v1/stats").json()["relays"]
            if "trouble" in relays[1]:
                break
            time.sleep(0.01)
        assert "not_there_yet" in relays[1]["trouble"], relays
        equal(o.broker.stop(), 0)


TOKEN = "hx_" + "a-token-of-this-test".ljust(43, "0")


def asks_for_tokens(o, also=""):
    with open(os.path.join(o.home, "hapax.yaml"), "w") as f:
        f.write("queues: {q: {}, other: {}}\ntokens: [{name: all, sha256: [%s], allow: [admin]}]\n%s"
                % (hashlib.sha256(TOKEN.encode()).hexdigest(), also))
    return f.name


def pending(o):
    reply = o.broker.call("GET", "/v1/queues/q", None, [("Authorization", "Bearer " + TOKEN)])
    equal(reply.status, 200, reply)
    return reply.json()["pending"]


@test
def the_relays_of_the_daemon_go_on_where_tokens_are_asked_for(env):
    with Outbox(env, "relay_own_token") as o:
        o.broker.kill()
        config = asks_for_tokens(o, "relay: [{dsn: '${OUTBOX_DSN}', queue: q, poll: 10ms}]\n")
        o.broker.env = {"HAPAX_CONFIG": config, "OUTBOX_DSN": o.dsn}
        o.broker.start()
        for n in range(2):
            for _ in range(20):
                o.insert("Placed")
            o.await_empty()
            equal(pending(o), 20 * (n + 1))
            equal(o.broker.get("/v1/queues").status, 401)
            asks_for_tokens(o, "relay: [{dsn: '${OUTBOX_DSN}', queue: q, poll: 10ms}]\nanonymous: [send:other]\n")
            o.broker.signal(signal.SIGHUP)
            while o.broker.send("other", "k%d" % n).status == 401:
                time.sleep(0.01)
        equal(o.broker.stop(), 0)


@test
def the_relays_of_the_daemon_go_on_where_only_tls_is_spoken_by_a_door_that_is_theirs_alone(env):
    with Outbox(env, "relay_own_door") as o:
        o.broker.kill()
        cert, key = os.path.join(o.home, "cert.pem"), os.path.join(o.home, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=x",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
        # Whoever shows a certificate may do everything: a plain way in would be one without.
        with open(os.path.join(o.home, "hapax.yaml"), "w") as f:
            f.write("listen: [{address: '127.0.0.1:0', tls: {cert: %s, key: %s, client_ca: %s}}]\nqueues: {q: {}}\n"
                    "relay: [{dsn: '${OUTBOX_DSN}', queue: q, poll: 10ms}]\n" % (cert, key, cert))
        with open(os.path.join(o.home, "log"), "w+") as log:
            daemon = subprocess.Popen([hx.HAPAXD, "--config", f.name, "--data", os.path.join(o.home, "tls")], stdout=subprocess.PIPE,
                                      stderr=log, env=dict(os.environ, OUTBOX_DSN=o.dsn), text=True)
            try:
                url = daemon.stdout.readline().split()[-1]
                assert url.startswith("https://"), url
                for _ in range(20):
                    o.insert("Placed")
                o.await_empty()
                shown = o.hapax("queues", "show", "q", "--json", "--url", url, "--cacert", cert, "--cert", cert, "--cert-key", key)
                equal(json.loads(shown)["pending"], 20)
                inside = re.findall(r"own relays.*url=http://127\.0\.0\.1:(\d+)", open(log.name).read())
                equal(len(inside), 1)
                with hx.Conn(int(inside[0])) as stranger:
                    for method, path in (("GET", "/v1/queues"), ("GET", "/healthz"), ("POST", "/v1/queues/q/messages")):
                        reply = stranger.request(method, path)
                        equal((reply.status, reply.json()["detail"]), (401, "this address is for the broker's own relays"))
            finally:
                daemon.terminate()
                equal(daemon.wait(60), 0)


@test
def a_relay_with_a_token_sends_and_one_without_parks_nothing(env):
    with Outbox(env, "relay_token") as o:
        o.broker.kill()
        o.broker.env = {"HAPAX_CONFIG": asks_for_tokens(o)}
        o.broker.start()
        o.insert("Placed")
        o.drain(code=3, says="this needs a token")
        equal(o.left(), 1)
        o.drain("--api-token", TOKEN)
        equal(pending(o), 1)


@test
def wrong_usage_of_the_relay_is_told(env):
    with Outbox(env, "relay_usage") as o:
        o.hapax("relay", code=2, says="--queue is missing")
        o.drain("--column", "nonsense=x", code=2, says="WHAT=NAME")
        o.drain("--column", "id=", code=2, says="must have a column for id")
        o.drain("--column", "type=missing", code=1, says='no column "missing"')
        o.drain(dsn="host=%s port=1 user=postgres" % o.env.server.home, code=3, says="database")
        o.hapax("relay", "--queue", "no\x01such", "--once", code=2, says="--queue: a queue name")
        o.insert("waits")
        o.drain("--url", "http://127.0.0.1:1", code=3, says="broker: ")


class Producer(threading.Thread):
    """Transactions of a few rows, each row also in a ledger; one in four is rolled back. The database may go away."""

    def __init__(self, o, seed):
        super().__init__(daemon=True)
        self.o, self.rand, self.ending, self.trouble = o, random.Random(seed), threading.Event(), None

    def transaction(self, db):
        db.rows("BEGIN")
        db.rows("WITH made AS (INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
                " SELECT 'order', 'g' || i %% 7, 't', to_jsonb(i) FROM generate_series(1, %d) i RETURNING id)"
                " INSERT INTO ledger SELECT id FROM made" % self.rand.randint(1, 20))
        db.rows("ROLLBACK" if self.rand.random() < 0.25 else "COMMIT")

    def run(self):
        db = None
        while not self.ending.wait(0.002):
            try:
                db = db or self.o.env.server.connect(database=self.o.name)
                self.transaction(db)
            except (pg.Lost, pg.SqlError, OSError):
                db = None  # its fate is in the ledger


def one_fault(o, rand, relay_flags):
    kind = rand.choice(["relay"] * 5 + ["broker"] * 3 + ["backend"] * 3 + ["server"])
    if kind == "relay":
        victim = o.relays.pop(rand.randrange(len(o.relays)))
        victim.kill()
        victim.wait()
        victim.stdout.close()
        o.start(*relay_flags)
    elif kind == "broker":
        o.broker.kill()
        o.broker.start()
    elif kind == "backend":
        o.db.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hapax' AND datname = '%s'" % o.name)
    else:
        o.env.server.stop("immediate")
        o.env.server.start()
        o.env.monitor = o.env.server.connect()
        o.db = o.env.session(database=o.name)


@test
def relays_broker_and_database_die_under_load_and_every_committed_row_is_accepted_once(env):
    faults = max(50, int(os.environ.get("CRASHES") or 0) // 4)
    rand = random.Random(faults)
    flags = ("--batch", "50", "--poll", "5ms", "--timeout", "1s", "--report", "0")
    with Outbox(env, "relay_storm") as o:
        o.db.rows("CREATE TABLE ledger (id uuid PRIMARY KEY)")
        producers = [Producer(o, n) for n in range(2)]
        for p in producers:
            p.start()
        for _ in range(3):
            o.start(*flags)
        for _ in range(faults):
            time.sleep(rand.uniform(0.005, 0.1))
            one_fault(o, rand, flags)
        for p in producers:
            p.ending.set()
            p.join()
        o.await_empty()
        committed = sorted(r[0] for r in o.db.rows("SELECT id FROM ledger"))
        equal(o.db.one("SELECT count(*) FROM outbox"), "0", "refused")
        accepted = sorted(m["key"] for m in o.received())
        equal((len(accepted), len(set(accepted))), (len(committed), len(committed)))
        equal(accepted, committed)
        assert len(committed) > faults, "too little load: %d rows" % len(committed)


harness.main()
