#!/usr/bin/env python3
"""What pushing costs: deliveries a second to a fast receiver on this machine, in turns with a bare libcurl-multi loop that sends the
same requests to the same receiver; and the processor time that deliveries waiting for a dead target take.

A round: MESSAGES wait while the target is paused; from its resumption to the last settlement counts. All of it is in the figure: the lease
is durable before the request leaves, the answer is stored and durable before the message counts as settled. Between the two stands
net/outbound alone: the same loop and calls without a broker. Medians of ROUNDS rounds (5) of ROUND_SECONDS (2); CALLS under way (256), as
many for all three. `tests/bench/run`, which `make bench` runs first, builds what is needed.
"""
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BUILD", "build")
TOOL = BUILD / "tests" / "bench_push"
ROUNDS = int(os.environ.get("ROUNDS", 5))
SECONDS = str(max(1, round(float(os.environ.get("ROUND_SECONDS", 2)))))
MESSAGES = int(os.environ.get("MESSAGES", 20000))
CALLS = int(os.environ.get("CALLS", 256))
WAITING = 10000
IDLE_S = float(os.environ.get("IDLE_SECONDS", 10))
TICKS = os.sysconf("SC_CLK_TCK")
CONTENT = {"container": "MSCU1234567", "terminal": "RTM-4", "date": "2026-03-01", "window": "14:00-15:00", "carrier": "0142"}


class Receiver:
    def __init__(self):
        self.process = subprocess.Popen([TOOL, "receive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def load(self, how):
        ran = subprocess.run([TOOL, how, str(self.port), SECONDS, str(CALLS)], capture_output=True, check=True)
        return json.loads(ran.stdout)["rate"]


class Broker:
    def __init__(self, directory, target_port):
        self.directory = Path(directory)
        deliver = f'{{url: "http://127.0.0.1:%d/slots", allow_private: true, concurrency: {CALLS}, effect_id: id}}'
        (self.directory / "hapax.yaml").write_text(
            "queues:\n"
            f"  fast: {{downstream: {{idempotency: key}}, deliver: {deliver % target_port}}}\n"
            f"  dead: {{downstream: {{idempotency: key}}, deliver: {deliver % free_port()}}}\n")
        self.process = subprocess.Popen([BUILD / "hapaxd", "--listen", "127.0.0.1:0", "--data", self.directory / "data", "--config",
                                         self.directory / "hapax.yaml"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(self.process.stdout.readline().rpartition(":")[2])
        self.conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method, path, body=None):
        self.conn.request(method, path, body, {"Hapax-Operator": "bench", "Hapax-Reason": "bench"})
        reply = self.conn.getresponse()
        text = reply.read()
        assert reply.status < 300, (method, path, reply.status, text)
        return text

    def send(self, queue, first, count):
        for start in range(first, first + count, 1000):
            lines = (json.dumps({"key": f"{queue}-{n}", "payload": CONTENT}) for n in range(start, min(start + 1000, first + count)))
            self.ask("POST", f"/v1/queues/{queue}/batch", "\n".join(lines))

    def unsettled(self, queue):
        return json.loads(self.ask("GET", f"/v1/queues/{queue}"))["unsettled"]

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def push_round(broker, number):
    broker.ask("POST", "/v1/targets/fast/pause")
    broker.send("fast", number * MESSAGES, MESSAGES)
    began, cpu = time.monotonic(), broker.cpu_seconds()
    broker.ask("POST", "/v1/targets/fast/resume")
    while broker.unsettled("fast"):
        time.sleep(0.01)
    took = time.monotonic() - began
    return MESSAGES / took, (broker.cpu_seconds() - cpu) / MESSAGES * 1e6


def dead_target(broker):
    """Share of a processor, over a while in which nobody asks for anything: first with nothing waiting, then with WAITING."""
    shares = []
    for waiting in (0, WAITING):
        if waiting:
            broker.send("dead", 0, waiting)
            time.sleep(3)   # until the circuit is open, and compaction has had its time
        cpu = broker.cpu_seconds()
        time.sleep(IDLE_S)
        shares.append((broker.cpu_seconds() - cpu) / IDLE_S)
    return shares


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "/var/tmp")) as directory:
        receiver = Receiver()
        broker = Broker(directory, receiver.port)
        try:
            bare, outbound, pushed, cpu = [], [], [], []
            for number in range(ROUNDS):
                bare.append(receiver.load("curl"))
                outbound.append(receiver.load("outbound"))
                rate, us = push_round(broker, number)
                pushed.append(rate)
                cpu.append(us)
            median = statistics.median
            ratio = median(p / b for p, b in zip(pushed, bare))
            print(f"{'a bare libcurl-multi loop, requests a second':<60}{median(bare):>10,.0f}")
            print(f"{'net/outbound alone':<60}{median(outbound):>10,.0f}{median(o / b for o, b in zip(outbound, bare)):>8.2f}")
            print(f"{'pushed deliveries a second':<60}{median(pushed):>10,.0f}{ratio:>8.2f}   goal >= 0.60: {'met' if ratio >= 0.6 else 'short'}")
            print(f"{'processor time of the broker for each, us':<60}{median(cpu):>10,.1f}")
            if IDLE_S == 0:
                return
            idle, waiting = dead_target(broker)
            print(f"{f'share of a processor, idle; {WAITING:,} waiting for a dead target':<60}{idle:>10.2%}{waiting:>8.2%}   "
                  f"goal: none: {'met' if waiting - idle < 0.005 else 'short'}")
        finally:
            broker.process.terminate()
            broker.process.wait()
            receiver.process.stdin.close()
            receiver.process.wait()


if __name__ == "__main__":
    sys.exit(main())
