"""The systems under test: each started on loopback in its own directory, on a free port, stopped by its pid."""

import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import hx  # noqa: E402

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Missing(Exception):
    """A rival that is not installed here."""


def find_program(name, *more_dirs):
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *map(str, more_dirs)])
    found = shutil.which(name, path=path)
    if not found:
        raise Missing(f"{name} is not installed")
    return found


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def process_tree(pid):
    """pid and its children: PostgreSQL works in children, the others have none."""
    tree = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                tree += process_tree(int(child))
        except OSError:
            pass
    return tree


def cpu_seconds(pid):
    total = 0
    for member in process_tree(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
        if member == pid:
            total += int(fields[13]) + int(fields[14])  # children that have ended
    return total / CLOCK_TICKS


def loop_ns(pid):
    """Processor time of the thread a process began with: Hapax's loop, and Redis's. The disk has another one."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


class Server:
    """One system. Subclasses say how to start it and, where needed, how to make it ready for a round."""

    name = ""
    title = ""
    single_sends = True     # False: it is measured with 100 messages a request instead
    dedups = True
    consume_depth = 1       # fetches in flight per connection

    def __init__(self, root):
        self.dir = root / self.name
        self.dir.mkdir()
        self.process = None
        self.port = 0
        self.next_number = 0    # of the next message never sent yet

    def command(self):
        raise NotImplementedError

    def start(self):
        self.port = free_port()
        log = open(self.dir / "log", "wb")
        self.process = subprocess.Popen(self.command(), cwd=self.dir, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.wait_for_port()

    def wait_for_port(self):
        deadline = time.monotonic() + 30
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start:\n{(self.dir / 'log').read_text(errors='replace')}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not listen within 30 s") from None
                time.sleep(0.02)

    def stop(self, how=signal.SIGTERM):
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def version(self):
        return ""

    def before_round(self):
        pass

    def cpu_seconds(self):
        return cpu_seconds(self.process.pid)

    def loop_ns(self):
        return loop_ns(self.process.pid)


def first_line(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().split("\n")[0]


class Hapax(Server):
    name = "hapax"
    title = "Hapax"
    program = None      # set by the runner

    def __init__(self, root):
        if not Path(self.program).exists():
            raise Missing(f"{self.program} is not there")
        super().__init__(root)
        self.cert, self.key = self.dir / "cert.pem", self.dir / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-out", self.cert, "-keyout", self.key], check=True, capture_output=True)
        self.key.chmod(0o600)

    def version(self):
        return first_line(self.program, "--version")

    def start(self):
        """Returns the seconds from the start of the process to its ready line."""
        began = time.monotonic()
        hx.HAPAXD = self.program
        self.config = ("auto_create: true\nlisten: [{address: 127.0.0.1:0}, "
                       f"{{address: 127.0.0.1:0, tls: {{cert: {self.cert}, key: {self.key}}}}}]\n")
        self.broker = hx.Broker(str(self.dir / "data"), log=self.dir / "log", start=False, listen=False, config=self.config)
        try:
            self.broker.spawn().wait_ready(bound=3600)
        except hx.NotReady as why:
            raise RuntimeError(f"hapaxd did not start: {why}") from why
        self.process, self.port, self.tls_port = self.broker.process, self.broker.port, self.broker.tls_port
        return time.monotonic() - began

    def ask_for_tokens(self, token):
        """From here on; None: no longer."""
        grant = f"anonymous: [admin]\ntokens: [{{name: bench, sha256: [{hashlib.sha256((token or '').encode()).hexdigest()}], allow: ['send:*']}}]\n"
        self.broker.reload(self.config + (grant if token else ""))

    def ask(self, method, path, body=None):
        reply = self.broker.call(method, path, json.dumps(body or {}).encode())
        if reply.status >= 300:
            raise RuntimeError(f"hapax {method} {path}: {reply}")

    def rss_bytes(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


class Redis(Server):
    name = "redis"
    title = "Redis, appendfsync always"

    def __init__(self, root):
        self.program = find_program("redis-server")
        super().__init__(root)

    def version(self):
        return first_line(self.program, "--version")

    def command(self):
        # No rewrite of the append-only file: it would only slow Redis down in the middle of a round.
        return [self.program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.dir),
                "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"]


class Nats(Server):
    name = "nats"
    title = "NATS JetStream, file (does not sync)"

    def __init__(self, root):
        self.program = find_program("nats-server")
        super().__init__(root)

    def version(self):
        return first_line(self.program, "--version")

    def command(self):
        return [self.program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.dir / "store")]


class Beanstalkd(Server):
    name = "beanstalkd"
    title = "beanstalkd -f0 (no keys)"
    dedups = False
    consume_depth = 64      # it hands out one job a request, so what counts is requests in flight

    def __init__(self, root):
        self.program = find_program("beanstalkd")
        super().__init__(root)

    def version(self):
        return first_line(self.program, "-v")

    def command(self):
        (self.dir / "binlog").mkdir()
        return [self.program, "-l", "127.0.0.1", "-p", str(self.port), "-b", str(self.dir / "binlog"), "-f0"]


class Postgres(Server):
    name = "postgres"
    title = "PostgreSQL, 100 rows a transaction"
    single_sends = False

    def __init__(self, root):
        bindirs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        self.initdb = find_program("initdb", *bindirs)
        self.program = str(Path(self.initdb).with_name("postgres"))
        self.psql = find_program("psql", *bindirs)
        super().__init__(root)
        self.as_user = []
        if os.geteuid() == 0:   # it refuses to run as root
            user = next((u for u in ("postgres", "nobody") if self.known(u)), None)
            if not user:
                raise Missing("no unprivileged user to run PostgreSQL as")
            entry = pwd.getpwnam(user)
            os.chown(self.dir, entry.pw_uid, entry.pw_gid)
            self.as_user = [find_program("setpriv"), f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}",
                            "--clear-groups"]

    @staticmethod
    def known(user):
        try:
            return pwd.getpwnam(user)
        except KeyError:
            return None

    def version(self):
        return first_line(self.program, "--version")

    def command(self):
        data = str(self.dir / "data")
        subprocess.run([*self.as_user, self.initdb, "-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8",
                        "--locale=C"], check=True, stdout=subprocess.DEVNULL, cwd=self.dir)
        # Room enough that no checkpoint falls into a round; before_round makes one between rounds.
        return [*self.as_user, self.program, "-D", data, "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
                "-c", f"unix_socket_directories={self.dir}", "-c", "shared_buffers=512MB", "-c", "max_wal_size=8GB",
                "-c", "checkpoint_timeout=1h", "-c", "fsync=on", "-c", "synchronous_commit=on"]

    def before_round(self):
        subprocess.run([self.psql, "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", "postgres",
                        "-c", "DROP TABLE IF EXISTS jobs, seen", "-c", "CHECKPOINT"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self, how=signal.SIGINT):
        super().stop(how)


ALL = [Hapax, Redis, Nats, Beanstalkd, Postgres]
