"""What the relay's tests share: a database with an outbox, a broker, and relays between them; a broker that answers by a script."""

import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time

import hx
from harness import HAPAX, equal, fresh_database


class Outbox:
    """A database with an outbox, a queue, and relays between them."""

    def __init__(self, env, name, init=True):
        self.env, self.name, self.init, self.relays = env, name, init, []
        self.dsn = "host=%s user=postgres dbname=%s" % (env.server.home, name)

    def __enter__(self):
        fresh_database(self.env, self.name)
        self.db = self.env.session(database=self.name)
        self.home = tempfile.mkdtemp(prefix="hapax-outbox-")
        self.broker = hx.Broker(os.path.join(self.home, "data"))
        try:
            if self.init:
                self.hapax("relay", "init")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for r in self.relays:
            r.kill()
            r.wait()
            r.stdout.close()
        self.broker.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def environment(self, dsn=None, url=None):
        return dict(os.environ, HAPAX_DSN=dsn or self.dsn, HAPAX_URL=url or "http://127.0.0.1:%d" % self.broker.port)

    def hapax(self, *argv, code=0, says="", dsn=None, url=None):
        done = subprocess.run([HAPAX] + list(argv), env=self.environment(dsn, url), text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        equal(done.returncode, code, "hapax %s: %s%s" % (" ".join(argv), done.stdout, done.stderr))
        if says not in done.stdout + done.stderr:
            raise AssertionError("%r is not in %r" % (says, done.stdout + done.stderr))
        return done.stdout

    def drain(self, *flags, **how):
        return self.hapax("relay", "--queue", "q", "--once", *flags, **how)

    def start(self, *flags, dsn=None):
        r = subprocess.Popen([HAPAX, "relay", "--queue", "q", *flags], env=self.environment(dsn), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.relays.append(r)
        return r

    def insert(self, name, payload="{}", group="g", db=None):
        """Returns the row's id."""
        return (db or self.db).one("INSERT INTO outbox (aggregatetype, aggregateid, type, payload)"
                                   " VALUES ('order', '%s', '%s', '%s') RETURNING id" % (group, name, payload))

    def left(self):
        return int(self.db.one("SELECT count(*) FROM outbox WHERE refused IS NULL"))

    def await_empty(self):
        left, since = self.left(), time.monotonic()
        while left:
            time.sleep(0.01)
            now = self.left()
            if now != left:
                left, since = now, time.monotonic()
            assert time.monotonic() < since + hx.TIMEOUT, "%d rows are left and nothing happens" % left

    def received(self, max=1000):
        """Every message of the queue, acknowledged; in the order they came."""
        client, messages = self.broker.client(), []
        while True:
            some = client.receive("q", max=max)
            if not some:
                return messages
            messages += some
            client.post("/v1/ack", [{"token": m["token"]} for m in some])


class ScriptedBroker(http.server.ThreadingHTTPServer):
    """Answers each batch with the next function of its script: keys -> (status, fields, body)."""

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.script, self.batches = list(script), []  # batches: (time, keys)
        self.url = "http://127.0.0.1:%d" % self.server_port
        threading.Thread(target=self.serve_forever, daemon=True).start()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status, fields, body):
            self.send_response(status)
            for name, value in {**fields, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.answer(200, {}, b"{}")

        def do_POST(self):
            lines = self.rfile.read(int(self.headers["Content-Length"])).splitlines()
            keys = [json.loads(line)["key"] for line in lines]
            self.server.batches.append((time.monotonic(), keys))
            script = self.server.script
            self.answer(*(script.pop(0) if script else all_taken)(keys))


def lines(*answers):
    return 200, {}, b"".join(json.dumps(a).encode() + b"\n" for a in answers)


def all_taken(keys):
    return lines(*[{"status": 202, "duplicate": False} for _ in keys])


def problem(status, code, **more):
    return {"status": status, "code": code, "detail": "because", "retryable": status in (429, 503, 507), **more}


def relayed_by(o, script, *flags):
    """Runs a relay against the script until nothing is pending; returns its batches."""
    with ScriptedBroker(script) as broker:
        r = subprocess.Popen([HAPAX, "relay", "--queue", "q", "--workers", "1", "--poll", "1ms", *flags],
                             env=o.environment(url=broker.url), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        o.await_empty()
        r.terminate()
        r.wait()
        broker.shutdown()
        return broker.batches
