"""What the crash and fault tests share: a broker that can be started, killed and frozen; a plain HTTP client; TAP.

Programs come from the environment: BUILD (default build), HAPAXD, HAPAX, LOAD, CHECK_HISTORY."""
import fcntl
import http.client
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))


def program(variable, default):
    return os.environ.get(variable, os.path.join(BUILD, default))


HAPAXD = program("HAPAXD", "hapaxd")
HAPAX = program("HAPAX", "hapax")
LOAD = program("LOAD", "tests/load")
CHECK_HISTORY = program("CHECK_HISTORY", "tests/check_history")
FS_SHUTDOWN = program("FS_SHUTDOWN", "tests/fs_shutdown")
MAKE_DIRECTORY = program("MAKE_DIRECTORY", "tests/make_directory")



def ensure_built():
    """For a tree that was never built; else what is there is tested."""
    if all(map(os.path.exists, (HAPAXD, HAPAX, LOAD, CHECK_HISTORY, FS_SHUTDOWN, MAKE_DIRECTORY))):
        return
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", f"BUILD={os.environ.get('BUILD', 'build')}", "test-tools"],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


# Bounds after which a thing counts as failed; nothing waits this long when it works.
START_BOUND_S = 60
STOP_BOUND_S = 60


class NotReady(Exception):
    """The broker ended, or did not get ready in time. Its exit code and last words are in the text."""


class Broker:
    """One data directory and the process that serves it. Restarts keep the port."""

    def __init__(self, data, log=None, env=None, config=None):
        self.data, self.wrapper, self.env, self.config = data, [], env or {}, config
        self.port, self.process = 0, None
        self.log = log or data + ".log"

    def spawn(self):
        options = ["--config", self.config] if self.config else []
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.wrapper + [HAPAXD, "--listen", f"127.0.0.1:{self.port}", "--data", self.data, *options],
                stdout=subprocess.PIPE, stderr=log, env={**os.environ, **self.env}, start_new_session=True)
        return self

    def wait_ready(self, bound=START_BOUND_S):
        out, line, end = self.process.stdout.fileno(), b"", time.monotonic() + bound
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise NotReady(f"not ready within {bound} s\n{self.last_words()}")
            chunk = os.read(out, 4096)
            if not chunk:
                code = self.process.wait()
                self.process = None
                raise NotReady(f"exited with {code} before it was ready\n{self.last_words()}")
            line += chunk
        self.port = int(line.decode().strip().rsplit(":", 1)[1])
        return self

    def start(self):
        return self.spawn().wait_ready()

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def kill(self):
        if self.process:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None
            if self.wrapper:
                self.wait_unlocked()

    def wait_unlocked(self):
        """Under a wrapper the broker is a grandchild: it may live a moment longer than the process we waited for."""
        lock = os.path.join(self.data, "lock")
        if not os.path.exists(lock):
            return
        with open(lock, "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)

    def stop(self):
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait_exit()

    def wait_exit(self, bound=STOP_BOUND_S):
        """The exit code; None if it still runs at the bound (then it is killed)."""
        try:
            code = self.process.wait(bound)
            self.process.stdout.close()
            self.process = None
            return code
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def last_words(self, count=10):
        try:
            with open(self.log, errors="replace") as log:
                return "".join(log.readlines()[-count:])
        except FileNotFoundError:
            return ""

    def client(self, timeout=60):
        return Client(self.port, timeout)


class Lost(Exception):
    """No answer: unknown whether applied."""


class Client:
    """One connection; every call returns (status, headers, body bytes) or raises Lost."""

    def __init__(self, port, timeout=60):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)

    def call(self, method, path, body=None, headers=None):
        try:
            self.connection.request(method, path, body, headers or {})
            response = self.connection.getresponse()
            return response.status, response.headers, response.read()
        except (OSError, http.client.HTTPException) as e:
            self.connection.close()
            raise Lost(str(e)) from e

    def json(self, method, path, body=None, headers=None):
        data = json.dumps(body).encode() if body is not None else None
        status, _, answer = self.call(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return status, json.loads(answer)

    def send(self, queue, key, payload=b"x", **headers):
        names = {"Idempotency-Key": key, "Content-Type": "text/plain"}
        names.update({"Hapax-" + name.capitalize(): value for name, value in headers.items()})
        status, _, answer = self.call("POST", f"/v1/queues/{queue}/messages", payload, names)
        return status, json.loads(answer)

    def receive(self, queue, max=1, wait="0s", lease="30s", start="auto"):
        path = f"/v1/queues/{queue}/receive?max={max}&wait={wait}&lease={lease}&start={start}"
        status, _, answer = self.call("POST", path, b"")
        if status != 200:
            raise AssertionError(f"receive answered {status}: {answer!r}")
        return json.loads(answer)["messages"]

    def settle(self, verb, token, **members):
        return self.json("POST", f"/v1/{verb}", {"token": token, **members})

    def close(self):
        self.connection.close()


class Tap:
    """Runs named promises one after the other; a promise holds if its function returns, or skips."""

    def __init__(self, names_wanted=()):
        self.promises, self.wanted, self.failed = [], names_wanted, 0

    def promise(self, f):
        self.promises.append(f)
        return f

    def run(self):
        chosen = [f for f in self.promises if not self.wanted or any(w in f.__name__ for w in self.wanted)]
        print(f"1..{len(chosen)}", flush=True)
        for number, f in enumerate(chosen, 1):
            self.one(number, f)
        return 1 if self.failed else 0

    def one(self, number, f):
        directory = tempfile.mkdtemp(prefix="hapax-fault.")
        started, verdict, note = time.monotonic(), "ok", ""
        try:
            f(directory)
        except Skip as e:
            note = f" # SKIP {e}"
        except Exception as e:  # a broken promise, whatever shape it takes
            verdict = "not ok"
            self.failed += 1
            text = str(e) if isinstance(e, AssertionError) and str(e) else f"{type(e).__name__}: {e}"
            print("".join(f"# {line}\n" for line in text.splitlines()), end="")
            print(f"# files kept in {directory}")
        finally:
            undo_all()
        print(f"{verdict} {number} - {f.__name__}{note}", flush=True)
        print(f"# {time.monotonic() - started:.1f} s", flush=True)
        if verdict == "ok":
            shutil.rmtree(directory, ignore_errors=True)


class Skip(Exception):
    """This machine cannot run the test; the text says why."""


RUNNING, UNDO = [], []


def new_broker(data, **options):
    broker = Broker(data, **options)
    RUNNING.append(broker)
    return broker


def mounted(directory, kind, *arguments):
    """A file system of its own, at directory/disk until the test is over."""
    if os.geteuid() != 0:
        raise Skip("mounting needs root")
    where = os.path.join(directory, "disk")
    os.makedirs(where, exist_ok=True)
    done = subprocess.run(["mount", "-t", kind, *arguments, where], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if done.returncode != 0:
        raise Skip(f"cannot mount {kind}: {done.stdout.strip()}")
    UNDO.append(lambda: subprocess.run(["umount", "-l", where], stderr=subprocess.DEVNULL))
    return where


def mounted_ext4(directory, megabytes):
    """The same with ext4 in a file, directory/image."""
    image = os.path.join(directory, "image")
    with open(image, "wb") as f:
        f.truncate(megabytes << 20)
    try:
        made = subprocess.run(["mkfs.ext4", "-q", "-F", image], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        raise Skip("mkfs.ext4 is not installed") from None
    if made.returncode != 0:
        raise Skip(f"cannot make an ext4 file system: {made.stdout.strip()}")
    return mounted(directory, "ext4", "-o", "loop", image)


def undo_all():
    """Ends what a test left running or mounted."""
    for broker in list(RUNNING):
        broker.kill()
    RUNNING.clear()
    for undo in reversed(UNDO):
        undo()
    UNDO.clear()


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def await_event(condition, what, bound=60):
    end = time.monotonic() + bound
    while not condition():
        check(time.monotonic() < end, f"{what}: not within {bound} s")
        time.sleep(0.01)


def complain(text):
    print("".join(f"# {line}\n" for line in text.splitlines()), end="", flush=True)
