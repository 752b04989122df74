"""What the gate's tests share: a server with the gate installed, calls of its functions, waiting without sleeping. Each
file is a suite with a server of its own; tests, TAP and the broker are e2e/hx.py's.

    tests/gate/functions_test.py fence sweep     only tests whose names contain one of the words
    CRASHES=2000 tests/gate/crashes_test.py      as many crashes; with CRASHES set the interleavings run in full, too
    HAPAX_GATE_SQL=FILE ...                      that file instead of sql/postgres/hapax_gate.sql
"""

import contextlib
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests", "e2e"))

import hx  # noqa: E402
import pg  # noqa: E402
from hx import BUILD, HAPAX, Skip, same as equal, test  # noqa: E402, F401

SQL = os.path.join(ROOT, "sql", "postgres")
GATE = os.path.join(SQL, "hapax_gate.sql")
UNINSTALL = os.path.join(SQL, "uninstall.sql")
MIGRATIONS = os.path.join(SQL, "migrations")
V1 = os.path.join(ROOT, "tests", "gate", "hapax_gate_v1.sql")  # as it was released, to be upgraded


class Env:
    """A running server with the gate in its database `postgres`."""

    def __init__(self, server, gate):
        self.server = server
        self.gate = gate
        self.sessions = []
        self.monitor = server.connect()

    def install(self, *files, database="postgres", user=pg.SUPERUSER):
        for f in files:
            done = self.server.psql("-v", "ON_ERROR_STOP=1", "-d", database, "-U", user, "-f", f)
            equal((done.returncode, done.stdout), (0, ""), "running " + os.path.basename(f))

    def session(self, **where):
        s = self.server.connect(**where)
        self.sessions.append(s)
        return s

    def close(self):
        for s in self.sessions:
            s.drop()
        self.sessions = []

    def blocked(self, session):
        """True when the session waits for a lock, False when it has answered. Waits for whichever comes first."""
        while not session.answered(0.001):
            waits = self.monitor.one("SELECT count(*) FROM pg_locks WHERE pid = %d AND NOT granted" % session.pid)
            if waits != "0":
                return True
        return False

    def settled_down(self):
        """After an abrupt disconnect: wait until no backend but our own is left running a transaction."""
        while self.monitor.one("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                               " AND pid <> pg_backend_pid() AND state <> 'idle'") != "0":
            pass


def claim(s, key, scope="t", **args):
    return s.rows("SELECT * FROM hapax.claim('%s', '%s'%s)" % (scope, key, named(args)))[0]


def reserve(s, key, scope="t", **args):
    return s.rows("SELECT * FROM hapax.reserve('%s', '%s'%s)" % (scope, key, named(args)))[0]


def status(row):
    return row[0]


def named(args):
    def literal(v):
        return "NULL" if v is None else str(v) if isinstance(v, int) else "'%s'" % v

    return "".join(", %s => %s" % (k, literal(v)) for k, v in args.items())


def dump(env, database):
    done = subprocess.run(["pg_dump", "-s", "-n", "hapax", database], env=env.server.environment(), text=True,
                          stdout=subprocess.PIPE, check=True)
    return [line for line in done.stdout.splitlines() if line and not line.startswith(("--", "\\"))]


def fresh_database(env, name):
    env.monitor.rows("DROP DATABASE IF EXISTS %s" % name)
    env.monitor.rows("CREATE DATABASE %s" % name)


def expire(s, key, scope="t"):
    """Lets a lease run out without waiting for it."""
    s.rows("UPDATE hapax.entry SET since = since - interval '1 hour', lease_until = lease_until - interval '1 hour'"
           " WHERE scope = '%s' AND key = '%s'" % (scope, key))


class Bench:
    """A broker, a directory, and tables in the gate's database where consumers leave their effects."""

    def __init__(self, env):
        self.env = env
        env.monitor.rows("DROP TABLE IF EXISTS effects; DROP TABLE IF EXISTS calls")
        env.monitor.rows("CREATE TABLE effects (key text); CREATE TABLE calls (key text)")

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="hapax-gate-bench-")
        self.home = self.directory.name
        self.name = os.path.basename(self.home)  # no two tests use the same keys
        self.broker = hx.Broker()
        return self

    def __exit__(self, *_):
        self.broker.remove()
        self.directory.cleanup()


def main():
    """Runs the file's tests one after the other, each with the server, and exits."""
    if not hx.chosen():
        hx.main(shared=False)
    # Processes die here, the machine does not: what PostgreSQL has written survives without fsync.
    with pg.Server(max_connections=1100, settings=["shared_buffers=64MB", "fsync=off"]) as server:
        env = Env(server, os.environ.get("HAPAX_GATE_SQL", GATE))
        env.install(env.gate)

        @contextlib.contextmanager
        def sessions():
            try:
                yield env
            finally:
                env.close()

        hx.main(threads=1, shared=False, around=sessions)
