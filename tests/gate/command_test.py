#!/usr/bin/env python3
"""`hapax gate`: install, upgrade, status, uninstall and reconcile as a user runs them."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading

import harness
from harness import HAPAX, dump, equal, expire, fresh_database, test
from proxy import Proxy

VERSION = str(max(int(f[:4]) for f in os.listdir(harness.MIGRATIONS) if f[:4].isdigit()))


def dsn(env, database):
    return "host=%s user=postgres dbname=%s" % (env.server.home, database)


def gate(env, database, *argv, code=0, says="", program=HAPAX, **more):
    done = subprocess.run([program, "gate"] + list(argv), env=dict(os.environ, HAPAX_DSN=dsn(env, database)), text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **more)
    equal(done.returncode, code, "hapax gate %s: %s%s" % (" ".join(argv), done.stdout, done.stderr))
    if says not in done.stdout + done.stderr:
        raise AssertionError("%r is not in %r" % (says, done.stdout + done.stderr))
    return done.stdout


@test
def hapax_gate_install_makes_the_schema_of_the_sql_file_and_is_safe_to_repeat(env):
    for name in ("by_file", "by_command"):
        fresh_database(env, name)
    env.install(harness.GATE, database="by_file")
    gate(env, "by_command", "status", code=1, says="installed  no")
    gate(env, "by_command", "upgrade", code=1, says="hapax gate install")
    gate(env, "by_command", "install", says="gate version %s installed" % VERSION)
    equal(dump(env, "by_command"), dump(env, "by_file"))
    s = env.session(database="by_command")
    s.one("SELECT status FROM hapax.claim('t', 'k')")
    gate(env, "by_command", "install", says="keys kept")
    gate(env, "by_command", "upgrade", says="keys kept")
    equal(s.one("SELECT status FROM hapax.claim('t', 'k')"), "duplicate")
    status = json.loads(gate(env, "by_command", "status", "--json"))
    equal((status["installed"], status["version"], status["scopes"][0]["duplicates"]), (True, int(VERSION), 1))


@test
def hapax_gate_changes_nothing_in_a_dry_run_and_prints_what_it_would_run(env):
    fresh_database(env, "dry")
    sql = gate(env, "dry", "install", "--dry-run")
    assert open(harness.GATE, encoding="utf-8").read() in sql
    gate(env, "dry", "status", code=1)
    gate(env, "dry", "install")
    sql = gate(env, "dry", "uninstall", "--dry-run")
    assert open(harness.UNINSTALL, encoding="utf-8").read() in sql
    gate(env, "dry", "status")


@test
def hapax_gate_refuses_another_version_and_leaves_it_alone(env):
    fresh_database(env, "versions")
    gate(env, "versions", "install")
    s = env.session(database="versions")
    s.rows("INSERT INTO hapax.schema_version VALUES (99)")
    for verb in ("install", "upgrade"):
        gate(env, "versions", verb, code=1, says="newer hapax")
    gate(env, "versions", "status", code=1, says="99")
    s.rows("DELETE FROM hapax.schema_version")
    s.rows("INSERT INTO hapax.schema_version VALUES (0)")
    gate(env, "versions", "status", code=1)


MIGRATION = """BEGIN;
SELECT pg_advisory_xact_lock(hashtext('hapax gate schema'));
ALTER TABLE hapax.scope ADD COLUMN %s text;
INSERT INTO hapax.schema_version (version) VALUES (%d);
%s
COMMIT;
"""


def hapax_of_the_future(home, version, last_words=""):
    """The same command with migrations up to `version`; the last of them ends with these words."""
    files = sorted(os.path.join(harness.MIGRATIONS, f) for f in os.listdir(harness.MIGRATIONS) if f.endswith(".sql"))
    for n in range(int(VERSION) + 1, version + 1):
        files.append(os.path.join(home, "%04d_later.sql" % n))
        with open(files[-1], "w", encoding="utf-8") as f:
            f.write(MIGRATION % ("later_%d" % n, n, last_words if n == version else ""))
    with open(harness.GATE, encoding="utf-8") as f:
        whole = f.read().replace("needed  constant int := " + VERSION, "needed  constant int := %d" % version)
    files.append(os.path.join(home, "hapax_gate.sql"))
    with open(files[-1], "w", encoding="utf-8") as f:
        f.write(whole)
    build, made = os.path.basename(os.path.dirname(HAPAX)), os.path.join(home, str(version))
    subprocess.run(["make", "-s", "-C", harness.ROOT, "BUILD=" + build, "SAN=" + build.partition("-")[2], "GEN=" + made,
                    "GATE_SQL=" + " ".join(files + [harness.UNINSTALL]), made + "/hapax"], check=True, stdout=subprocess.DEVNULL)
    return made + "/hapax"


@test
def hapax_gate_upgrade_runs_the_migrations_above_the_installed_version_each_wholly_or_not(env):
    fresh_database(env, "upgraded")
    now, home = int(VERSION), tempfile.mkdtemp(prefix="hapax-upgrade-")
    gate(env, "upgraded", "install")
    s = env.session(database="upgraded")
    s.one("SELECT status FROM hapax.claim('t', 'kept')")
    later = hapax_of_the_future(home, now + 2, last_words="SELECT 1 / count(*) FROM pg_class WHERE relname = 'may_go_on';")
    gate(env, "upgraded", "install", program=later, code=1, says="hapax gate upgrade")
    gate(env, "upgraded", "status", program=later, code=1)
    assert "later_%d" % (now + 2) in gate(env, "upgraded", "upgrade", "--dry-run", program=later)
    for _ in range(2):
        gate(env, "upgraded", "upgrade", program=later, code=1, says="%04d_later.sql" % (now + 2))
        equal(s.one("SELECT max(version) FROM hapax.schema_version"), str(now + 1))
        equal(s.rows("SELECT attname FROM pg_attribute WHERE attname LIKE 'later%'"), [("later_%d" % (now + 1),)])
    s.rows("CREATE TABLE may_go_on ()")
    gate(env, "upgraded", "upgrade", program=later, says="to %d" % (now + 2))
    gate(env, "upgraded", "status", program=later)
    gate(env, "upgraded", "upgrade", code=1, says="newer hapax")
    equal(s.one("SELECT status FROM hapax.claim('t', 'kept')"), "duplicate")
    shutil.rmtree(home)


@test
def hapax_gate_uninstall_says_what_is_lost_and_wants_a_yes(env):
    fresh_database(env, "removal")
    gate(env, "removal", "install")
    s = env.session(database="removal")
    s.rows("SELECT * FROM hapax.reserve('t', 'flying'), hapax.claim('t', 'settled')")
    loss = json.loads(gate(env, "removal", "uninstall", "--json", code=1, says="--yes"))
    equal((loss["keys"], loss["in_flight"]), (2, 1))
    gate(env, "removal", "uninstall", "--yes", code=1, says="HX007")
    gate(env, "removal", "status")
    gate(env, "removal", "uninstall", "--yes", "--force", says="gate removed")
    gate(env, "removal", "uninstall", "--yes", code=1, says="no gate")


@test
def the_gate_belongs_to_the_owner_it_is_given_and_says_so(env):
    fresh_database(env, "owned")
    env.monitor.rows("DROP ROLE IF EXISTS hapax_owner")
    env.monitor.rows("CREATE ROLE hapax_owner NOLOGIN")
    gate(env, "owned", "install", "--owner", "hapax_owner", code=1, says="42501")
    env.monitor.rows("GRANT CREATE ON DATABASE owned TO hapax_owner")
    assert 'SET LOCAL ROLE "hapax_owner";' in gate(env, "owned", "install", "--owner", "hapax_owner", "--dry-run")
    gate(env, "owned", "install", "--owner", "hapax_owner")
    s = env.session(database="owned")
    owners = s.rows("SELECT DISTINCT pg_get_userbyid(o) FROM (SELECT proowner AS o FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace"
                    " UNION ALL SELECT relowner FROM pg_class WHERE relnamespace = 'hapax'::regnamespace) a")
    equal(owners, [("hapax_owner",)])
    status = json.loads(gate(env, "owned", "status", "--json"))
    equal((status["owner"], status["owner_is_superuser"]), ("hapax_owner", False))
    equal(s.one("SELECT status FROM hapax.claim('t', 'k')"), "new")
    gate(env, "owned", "install", code=1, says="belongs to hapax_owner")
    for verb in ("install", "upgrade"):
        gate(env, "owned", verb, "--owner", "hapax_owner", says="keys kept")
    gate(env, "owned", "uninstall", "--yes", "--owner", "hapax_owner", says="gate removed")


@test
def a_gate_of_version_1_is_upgraded_as_its_owner_and_keeps_its_keys(env):
    fresh_database(env, "owned_v1")
    env.monitor.rows("DROP ROLE IF EXISTS hapax_owner_v1")
    env.monitor.rows("CREATE ROLE hapax_owner_v1 LOGIN")
    env.monitor.rows("GRANT CREATE ON DATABASE owned_v1 TO hapax_owner_v1")
    env.install(harness.V1, database="owned_v1", user="hapax_owner_v1")
    s = env.session(database="owned_v1", user="hapax_owner_v1")
    equal(s.one("SELECT status FROM hapax.claim('t', 'k')"), "new")
    gate(env, "owned_v1", "upgrade", "--owner", "hapax_owner_v1", says="to " + VERSION)
    equal(s.one("SELECT status FROM hapax.claim('t', 'k')"), "duplicate")
    equal(s.one("SELECT count(*) FROM pg_class WHERE relnamespace = 'hapax'::regnamespace AND pg_get_userbyid(relowner) <> 'hapax_owner_v1'"), "0")


@test
def hapax_gate_sweep_drops_what_is_due_once_or_again_and_again(env):
    fresh_database(env, "swept")
    gate(env, "swept", "sweep", code=1, says="not_installed")
    gate(env, "swept", "install")
    s = env.session(database="swept")
    s.rows("SELECT hapax.claim('brief', 'k' || i) FROM generate_series(1, 100) i; SELECT hapax.claim('long', 'k');"
           "INSERT INTO hapax.scope VALUES ('brief', '0'), ('long', '1 day')")
    equal(gate(env, "swept", "sweep", "--batch", "7"), "dropped 100 keys\n")
    equal(json.loads(gate(env, "swept", "sweep", "--json")), {"dropped": 0})
    equal(s.rows("SELECT scope FROM hapax.keys"), [("long",)])
    gate(env, "swept", "sweep", "--every", "0s", code=2, says="--every")
    r = subprocess.Popen([HAPAX, "gate", "sweep", "--every", "5ms", "--json"], env=dict(os.environ, HAPAX_DSN=dsn(env, "swept")),
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for n in range(2):
        s.rows("SELECT hapax.claim('brief', 'again %d')" % n)
        equal(json.loads(r.stdout.readline()), {"dropped": 1})
    # A database that goes away is waited for.
    env.monitor.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'hapax' AND datname = 'swept'")
    assert "database: " in r.stderr.readline()
    s.rows("SELECT hapax.claim('brief', 'after')")
    equal(json.loads(r.stdout.readline()), {"dropped": 1})
    r.terminate()
    equal(r.wait(), 0)
    r.stdout.close()
    r.stderr.close()


@test
def hapax_gate_says_which_rights_are_missing_and_who_cannot_be_reached(env):
    fresh_database(env, "rights")
    env.monitor.rows("CREATE ROLE nobody_special LOGIN")
    weak = "host=%s user=nobody_special dbname=rights" % env.server.home
    gate(env, "rights", "install", "--dsn", weak, code=1, says="42501")
    gate(env, "rights", "status", "--dsn", "host=%s port=1 user=postgres" % env.server.home, code=3, says="database")
    problem = json.loads(gate(env, "rights", "status", "--json", "--dsn", "host=%s port=1" % env.server.home, code=3))
    equal((problem["code"], problem["applied"]), ("database_unreachable", "no"))


@test
def a_password_shows_neither_in_messages_nor_on_the_command_line(env):
    secret = "sesame-open-up"
    for bad in ("postgresql://u:%s@[broken/x" % secret, "host=nowhere.invalid password='%s" % secret,
                "host=%s port=1 user=u password=%s" % (env.server.home, secret)):
        done = subprocess.run([HAPAX, "gate", "status", "--dsn", bad], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode in (2, 3), done
        assert secret not in done.stdout, done.stdout
    strand(env.session(), "key", scope="secret")
    reconcile = subprocess.Popen([HAPAX, "gate", "reconcile", "--dsn", dsn(env, "postgres") + " password=" + secret, "--exec", "echo ran",
                                  "--scope", "secret"], stdout=subprocess.PIPE)
    with open("/proc/%d/cmdline" % reconcile.pid, "rb") as f:
        reconcile.stdout.readline()
        f.seek(0)
        shown = f.read()
    reconcile.terminate()
    reconcile.stdout.close()
    equal((reconcile.wait(), b"sesame" in shown), (0, False))


def strand(s, key, scope="stray", owner="worker-1", **more):
    named = "".join(", %s => %s" % item for item in more.items())
    equal(s.one("SELECT status FROM hapax.reserve('%s', '%s', owner => '%s'%s)" % (scope, key, owner, named)), "new")
    expire(s, key, scope)


RECONCILE = ("reconcile", "--once", "--older-than", "0s", "--scope", "stray")


@test
def reconcile_commits_what_is_found_releases_what_is_not_and_leaves_the_rest(env):
    s = env.session()
    for key in ("found", "absent", "unclear"):
        strand(s, key, fence=7)
    strand(s, "highest", fence=2**63 - 1)
    strand(s, "no fence")
    strand(s, "other scope", scope="elsewhere")
    equal(s.one("SELECT status FROM hapax.reserve('stray', 'live')"), "new")
    command = ('test "$HAPAX_SCOPE/$HAPAX_OWNER/$HAPAX_ATTEMPT" = stray/worker-1/2 || exit 9;'
               ' case $HAPAX_KEY in found|highest|"no fence") printf "receipt 5";; absent) exit 101;; *) exit 3;; esac')
    out = gate(env, "postgres", *RECONCILE, "--exec", command, code=1)
    equal(sorted(out.split("\n")), ["", "stray  absent  released", "stray  found  committed", "stray  highest  committed", "stray  no fence  committed",
                                      "stray  unclear  left (exit code 3)"])
    equal(s.rows("SELECT status, convert_from(result, 'UTF8'), content_type FROM hapax.claim('stray', 'found')"),
          [("duplicate", "receipt 5", "text/plain")])
    equal(s.one("SELECT status FROM hapax.claim('stray', 'absent')"), "new")
    equal(s.rows("SELECT key, fence FROM hapax.keys WHERE scope = 'stray' AND key IN ('unclear', 'highest', 'no fence') ORDER BY key"),
          [("highest", str(2**63 - 1)), ("no fence", None), ("unclear", "8")])
    equal(s.one("SELECT status FROM hapax.reserve('stray', 'live')"), "in_flight")
    equal(s.one("SELECT state FROM hapax.keys WHERE scope = 'elsewhere'"), "in_flight")
    # What was left is found again, with the name of its first owner and one attempt more; the zombie is fenced off.
    equal(s.code("SELECT hapax.commit_outcome('stray', 'unclear', 'late', fence => 7)"), "HX001")
    expire(s, "unclear", "stray")
    out = json.loads(gate(env, "postgres", *RECONCILE, "--json", "--exec", "printf there"))
    equal((out["key"], out["owner"], out["attempt"], out["outcome"]), ("unclear", "worker-1", 3, "committed"))


@test
def reconcile_kills_a_command_that_takes_too_long_and_stops_when_it_cannot_run_one(env):
    s = env.session()
    strand(s, "slow")
    gate(env, "postgres", *RECONCILE, "--timeout", "200ms", "--exec", "exec sleep 300", code=1, says="left")
    expire(s, "slow", "stray")
    gate(env, "postgres", *RECONCILE, "--timeout", "200ms", "--exec", "exec >&-; sleep 300", code=1, says="left")
    expire(s, "slow", "stray")
    gate(env, "postgres", *RECONCILE, "--exec", "no-such-command-anywhere", code=1, says="cannot be run")
    expire(s, "slow", "stray")
    gate(env, "postgres", *RECONCILE, "--exec", "exit 101", says="released")


@test
def reconcilers_beside_each_other_hand_each_reservation_out_once(env):
    s = env.session()
    for n in range(40):
        strand(s, "shared %d" % n, **({"fence": n} if n % 2 else {}))
    outs = []
    command = "echo ran >> '%s/ran'; exit 0" % env.server.home
    threads = [threading.Thread(target=lambda: outs.append(gate(env, "postgres", *RECONCILE, "--exec", command))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    lines = "".join(outs).strip().split("\n")
    equal((len(lines), len(set(lines)), sum("committed" in l for l in lines)), (40, 40, 40))
    with open(os.path.join(env.server.home, "ran"), encoding="utf-8") as f:
        equal(len(f.readlines()), 40)


@test
def a_reconciler_frozen_past_its_lease_ends_nobody_elses_reservation(env):
    s = env.session()
    for key, code in (("frozen absent", 101), ("frozen found", 0)):
        strand(s, key)  # without a fence
        fifo = os.path.join(env.server.home, key)
        os.mkfifo(fifo)
        r = subprocess.Popen([HAPAX, "gate", *RECONCILE, "--exec", "read go < '%s'; exit %d" % (fifo, code)],
                             env=dict(os.environ, HAPAX_DSN=dsn(env, "postgres")), stdout=subprocess.PIPE, text=True)
        while s.one("SELECT owner LIKE 'reconcile/%%' FROM hapax.keys WHERE scope = 'stray' AND key = '%s'" % key) != "t":
            pass
        expire(s, key, "stray")
        equal(s.one("SELECT status FROM hapax.reserve('stray', '%s', owner => 'other')" % key), "unknown")
        with open(fifo, "w", encoding="utf-8") as f:
            f.write("go\n")
        equal((r.communicate()[0], r.returncode), ("stray  %s  lost\n" % key, 0))
        equal(s.rows("SELECT state, owner FROM hapax.keys WHERE scope = 'stray' AND key = '%s'" % key), [("in_flight", "other")])
        s.rows("SELECT hapax.release('stray', '%s')" % key)


@test
def a_reservation_released_while_a_reconciler_reaches_for_it_stays_free(env):
    s, admin = env.session(), env.session()
    strand(s, "freed", fence=3)
    s.rows("BEGIN; SELECT hapax.release('stray', 'freed', 3)")
    r = subprocess.Popen([HAPAX, "gate", *RECONCILE, "--exec", "echo must not run"], env=dict(os.environ, HAPAX_DSN=dsn(env, "postgres")),
                         stdout=subprocess.PIPE, text=True)
    while admin.one("SELECT count(*) FROM pg_locks WHERE NOT granted") == "0":
        pass
    s.rows("COMMIT")
    equal((r.communicate()[0], r.returncode), ("", 0))
    equal(s.one("SELECT status FROM hapax.claim('stray', 'freed', fence => 9)"), "new")


@test
def a_reconciler_killed_in_the_middle_holds_no_transaction_and_loses_nothing(env):
    s = env.session()
    strand(s, "crash")
    fifo = os.path.join(env.server.home, "running")
    os.mkfifo(fifo)
    r = subprocess.Popen([HAPAX, "gate", *RECONCILE, "--exec", "echo > '%s'; sleep 300" % fifo],
                         env=dict(os.environ, HAPAX_DSN=dsn(env, "postgres")), stdout=subprocess.DEVNULL)
    with open(fifo, encoding="utf-8") as f:
        f.read()
    open_work = env.monitor.rows("SELECT state, backend_xid, backend_xmin FROM pg_stat_activity WHERE application_name = 'hapax'")
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(r.pid)], stdout=subprocess.PIPE, text=True).stdout.split()
    r.kill()
    r.wait()
    for pid in children:
        os.killpg(int(pid), signal.SIGKILL)
    equal(open_work, [("idle", None, None)])
    equal(s.one("SELECT status FROM hapax.reserve('stray', 'crash')"), "in_flight")
    expire(s, "crash", "stray")
    gate(env, "postgres", *RECONCILE, "--exec", "exit 101", says="released")


@test
def a_connection_cut_around_a_reconcilers_statements_is_told_as_unknown_and_settled_the_next_time(env):
    s = env.session()
    after = {("hapax.reserve", "request"): "in_flight", ("hapax.reserve", "reply"): "in_flight",
             ("hapax.commit_outcome", "request"): "in_flight", ("hapax.commit_outcome", "reply"): "done"}
    for (statement, cut), state in after.items():
        key = "cut %s %s" % (statement[6:], cut)
        strand(s, key, fence=5)
        with Proxy(env.server, statement.encode(), cut) as proxy:
            where = "host=%s user=postgres dbname=postgres gssencmode=disable" % proxy.home
            gate(env, "postgres", *RECONCILE, "--dsn", where, "--exec", "printf found", code=3, says="not known whether")
        env.settled_down()
        equal(s.one("SELECT state FROM hapax.keys WHERE key = '%s'" % key), state, key)
        expire(s, key, "stray")
        gate(env, "postgres", *RECONCILE, "--exec", "printf found")
        equal(s.rows("SELECT status, convert_from(result, 'UTF8') FROM hapax.claim('stray', '%s')" % key), [("duplicate", "found")])


@test
def a_reconciler_waits_for_a_database_that_is_away_and_goes_on(env):
    strand(env.session(), "later")
    r = subprocess.Popen([HAPAX, "gate", "reconcile", "--older-than", "0s", "--every", "20ms", "--scope", "stray", "--exec",
                          "test $HAPAX_KEY = after && exit 101"],
                         env=dict(os.environ, HAPAX_DSN=dsn(env, "postgres")), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert "later  left" in r.stdout.readline()
    env.close()
    env.server.stop("immediate")
    env.server.start()
    env.monitor = env.server.connect()
    strand(env.session(), "after")
    equal(r.stdout.readline(), "stray  after  released\n")
    r.terminate()
    equal(r.wait(), 0)


harness.main()
