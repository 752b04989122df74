#!/usr/bin/env python3
"""Metrics (M18): what is counted is what happened, and every tool of Prometheus can read it."""
import collections
import json
import os
import re
import socket
import subprocess
import tempfile
import urllib.request

import hx
from hx import same, test

DOC = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "METRICS.md")
LINE = re.compile(r'^([a-z_]+)(?:\{(.*)\})? (\S+)$')


def scrape(broker, accept=None):
    reply = broker.call("GET", "/metrics", headers=[("Accept", accept)] if accept else [])
    same(reply.status, 200)
    return reply


def values(broker, queue=None):
    """Every line as {(name, label, ...): value}; of one queue, without its label."""
    out = {}
    for line in scrape(broker).body.decode().splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = LINE.match(line).groups()
        labels = re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', labels or "")
        if queue is not None:
            if ("queue", queue) not in labels:
                continue
            labels = [label for label in labels if label[0] != "queue"]
        out[(name, *(v for _, v in labels))] = float(value)
    return out


def counted(broker, queue, want):
    have = values(broker, queue)
    same({k: have.get(k) for k in want}, want)


@test
def a_histogram_has_at_most_twelve_buckets(_):
    with hx.Broker() as b:
        b.put("q", "a")
        seen = collections.Counter(re.sub(r',?le="[^"]*"', "", line.rpartition(" ")[0]) for line in b.get("/metrics").body.decode().splitlines() if "_bucket{" in line)
        assert len(seen) >= 7 and max(seen.values()) <= 12, seen


@test
def what_happened_in_a_queue_is_what_is_counted(_):
    with hx.Broker() as b:
        b.rules("q", on_unknown="reconcile", retry={"transient": {"backoff": "0s"}})
        b.put("q", "a", "b", "c", "d")
        same(b.send("q", "a").json()["duplicate"], True)
        hx.problem(b.send("q", "a", b"other"), 422, "key_reused")
        got = {m["key"]: m for m in b.receive("q", max=4, lease="1h")}
        b.ok("ack", got["a"], effect_id="e1")
        b.settle("ack", got["a"], effect_id="e2")
        b.ok("nack", got["b"], **{"class": "transient"})
        b.ok("nack", got["c"], **{"class": "poison"})
        b.ok("nack", got["d"], **{"class": "unknown"})
        again = {m["key"]: m for m in b.receive("q", max=4, lease="1h")}
        same(again["d"]["delivery"], "reconcile")
        b.ok("ack", again["d"])
        b.ok("nack", again["b"], **{"class": "rejected"})
        hx.problem(b.settle("ack", got["b"]), 409, "fenced")
        counted(b, "q", {
            ("hapax_accepted_total",): 4, ("hapax_duplicates_total", "replay"): 1, ("hapax_duplicates_total", "late"): 0,
            ("hapax_conflicts_total",): 1, ("hapax_deliveries_total", "first"): 4, ("hapax_deliveries_total", "retry"): 1,
            ("hapax_deliveries_total", "reconcile"): 1, ("hapax_settled_total", "done"): 2,
            ("hapax_settled_total", "rejected"): 1, ("hapax_failures_total", "transient"): 1,
            ("hapax_failures_total", "poison"): 1, ("hapax_failures_total", "unknown"): 1,
            ("hapax_failures_total", "rejected"): 1, ("hapax_dead_total",): 1, ("hapax_fenced_total",): 1,
            ("hapax_doubled_effects_total",): 1, ("hapax_reconciliations_total", "found"): 1,
            ("hapax_messages", "dead"): 1, ("hapax_messages", "ready"): 0, ("hapax_keys",): 3,
            ("hapax_replay_age_seconds_count",): 1, ("hapax_wait_seconds_count",): 6, ("hapax_work_seconds_count",): 3})


@test
def counters_begin_with_the_process(_):
    with hx.Broker() as b:
        b.put("q", "a", "b")
        b.put("q", "a")
        b.ok("ack", b.one("q"))
        counted(b, "q", {("hapax_accepted_total",): 2, ("hapax_settled_total", "done"): 1})
        b.kill()
        b.start()
        counted(b, "q", {("hapax_accepted_total",): 0, ("hapax_duplicates_total", "replay"): 0,
                         ("hapax_settled_total", "done"): 0, ("hapax_messages", "ready"): 1, ("hapax_keys",): 1})
        b.put("q", "c")
        counted(b, "q", {("hapax_accepted_total",): 1})
        same(b.get("/v1/queues/q").json()["counters"]["accepted"], 3)  # the journal's go on


@test
def a_queue_that_is_made_anew_counts_anew(_):
    with hx.Broker() as b:
        b.put("q", "a")
        b.ok("ack", b.one("q"))
        same(b.call("DELETE", "/v1/queues/q").status, 204)
        same(values(b, "q"), {})
        b.put("q", "a")
        counted(b, "q", {("hapax_accepted_total",): 1, ("hapax_settled_total", "done"): 0, ("hapax_keys",): 0})


@test
def promtool_has_nothing_to_say_against_them(_):
    with hx.Broker() as b:
        b.put("q", "a")
        ran = subprocess.run(["promtool", "check", "metrics"], input=scrape(b).body, capture_output=True, check=False)
        same((ran.returncode, ran.stdout + ran.stderr), (0, b""))


@test
def openmetrics_is_spoken_when_asked_for(_):
    with hx.Broker() as b:
        b.put("q", "a")
        reply = scrape(b, "application/openmetrics-text; version=1.0.0")
        assert reply.header("Content-Type").startswith("application/openmetrics-text"), reply.headers
        text = reply.body.decode()
        assert text.endswith("# EOF\n"), text[-40:]
        assert "# TYPE hapax_accepted counter\n" in text and 'hapax_accepted_total{queue="q"} 1\n' in text, text
        assert scrape(b).header("Content-Type").startswith("text/plain; version=0.0.4")


@test
def of_two_formats_the_one_that_is_liked_better_is_spoken(_):
    o, t = "application/openmetrics-text", "text/plain"
    with hx.Broker() as b:
        for accept, want in ((f"{o};q=0", t), (f"{o}; q=0.000, {t}", t), (f"{t};q=0.5,{o};version=1.0.0;q=0.4", t), (f"{t};q=0.5, {o};q=0.5", o),
                             (f"{t};version=0.0.4;q=0.3, {o};version=1.0.0;q=0.75, */*;q=0.1", o), (f"{t}, {o}", o), (f"*/*, {o};q=0.9", t),
                             (f"*/*;q=0.9, {t};q=0.1, {o.upper()};Q=0.2", o), ("*/*", t), ("application/*", t), (f"{o}-not", t), (f"{t};q=0", t)):
            same(scrape(b, accept).header("Content-Type").partition(";")[0], want, accept)


@test
def a_type_is_the_value_itself_and_different_values_are_different_series(_):
    types = ['a"b', "a\\b", "ab", "a:b", "a%3Ab", "a\nb", "a\tb", "a\x01b", "ü", "x" * 200, "x" * 201]
    with hx.Broker() as b:
        b.rules("q", event_type="${type}")
        for i, value in enumerate(types):
            same(b.event("q", {"type": value}, key=f"k{i}").status, 202)
        same(b.event("q", {"type": "y" * 300}, key="long").status, 202)
        shown = [value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\u2409").replace("\x01", "\u2401") for value in types]
        counted(b, "q", {("hapax_accepted_total", value): 1 for value in [*shown, "other"]})
        ran = subprocess.run(["promtool", "check", "metrics"], input=scrape(b).body, capture_output=True, check=False)
        same((ran.returncode, ran.stdout + ran.stderr), (0, b""))


@test
def requests_are_counted_by_their_routes_and_never_by_what_they_name(_):
    with hx.Broker() as b:
        b.put("secret-queue", "secret-key")
        b.get("/v1/queues/secret-queue/keys/secret-key")
        b.get("/no/such/path")
        have = values(b)
        same(have[("hapax_http_requests_total", "POST /v1/queues/*/messages", "202")], 1)
        same(have[("hapax_http_requests_total", "GET /v1/queues/*/keys/*", "200")], 1)
        same(have[("hapax_http_requests_total", "other", "404")], 1)
        same(have[("hapax_http_request_seconds_count", "POST /v1/queues/*/messages")], 1)
        assert "secret-key" not in scrape(b).body.decode()


@test
def a_scrape_of_a_thousand_queues_is_whole(_):
    queues = "queues:\n" + "".join(f"  q{i}: {{}}\n" for i in range(1000))
    with hx.Broker(config=queues) as b:
        b.put("q999", "k")
        have = values(b)
        same(sum(name == "hapax_accepted_total" for name, *_ in have), 1000)
        same(have[("hapax_accepted_total", "q999")], 1)
        same(have[("hapax_queues",)], 1000)


@test
def prometheus_scrapes_a_broker_under_load(_):
    with hx.Broker() as b, tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [
                {"job_name": "hapax", "static_configs": [{"targets": [f"127.0.0.1:{b.port}"]}]}]}, f)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            sent = 0

            def asked(query):
                nonlocal sent
                b.put("q", f"k{sent}")
                sent += 1
                url = f"http://{address}/api/v1/query?query={hx.quote(query)}"
                try:
                    with urllib.request.urlopen(url, timeout=5) as reply:
                        return json.load(reply)["data"]["result"]
                except OSError:
                    return []

            hx.until(lambda: asked('hapax_accepted_total{queue="q"} > 3'), "Prometheus has seen messages arrive")
            same(asked("up")[0]["value"][1], "1")
            assert asked("hapax_sync_seconds_count > 0") and asked("process_start_time_seconds > 0")
        finally:
            prometheus.kill()
            prometheus.wait()


def described(text):
    """name -> (type, help) of a scrape."""
    help_of = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    return {name: (kind, help_of[name]) for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)}


def page(text):
    rows = "".join(f"| `{name}` | {kind} | {help_} |\n" for name, (kind, help_) in described(text).items())
    return "| metric | type | what it says |\n|---|---|---|\n" + rows


@test
def the_documentation_has_every_metric_and_no_other(_):
    with hx.Broker() as b:
        b.put("q", "a")
        want = page(scrape(b).body.decode())
    with open(DOC, encoding="utf-8") as f:
        have = f.read()
    begin, end = have.index("| metric |"), have.index("\n\n", have.index("| metric |")) + 1
    if os.environ.get("WRITE_DOCS"):
        with open(DOC, "w", encoding="utf-8") as f:
            f.write(have[:begin] + want + have[end:])
        return
    same(have[begin:end], want, "docs/METRICS.md; WRITE_DOCS=1 writes it anew")


hx.main()
