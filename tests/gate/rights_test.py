#!/usr/bin/env python3
"""Who may do what: an application calls functions and touches no table, a caller's search_path changes nothing, and
nobody's planted objects are run or built upon."""

import os
import re

import harness
from harness import MIGRATIONS, ROOT, UNINSTALL, claim, dump, equal, fresh_database, reserve, status, test


def roles(env, *names):
    for name in names:
        env.monitor.rows("DROP ROLE IF EXISTS %s" % name)
        env.monitor.rows("CREATE ROLE %s LOGIN" % name)


def documented_grants():
    with open(os.path.join(ROOT, "docs", "GATE.md"), encoding="utf-8") as f:
        return re.search(r"## Rights.*?```sql\n(.*?)```", f.read(), re.S).group(1)


@test
def an_application_with_the_documented_grants_calls_the_functions_and_touches_no_table(env):
    fresh_database(env, "rights")
    roles(env, "gate_owner", "app", "watcher", "sweeper")
    env.monitor.rows("GRANT CREATE ON DATABASE rights TO gate_owner")
    env.install(env.gate, database="rights", user="gate_owner")
    owner, app = env.session(database="rights", user="gate_owner"), env.session(database="rights", user="app")
    equal(app.code("SELECT hapax.claim('t', 'k')"), "42501")
    owner.rows(documented_grants())
    app.rows("BEGIN; SELECT hapax.require_version(3)")
    equal(status(claim(app, "k")), "new")
    equal(app.one("SELECT hapax.commit_outcome('t', 'k', 'r', effect_id => 'e1')"), "committed")
    app.rows("COMMIT")
    equal(app.one("SELECT hapax.commit_outcome('t', 'k', 'r'::bytea, effect_id => 'e2')"), "duplicate")
    equal(app.one("SELECT hapax.settled_as('t', 'k')"), "done")
    equal(status(reserve(app, "r", fence=1)), "new")
    equal(app.one("SELECT status FROM hapax.step('t', 'r', 's', 'text')"), "new")
    equal(app.one("SELECT hapax.release('t', 'r')"), "released")
    app.rows("SELECT * FROM hapax.stranded('0'); SELECT hapax.expect(1)")
    for table in ("entry", "steps", "extra_effect", "tally", "total", "scope", "schema_version"):
        for verb in ("SELECT * FROM hapax.%s", "DELETE FROM hapax.%s", "INSERT INTO hapax.%s DEFAULT VALUES", "TRUNCATE hapax.%s"):
            equal(app.code(verb % table), "42501", verb % table)
    equal(app.code("UPDATE hapax.entry SET result = 'forged'"), "42501")
    for call in ("sweep()", "sweep_scope('t', '0', 1)", "admit('t', 'k', NULL, NULL, NULL, NULL, false)", "hold('step', 't', 'k', 1, 1)",
                 "settle('t', 'k', NULL, NULL, NULL, 1, 'done', 1)", "made_late('t', 'k', NULL)", "check_name('a', 'b')"):
        equal(app.code("SELECT hapax." + call), "42501", call)
    watcher, sweeper = env.session(database="rights", user="watcher"), env.session(database="rights", user="sweeper")
    equal(watcher.one("SELECT claims FROM hapax.signals"), "2")
    equal(len(watcher.rows("SELECT * FROM hapax.keys")), 2)
    owner.rows("INSERT INTO hapax.scope VALUES ('t', '0')")
    equal(sweeper.one("SELECT hapax.sweep()"), "2")


# What the gate's own statements would use of a hostile schema if they could: each raises EV111.
PLANTED = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.planted() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted' USING ERRCODE = 'EV111'; END $$;
DO $$
DECLARE
    t text;
    o text;
BEGIN
    FOREACH t IN ARRAY ARRAY['int', 'bigint', 'text', 'bytea', 'timestamptz', 'interval', 'boolean', 'xid8', 'hapax.state', 'oid', 'name', 'tid'] LOOP
        CONTINUE WHEN t LIKE 'hapax.%' AND to_regtype(t) IS NULL;
        FOREACH o IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>=', '~', '||', '+', '-'] LOOP
            EXECUTE format('CREATE FUNCTION evil.f(%1$s, %1$s) RETURNS boolean LANGUAGE sql AS ''SELECT evil.planted()''', t);
            EXECUTE format('CREATE OPERATOR evil.%1$s (FUNCTION = evil.f, LEFTARG = %2$s, RIGHTARG = %2$s)', o, t);
            EXECUTE format('ALTER FUNCTION evil.f(%1$s, %1$s) RENAME TO f_%2$s', t, md5(o || t));
        END LOOP;
    END LOOP;
END
$$;
CREATE FUNCTION evil.later(timestamptz, interval) RETURNS timestamptz LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN now() END';
CREATE OPERATOR evil.+ (FUNCTION = evil.later, LEFTARG = timestamptz, RIGHTARG = interval);
CREATE COLLATION evil."C" (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
CREATE COLLATION evil."POSIX" FROM evil."C";
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.planted());
CREATE DOMAIN evil.timestamptz AS pg_catalog.timestamptz CHECK (evil.planted());
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN now() END';
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN pg_catalog.now() END';
CREATE FUNCTION evil.length(text) RETURNS int LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN 1 END';
CREATE FUNCTION evil.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN $1 END';
CREATE FUNCTION evil.convert_to(text, name) RETURNS bytea LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN ''''::bytea END';
CREATE FUNCTION evil.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.planted()';
CREATE FUNCTION evil.hashtext(text) RETURNS int LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN 1 END';
CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS 'SELECT CASE WHEN evil.planted() THEN pg_catalog.pg_current_xact_id() END';
"""


@test
def nothing_planted_in_a_callers_search_path_is_ever_run(env):
    fresh_database(env, "planted")
    env.install(env.gate, database="planted")
    s = env.session(database="planted")
    s.rows(PLANTED)
    s.rows("SET search_path = evil, pg_catalog")
    equal(s.code("SELECT 1 = 1"), "EV111", "the trap is set")
    for path in ("evil, pg_catalog", "pg_catalog, evil", "evil", "''"):
        s.rows("SET search_path = " + path)
        k = "k" + re.sub("[^a-z]", "", path)
        for call in ("claim('t', '{0}', 'f', 1, 'o')", "claim('t', '{0}', 'g', 1, 'o')", "claim('t', '{0}', 'f', 1, 'o')",
                     "reserve('t', '{0}r', 'f', 1, 'o')", "reserve('t', '{0}r', 'f', 1, 'o')", "reserve('t', '{0}r', 'f', 2, 'p')",
                     "step('t', '{0}r', 'one', 'r', 2, 2)", "step('t', '{0}r', 'two', 'r'::bytea, 2)", "step('t', '{0}r', 'three', record => false)",
                     "commit_outcome('t', '{0}r', 'text', effect_id => 'e')", "commit_outcome('t', '{0}r', 'b'::bytea, effect_id => 'f')",
                     "settled_as('t', '{0}')", "reserve('t', '{0}s')", "release('t', '{0}s', 3)", "stranded('1 hour')", "expect(1)",
                     "require_version(3)", "sweep()"):
            equal(s.code("SELECT hapax." + call.format(k)), "00000", "%s under %s" % (call, path))
        equal(status(claim(s, k.upper())), "new", "names are compared in C, not in a collation of the caller's")
        s.rows("BEGIN")
        equal(status(claim(s, k + "o")), "new")
        equal(s.one("SELECT hapax.commit_outcome('t', '%so', 'r')" % k), "committed")
        s.rows("COMMIT")
        for call, code in (("claim('t', NULL)", "HX003"), ("claim('t', '')", "HX003"), ("claim('t', repeat('k', 256))", "HX003"), ("commit_outcome('t', '{0}', fence => 0)", "HX001"), ("step('t', '{0}', 'late')", "HX005"),
                           ("release('t', 'none')", "HX002"), ("require_version(9)", "HX006")):
            equal(s.code("SELECT hapax." + call.format(k)), code, "%s under %s" % (call, path))
        for view in ("keys", "signals"):
            s.rows("SELECT * FROM hapax." + view)


@test
def nothing_planted_is_run_by_installing_upgrading_and_removing(env):
    for name in ("planted_new", "planted_old"):
        fresh_database(env, name)
        s = env.session(database=name)
        if name == "planted_old":
            env.install(harness.V1, database=name)
        s.rows(PLANTED)
        s.rows("ALTER DATABASE %s SET search_path = evil, pg_catalog" % name)
    steps = sorted(os.path.join(MIGRATIONS, f) for f in os.listdir(MIGRATIONS) if f.endswith(".sql"))
    env.install(env.gate, env.gate, UNINSTALL, database="planted_new")
    env.install(*steps[1:], env.gate, database="planted_old")


@test
def every_function_has_a_search_path_of_its_own_or_names_every_schema(env):
    s = env.session()
    loose = s.rows("SELECT p.oid::regprocedure, p.prosrc FROM pg_proc p WHERE p.pronamespace = 'hapax'::regnamespace"
                   " AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false) ORDER BY p.proname")
    equal([re.sub(r"\(.*", "", name) for name, _ in loose], ["hapax.bytes_of", "hapax.claim", "hapax.commit_outcome", "hapax.commit_outcome", "hapax.is_ours", "hapax.settled_as", "hapax.step"])
    for name, body in loose:
        # What is left when all that has its schema is taken away, and what needs none: assignments, and the keyword greatest.
        plain = re.sub(r"'[^']*'|OPERATOR\(pg_catalog\.[^)]*\)|(::)?\b(pg_catalog|hapax)\.(\w+|\"C\")|:=|(SET|,)\s+\w+ = |a\.\*|\bgreatest\(", "", body)
        assert not re.search(r"(?<![.\w])[a-z_]+\(|[=<>~|+*/:-]|COLLATE \"", plain), (name, plain)
        # Words that stand for an operator, and variables, whose types would be looked for in the path.
        assert not re.search(r"\b(BETWEEN|IN|DISTINCT|LIKE|ANY|ALL|SIMILAR|USING|CAST|DECLARE)\b|\bCASE [^W]", plain), (name, plain)


@test
def a_schema_or_an_object_of_somebody_elses_is_not_built_upon(env):
    roles(env, "mallory")
    fresh_database(env, "premade")
    env.monitor.rows("GRANT CREATE ON DATABASE premade TO mallory")
    mallory, s = env.session(database="premade", user="mallory"), env.session(database="premade")

    def refused(whose):
        done = env.server.psql("-v", "VERBOSITY=verbose", "-d", "premade", "-f", env.gate)  # without ON_ERROR_STOP on purpose
        assert "HX008" in done.stdout and whose in done.stdout, done.stdout
        equal(s.one("SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('hapax') AND relname = 'entry'"), "0")

    mallory.rows("CREATE SCHEMA hapax")
    refused("schema hapax belongs to mallory")
    mallory.rows("CREATE FUNCTION hapax.claim(scope text, key text) RETURNS text LANGUAGE sql AS $$ SELECT 'new' $$")
    refused("schema hapax belongs to mallory")
    s.rows("ALTER SCHEMA hapax OWNER TO postgres")
    refused("hapax.claim(text,text) belongs to mallory")
    s.rows("SET client_min_messages = error; DROP SCHEMA hapax CASCADE; CREATE SCHEMA hapax; GRANT CREATE ON SCHEMA hapax TO mallory")
    mallory.rows("CREATE TABLE hapax.schema_version (version int)")
    refused("hapax.schema_version belongs to mallory")
    for whom in ("mallory", "PUBLIC"):
        s.rows(f"DROP SCHEMA hapax CASCADE; CREATE SCHEMA hapax AUTHORIZATION postgres; GRANT CREATE ON SCHEMA hapax TO {whom}")
        refused("everybody may create in schema hapax" if whom == "PUBLIC" else "mallory may create in schema hapax")
    s.rows("DROP SCHEMA hapax CASCADE; CREATE SCHEMA hapax AUTHORIZATION postgres")
    env.install(env.gate, database="premade")
    # Nor is a gate of somebody else's replaced by whoever has the power to: its functions would then have two owners.
    s.rows("CREATE ROLE other_admin SUPERUSER LOGIN")
    before = dump(env, "premade")
    done = env.server.psql("-v", "VERBOSITY=sqlstate", "-d", "premade", "-U", "other_admin", "-f", env.gate)
    assert "HX008" in done.stdout, done.stdout
    equal(dump(env, "premade"), before)
    s.rows("DROP ROLE other_admin")


harness.main()
