"""What the end-to-end tests share: a broker of their own, an HTTP client that hides nothing, TAP.

The tests of a file run side by side, each in a thread with its own queue: most of them wait for leases to run out.
A test is a function whose name is a sentence, marked with @test; it gets a fresh queue name. The broker is `hx.broker`.
A suite of another kind says what its tests get (`around`).

A test that yields is a test in parts: at every yield the broker is killed (SIGKILL) and started again on its data. All tests
of the file that are at a yield share that restart.
"""
import base64
import calendar
import concurrent.futures
import contextlib
import fcntl
import http.server
import inspect
import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
HAPAXD = os.environ.get("HAPAXD", os.path.join(BUILD, "hapaxd"))
HAPAX = os.environ.get("HAPAX", os.path.join(BUILD, "hapax"))
TIMEOUT = 40  # of any single wait; only ever reached by a failure
START_BOUND_S = STOP_BOUND_S = 60
RFC3339 = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")


class Reply:
    def __init__(self, line, headers, body):
        self.line, self.status, self.headers, self.body = line, int(line[9:12]), headers, body

    def header(self, name, default=None):
        values = self.all(name)
        assert len(values) <= 1, f"{name} is there {len(values)} times"
        return values[0] if values else default

    def all(self, name):
        return [v for n, v in self.headers if n.lower() == name.lower()]

    def json(self):
        return strict_json(self.body)

    def told(self):
        return self.status, self.json()

    def lines(self):
        return [strict_json(line) for line in self.body.splitlines()]

    def __repr__(self):
        return f"{self.status} {self.body[:600]!r}"


def strict_json(data):
    """JSON as a careful client reads it: UTF-8, no member twice."""
    def once(pairs):
        names = [n for n, _ in pairs]
        assert len(names) == len(set(names)), f"a member is there twice: {names}"
        return dict(pairs)
    return json.loads(data.decode("utf-8"), object_pairs_hook=once)


class Lost(ConnectionError):
    """No answer, or not all of it: unknown whether applied."""


class Conn:
    """One connection. Requests are put together from bytes, so that they can be as wrong as a test wants."""

    def __init__(self, port, host="127.0.0.1", timeout=TIMEOUT, source=None):
        """source: the address it comes from; all of 127.0.0.0/8 are this machine's."""
        self.sock = socket.create_connection((host, port), timeout=timeout, source_address=source and (source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def write(self, data):
        self.sock.sendall(data)

    def start(self, method, path, body=None, headers=()):
        lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost"]
        for name, value in headers:
            value = value.encode() if isinstance(value, str) else value
            lines.append(name.encode() + b": " + value)
        if body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        self.write(b"\r\n".join(lines) + b"\r\n\r\n" + (body or b""))

    def more(self):
        got = self.sock.recv(1 << 18)
        self.data += got
        return bool(got)

    def take(self, n):
        while len(self.data) < n:
            if not self.more():
                raise Lost(f"closed after {len(self.data)} of {n} bytes: {bytes(self.data[:200])!r}")
        out = bytes(self.data[:n])
        del self.data[:n]
        return out

    def head(self):
        """The next status line and header fields."""
        while b"\r\n\r\n" not in self.data:
            if not self.more():
                raise Lost(f"closed before a whole head: {bytes(self.data[:200])!r}")
        end = self.data.index(b"\r\n\r\n")
        lines = self.data[:end].decode("latin-1").split("\r\n")
        del self.data[:end + 4]
        assert re.match(r"^HTTP/1\.1 \d{3} ", lines[0]), lines[0]
        return lines[0], [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:]]

    def reply(self, to_head=False):
        reply = Reply(*self.head(), b"")
        if not to_head and reply.status not in (204, 304) and reply.status >= 200:
            length = reply.header("Content-Length")
            assert length is not None, f"no Content-Length: {reply.headers}"
            reply.body = self.take(int(length))
        return reply

    def request(self, method, path, body=None, headers=()):
        self.start(method, path, body, headers)
        return self.reply(to_head=method == "HEAD")

    def rest(self):
        """Everything until the peer closes."""
        try:
            while self.more():
                pass
        except ConnectionResetError:
            pass
        return self.take(len(self.data))

    def closed(self):
        """True once the peer has closed without saying more."""
        try:
            return not self.more()
        except ConnectionResetError:
            return True


def quote(text):
    return urllib.parse.quote(text, safe="")


class Verbs:
    """The verbs of the contract, for whoever can `call`. Each returns the Reply; what must not fail asserts it."""

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, value=None, headers=()):
        return self.call("POST", path, b"" if value is None else json.dumps(value).encode(), headers)

    def send(self, queue, key, payload=b"x", headers=()):
        payload = payload.encode() if isinstance(payload, str) else payload
        fields = [("Idempotency-Key", key)] if key is not None else []
        return self.call("POST", f"/v1/queues/{queue}/messages", payload, fields + list(headers))

    def put(self, queue, *keys, **kw):
        """Sends keys that must be accepted; the id of the last."""
        for key in keys:
            reply = self.send(queue, key, **kw)
            assert reply.status == 202, reply
        return reply.json()["id"]

    def batch(self, queue, lines):
        body = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
        return self.call("POST", f"/v1/queues/{queue}/batch", body, [("Content-Type", "application/x-ndjson")])

    def receive(self, queue, **params):
        query = "&".join(f"{n}={quote(str(v))}" for n, v in params.items())
        reply = self.call("POST", f"/v1/queues/{queue}/receive" + ("?" + query if query else ""), b"")
        assert reply.status == 200, reply
        return reply.json()["messages"]

    def one(self, queue, wait="20s", **params):
        """The next message; waits for it."""
        messages = self.receive(queue, wait=wait, **params)
        assert len(messages) == 1, messages
        return messages[0]

    def settle(self, verb, message, **members):
        token = message["token"] if isinstance(message, dict) else message
        return self.post(f"/v1/{verb}", dict(members, token=token))

    def ok(self, verb, message, **members):
        reply = self.settle(verb, message, **members)
        assert reply.status == 200, reply
        return reply.json()

    def rules(self, queue, headers=(), **rules):
        """Gives the queue these rules; what the broker shows of it then."""
        reply = self.call("PUT", f"/v1/queues/{queue}", json.dumps(rules).encode(), headers)
        assert reply.status in (200, 201), reply
        return reply.json()

    def event(self, queue, value, key=None, headers=()):
        """Sends a JSON value."""
        payload = value if isinstance(value, (bytes, str)) else json.dumps(value)
        return self.send(queue, key, payload, [("Content-Type", "application/json"), *headers])

    def list(self, queue, **params):
        """The messages of a state, all pages of them."""
        items, cursor = [], None
        while True:
            query = "&".join(f"{n}={quote(str(v))}" for n, v in params.items()) + (f"&cursor={quote(cursor)}" if cursor else "")
            reply = self.get(f"/v1/queues/{queue}/messages?{query}")
            assert reply.status == 200, reply
            items += reply.json()["items"]
            cursor = reply.json()["next_cursor"]
            if cursor is None:
                return items

    def fail(self, queue, *classes, **members):
        """Takes the next message once for each class and fails it so; the last answer."""
        for name in classes:
            answer = self.ok("nack", self.one(queue), **{"class": name}, **members)
        return answer

    def state(self, queue, key):
        return self.key(queue, key)["state"]

    def key(self, queue, key):
        reply = self.get(f"/v1/queues/{queue}/keys/{quote(key)}")
        assert reply.status == 200, reply
        return reply.json()

    def queue(self, queue):
        reply = self.get(f"/v1/queues/{queue}")
        assert reply.status == 200, reply
        return reply.json()

class Client(Verbs):
    """One connection, made anew when it is gone. Raises Lost when there is no answer."""

    def __init__(self, port, timeout=TIMEOUT):
        self.port, self.timeout, self.conn = port, timeout, None

    def call(self, method, path, body=None, headers=()):
        try:
            self.conn = self.conn or Conn(self.port, timeout=self.timeout)
            reply = self.conn.request(method, path, body, headers)
        except OSError as e:
            self.close()
            raise Lost(str(e)) from e
        except BaseException:
            self.close()
            raise
        if reply.header("Connection", "").lower() == "close":
            self.close()
        return reply

    def close(self):
        if self.conn:
            self.conn.close()
        self.conn = None


class NotReady(AssertionError):
    """The broker ended, or did not get ready in time. Its exit code and last words are in the text."""


def port_of_our_own():
    """Bound, and not listened on: a broker may, nobody is given it."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place


class Broker(Verbs):
    """hapaxd on a data directory and a free port, which can be killed, frozen and started again. What it says on stderr is in
    the file `log`, all its lives one after the other. Requests go over one kept connection per thread.

    config: the text of its config file. listen: False where that says where to listen: on one plain address of 127.0.0.1, and
    perhaps one with TLS behind it (tls_port). options: more of its command line. `wrapper` is what runs it (strace, ulimit), `env` goes
    on top of ours; both may be changed between starts. The port is bound here, too, and so nobody else's between two lives: whoever goes on
    asking meanwhile is refused, not answered by the broker of another test."""

    def __init__(self, data=None, config=None, options=(), wrapper=(), env=None, log=None, start=True, listen=True):
        self.own = data is None
        self.data = data or tempfile.mkdtemp(prefix="hapax-broker-")
        self.log = log or self.data + ".log"
        self.config = self.data + "-hapax.yaml"
        self.options, self.wrapper, self.env = list(options), list(wrapper), env or {}
        self.port, self.process, self.local, self.log_from = 0, None, threading.local(), 0
        self.place, self.tls_port = port_of_our_own() if listen else None, None
        if config is not None:
            self.configure(config)
        if start:
            self.start()

    # ---- its process

    def start(self):
        return self.spawn().wait_ready()

    def spawn(self):
        listen = ["--listen", "%s:%d" % self.place.getsockname()] if self.place else []
        with open(self.log, "ab") as log:
            self.log_from = log.tell()
            self.process = subprocess.Popen(
                [*self.wrapper, HAPAXD, *listen, "--data", self.data, *self.options], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, env={**os.environ, **self.env}, start_new_session=True)
        self.local = threading.local()
        return self

    def wait_ready(self, bound=START_BOUND_S):
        out, line, end = self.process.stdout.fileno(), b"", time.monotonic() + bound
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise NotReady(f"not ready within {bound} s\n{self.last_words()}")
            some = os.read(out, 4096)
            if not some:
                raise NotReady(f"exited with {self.wait_exit()} before it was ready\n{self.last_words()}")
            line += some
        ready = re.fullmatch(r"hapaxd ready on http://127\.0\.0\.1:(\d+)(?: https://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+))?\n", line.decode())
        assert ready, f"no ready line but {line!r}; stderr: {self.last_words()}"
        self.port, self.tls_port = int(ready.group(1)), ready.group(2) and int(ready.group(2))
        return self

    def running(self):
        return self.process is not None and self.process.poll() is None

    def stop(self, how=signal.SIGTERM):
        """Ends the process; returns its exit code."""
        if self.running():
            self.signal(how)
        return self.wait_exit()

    def kill(self):
        return self.stop(signal.SIGKILL) if self.process else None

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def wait_exit(self, bound=STOP_BOUND_S):
        """The exit code; None if it still runs at the bound (then it is killed). Nothing but the ready line may have been on
        stdout."""
        try:
            code = self.process.wait(bound)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        if self.wrapper:
            self.wait_unlocked()
        rest = self.process.stdout.read()
        self.process.stdout.close()
        self.process = None
        assert not rest or b"ready on" in rest, f"stdout after the ready line: {rest!r}"
        return code

    def wait_unlocked(self):
        """Under a wrapper the broker is a grandchild: it may live a moment longer than the process we waited for."""
        lock = os.path.join(self.data, "lock")
        if os.path.exists(lock):
            with open(lock, "rb") as f:
                fcntl.flock(f, fcntl.LOCK_EX)

    def restart(self):
        """Killed, and started again on its data."""
        code = self.kill()
        assert code == -signal.SIGKILL, f"the broker ended by itself with {code}: {self.last_words()}"
        self.start()

    def stderr(self):
        """What it said in this life."""
        with open(self.log, "rb") as log:
            log.seek(self.log_from)
            return log.read().decode(errors="replace")

    def last_words(self, count=20):
        return "\n".join(self.stderr().splitlines()[-count:])

    def configure(self, text):
        """Gives it a config file with that text, from the next start on if it had none."""
        if self.config not in self.options:
            self.options += ["--config", self.config]
        with open(self.config, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def reload(self, text):
        """Another config, and what the broker said about it."""
        self.configure(text)
        said = len(self.stderr())
        self.signal(signal.SIGHUP)
        until(lambda: re.search("config: .*(reload refused|is in force|says nothing new)", self.stderr()[said:]), "the broker says what became of it")
        return self.stderr()[said:]

    def remove(self):
        self.kill()
        if self.place:
            self.place.close()
        if self.own:
            shutil.rmtree(self.data, ignore_errors=True)
            for beside in (self.log, self.config):
                if os.path.exists(beside):
                    os.unlink(beside)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    # ---- talking to it

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self):
        return Conn(self.port)

    def client(self, timeout=60):
        return Client(self.port, timeout)

    def call(self, method, path, body=None, headers=()):
        if not hasattr(self.local, "client"):
            self.local.client = Client(self.port)
        return self.local.client.call(method, path, body, headers)


# ---- assertions

def same(have, want, what=""):
    assert have == want, f"{what + ': ' if what else ''}have {have!r}, want {want!r}"


def members(have, **want):
    for name, value in want.items():
        assert name in have, f"no member {name!r} in {have!r}"
        same(have[name], value, name)


def stamp(text):
    """A time of the contract, in seconds."""
    assert isinstance(text, str) and RFC3339.match(text), f"not RFC 3339 UTC with milliseconds: {text!r}"
    seconds = time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")
    return calendar.timegm(seconds) + int(text[20:23]) / 1000


def problem(reply, status, code, applied="no"):
    """The reply is this problem, whole and by the book. Returns its members."""
    same(reply.status, status, f"status of {reply!r}")
    same(reply.header("Content-Type"), "application/problem+json")
    return problem_members(reply.json(), status, code, applied)


def problem_members(p, status, code, applied="no"):
    members(p, type=f"urn:hapax:{code}", status=status, code=code, applied=applied)
    assert isinstance(p["title"], str) and p["title"], p
    assert isinstance(p["detail"], str) and p["detail"], p
    assert isinstance(p["retryable"], bool), p
    return p


def decoded(body, encoding):
    return base64.b64decode(body, validate=True) if encoding == "base64" else body.encode()


class Later:
    """Something running beside the test: its value when it is there."""

    def __init__(self, function, *args, **kw):
        self.future = concurrent.futures.Future()
        self.thread = threading.Thread(target=self.run, args=(function, args, kw), daemon=True)
        self.thread.start()

    def run(self, function, args, kw):
        try:
            self.future.set_result(function(*args, **kw))
        except BaseException as error:
            self.future.set_exception(error)

    def value(self):
        return self.future.result(TIMEOUT)


class Bracket:
    """The times on the wall between which something was asked for: what the broker says of it lies between them, however
    long it took. Both clocks are the machine's; the broker's has milliseconds and is read once a turn."""

    def holds(self, at, least=0, most=None):
        most = least if most is None else most
        assert self.began + least - 0.1 <= stamp(at) <= self.ended + most + 0.1, (at, self.began, self.ended, least, most)


@contextlib.contextmanager
def bracket():
    within = Bracket()
    within.began = time.time()
    yield within
    within.ended = time.time()


def until(condition, what, bound=TIMEOUT):
    """Asks again and again; the first answer that is one."""
    deadline = time.monotonic() + bound
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.01)


def waiting(many, of=None):
    """Returns once that many requests wait at the broker: polls that must be there before something is done to them."""
    until(lambda: (of or broker).get("/v1/stats").json()["waiting"] >= many, f"{many} waiting polls")


class Ran:
    """What became of a command."""

    def __init__(self, words, process, out, err):
        self.words, self.code, self.text, self.err = words, process.returncode, out.decode(), err.decode(errors="replace")

    @property
    def json(self):
        return strict_json(self.text.encode())

    def __repr__(self):
        return f"$ hapax {' '.join(self.words)}\nexit {self.code}\n{self.text}\n{self.err}"


def start_hapax(*words, of=None):
    env = {name: value for name, value in os.environ.items() if not name.startswith("HAPAX")}
    env.update(HAPAX_URL=(of or broker).url, USER="tester")
    return subprocess.Popen([HAPAX, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def hapax(*words, exits=0, stdin=b"", of=None):
    """The hapax command; its exit code must be this one."""
    process = start_hapax(*words, of=of)
    ran = Ran(words, process, *process.communicate(stdin, TIMEOUT))
    assert ran.code == exits, f"wanted exit code {exits}: {ran!r}"
    return ran


# ---- running

broker = None
tests = []
numbers = itertools.count(1)


def test(function=None, *, alone=False):
    """alone: after the others, by itself; for what looks at the broker as a whole."""
    if function is None:
        return lambda f: test(f, alone=alone)
    tests.append((function, alone))
    return function


@contextlib.contextmanager
def answering(pages, version="HTTP/1.1"):
    """Something that answers as a broker might: the text of each path, 404 for any other."""
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = version

        def do_GET(self):
            page = pages.get(self.path.partition("?")[0])
            body = (page or '{"type":"urn:hapax:no_such_route","title":"no","status":404,"code":"no_such_route","applied":"no"}').encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "application/json" if page else "application/problem+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Skip(Exception):
    """This machine cannot run the test; the text says why."""


def needs_plain(why):
    """For what a sanitizer's build is not meant: its memory and its signals are not the broker's own."""
    if re.search("address|thread", os.path.dirname(HAPAXD)):
        raise Skip(why)


@contextlib.contextmanager
def fresh_queue():
    yield f"q{next(numbers)}"


class Run:
    """A test on its way: to its next yield, or its end. What `around` gives is given back after the end."""

    def __init__(self, function, around):
        self.function, self.around, self.parts, self.over = function, around, None, False
        self.held, self.error, self.skipped = contextlib.ExitStack(), None, None

    def begin(self):
        given = [self.held.enter_context(self.around())]
        self.parts = self.function(*given[:self.function.__code__.co_argcount])

    def go_on(self):
        try:
            with contextlib.ExitStack() as at_end:
                at_end.push(self.held)
                if self.parts is None:
                    self.begin()
                self.over = not inspect.isgenerator(self.parts) or next(self.parts, self) is self
                if not self.over:
                    at_end.pop_all()
        except Skip as why:
            self.skipped, self.over = why, True
        except BaseException as error:
            self.error, self.over = traceback.format_exc(), True
            if isinstance(error, SystemExit):
                raise

    def report(self, number):
        skipped = f" # SKIP {self.skipped}" if self.skipped else ""
        print(f"{'not ok' if self.error else 'ok'} {number} - {self.function.__name__.replace('_', ' ')}{skipped}", flush=True)
        for line in (self.error or "").splitlines():
            print("#   " + line, flush=True)


def run_all(runs, pool):
    while True:
        running = [run for run in runs if not run.over]
        concurrent.futures.wait([pool.submit(run.go_on) for run in running])
        if all(run.over for run in runs):
            return
        broker.restart()


def chosen():
    """The tests whose name has a word of the command line."""
    words = sys.argv[1:]
    return [(f, alone) for f, alone in tests if not words or any(w in f.__name__ for w in words)]


def main(threads=24, shared=True, around=fresh_queue):
    """Runs the file's tests and exits. One thread: this one, each test reported as it ends."""
    global broker
    runs = [(Run(function, around), alone) for function, alone in chosen()]
    print(f"1..{len(runs)}", flush=True)
    failed = 0
    if shared:
        broker = Broker()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        if threads > 1:
            run_all([run for run, alone in runs if not alone], pool)
        for number, (run, alone) in enumerate(runs, 1):
            if threads == 1:
                run.go_on()
            elif alone:
                run_all([run], pool)
            failed += run.error is not None
            run.report(number)
    if shared:
        failed += finish_shared()
    sys.exit(1 if failed else 0)


def finish_shared():
    """The broker must have lived through all of it, and end cleanly: a sanitizer's report shows here."""
    try:
        code = broker.stop()
        if code != 0:
            print(f"# the broker ended with {code}:\n" + re.sub("^", "#   ", broker.stderr(), flags=re.M), flush=True)
        return code != 0
    finally:
        broker.remove()
