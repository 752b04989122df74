#!/usr/bin/env python3
"""hapax receive --exec: every exit code and what it settles, look-ups, commands that hang, signals. What a command did is
counted in a file of its own: the promise is about effects, not about states."""
import json
import os
import shutil
import signal
import tempfile
import time

import hx
from hx import hapax, members, same, test, until

WORK = tempfile.mkdtemp(prefix="hapax-e2e-exec-")
running = []


def path(q, name):
    return os.path.join(WORK, f"{q}-{name}")


def text(file):
    return open(file, encoding="utf-8").read() if os.path.exists(file) else ""


def run(q, command, *flags, **kw):
    return hapax("receive", q, "--exec", command, *flags, **kw)


def start(q, *flags):
    process = hx.start_hapax("receive", q, *flags)
    running.append(process)
    return process


def attempts(q, key):
    return hx.broker.key(q, key)["attempts"]


def in_doubt(q, **rules):
    """A message whose first attempt charged the card and never said so; the file that counts charges."""
    b = hx.broker
    b.rules(q, **{"class": "money", **rules})
    b.put(q, "charge-1", payload='{"amount":5}')
    charges = path(q, "charges")
    run(q, f"echo charged >> {charges}; kill -9 $$")
    same(text(charges), "charged\n")
    return charges


# ---- exit codes

@test
def the_payload_is_the_input_and_the_environment_tells_the_rest(q):
    hx.broker.send(q, '"the key"', "the payload", [("Hapax-Group", "g"), ("Content-Type", "text/x")])
    ran = run(q, 'cat; for n in KEY EFFECT_KEY ATTEMPT DELIVERY GROUP QUEUE CONTENT_TYPE; do eval echo "$n=\\$HAPAX_$n"; done; '
                 'test "$HAPAX_FENCE" -gt 0 && test -n "$HAPAX_TOKEN" && test -n "$HAPAX_ID" && echo all')
    same(ran.text, "the key  done\n")
    body = hx.broker.get(f"/v1/queues/{q}/keys/the%20key/result").body.decode()
    same(body, f"the payloadKEY=the key\nEFFECT_KEY=the key\nATTEMPT=1\nDELIVERY=first\nGROUP=g\nQUEUE={q}\nCONTENT_TYPE=text/x\nall\n")


@test
def exit_codes_become_the_verdicts_of_the_contract(q):
    b = hx.broker
    for code, state, kind in ((75, "pending", "transient"), (65, "dead", "poison"), (100, "rejected", "rejected"), (3, "pending", "unknown"),
                              (1, "pending", "unknown"), (101, "pending", "unknown")):
        b.put(f"{q}-{code}", "k")
        run(f"{q}-{code}", f"echo out; exit {code}")
        same(b.state(f"{q}-{code}", "k"), state, str(code))
        members(attempts(f"{q}-{code}", "k")[-1], **{"class": kind}, reason=f"command exited with {code}")
    same(b.get(f"/v1/queues/{q}-100/keys/k/result").body, b"out\n")


@test
def a_command_ended_by_a_signal_is_unknown(q):
    hx.broker.put(q, "k")
    run(q, "kill -9 $$")
    members(attempts(q, "k")[-1], **{"class": "unknown"}, reason="command ended by signal 9")


@test
def a_command_that_cannot_run_gives_the_message_back_and_stops(q):
    b = hx.broker
    for code, command in ((127, "no-such-command-anywhere"), (126, "exit 126")):
        queue = f"{q}-{code}"
        b.put(queue, "k1", "k2")
        ran = run(queue, command, "--count", "2", exits=1)
        assert "given back" in ran.err and str(code) in ran.err, ran
        same([b.state(queue, key) for key in ("k1", "k2")], ["pending", "pending"])
        same(b.one(queue)["attempt"], 1, "no attempt was spent")


@test
def the_last_line_of_standard_error_is_the_reason_and_all_of_it_is_shown(q):
    b = hx.broker
    b.put(q, "k")
    ran = run(q, r"printf 'first\nthe bank \033[31msaid\377 no\r\n\n  \n' >&2; exit 75")
    assert "first\n" in ran.err, ran
    members(attempts(q, "k")[-1], **{"class": "transient"}, reason=r"the bank \x1b[31msaid\xff no")
    b.put(q + "-long", "k")
    run(q + "-long", "head -c 100000 /dev/zero | tr '\\0' 'ä' >&2; printf 'x%.0s' $(seq 5000) >&2; exit 65")
    assert 100 < len(attempts(q + "-long", "k")[-1]["reason"]) <= 1024, attempts(q + "-long", "k")
    b.put(q + "-rejected", "k")
    run(q + "-rejected", "echo '{\"why\":\"no funds\"}'; echo 'no funds' >&2; exit 100")
    members(attempts(q + "-rejected", "k")[-1], reason="no funds")


@test
def commands_may_ignore_their_input_print_much_or_leave_somebody_behind(q):
    b = hx.broker
    big = b"x" * 900000
    b.put(q, "ignores", payload=big)
    run(q, "true")
    same(b.state(q, "ignores"), "done")
    b.put(q, "echoes", payload=big)
    run(q, "cat")
    same(b.get(f"/v1/queues/{q}/keys/echoes/result").body, big)
    b.put(q, "both", payload=big)
    run(q, "tee /dev/stderr")
    same(b.get(f"/v1/queues/{q}/keys/both/result").body, big)
    for key, code, state in (("much", 0, "done"), ("too-much", 100, "rejected")):
        b.put(q, key)
        ran = run(q, f"head -c 2000000 /dev/zero; exit {code}")
        assert "larger than 1048576 bytes: settled without a result" in ran.err, ran
        same(b.state(q, key), state)
        same(b.get(f"/v1/queues/{q}/keys/{key}/result").status, 204, "half a result would be a wrong one")
        same(b.key(q, key)["result"]["content_type"], "", "and an empty one would be the command's")
    # A daemon that keeps standard error open does not hold the message back.
    pid = path(q, "pid")
    b.put(q, "daemon")
    run(q, f"sleep 300 >/dev/null & echo $! > {pid}; echo started")
    os.kill(int(text(pid)), signal.SIGKILL)
    same(b.state(q, "daemon"), "done")


@test
def many_are_taken_at_once_until_the_queue_is_empty(q):
    b = hx.broker
    b.put(q, *(f"k{n:02}" for n in range(20)))
    ran = run(q, 'cat >/dev/null; echo "$HAPAX_KEY"', "--count", "100", "--concurrency", "4", "--max", "8", "--json")
    lines = [json.loads(line) for line in ran.text.splitlines()]
    same(sorted(line["key"] for line in lines), [f"k{n:02}" for n in range(20)])
    for line in lines:
        members(line, verdict="done", state="done", delivery="first")
    assert "nothing received" in run(q, "true", exits=1).err


# ---- look-ups

@test
def a_charge_in_doubt_is_not_made_again_by_exec_alone(q):
    charges = in_doubt(q)
    ran = run(q, f"echo charged >> {charges}", "--wait", "20s")
    assert "--reconcile" in ran.err and "not run" in ran.err, ran
    same(text(charges), "charged\n", "P5: nothing is done again until somebody has said what happened")
    members(attempts(q, "charge-1")[-1], **{"class": "unknown"}, ended="nacked")
    assert hx.broker.state(q, "charge-1") != "done"


@test
def a_charge_that_is_found_is_acked_with_what_was_found(q):
    charges = in_doubt(q)
    ran = run(q, f"echo charged >> {charges}", "--reconcile", 'test "$HAPAX_DELIVERY" = reconcile || exit 1; cat >&2; echo "tx-$HAPAX_EFFECT_KEY"',
              "--wait", "20s", "--json")
    members(ran.json, delivery="reconcile", verdict="done", state="done")
    assert '{"amount":5}' in ran.err, "the look-up sees the payload"
    same(text(charges), "charged\n")
    same(hx.broker.get(f"/v1/queues/{q}/keys/charge-1/result").body, b"tx-charge-1\n")


@test
def a_charge_that_is_not_found_is_delivered_to_be_made(q):
    charges = in_doubt(q)
    run(q, f"echo again >> {charges}", "--reconcile", "exit 101", "--wait", "20s", "--count", "2")
    same(text(charges), "charged\nagain\n")
    same(hx.broker.state(q, "charge-1"), "done")


@test
def a_look_up_that_finds_nothing_out_leaves_it_unknown(q):
    b = hx.broker
    for code in (1, 65, 75, 100):
        queue = f"{q}-{code}"
        charges = in_doubt(queue)
        run(queue, f"echo charged >> {charges}", "--reconcile", f"echo 'ledger is down' >&2; exit {code}", "--wait", "20s")
        members(attempts(queue, "charge-1")[-1], **{"class": "unknown"}, reason="ledger is down")
        same(text(charges), "charged\n")
        assert b.state(queue, "charge-1") in ("pending", "held"), b.key(queue, "charge-1")


@test
def a_look_up_that_cannot_run_leaves_it_unknown_and_stops(q):
    charges = in_doubt(q)
    ran = run(q, f"echo charged >> {charges}", "--reconcile", "no-such-command-anywhere", "--wait", "20s", "--forever", exits=1)
    assert "stays unknown" in ran.err, ran
    same(text(charges), "charged\n")
    members(attempts(q, "charge-1")[-1], **{"class": "unknown"})


# ---- commands that hang

@test
def a_command_that_hangs_is_ended_with_all_it_started_and_its_outcome_is_unknown(q):
    hx.broker.put(q, "k")
    pids = path(q, "pids")
    run(q, f"echo $$ >> {pids}; sleep 300 & echo $! >> {pids}; (sleep 301; true) & echo $! >> {pids}; trap '' TERM; wait", "--timeout", "300ms")
    members(attempts(q, "k")[-1], **{"class": "unknown"}, reason="the command took longer than 300ms and was ended")
    for pid in map(int, text(pids).split()):
        until(lambda pid=pid: not alive(pid), f"process {pid} is gone")
    same(len(text(pids).split()), 3)


@test
def the_reason_of_a_command_that_was_ended_has_its_last_line_too(q):
    b = hx.broker
    b.put(q, "k")
    run(q, "echo first >&2; echo 'waiting for the bank' >&2; sleep 300", "--timeout", "500ms")
    members(attempts(q, "k")[-1], **{"class": "unknown"}, reason="the command took longer than 500ms and was ended; its last line: waiting for the bank")
    b.put(q + "-long", "k")
    run(q + "-long", "printf 'x%.0s' $(seq 5000) >&2; sleep 300", "--timeout", "500ms")
    reason = attempts(q + "-long", "k")[-1]["reason"]
    assert reason.startswith("the command took longer than 500ms and was ended; its last line: xxx") and len(reason) <= 1024, reason


@test
def a_look_up_that_hangs_is_ended_too(q):
    charges = in_doubt(q)
    run(q, f"echo charged >> {charges}", "--reconcile", "sleep 300", "--timeout", "300ms", "--wait", "20s")
    members(attempts(q, "charge-1")[-1], **{"class": "unknown"})
    same(text(charges), "charged\n")


@test
def what_a_command_left_behind_with_its_output_open_counts_as_hanging(q):
    hx.broker.put(q, "k")
    pid = path(q, "pid")
    run(q, f"sleep 300 & echo $! > {pid}; exit 0", "--timeout", "300ms")
    members(attempts(q, "k")[-1], **{"class": "unknown"})
    until(lambda: not alive(int(text(pid))), "it is gone")


def alive(pid):
    """Running; a zombie nobody has waited for yet is not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- leases and signals

@test
def the_lease_is_renewed_while_the_command_runs(q):
    """It runs until its lease ends later than the lease it was given could have lasted twice over."""
    b = hx.broker
    b.put(q, "k")
    go = path(q, "go")
    os.mkfifo(go)
    process = start(q, "--lease", "1s", "--exec", f"cat {go}")
    ends = set()

    def renewed():
        for m in b.list(q, state="leased"):
            ends.add(m["lease_expires_at"])
        return ends and max(map(hx.stamp, ends)) - min(map(hx.stamp, ends)) > 1
    until(renewed, "the lease is extended again and again")
    with open(go, "w", encoding="utf-8") as file:
        file.write("slow")
    process.communicate(timeout=hx.TIMEOUT)
    same(process.returncode, 0)
    same(len(attempts(q, "k")), 1)
    same(b.state(q, "k"), "done")


@test
def a_command_has_the_queues_lease_unless_it_asks_for_another(q):
    b = hx.broker
    same(b.call("PUT", f"/v1/queues/{q}", b'{"lease":"10m"}').status, 201)
    for flags, least, most in (((), 500, 601), (("--lease", "2m"), 60, 121)):
        b.put(q, f"k{most}")
        go = path(q, f"go{most}")
        os.mkfifo(go)
        process = start(q, *flags, "--exec", f"cat {go}")
        until(lambda: b.list(q, state="leased"), "it is leased")
        left = hx.stamp(b.list(q, state="leased")[0]["lease_expires_at"]) - time.time()
        with open(go, "w", encoding="utf-8") as file:
            file.write("done")
        process.communicate(timeout=hx.TIMEOUT)
        same(process.returncode, 0)
        assert least < left < most, (flags, left)


def started(q, *flags):
    """A worker in the middle of its first command, and the pipe that lets it go on."""
    mark, go = path(q, "mark"), path(q, "go")
    os.mkfifo(go)
    process = start(q, "--forever", "--max", "3", "--exec", f"touch {mark}; cat {go}", *flags)
    until(lambda: os.path.exists(mark), "the command runs")
    return process, go


@test
def a_signal_lets_the_running_command_finish_and_gives_the_rest_back(q):
    b = hx.broker
    b.put(q, "k0", "k1", "k2")
    process, go = started(q)
    process.send_signal(signal.SIGTERM)
    line = process.stderr.readline().decode()  # it has heard it
    assert "no more is taken" in line, line
    with open(go, "w", encoding="utf-8") as file:
        file.write("finished")
    out, err = process.communicate(timeout=hx.TIMEOUT)
    same((process.returncode, out), (0, b"k0  done\n"), err.decode())
    same(b.get(f"/v1/queues/{q}/keys/k0/result").body, b"finished")
    same([b.state(q, key) for key in ("k1", "k2")], ["pending", "pending"])
    same(b.one(q)["attempt"], 1)


@test
def a_second_signal_ends_the_command_and_its_outcome_is_unknown(q):
    hx.broker.put(q, "k")
    process, _ = started(q)
    process.send_signal(signal.SIGINT)
    line = process.stderr.readline().decode()
    assert "second signal" in line, line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=hx.TIMEOUT)
    same(process.returncode, 0)
    members(attempts(q, "k")[-1], **{"class": "unknown"}, reason="the command was ended by a second signal to hapax")


def done_and_untold(q, broker, how):
    """A command that has ended after its broker was killed or frozen: the ack is due, and nobody takes it. The lease is long: whoever waits
    for its end waits too long."""
    broker.put(q, "k")
    go = path(q, "go")
    os.mkfifo(go)
    process = hx.start_hapax("receive", q, "--lease", "1h", "--exec", f"cat {go}", of=broker)
    running.append(process)
    with open(go, "w", encoding="utf-8") as file:  # open once the command reads
        broker.stop(how) if how == signal.SIGKILL else broker.signal(how)
        file.write("done")
    until(lambda: not children(process.pid), "the command has ended")
    return process


def children(pid):
    return [child for task in os.listdir(f"/proc/{pid}/task") for child in text(f"/proc/{pid}/task/{task}/children").split()]


def told_to_stop(process):
    """What it says then. A signal that comes before it has seen that its command is over is one for the command."""
    process.send_signal(signal.SIGTERM)
    line = process.stderr.readline().decode()
    if "what runs may finish" in line:
        process.send_signal(signal.SIGTERM)
    return line + process.communicate(timeout=hx.TIMEOUT)[1].decode()


@test
def a_signal_ends_the_waiting_for_a_broker_that_does_not_answer_and_says_what_is_not_known(q):
    for how in (signal.SIGKILL, signal.SIGSTOP):
        with hx.Broker() as broker:
            queue = f"{q}-{how}"
            process = done_and_untold(queue, broker, how)
            same(process.poll(), None, "done work is not let go of")
            said = told_to_stop(process)
            same(process.returncode, 3, said)
            last = said.splitlines()[-1]
            assert last.startswith("hapax: k: ") and "not known whether it is settled" in last and f"hapax key show {queue} k" in last, said
            if how == signal.SIGSTOP:
                broker.signal(signal.SIGCONT)


@test
def done_work_is_told_to_a_broker_that_is_back_when_the_signal_comes(q):
    with hx.Broker() as broker:
        process = done_and_untold(q, broker, signal.SIGKILL)
        broker.start()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=hx.TIMEOUT)
        same((process.returncode, out), (0, b"k  done\n"), err.decode())
        same(broker.get(f"/v1/queues/{q}/keys/k/result").body, b"done")


# ---- usage

@test
def what_would_do_something_else_than_meant_is_refused(q):
    b = hx.broker
    b.put(q, "k")
    for flags, word in [(["--exec", ""], "no command"), (["--exec", " "], "no command"), (["--exec", "true", "--reconcile", ""], "no command"),
                        (["--reconcile", "true"], "--exec"), (["--timeout", "1s"], "--exec"), (["--exec", "true", "--timeout", "0s"], "1ms"),
                        (["--exec", "true", "--timeout", "soon"], "not a duration"), (["--exec", "true", "--ack"], "by itself")]:
        assert word in hapax("receive", q, *flags, exits=2).err, flags
    same(b.state(q, "k"), "pending")


def end_all():
    """After a failure: whoever is left, and the commands that wait at a pipe."""
    for process in running:
        if process.poll() is None:
            process.kill()
    for name in os.listdir(WORK):
        if name.endswith("-go"):
            try:
                os.close(os.open(os.path.join(WORK, name), os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                pass  # nobody waits there
    shutil.rmtree(WORK, ignore_errors=True)


try:
    hx.main()
finally:
    end_all()
