"""What the crash and fault tests share: their programs, file systems of their own, and that nothing is left running. The
broker, its client and TAP are e2e/hx.py's.

Programs come from the environment: BUILD (default build), HAPAXD, HAPAX, WITNESS, CHECK_HISTORY."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests", "e2e"))

import hx  # noqa: E402
from hx import BUILD, HAPAX, HAPAXD, Client, Lost, NotReady, Skip, test, until  # noqa: E402, F401


def program(variable, default):
    return os.environ.get(variable, os.path.join(BUILD, default))


WITNESS = program("WITNESS", "tests/witness")
CHECK_HISTORY = program("CHECK_HISTORY", "tests/check_history")
FS_SHUTDOWN = program("FS_SHUTDOWN", "tests/fs_shutdown")
MAKE_DIRECTORY = program("MAKE_DIRECTORY", "tests/make_directory")


def ensure_built():
    """For a tree that was never built; else what is there is tested."""
    if all(map(os.path.exists, (HAPAXD, HAPAX, WITNESS, CHECK_HISTORY, FS_SHUTDOWN, MAKE_DIRECTORY))):
        return
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", f"BUILD={os.environ.get('BUILD', 'build')}", "test-tools"],
                   cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


RUNNING, UNDO = [], []


def new_broker(data, **options):
    """A broker to be started; its port stays, so that clients find it again."""
    broker = hx.Broker(data, start=False, **options)
    RUNNING.append(broker)
    return broker


@contextlib.contextmanager
def directory():
    """One for a test, kept if it fails."""
    path = tempfile.mkdtemp(prefix="hapax-fault.")
    try:
        yield path
    except hx.Skip:
        raise
    except BaseException:
        complain(f"files kept in {path}")
        raise
    finally:
        undo_all()
    shutil.rmtree(path, ignore_errors=True)


def main():
    """Runs the file's tests one after the other, each with a directory of its own, and exits."""
    ensure_built()
    hx.main(threads=1, shared=False, around=directory)


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


def complain(text):
    print("".join(f"# {line}\n" for line in text.splitlines()), end="", flush=True)
