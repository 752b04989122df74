#!/usr/bin/env python3
"""What a proxied call costs beside nginx's proxy_pass: the same upstream, one caller, one call after the other, in turns.

A call through Hapax waits for two syncs: of what says that it was sent, and of its answer. So its p50 may be that of proxy_pass
and twice the p50 of a synced 4 KiB overwrite on the same disk, measured in the same turns. Medians of ROUNDS rounds (7) of CALLS (400).
"""
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
ROUNDS, CALLS = int(os.environ.get("ROUNDS", 7)), int(os.environ.get("CALLS", 400))
BODY = b'{"amount":42,"currency":"EUR","payment_intent_id":"8c6f6d1c-2c1f-4f0c-9d0a-0d6f3d1b7a55"}'
NGINX = """
daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log; worker_processes 1;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream api {{ server 127.0.0.1:{upstream}; keepalive 16; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{upstream}; location / {{ default_type application/json; return 201 '{{"id":"ch_1"}}'; }} }}
  server {{ listen 127.0.0.1:{proxy}; keepalive_requests 1000000; location / {{ proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def wait_for(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)


class Caller:
    """One connection, one call at a time."""

    def __init__(self, port, path, mark=b'{"id":"ch_1"}', method=b"POST", keyed=True):
        self.mark, self.method, self.keyed = mark, method, keyed
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.path = path.encode()

    def call(self, key):
        key = b"Idempotency-Key: %s\r\n" % key if self.keyed else b""
        self.sock.sendall(b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
                          % (self.method, self.path, key, len(BODY), BODY))
        data = b""
        while self.mark not in data:
            got = self.sock.recv(65536)
            assert got, data
            data += got
        assert data.startswith(b"HTTP/1.1 20"), data

    def p50_us(self, keys):
        took = []
        for key in keys:
            began = time.perf_counter_ns()
            self.call(key)
            took.append(time.perf_counter_ns() - began)
        return statistics.median(took) / 1000


def sync_p50_us(file, calls):
    """4 KiB over what is written already, and synced: what the journal does in a recycled segment."""
    block, took = os.urandom(4096), []
    for i in range(calls):
        began = time.perf_counter_ns()
        os.pwrite(file, block, i % 256 * 4096)
        os.fdatasync(file)
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1000


def measure(directory, upstream, proxy):
    (directory / "hapax.yaml").write_text(f'proxies: {{api: {{upstream: "http://127.0.0.1:{upstream}", allow_private: true}}}}\nauto_create: true\n')
    port = free_port()
    broker = subprocess.Popen([BUILD / "hapaxd", "--config", directory / "hapax.yaml", "--listen", f"127.0.0.1:{port}", "--data", directory / "data"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = os.open(directory / "sync", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        wait_for(port)
        os.pwrite(file, bytes(1 << 20), 0)
        os.fsync(file)
        hapax, nginx = Caller(port, "/gate/api/charges"), Caller(proxy, "/charges")
        again = [b"again-%d" % i for i in range(CALLS)]
        for key in again:
            hapax.call(key)
        nginx.p50_us(again)
        send, passing = Caller(port, "/v1/queues/q/messages", b'"accepted"'), Caller(port, "/gate/api/charges", method=b"PUT", keyed=False)
        passing.p50_us(again)
        rounds = []
        for r in range(ROUNDS):
            new = [b"r%d-%d" % (r, i) for i in range(CALLS)]
            rounds.append((hapax.p50_us(new), nginx.p50_us(again), sync_p50_us(file, CALLS), hapax.p50_us(again), send.p50_us(new), passing.p50_us(again)))
        return [statistics.median(column) for column in zip(*rounds)]
    finally:
        broker.terminate()
        broker.wait()
        os.close(file)


def main():
    if not shutil.which("nginx") and not os.path.exists("/usr/sbin/nginx"):
        sys.exit("nginx is not there: tools/deps --bench installs it")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "/var/tmp")) as name:
        directory, upstream, proxy = Path(name), free_port(), free_port()
        (directory / "nginx.conf").write_text(NGINX.format(dir=directory, upstream=upstream, proxy=proxy))
        nginx = subprocess.Popen([shutil.which("nginx") or "/usr/sbin/nginx", "-p", directory, "-c", directory / "nginx.conf", "-e", directory / "error.log"],
                                 stderr=subprocess.DEVNULL)
        try:
            wait_for(upstream)
            wait_for(proxy)
            hapax, passed, sync, again, send, through = measure(directory, upstream, proxy)
        finally:
            nginx.terminate()
            nginx.wait()
    bound = passed + 2 * sync
    print(f"{'one call at a time, p50':<44}{'us':>9}")
    for what, us in (("nginx proxy_pass", passed), ("a synced 4 KiB overwrite", sync), ("Hapax, a new key", hapax), ("Hapax, a repeat", again),
                     ("Hapax, without a key: nothing is synced", through), ("Hapax, a message sent: one sync", send)):
        print(f"{what:<44}{us:>9,.0f}")
    print(f"a new key: {hapax / bound:.2f} of proxy_pass and two syncs ({bound:,.0f} us); goal 1.00: {'met' if hapax <= bound else 'short'}")


if __name__ == "__main__":
    main()
