#!/usr/bin/env python3
"""The outbox relay, a PostgreSQL that syncs its commits and hapaxd, all on this machine.

    tests/gate/relay_bench.py            20,000 rows a second for 20 seconds: does it keep up? Then a backlog: how fast?
    RATE=20000 SECONDS=20 BACKLOG=300000 ROWS=50 WORKERS=2 tests/gate/relay_bench.py

Keeping up: the oldest pending row stays younger than LAG_MS (2000) from the third second to the last. Exit 1 if it does
not, or if the queue does not hold exactly the rows that were committed."""

import json
import os
import subprocess
import sys
import tempfile
import time

import harness  # noqa: F401  it knows where hx is
import hx
import pg

RATE, SECONDS, ROWS = (int(os.environ.get(n, d)) for n, d in (("RATE", 20000), ("SECONDS", 20), ("ROWS", 50)))
BACKLOG, LAG_MS = int(os.environ.get("BACKLOG", 300000)), int(os.environ.get("LAG_MS", 2000))
WORKERS, GROUP = os.environ.get("WORKERS", "2"), ["--group"] if os.environ.get("GROUP") else []

INSERT = """INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
SELECT 'order', 'order-' || (random() * 10000)::int, 'OrderPlaced', jsonb_build_object('n', i, 'note', repeat('x', 150))
  FROM generate_series(1, %d) i;
"""


def relay(server, port, *flags):
    return subprocess.Popen([hx.HAPAX, "relay", "--queue", "orders", "--workers", WORKERS, "--json", *GROUP, *flags],
                            env=dict(os.environ, HAPAX_DSN="host=%s user=postgres dbname=postgres" % server.home,
                                     HAPAX_URL="http://127.0.0.1:%d" % port), stdout=subprocess.PIPE, text=True)


def cpu(pid):
    with open("/proc/%d/stat" % pid, encoding="utf-8") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def steady(server, port, load):
    """Rows trickle in at RATE; returns the reports made meanwhile."""
    running = relay(server, port, "--report", "1s")
    clients = subprocess.Popen(["pgbench", "-n", "-c", "2", "-j", "1", "-R", str(RATE // ROWS), "-T", str(SECONDS), "-f", load],
                               env=server.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reports = []
    while clients.poll() is None:
        reports.append(json.loads(running.stdout.readline()))
    used = cpu(running.pid)
    running.terminate()
    running.wait()
    made = int(clients.stdout.read().split("actually processed: ")[1].split()[0].split("/")[0]) * ROWS
    return reports, made, used


def main():
    with tempfile.TemporaryDirectory(prefix="hapax-relay-") as work, \
            pg.Server(settings=["shared_buffers=256MB", "max_wal_size=2GB"]) as server:
        broker = hx.Broker(os.path.join(work, "data"))
        load = os.path.join(work, "load.sql")
        with open(load, "w", encoding="utf-8") as f:
            f.write(INSERT % ROWS)
        env = dict(os.environ, HAPAX_DSN="host=%s user=postgres dbname=postgres" % server.home)
        subprocess.run([hx.HAPAX, "relay", "init"], env=env, check=True)
        session = server.connect()

        reports, made, used = steady(server, broker.port, load)
        worst = max(r["oldest_ms"] for r in reports[2:])
        rates = sorted(r["per_s"] for r in reports[2:])
        subprocess.run([hx.HAPAX, "relay", "--queue", "orders", "--once", "--report", "0"], check=True,
                       env=dict(env, HAPAX_URL="http://127.0.0.1:%d" % broker.port))
        print("%d rows in %d s: relayed %d/s (median), oldest pending row %d ms at most, relay used %.0f%% of a core"
              % (made, SECONDS, rates[len(rates) // 2], worst, 100 * used / SECONDS))

        session.rows(INSERT % BACKLOG)
        began = time.monotonic()
        drain = relay(server, broker.port, "--once", "--report", "0")
        drain.wait()
        took = time.monotonic() - began
        print("backlog of %d rows: %.1f s, %d/s" % (BACKLOG, took, BACKLOG / took))

        left = session.one("SELECT count(*) FROM outbox")
        queued = broker.queue("orders")["pending"]
        broker.stop()
        print("in the outbox %s, in the queue %s, committed %d" % (left, queued, made + BACKLOG))
        good = worst <= LAG_MS and left == "0" and queued == made + BACKLOG
        print("%s - keeps up with %d rows/s%s" % ("ok" if good else "not ok", made / SECONDS,
              "" if made >= 0.95 * RATE * SECONDS else ", all that the inserting clients could make of the %d asked for" % RATE))
        return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
