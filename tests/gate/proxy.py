"""A connection that breaks at the worst moment: a proxy before a server's Unix socket.

It forwards everything until a request contains `pattern`; then the connection is cut, on both sides, either before the
request is forwarded ("request") or after the server has answered it and before the answer is ("reply"). "silence" cuts
nothing: the request is swallowed and nothing is heard again on that connection. Once for each of `cuts`; after those it
only forwards."""

import os
import select
import shutil
import socket
import tempfile
import threading


class Proxy:
    def __init__(self, server, pattern, *cuts):
        self.server, self.pattern, self.cuts = server, pattern, list(cuts)
        self.home = tempfile.mkdtemp(prefix="hapax-proxy-")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(self.home, ".s.PGSQL.5432"))
        self.listener.listen()
        self.lock = threading.Lock()

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _next_cut(self, data):
        with self.lock:
            return self.cuts.pop(0) if self.cuts and self.pattern in data else None

    def _carry(self, client):
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(self.server.socket)
            self._forward(client, upstream)
        except OSError:
            pass
        finally:
            client.close()
            upstream.close()

    def _forward(self, client, upstream):
        while True:
            for ready in select.select([client, upstream], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                cut = self._next_cut(data) if ready is client else None
                if cut == "request":
                    return
                if cut == "silence":
                    client.recv(1)  # until the client has had enough
                    return
                (upstream if ready is client else client).sendall(data)
                if cut == "reply":
                    upstream.recv(65536)
                    return
