#!/usr/bin/env python3
"""The dashboard as the broker serves it: embedded, small, from nowhere else. What the pages do is in tests/web."""
import os
import re

import hx
from hx import problem, same, test

WEB = os.path.join(hx.ROOT, "src", "web")
RUNBOOKS = os.path.join(hx.ROOT, "docs", "runbooks")
FILES = sorted(os.listdir(WEB))
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
WHOLE_BYTES_MAX = 150 * 1024


def source(name):
    with open(os.path.join(WEB, name), "rb") as file:
        return file.read()


@test
def every_page_is_served_as_it_lies_in_the_tree(_q):
    b = hx.broker
    assert b.get("/").body == source("index.html"), "the page is another one"
    for name in FILES:
        reply = b.get(f"/ui/{name}")
        same(reply.status, 200, name)
        assert reply.body == source(name), f"{name} is another one"
        same(reply.header("Content-Type"), TYPES[os.path.splitext(name)[1]] + "; charset=utf-8", name)
    problem(b.get("/ui/nothing.js"), 404, "not_found")
    problem(b.get("/ui/..%2Fhapaxd.c"), 404, "not_found")
    problem(b.post("/", {}), 405, "method_not_allowed")
    same(b.call("HEAD", "/").status, 200)


@test
def every_runbook_an_alert_names_can_be_read_in_the_dashboard(_q):
    for name in sorted(os.listdir(RUNBOOKS)):
        reply = hx.broker.get(f"/ui/{name}")
        same((reply.status, reply.header("Content-Type")), (200, "text/markdown; charset=utf-8"), name)
        with open(os.path.join(RUNBOOKS, name), "rb") as file:
            assert reply.body == file.read(), f"{name} is another one"


@test
def a_page_that_is_the_same_is_not_sent_again(_q):
    for path in ("/", "/ui/app.js"):
        tag = hx.broker.get(path).header("ETag")
        again = hx.broker.call("GET", path, headers=[("If-None-Match", tag)])
        same((again.status, again.body, again.header("ETag")), (304, b"", tag))
        same(hx.broker.call("GET", path, headers=[("If-None-Match", '"other"')]).status, 200)
        same(again.header("Cache-Control"), "no-cache")


@test
def the_pages_may_load_and_run_nothing_but_themselves(_q):
    for path in ("/", "/ui/app.js", "/ui/style.css"):
        reply = hx.broker.get(path)
        same(reply.header("Content-Security-Policy"),
             "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
             "form-action 'none'; frame-ancestors 'none'")
        same(reply.header("X-Content-Type-Options"), "nosniff")
        same(reply.header("Referrer-Policy"), "no-referrer")
        same(reply.header("X-Frame-Options"), "DENY")
        same(reply.header("Cross-Origin-Opener-Policy"), "same-origin")
        same(reply.header("Cross-Origin-Resource-Policy"), "same-origin")
    for name in FILES:
        text = source(name).decode()
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|DOMParser)\b", text), f"{name} parses markup"
        same(re.findall(r"(?:src|href|from|import|url)\s*[=(]?\s*[\"']https?:", text), [], name)
        same(re.findall(r"localStorage|document\.cookie|indexedDB|new EventSource|sendBeacon", text), [], name)  # where a token could go
        assert name == "deeds.js" or "sessionStorage" not in text, name  # there it is the name one gave
    same(re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", source("index.html").decode()), [])


@test
def the_whole_dashboard_is_below_150_kib(_q):
    whole = sum(len(hx.broker.get(f"/ui/{name}").body) for name in FILES)
    assert whole < WHOLE_BYTES_MAX, whole


@test
def what_a_module_imports_is_there_and_preloaded(_q):
    page = source("index.html").decode()
    for name in FILES:
        for wanted in re.findall(r"from '\./([^']+)'", source(name).decode()):
            assert wanted in FILES, f"{name} imports {wanted}"
            assert f'href="/ui/{wanted}"' in page, f"{wanted} is not preloaded: the first view waits for it"


hx.main()
