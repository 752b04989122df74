"""A throwaway PostgreSQL server and a minimal client for it, Python standard library only.

The client speaks the simple query protocol over the server's Unix socket. Written here rather than driven through psql
because the tests need what a driver needs: the SQLSTATE of a failure, a request sent without waiting for its reply, a
connection dropped between COMMIT and its answer, and to know whether a session is waiting for a lock.

    with Server() as server:
        s = server.connect()
        s.rows("SELECT 1")          -> [("1",)]
        s.one("SELECT 1")           -> "1"
        s.send("COMMIT"); s.drop()  -> nobody will ever know

From a shell: `pg.py run COMMAND...` starts a server, runs the command with PGHOST, PGUSER and PGDATABASE set, stops it.
"""

import glob
import os
import pwd
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

SUPERUSER = "postgres"


class SqlError(Exception):
    """An ErrorResponse; .code is the SQLSTATE."""

    def __init__(self, fields):
        super().__init__("%s: %s" % (fields.get("C"), fields.get("M")))
        self.code = fields.get("C")
        self.message = fields.get("M", "")


class Lost(Exception):
    """The connection ended: whether the last request took effect is not known."""


class Session:
    def __init__(self, path, database, user, options=None):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.buffer = b""
        self.pid = None
        self.pending = False
        self.notices = []  # texts of NOTICE and the like, until somebody takes them
        params = {"user": user, "database": database}
        if options:
            params["options"] = options
        body = b"".join(k.encode() + b"\0" + v.encode() + b"\0" for k, v in params.items()) + b"\0"
        self.sock.sendall(struct.pack("!ii", len(body) + 8, 196608) + body)
        self.pending = True
        self.finish()

    def send(self, sql):
        """Sends a request and does not wait for its answer; finish() collects it."""
        assert not self.pending, "one request at a time"
        body = sql.encode() + b"\0"
        try:
            self.sock.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)
        except OSError as e:
            raise Lost(str(e))
        self.pending = True

    def _message(self):
        while len(self.buffer) < 5 or len(self.buffer) < 1 + struct.unpack_from("!i", self.buffer, 1)[0]:
            try:
                data = self.sock.recv(65536)
            except OSError as e:
                raise Lost(str(e))
            if not data:
                raise Lost("connection closed by the server")
            self.buffer += data
        size = struct.unpack_from("!i", self.buffer, 1)[0]
        kind, body = self.buffer[:1], self.buffer[5 : 1 + size]
        self.buffer = self.buffer[1 + size :]
        return kind, body

    def finish(self):
        """Waits for the answer of the last send: the rows of its last SELECT, as tuples of text and None."""
        rows, error = [], None
        while True:
            kind, body = self._message()
            if kind == b"T":
                rows = []
            elif kind == b"D":
                rows.append(self._row(body))
            elif kind == b"E":
                error = dict((f[:1].decode(), f[1:].decode()) for f in body.split(b"\0") if f)
            elif kind == b"N":
                self.notices += [f[1:].decode() for f in body.split(b"\0") if f[:1] == b"M"]
            elif kind == b"K":
                self.pid = struct.unpack_from("!i", body)[0]
            elif kind == b"Z":
                self.pending = False
                if error:
                    raise SqlError(error)
                return rows
            # The server's farewell is an error without a ReadyForQuery after it.
            if error and error.get("C", "").startswith("57P0"):
                raise Lost(error.get("M"))

    @staticmethod
    def _row(body):
        row, at = [], 2
        for _ in range(struct.unpack_from("!h", body)[0]):
            size = struct.unpack_from("!i", body, at)[0]
            at += 4
            row.append(None if size < 0 else body[at : at + size].decode())
            at += max(size, 0)
        return tuple(row)

    def rows(self, sql):
        self.send(sql)
        return self.finish()

    def one(self, sql):
        """The first column of the first row, None without rows."""
        rows = self.rows(sql)
        return rows[0][0] if rows else None

    def code(self, sql):
        """The SQLSTATE the statement fails with, '00000' if it does not."""
        try:
            self.rows(sql)
            return "00000"
        except SqlError as e:
            return e.code

    def answered(self, seconds=0.0):
        return bool(self.buffer) or bool(select.select([self.sock], [], [], seconds)[0])

    def drop(self):
        self.sock.close()


class Server:
    """initdb in a temporary directory, a Unix socket only, stopped and removed at the end."""

    def __init__(self, max_connections=100, settings=()):
        self.bin = self._bindir()
        self.home = tempfile.mkdtemp(prefix="hapax-gate-")
        self.data = os.path.join(self.home, "data")
        self.settings = ["listen_addresses=''", "unix_socket_directories='%s'" % self.home,
                         "max_connections=%d" % max_connections, "max_prepared_transactions=4",
                         "logging_collector=off", "deadlock_timeout=200ms"] + list(settings)
        self.log = os.path.join(self.home, "server.log")
        if os.geteuid() == 0:
            shutil.chown(self.home, SUPERUSER)
        os.chmod(self.home, 0o755)

    @staticmethod
    def _bindir():
        found = glob.glob("/usr/lib/postgresql/*/bin/initdb")
        if not found:
            path = shutil.which("initdb")
            if not path:
                raise SystemExit("Bail out! no PostgreSQL server found (Debian: apt install postgresql)")
            return os.path.dirname(path)
        return os.path.dirname(max(found, key=lambda p: int(p.split("/")[4])))

    def _tool(self, *argv):
        """PostgreSQL refuses to run as root: become its own user there."""
        argv = [os.path.join(self.bin, argv[0])] + list(argv[1:])
        if os.geteuid() == 0:
            argv = ["setpriv", "--reuid", SUPERUSER, "--regid", SUPERUSER, "--init-groups"] + argv
        # The postmaster outlives pg_ctl and would hold an inherited pipe open: give it a file.
        with open(self.log + ".tool", "ab") as out:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.home)
        if done.returncode:
            with open(self.log + ".tool", "rb") as f:
                raise RuntimeError("%s failed:\n%s" % (argv, f.read().decode()))

    def __enter__(self):
        # Whoever stops a test with SIGTERM gets the server stopped, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            self._tool("initdb", "-D", self.data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
            with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
                f.write("\n".join(self.settings) + "\n")
            self.start()
        except BaseException:
            shutil.rmtree(self.home, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_):
        try:
            if os.path.exists(os.path.join(self.data, "postmaster.pid")):
                self.stop("immediate")
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def start(self):
        self._tool("pg_ctl", "-D", self.data, "-l", self.log, "-w", "-t", "60", "start")

    def stop(self, mode="fast"):
        self._tool("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    @property
    def socket(self):
        return os.path.join(self.home, ".s.PGSQL.5432")

    def connect(self, database="postgres", user=SUPERUSER, options=None):
        return Session(self.socket, database, user, options)

    def environment(self):
        env = dict(os.environ, PGHOST=self.home, PGPORT="5432", PGUSER=SUPERUSER, PGDATABASE="postgres")
        env["PATH"] = self.bin + ":" + env["PATH"]
        return env

    def psql(self, *argv, **more):
        return subprocess.run(["psql", "-X", "-q"] + list(argv), env=self.environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)


class Standby(Server):
    """A copy of a running primary that follows it, and waits in its place until promote()."""

    def __init__(self, primary):
        super().__init__()
        self.primary = primary

    def __enter__(self):
        try:
            self._tool("pg_basebackup", "-D", self.data, "-h", self.primary.home, "-U", SUPERUSER, "-R", "-c", "fast")
            with open(os.path.join(self.data, "postgresql.conf"), "a") as f:
                f.write("unix_socket_directories='%s'\n" % self.home)
            self.start()
        except BaseException:
            shutil.rmtree(self.home, ignore_errors=True)
            raise
        return self

    def promote(self):
        self._tool("pg_ctl", "-D", self.data, "-w", "-t", "60", "promote")


class Bouncer:
    """PgBouncer in transaction mode before a server: two connections to it, whoever comes."""

    def __init__(self, server):
        self.server, self.process = server, None
        self.home = tempfile.mkdtemp(prefix="hapax-bouncer-")

    @staticmethod
    def program():
        return shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")

    def __enter__(self):
        user = pwd.getpwnam(SUPERUSER) if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        os.chown(self.home, user.pw_uid, user.pw_gid)
        os.chmod(self.home, 0o755)
        with open(self.home + "/users.txt", "w") as f:
            f.write('"%s" ""\n' % SUPERUSER)
        with open(self.home + "/pgbouncer.ini", "w") as f:
            f.write("[databases]\n* = host={0} port=5432\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {1}\nlisten_port = 6432\n"
                    "auth_type = trust\nauth_file = {1}/users.txt\npool_mode = transaction\ndefault_pool_size = 2\nlogfile = {1}/log\n"
                    "pidfile = {1}/pid\nignore_startup_parameters = options\n".format(self.server.home, self.home))
        become = ["setpriv", "--reuid", user.pw_name, "--regid", user.pw_name, "--init-groups"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen(become + [self.program(), self.home + "/pgbouncer.ini"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self._listens() and self.process.poll() is None:
            pass
        return self

    def _listens(self):
        """The socket's file is there a moment before anybody listens on it."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    @property
    def socket(self):
        return self.home + "/.s.PGSQL.6432"

    def connect(self):
        return Session(self.socket, "postgres", SUPERUSER)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "run":
        sys.exit("usage: pg.py run COMMAND [ARG...]")
    with Server(settings=os.environ.get("PG_SETTINGS", "").split()) as running:
        sys.exit(subprocess.run(sys.argv[2:], env=running.environment()).returncode)
