#!/usr/bin/env python3
"""Pushes to what people really run: nginx, by itself and before an application, and a server of Node. Neither was written for us."""
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request

import hx
from hx import members, same, test, until
from receiver import CLOSE, Answer, Receiver, refused_port

NGINX = """\
daemon off; master_process off; pid HOME/pid; error_log HOME/error.log;
events {}
http {
    log_format seen escape=json '{"key":"$http_idempotency_key","id":"$http_webhook_id","path":"$uri","status":$status,"connection":$connection,"nth":$connection_requests}';
    access_log HOME/access.log seen;
    client_body_temp_path HOME/b; proxy_temp_path HOME/p; fastcgi_temp_path HOME/f; uwsgi_temp_path HOME/u; scgi_temp_path HOME/s;
    keepalive_requests 3;
    server {
        listen unix:HOME/unused;
        listen 127.0.0.1:PORT;
        location /fine    { default_type application/json; add_header Location /slots/1; return 201 '{"id":"n1"}'; }
        location /moved   { return 301 http://127.0.0.1:PORT/fine; }
        location /silent  { return 444; }
        location /small   { client_max_body_size 10; proxy_pass APP; }
        location /busy    { add_header Retry-After 1 always; return 503; }
        location /dead    { proxy_pass http://127.0.0.1:DEAD; }
        location /app     { proxy_pass APP; }
    }
}
"""


class Nginx:
    def __init__(self, app, dead):
        if not shutil.which("nginx"):
            raise hx.Skip("nginx is not installed")
        self.home = tempfile.mkdtemp(prefix="hapax-e2e-nginx-")
        while not self.begin(app, dead):  # somebody else may have taken the port meanwhile
            pass

    def begin(self, app, dead):
        with Receiver() as free:  # its port is free again when it has closed
            self.port = free.port
        config, log = os.path.join(self.home, "nginx.conf"), os.path.join(self.home, "error.log")
        with open(config, "w", encoding="utf-8") as file:
            file.write(NGINX.replace("HOME", self.home).replace("PORT", str(self.port)).replace("DEAD", str(dead)).replace("APP", app))
        self.process = subprocess.Popen(["nginx", "-p", self.home, "-c", config, "-e", log], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ready = until(lambda: self.process.poll() is not None and "ended" or self.answers() and "answers", "nginx answers, or ends")
        with open(log, encoding="utf-8") as file:
            said = file.read()
        assert ready == "answers" or "Address already in use" in said, said
        return ready == "answers"

    def answers(self):
        """It is nginx that answers, not somebody else."""
        try:
            with hx.Conn(self.port) as c:
                return "nginx" in c.request("GET", "/").header("Server", "")
        except (OSError, AssertionError):
            return False

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def seen(self, path, many):
        """What it says it answered at this path, when it was as often."""
        def lines():
            with open(os.path.join(self.home, "access.log"), encoding="utf-8") as file:
                found = [json.loads(line) for line in file if line.endswith("\n")]
            found = [line for line in found if line["path"] == path]
            return found if len(found) >= many else None
        return until(lines, f"{many} at {path}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


class Node:
    def __init__(self, keep_alive_ms):
        if not shutil.which("node"):
            raise hx.Skip("node is not installed")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "receiver.mjs")
        self.process = subprocess.Popen(["node", script, str(keep_alive_ms)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    @property
    def effects(self):
        with urllib.request.urlopen(self.url + "/effects", timeout=hx.TIMEOUT) as reply:
            return json.load(reply)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def queue(name, url, idempotency="key", more=""):
    return (f'  {name}: {{downstream: {{idempotency: {idempotency}}}, retry: {{transient: {{attempts: 2, backoff: 10ms, max: 10ms}}}}, '
            f'deliver: {{url: "{url}", timeout: 20s, allow_private: true, effect_id: id, circuit: {{of: 10000}}{more}}}}}\n')


def push(b, name, *keys, payload='{"a":1}'):
    """Sends them; the last, when all have come to rest."""
    for key in keys:
        same(b.event(name, payload, key).status, 202)
    until(lambda: rests(b.queue(name)), f"{name} comes to rest")
    return b.key(name, keys[-1])


def rests(queue):
    return queue["pending"] + queue["leased"] == 0


def classes(key):
    return [a.get("class") for a in key["attempts"]]


@test
def nginx_gets_each_once_on_connections_that_it_ends_now_and_then():
    with refused_port() as dead, Nginx("http://127.0.0.1:1", dead) as nginx:
        with hx.Broker(config="queues:\n" + queue("fine", nginx.url + "/fine", "none", ", concurrency: 2")) as b:
            keys = [f"k{n}" for n in range(40)]
            key = push(b, "fine", *keys)
            seen = nginx.seen("/fine", 40)
            same(sorted(s["key"] for s in seen), sorted(keys))
            same({b.state("fine", k) for k in keys}, {"done"})
            assert max(s["nth"] for s in seen) > 1, "connections are used again"
            members(key["http"], status=201)
            same((key["effect_ids"], key["http"]["headers"]["location"]), (["n1"], "/slots/1"))


@test
def what_nginx_says_by_itself_is_told_as_what_it_is():
    with refused_port() as dead, Receiver() as app, Nginx(app.url, dead) as nginx:
        cases = {"moved": ("dead", ["poison"]), "small": ("dead", ["poison"]), "silent": ("held", ["unknown"]), "dead": ("held", ["unknown"])}
        config = "queues:\n" + "".join(queue(name, f"{nginx.url}/{name}", "none") for name in cases) + queue("dead_key", f"{nginx.url}/dead")
        with hx.Broker(config=config) as b:
            for name, (state, first) in cases.items():
                key = push(b, name, "k", payload='{"a":"longer than ten"}')
                same((key["state"], classes(key)), (state, first), f"{name}: {key}")
                same([s["id"] for s in nginx.seen(f"/{name}", 1)], [key["id"]], name)
            key = push(b, "dead_key", "k")
            same((key["state"], classes(key)), ("dead", ["transient"] * 2), "a 502 where the downstream deduplicates")
            assert app.quiet(), "none of them reached the application"


@test
def an_application_that_acted_and_fell_over_behind_nginx_is_looked_up():
    cut = Answer(at=0, then=CLOSE, effect=True)
    with refused_port() as dead, Receiver(cut) as app, Nginx(app.url, dead) as nginx:
        config = "queues:\n" + queue("app", nginx.url + "/app", "none").replace(
            "retry:", f'reconcile: {{url: "{app.url}/slots?key=${{hapax.effect_key}}", exists: "items[0].id", effect_id: "items[0].id", after: 10ms}}, retry:')
        with hx.Broker(config=config) as b:
            key = push(b, "app", "k")
            same((key["state"], key["effect_ids"], app.effects), ("done", ["e1"], {"k": 1}), str(key))
            same([s["status"] for s in nginx.seen("/app", 1)], [502])
            same(len(app.asked), 1)


@test
def node_gets_each_once_and_its_answers_are_read_however_it_writes_them():
    with Node(5000) as node:
        paths = {"plain": ("done", [None]), "chunks": ("done", [None]), "hints": ("done", [None]), "destroyed": ("held", ["unknown"]), "half": ("held", ["unknown"]),
                 "thrown": ("held", ["unknown"])}
        with hx.Broker(config="queues:\n" + "".join(queue(name, f"{node.url}/{name}", "none") for name in paths)) as b:
            for name, (state, first) in paths.items():
                key = push(b, name, name)
                same((key["state"], classes(key), node.effects[name]["count"]), (state, first, 1), f"{name}: {key}")
                if state == "done":
                    same(key["effect_ids"], [f"n-{name}"])
            large = json.dumps({"x": hashlib.sha512(b"x").hexdigest() * 7000})
            push(b, "plain", "large", payload=large)
            same(node.effects["large"], {"count": 1, "bytes": len(large)})


@test
def a_server_that_ends_idle_connections_under_a_request_gets_nothing_twice():
    with Node(1) as node:
        config = "queues:\n" + queue("keyed", node.url + "/plain", "key", ", concurrency: 1") + queue("none", node.url + "/plain", "none", ", concurrency: 1")
        with hx.Broker(config=config) as b:
            keyed, none = [f"keyed-{n}" for n in range(100)], [f"none-{n}" for n in range(100)]
            push(b, "keyed", *keyed)
            push(b, "none", *none)
            done = node.effects
            same([k for k in keyed + none if done.get(k, {"count": 0})["count"] > 1], [])
            same([k for k in keyed if b.state("keyed", k) != "done" or k not in done], [])
            for k in none:
                state = b.state("none", k)
                assert (state, k in done) in (("done", True), ("held", True), ("held", False)), (k, state, k in done)


hx.main(shared=False)
