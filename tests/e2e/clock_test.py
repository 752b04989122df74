#!/usr/bin/env python3
"""Leases and windows run as fast as the clock on the wall, whatever the broker is busy with.

The load is the one that once made time run many times too fast: producers that pipeline, so that turns are long and their
requests share one reading of the clock, and between them pollers that hang up, each of which brings a newer one."""
import threading
import time

import hx
from hx import same, test

LEASE_S = WINDOW_S = 8
LOAD_S = 6           # ends before lease and window do
TOLERANCE_MS = 100   # of the clock's readings on both sides
PRODUCERS, REQUESTS = 8, 150


def poll(queue):
    conn = hx.broker.connect()
    conn.start("POST", f"/v1/queues/{queue}/receive?wait=60s", b"")
    return conn


def read_all(conn):
    try:
        while conn.more():
            conn.data.clear()
    except OSError:
        pass


class Load:
    """Producers pipeline the same sends over and over; after each one's burst a poll that waits is hung up."""

    def __init__(self, queue):
        self.queue, self.over = queue, threading.Event()
        self.producers = [hx.broker.connect() for _ in range(PRODUCERS)]
        self.threads = [threading.Thread(target=read_all, args=(conn,)) for conn in self.producers]
        self.threads.append(threading.Thread(target=self.run))

    def burst(self, producer):
        request = "POST /v1/queues/{0}-busy/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {1}-{2}\r\nContent-Length: 1\r\n\r\nx"
        return "".join(request.format(self.queue, producer, n) for n in range(REQUESTS)).encode()

    def run(self):
        bursts = [self.burst(p) for p in range(PRODUCERS)]
        waiting = [poll(self.queue + "-idle") for _ in bursts]
        while not self.over.is_set():
            next_ones = [poll(self.queue + "-idle") for _ in bursts]
            for producer, burst, hanging in zip(self.producers, bursts, waiting):
                producer.write(burst)
                hanging.close()
            waiting = next_ones
        for conn in waiting + self.producers:
            conn.close()

    def __enter__(self):
        for thread in self.threads:
            thread.start()

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(hx.TIMEOUT)


def running():
    """What the broker's running clock shows, and the times on the wall between which it was read."""
    before = time.monotonic()
    shown = hx.broker.get("/v1/stats").json()["run_ms"]
    return shown, before, time.monotonic()


@test
def running_time_is_never_faster_than_the_wall_while_pollers_hang_up_between_pipelined_sends(q):
    b = hx.broker
    b.rules(q, lease=f"{LEASE_S}s", window=f"{WINDOW_S}s")
    b.put(q, "leased", "settled")
    leased, settled = time.monotonic(), time.monotonic()
    held, done = b.receive(q, max=2)
    b.ok("ack", done)
    key, known = held["key"], done["key"]
    first, began, _ = running()
    with Load(q):
        while time.monotonic() - settled < LOAD_S:
            state, age = b.state(q, key), time.monotonic() - leased
            assert state == "leased" or age >= LEASE_S, f"a lease of {LEASE_S} s was over after {age:.1f} s"
            reply, age = b.send(q, known), time.monotonic() - settled
            assert reply.json()["outcome"] == "duplicate" or age >= WINDOW_S, f"{age:.1f} s into a window of {WINDOW_S} s"
            last, _, ended = running()
            ran, passed = last - first, (ended - began) * 1000
            assert ran <= passed + TOLERANCE_MS, f"{ran} ms of running time in {passed:.0f} ms"


hx.main()
