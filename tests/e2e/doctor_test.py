#!/usr/bin/env python3
"""hapax doctor: each finding is made to appear by its cause, and a sound broker has none."""
import contextlib
import glob
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time

import hx
from hx import same, test
from receiver import Answer, Receiver

STAMP = "2[0-9]{3}-[0-9-]{5}T[0-9:]{8}Z"
RUNBOOKS = os.path.join(hx.ROOT, "docs", "runbooks")


def doctor(b, *args, code=None):
    env = {n: v for n, v in os.environ.items() if not n.startswith("HAPAX")}
    done = subprocess.run([hx.HAPAX, "doctor", "--url", b if isinstance(b, str) else b.url, *args], env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=hx.TIMEOUT)
    if code is not None:
        same(done.returncode, code, done.stdout.decode() + done.stderr.decode())
    return done.stdout.decode()


def found(b, *args, code=None):
    """The findings by code; the first of each."""
    answer = json.loads(doctor(b, "--json", *args, code=code))
    out = {}
    for one in answer["findings"]:
        out.setdefault(one["code"], one)
        if one.get("runbook"):
            assert os.path.exists(os.path.join(RUNBOOKS, one["runbook"])), one
    same(answer["ok"], not any(one["level"] == "wrong" for one in answer["findings"]))
    return out


@contextlib.contextmanager
def machine(b, kernel=(), filesystem="ext4"):
    """A machine's /proc and /sys as the doctor reads them, with the broker's data on that file system."""
    files = {"proc/sys/vm/overcommit_memory": "0", "sys/kernel/mm/transparent_hugepage/defrag": "always defer [madvise] never",
             "proc/sys/net/core/somaxconn": "4096", f"proc/{b.process.pid}/comm": "hapaxd",
             f"proc/{b.process.pid}/mounts": f"root / ext4 rw 0 0\nd {os.path.realpath(b.data)} {filesystem} rw 0 0\nother /other nfs rw 0 0", **dict(kernel)}
    with tempfile.TemporaryDirectory(prefix="hapax-e2e-") as root:
        for name, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text + "\n")
        fds = os.path.join(root, "proc", str(b.process.pid), "fd")
        os.makedirs(fds)
        os.symlink("socket:[1]", os.path.join(fds, "3"))
        os.symlink(os.path.join(os.path.realpath(b.data), "lock"), os.path.join(fds, "7"))
        yield root


@test
def a_sound_broker_on_a_sound_machine_has_nothing_wrong():
    room = os.statvfs(tempfile.gettempdir())
    if room.f_bavail * 8 < room.f_blocks:
        raise hx.Skip("this machine's disk is nearly full, and that would be found")
    with hx.Broker() as b, machine(b) as root:
        b.put("q", "k")
        hx.until(lambda: b.get("/v1/alerts").json()["judged"], "the broker has looked")
        have = found(b, "--root", root, code=0)
        same(set(have), set())
        assert doctor(b, "--root", root).splitlines()[-1].startswith("nothing is wrong"), doctor(b, "--root", root)


@test
def a_root_that_is_not_there_is_named():
    with hx.Broker() as b, tempfile.TemporaryDirectory(prefix="hapax-e2e-") as root:
        for nowhere in (root, os.path.join(root, "nope")):
            summary = found(b, "--root", nowhere)["elsewhere"]["summary"]
            assert f"no {nowhere}/proc" in summary and "another machine" not in summary, summary


@test
def kernel_settings_that_hurt_are_told_with_what_to_do():
    bad = {"proc/sys/vm/overcommit_memory": "2", "sys/kernel/mm/transparent_hugepage/defrag": "[always] defer madvise never",
           "proc/sys/net/core/somaxconn": "16"}
    with hx.Broker() as b, machine(b, bad) as root:
        have = found(b, "--root", root, code=1)
        same(have["overcommit_strict"]["level"], "wrong")
        assert {"hugepages_defrag", "backlog_small"} <= set(have), have
        assert "sysctl net.core.somaxconn=" in have["backlog_small"]["remedy"]


@test
def data_that_is_not_on_a_disk_is_told_by_its_file_system():
    with hx.Broker() as b:
        for kind, code in (("tmpfs", "data_in_memory"), ("overlay", "data_in_memory"), ("nfs4", "data_on_network"), ("btrfs", "data_copy_on_write")):
            with machine(b, filesystem=kind) as root:
                have = found(b, "--root", root)
                assert kind in have[code]["summary"] and b.data in have[code]["summary"], have


@test
def data_on_a_real_tmpfs_is_found_through_the_brokers_open_files():
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], stdout=subprocess.PIPE, check=False).stdout
    if kind.strip() != b"tmpfs" or os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize < 600 << 20:
        raise hx.Skip("no large tmpfs at /dev/shm")
    data = tempfile.mkdtemp(prefix="hapax-e2e-", dir="/dev/shm")
    try:
        with hx.Broker(data=data) as b:
            assert data in found(b, code=1)["data_in_memory"]["summary"]
    finally:
        subprocess.run(["rm", "-rf", data], check=False)
        for left in glob.glob(data + "*"):
            os.unlink(left)


@test
def a_disk_without_room_is_told_first():
    """A small file system of its own, filled by messages until the broker refuses one."""
    with tempfile.TemporaryDirectory(prefix="hapax-e2e-") as home:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "hapax", home], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0:
            raise hx.Skip("cannot mount")
        try:
            with hx.Broker(data=os.path.join(home, "data"), log=home + ".log") as b:
                n = 0
                while b.send("q", f"k{n}", b"x" * 500000).status != 507:
                    n += 1
                hx.until(lambda: "event=disk_short" in b.stderr(), "the log says so too")
                have = found(b, code=1)
                assert have and list(have)[0] in ("disk_short", "disk_low"), have
                same(have[list(have)[0]]["runbook"], "disk-full.md")
                if "disk_short" in have:
                    assert list(have)[0] == "disk_short"
        finally:
            subprocess.run(["umount", "-l", home], check=False)
            os.unlink(home + ".log")


@test
def memory_that_is_short_is_told():
    with hx.Broker(options=["--memory", "64MiB"]) as b, machine(b) as root:
        n = 0
        while True:
            reply = b.batch("q", [{"key": f"{n}-{i}", "payload": ""} for i in range(10000)])
            n += 1
            if b'"status":507' in reply.body:
                break
            assert n < 100, "the limit is never reached"
        have = found(b, "--root", root, code=1)
        assert "64 MiB" in have["memory_short"]["summary"], have
        same(have["memory_short"]["runbook"], "memory.md")


@test
def few_open_files_are_told():
    with hx.Broker(wrapper=["sh", "-c", 'ulimit -n 200; exec "$@"', "sh"]) as b, machine(b) as root:
        assert "200" in found(b, "--root", root)["files_few"]["summary"]


@test
def clients_that_were_turned_away_are_told():
    with hx.Broker(config="auto_create: true\nlimits: {per_address: {rate: 40/s}}\n") as b, machine(b) as root:
        assert "turned_away" not in found(b, "--root", root)
        hx.until(lambda: 429 in [b.send("q", "k").status for _ in range(100)], "one is refused")
        advice = hx.until(lambda: found(b, "--root", root).get("turned_away"), "it is told")
        assert re.search("[1-9][0-9]* at a limit of their own", advice["summary"]), advice
        assert advice["runbook"].endswith("overload.md"), advice


@test
def queues_that_wait_for_somebody_are_told_as_advice():
    with hx.Broker() as b, machine(b) as root:
        b.rules("q", on_unknown="hold", limits={"pending": 3})
        b.put("q", "a", "b", "c")
        same(b.send("q", "d").status, 429)
        b.ok("nack", b.one("q"), **{"class": "poison"}, reason="x")
        b.ok("nack", b.one("q"), **{"class": "unknown"}, reason="x")
        b.post("/v1/queues/q/pause", {"by": "ada"})
        have = found(b, "--root", root)
        for code in ("paused", "held", "dead", "pressed"):
            assert "Queue q " in have[code]["summary"] and have[code]["level"] == "advice", have


@test
def a_target_that_fails_is_wrong_before_its_alert_fires_and_a_paused_one_is_advice():
    to = {"url": "http://127.0.0.1:1/", "allow_private": True, "circuit": {"of": 2}}
    with hx.Broker() as b, machine(b) as root:
        for q in ("well", "down", "halted"):
            b.rules(q, deliver=to)
        b.post("/v1/targets/halted/pause", {"by": "ada", "note": "INC-42"})
        told = found(b, "--root", root)["target_paused"]
        assert re.fullmatch(f"The target of halted is paused since {STAMP}, and 0 messages wait: by ada: INC-42.", told["summary"]), told
        assert told["runbook"].endswith("push-down.md") and told["level"] == "advice", told
        b.put("down", "a", "b", "c")
        told = hx.until(lambda: found(b, "--root", root).get("target_down"), "it is told")
        assert re.match(f"The target of down fails since {STAMP}, and 3 messages wait: too many calls failed: not sent: ", told["summary"]), told
        same((told["level"], told["runbook"]), ("wrong", "push-down.md"))
        assert "hapax push test" in told["remedy"] and "hapax push resume" in told["remedy"], told
        assert "push_down" not in [a["name"] for a in b.get("/v1/alerts").json()["items"]], "the alert takes five minutes"
        assert re.match("[1-9][0-9]* things? (is|are) wrong", doctor(b, "--root", root, code=1).splitlines()[-1]), told


@test
def a_target_that_is_gone_is_wrong_until_somebody_has_decided():
    with hx.Broker() as b, Receiver(Answer(410)) as r, machine(b) as root:
        b.rules("q", deliver={"url": r.url, "allow_private": True})
        b.put("q", "k")
        told = hx.until(lambda: found(b, "--root", root).get("target_gone"), "it is told")
        assert re.fullmatch(f"The target of q is paused since {STAMP}, and 1 message waits: it answered 410 Gone, and nobody has decided yet.", told["summary"]), told
        same((told["level"], told["runbook"]), ("wrong", "push-down.md"))
        b.restart()
        told = found(b, "--root", root, code=1)["target_gone"]["summary"]
        same(told, "The target of q is paused, and 1 message waits: it answered 410 Gone, and nobody has decided yet.")
        b.post("/v1/targets/q/pause", {"by": "ada", "note": "INC-42"})
        have = found(b, "--root", root)
        assert "target_gone" not in have and have["target_paused"]["level"] == "advice", have


@test
def a_target_that_is_being_tried_still_fails_and_says_why():
    item = {"queue": "down", "state": "half_open", "since": "2026-01-31T12:00:00.000Z", "why": "one call is under way", "waiting": 1,
            "last_error": {"detail": "connection refused"}}
    with hx.answering({**pages({"items": []}), "/v1/targets": json.dumps({"items": [item]})}) as url:
        told = found(url, code=1)["target_down"]["summary"]
        same(told, "The target of down fails since 2026-01-31T12:00:00Z, and 1 message waits: one call is under way; before: connection refused.")


@test
def a_reload_that_was_refused_is_told_until_one_is_in_force():
    line = "queues: {q: {}}\n"
    with hx.Broker(config=line) as b, machine(b) as root:
        assert "config_refused" not in found(b, "--root", root)
        b.reload("queus: {q: {}}\n")
        told = hx.until(lambda: found(b, "--root", root).get("config_refused"), "it is told")
        same(told["level"], "wrong")
        b.reload(line)
        hx.until(lambda: "config_refused" not in found(b, "--root", root), "it is mended")


@test
def tokens_nobody_knows_and_a_tenant_at_its_limit_are_told():
    config = ('auto_create: true\nanonymous: [admin]\ntenants: {shop: {prefix: "shop.", limits: {pending: 2}}}\n'
              f'tokens: [{{name: a, sha256: ["{"0" * 64}"], allow: [observe]}}]\n')
    with hx.Broker(config=config) as b, machine(b) as root:
        assert not {"strangers", "tenant_full"} & set(found(b, "--root", root))
        b.put("shop.q", "a", "b")
        same(b.send("shop.q", "c").status, 429)
        same(b.call("GET", "/v1/queues", headers=[("Authorization", "Bearer hx_nobodys")]).status, 401)
        have = found(b, "--root", root)
        assert "Tenant shop has all its limits.pending allows: 2 of 2" in have["tenant_full"]["summary"], have
        assert "does not know 1 times" in have["strangers"]["summary"], have


@test
def a_tenant_is_told_nothing_untrue_of_what_it_may_not_see():
    token = "hx_a-tenants"
    config = ('auto_create: true\ntenants: {shop: {prefix: "shop."}}\nanonymous: [send]\n'
              f'tokens: [{{name: a, sha256: ["{hashlib.sha256(token.encode()).hexdigest()}"], allow: [observe], tenant: shop}}]\n')
    with hx.Broker(config=config) as b:
        b.put("shop.q", "a", "b")
        told = found(b, "--api-token", token)["elsewhere"]["summary"]
        assert "another machine" not in told, told
        frame = subprocess.run([hx.HAPAX, "top", "--once", "--url", b.url, "--api-token", token], stdout=subprocess.PIPE, timeout=hx.TIMEOUT)
        assert b"shop.q" in frame.stdout and b"pending 0" not in frame.stdout and b"up 0" not in frame.stdout, frame.stdout


@test
def a_relay_in_trouble_is_told_with_its_own_words():
    with hx.Broker(config='relay: [{dsn: "host=127.0.0.1 port=1 connect_timeout=2", queue: orders}]\nqueues: {orders: {}}\n') as b:
        hx.until(lambda: b"trouble" in b.get("/v1/stats").body, "the relay has found no database")
        have = found(b, code=1)
        assert have["relay_trouble"]["summary"].startswith("The relay to orders: "), have
        same(have["relay_trouble"]["runbook"], "relay-stuck.md")


@test
def a_broker_that_is_not_there_is_told_with_its_page_and_exit_3():
    have = found("http://127.0.0.1:1", code=3)
    same(set(have), {"unreachable"})
    same(have["unreachable"]["runbook"], "broker-does-not-start.md")


# ---- a broker of which only the answers matter

def pages(alerts):
    out = {"/v1/stats": '{"version":"x"}', "/v1/queues": '{"items":[]}'}
    return {**out, "/v1/alerts": json.dumps(alerts)} if alerts else out


@test
def alerts_that_fire_are_told_with_page_and_owner():
    def alert(name, state, **more):
        return {"name": name, "state": state, "since": "2026-01-31T12:00:00.000Z", "value": 1, "threshold": 0, "summary": f"{name} it is",
                "runbook": "docs/runbooks/lag-alert.md", "count_1h": 1, **more}
    items = [alert("lag", "firing", queue="payments", key="order-1", owner="payments-oncall"), alert("disk_low", "pending"), alert("sync_slow", "resolved")]
    with hx.answering(pages({"items": items})) as url:
        have = found(url, code=1)
        same(have["alert"]["summary"], "lag of payments, order-1: lag it is")
        same(have["alert"]["runbook"], "lag-alert.md")
        assert "payments-oncall" in have["alert"]["remedy"]
        assert "alerts_unknown" not in have and "elsewhere" in have, have


@test
def an_alert_of_a_real_broker_is_told_and_logged():
    with hx.Broker() as b:
        b.put("q", "k")
        m = b.one("q")
        b.ok("release", m)
        b.ok("ack", b.one("q"), effect_id="tx-1")
        b.settle("ack", m, effect_id="tx-2")
        have = hx.until(lambda: found(b).get("alert"), "two effects of one key are an alert")
        assert have["summary"].startswith("doubled_effect of q, k: ") and have["runbook"] == "duplicate-effect.md", have
        hx.until(lambda: "alert=doubled_effect" in b.stderr(), "and a line of the log")


@test
def a_broker_that_has_not_judged_yet_is_not_called_quiet():
    with hx.answering(pages({"items": [], "judged": False})) as url:
        same(found(url, code=0)["alerts_not_judged"]["summary"], "The broker has not judged its alerts yet.")
    with hx.answering(pages({"items": [], "judged": True})) as url:
        assert "alerts_not_judged" not in found(url, code=0)


@test
def what_is_no_broker_is_not_said_to_be_silent():
    with hx.answering({}, version="HTTP/1.0") as url:
        told = found(url, code=3)["unreachable"]["summary"]
        assert told.startswith(f"What answers there is no Hapax broker: {url}: "), told


@test
def a_broker_without_alerts_is_said_to_be_older():
    with hx.answering(pages(None)) as url:
        assert "older version" in found(url, code=0)["alerts_unknown"]["remedy"]


@test
def a_broker_whose_clock_is_wrong_is_told():
    def at(seconds):
        return {**pages({"items": []}), "/v1/stats": json.dumps({"now": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() + seconds))})}
    for seconds, word in ((-7200, "behind"), (7200, "ahead")):
        with hx.answering(at(seconds)) as url:
            said = found(url, code=1)["clock_differs"]["summary"]
            assert word in said, said
    with hx.Broker() as b:
        assert "clock_differs" not in found(b)
        assert abs(hx.stamp(b.get("/v1/stats").json()["now"]) - time.time()) < hx.TIMEOUT


@test
def it_fits_80_columns_whatever_it_is_told():
    items = [{"name": "lag", "state": "firing", "queue": "q" * 60, "summary": "word " * 100, "runbook": "lag-alert.md"}]
    with hx.answering(pages({"items": items})) as url:
        wide = [line for line in doctor(url).splitlines() if len(line) > 80]
        same(wide, [])


hx.main(shared=False, threads=4)
