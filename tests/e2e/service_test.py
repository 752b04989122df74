#!/usr/bin/env python3
"""hapaxd as a service: what packaging/ installs, what the service manager is told, and that everything works in the sandbox of the unit."""
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile

import hx
from hx import Broker, NotReady, Skip, same, test

UNIT = os.path.join(hx.ROOT, "packaging", "hapaxd.service.in")
SANDBOX = os.path.join(hx.ROOT, "tests", "e2e", "sandboxed")
EXPOSURE_MAX = 2.0
NOBODY = 65534


def analyze(*words):
    done = subprocess.run(["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


class Installed:
    """The unit as `make install` leaves it, with this build's hapaxd."""

    def __enter__(self):
        self.home = tempfile.mkdtemp(prefix="hapax-unit-")
        os.mkdir(os.path.join(self.home, "bin"))
        shutil.copy(hx.HAPAXD, os.path.join(self.home, "bin", "hapaxd"))
        unit = os.path.join(self.home, "hapaxd.service")
        with open(unit, "w", encoding="utf-8") as file:
            file.write(open(UNIT, encoding="utf-8").read().replace("@PREFIX@", self.home))
        return unit

    def __exit__(self, *_):
        shutil.rmtree(self.home)


@test
def the_unit_is_one_that_systemd_takes_without_a_word():
    with Installed() as unit:
        same(analyze("verify", "--man=no", unit), (0, ""))


@test
def the_units_exposure_is_below_two():
    with Installed() as unit:
        code, text = analyze("security", "--offline=true", unit)
        same(code, 0, text)
        level = float(re.search(r"Overall exposure level for hapaxd.service: ([0-9.]+)", text).group(1))
        assert level < EXPOSURE_MAX, text


def can_sandbox():
    hx.needs_plain("a sanitizer needs more of the system than the broker does")
    done = subprocess.run(["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"], capture_output=True, text=True)
    if done.returncode:
        raise Skip("no name spaces here: " + done.stderr.strip())


def inside(suite, *words, **env):
    """Runs another suite with every broker in the sandbox, where a system call outside the unit's filter is the end."""
    env = dict(os.environ, HAPAXD=SANDBOX, SANDBOXED=hx.HAPAXD, **env)
    done = subprocess.run([os.path.join(os.path.dirname(SANDBOX), suite), *words], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and "\nok 1" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


@test
def sending_works_in_the_sandbox():
    can_sandbox()
    inside("send_test.py")


@test
def settling_restarts_and_holding_work_in_the_sandbox():
    can_sandbox()
    inside("settle_test.py")
    inside("held_test.py")


@test
def names_are_looked_up_and_receivers_told_in_the_sandbox():
    can_sandbox()
    inside("notify_test.py", "reload_moves", "every_change")


@test
def tls_and_another_certificate_by_a_reload_work_in_the_sandbox():
    can_sandbox()
    with tempfile.TemporaryDirectory() as home:
        inside("tls_test.py", "a_message_travels_over_tls", "another_certificate_is_shown", TMPDIR=home, SANDBOX_SEES=home)


@test
def a_relay_loads_its_library_and_reads_its_database_in_the_sandbox():
    can_sandbox()
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)  # PostgreSQL is another user
        inside("../gate/outbox_test.py", "the_daemon_runs_the_relays", TMPDIR=home, SANDBOX_SEES=home)


@test
def the_page_and_the_metrics_are_served_in_the_sandbox():
    can_sandbox()
    inside("dashboard_test.py")


@test
def what_the_unit_does_not_allow_ends_the_process():
    """The sandbox of these tests is one: else everything passes in it."""
    can_sandbox()
    with tempfile.TemporaryDirectory() as data:
        for call, code in (("import os; os.open('/usr/x', os.O_CREAT | os.O_WRONLY)", 1), ("import os; os.setuid(0)", -signal.SIGSYS),
                           ("import mmap; mmap.mmap(-1, 4096, prot=7)", -signal.SIGSYS),
                           ("import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", -signal.SIGSYS)):
            # Python in the place of hapaxd takes --data for a word of its own program's.
            done = subprocess.run([SANDBOX, "-c", call, "--data", data], env=dict(os.environ, SANDBOXED="/usr/bin/python3"), capture_output=True)
            assert done.returncode in (code, 128 + signal.SIGSYS if code < 0 else code), (call, done)


# ---- what the service manager is told

class Manager:
    """Somebody who listens where NOTIFY_SOCKET says."""

    def __enter__(self):
        self.home = tempfile.mkdtemp(prefix="hapax-notify-")
        self.path = os.path.join(self.home, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(hx.TIMEOUT)
        return self

    def __exit__(self, *_):
        self.socket.close()
        shutil.rmtree(self.home)

    def next(self, but=()):
        while True:
            said = self.socket.recv(4096).decode()
            if said not in but:
                return said


@test
def the_manager_is_told_when_it_serves_reloads_and_stops():
    with Manager() as m, Broker(config="queues: {a: {}}\n", env={"NOTIFY_SOCKET": m.path}) as b:
        same(m.next(), "READY=1")
        b.reload("queues: {a: {}, b: {}}\n")
        assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", m.next())
        same(m.next(), "READY=1")
        b.reload("queues: {a: {windw: 1s}}\n")
        assert m.next().startswith("RELOADING=1")
        same(m.next(), "READY=1", "the old rules stay, and it serves on")
        same(b.stop(), 0)
        same(m.next(), "STOPPING=1")


@test
def the_watchdog_hears_of_it_while_the_loop_turns_and_not_when_it_hangs():
    with Manager() as m, Broker(env={"NOTIFY_SOCKET": m.path, "WATCHDOG_USEC": "100000"}) as b:
        same(m.next(), "READY=1")
        for _ in range(5):
            same(m.next(), "WATCHDOG=1")
        b.signal(signal.SIGSTOP)
        try:
            m.socket.settimeout(1)
            said = [m.next() for _ in range(50)]
            raise AssertionError(f"a stopped process said {said}")
        except TimeoutError:
            pass
        finally:
            b.signal(signal.SIGCONT)
        m.socket.settimeout(hx.TIMEOUT)
        same(m.next(), "WATCHDOG=1")


@test
def a_watchdog_of_another_process_and_a_socket_that_is_none_are_no_matter():
    with Manager() as m:
        with Broker(env={"NOTIFY_SOCKET": m.path, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}) as b:
            b.put("q", "k")
            same(b.stop(), 0)
        same([m.next(), m.next()], ["READY=1", "STOPPING=1"])
        for path in ("", "x", "@", "/" + "x" * 300, m.path + "-missing", "relative/notify"):
            with Broker(env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "no"}) as b:
                b.put("q", "k")
                same(b.stop(), 0)


@test
def a_name_beside_the_file_system_is_heard_too():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind("\0hapax-test-%d" % os.getpid())
        s.settimeout(hx.TIMEOUT)
        with Broker(env={"NOTIFY_SOCKET": "@hapax-test-%d" % os.getpid()}):
            same(s.recv(100), b"READY=1")


# ---- what a crash, or somebody else under the same user, finds

class Own:
    """A broker of a user that is not root, and a way to be that user too."""

    def __init__(self, *options):
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        self.home = tempfile.mkdtemp(prefix="hapax-own-")
        os.chmod(self.home, 0o755)
        self.data = os.path.join(self.home, "data")
        os.mkdir(self.data, 0o700)
        binary = os.path.join(self.home, "hapaxd")
        shutil.copy(hx.HAPAXD, binary)
        os.chmod(binary, 0o755)
        if self.user:
            os.chown(self.data, NOBODY, NOBODY)
        self.process = subprocess.Popen(
            [binary, "--listen", "127.0.0.1:0", "--data", self.data, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=self.data,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)), **self.user)
        assert self.process.stdout.readline().startswith(b"hapaxd ready"), self.process.wait(hx.TIMEOUT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.home)

    def sees(self, name):
        """May the broker's own user open this of its process?"""
        read = f"open('/proc/{self.process.pid}/{name}', 'rb').close()"
        return subprocess.run(["/usr/bin/python3", "-c", read], capture_output=True, cwd="/", **self.user).returncode == 0


@test
def nobody_but_root_looks_into_the_memory_of_a_broker():
    with Own() as b:
        same([name for name in ("mem", "environ", "maps") if b.sees(name)], [])
        limits = open(f"/proc/{b.process.pid}/limits", encoding="utf-8").read()
        assert re.search(r"^Max core file size +0 +0 ", limits, re.M), limits
        assert re.search(r"^NoNewPrivs:\t1$", open(f"/proc/{b.process.pid}/status", encoding="utf-8").read(), re.M)
    with Own("--allow-dumps") as b:
        if not b.sees("environ"):
            raise Skip("this machine lets nobody look anyway")
        same([name for name in ("environ", "maps") if not b.sees(name)], [])


@test
def a_crash_leaves_no_core():
    hx.needs_plain("a sanitizer takes the signal for itself")
    for options, core in (((), False), (("--allow-dumps",), True)):
        with Own(*options) as b:
            os.kill(b.process.pid, signal.SIGSEGV)
            _, status = os.waitpid(b.process.pid, 0)
            b.process.returncode = status
            assert os.WIFSIGNALED(status), status
            if core and not os.WCOREDUMP(status):
                raise Skip("this machine writes no cores anyway")
            same(os.WCOREDUMP(status), core)


@test
def what_it_makes_is_nobody_elses_to_read():
    anybody = ["sh", "-c", 'umask 0; exec "$@"', "sh"]
    with tempfile.TemporaryDirectory() as home, Broker(os.path.join(home, "data"), wrapper=anybody, log=os.path.join(home, "log")) as b:
        b.put("q", "k")
        for folder, folders, files in os.walk(home):
            for name in folders + files:
                same((name, os.stat(os.path.join(folder, name)).st_mode & 0o077 if name != "log" else 0), (name, 0))


@test
def a_config_file_that_anybody_may_write_to_is_refused_and_the_old_one_stays():
    with Broker(config="queues: {a: {}}\n") as b:
        os.chmod(b.config, 0o666)
        said = b.reload("queues: {mine: {}}\n")
        assert f"{b.config}: anybody may write to it (its mode is 0666): chmod o-w {b.config}" in said and "reload refused" in said, said
        same(b.get("/v1/queues/mine").status, 404)
        same(b.stop(), 0)
        done = subprocess.run([hx.HAPAXD, "--config", b.config, "--listen", "127.0.0.1:0", "--data", b.data], capture_output=True, timeout=hx.TIMEOUT)
        assert done.returncode == 1 and done.stdout == b"" and b"anybody may write to it" in done.stderr, done
        os.chmod(b.config, 0o664)
        b.start()


@test
def no_file_of_the_data_directory_leads_out_of_it():
    """A link in the place of any file is not followed: what it points at stays as it is."""
    with tempfile.TemporaryDirectory() as home:
        victim = os.path.join(home, "victim")
        with Broker(os.path.join(home, "data")) as b:
            b.put("q", "k")
            same(b.stop(), 0)
            names = sorted(os.listdir(b.data))
            assert len(names) > 2, names
            spared = []  # what it can do without, and makes anew
            for name in names:
                path, kept = os.path.join(b.data, name), os.path.join(home, "kept")
                os.rename(path, kept)
                shutil.copy(kept, victim)
                before = open(victim, "rb").read()
                os.symlink(victim, path)
                try:
                    b.start()
                    b.put("q", name)
                    same(b.stop(), 0)
                    spared.append(name)
                except NotReady:
                    pass
                same(open(victim, "rb").read(), before, name)
                if os.path.islink(path):
                    os.unlink(path)
                    os.rename(kept, path)
            assert len(spared) < len(names), spared
            b.start()
            same(b.state("q", "k"), "pending")


hx.main(shared=False, threads=4)
