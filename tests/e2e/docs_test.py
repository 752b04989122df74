#!/usr/bin/env python3
"""docs/HTTP.md: nothing the broker has is missing, nothing it lacks is promised, and every example is what happens.
LIFECYCLE.md: its moves are the core's."""
import os
import re
import shlex

import hx
from hx import problem, same, test

PAGE = open(os.path.join(hx.ROOT, "docs", "HTTP.md"), encoding="utf-8").read()
ADDRESS = "http://127.0.0.1:4279"


def table(name, pattern):
    return re.findall(pattern, open(os.path.join(hx.ROOT, "src", "broker", name)).read(), re.M)


@test
def every_problem_is_in_the_table_as_the_broker_has_it():
    have = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (yes|no) \| (.+) \|$", PAGE, re.M)
    want = [(code, status, "yes" if retryable == "true" else "no", title) for code, status, retryable, title in
            table("problem.def", r'^PROBLEM\((\w+), (\d+), (\w+), "(.*)"\)$')]
    assert len(want) > 20
    same(sorted(have), sorted(want))


@test
def every_route_is_in_the_table_and_no_other():
    have = [(method, re.sub(r"\{\w+\}", "*", path)) for method, path in re.findall(r"^\| `([A-Z]+) /([^`?]*)` \|", PAGE, re.M)]
    want = table("route.def", r'^ROUTE\(HTTP_(\w+), "(.*?)"')
    assert len(want) > 20
    same(sorted(have), sorted(want))


@test
def every_route_has_its_own_words_below_the_table():
    text = PAGE[PAGE.index("## How things are written"):]
    for method, path in table("route.def", r'^ROUTE\(HTTP_(\w+), "(.*?)"'):
        pattern = re.escape(f"`{method} /{path}").replace(r"\*", r"\{\w+\}") + r"[`?]"
        assert re.search(pattern, text), f"{method} /{path}"


@test
def every_call_refuses_a_parameter_it_does_not_have_and_takes_those_it_has(q):
    routes = table("route.def", r'^ROUTE\(HTTP_(\w+), "(.*?)", \w+, \w+, "(.*?)",')
    same(len(routes), len(table("route.def", "^ROUTE")))
    for method, path, names in routes:
        if names == "*":
            continue
        path = "/" + path.replace("*", q)
        refused = problem(hx.broker.call(method, f"{path}?no_such_thing=1", None if method == "GET" else b""), 400, "param_invalid")
        assert '"no_such_thing"' in refused["detail"], (path, refused)
        for name in names.split():
            assert f"`{name}`" in PAGE or f"{name}=" in PAGE or f"?{name}" in PAGE, (path, name)
            reply = hx.broker.call("HEAD" if path == "/v1/events" else method, f"{path}?{name}=", None if method == "GET" else b"")
            assert b"this call has no" not in reply.body, (path, name, reply)


@test
def every_link_inside_the_page_leads_somewhere():
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.+)$", PAGE, re.M)}
    same({link for link in re.findall(r"\]\(#([^)]+)\)", PAGE)} - anchors, set())


@test
def every_event_of_the_log_is_in_its_table_and_no_other():
    logs = open(os.path.join(hx.ROOT, "docs", "LOGS.md"), encoding="utf-8").read()
    have = {name for row in re.findall(r"^\| (`.+?`) \|", logs, re.M) for name in re.findall(r"`(\w+)`", row)}
    want = set()
    for folder, _, files in os.walk(os.path.join(hx.ROOT, "src")):
        for name in files:
            text = open(os.path.join(folder, name), encoding="utf-8").read() if name.endswith(".c") else ""
            want |= set(re.findall(r'\b(?:log_event|log_line|report|report_after)\((?:b, |c->b, )?(?:[^"(),]*\bLOG_\w+|level),\s*"(\w+)"', text))
            want |= set(re.findall(r'\blog_last_words\(\s*"(\w+)"', text))
    assert len(want) > 10
    same(sorted(have), sorted(want))


def evidence(text):
    """What SECURITY.md names in backticks as a file, and as a test of one."""
    tests = "e2e|unit|web|crash|gate|lint|fuzz|sim|mutants"
    for named in re.findall(r"`([^`]+)`", text):
        in_tests = re.fullmatch(rf"({tests})/([\w-]+)(?: (.+))?", named)
        if in_tests:
            yield "tests/" + in_tests.group(1), in_tests.group(2), in_tests.group(3)
        elif re.fullmatch(r"(src|docs|tests|tools|packaging)(/[\w.-]+)+|[A-Z]+\.md|Makefile|hapax\.example\.yaml", named):
            yield os.path.dirname(named), os.path.basename(named), None


@test
def every_evidence_in_the_security_page_is_there():
    page, seen = open(os.path.join(hx.ROOT, "docs", "SECURITY.md"), encoding="utf-8").read(), 0
    for folder, name, function in evidence(page):
        files = [f for f in os.listdir(os.path.join(hx.ROOT, folder)) if f == name or os.path.splitext(f)[0] == name]
        assert files, f"{folder}/{name} is not there"
        texts = [open(os.path.join(hx.ROOT, folder, f), encoding="utf-8").read() for f in files if function]
        assert not function or any(function in text for text in texts), f"{folder}/{name} has no {function}"
        seen += 1
    assert seen > 100, seen


@test
def every_requirement_has_one_line_and_a_verdict():
    page = open(os.path.join(hx.ROOT, "docs", "SECURITY.md"), encoding="utf-8").read()
    rows = re.findall(r"^\| ([0-9][0-9., –]*) \| (.+?) \| (\S+) \| (.*) \|$", page[page.index("## ASVS"):], re.M)
    same({verdict for _, _, verdict, _ in rows} - {"yes", "part", "no", "you", "–"}, set())
    for numbers, _, verdict, why in rows:
        assert why.strip() or verdict == "–", numbers
    numbers = [n for row in rows for n in row[0].split(", ")]
    same(sorted(numbers), sorted(set(numbers)), "a requirement twice")
    same({n.split(".")[0] for n in numbers}, {"1", "2", "4", "6", "7", "8", "11", "12", "13", "14", "15", "16"})


@test
def the_table_of_moves_is_the_one_the_core_checks():
    life = open(os.path.join(hx.ROOT, "docs", "LIFECYCLE.md"), encoding="utf-8").read()
    have = set()
    for before, after, record in re.findall(r"^\| (.+?) \| (.+?) \| ([A-Z]+) \| .+ \|$", life, re.M):
        for b in before.replace("–", "none").split(", "):
            have |= {(b.upper(), record, a.upper()) for a in after.split(", ")}
    moves = open(os.path.join(hx.ROOT, "src", "core", "moves.def")).read()
    want = re.findall(r"^MOVE\((\w+), (\w+), (\w+)\)$", moves, re.M)
    assert len(want) > 40
    same(sorted(have), sorted(want))


# ---- the examples

def examples():
    """(command, expected text) of every console block, in order."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            yield command, expected


def curl(command, known):
    """The few of curl's ways the page uses; needs no curl."""
    for name, value in known.items():
        command = command.replace("$" + name, value)
    command = re.sub(r"\$'([^']*)'", lambda m: shlex.quote(m.group(1).replace("\\n", "\n")), command)
    words = shlex.split(command)
    same(words[:2], ["curl", "-i"])
    method, headers, body, url = None, [], None, None
    rest = iter(words[2:])
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-H":
            headers.append(tuple(next(rest).split(": ", 1)))
        elif word in ("-d", "--data-binary"):
            body = next(rest).encode()
        else:
            assert url is None and word.startswith(ADDRESS), word
            url = word[len(ADDRESS):]
    method = method or ("POST" if body is not None else "GET")
    return hx.broker.call(method, url, body if body is not None or method == "GET" else b"", headers)


def matches(have, want, where="body"):
    """The ellipsis stands for anything; everything else is meant."""
    if want == "…":
        return
    if isinstance(want, dict):
        same(sorted(have), sorted(want), f"members of {where}")
        for name in want:
            matches(have[name], want[name], f"{where}.{name}")
    elif isinstance(want, list) and want != ["…"]:
        same(len(have), len(want), where)
        for number, (h, w) in enumerate(zip(have, want)):
            matches(h, w, f"{where}[{number}]")
    elif want != ["…"]:
        same(have, want, where)


def remember(value, known):
    """The last token and id shown are what the next command means by $TOKEN and $ID."""
    if isinstance(value, list):
        for item in value:
            remember(item, known)
    elif isinstance(value, dict):
        known.update((name.upper(), value[name]) for name in ("token", "id") if name in value)
        remember(value.get("messages"), known)


def check(command, expected, known):
    head, _, body = expected.partition("\n\n")
    body = re.sub(r"([:\[])…", r'\1"…"', body).replace("{…}", '"…"')  # also where no string stands
    for name, value in known.items():
        body = body.replace("$" + name, value)
    reply = curl(command, known)
    status, *fields = head.split("\n")
    same(reply.line, status)
    for field in fields:
        name, value = field.split(": ", 1)
        same(reply.header(name), value, name)
    if reply.header("Content-Type") == "application/x-ndjson":
        have, want = reply.lines(), [hx.strict_json(line.encode()) for line in body.splitlines()]
    else:
        have, want = reply.json(), hx.strict_json(body.encode())
    matches(have, want)
    remember(have, known)


@test
def every_example_is_what_happens():
    known, count = {}, 0
    for command, expected in examples():
        try:
            check(command, expected, known)
        except AssertionError as error:
            raise AssertionError(f"$ {command}\n{error}") from None
        count += 1
    assert count >= 15, count


hx.main()
