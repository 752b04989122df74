#!/usr/bin/env python3
"""A container terminal that books whatever it is told to, as often as it is told: terminal.py [PORT [SEED]].

POST /slots              books a slot for the container of the body: 201 and the booking. It knows no idempotency keys
GET /slots?container=C   its bookings: 200, or 404 if there are none
GET /bookings            all of them, in the order they were made

On a bad day one push in ten dies half-way: the slot is booked, and the connection is cut in the middle of the answer. Some others are
sent away with 503 before anything is done. The seed, the container and how often it came decide which: a run can be repeated."""
import http.server
import json
import random
import sys
import threading
import time
import urllib.parse

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 4290
SEED = sys.argv[2] if len(sys.argv) > 2 else "10"
DIES, BUSY = 0.10, 0.05

lock, bookings, came = threading.Lock(), [], {}


def fate(container):
    came[container] = came.get(container, 0) + 1
    chance = random.Random(f"{SEED} {container} {came[container]}").random()
    return "dies" if chance < DIES else "busy" if chance < DIES + BUSY else "lives"


class Terminal(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            today = fate(wanted["container"])
            if today != "busy":
                booking = {"id": f"B{len(bookings) + 1:03}", "container": wanted["container"], "at": time.time(), "answered": today == "lives"}
                bookings.append(booking)
        if today == "busy":
            return self.answer(503, {"error": "come back later"})
        self.answer(201, {"booking": booking}, half=today == "dies")

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        container = urllib.parse.parse_qs(url.query).get("container", [None])[0]
        with lock:
            items = [b for b in bookings if container in (None, b["container"])]
        self.answer(200 if items or url.path == "/bookings" else 404, {"items": items})

    def answer(self, status, value, half=False):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if half else body)
        self.close_connection = self.close_connection or half

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Terminal)
server.daemon_threads = True
print(f"terminal ready on http://127.0.0.1:{server.server_port}", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    pass
