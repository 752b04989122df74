"""What the gate's tests share: the registry of tests, the installed server, waiting without sleeping."""

import os
import sys
import traceback

import pg

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SQL = os.path.join(ROOT, "sql", "postgres")
GATE = os.path.join(SQL, "hapax_gate.sql")
UNINSTALL = os.path.join(SQL, "uninstall.sql")
MIGRATIONS = os.path.join(SQL, "migrations")

TESTS = []


class Skip(Exception):
    pass


def test(function):
    """Registers a test; its name is the promise, in words."""
    TESTS.append(function)
    return function


def equal(got, wanted, what=""):
    if got != wanted:
        raise AssertionError("%sgot %r, wanted %r" % (what and what + ": ", got, wanted))


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


def run(env, tests, out=sys.stdout):
    """Prints TAP; returns the number of failures."""
    failures = 0
    print("1..%d" % len(tests), file=out, flush=True)
    for number, t in enumerate(tests, 1):
        name = t.__name__
        try:
            t(env)
            print("ok %d - %s" % (number, name), file=out, flush=True)
        except Skip as why:
            print("ok %d - %s # SKIP %s" % (number, name, why), file=out, flush=True)
        except Exception:
            failures += 1
            print("not ok %d - %s" % (number, name), file=out)
            for line in traceback.format_exc().splitlines():
                print("# " + line, file=out, flush=True)
        env.close()
    return failures
