"""The rules of the house that are about text: who may include whom, which calls are banned, no notes to self, no
trailing blanks, no paths of one machine. Prints file:line: what is wrong; exits 1 if anything is."""

import os
import re
import sys

SKIPPED_DIRS = {".git", "node_modules", "__pycache__", "hapax-data"}
TEXT_SUFFIXES = tuple(".c .h .def .py .sh .md .yml .yaml .js .mjs .html .css .in .1 .txt".split())

# Of the C library and the system. `core` gets the part that cannot do I/O.
PURE = "assert ctype errno float inttypes limits math stdalign stdarg stdbool stddef stdint stdnoreturn string strings"
SYSTEM = PURE + (
    " dirent dlfcn fcntl getopt grp ifaddrs locale malloc netdb poll pthread pwd regex sched semaphore setjmp signal spawn stdatomic"
    " stdio stdio_ext stdlib syslog termios threads time ucontext unistd"
)
SYSTEM_DIRS = ("sys/", "netinet/", "arpa/", "net/", "linux/")
PROCESSOR = {"nmmintrin.h", "immintrin.h", "emmintrin.h", "cpuid.h", "arm_acle.h"}

# room: (rooms, or single headers of rooms, it sees besides itself; foreign headers it may use)
WALLS = {
    "src/base": (set(), PROCESSOR),
    "src/core": ({"base"}, set()),
    "src/config": ({"base", "core/rules.h"}, {"yaml.h"}),
    "src/journal": ({"base", "pg"}, set()),
    "src/archive": ({"base", "pg"}, set()),
    "src/net": ({"base"}, {"uv.h", "curl/curl.h"} | {f"openssl/{name}.h" for name in "core_names err evp params pem sha ssl x509".split()}),
    "src/broker": ({"base", "core", "config", "journal", "net"}, set()),
    "src/daemon": ({"base", "config", "journal", "net", "broker", "relay"}, set()),
    "src/client": ({"base", "hapax"}, {"libpq-fe.h", "sqlite3.h", "openssl/ssl.h", "openssl/err.h", "openssl/x509v3.h"}),
    "src/pg": ({"base"}, {"postgresql/libpq-fe.h"}),
    "src/relay": ({"base", "hapax", "pg"}, set()),
    "src/cli": ({"base", "hapax", "config", "journal", "pg", "relay"}, {"openssl/sha.h", "openssl/ssl.h", "openssl/err.h", "openssl/x509v3.h"}),
    "include/hapax": ({"hapax"}, set()),
}

# A foreign header that one file of a room alone may use (those of several rooms are a tuple): the rest of the room sees that file's
# own header.
WRAPPED = {
    "yaml.h": "src/config/tree_yaml.c",
    "curl/curl.h": "src/net/outbound.c",
    "openssl/evp.h": "src/net/webhook.c",
    "openssl/params.h": "src/net/webhook.c",
    "openssl/sha.h": ("src/net/digest.c", "src/cli/token.c"),
    "openssl/ssl.h": ("src/client/tls.c", "src/cli/load_tls.c", "src/net/tls_priv.h"),
    "openssl/err.h": ("src/client/tls.c", "src/cli/load_tls.c", "src/net/tls.c", "src/net/tls_load.c"),
    "openssl/x509v3.h": ("src/client/tls.c", "src/cli/load_tls.c"),
    "openssl/core_names.h": "src/net/tls.c",
    "openssl/pem.h": "src/net/tls_load.c",
    "openssl/x509.h": "src/net/tls_load.c",
}

# Who may change the core's state. A decision that sees this header could do so without a record.
STATE_HEADER = "core/state.h"
STATE_KEEPERS = {f"src/core/{name}.c" for name in "apply derive core message room group heap purge forget arrivals audit account".split()}

BANNED = "strcpy strcat sprintf vsprintf gets atoi atol atoll atof strtok sscanf alloca"
# What a replay from the journal would not see the same way.
BANNED_IN_CORE = (
    "clock_wall_ms clock_mono_ms clock_mono_us clock_gettime gettimeofday time random_bytes rand random getrandom getenv"
    " open read write close fopen printf fprintf"
)


def names(words):
    # Not behind a dot or an arrow: a member may be called as it likes.
    return re.compile(r"(?<![\w.>])(%s)\s*\(" % "|".join(words.split()))


BANNED_CALL = names(BANNED)
BANNED_CORE_CALL = names(BANNED_IN_CORE)
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
NOTE = re.compile(r"\b(TODO|FIXME|XXX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}~-])/(work|home|root|Users|tmp)/")
# Comments, strings and character literals; only their line breaks are kept.
NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

findings = []


def complain(path, line, message):
    findings.append(f"{path}:{line}: {message}")


def is_system(header):
    return header.removesuffix(".h") in SYSTEM.split() or header.startswith(SYSTEM_DIRS)


def may_include_system(room, header):
    if header in WALLS[room][1]:
        return True
    if room in ("src/core", "include/hapax"):
        return header.removesuffix(".h") in PURE.split()
    return is_system(header)


def keepers(header, anybody):
    files = WRAPPED.get(header, anybody)
    return (files,) if isinstance(files, str) else files


def check_include(path, line, room, quote, header):
    own = room.split("/")[-1]
    if quote == "<" and not header.startswith("hapax/"):
        if not may_include_system(room, header):
            complain(path, line, f"<{header}> is not for {room}")
        elif path not in keepers(header, path):
            complain(path, line, f"<{header}> is for {' and '.join(keepers(header, path))} alone")
        return
    other = header.split("/")[0]
    if ".." in header.split("/"):
        complain(path, line, f'"{header}": no ways around the walls')
    elif "/" not in header:
        complain(path, line, f'"{header}": name the room, as in "{own}/{header}"')
    elif other != own and not {other, header} & WALLS[room][0]:
        complain(path, line, f'{room} must not see "{header}"')
    elif header == STATE_HEADER and path not in STATE_KEEPERS:
        complain(path, line, f'"{header}" is for those who change state: write a record, or derive')
    elif other != own and header.endswith("_priv.h"):
        complain(path, line, f'"{header}" is private to {other}')


def check_c(path, text):
    room = "/".join(path.split("/")[:2])
    if room in WALLS:
        for number, line in enumerate(text.split("\n"), 1):
            found = INCLUDE.match(line)
            if found:
                check_include(path, number, room, *found.groups())
    code = NOT_CODE.sub(lambda m: " " + "\n" * m.group().count("\n"), text)
    for number, line in enumerate(code.split("\n"), 1):
        for found in BANNED_CALL.finditer(line):
            complain(path, number, f"{found.group(1)} is banned")
        if room == "src/core":
            for found in BANNED_CORE_CALL.finditer(line):
                complain(path, number, f"{found.group(1)} is not for core: a replay would differ")


def check_text(path, text):
    ours = path.startswith(("src/", "include/"))
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip(" \t\r"):
            complain(path, number, "trailing white space")
        if ours and NOTE.search(line):
            complain(path, number, "a note to self: do it or write it down elsewhere")
        if MACHINE_PATH.search(line):
            complain(path, number, "a path of one machine")
    if text and not text.endswith("\n"):
        complain(path, text.count("\n") + 1, "no newline at the end")


def is_text(path):
    if path.endswith(TEXT_SUFFIXES) or os.path.basename(path) in ("Makefile", "Dockerfile"):
        return True
    with open(path, "rb") as f:
        return f.read(2) == b"#!"


def project_files():
    for folder, dirs, files in os.walk("."):
        dirs[:] = [d for d in dirs if d not in SKIPPED_DIRS and not d.startswith("build")]
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), ".")
            if is_text(path):
                yield path


def main():
    for path in sorted(project_files()):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        check_text(path, text)
        if path.endswith((".c", ".h")):
            check_c(path, text)
    print("\n".join(findings), end="\n" if findings else "")
    return 1 if findings else 0


sys.exit(main())
