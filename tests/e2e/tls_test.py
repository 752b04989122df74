#!/usr/bin/env python3
"""TLS: what is agreed on and what is refused, certificates and their reload, handshakes that do not come to an end."""
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import warnings

import certs
import hx
from hx import same, test, until

MONTHS = datetime.timedelta(days=60)
warnings.simplefilter("ignore", DeprecationWarning)  # of old protocol versions, which are asked for on purpose


class Authority:
    """Certificates of our own, in a directory that goes with the test."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="hapax-tls-")
        self.ca, self.ca_key = self.path("ca.pem"), self.path("ca.key")
        certs.request(self.path("ca.csr"), self.ca_key, "authority of a test", ["basicConstraints=critical,CA:TRUE"])
        certs.sign(self.path("ca.csr"), None, self.ca_key, self.ca)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def certificate(self, name, key=certs.EC, since=datetime.timedelta(0), days=20):
        """NAME.pem and NAME.key, for localhost."""
        cert, private, asked = self.path(name + ".pem"), self.path(name + ".key"), self.path(name + ".csr")
        certs.request(asked, private, name, ["subjectAltName=DNS:localhost,IP:127.0.0.1", "extendedKeyUsage=serverAuth,clientAuth"], key)
        certs.sign(asked, self.ca, self.ca_key, cert, days, since)
        os.chmod(private, 0o600)
        return cert, private


class TlsBroker(hx.Broker):
    """One plain address, as always, and one that speaks TLS."""

    def __init__(self, authority, name="server", extra="", **kw):
        self.authority, self.extra = authority, extra
        self.cert, self.key = authority.path(name + ".pem"), authority.path(name + ".key")
        if not os.path.exists(self.cert):
            authority.certificate(name)
        super().__init__(config=self.text(), listen=False, **kw)

    def text(self, cert=None, key=None):
        return ("auto_create: true\nlisten:\n  - {address: 127.0.0.1:0}\n"
                f"  - {{address: 127.0.0.1:0, tls: {{cert: {cert or self.cert}, key: {key or self.key}{self.extra}}}}}\n")

    def stats(self):
        return self.get("/v1/stats").json()["http"]

    def context(self, **said):
        c = ssl.create_default_context(cafile=self.authority.ca)
        for name, value in said.items():
            setattr(c, name, value)
        return c

    def wrap(self, context=None, session=None, timeout=hx.TIMEOUT):
        raw = socket.create_connection(("127.0.0.1", self.tls_port), timeout=timeout)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return (context or self.context()).wrap_socket(raw, server_hostname="localhost", session=session)
        except BaseException:
            raw.close()
            raise

    def https(self, context=None, session=None):
        return Over(self.wrap(context, session))


class Crowded(TlsBroker):
    """With few places, two of them in reserve."""

    def text(self, *given):
        return super().text(*given) + "limits: {connections: 80}\n"


class Over(hx.Conn):
    """A connection over a socket that is there."""

    def __init__(self, sock):
        self.sock, self.data = sock, bytearray()


@contextlib.contextmanager
def broker(extra="", **kw):
    with Authority() as authority:
        authority.certificate("server")
        extra = extra.replace("CA", authority.ca)
        with TlsBroker(authority, extra=extra, **kw) as b:
            yield b


def refused(attempt, *words):
    try:
        attempt()
    except (ssl.SSLError, ConnectionError) as e:
        said = str(e).lower()
        assert not words or any(w in said for w in words), e
        return e
    raise AssertionError("it was let in")


# ---- what is agreed on


@test
def a_message_travels_over_tls_from_sending_to_settling():
    with broker() as b, b.https() as c:
        same(c.request("POST", "/v1/queues/q/messages", b"x" * 300_000, [("Idempotency-Key", "a")]).status, 202)
        got = c.request("POST", "/v1/queues/q/receive", b"").json()["messages"][0]
        same(len(got["payload"]) if "payload" in got else len(got["payload_base64"]) > 0, 300_000)
        same(c.request("POST", "/v1/ack", json.dumps({"token": got["token"]}).encode()).status, 200)
        with hx.Conn(b.port) as plain:
            same(plain.request("GET", "/v1/queues/q/keys/a").json()["state"], "done")


@test
def only_tls_1_2_and_1_3_with_modern_suites_are_spoken():
    with broker() as b:
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            with b.https(b.context(minimum_version=version, maximum_version=version)) as c:
                same(c.sock.version(), name)
                assert "GCM" in c.sock.cipher()[0] or "CHACHA20" in c.sock.cipher()[0], c.sock.cipher()
                same(c.sock.compression(), None)
                same(c.request("GET", "/healthz").status, 200)
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            old = b.context(maximum_version=ssl.TLSVersion.TLSv1_2)
            old.minimum_version = old.maximum_version = version
            old.set_ciphers("ALL:@SECLEVEL=0")
            refused(lambda: b.https(old))
        for suites in ("AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "DHE-RSA-AES128-GCM-SHA256"):
            weak = b.context(maximum_version=ssl.TLSVersion.TLSv1_2)
            weak.set_ciphers(suites + ":@SECLEVEL=0")
            refused(lambda: b.https(weak), "handshake failure")
        until(lambda: b.stats()["tls_failed"] == 6, "every refusal is counted")


@test
def http_1_1_is_agreed_on_and_a_client_that_offers_only_others_is_refused():
    with broker() as b:
        for offered, agreed in ((["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), ([], None)):
            context = b.context()
            if offered:
                context.set_alpn_protocols(offered)
            with b.https(context) as c:
                same(c.sock.selected_alpn_protocol(), agreed)
        context = b.context()
        context.set_alpn_protocols(["h2"])
        refused(lambda: b.https(context), "no application protocol", "no_application_protocol")


@test
def sessions_are_resumed_in_both_versions_and_not_after_another_certificate():
    with broker() as b:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = b.context(minimum_version=version, maximum_version=version)
            with b.https(context) as c:
                same((c.sock.session_reused, c.request("GET", "/healthz").status), (False, 200))
                session = c.sock.session
            with b.https(context, session) as c:
                same((c.sock.session_reused, c.request("GET", "/healthz").status), (True, 200))
                session = c.sock.session
        members = b.stats()
        same((members["tls_handshakes"], members["tls_resumed"]), (4, 2))
        b.reload(b.text())
        with b.https(context, session) as c:
            same(c.sock.session_reused, True, "the same certificate: tickets stay good")
        b.authority.certificate("server")
        b.reload(b.text())
        with b.https(context, session) as c:
            same(c.sock.session_reused, False)


@test
def a_client_needs_a_certificate_where_client_ca_is_given():
    with broker(extra=", client_ca: CA") as b:
        good, key = b.authority.certificate("client")
        context = b.context()
        context.load_cert_chain(good, key)
        with b.https(context) as c:
            same(c.request("GET", "/healthz").status, 200)
        refused(lambda: b.https().request("GET", "/healthz"))
        with Authority() as stranger:
            context = b.context()
            context.load_cert_chain(*stranger.certificate("client"))
            refused(lambda: b.https(context).request("GET", "/healthz"))
        late, key = b.authority.certificate("late", since=-MONTHS)
        context = b.context()
        context.load_cert_chain(late, key)
        refused(lambda: b.https(context).request("GET", "/healthz"))


@test
def renegotiation_is_refused():
    with broker() as b:
        p = subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{b.tls_port}", "-tls1_2", "-CAfile", b.authority.ca],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        read = b""
        while b"Verify return code" not in read:
            read += os.read(p.stdout.fileno(), 65536)
        p.stdin.write(b"R\n")
        p.stdin.flush()
        rest = p.communicate(timeout=hx.TIMEOUT)[0]
        assert b"no renegotiation" in rest or b"RENEGOTIATING" in rest and p.returncode != 0, (p.returncode, rest)
        same(b.get("/healthz").status, 200)


# ---- what is not TLS, and what does not come to an end


@test
def plain_http_to_the_tls_address_is_told_so_and_tls_to_the_plain_one_ends_quickly():
    with broker() as b:
        with hx.Conn(b.tls_port) as c:
            reply = c.request("GET", "/healthz")
            same(reply.status, 400)
            assert "https" in reply.json()["detail"], reply
            assert c.closed()
        with hx.Conn(b.tls_port) as c:
            c.write(b"\x00\x01\x02")
            assert c.closed()
        b.tls_port, kept = b.port, b.tls_port
        refused(b.wrap)
        b.tls_port = kept
        until(lambda: b.stats()["tls_failed"] == 3, "each is counted")


@test
def a_handshake_byte_by_byte_is_as_good_as_one_in_a_piece():
    with broker() as b:
        context, inward, outward = b.context(), ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(inward, outward, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", b.tls_port), timeout=hx.TIMEOUT) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def drive(step):
                while True:
                    try:
                        done = step()
                    except ssl.SSLWantReadError:
                        done = None
                    for byte in outward.read():
                        raw.send(bytes([byte]))
                    if done is not None:
                        return done
                    inward.write(raw.recv(1))
            drive(lambda: tls.do_handshake() or True)
            drive(lambda: tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            assert drive(lambda: tls.read(1000)).startswith(b"HTTP/1.1 200 ")


@test
def handshakes_that_stall_keep_nobody_out_and_end_by_themselves():
    with broker() as b:
        hello = client_hello(b)
        stalled = []
        for i in range(200):
            s = socket.create_connection(("127.0.0.1", b.tls_port), timeout=hx.TIMEOUT)
            s.sendall(hello[:i])
            stalled.append(s)
        with b.https() as c:
            same(c.request("GET", "/healthz").status, 200)
        for s in stalled:
            assert s.recv(100) == b"", "it is closed, without words"
            s.close()
        same(b.stats()["timeouts"], 200)


@test
def operators_find_a_place_over_tls_where_all_are_taken_and_stalled_handshakes_get_no_words():
    with Authority() as authority, Crowded(authority) as b, contextlib.ExitStack() as held:
        for _ in range(78):
            held.enter_context(hx.Conn(b.port)).start("POST", "/v1/queues/q/receive?wait=60s", b"")

        def answer(method, path):
            """The status; None if the connection was closed without a word."""
            try:
                with b.https() as c:
                    return c.request(method, path, b"").status
            except OSError:
                return None
        until(lambda: answer("POST", "/v1/queues/q/receive") == 503, "all places are taken")
        for i in range(20):
            s = socket.create_connection(("127.0.0.1", b.tls_port), timeout=hx.TIMEOUT)
            held.enter_context(s)
            s.sendall(client_hello(b)[:i])
            until(lambda: answer("GET", "/healthz") == 200, "health is told")
            assert s.recv(100) == b"", "it is closed, without words"


def client_hello(b):
    outward = ssl.MemoryBIO()
    tls = b.context().wrap_bio(ssl.MemoryBIO(), outward, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outward.read()


@test
def records_that_are_wrong_or_cut_harm_only_their_connection():
    with broker() as b:
        hello = client_hello(b)
        for bad in (b"\x16\x03\x01\xff\xff" + b"a" * 70000, b"\x16\x03\x01\x00\x04abcd", hello[:40] + b"\x00" * 200,
                    b"\x16\x03\x01\x00\x00" * 3000, b"\x15\x03\x01\x00\x02\x02\x28", hello + hello):
            with hx.Conn(b.tls_port) as c:
                with contextlib.suppress(ConnectionError):
                    c.write(bad)
                c.rest()
        with b.https() as c:  # a record damaged on its way
            same(c.request("GET", "/healthz").status, 200)
            os.write(c.sock.fileno(), b"\x17\x03\x03\x00\x20" + b"x" * 32)
            refused(lambda: [c.sock.recv(1000) or exec("raise ConnectionError('closed')")])
        with b.https() as c:
            same(c.request("GET", "/healthz").status, 200)


@test
def an_end_that_is_not_said_is_noticed_and_one_that_is_said_is_answered():
    with broker() as b:
        c = b.https()
        same(c.request("GET", "/healthz").status, 200)
        c.sock.close()  # without a word
        until(lambda: b.stats()["tls_cut"] == 1, "it is counted")
        with b.https() as c:
            same(c.request("GET", "/healthz").status, 200)
            c.sock.unwrap()  # says it, and waits until the broker has said it too
        until(lambda: b.stats()["connections"] == 1, "it is gone")
        same(b.stats()["tls_cut"], 1)
        with b.https() as c:  # the broker ends it, and says so: no truncation
            same(c.request("GET", "/healthz", headers=[("Connection", "close")]).status, 200)
            same(c.sock.recv(100), b"")


@test
def a_large_answer_comes_whole_through_a_slow_reader():
    with broker() as b, b.https() as c:
        for i in range(8):
            same(c.request("POST", "/v1/queues/q/messages", bytes([65 + i]) * 1_000_000, [("Idempotency-Key", str(i))]).status, 202)
        c.start("POST", "/v1/queues/q/receive?max=8", b"")
        until(lambda: b.stats()["bytes_out"] > 1_000_000, "the sockets fill up")
        messages = c.reply().json()["messages"]
        assert len(messages) > 1, "more than the sockets hold"
        same([m["payload"][:1] * 1_000_000 == m["payload"] for m in messages], [True] * len(messages))


@test
def many_idle_connections_cost_little_each():
    hx.needs_plain("a sanitizer keeps what was freed, and its memory says nothing")
    many = 300
    with broker() as b:
        context = b.context()
        idle = [b.https(context)]
        for c in idle:
            same(c.request("GET", "/healthz").status, 200)
        before = b.get("/v1/stats").json()["process"]["resident_bytes"]
        for _ in range(many):
            idle.append(b.https(context))
            same(idle[-1].request("GET", "/healthz").status, 200)
        each = (b.get("/v1/stats").json()["process"]["resident_bytes"] - before) // many
        print(f"# {each} bytes for each idle connection")
        assert each < 64 << 10, each
        same(idle[0].request("GET", "/healthz").status, 200)
        for c in idle:
            c.close()


# ---- certificates


@test
def the_doctor_tells_over_the_plain_address_that_a_certificate_is_about_to_expire():
    def told(b):
        done = subprocess.run([hx.HAPAX, "doctor", "--json", "--url", b.url], stdout=subprocess.PIPE, timeout=hx.TIMEOUT)
        return [f["summary"] for f in json.loads(done.stdout)["findings"] if f["code"] == "certificate_expires"]
    with Authority() as authority:
        authority.certificate("server", days=5)
        with TlsBroker(authority) as b:
            assert re.match("The certificate of 127.0.0.1:0 expires in 4d, on ", told(b)[0]), told(b)
            authority.certificate("server", days=20)
            b.reload(b.text())
            same(told(b), [])


def every_bad_file(authority):
    """What is wrong, cert, key, and words of the sentence that says so."""
    a = authority
    good, key = a.certificate("good")
    other, other_key = a.certificate("other")
    old, old_key = a.certificate("old", since=-MONTHS)
    soon, soon_key = a.certificate("soon", since=MONTHS)
    pem = open(good).read()
    files = {"cut": pem[:len(pem) // 2], "garbled": pem.replace("MI", "!!", 1), "words": "no certificate here\n", "empty": "",
             "chain_cut": pem + open(a.ca).read()[:200]}
    for name, text in files.items():
        with open(a.path(name), "w") as f:
            f.write(text)
    with open(a.path("cut.key"), "w") as f:
        f.write(open(key).read()[:100])
    os.chmod(a.path("cut.key"), 0o600)
    shutil.copy(key, a.path("open.key"))
    os.chmod(a.path("open.key"), 0o644)
    certs.openssl("ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", a.path("secret.key"))
    weak, weak_key = a.certificate("weak", key=("rsa:1024",))
    return [
        ("a certificate cut short", a.path("cut"), key, "cut short"),
        ("a damaged certificate", a.path("garbled"), key, "cut short"),
        ("no PEM", a.path("words"), key, "no certificate in it"),
        ("an empty file", a.path("empty"), key, "no certificate in it"),
        ("a chain cut short", a.path("chain_cut"), key, "cut short"),
        ("a directory", a.folder, key, "not a regular file"),
        ("a file that is not there", a.path("nowhere"), key, "No such file"),
        ("another certificate's key", good, other_key, "not the key of the certificate"),
        ("a key cut short", good, a.path("cut.key"), "no whole private key"),
        ("a certificate as key", good, good, "mode" if os.stat(good).st_mode & 0o027 else "private key"),
        ("a key everybody may read", good, a.path("open.key"), "chmod 600"),
        ("a key with a passphrase", good, a.path("secret.key"), "passphrase"),
        ("an expired certificate", old, old_key, "expired on"),
        ("a certificate of next month", soon, soon_key, "not valid before"),
        ("a key too short", weak, weak_key, "too small"),
    ]


@test
def what_is_wrong_with_a_certificate_keeps_the_broker_from_starting_and_is_said():
    with Authority() as authority:
        for what, cert, key, words in every_bad_file(authority):
            folder = tempfile.mkdtemp(prefix="hapax-tls-")
            config = os.path.join(folder, "hapax.yaml")
            with open(config, "w") as f:
                f.write(f"listen: [{{address: 127.0.0.1:0, tls: {{cert: {cert}, key: {key}}}}}]\n")
            done = subprocess.run([hx.HAPAXD, "--config", config, "--data", folder + "/data"], capture_output=True, text=True,
                                  timeout=hx.TIMEOUT)
            same((done.returncode, done.stdout), (1, ""), what)
            assert words in done.stderr, (what, done.stderr)
            assert not os.path.exists(folder + "/data"), f"{what}: nothing was promised"
            checked = subprocess.run([hx.HAPAXD, "--config", config, "--check-config"], capture_output=True, text=True,
                                     timeout=hx.TIMEOUT)
            same(checked.returncode, 0 if words == "No such file" else 1, what)
            assert words in checked.stderr, (what, checked.stderr)
            shutil.rmtree(folder)


@test
def a_bad_certificate_is_refused_at_reload_and_the_old_one_stays():
    with broker() as b:
        kept = b.https()
        shown = kept.sock.getpeercert(True)
        for what, cert, key, words in every_bad_file(b.authority):
            said = b.reload(b.text(cert, key))
            assert words in said and "reload refused" in said, (what, said)
            with b.https() as c:
                same(c.sock.getpeercert(True), shown, what)
        same(kept.request("GET", "/healthz").status, 200)
        kept.close()


def about_to_expire(authority):
    """A broker whose certificate was good when it started."""
    for left in (5, 20, 60):
        authority.certificate("server", days=1, since=datetime.timedelta(days=-1, seconds=left))
        try:
            return TlsBroker(authority)
        except AssertionError:
            if left == 60:
                raise


@test
def a_token_is_taken_back_by_a_reload_though_the_certificate_in_force_has_expired():
    token = f'tokens: [{{name: a, sha256: ["{"0" * 64}"], allow: [observe]}}]\nanonymous: [admin]\n'
    with Authority() as authority, about_to_expire(authority) as b:
        b.reload(token + b.text())
        expires = hx.stamp(b.get("/v1/stats").json()["certificates"][0]["expires_at"])
        hx.until(lambda: hx.stamp(b.get("/v1/stats").json()["now"]) > expires, "it has expired")
        said = b.reload(b.text())
        assert "token a: removed" in said and "is in force" in said, said
        another, key = authority.certificate("old", since=-MONTHS)
        assert "reload refused" in b.reload(b.text(another, key))


@test
def no_reload_takes_the_tokens_from_an_address_that_other_machines_reach():
    with Authority() as authority:
        cert, key = authority.certificate("server")
        tokens = f'tokens: [{{name: a, sha256: ["{"0" * 64}"], allow: [observe]}}]\n'
        listen = f"listen:\n  - {{address: 127.0.0.1:0}}\n  - {{address: 0.0.0.0:0, tls: {{cert: {cert}, key: {key}}}}}\n"
        with hx.Broker(config=tokens + listen, listen=False) as b:
            for text in ("listen: 127.0.0.1:0\n", "auto_create: true\n", "listen: 127.0.0.1:0\nanonymous: [admin]\n"):
                said = b.reload(text)
                assert "0.0.0.0:0 is served until a restart" in said and "reload refused" in said, said
                same(b.get("/v1/queues").status, 401)
            assert "is in force" in b.reload(tokens + "listen: 127.0.0.1:0\n")
            assert "is in force" in b.reload("listen: 127.0.0.1:0\ninsecure_listen: true\n")


@test
def a_reload_that_removes_the_last_token_says_who_is_let_in():
    tokens = f'tokens: [{{name: a, sha256: ["{"0" * 64}"], allow: [observe]}}]\n'
    with hx.Broker(config=tokens) as b:
        assert "no token is left" not in b.reload("anonymous: []\n")
        same(b.get("/v1/queues").status, 401)
        b.reload(tokens)
        assert re.search("level=warn event=config .*no token is left", b.reload("auto_create: true\n"))
        same(b.get("/v1/queues").status, 200)


@test
def another_certificate_is_shown_after_a_reload_and_connections_go_on():
    with broker() as b:
        kept = b.https()
        cert, key = b.authority.certificate("next", key=("rsa:2048",))
        said = b.reload(b.text(cert, key))
        assert "another certificate, valid until" in said, said
        with b.https() as c:
            same(dict(x[0] for x in c.sock.getpeercert()["subject"])["commonName"], "next")
        same(kept.request("GET", "/healthz").status, 200)
        kept.close()
        b.authority.certificate("next")  # the same files, with something else in them
        assert "another certificate" in b.reload(b.text(cert, key))
        before = len(b.stderr())
        for _ in range(150):  # often; the file is not written meanwhile, or one of them would read half of it
            b.signal(signal.SIGHUP)
        until(lambda: "says nothing new" in b.stderr()[before:], "it has read the same again")
        with b.https() as c:
            same(c.request("GET", "/healthz").status, 200)


@test
def a_start_with_tls_alone_says_https():
    with Authority() as authority, tempfile.TemporaryDirectory() as folder:
        cert, key = authority.certificate("server")
        config = os.path.join(folder, "hapax.yaml")
        with open(config, "w") as f:
            f.write(f"listen: [{{address: 127.0.0.1:0, tls: {{cert: {cert}, key: {key}}}}}]\n")
        b = subprocess.Popen([hx.HAPAXD, "--config", config, "--data", folder + "/data"], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True)
        url = re.fullmatch(r"hapaxd ready on (https://127\.0\.0\.1:\d+)\n", b.stdout.readline()).group(1)
        done = subprocess.run(["curl", "-sS", "--cacert", authority.ca, url + "/healthz", "-H", "Origin: " + url],
                              capture_output=True, text=True, timeout=hx.TIMEOUT)
        same((done.returncode, done.stdout), (0, '{"status":"ok"}'), done.stderr)
        for origin, status in ((url, "404"), (url.replace("https", "http"), "403"), ("https://evil.example", "403")):
            done = subprocess.run(["curl", "-sS", "--cacert", authority.ca, "-o", "/dev/null", "-w", "%{http_code}", "-H",
                                   "Origin: " + origin, url + "/v1/queues/none"], capture_output=True, text=True, timeout=hx.TIMEOUT)
            same(done.stdout, status, origin)
        b.terminate()
        same(b.wait(hx.STOP_BOUND_S), 0)
        b.stdout.close()


# ---- what scanners say


@test
def sslscan_finds_nothing_old_or_weak():
    if not shutil.which("sslscan"):
        raise hx.Skip("sslscan is not installed")
    with broker() as b:
        xml = subprocess.run(["sslscan", "--no-colour", "--xml=-", f"127.0.0.1:{b.tls_port}"], capture_output=True, text=True,
                             timeout=300).stdout
        on = set(re.findall(r'<protocol type="(\w+)" version="([\d.]+)" enabled="1"', xml))
        same(on, {("tls", "1.2"), ("tls", "1.3")})
        suites = re.findall(r'<cipher status="\w+" sslversion="[^"]*" bits="(\d+)" cipher="([^"]*)"', xml)
        assert len(suites) >= 5, xml
        for bits, name in suites:
            assert int(bits) >= 128 and ("GCM" in name or "CHACHA20" in name), name
        assert '<heartbleed' in xml and 'vulnerable="1"' not in xml, xml
        assert '<renegotiation supported="0"' in xml and '<compression supported="1"' not in xml, xml


@test
def testssl_finds_nothing_of_medium_weight():
    if not shutil.which("testssl"):
        raise hx.Skip("testssl.sh is not installed")
    with broker() as b, tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "found.json")
        subprocess.run(["testssl", "--quiet", "--color", "0", "--warnings", "off", "--nodns", "none", "--openssl-timeout", "10",
                        "-p", "-s", "-f", "-H", "-I", "-R", "-C", "--jsonfile", found, f"127.0.0.1:{b.tls_port}"],
                       capture_output=True, text=True, timeout=300, env={**os.environ, "TERM": "dumb"}, stdin=subprocess.DEVNULL)
        findings = json.load(open(found))
        bad = [f for f in findings if f["severity"] in ("MEDIUM", "HIGH", "CRITICAL", "WARN", "FATAL") and f["id"] != "engine_problem"]
        same(bad, [])
        assert len(findings) > 15, findings


hx.main(threads=4, shared=False)
