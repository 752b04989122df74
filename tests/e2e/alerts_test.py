#!/usr/bin/env python3
"""Alerts, as operators meet them (tests/unit/alerts_test.c has the cause of each): on the command line, and in Prometheus."""
import http.server
import json
import os
import socket
import subprocess
import tempfile
import threading
import urllib.request

import hx
from hx import hapax, same, test


def doubled(b, queue="q"):
    """An effect reported twice: it fires at the next look, ten seconds at the most."""
    b.put(queue, "k")
    message = b.one(queue)
    b.ok("ack", message, effect_id="e1")
    b.settle("ack", message, effect_id="e2")
    hx.until(lambda: b.get("/v1/alerts").json()["items"], "the broker has looked")


@test
def an_alert_is_a_line_for_people_in_the_log_and_an_exit_code(_):
    with hx.Broker() as b:
        hx.until(lambda: b.get("/v1/alerts").json()["judged"], "the broker has looked")
        same(hapax("alerts", of=b).err, "none\n")
        doubled(b)
        ran = hapax("alerts", of=b, exits=1)
        assert "doubled_effect" in ran.text and "duplicate-effect.md" in ran.text, ran
        same(hapax("alerts", "--json", of=b, exits=1).json["items"][0]["state"], "firing")
        assert "event=alert" in b.stderr() and "state=firing" in b.stderr()


@test
def alerts_name_what_they_are_about_and_the_gravest_come_first(_):
    with hx.Broker() as b:
        b.rules("a-queue", dead={"alert": {"count": 1, "within": "15m"}}, retry={"transient": {"attempts": 1}})
        b.put("a-queue", "k-dead")
        b.ok("nack", b.one("a-queue"), **{"class": "poison"})
        hx.until(lambda: b.get("/v1/alerts").json()["items"], "dead letters fire")
        doubled(b)
        items = hx.until(lambda: len(b.get("/v1/alerts").json()["items"]) == 2 and b.get("/v1/alerts").json()["items"], "both fire")
        same([(a["name"], a.get("key")) for a in items], [("doubled_effect", "k"), ("dead_letters", None)])
        lines = hapax("alerts", of=b, exits=1).text.splitlines()
        same([line.split()[:3] for line in lines[:2]], [["name", "queue", "key"], ["doubled_effect", "q", "k"]])


@test
def nothing_fires_and_nothing_was_judged_are_told_apart(_):
    with hx.answering({"/v1/alerts": '{"items":[],"judged":false}'}) as url:
        assert "not judged yet" in hapax("alerts", "--url", url).err
    with hx.answering({"/v1/alerts": '{"items":[],"judged":true}'}) as url:
        assert "not judged" not in hapax("alerts", "--url", url).err


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        page = b"<html>proxy error</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


@test
def the_page_of_a_proxy_does_not_pass_for_all_is_well(_):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = "http://127.0.0.1:%d" % server.server_address[1]
    for words in (["alerts"], ["queues", "list"], ["consumers"], ["find", "--id", "x"], ["doctor"]):
        ran = hapax(*words, "--url", url, exits=3)
        assert "no Hapax broker" in ran.err + ran.text, ran
    server.shutdown()


def rules_of(folder):
    path = os.path.join(folder, "rules.yml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(hapax("alerts", "--prometheus").text)
    return path


@test
def promtool_accepts_the_rules(_):
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(["promtool", "check", "rules", rules_of(folder)], capture_output=True, check=False)
        same(ran.returncode, 0, ran.stdout + ran.stderr)
        assert b"17 rules" in ran.stdout, ran.stdout


@test
def what_fires_in_the_broker_fires_in_prometheus_and_ends_there_too(_):
    with hx.Broker() as b, tempfile.TemporaryDirectory() as folder:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                       "rule_files": [rules_of(folder)], "scrape_configs": [
                           {"job_name": "hapax", "static_configs": [{"targets": [f"127.0.0.1:{b.port}"]}]}]}, f)
        doubled(b)
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def firing():
            try:
                with urllib.request.urlopen(f"http://{address}/api/v1/alerts", timeout=5) as reply:
                    return [a["labels"]["alertname"] for a in json.load(reply)["data"]["alerts"] if a["state"] == "firing"]
            except OSError:
                return None

        try:
            hx.until(lambda: firing() == ["HapaxDoubledEffect"], "Prometheus fires")
            same(b.call("DELETE", "/v1/queues/q").status, 204)
            hx.until(lambda: firing() == [], "Prometheus sees that it is over")
        finally:
            prometheus.kill()
            prometheus.wait()


hx.main()
