"""The other end of a push: a receiver that behaves at each request as a test wants, and whose effects can be counted.

    with Receiver(Answer(503), Answer(200)) as r:      the first request gets 503, the next 200, all later ones Answer()
        r.url                                           http://127.0.0.1:PORT
        request = r.next()                              waits for it: method, path, headers, body, key, id, number, nth
        r.effects                                       {Idempotency-Key: how often its work was done}

What a request meets is an Answer, or a function that makes one of the Request (`Receiver(always=...)` for every one). An answer
has an effect if its status is 2xx and it says nothing else; with `dedupes` a key that was seen has no second one and is told what
the first was told, as at a downstream with idempotency keys. GET /slots?key=KEY is the look-up over the effects, for `reconcile`;
`r.lookups` scripts it with answers of the same kind, `r.asked` has the requests.

Nothing here waits for time to pass but `drip`. A hanging receiver hangs until the peer has gone or the test is over; that the
peer has gone is an event, too (`request.gone`)."""
import base64
import collections
import contextlib
import fcntl
import hashlib
import hmac
import itertools
import json
import queue
import select
import socket
import struct
import termios
import threading
import urllib.parse

import hx

KEEP, CLOSE, RESET, HANG = "keep the connection", "close it", "reset it", "say nothing more"
GONE = (ConnectionError, BrokenPipeError, ValueError, OSError)


class Answer:
    """status, headers, body: as usual. What is unusual has a name:

    raw         these bytes instead of a made reply; or a function whose iterator gives them, without end if it has none
    length      what Content-Length says; False: no such field
    before      bytes ahead of the reply, such as informational(1000)
    at, then    after so many bytes of the reply (None: all of it) KEEP, CLOSE, RESET or HANG
    read, then  only so many bytes of the request are read, then CLOSE, RESET or HANG; there is no reply. Answers that a
                function makes cannot have it: the function has seen the whole request
    drip        seconds between any two bytes of the reply
    effect      whether the work is done; else a 2xx does it and nothing else
    seen, acted, said   called with the request when it was read, when its effect is there, when the reply has left"""

    def __init__(self, status=200, body=None, headers=(), *, raw=None, length=None, before=b"", at=None, then=None, read=None, drip=0,
                 effect=None, seen=None, acted=None, said=None):
        self.status, self.body, self.headers, self.raw, self.length, self.before = status, body, list(headers), raw, length, before
        self.at, self.read, self.drip, self.seen, self.acted, self.said = at, read, drip, seen, acted, said
        self.then = then or (KEEP if at is None and read is None else CLOSE)
        self.effect = effect if effect is not None else 200 <= status < 300 and raw is None and read is None

    def bytes(self, effect):
        """The reply; `effect` is the name of what was done, None if nothing was."""
        if self.raw is not None:
            return self.raw() if callable(self.raw) else self.raw
        body = self.body.encode() if isinstance(self.body, str) else self.body
        if body is None:
            body = json.dumps({"id": effect}).encode() if effect else b""
        headers = list(self.headers)
        if self.length is not False and self.status not in (204, 304):
            headers.append(("Content-Length", str(len(body) if self.length is None else self.length)))
        if self.body is None and body:
            headers.append(("Content-Type", "application/json"))
        if self.length is False and self.then is not KEEP:
            headers.append(("Connection", "close"))
        lines = [f"HTTP/1.1 {self.status} {'Fine' if self.status < 400 else 'No'}"] + [f"{name}: {value}" for name, value in headers]
        return self.before + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def informational(many, status=103):
    return b"HTTP/1.1 %d Wait\r\nLink: </style.css>\r\n\r\n" % status * many


def chunked(*chunks, last=b"0\r\n\r\n"):
    """A reply in chunks; `last` may be less than the end of it."""
    return b"HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + last


class Request:
    """One as it came. connection: its number; nth: its place on it, from 1. whole: all of it was read. gone: the peer has closed."""

    def __init__(self, head, connection, nth):
        lines = head.decode("latin-1").split("\r\n")
        self.line, self.connection, self.nth, self.number = lines[0], connection, nth, 0
        self.method, self.path = (self.line.split(" ") + ["", ""])[:2]
        self.headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        self.body, self.whole, self.answered, self.gone = b"", False, threading.Event(), threading.Event()

    def header(self, name, default=None):
        found = [v for n, v in self.headers if n == name.lower()]
        assert len(found) <= 1, f"{name} came {len(found)} times: {found}"
        return found[0] if found else default

    @property
    def key(self):
        """Its Idempotency-Key, without the quotes of a structured field."""
        text = self.header("idempotency-key")
        if text and len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        return text

    @property
    def id(self):
        return self.header("webhook-id")

    @property
    def query(self):
        return dict(urllib.parse.parse_qsl(self.path.partition("?")[2], keep_blank_values=True))

    def json(self):
        return hx.strict_json(self.body)

    def is_signed_with(self, secret):
        text = f"{self.id}.{self.header('webhook-timestamp')}.".encode() + self.body
        mac = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), text, hashlib.sha256).digest()
        return "v1," + base64.b64encode(mac).decode() in self.header("webhook-signature", "").split(" ")

    def __repr__(self):
        return f"<{self.line} #{self.number} on {self.connection}.{self.nth} {dict(self.headers)} {self.body[:200]!r}>"


class Effects:
    """What was done in the world, by key. Outlives receivers: give the next one the same table."""

    def __init__(self):
        self.lock, self.count, self.told, self.ids = threading.Lock(), collections.Counter(), {}, collections.defaultdict(set)

    def act(self, request, dedupes):
        """Does the work of this request; its effect's name."""
        with self.lock:
            key = request.key or request.id or request.path
            self.ids[key].add(request.id)
            if dedupes and key in self.told:
                return self.told[key]
            self.count[key] += 1
            return self.told.setdefault(key, f"e{len(self.told) + 1}")

    def of(self, key):
        """The name of a key's first effect, None if there is none."""
        with self.lock:
            return self.told.get(key)


def reserved():
    """A socket with an address of its own that nobody listens at, until a Receiver does: who connects is refused, and nobody else gets it."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


class Receiver:
    """narrow: the system takes little of what it does not read. tls: an ssl.SSLContext of a server. at: a socket whose address is taken,
    of reserved()."""

    def __init__(self, *answers, always=None, dedupes=False, effects=None, at=None, narrow=False, tls=None):
        self.table, self.dedupes, self.tls = effects or Effects(), dedupes, tls
        self.always, self.script, self.lookups = always, collections.deque(answers), collections.deque()
        self.lock, self.over, self.arrived = threading.Lock(), threading.Event(), queue.Queue()
        self.requests, self.asked, self.connections, self.socks = [], [], 0, set()
        self.listener = at or reserved()
        if narrow:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.listen(512)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    # ---- for tests

    @property
    def url(self):
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    @property
    def effects(self):
        with self.table.lock:
            return dict(self.table.count)

    def next(self, bound=hx.TIMEOUT):
        """The next request in the order of arrival; look-ups are not among them."""
        try:
            return self.arrived.get(timeout=bound)
        except queue.Empty:
            raise AssertionError(f"no request came; there were {len(self.requests)}") from None

    def quiet(self):
        """Nothing has come that `next` has not given."""
        return self.arrived.empty()

    def then(self, *answers):
        with self.lock:
            self.script.extend(answers)

    def close(self):
        """Nobody listens any more, and every connection is cut: what comes now is refused."""
        self.over.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            socks = list(self.socks)
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- at work

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(sock, self.connections), daemon=True).start()

    def serve(self, sock, number):
        link = None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                sock = self.tls.wrap_socket(sock, server_side=True)
            link = Link(sock, number)
            with self.lock:
                self.socks.add(sock)
            for nth in itertools.count(1):
                if self.over.is_set() or not self.exchange(link, nth):
                    return
        except GONE:
            pass
        finally:
            if link and link.request:
                link.request.gone.set()
            sock.close()
            with self.lock:
                self.socks.discard(sock)

    def exchange(self, link, nth):
        """One request; whether another may follow."""
        if not link.begins():
            return False
        with self.lock:
            first = self.script[0] if self.script else None
            early = self.script.popleft() if isinstance(first, Answer) and first.read is not None else None
        if early:
            return self.cut_short(link, nth, early)
        request = link.read(nth)
        answer = self.answer_for(request)
        if answer.seen:
            answer.seen(request)
        effect = self.table.act(request, self.dedupes) if answer.effect and not self.is_lookup(request) else None
        if answer.acted:
            answer.acted(request)
        return self.reply(link, request, answer, effect)

    def cut_short(self, link, nth, answer):
        link.request = Request(link.at_most(answer.read).partition(b"\r\n\r\n")[0], link.number, nth)
        self.note(link.request)
        return self.leave(link, link.request, answer)

    def is_lookup(self, request):
        return request.method == "GET" and request.path.partition("?")[0] == "/slots"

    def note(self, request):
        with self.lock:
            list_of = self.asked if self.is_lookup(request) else self.requests
            list_of.append(request)
            request.number = len(list_of)
        if not self.is_lookup(request):
            self.arrived.put(request)

    def answer_for(self, request):
        self.note(request)
        with self.lock:
            script = self.lookups if self.is_lookup(request) else self.script
            answer = script.popleft() if script else None
        if answer is None:
            answer = self.look_up if self.is_lookup(request) else self.always or Answer()
        return answer(request) if callable(answer) else answer

    def look_up(self, request):
        key = request.query.get("key")
        effect = self.table.of(key)
        if not effect:
            return Answer(404, '{"items":[]}', [("Content-Type", "application/json")])
        return Answer(200, json.dumps({"items": [{"id": effect, "key": key}]}), [("Content-Type", "application/json")])

    def reply(self, link, request, answer, effect):
        data = answer.bytes(effect)
        if isinstance(data, bytes):
            data = [data if answer.at is None else data[:answer.at]]
        for piece in data:
            if self.over.is_set():
                return False
            for part in ([piece[i:i + 1] for i in range(len(piece))] if answer.drip else [piece]):
                link.sock.sendall(part)
                if answer.drip:
                    self.over.wait(answer.drip)
        return self.leave(link, request, answer)

    def leave(self, link, request, answer):
        if answer.then is RESET:
            link.reset()
        elif answer.then is CLOSE:
            link.sock.close()
        request.answered.set()
        if answer.said:
            answer.said(request)
        if answer.then is HANG:
            link.until_gone(reading=answer.read is None)
        return answer.then is KEEP


class Link:
    """A connection and what was read of it."""

    def __init__(self, sock, number):
        self.sock, self.number, self.data, self.request = sock, number, bytearray(), None

    def more(self):
        got = self.sock.recv(1 << 16)
        self.data += got
        return bool(got)

    def cut(self, n):
        out = bytes(self.data[:n])
        del self.data[:n]
        return out

    def begins(self):
        """Waits for a request; False if the peer has closed instead."""
        return bool(self.data) or bool(select.select([self.sock], [], [])[0] and (hasattr(self.sock, "pending") or self.sock.recv(1, socket.MSG_PEEK)))

    def at_most(self, n):
        while len(self.data) < n:
            got = self.sock.recv(n - len(self.data))
            if not got:
                break
            self.data += got
        return self.cut(n)

    def upto(self, mark):
        while mark not in self.data:
            if not self.more():
                raise ConnectionError("closed in the middle")
        return self.cut(self.data.index(mark) + len(mark))

    def exactly(self, n):
        while len(self.data) < n:
            if not self.more():
                raise ConnectionError("closed in the middle")
        return self.cut(n)

    def read(self, nth):
        """The next request, whole."""
        self.request = Request(self.upto(b"\r\n\r\n")[:-4], self.number, nth)
        if "100-continue" in self.request.header("expect", ""):
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in self.request.header("transfer-encoding", ""):
            self.request.body = self.chunks()
        else:
            self.request.body = self.exactly(int(self.request.header("content-length", "0")))
        self.request.whole = True
        return self.request

    def chunks(self):
        body = b""
        while size := int(self.upto(b"\r\n").split(b";")[0], 16):
            body += self.exactly(size + 2)[:-2]
        while self.upto(b"\r\n") != b"\r\n":
            pass
        return body

    def flushed(self):
        """The peer's system has all that was sent: a reset would take the rest along."""
        if not hasattr(self.sock, "pending"):  # not of a TLS connection
            hx.until(lambda: not struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0\0\0\0"))[0], "the peer takes the bytes")

    def reset(self):
        self.flushed()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def until_gone(self, reading):
        """The peer has closed, or the receiver was."""
        while reading and self.sock.recv(1 << 16):
            pass
        ends = select.poll()
        ends.register(self.sock, select.POLLRDHUP)
        ends.poll()


@contextlib.contextmanager
def silent_port():
    """A port that takes no connection and refuses none: all the places in its queue are taken."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.contextmanager
def refused_port():
    """A port where nobody listens and nobody will."""
    with reserved() as sock:
        yield sock.getsockname()[1]
