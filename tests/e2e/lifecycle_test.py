#!/usr/bin/env python3
"""Starting, stopping, starting again: what survives, what is refused, and in which words."""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import hx
from hx import Broker, members, problem, same, stamp, test


def run(*args, env=None, timeout=30):
    """hapaxd as a command that is expected to end by itself."""
    done = subprocess.run([hx.HAPAXD, *args], capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, **(env or {})))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Directory:
    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="hapax-e2e-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# ---- stopping

@test
def sigterm_answers_waiting_polls_and_exits_0():
    for how in (signal.SIGTERM, signal.SIGINT):
        with Broker() as b:
            b.put("q2", "k")
            polls = [b.connect() for _ in range(3)]
            for c in polls:
                c.start("POST", "/v1/queues/q/receive?wait=60s", b"")
            sender, result = b.connect(), b.connect()
            sender.start("POST", "/v1/queues/q2/messages", b"x", [("Idempotency-Key", "s"), ("Prefer", "wait=60")])
            result.start("GET", "/v1/queues/q2/keys/k/result?wait=60s")
            hx.waiting(5, of=b)
            b.process.send_signal(how)
            for c in polls:
                reply = c.reply()
                same((reply.status, reply.json()), (200, {"messages": []}))
            same(sender.reply().status, 202)
            same(result.reply().status, 409)
            for c in polls + [sender, result]:
                same(c.rest(), b"")
                c.close()
            same(b.wait_exit(), 0)


@test
def sigterm_on_an_idle_broker_with_open_connections_exits_0():
    with Broker() as b:
        conns = [b.connect() for _ in range(5)]
        same(conns[0].request("GET", "/healthz").status, 200)
        half = b.connect()
        half.write(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        same(b.stop(), 0)
        for c in conns + [half]:
            c.close()


@test
def a_request_that_arrives_whole_only_while_stopping_is_told_to_come_again():
    with Broker() as b:
        with b.connect() as c:
            c.write(b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\nContent-Length: 5\r\n\r\nhe")
            with b.connect() as idle:
                same(idle.request("GET", "/healthz").status, 200)
                b.process.send_signal(signal.SIGTERM)
                same(idle.rest(), b"")  # it is stopping now
            c.write(b"llo")
            reply = c.reply()
        same(b.wait_exit(), 0)
        b.start()
        if reply.status == 202:
            same(b.key("q", "k")["state"], "pending")
        else:
            problem(reply, 503, "shutting_down")
            same(reply.header("Retry-After"), "1")
            problem(b.get("/v1/queues/q/keys/k"), 404, "no_such_queue")


@test
def sighup_does_not_end_it():
    with Broker() as b:
        b.process.send_signal(signal.SIGHUP)
        same(b.get("/healthz").status, 200)
        same(b.stop(), 0)


# ---- starting again

def fill(b):
    """One message in each state; what must be there afterwards."""
    b.put("q", "pending", payload="p", headers=[("Hapax-Attr-a", "b"), ("Content-Type", "text/x"), ("Hapax-Request-Id", "r1")])
    b.send("q", "pending", "p")
    b.put("done", "k")
    b.ok("ack", b.one("done"), result="r", effect_id="e1")
    b.put("rejected", "k")
    b.ok("nack", b.one("rejected"), **{"class": "rejected", "reason": "no", "result": {"c": 1}})
    b.put("dead", "k")
    b.ok("nack", b.one("dead"), **{"class": "poison", "reason": "bad"})
    cancelled = b.put("cancelled", "k")
    b.post(f"/v1/queues/cancelled/messages/{cancelled}/cancel", {"by": "ann", "note": "why"})
    b.put("leased", "k")
    m = b.one("leased", lease="60s", consumer="c1")
    b.ok("step", m, name="s1", result="sr")
    b.post("/v1/queues/paused/pause")
    return m


def views(b):
    keys = [("q", "pending")] + [(q, "k") for q in ("done", "rejected", "dead", "cancelled", "leased")]
    got = {q: b.key(q, k) for q, k in keys}
    for view in got.values():
        for moving in ("lease_expires_at", "expires_at"):
            view.pop(moving, None)
        view["why"] = re.sub(r"for another \S+ \w+", "for a while", view["why"])  # what is left of its lease
    return got


def restarted_with(how, after):
    with Broker() as b:
        m = fill(b)
        before = views(b)
        # An arrival is written down at most a second late; a poll that waits longer than that sees it done.
        same(b.receive("idle", wait="1500ms"), [])
        same(b.stop(how), after)
        b.start()
        same(views(b), before)
        goes_on(b, m)


def goes_on(b, m):
    members(b.send("done", "k").json(), outcome="duplicate", state="done", id=b.key("done", "k")["id"])
    same(b.send("done", "k").json()["result"]["body"], "r")
    problem(b.send("done", "k", "other"), 422, "key_reused")
    same(b.queue("paused")["paused"], True)
    members(b.one("q"), key="pending", payload="p", attrs={"a": "b"}, content_type="text/x", attempt=1)
    same(b.receive("leased"), [])
    members(b.ok("step", m, name="s1"), status="duplicate")
    members(b.ok("ack", m, result="after"), state="done")
    members(b.ok("ack", m), state="done", duplicate=True)
    b.put("q2", "x")
    assert int(b.one("q2")["fence"]) > int(m["fence"])


@test
def everything_survives_a_clean_restart():
    restarted_with(signal.SIGTERM, 0)


@test
def everything_acknowledged_survives_kill_9():
    restarted_with(signal.SIGKILL, -signal.SIGKILL)


CHURN = "x" * 1000000


def clean_segments(b):
    """Megabytes that are settled at once: the segments they fill are as good as empty, and get cleaned."""
    for number in range(300):
        b.batch("churn", [{"key": f"{number}-{n}", "payload": CHURN} for n in range(7)])
        while taken := b.receive("churn", max=7):
            b.post("/v1/ack", [{"token": t["token"]} for t in taken])
        if number % 10 == 0 and b.get("/v1/stats").json()["journal"]["compacted_segments"]:
            break
    assert b.get("/v1/stats").json()["journal"]["compacted_segments"], "nothing was cleaned: the test showed nothing"


@test
def an_outcome_outlives_its_replay_through_cleaning_and_kill_9():
    with Broker() as b:
        result = "r" * 500000
        b.rules("pay", keep_payload="1h")
        b.put("pay", "k")
        b.ok("ack", b.one("pay"), result=result, effect_id="ch_1")
        replay = b.post("/v1/queues/pay/keys/k/replay").json()
        clean_segments(b)
        b.kill()
        b.start()
        members(b.key("pay", "k"), state="pending", generation=1)
        members(b.post(f"/v1/queues/pay/messages/{replay['id']}/cancel").json(), state="done", restored=True)
        b.kill()
        b.start()
        members(b.key("pay", "k"), state="done", effect_ids=["ch_1"])
        same(b.get("/v1/queues/pay/keys/k/result").body.decode(), result)


@test
def everything_known_of_a_key_survives_the_cleaning_of_its_segment():
    with Broker() as b:
        m = fill(b)
        for number in range(12):
            b.send("done", "k", headers=[("Hapax-Request-Id", f"r{number}")])
        problem(b.send("done", "k", "other"), 422, "key_reused")
        b.send("rejected", "k")
        before = views(b)
        clean_segments(b)
        same(views(b), before)
        b.kill()
        b.start()
        same(views(b), before)
        same(b.send("churn", "0-0", CHURN).json()["outcome"], "duplicate")
        goes_on(b, m)


@test
def what_was_answered_just_before_kill_9_is_there():
    with Broker() as b:
        for round_number in range(5):
            got = b.batch("q", [{"key": f"r{round_number}-{n}", "payload": ""} for n in range(50)]).lines()
            b.kill()
            same({g["status"] for g in got}, {202})
            b.start()
            same(b.queue("q")["pending"], 50 * (round_number + 1))
            same({g["outcome"] for g in b.batch("q", [{"key": f"r{round_number}-{n}", "payload": ""} for n in range(50)]).lines()}, {"duplicate"})


@test
def fences_grow_over_restarts_of_both_kinds():
    with Broker() as b:
        b.put("q", "k")
        last = 0
        for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
            m = b.one("q", start="explicit")
            assert int(m["fence"]) > last, "a fence repeated or fell"
            last = int(m["fence"])
            b.ok("release", m)
            b.stop(how)
            b.start()
        assert int(b.one("q")["fence"]) > last


@test
def a_stale_token_stays_stale_over_a_restart():
    with Broker() as b:
        b.put("q", "k")
        old = b.one("q", lease="1s")
        new = b.one("q", lease="60s")
        b.kill()
        b.start()
        problem(b.settle("ack", old, effect_id="e-old"), 409, "fenced")
        same(b.ok("ack", new)["state"], "done")
        same(b.key("q", "k")["effect_ids"], ["e-old"])


@test
def a_repeated_settling_call_is_known_after_kill_9():
    with Broker() as b:
        taken = {}
        for verb in ("ack", "nack", "release"):
            b.put(verb, "k")
            taken[verb] = b.one(verb, lease="60s")
        b.post("/v1/queues/release/pause")
        more = {"ack": {"result": "r"}, "nack": {"class": "transient", "delay": "1h"}, "release": {}}
        first = {verb: b.ok(verb, m, **more[verb]) for verb, m in taken.items()}
        b.kill()
        b.start()
        for verb, m in taken.items():
            members(b.ok(verb, m, **more[verb]), duplicate=True, state=first[verb]["state"], id=m["id"])
        members(b.key("nack", "k"), failures=1)


@test
def a_group_keeps_its_order_over_kill_9():
    with Broker() as b:
        b.batch("q", [{"key": f"k{n}", "payload": "", "group": "g"} for n in range(4)])
        for number in range(4):
            m = b.one("q", lease="60s")
            same(m["key"], f"k{number}")
            b.kill()
            b.start()
            same(b.receive("q"), [], "one in flight, also after a restart")
            b.ok("ack", m)


@test
def a_live_lease_gets_its_full_length_again_at_a_restart():
    with Broker() as b:
        b.put("q", "k")
        m = b.one("q", lease="6s")
        same(b.receive("q", wait="3200ms"), [])
        b.kill()
        b.start()
        same(b.receive("q", wait="3200ms"), [], "6.4 s after the lease of 6 s was taken")
        same(b.ok("ack", m)["state"], "done")


@test
def a_delay_counts_the_time_the_broker_was_down():
    with Broker() as b:
        b.put("q", "long", headers=[("Hapax-Delay", "1h")])
        due = stamp(b.key("q", "long")["not_before"])
        b.put("q", "short", headers=[("Hapax-Delay", "3s")])
        same(b.stop(), 0)
        time.sleep(3)  # being down is the event
        b.start()
        assert abs(stamp(b.key("q", "long")["not_before"]) - due) < 0.5
        same(b.one("q", wait="1s")["key"], "short")


@test
def a_stopped_broker_does_not_expire_leases_nobody_could_settle():
    with Broker() as b:
        b.put("q", "k")
        m = b.one("q", lease="2s")
        b.process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # being stopped is the event
        b.process.send_signal(signal.SIGCONT)
        same(b.ok("ack", m)["state"], "done")
        same(b.key("q", "k")["attempts"][0]["attempt"], 1)


@test
def counts_of_duplicates_are_exact_over_a_clean_restart():
    with Broker() as b:
        b.put("q", "k")
        for _ in range(7):
            b.send("q", "k")
        b.send("q", "k", "conflict")
        same(b.stop(), 0)
        b.start()
        view = b.key("q", "k")
        same(view["duplicates"], 7)
        same([a["kind"] for a in view["arrivals"]][-3:], ["replay", "replay", "conflict"])


@test
def connections_beyond_the_file_limit_harm_neither_the_journal_nor_those_who_come_later():
    with Broker(wrapper=["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh"]) as b:
        idle = [b.connect() for _ in range(300)]
        with b.connect() as late:  # an idle one gives way
            payload = b"x" * (1 << 20)
            for number in range(100):  # more than a segment: the journal needs files of its own
                late.start("POST", "/v1/queues/q/messages", payload, [("Idempotency-Key", f"k{number}")])
                same(late.reply().status, 202)
            for c in idle:
                c.close()
        reply = b.get("/v1/queues/q")
        while reply.status == 503:  # the broker has not heard of all the partings yet, and says so
            reply = b.get("/v1/queues/q")
        same(reply.json()["pending"], 100)
        same(b.stop(), 0)


# ---- what is refused

@test
def a_second_daemon_on_the_same_directory_is_refused():
    with Broker() as b:
        code, out, err = run("--listen", "127.0.0.1:0", "--data", b.data)
        assert code == 1 and out == "", (code, out, err)
        assert b.data in err, err
        assert "use" in err or "lock" in err or "another" in err, err
        same(b.get("/healthz").status, 200)
        b.put("q", "k")


@test
def a_data_format_from_the_future_is_refused_in_clear_words():
    with Broker() as b:
        b.put("q", "k")
        same(b.stop(), 0)
        path = next(os.path.join(b.data, f) for f in os.listdir(b.data) if open(os.path.join(b.data, f), "rb").read(8) == b"HAPAXDIR")
        meta = open(path, "rb").read()
        newer = bytearray(meta)
        newer[8:12] = (99).to_bytes(4, "little")
        newer[124:128] = crc32c(bytes(newer[:124])).to_bytes(4, "little")
        same(crc32c(meta[:124]), int.from_bytes(meta[124:128], "little"), "this test knows the format")
        open(path, "wb").write(newer)
        kept = [f for f in os.listdir(b.data) if f != "lock"]  # that one says who looked
        before = {f: open(os.path.join(b.data, f), "rb").read() for f in kept}
        code, out, err = run("--listen", "127.0.0.1:0", "--data", b.data)
        assert code == 1 and out == "", (code, out, err)
        assert "99" in err and ("newer" in err or "version" in err), err
        for name, bytes_before in before.items():
            same(open(os.path.join(b.data, name), "rb").read() == bytes_before, True, f"{name} is untouched")
        open(path, "wb").write(meta)
        b.start()
        same(b.key("q", "k")["state"], "pending")


@test
def a_damaged_meta_file_is_refused_by_name():
    with Broker() as b:
        same(b.stop(), 0)
        path = next(os.path.join(b.data, f) for f in os.listdir(b.data) if open(os.path.join(b.data, f), "rb").read(8) == b"HAPAXDIR")
        meta = bytearray(open(path, "rb").read())
        meta[40] ^= 1
        open(path, "wb").write(meta)
        code, out, err = run("--listen", "127.0.0.1:0", "--data", b.data)
        assert code == 1 and out == "", (code, out, err)
        assert os.path.basename(path) in err, err


@test
def a_data_path_that_cannot_be_one_is_refused():
    with Directory() as d:
        blocked = os.path.join(d, "file")
        open(blocked, "w").close()
        for path in (blocked, os.path.join(blocked, "sub"), "/proc/hapax", ""):
            code, out, err = run("--listen", "127.0.0.1:0", "--data", path)
            assert code in (1, 2) and out == "" and err.strip(), (path, code, out, err)
            assert "hapaxd" in err, err


@test
def a_directory_without_permission_is_refused():
    with Directory() as d:
        os.chmod(d, 0o777)
        locked = os.path.join(d, "locked")
        os.mkdir(locked, 0o500)
        command = [hx.HAPAXD, "--listen", "127.0.0.1:0", "--data", locked]
        if os.getuid() == 0:  # root may write anywhere: be nobody
            binary = os.path.join(d, "hapaxd")
            shutil.copy(hx.HAPAXD, binary)
            os.chmod(binary, 0o755)
            command[0] = binary
            os.chown(locked, 65534, 65534)
        done = subprocess.run(command, capture_output=True, timeout=30, **({"user": 65534} if os.getuid() == 0 else {}))
        err = done.stderr.decode()
        same((done.returncode, done.stdout), (1, b""))
        assert locked in err and "ermission denied" in err, err


@test
def a_missing_directory_is_made():
    with Directory() as d:
        with Broker(os.path.join(d, "new")) as b:
            b.put("q", "k")
            same(b.stop(), 0)
        assert os.stat(os.path.join(d, "new")).st_mode & 0o007 == 0, "payloads are nobody else's business"


@test
def a_port_in_use_is_refused():
    with socket.socket() as taken, Directory() as d:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = run("--listen", address, "--data", os.path.join(d, "new"))
        same((code, out), (1, ""))
        assert address in err and "in use" in err, err
        same(os.listdir(d), [], "what it left behind")


@test
def a_directory_in_use_names_the_process_that_has_it():
    with Directory() as d, Broker(d) as b:
        code, out, err = run("--listen", "127.0.0.1:0", "--data", d)
        same((code, out), (1, ""))
        assert f"{d} is in use by process {b.process.pid}" in err, err


@test
def a_directory_others_may_write_to_is_refused_with_the_way_out():
    with Directory() as d:
        for mode, made in ((0o770, "0770"), (0o707, "0707"), (0o1777, "1777")):
            os.chmod(d, mode)
            code, out, err = run("--listen", "127.0.0.1:0", "--data", d)
            same((code, out, os.listdir(d)), (1, "", []))
            assert f"others than its owner may write to {d} (its mode is {made}): chmod go-w {d}" in err, err
        os.chmod(d, 0o750)
        Broker(d).remove()


@test
def a_directory_of_somebody_else_is_refused_with_the_way_out():
    with Directory() as d:
        os.mkdir(os.path.join(d, "data"))
        theirs = os.path.join(d, "data")
        if os.getuid() != 0:
            theirs = "/"
        else:
            os.chown(theirs, 65534, 65534)
        code, out, err = run("--listen", "127.0.0.1:0", "--data", theirs)
        same((code, out), (1, ""))
        assert f"{theirs} belongs to user" in err and f"chown -R {os.getuid()} {theirs}" in err, err


@test
def an_address_that_is_not_loopback_needs_insecure_listen():
    with Directory() as d:
        for address in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "128.0.0.1:0", "0:0"):
            code, out, err = run("--listen", address, "--data", d)
            assert code == 2 and out == "", (address, code, out, err)
            assert "--insecure-listen" in err or "numeric" in err, err
        b = subprocess.Popen([hx.HAPAXD, "--listen", "0.0.0.0:0", "--data", d, "--insecure-listen"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = b.stdout.readline().decode()
        assert line.startswith("hapaxd ready on http://0.0.0.0:"), line
        with hx.Conn(int(line.rsplit(":", 1)[1])) as c:
            same(c.request("GET", "/healthz").status, 200)
        b.terminate()
        same(b.wait(20), 0)
        b.stdout.close()


@test
def every_listener_of_the_file_is_served_and_the_flag_stands_for_all_of_them():
    with Directory() as d:
        config = os.path.join(d, "hapax.yaml")
        with open(config, "w") as f:
            f.write("auto_create: true\nlisten:\n  - {address: 127.0.0.1:0}\n  - {address: 127.0.0.2:0}\n")
        for flags, hosts in (([], ["127.0.0.1", "127.0.0.2"]), (["--listen", "127.0.0.3:0"], ["127.0.0.3"])):
            b = subprocess.Popen([hx.HAPAXD, "--config", config, "--data", d + "/data", *flags], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)
            ready = re.findall(r" http://([\d.]+):(\d+)", b.stdout.readline().decode())
            same([host for host, _ in ready], hosts)
            for host, port in ready:
                with hx.Conn(int(port), host) as c:
                    same(c.request("POST", "/v1/queues/q/messages", b"x", [("Idempotency-Key", host)]).status, 202)
            b.terminate()
            same(b.wait(20), 0)
            b.stdout.close()


@test
def loopback_in_any_spelling_is_served():
    for address, ready in (("localhost:0", "http://127.0.0.1:"), ("127.9.9.9:0", "http://127.9.9.9:"), ("[::1]:0", "http://[::1]:")):
        with Directory() as d:
            b = subprocess.Popen([hx.HAPAXD, "--listen", address, "--data", d], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            line = b.stdout.readline().decode()
            if not line and "::1" in address and not os.path.exists("/proc/net/if_inet6"):
                b.wait(20)  # a machine without IPv6
            else:
                assert line.startswith("hapaxd ready on " + ready), (address, line, b.stderr.read())
                b.terminate()
                same(b.wait(20), 0)
            b.stdout.close()
            b.stderr.close()


@test
def wrong_usage_exits_2_and_says_what_is_wrong():
    for args in (["--nonsense"], ["stray"], ["--listen"], ["--data"], ["--listen", "nonsense"], ["--listen", "127.0.0.1"],
                 ["--listen", "127.0.0.1:x"], ["--listen", "127.0.0.1:65536"], ["--listen", ":1"], ["--listen", "example.com:0"],
                 ["--listenx", "127.0.0.1:0"], ["--insecure-listen=1"]):
        code, out, err = run(*args, env={"HAPAX_DATA": "/nonexistent/hapax"})
        assert code == 2 and out == "" and "hapaxd" in err, (args, code, out, err)


@test
def version_and_help_print_to_stdout_and_exit_0():
    code, out, err = run("--version")
    version = open(os.path.join(hx.ROOT, "VERSION")).read().strip()
    same((code, err), (0, ""))
    assert out.startswith("hapaxd ") and version in out and out.count("\n") == 1, out
    code, out, err = run("--help")
    same((code, err), (0, ""))
    for flag in ("--listen", "--data", "--insecure-listen", "--version"):
        assert flag in out, out


@test
def flags_beat_the_environment():
    with Directory() as d:
        env = dict(os.environ, HAPAX_LISTEN="127.0.0.1:0", HAPAX_DATA=os.path.join(d, "env"))
        for args, made in (([], "env"), (["--data", os.path.join(d, "flag")], "flag"), ([f"--data={d}/equals"], "equals")):
            b = subprocess.Popen([hx.HAPAXD, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert b.stdout.readline().startswith(b"hapaxd ready on http://127.0.0.1:")
            b.terminate()
            same(b.wait(20), 0)
            b.stdout.close()
            assert os.listdir(os.path.join(d, made)), made


@test
def the_journal_of_one_broker_is_nobody_elses():
    with Broker() as a, Broker() as b:
        a.put("q", "k")
        problem(b.get("/v1/queues/q"), 404, "no_such_queue")


hx.main(threads=8, shared=False)
