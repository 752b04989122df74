#!/usr/bin/env python3
"""Who `alerts.notify` names hears of every change of an alert, signed, until he has taken it."""
import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import os
import queue
import re
import tempfile
import threading
import time

import hx
from hx import members, same, test, until
from receiver import reserved

SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3)]
ENV = {"SECRET_0": SECRETS[0], "SECRET_1": SECRETS[1], "SECRET_2": SECRETS[2], "HIDDEN": "path-nobody-knows",
       # Nobody asked for these.
       "http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"}


class Post:
    def __init__(self, path, headers, body):
        self.path, self.headers, self.body = path, headers, body
        self.item = json.loads(body)

    def is_signed_with(self, secret):
        text = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        mac = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), text, hashlib.sha256).digest()
        return "v1," + base64.b64encode(mac).decode() in self.headers["webhook-signature"].split(" ")


class Receiver:
    """Takes what is POSTed and answers with `answers` one after the other, then with 204; `always` instead of all these. at: of reserved()."""

    def __init__(self, answers=(), at=None, always=None):
        self.posts, self.answers, self.always, self.ended = queue.Queue(), list(answers), always, threading.Event()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                receiver.take(self)

            do_GET = do_PUT = do_POST

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server.socket.close()
        self.server.socket = at or reserved()
        self.server.server_activate()
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, handler):
        body = handler.rfile.read(int(handler.headers["content-length"] or 0))
        answer = self.always or (self.answers.pop(0) if self.answers else 204)
        self.posts.put(Post(f"{handler.command} {handler.path}", handler.headers, body))
        if callable(answer):
            return answer(self, handler)
        handler.send_response(answer)
        if answer == 302:
            handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def post(self):
        return self.posts.get(timeout=hx.TIMEOUT)

    def heard(self, state):
        """The next that tells of this state."""
        while True:
            post = self.post()
            if post.item["state"] == state:
                return post

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/${{HIDDEN}}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()


def config(url, secrets=(0,)):
    names = ", ".join(f'"${{SECRET_{n}}}"' for n in secrets)
    return f"""\
alerts: {{notify: {{url: "{url}", secrets: [{names}]}}}}
queues:
  work: {{lease: 1h, alerts: {{oldest_unsettled: 1s}}}}
"""


def started(b):
    """A message that nobody settles: one second later the alert fires."""
    b.put("work", f"k{time.monotonic_ns()}")
    return b.one("work")


def stats(b):
    return b.get("/v1/stats").json()["notify"]


@test
def every_change_is_told_once_and_signed_with_every_secret():
    with Receiver() as r, hx.Broker(config=config(r.url, (0, 1)), env=ENV) as b:
        m = started(b)
        firing = r.heard("firing")
        b.ok("ack", m)
        resolved = r.heard("resolved")
        for post in (firing, resolved):
            same(post.path, "POST /path-nobody-knows")
            same(post.headers["content-type"], "application/json")
            members(post.item, name="oldest_unsettled", queue="work")
            assert post.is_signed_with(SECRETS[0]) and post.is_signed_with(SECRETS[1]) and not post.is_signed_with(SECRETS[2]), post.headers
            assert abs(int(post.headers["webhook-timestamp"]) - time.time()) < 300
            assert post.headers["webhook-id"].startswith("oldest_unsettled:work:"), post.headers
        assert firing.headers["webhook-id"] != resolved.headers["webhook-id"]
        until(lambda: stats(b)["waiting"] == 0, "all is told")
        same((stats(b)["failed"], stats(b)["dropped"]), (0, 0))


@test
def what_is_not_taken_is_sent_again_and_no_redirect_is_followed():
    with Receiver(answers=[500, 302]) as r, hx.Broker(config=config(r.url), env=ENV) as b:
        started(b)
        posts = [r.post() for _ in range(3)]
        same({p.path for p in posts}, {"POST /path-nobody-knows"})
        until(lambda: stats(b)["waiting"] == 0 and stats(b)["sent"], "it is taken")
        same(stats(b)["failed"], 2)
        for post in posts:
            assert post.is_signed_with(SECRETS[0]), "every try has a signature of its own time"
        # The state may have changed in between; the same state has the same id.
        same(len({p.headers["webhook-id"] for p in posts}), len({p.item["since"] for p in posts}))


@test
def a_receiver_that_is_away_is_told_when_it_comes():
    away = reserved()
    with hx.Broker(config=config(f"http://127.0.0.1:{away.getsockname()[1]}/"), env=ENV) as b:
        started(b)
        until(lambda: stats(b)["failed"] >= 2, "nobody is there")
        with Receiver(at=away) as r:
            members(r.heard("firing").item, name="oldest_unsettled")
            until(lambda: stats(b)["waiting"] == 0, "it is taken")


@test
def of_an_alert_the_newest_state_is_told():
    with Receiver(always=500) as r, hx.Broker(config=config(r.url), env=ENV) as b:
        m = started(b)
        r.heard("firing")
        b.ok("ack", m)
        r.heard("resolved")
        same(stats(b)["waiting"], 1, "one alert, one notification")
        r.always = None
        taken = r.heard("resolved")
        until(lambda: stats(b)["waiting"] == 0, "it is taken")
        same(stats(b)["sent"], 1, "and nothing older")
        assert taken.is_signed_with(SECRETS[0])


@test
def an_answer_may_be_as_long_as_it_likes():
    def endless(receiver, handler):
        handler.send_response(200)
        handler.end_headers()
        while not receiver.ended.is_set():
            handler.wfile.write(b"x" * 65536)

    with Receiver(always=endless) as r, hx.Broker(config=config(r.url), env=ENV) as b:
        started(b)
        r.heard("firing")
        until(lambda: stats(b)["sent"] and stats(b)["waiting"] == 0, "its status was read, and the rest not waited for")
        same(stats(b)["failed"], 0)


@test
def a_reload_moves_it_and_no_secret_is_ever_shown():
    with Receiver(always=500) as r, Receiver() as other, hx.Broker(config=config(r.url), env=ENV) as b:
        started(b)
        r.heard("firing")
        said = b.reload(config(other.url, (1, 2)))
        assert "alerts.notify.url: changed" in said and "alerts.notify.secrets: changed" in said, said
        post = other.heard("firing")
        assert post.is_signed_with(SECRETS[1]) and post.is_signed_with(SECRETS[2]) and not post.is_signed_with(SECRETS[0])
        until(lambda: stats(b)["waiting"] == 0, "it is taken")
        b.reload("queues: {work: {}}\n")
        shown = "".join(b.get(path).body.decode() for path in ("/v1/stats", "/v1/audit", "/v1/queues/work", "/v1/alerts?all=true"))
        for secret in (*SECRETS, *(s.removeprefix("whsec_") for s in SECRETS), ENV["HIDDEN"]):
            assert secret not in b.stderr() and secret not in shown, secret


@test
def stopping_does_not_wait_for_a_receiver():
    def silent(receiver, _):
        receiver.ended.wait()

    with Receiver(always=silent) as r, hx.Broker(config=config(r.url), env=ENV) as b:
        started(b)
        r.post()
        same(b.stop(), 0)
        assert "given up" in b.stderr(), b.stderr()


def in_memory(b, bytes_):
    """Where in the broker's memory these bytes are: all it may read or write, but no files."""
    found = []
    with open(f"/proc/{b.process.pid}/maps", encoding="utf-8") as maps, open(f"/proc/{b.process.pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_, name = (line.split() + [""])[:6] if len(line.split()) > 5 else (*line.split()[:2], "")
            if not rights.startswith("rw") or name.startswith(("/dev", "[v")):
                continue
            low, high = (int(x, 16) for x in span.split("-"))
            memory.seek(low)
            with contextlib.suppress(OSError):
                page = memory.read(high - low)
                found += [f"{name or span} at {low + m.start():x}" for m in re.finditer(re.escape(bytes_), page)]
    return found


@test
def a_secret_that_a_reload_removed_is_nowhere_in_memory():
    """In the file, in a credential, as text, as the bytes it stands for; the path of the address, too. Pieces of it count."""
    hx.needs_plain("a sanitizer keeps freed memory, and terabytes of its own")
    secret = base64.b64encode(bytes(range(7, 39))).decode()
    with Receiver() as r, tempfile.TemporaryDirectory() as credentials:
        with open(os.path.join(credentials, "IN_A_FILE"), "w", encoding="utf-8") as file:
            file.write("path-of-the-credential\n")
        url = f"http://127.0.0.1:{r.port}/told-in-the-file/${{IN_A_FILE}}"
        text = config(url).replace('"${SECRET_0}"', f'"whsec_{secret}"')
        with hx.Broker(config=text, env={"CREDENTIALS_DIRECTORY": credentials}, options=["--allow-dumps"]) as b:
            started(b)
            post = r.heard("firing")
            same(post.path, "POST /told-in-the-file/path-of-the-credential")
            assert post.is_signed_with("whsec_" + secret), post.headers
            until(lambda: stats(b)["waiting"] == 0, "all is told")
            pieces = [bytes(range(7, 39)), bytes(range(20, 36)), secret.encode()[16:32], b"told-in-the-file", b"path-of-the-credential"]
            try:
                assert in_memory(b, pieces[0]) and in_memory(b, pieces[-1]), "while it is in force it is there"
            except PermissionError as why:
                raise hx.Skip("nobody may look into a process here") from why
            b.reload("queues: {work: {}}\n")
            b.put("work", "k")  # a turn later
            same({piece: in_memory(b, piece) for piece in pieces if in_memory(b, piece)}, {})


hx.main(shared=False, threads=6)
