#!/usr/bin/env python3
"""How the command and libhapax reach a broker: as whom, and over what. The other side is made here, so that it can be as
wrong as a test wants."""
import datetime
import hashlib
import http.server
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import warnings

import certs
import hx
from hx import same, test

warnings.simplefilter("ignore", DeprecationWarning)  # of an old protocol version, which is asked for on purpose
TOKEN = "hx_TheTokenNobodyElseMaySee0123456789"
OTHER = "hx_AnotherTokenThatIsNotMeant9876543210"
HOME = tempfile.TemporaryDirectory(prefix="hapax-connect-")


def problem(status, code, detail="why"):
    return status, json.dumps({"type": f"urn:hapax:{code}", "title": "no", "status": status, "detail": detail, "code": code,
                               "retryable": False, "applied": "no"}).encode()


ACCEPTED = 202, json.dumps({"outcome": "accepted", "duplicate": False, "id": "0" * 32, "queue": "q", "key": "k",
                            "state": "pending", "expires_at": None}).encode()
EMPTY = 200, b'{"items":[],"next_cursor":null,"messages":[]}'


class Side:
    """Answers every request with `answer`, or with what `answer(path)` says; None hangs up. `seen` has the requests."""

    def __init__(self, answer=EMPTY, context=None):
        self.seen, self.reused, self.connections = [], [], 0
        side = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                side.seen.append((self.command, self.path, self.headers))
                got = answer(self.path) if callable(answer) else answer
                self.close_connection = got is None
                if got is None:
                    return
                self.send_response(got[0])
                self.send_header("Content-Type", "application/json" if got[0] < 300 else "application/problem+json")
                self.send_header("Content-Length", str(len(got[1])))
                self.end_headers()
                self.wfile.write(got[1])

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request, client_address):
                side.connections += 1
                if not context:
                    return super().finish_request(request, client_address)
                with context.wrap_socket(request, server_side=True) as secure:
                    side.reused.append(secure.session_reused)
                    super().finish_request(secure, client_address)

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def tokens(self):
        return [headers.get("Authorization") for _, _, headers in self.seen]


def environment(url, **more):
    env = {n: v for n, v in os.environ.items() if not n.startswith(("HAPAX", "SSL_"))}
    return dict(env, HAPAX_URL=url, USER="tester", **more)


def hapax(side, *words, exits=0, stdin=b"", **env):
    url = side if isinstance(side, str) else side.url
    process = subprocess.Popen([hx.HAPAX, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=environment(url, **env))
    ran = hx.Ran(words, process, *process.communicate(stdin, hx.TIMEOUT))
    assert exits is None or ran.code == exits, f"wanted exit code {exits}: {ran!r}"
    shown = ran.text + ran.err
    assert TOKEN not in shown and OTHER not in shown, f"a token was shown: {ran!r}"
    return ran


def file_with(text, mode=0o600):
    handle, path = tempfile.mkstemp(dir=HOME.name)
    with os.fdopen(handle, "w") as f:
        f.write(text)
    os.chmod(path, mode)
    return path


# ---- tokens

@test
def a_token_is_sent_from_wherever_it_is_given():
    file = file_with(TOKEN + "\n")
    for words, env in ([["--api-token", TOKEN], {}], [["--api-token=" + TOKEN], {}], [["--api-token-file", file], {}],
                       [[], {"HAPAX_API_TOKEN": TOKEN}], [[], {"HAPAX_API_TOKEN_FILE": file}]):
        with Side() as side:
            hapax(side, "stats", *words, **env)
            same(side.tokens(), ["Bearer " + TOKEN])
    with Side() as side:
        hapax(side, "stats", HAPAX_API_TOKEN="", HAPAX_TOKEN="a-lease")
        same(side.tokens(), [None])


@test
def a_flag_beats_the_environment_and_a_token_beats_a_file():
    mine, others = file_with(TOKEN), file_with(OTHER)
    for words, env in ([["--api-token", TOKEN], {"HAPAX_API_TOKEN": OTHER, "HAPAX_API_TOKEN_FILE": others}],
                       [["--api-token-file", mine], {"HAPAX_API_TOKEN": OTHER, "HAPAX_API_TOKEN_FILE": others}],
                       [[], {"HAPAX_API_TOKEN": TOKEN, "HAPAX_API_TOKEN_FILE": others}],
                       [["--api-token", TOKEN, "--api-token-file", others], {}]):
        with Side() as side:
            hapax(side, "stats", *words, **env)
            same(side.tokens(), ["Bearer " + TOKEN])


@test
def every_verb_that_talks_to_the_broker_shows_its_token():
    key, id, words = "k", "0" * 32, ["--note", "n"]
    verbs = [["send", "q", "p", "--key", key], ["receive", "q"], ["receive", "q", "--exec", "true"], ["ack", "t" * 40], ["nack", "t" * 40],
             ["extend", "t" * 40], ["step", "t" * 40, "s"], ["start", "t" * 40], ["release", "t" * 40], ["key", "show", "q", key],
             ["key", "find", "q", key], ["key", "result", "q", key], ["key", "resolve", "q", key, "--as", "done", *words],
             ["key", "replay", "q", key, *words], ["key", "erase", "q", key, "--yes", *words], ["key", "forget", "q", key, "--yes", *words],
             ["queues", "list"], ["queues", "show", "q"], ["queues", "explain", "q"], ["queues", "pause", "q"], ["queues", "resume", "q"],
             ["queues", "set", "q", "lease=30s"], ["queues", "purge", "q", "--yes"], ["queues", "delete", "q", "--yes"], ["messages", "list", "q"],
             ["messages", "show", "q", id], ["messages", "cancel", "q", id], ["revoke", "q", id], ["dead", "list", "q"],
             ["dead", "redrive", "q"], ["held", "list", "q"], ["held", "show", "q", id], ["held", "resolve", "q", id, "--as", "done", *words],
             ["tasks", "list"], ["tasks", "show", "1"], ["tasks", "cancel", "1"], ["replay", "q", "--since", "1d", "--approved-by", "ada"],
             ["find", "--request-id", "r"], ["consumers"], ["top", "--once"], ["tail"], ["alerts"], ["audit"], ["stats"], ["doctor"],
             ["send", "q", "--batch", "-"], ["bench", "--count", "1"]]
    refused = problem(403, "forbidden")
    for verb in verbs:
        with Side(refused, context=GOOD.context()) as side:
            process = subprocess.run([hx.HAPAX, *verb, "--cacert", CA.cert], input=b'{"key":"k","payload":"p"}\n', capture_output=True, timeout=hx.TIMEOUT,
                                     env=environment(side.url, HAPAX_API_TOKEN=TOKEN))
            assert side.tokens() and set(side.tokens()) == {"Bearer " + TOKEN}, (verb, side.tokens(), process)
            assert process.returncode in (1, 3) and TOKEN.encode() not in process.stdout + process.stderr, (verb, process)


@test
def a_token_is_not_sent_unencrypted_to_another_machine():
    with Side() as side:
        # An address that is not loopback's, and yet leads here.
        elsewhere = f"http://0.0.0.0:{side.port}"
        ran = hapax(elsewhere, "stats", exits=2, HAPAX_API_TOKEN=TOKEN)
        assert "not encrypted" in ran.err and "--insecure-token" in ran.err, ran
        same(side.seen, [])
        hapax(elsewhere, "stats", "--insecure-token", HAPAX_API_TOKEN=TOKEN)
        hapax(elsewhere, "stats", HAPAX_API_TOKEN=TOKEN, HAPAX_INSECURE_TOKEN="1")
        hapax(elsewhere, "stats")
        same(side.tokens(), ["Bearer " + TOKEN] * 2 + [None])


@test
def what_is_no_token_is_refused_without_repeating_it():
    with Side() as side:
        for wrong in ("two words" + TOKEN, TOKEN + "\r\nEvil: 1", "é" + TOKEN, TOKEN * 200):
            ran = hapax(side, "stats", exits=2, HAPAX_API_TOKEN=wrong)
            assert "visible ASCII" in ran.err, ran
        for wrong in ("", "\n", TOKEN + "\n" + TOKEN, TOKEN * 200):
            ran = hapax(side, "stats", exits=2, HAPAX_API_TOKEN_FILE=file_with(wrong))
            assert "visible ASCII" in ran.err, ran
        ran = hapax(side, "stats", "--api-token-file", HOME.name + "/none", exits=2)
        assert "none: No such file or directory" in ran.err, ran
        same(side.seen, [])


@test
def a_file_that_everybody_can_read_is_warned_of():
    with Side() as side:
        open_file, closed = file_with(TOKEN, 0o644), file_with(TOKEN, 0o640)
        assert f"can read {open_file}" in hapax(side, "stats", HAPAX_API_TOKEN_FILE=open_file).err
        same(hapax(side, "stats", HAPAX_API_TOKEN_FILE=closed).err, "")


@test
def a_token_of_the_command_line_is_blanked_there():
    shown, asked = [], threading.Event()

    def answer(_):
        asked.set()
        assert done.wait(hx.TIMEOUT)
        return EMPTY

    done = threading.Event()
    with Side(answer) as side:
        process = subprocess.Popen([hx.HAPAX, "stats", "--api-token", TOKEN], env=environment(side.url), stdout=subprocess.DEVNULL)
        assert asked.wait(hx.TIMEOUT)
        with open(f"/proc/{process.pid}/cmdline", "rb") as f:
            shown = f.read()
        done.set()
        same(process.wait(hx.TIMEOUT), 0)
    assert b"--api-token\0x" in shown and TOKEN.encode() not in shown, shown


@test
def a_command_run_for_a_message_talks_as_the_one_that_ran_it():
    message = {"id": "0" * 32, "key": "k", "queue": "q", "token": "t", "fence": "1", "attempt": 1, "failures": 0, "crashes": 0, "generation": 1,
               "effect_key": "k", "delivery": "first", "attrs": {}, "content_type": "text/plain", "payload": "p", "encoding": "utf8",
               "first_seen": "2026-01-01T00:00:00.000Z", "enqueued_at": "2026-01-01T00:00:00.000Z",
               "lease_expires_at": "2099-01-01T00:00:00.000Z", "steps": []}
    handed = []

    def answer(path):
        if "receive" in path and not handed:
            handed.append(path)
            return 200, json.dumps({"messages": [message]}).encode()
        return EMPTY if "receive" in path else (200, b'{"state":"done","id":"%s","key":"k"}' % (b"0" * 32))

    with Side(answer) as side:
        ran = hapax(side, "receive", "q", "--exec", f"{hx.HAPAX} stats >/dev/null", "--api-token-file", file_with(TOKEN))
        assert {"/v1/stats", "/v1/ack"} <= {path for _, path, _ in side.seen}, (ran, side.seen)
        same(set(side.tokens()), {"Bearer " + TOKEN})


@test
def a_refusal_says_what_to_do_about_it():
    with Side(problem(401, "unauthorized", "this needs a token")) as side:
        ran = hapax(side, "send", "q", "p", "--key", "k", exits=1)
        assert "this needs a token" in ran.err and "HAPAX_API_TOKEN_FILE" in ran.err, ran
    with Side(problem(403, "forbidden", "it may not send to q")) as side:
        ran = hapax(side, "send", "q", "p", "--key", "k", exits=1, HAPAX_API_TOKEN=TOKEN)
        assert "it may not send to q" in ran.err and "`allow`" in ran.err, ran
        same(hapax(side, "send", "q", "p", "--key", "k", "--json", exits=1, HAPAX_API_TOKEN=TOKEN).json["code"], "forbidden")


@test
def a_token_that_was_replaced_in_its_file_is_shown_without_a_new_start():
    path = file_with(OTHER)

    def answer(_):
        if side.tokens()[-1] == "Bearer " + TOKEN:
            return ACCEPTED
        os.replace(file_with(TOKEN), path)
        return problem(401, "unauthorized")
    with Side(answer) as side:
        hapax(side, "send", "q", "p", "--key", "k", HAPAX_API_TOKEN_FILE=path)
        same(side.tokens(), ["Bearer " + OTHER, "Bearer " + TOKEN])
    with Side(problem(401, "unauthorized")) as side:
        hapax(side, "send", "q", "p", "--key", "k", exits=1, HAPAX_API_TOKEN_FILE=path)
        same(side.tokens(), ["Bearer " + TOKEN])


@test
def a_worker_whose_token_is_refused_ends():
    with Side(problem(401, "unauthorized")) as side:
        ran = hapax(side, "receive", "q", "--exec", "true", "--forever", exits=1, HAPAX_API_TOKEN=TOKEN)
        assert "HAPAX_API_TOKEN_FILE" in ran.err, ran


@test
def what_is_no_broker_has_no_results():
    with Side((200, b"<html>welcome</html>")) as side:
        ran = hapax(side, "key", "result", "q", "k", exits=3)
        assert "welcome" not in ran.text, ran
        assert "is this a broker?" in ran.err, ran


@test
def a_send_that_was_cut_and_then_refused_may_have_been_applied():
    for answer in (problem(401, "unauthorized"), problem(403, "forbidden"), problem(404, "no_such_queue")):
        tries = []

        def cut_first(_):
            tries.append(1)
            return None if len(tries) == 1 else answer
        with Side(cut_first) as side:
            ran = hapax(side, "send", "q", "p", "--key", "k", "--json", exits=3, HAPAX_API_TOKEN=TOKEN)
            same(ran.json["applied"], "unknown")
            assert "run the same command again" in ran.err, ran
            same(len(tries), 2)


# ---- TLS

class Cert:
    """A certificate and its key: signed by itself, or by `by`, and good for 30 days from `since` on."""

    def __init__(self, names="DNS:localhost,IP:127.0.0.1", by=None, since=datetime.timedelta(0), ca=False):
        self.folder = tempfile.mkdtemp(dir=HOME.name)
        self.cert, self.key, asked = (f"{self.folder}/{name}.pem" for name in ("cert", "key", "request"))
        extensions = [f"subjectAltName={names}"] if names else []
        extensions += [f"basicConstraints=critical,CA:{'TRUE' if ca else 'FALSE'}"]
        certs.request(asked, self.key, "made for a test", extensions)
        certs.sign(asked, by.cert if by else None, (by or self).key, self.cert, since=since)

    def context(self, client_ca=None, **settings):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(client_ca.cert)
        for name, value in settings.items():
            setattr(context, name, value)
        return context


CA = Cert(names=None, ca=True)
GOOD = Cert(by=CA)


@test
def https_is_spoken_with_whom_a_named_authority_vouches_for():
    alone = Cert()
    for cert, trusted in ((GOOD, CA), (alone, alone), (GOOD, GOOD)):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with Side(context=cert.context(maximum_version=version)) as side:
                for url in (side.url, f"https://localhost:{side.port}"):
                    hapax(url, "stats", "--cacert", trusted.cert, HAPAX_API_TOKEN=TOKEN)
                    hapax(url, "stats", HAPAX_CACERT=trusted.cert, HAPAX_API_TOKEN=TOKEN)
                same(side.tokens(), ["Bearer " + TOKEN] * 4)


@test
def without_a_name_the_system_says_whom_to_trust():
    with Side(context=GOOD.context()) as side:
        hapax(side, "stats", SSL_CERT_FILE=CA.cert)
        hapax(side, "stats", SSL_CERT_FILE=CA.cert, HAPAX_CACERT=Cert().cert, exits=3)


@test
def who_cannot_be_trusted_is_told_nothing():
    wrong = {
        "for elsewhere.example, not for 127.0.0.1": Cert("DNS:elsewhere.example", by=CA),
        "for 127.0.0.2, not for 127.0.0.1": Cert("IP:127.0.0.2", by=CA),
        "for made?for?a?test, not for 127.0.0.1": Cert(None, by=CA),
        "the certificate expired on 2020-03-01": Cert(by=CA, since=datetime.datetime(2020, 1, 31)),
        "the certificate is not valid before 2099-": Cert(by=CA, since=datetime.datetime(2099, 1, 31)),
        "not signed by anyone trusted here": Cert(),
        "not signed by anyone trusted": Cert(by=Cert(names=None, ca=True)),
    }
    for said, cert in wrong.items():
        with Side(ACCEPTED, context=cert.context()) as side:
            ran = hapax(side, "send", "q", "p", "--key", "k", "--json", "--cacert", CA.cert, exits=3, HAPAX_API_TOKEN=TOKEN)
            assert said in ran.err and "hapaxd running" not in ran.err, (said, ran)
            same((ran.json["code"], ran.json["applied"]), ("untrusted", "no"))
            ran = hapax(side, "tail", "--cacert", CA.cert, exits=3, HAPAX_API_TOKEN=TOKEN)
            assert said in ran.err, (said, ran)
            same(side.seen, [])


@test
def a_name_is_no_address_and_an_address_no_name():
    with Side(context=Cert("DNS:localhost", by=CA).context()) as side:
        hapax(f"https://localhost:{side.port}", "stats", "--cacert", CA.cert)
        hapax(f"https://LOCALHOST:{side.port}", "stats", "--cacert", CA.cert)
        hapax(side, "stats", "--cacert", CA.cert, exits=3)


@test
def old_versions_of_tls_are_not_spoken():
    with Side(context=GOOD.context(minimum_version=ssl.TLSVersion.TLSv1_1, maximum_version=ssl.TLSVersion.TLSv1_1)) as side:
        ran = hapax(side, "stats", "--json", "--cacert", CA.cert, exits=3)
        same(ran.json["code"], "tls_failed")


@test
def a_broker_without_tls_is_never_spoken_to_in_its_stead():
    with Side(ACCEPTED) as side:
        ran = hapax(f"https://127.0.0.1:{side.port}", "send", "q", "p", "--key", "k", "--json", exits=3, HAPAX_API_TOKEN=TOKEN)
        same((ran.json["code"], ran.json["applied"]), ("tls_failed", "no"))
        assert "does not speak TLS" in ran.err, ran
        same(side.seen, [])


@test
def a_session_is_resumed_on_the_next_connection():
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        hung_up = []

        def answer(path):
            """Hangs up after the first answer of each connection, in the middle of the next request."""
            hung_up.append(path)
            return None if len(hung_up) % 2 == 0 else EMPTY
        with Side(answer, context=GOOD.context(maximum_version=version)) as side:
            hapax(side, "doctor", "--cacert", CA.cert, exits=None)
            assert len(side.reused) > 1 and not side.reused[0] and all(side.reused[1:]), (version, side.reused)


@test
def a_certificate_of_ours_is_shown_to_a_broker_that_asks():
    ours, strange = Cert("DNS:worker", by=CA), Cert("DNS:worker")
    both = file_with(open(ours.cert).read() + open(ours.key).read())
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with Side(ACCEPTED, context=GOOD.context(client_ca=CA, maximum_version=version)) as side:
            send = ["send", "q", "p", "--key", "k", "--json", "--cacert", CA.cert]
            hapax(side, *send, "--cert", ours.cert, "--cert-key", ours.key)
            hapax(side, *send, HAPAX_CERT=both)
            same(len(side.seen), 2)
            # In TLS 1.3 the request is on its way when the refusal comes: nothing was applied, and it is not tried again.
            for words, said in (([], "certificate of ours"), (["--cert", strange.cert, "--cert-key", strange.key], "certificate")):
                ran = hapax(side, *send, *words, exits=3)
                same(ran.json["applied"], "no", ran)
                assert said in ran.err and "hapaxd running" not in ran.err, (version, ran)
            same(len(side.seen), 2)


@test
def files_that_do_not_fit_are_refused_before_anything_is_sent():
    other = Cert()
    text = file_with("no certificate\n")
    locked = file_with("")
    certs.openssl("ec", "-in", GOOD.key, "-aes128", "-passout", "pass:secret", "-out", locked)
    for words, said in ((["--cacert", "/nowhere.pem"], "No such file"), (["--cacert", text], "no certificates to trust"),
                        (["--cert", text], "no certificate"), (["--cert", GOOD.cert, "--cert-key", other.key], "mismatch"),
                        (["--cert", GOOD.cert, "--cert-key", locked], "passphrase"), (["--cert-key", GOOD.key], "without its certificate")):
        ran = hapax("https://127.0.0.1:1", "stats", *words, exits=2)
        assert said in ran.err, (words, ran)


class Between:
    """Lets bytes through to `port` as `passes(n)` says: how many of those that are left the other way, None to hang up."""

    def __init__(self, behave):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.url, self.count, self.behave = f"https://127.0.0.1:{self.port}", 0, behave
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.count += 1
            threading.Thread(target=self.behave, args=(conn,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()


@test
def a_handshake_that_is_cut_has_applied_nothing():
    for said in (b"", b"\x16\x03\x03\x00\x7a\x02\x00", b"\x16\x03\x03"):
        def cut(conn):
            with conn:
                conn.recv(65536)
                conn.sendall(said)
        with Between(cut) as between:
            ran = hapax(between, "send", "q", "p", "--key", "k", "--json", exits=3, HAPAX_API_TOKEN=TOKEN)
            same((ran.json["code"], ran.json["applied"], between.count), ("unreachable", "no", 1))
            assert "closed during the TLS handshake" in ran.err, ran


@test
def a_handshake_that_never_ends_is_given_up():
    """Neither silence nor one more byte each time keeps it going."""
    over = threading.Event()

    def silent(conn):
        with conn:
            over.wait(hx.TIMEOUT)

    def dripping(conn):
        with conn:
            try:
                conn.sendall(b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb")
                while not over.wait(0.02):
                    conn.sendall(b"\x03")
            except OSError:
                pass
    for behave in (silent, dripping):
        with Between(behave) as between:
            ran = hapax(between, "send", "q", "p", "--key", "k", "--json", exits=3)
            same((ran.json["code"], ran.json["applied"], between.count), ("unreachable", "no", 1))
            assert "timed out in the TLS handshake" in ran.err, ran
    over.set()


@test
def the_examples_speak_https_and_show_a_token():
    token, home = file_with(TOKEN + "\n"), tempfile.mkdtemp(dir=HOME.name)
    programs = [["python3", hx.ROOT + "/examples/python/worker.py", "q"], ["node", hx.ROOT + "/examples/node/worker.mjs", "q"],
                [hx.BUILD + "/examples/worker", "q"]]
    for words in programs:
        if not shutil.which(words[0]):
            continue
        asked = threading.Event()

        def answer(_):
            asked.set()
            return EMPTY
        with Side(answer, context=GOOD.context()) as side:
            process = subprocess.Popen(words, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       env=environment(side.url, HAPAX_API_TOKEN_FILE=token, HAPAX_CACERT=CA.cert, NODE_EXTRA_CA_CERTS=CA.cert))
            if not asked.wait(hx.TIMEOUT):
                process.kill()
                raise AssertionError(f"{words}: {process.communicate()}")
            process.terminate()
            said = process.communicate(timeout=hx.TIMEOUT)[0].decode()
            assert set(side.tokens()) == {"Bearer " + TOKEN} and TOKEN not in said, (words, side.tokens(), said)


# ---- with the broker itself

class TlsBroker(hx.Broker):
    """hapaxd with one address, which speaks TLS."""

    def __init__(self, client_ca=None, **kw):
        self.client_ca = client_ca
        super().__init__(config="", **kw)

    def spawn(self):
        ca = f", client_ca: {self.client_ca.cert}" if self.client_ca else ""
        token = hashlib.sha256(TOKEN.encode()).hexdigest()
        self.configure(f"auto_create: true\nlisten: [{{address: 127.0.0.1:0, tls: {{cert: {GOOD.cert}, key: {GOOD.key}{ca}}}}}]\n"
                       f"tokens: [{{name: all, sha256: [{token}], allow: [admin]}}]\n")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([hx.HAPAXD, "--data", self.data, *self.options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=log, start_new_session=True)
        return self

    def wait_ready(self, bound=hx.START_BOUND_S):
        self.url_now = self.process.stdout.readline().decode().split()[-1]
        assert self.url_now.startswith("https://"), self.last_words()
        return self

    @property
    def url(self):
        return self.url_now


@test
def the_command_does_its_work_over_tls():
    broker = TlsBroker()
    known = {"HAPAX_API_TOKEN": TOKEN, "HAPAX_CACERT": CA.cert}
    try:
        hapax(broker, "send", "q", "p", "--key", "a", **known)
        lines = b"".join(b'{"key":"b%d","payload":"%s"}\n' % (n, b"x" * 1000) for n in range(500))
        hapax(broker, "send", "q", "--batch", "-", stdin=lines, **known)
        hapax(broker, "send", "q", "--key", "large", stdin=b"y" * 1000000, **known)
        # Each takes its own message, settles over the same broker, and the poll that finds no more is ended by its own end.
        ran = hapax(broker, "receive", "q", "--exec", "cat", "--count", "502", "--max", "50", "--concurrency", "4", **known)
        same(len(ran.text.splitlines()), 502)
        ran = hapax(broker, "key", "result", "q", "large", **known)
        same(len(ran.text), 1000000)
        hapax(broker, "bench", "--count", "2000", "--connections", "2", "--depth", "8", **known)
        assert not {"untrusted", "unencrypted", "open_to_all", "denied"} & set(findings(broker, **known))
        # A poll that is stopped ends at once: the broker hears that nobody waits any more.
        waiting = subprocess.Popen([hx.HAPAX, "receive", "empty", "--forever", "--exec", "true", "--wait", "60s"], env=environment(broker.url, **known))
        hx.until(lambda: json.loads(hapax(broker, "stats", "--json", **known).text)["waiting"] == 1, "a waiting poll")
        waiting.terminate()
        same(waiting.wait(hx.TIMEOUT), 0)
        hx.until(lambda: json.loads(hapax(broker, "stats", "--json", **known).text)["waiting"] == 0, "no waiting poll")
        # Plain words to an address that speaks TLS.
        ran = hapax(broker.url.replace("https", "http"), "stats", exits=None)
        assert "https://" in ran.err and ran.code != 0, ran
        assert TOKEN not in broker.stderr()
        same(broker.stop(), 0)
    finally:
        broker.remove()


@test
def a_broker_that_wants_certificates_is_shown_one():
    broker, ours = TlsBroker(client_ca=CA), Cert("DNS:worker", by=CA)
    known = {"HAPAX_API_TOKEN": TOKEN, "HAPAX_CACERT": CA.cert}
    try:
        hapax(broker, "send", "q", "p", "--key", "a", "--cert", ours.cert, "--cert-key", ours.key, **known)
        ran = hapax(broker, "send", "q", "p", "--key", "b", "--json", exits=3, **known)
        same(ran.json["applied"], "no", ran)
        assert "certificate of ours" in ran.err, ran
        same(broker.stop(), 0)
    finally:
        broker.remove()


# ---- the doctor

def findings(side, *words, exits=None, **env):
    return {f["code"]: f for f in hapax(side, "doctor", "--json", *words, exits=exits, **env).json["findings"]}


@test
def the_doctor_says_how_the_broker_is_reached():
    def answers_all(path):
        return problem(400, "token_invalid") if path == "/v1/ack" else EMPTY

    def asks_for_tokens(path):
        return problem(401, "unauthorized") if path == "/v1/ack" else EMPTY
    with Side(answers_all) as side:
        same({"unencrypted", "open_to_all", "certificate_expires"} & set(findings(side)), set())
        same({"unencrypted", "open_to_all", "certificate_expires"} & set(findings(f"http://0.0.0.0:{side.port}", exits=1)), {"unencrypted", "open_to_all"})
    with Side(asks_for_tokens) as side:
        elsewhere = f"http://0.0.0.0:{side.port}"
        assert "open_to_all" not in findings(elsewhere, "--insecure-token", HAPAX_API_TOKEN=TOKEN)
        same({headers.get("Authorization") for _, path, headers in side.seen if path == "/v1/ack"}, {None})
    soon = Cert(since=datetime.timedelta(days=-20))
    with Side(context=soon.context()) as side:
        told = findings(side, "--cacert", soon.cert, exits=1)["certificate_expires"]
        assert "expires in 9d" in told["summary"], told
    with Side(context=GOOD.context()) as side:
        assert "certificate_expires" not in findings(side, "--cacert", CA.cert)
        assert "untrusted" in findings(side, "--cacert", soon.cert, exits=3)
    with Side(problem(403, "forbidden", "token shop lacks the right observe")) as side:
        told = findings(side, exits=1, HAPAX_API_TOKEN=TOKEN)["denied"]
        assert "lacks the right observe" in told["summary"], told


# ---- tokens that are made

def made(*words):
    token, line = hapax("http://127.0.0.1:1", "token", "new", *words).text.splitlines()
    return token, line


@test
def a_token_that_was_made_is_known_to_a_broker_with_its_line():
    token, line = made("shop", "--allow", "send:payments", "--allow", "result:pay*", "--expires", "2099-01-31")
    watcher, other = made("watcher", "--allow", "observe")
    assert len(token) == 46 and token.startswith("hx_") and token != watcher and token not in line, (token, line)
    broker = hx.Broker(config=f"queues: {{payments: {{}}}}\ntokens:\n  {line}\n  {other}\n")
    try:
        send = ["send", "payments", "p", "--key", "k"]
        hapax(broker, *send, HAPAX_API_TOKEN=token)
        ran = hapax(broker, *send, exits=1)
        assert "needs a token" in ran.err, ran
        ran = hapax(broker, *send, exits=1, HAPAX_API_TOKEN=watcher)
        assert "watcher lacks the right send:payments" in ran.err and "`allow`" in ran.err, ran
        hapax(broker, *send, exits=1, HAPAX_API_TOKEN=TOKEN)
        hapax(broker, "receive", "payments", exits=1, HAPAX_API_TOKEN=token)
        hapax(broker, "queues", "show", "payments", HAPAX_API_TOKEN=watcher)
        log = broker.stderr()
        assert not any(secret in log for secret in (token, watcher, TOKEN)), log
        same(broker.stop(), 0)
    finally:
        broker.remove()


@test
def a_made_token_goes_into_a_file_of_its_owners_own():
    path = tempfile.mkdtemp(dir=HOME.name) + "/token"
    ran = hapax("http://127.0.0.1:1", "token", "new", "shop", "--allow", "send", "--to", path, "--json")
    token = open(path).read().strip()
    same(os.stat(path).st_mode & 0o777, 0o600)
    same(ran.json["sha256"], hashlib.sha256(token.encode()).hexdigest())
    assert token not in ran.text + ran.err and ran.json["sha256"] in ran.json["config"], ran
    ran = hapax("http://127.0.0.1:1", "token", "new", "shop", "--allow", "send", "--to", path, exits=1)
    assert "File exists" in ran.err and open(path).read().strip() == token, ran
    for given in ({"stdin": token.encode() + b"\n"}, {"words": [path]}):
        ran = hapax("http://127.0.0.1:1", "token", "hash", *given.get("words", []), stdin=given.get("stdin", b""))
        same(ran.text.strip(), hashlib.sha256(token.encode()).hexdigest())
    hapax("http://127.0.0.1:1", "token", "hash", stdin=b"two words", exits=2)


@test
def a_token_that_no_config_would_take_is_not_made():
    for words, said in ((["shop"], "--allow is missing"), (["shop", "--allow", "sned:q"], "Did you mean send?"), (["a b", "--allow", "send"], "name"),
                        (["shop", "--allow", "send:a b"], "queue's name"), (["shop", "--allow", "send", "--expires", "soon"], "not a date"),
                        (["anonymous", "--allow", "send"], "without a token")):
        ran = hapax("http://127.0.0.1:1", "token", "new", *words, exits=2)
        assert said in ran.err and ran.text == "", ran


hx.main(shared=False, threads=8)
