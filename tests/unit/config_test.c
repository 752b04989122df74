/* The config file: what it says is what the queue gets, and whatever is wrong with it gets one line that says where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/config.h"
#include "config/template.h"

#define HOUR_MS ((i64)3600 * 1000)
#define DAY_MS  (24 * HOUR_MS)

static const struct config_use as_lint = {0}, as_daemon = {.secrets = SECRETS_FROM_ENVIRONMENT};

static struct config *parse(const char *yaml) {
    struct config *c;
    struct buf errors = {0};
    if (config_parse(slice_str(yaml), "f", &as_lint, &c, &errors) != ST_OK)
        fail_msg("%.*s%s", (int)errors.len, errors.p, yaml);
    return c;
}

/* A config with one queue of these keys; `queue` is "key: value" lines without indentation, or a flow map. */
static struct config *parse_queue(const char *flow) {
    char yaml[4096];
    snprintf(yaml, sizeof yaml, "queues:\n  q: {%s}\n", flow);
    return parse(yaml);
}

static void assert_slice(slice s, const char *expected) {
    assert_int_equal(s.n, strlen(expected));
    assert_memory_equal(s.p, expected, s.n);
}

static void assert_json(const struct queue_config *q, const char *expected) {
    struct buf b = {0};
    config_queue_to_json(q, &b);
    buf_char(&b, '\0');
    assert_string_equal(b.p, expected);
    buf_free(&b);
}

static void the_contracts_example_is_read(void **state) {
    (void)state;
    static const char yaml[] = "listen: 127.0.0.1:4279\n"
                               "data: ./hapax-data\n"
                               "queues:\n"
                               "  payments:\n"
                               "    class: money\n"
                               "    semantics: exactly_once\n"
                               "    key: \"capture:${payment_intent_id}\"\n"
                               "    fingerprint: {ignore: [sent_at, retry]}\n"
                               "    schema: {required: [payment_intent_id, amount], types: {amount: integer}}\n"
                               "    window: forever\n"
                               "    upstream_replay: 7d\n"
                               "    keep_payload: 24h\n"
                               "    lease: 30s\n"
                               "    on_unknown: reconcile\n"
                               "    on_conflict: reject\n"
                               "    order_by: \"${user_id}\"\n"
                               "    retry:\n"
                               "      transient: {attempts: 6, backoff: 1s, max: 5m}\n"
                               "      unknown: {attempts: 3}\n"
                               "      crashes: {attempts: 3}\n"
                               "    dead: {owner: payments-oncall, alert: {count: 10, within: 15m}}\n"
                               "    lag: {p95: 30s, alert: 5m, for: 2m}\n"
                               "    limits: {pending: 100000, bytes: 1GiB, payload: 256KiB}\n";
    struct config *c = parse(yaml);
    assert_int_equal(c->listen.count, 1);
    assert_slice(c->listen.at[0].address, "127.0.0.1:4279");
    assert_slice(c->data, "./hapax-data");
    assert_false(c->auto_create);
    assert_int_equal(c->audit_keep_ms, 90 * DAY_MS);
    const struct queue_config *q = config_find(c, SL("payments"));
    assert_int_equal(q->preset, PRESET_MONEY);
    assert_slice(template_text(q->key), "capture:${payment_intent_id}");
    assert_slice(template_text(q->order_by), "${user_id}");
    assert_non_null(q->schema);
    assert_true(q->rules.window_ms == WINDOW_FOREVER);
    assert_int_equal(q->upstream_replay_ms, 7 * DAY_MS);
    assert_int_equal(q->rules.keep_payload_ms, DAY_MS);
    assert_int_equal(q->rules.lease_ms, 30000);
    assert_int_equal(q->rules.on_unknown, ON_UNKNOWN_RECONCILE);
    assert_int_equal(q->rules.transient_attempts, 6);
    assert_int_equal(q->rules.backoff_max_ms, 300000);
    assert_slice(q->dead_owner, "payments-oncall");
    assert_int_equal(q->dead_alert_count, 10);
    assert_int_equal(q->dead_alert_within_ms, 15 * 60000);
    assert_int_equal(q->lag_alert_ms, 5 * 60000);
    assert_int_equal(q->rules.limit_pending, 100000);
    assert_int_equal(q->rules.limit_bytes, (u64)1 << 30);
    assert_int_equal(q->payload_max, 256 << 10);
    assert_slice(q->file, "f");
    assert_int_equal(q->at.line, 4);
    assert_int_equal(q->said[QUEUE_KEY_retry_transient_max].line, 18);
    assert_int_equal(q->said[QUEUE_KEY_loss].line, 0);
    config_free(c);
}

static void a_class_presets_and_single_keys_override_it(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        u8 semantics, on_unknown;
        i64 window_ms;
    } cases[] = {
        {"", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_RETRY, DAY_MS},
        {"class: none", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_RETRY, DAY_MS},
        {"class: money", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_RECONCILE, WINDOW_FOREVER},
        {"class: notification", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_RETRY, DAY_MS},
        {"class: analytics", SEMANTICS_AT_MOST_ONCE, ON_UNKNOWN_RETRY, DAY_MS},
        {"class: audit", SEMANTICS_AT_LEAST_ONCE, ON_UNKNOWN_RETRY, DAY_MS},
        {"class: money, window: 90d", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_RECONCILE, 90 * DAY_MS},
        {"window: 90d, on_unknown: hold, class: money", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_HOLD, 90 * DAY_MS},
        {"class: money, semantics: at_most_once", SEMANTICS_AT_MOST_ONCE, ON_UNKNOWN_RETRY, WINDOW_FOREVER},
        {"semantics: exactly_once, class: audit", SEMANTICS_EXACTLY_ONCE, ON_UNKNOWN_RETRY, DAY_MS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config *c = parse_queue(cases[i].keys);
        const struct rules *r = &c->queues.at[0]->rules;
        assert_int_equal(r->semantics, cases[i].semantics);
        assert_int_equal(r->on_unknown, cases[i].on_unknown);
        assert_true(r->window_ms == cases[i].window_ms);
        config_free(c);
    }
}

static void units_are_understood(void **state) {
    (void)state;
    struct config *c =
        parse_queue("lease: 45, window: {min: 72h, max: 14d}, keep_payload: 1500ms, upstreams: {dlq: 7d, cron: 1d},"
                    "limits: {bytes: 10MB, payload: 512, lag: 5m}, refused: {keep: 0, bytes: 1kB}");
    const struct queue_config *q = c->queues.at[0];
    assert_int_equal(q->rules.lease_ms, 45000);
    assert_int_equal(q->rules.window_ms, 72 * HOUR_MS);
    assert_int_equal(q->rules.window_min_ms, 72 * HOUR_MS);
    assert_int_equal(q->rules.window_max_ms, 14 * DAY_MS);
    assert_int_equal(q->rules.keep_payload_ms, 1500);
    assert_int_equal(config_longest_replay_ms(q), 7 * DAY_MS);
    assert_int_equal(q->rules.limit_bytes, 10000000);
    assert_int_equal(q->payload_max, 512);
    assert_int_equal(q->rules.limit_lag_ms, 5 * 60000);
    assert_int_equal(q->rules.refused_kept, 0);
    assert_int_equal(q->rules.refused_bytes, 1000);
    config_free(c);
    static const struct {
        const char *text;
        u32 ppm;
    } percents[] = {{"0.01%", 100}, {"1%", 10000}, {"100%", 1000000}, {"0.0001%", 1}, {"12.5%", 125000}};
    for (size_t i = 0; i < sizeof percents / sizeof *percents; i++) {
        char flow[64], json[64];
        snprintf(flow, sizeof flow, "class: analytics, loss: %s", percents[i].text);
        snprintf(json, sizeof json, "\"loss\":\"%s\"", percents[i].text);
        c = parse_queue(flow);
        assert_int_equal(c->queues.at[0]->loss_ppm, percents[i].ppm);
        struct buf b = {0};
        config_queue_to_json(c->queues.at[0], &b);
        buf_char(&b, '\0');
        assert_non_null(strstr(b.p, json));
        buf_free(&b);
        config_free(c);
    }
}

/* ---- what is wrong */

struct wrong {
    const char *yaml, *error;
};

/* `text` is lines without the last newline. Leaves the errors as they are. */
static bool is_lines(const struct buf *errors, const char *text) {
    size_t n = strlen(text);
    return errors->len == n + 1 && memcmp(errors->p, text, n) == 0 && errors->p[n] == '\n';
}

/* Every case is looked at before the test fails. */
static void assert_wrong(const struct wrong *cases, size_t count) {
    int failures = 0;
    for (const struct wrong *w = cases; w < cases + count; w++) {
        struct config *c;
        struct buf errors = {0};
        bool refused = config_parse(slice_str(w->yaml), "f", &as_lint, &c, &errors) == ST_INVALID && !c;
        if (!refused || !is_lines(&errors, w->error)) {
            print_error("%s\n  expected: %s\n  got:      %.*s\n", w->yaml, w->error, (int)errors.len,
                        refused ? errors.p : "no error");
            failures++;
        }
        buf_free(&errors);
        config_free(c);
    }
    assert_int_equal(failures, 0);
}

#define Q(keys) "queues:\n  q: {" keys "}\n"
#define HASH    "00000000000000000000000000000000000000000000000000000000000000" /* and two more digits */
#define TOKEN(name, digits, allow, more)                                                                               \
    "tokens: [{name: " name ", sha256: [" HASH digits "], allow: " allow more "}]\n"

static void whatever_is_wrong_gets_one_line_with_its_place(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        /* shapes */
        {"", "f:1:1: the file is empty"},
        {"just text\n", "f:1:1: expected keys like listen, data and queues, not text"},
        {"[a]\n", "f:1:1: expected keys like listen, data and queues, not a list"},
        {"null\n", "f:1:1: expected keys like listen, data and queues, not nothing"},
        {"queues:\n", "f:1:8: queues: nothing is given; leave the line out for the default"},
        {"queues: []\n", "f:1:9: queues: expected a map of queues, not a list"},
        {"queues: {q: }\n", "f:1:13: queue q: nothing is given; write {} for the default rules"},
        {"queues: {q: 5}\n", "f:1:13: queue q: expected a map, not text"},
        {"queues: {q: [a]}\n", "f:1:13: queue q: expected a map, not a list"},
        {"queues: {'a b': {}}\n", "f:1:10: queues: a queue name is made of letters, digits and _ - . : only"},
        {"queues: {'': {}}\n", "f:1:10: queues: a key is missing before ':'"},
        /* unknown names */
        {"listne: x\n", "f:1:1: no key \"listne\". Did you mean listen?"},
        {"zzz: x\n",
         "f:1:1: no key \"zzz\": known are listen, data, insecure_listen, hosts, tokens, anonymous, tenants, "
         "auto_create, audit_keep, limits, alerts, relay, sources, proxies, queues"},
        {Q("windw: 1d"), "f:2:7: queue q: no key \"windw\". Did you mean window?"},
        {Q("Lease: 1d"), "f:2:7: queue q: no key \"Lease\". Did you mean lease?"},
        {Q("visibility_timeout: 30s"), "f:2:7: queue q: no key \"visibility_timeout\". Did you mean lease?"},
        {Q("push: {timeout: 10s}"), "f:2:7: queue q: no key \"push\". Did you mean deliver?"},
        {Q("completely_else: 1"), "f:2:7: queue q: no key \"completely_else\""},
        {Q("retry: {transient: {atempts: 3}}"),
         "f:2:27: queue q: retry.transient: no key \"atempts\". Did you mean attempts?"},
        {Q("dead: {alert: {every: 1}}"), "f:2:22: queue q: dead.alert: no key \"every\": known are count, within"},
        {Q("window: {mn: 1h, max: 2h}"), "f:2:16: queue q: window: no key \"mn\": an adaptive window has min and max"},
        /* tokens */
        {"tokens: {}\n", "f:1:9: tokens: expected a list of maps, not a map"},
        {"tokens: [x]\n", "f:1:10: tokens[0]: expected a map with name, sha256, allow, tenant, expires, not text"},
        {"tokens: [{name: a}]\n", "f:1:10: tokens[0]: sha256 is missing\nf:1:10: tokens[0]: allow is missing"},
        {TOKEN("a", "A1", "[send]", ", expire: 2027-01-01"),
         "f:1:111: tokens[0]: no key \"expire\". Did you mean expires?"},
        {TOKEN("anonymous", "A1", "[send]", ""),
         "f:1:17: tokens[0].name: anonymous is the name of calls without a token"},
        {TOKEN("a/b", "A1", "[send]", ""),
         "f:1:17: tokens[0].name: a token's name is made of letters, digits and _ - . only, at most 64"},
        {"tokens: [{name: a, allow: [send], sha256: [hx_secret]}]\n",
         "f:1:44: tokens[0].sha256[0]: not the SHA-256 of a token: 64 hexadecimal digits, as `hapax token new` prints"},
        {"tokens: [{name: a, allow: [send], sha256: []}]\n",
         "f:1:43: tokens[0].sha256: empty: this token could never be shown"},
        {"tokens: [{name: a, allow: [send], sha256: hx_secret}]\n",
         "f:1:43: tokens[0].sha256: expected a list of SHA-256 hashes in hexadecimal, not text"},
        {TOKEN("a", "A1", "[sned]", ""),
         "f:1:104: tokens[0].allow[0]: \"sned\" is no right: there are send, receive, result, operate, observe and "
         "admin. Did you mean send?"},
        {TOKEN("a", "A1", "['send:a b']", ""),
         "f:1:104: tokens[0].allow[0]: behind the right stands a queue's name, in which * stands for any characters: "
         "letters, digits and _ - . : * only, at most 128"},
        {TOKEN("a", "A1", "['send:']", ""),
         "f:1:104: tokens[0].allow[0]: behind the right stands a queue's name, in which * stands for any characters: "
         "letters, digits and _ - . : * only, at most 128"},
        {TOKEN("a", "A1", "send", ""),
         "f:1:103: tokens[0].allow: expected a list of rights like observe or send:payments, not text"},
        {TOKEN("a", "A1", "[send]", ", expires: tomorrow"),
         "f:1:120: tokens[0].expires: \"tomorrow\" is not a date like 2027-01-01, or 2027-01-01T12:00:00Z"},
        {TOKEN("a", "A1", "[send]", ", expires: 2027-02-30"),
         "f:1:120: tokens[0].expires: \"2027-02-30\" is not a date like 2027-01-01, or 2027-01-01T12:00:00Z"},
        {TOKEN("a", "A1", "[send]", ", tenant: nobody"),
         "f:1:119: tokens[0].tenant: there is no tenant nobody in `tenants`"},
        {"tokens: [{name: a, sha256: [" HASH "A1], allow: []}, {name: a, sha256: [" HASH "A2], allow: []}]\n",
         "f:1:115: tokens[1].name: there is a token a already, in line 1"},
        {"tokens: [{name: a, sha256: [" HASH "A1], allow: []}, {name: b, sha256: [" HASH "a1], allow: []}]\n",
         "f:1:127: tokens[1].sha256[0]: the same token twice"},
        {"anonymous: observe\n",
         "f:1:12: anonymous: expected a list of rights like observe or send:payments, not text"},
        /* wrong kinds */
        {Q("lease: {a: 1}"), "f:2:14: queue q: lease: expected a duration like 500ms, 30s, 5m or 14d, not a map"},
        {Q("lease: [30s]"), "f:2:14: queue q: lease: expected a duration like 500ms, 30s, 5m or 14d, not a list"},
        {Q("lease: ~"), "f:2:14: queue q: lease: nothing is given; leave the line out for the default"},
        {Q("retry: 5"), "f:2:14: queue q: retry: expected a map with transient, unknown, crashes, not text"},
        {Q("retry: {unknown: 5}"), "f:2:24: queue q: retry.unknown: expected a map with attempts, not text"},
        {Q("retry: {unknown: }"),
         "f:2:24: queue q: retry.unknown: nothing is given; leave the line out for the default"},
        {Q("upstreams: 7d"), "f:2:18: queue q: upstreams: \"7d\" is not a map of names to durations"},
        {Q("upstreams: {dlq: x}"),
         "f:2:24: queue q: upstreams.dlq: \"x\" is not a duration like 500ms, 30s, 5m or 14d"},
        {Q("key: [a]"), "f:2:12: queue q: key: expected a template like \"capture:${payment_id}\", not a list"},
        {Q("dead: {owner: {a: b}}"), "f:2:21: queue q: dead.owner: expected text, not a map"},
        {Q("dead: {owner: ''}"), "f:2:21: queue q: dead.owner: empty"},
        {"hosts: queue.example.com\n",
         "f:1:8: hosts: \"queue.example.com\" is not a list of host names like queue.example.com, without ports"},
        {"hosts: [a.example:4279]\n",
         "f:1:9: hosts[0]: \"a.example:4279\" is neither a host name nor an address, without a port, nor *"},
        {"hosts: ['*.example']\n",
         "f:1:9: hosts[0]: \"*.example\" is neither a host name nor an address, without a port, nor *"},
        {"hosts: ['']\n", "f:1:9: hosts[0]: empty"},
        {"hosts: [~]\n", "f:1:9: hosts[0]: nothing is given; leave the line out for the default"},
        {"auto_create: yes\n", "f:1:14: auto_create: \"yes\" is not true or false"},
        {"auto_create: 'true'\n", "f:1:14: auto_create: \"true\" is not true or false"},
        {"relay: {dsn: x}\n", "f:1:8: relay: expected a list of maps, not a map"},
        {"relay: [x]\n",
         "f:1:9: relay[0]: expected a map with dsn, queue, table, group, workers, batch, poll, timeout, not text"},
        {"relay: [{queue: a}]\n", "f:1:9: relay[0]: dsn is missing"},
        {"relay: [{dsn: x, queue: 'a b'}]\n",
         "f:1:25: relay[0].queue: a queue name is made of letters, digits and _ - . : only"},
        /* numbers and units */
        {Q("lease: 30x"), "f:2:14: queue q: lease: \"30x\" is not a duration like 500ms, 30s, 5m or 14d"},
        {Q("lease: 1.5s"), "f:2:14: queue q: lease: \"1.5s\" is not a duration like 500ms, 30s, 5m or 14d"},
        {Q("lease: -5s"), "f:2:14: queue q: lease: -5s is negative"},
        {Q("lease: 10ms"), "f:2:14: queue q: lease: 10ms is outside 1s to 12h"},
        {Q("lease: 13h"), "f:2:14: queue q: lease: 13h is outside 1s to 12h"},
        {Q("window: 1e9d"), "f:2:15: queue q: window: \"1e9d\" is not a duration, forever, or {min: 72h, max: 14d}"},
        {Q("window: 999999d"), "f:2:15: queue q: window: 999999d is outside 1s to 36500d; say forever"},
        {Q("window: 99999999999999999999d"), "f:2:15: queue q: window: this number is too large"},
        {Q("window: 0"), "f:2:15: queue q: window: 0 is outside 1s to 36500d"},
        {Q("window: fourever"),
         "f:2:15: queue q: window: \"fourever\" is not a duration, forever, or {min: 72h, max: 14d}"},
        {Q("window: {min: 72h}"), "f:2:15: queue q: window: an adaptive window needs both min and max"},
        {Q("window: {min: 3d, max: 2d}"), "f:2:15: queue q: window: min is above max"},
        {Q("window: {min: 3d, max: forever}"),
         "f:2:30: queue q: window.max: \"forever\" is not a duration like 500ms, 30s, 5m or 14d"},
        {Q("retry: {unknown: {attempts: 0}}"), "f:2:35: queue q: retry.unknown.attempts: 0 is outside 1 to 1000"},
        {Q("retry: {unknown: {attempts: 1e3}}"),
         "f:2:35: queue q: retry.unknown.attempts: \"1e3\" is not a whole number"},
        {Q("retry: {unknown: {attempts: 99999999999999999999}}"),
         "f:2:35: queue q: retry.unknown.attempts: this number is too large"},
        {Q("limits: {bytes: 1 GiB}"),
         "f:2:23: queue q: limits.bytes: \"1 GiB\" is not a size like 512, 256KiB or 10MB"},
        {Q("limits: {bytes: 99999999999TiB}"), "f:2:23: queue q: limits.bytes: this number is too large"},
        {Q("limits: {payload: 2MiB}"), "f:2:25: queue q: limits.payload: 2MiB is outside 1B to 1MiB"},
        {Q("class: analytics, loss: 0.01"), "f:2:31: queue q: loss: \"0.01\" is not a percentage like 0.01%"},
        {Q("class: analytics, loss: 101%"), "f:2:31: queue q: loss: \"101%\" is not a percentage like 0.01%"},
        {Q("class: analytics, loss: 0%"), "f:2:31: queue q: loss: 0% is outside 0.0001% to 100%"},
        {"audit_keep: 1h\n", "f:1:13: audit_keep: 1h is outside 1d to 36500d"},
        {"listen: here\n", "f:1:9: listen: \"here\" is not an address like 127.0.0.1:4279"},
        {"listen: 127.0.0.1:99999\n", "f:1:9: listen: \"127.0.0.1:99999\" is not an address like 127.0.0.1:4279"},
        {"listen: ::1:4279\n", "f:1:9: listen: \"::1:4279\" is not an address like 127.0.0.1:4279"},
        {"listen: ':4279'\n", "f:1:9: listen: \":4279\" is not an address like 127.0.0.1:4279"},
        /* words */
        {Q("semantics: exactly-once"),
         "f:2:18: queue q: semantics: \"exactly-once\" is none of exactly_once, at_least_once, "
         "at_most_once. Did you mean exactly_once?"},
        {Q("on_unknown: ask"), "f:2:19: queue q: on_unknown: \"ask\" is none of retry, reconcile, hold"},
        {Q("class: mony"),
         "f:2:14: queue q: class: \"mony\" is none of none, money, notification, analytics, audit. Did you "
         "mean money?"},
        {Q("class: [money]"), "f:2:14: queue q: class: expected one word, not a list"},
        /* templates and variables */
        {Q("key: \"a:${b\""), "f:2:15: queue q: key: the brace opened here is not closed"},
        {Q("key: capture"), "f:2:12: queue q: key: no field in it: it would be the same for every message"},
        {Q("key: \"${a(b)}\""), "f:2:15: queue q: key: unknown function: templates have none"},
        {Q("fingerprint: md5"),
         "f:2:20: queue q: fingerprint: expected bytes, json, none, {only: [...]} or {ignore: [...]}"},
        {Q("fingerprint: {only: a}"),
         "f:2:27: queue q: fingerprint.only: expected a list of fields, as in [sent_at, meta.retry]"},
        {Q("schema: {requird: [a]}"),
         "f:2:16: queue q: schema: unknown key requird; a schema has required, types, enum, pattern and max_length"},
        {Q("schema: {types: {a: strng}}"), "f:2:27: queue q: schema.types.a: expected string, integer, number, "
                                           "boolean, object, array or null, found strng"},
        {"data: ${HOME}/x\n", "f:1:7: data: ${...} is for secrets only, and this is none"},
        {Q("dead: {owner: \"${USER}\"}"), "f:2:21: queue q: dead.owner: ${...} is for secrets only, and this is none"},
        {"relay: [{dsn: \"${A-B}\", queue: q}]\n", "f:1:15: relay[0].dsn: ${A-B} names no environment variable"},
        {"relay: [{dsn: \"x${A\", queue: q}]\n", "f:1:15: relay[0].dsn: ${ without its }"},
        {"data: \"a\\nb\"\n", "f:1:7: data: a control character"},
        /* what cannot go together */
        {Q("retry: {transient: {backoff: 10m}}"),
         "f:2:36: queue q: retry.transient.backoff: retry.transient.backoff is above retry.transient.max"},
        {Q("limits: {bytes: 1KiB}"),
         "f:2:23: queue q: limits.bytes: is below limits.payload: the largest message would never fit"},
        {Q("loss: 1%"), "f:2:13: queue q: loss: only an at_most_once queue may lose messages"},
        {Q("class: analytics, on_unknown: hold"),
         "f:2:37: queue q: on_unknown: an at_most_once queue settles what it hands out: no outcome is unknown"},
        {Q("class: analytics, retry: {crashes: {attempts: 2}}"),
         "f:2:53: queue q: retry.crashes.attempts: an at_most_once queue "
         "settles what it hands out: nothing is retried"},
        {Q("class: audit, on_conflict: hold"),
         "f:2:34: queue q: on_conflict: an at_least_once queue takes every arrival: nothing conflicts"},
        {Q("fingerprint: none, on_conflict: hold"),
         "f:2:39: queue q: on_conflict: with fingerprint: none payloads are not compared: nothing conflicts"},
        {Q("dead: {alert: {count: 3}}"), "f:2:29: queue q: dead.alert.count: needs dead.alert.within beside it"},
        {Q("dead: {alert: {within: 3m}}"), "f:2:30: queue q: dead.alert.within: needs dead.alert.count beside it"},
        {Q("lag: {for: 3m}"), "f:2:18: queue q: lag.for: needs lag.alert beside it"},
        {Q("lag: {p95: 30s, alert: 3s}"), "f:2:30: queue q: lag.alert: is below lag.p95: it would always alert"},
    };
    assert_wrong(cases, sizeof cases / sizeof *cases);
}

static void every_mistake_of_a_file_is_told_in_its_order(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {"lisen: 1\n"
         "data: ''\n"
         "relay: [{dsn: x}, {queue: q, wrokers: 2}, 5]\n"
         "queues:\n"
         "  'a b': {lease: 1ms}\n"
         "  pay:\n"
         "    class: mony\n"
         "    window: {min: 0, mx: 1d, max: soon}\n"
         "    key: '${a}${b}'\n"
         "    schema: {required: [a..b, c], types: {d: int, e: [string, text]}, pattern: {f: '('}, colour: red}\n"
         "    fingerprint: {only: ['a[', b, c..d]}\n"
         "    upstreams: {dlq: later, cron: ~}\n"
         "    lease: 5s\n"
         "    lease: 6s\n"
         "    retry: {transient: {attempts: 0}, sometimes: {}}\n"
         "audit_keep: 1h\n",
         "f:1:1: no key \"lisen\". Did you mean listen?\n"
         "f:2:7: data: empty\n"
         "f:3:9: relay[0]: queue is missing\n"
         "f:3:19: relay[1]: dsn is missing\n"
         "f:3:30: relay[1]: no key \"wrokers\". Did you mean workers?\n"
         "f:3:43: relay[2]: expected a map with dsn, queue, table, group, workers, batch, poll, timeout, not text\n"
         "f:5:3: queues: a queue name is made of letters, digits and _ - . : only\n"
         "f:5:18: queue a b: lease: 1ms is outside 1s to 12h\n"
         "f:7:12: queue pay: class: \"mony\" is none of none, money, notification, analytics, audit. Did you mean "
         "money?\n"
         "f:8:19: queue pay: window.min: 0 is outside 1s to 36500d\n"
         "f:8:22: queue pay: window: no key \"mx\": an adaptive window has min and max\n"
         "f:8:35: queue pay: window.max: \"soon\" is not a duration like 500ms, 30s, 5m or 14d\n"
         "f:9:15: queue pay: key: two fields need text between them, best ':'; else different intents could meet in "
         "one "
         "key\n"
         "f:10:25: queue pay: schema.required[0]: \"a..b\": a field name is missing (at its byte 3)\n"
         "f:10:46: queue pay: schema.types.d: expected string, integer, number, boolean, object, array or null, found "
         "int\n"
         "f:10:63: queue pay: schema.types.e[1]: expected string, integer, number, boolean, object, array or null, "
         "found "
         "text\n"
         "f:10:84: queue pay: schema.pattern.f: the group opened here is not closed (at its byte 1)\n"
         "f:10:90: queue pay: schema: unknown key colour; a schema has required, types, enum, pattern and max_length\n"
         "f:11:26: queue pay: fingerprint.only[0]: \"a[\": expected an index from 0 to 1000000, \"name\" or * (at its "
         "byte 3)\n"
         "f:11:35: queue pay: fingerprint.only[2]: \"c..d\": a field name is missing (at its byte 3)\n"
         "f:12:22: queue pay: upstreams.dlq: \"later\" is not a duration like 500ms, 30s, 5m or 14d\n"
         "f:12:35: queue pay: upstreams.cron: nothing is given; leave the line out for the default\n"
         "f:14:5: queue pay: lease is given twice; first on line 13\n"
         "f:15:35: queue pay: retry.transient.attempts: 0 is outside 1 to 1000\n"
         "f:15:39: queue pay: retry: no key \"sometimes\": known are transient, unknown, crashes\n"
         "f:16:13: audit_keep: 1h is outside 1d to 36500d"},
        {"queues:\n  a: {dead: {alert: {count: 1}}, lag: {for: 1s}}\n  b: {loss: 1%, limits: {bytes: 1}}\n",
         "f:2:29: queue a: dead.alert.count: needs dead.alert.within beside it\n"
         "f:2:45: queue a: lag.for: needs lag.alert beside it\n"
         "f:3:13: queue b: loss: only an at_most_once queue may lose messages\n"
         "f:3:33: queue b: limits.bytes: is below limits.payload: the largest message would never fit"},
    };
    assert_wrong(cases, sizeof cases / sizeof *cases);
}

/* What hapaxd will not start with is an error for lint, too. */
static void what_the_daemon_refuses_is_refused_here(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {"listen: 0.0.0.0:4279\n", "f:1:9: listen: 0.0.0.0:4279 is not a loopback address: it needs tls and tokens, or "
                                   "others could read what passes, or send and settle anything. Give "
                                   "--insecure-listen (in the file: insecure_listen: true) if that is what you "
                                   "want."},
        {"listen: [{address: 127.0.0.1:1}, {address: 0.0.0.0:4279}]\n",
         "f:1:34: listen[1]: 0.0.0.0:4279 is not a loopback address: it needs tls and tokens, or others could read "
         "what "
         "passes, or send and settle anything. Give --insecure-listen (in the file: insecure_listen: true) if that is "
         "what you want."},
        {"listen: [{address: 0.0.0.0:1, tls: {cert: c, key: k}}]\n",
         "f:1:10: listen[0]: 0.0.0.0:1 is not a loopback address: it needs tokens, or others could read what passes, "
         "or "
         "send and settle anything. Give --insecure-listen (in the file: insecure_listen: true) if that is what you "
         "want."},
        {"listen: [{address: 127.0.0.1:1, tls: {cert: c}}]\n", "f:1:38: listen[0].tls: needs both cert and key"},
        {"listen: [{address: 127.0.0.1:1, tls: {key: k}}]\n", "f:1:38: listen[0].tls: needs both cert and key"},
        {"listen: [{address: 127.0.0.1:1, tls: {client_ca: a}}]\n", "f:1:38: listen[0].tls: needs both cert and key"},
        {"listen: []\n", "f:1:9: listen: empty: nobody could reach the broker"},
        {"listen: none\n", "f:1:9: listen: address is missing"},
        {"listen: [{}]\n", "f:1:10: listen[0]: address is missing"},
        {"listen: [{address: 127.0.0.1:1}, {address: localhost:1}]\n", "f:1:34: listen[1]: the same address once more"},
        {"listen: broker.example:4279\n",
         "f:1:9: listen: \"broker.example:4279\" is not an address like 127.0.0.1:4279"},
        {"listen: 127.example:4279\n", "f:1:9: listen: \"127.example:4279\" is not an address like 127.0.0.1:4279"},
        {"listen: ::1:4279\n", "f:1:9: listen: \"::1:4279\" is not an address like 127.0.0.1:4279"},
        {"relay: [{dsn: d, queue: a}, {dsn: d, queue: b}]\nqueues:\n  a: {key: '${x}'}\n  b: {class: audit}\n",
         "f:1:25: relay[0].queue: queue a makes its own keys (key:), and a relay sends its rows' ids\n"
         "f:1:45: relay[1].queue: queue b is at_least_once: what a relay sends again would be taken again"},
    };
    assert_wrong(cases, sizeof cases / sizeof *cases);
    static const char *const fine[] = {"listen: '[::1]:0'\n",
                                       "listen: 127.1.2.3:1\n",
                                       "listen: localhost:80\n",
                                       "listen: 0.0.0.0:1\ninsecure_listen: true\n",
                                       "listen: [{address: 127.0.0.1:0}, {address: 127.0.0.1:0}]\n",
                                       "listen: [{address: 127.0.0.1:0, tls: {cert: c, key: k, client_ca: a}}]\n",
                                       "listen: [{address: 127.0.0.1:1}, {address: '[::1]:1'}]\n",
                                       "relay: [{dsn: d, queue: a}]\nqueues: {a: {}}\n"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) config_free(parse(fine[i]));
    struct config *c;
    struct buf errors = {0};
    struct config_use uses[] = {{.listen_elsewhere = true}, {.insecure_listen = true}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(config_parse(SL("listen: 0.0.0.0:1\n"), "f", &uses[i], &c, &errors), ST_OK);
        config_free(c);
    }
}

static void rules_too_long_to_be_written_down_are_refused(void **state) {
    (void)state;
    struct buf yaml = {0}, errors = {0};
    struct config *c;
    buf_lit(&yaml, "queues:\n  q: {schema: {enum: {a: [");
    while (yaml.len < 2 * CONFIG_QUEUE_BYTES_MAX) buf_printf(&yaml, "%zu, ", yaml.len);
    buf_lit(&yaml, "x]}}}\n");
    assert_int_equal(config_parse(buf_slice(&yaml), "f", &as_lint, &c, &errors), ST_INVALID);
    assert_true(is_lines(&errors, "f:2:6: queue q: its rules take more than 32768 bytes"));
    buf_free(&yaml);
    buf_free(&errors);
}

static void a_queue_with_every_kind_of_error_in_it_leaks_nothing(void **state) {
    (void)state;
    /* The template is compiled before the error is found; the sanitizer build watches. */
    static const struct wrong cases[] = {
        {Q("key: \"${a}\", order_by: \"${b}\", lease: x"),
         "f:2:45: queue q: lease: \"x\" is not a duration like 500ms, 30s, 5m or 14d"},
        {"queues:\n  a: {key: \"${x}\"}\n  b: {lease: 0}\n", "f:3:14: queue b: lease: 0 is outside 1s to 12h"},
    };
    assert_wrong(cases, sizeof cases / sizeof *cases);
}

static void files_are_read_and_refused_like_texts(void **state) {
    (void)state;
    char dir[] = "config-test-XXXXXX", path[64], expected[128];
    struct config *c;
    struct buf errors = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/hapax.yaml", dir);
    assert_int_equal(config_load(path, &as_lint, &c, &errors), ST_NOT_FOUND);
    snprintf(expected, sizeof expected, "%s: No such file or directory", path);
    assert_true(is_lines(&errors, expected));
    assert_int_equal(config_load(dir, &as_lint, &c, &errors), ST_IO);
    FILE *f = fopen(path, "w");
    fputs("auto_create: true\n", f);
    fclose(f);
    assert_int_equal(config_load(path, &as_lint, &c, &errors), ST_OK);
    assert_true(c->auto_create);
    assert_slice(c->file, path);
    config_free(c);
    assert_int_equal(truncate(path, 10 << 20), 0);
    buf_reset(&errors);
    assert_int_equal(config_load(path, &as_lint, &c, &errors), ST_INVALID);
    snprintf(expected, sizeof expected, "%s:1:1: larger than 1048576 bytes", path);
    assert_true(is_lines(&errors, expected));
    buf_free(&errors);
    unlink(path);
    rmdir(dir);
}

static void secrets_come_from_the_environment(void **state) {
    (void)state;
    static const char yaml[] =
        "relay: [{dsn: 'host=db password=${HAPAX_TEST_SECRET} x', queue: q}, {dsn: plain, queue: q}]\n";
    struct config *c;
    struct buf errors = {0};
    unsetenv("HAPAX_TEST_SECRET");
    c = parse(yaml);
    assert_slice(c->relays.at[0].dsn, "host=db password=${HAPAX_TEST_SECRET} x");
    assert_false(c->relays.at[0].dsn_plain);
    assert_true(c->relays.at[1].dsn_plain);
    config_free(c);
    assert_int_equal(config_parse(slice_str(yaml), "f", &as_daemon, &c, &errors), ST_INVALID);
    assert_true(is_lines(&errors, "f:1:15: relay[0].dsn: the environment variable HAPAX_TEST_SECRET is not set"));
    buf_free(&errors);
    setenv("HAPAX_TEST_SECRET", "s3${cret}", 1);
    assert_int_equal(config_parse(slice_str(yaml), "f", &as_daemon, &c, &errors), ST_OK);
    assert_slice(c->relays.at[0].dsn, "host=db password=s3${cret} x");
    config_free(c);
}

#define ALERTS(text) "alerts: {" text "}\n"
#define NOTIFY(text) ALERTS("notify: {" text "}")
#define SECRET_TEXT  "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

static void alerts_have_thresholds_and_can_be_off(void **state) {
    (void)state;
    struct config *c =
        parse(ALERTS("disk_low: 5%, sync_slow: 20, off: [lag, disk_low]") "queues:\n  q: {alerts: {oldest_unsettled: "
                                                                          "1m, off: [lag, held_waiting]}}\n  p: {}\n");
    const struct queue_alerts *q = &config_find(c, SL("q"))->alerts, *p = &config_find(c, SL("p"))->alerts;
    assert_int_equal(c->alerts.disk_low_ppm, 50000);
    assert_int_equal(c->alerts.memory_high_ppm, 900000);
    assert_int_equal(c->alerts.sync_slow, 20);
    assert_int_equal(c->alerts.relay_lag_ms, 60000);
    assert_int_equal(c->alerts.off, 1u << ALERT_LAG | 1u << ALERT_DISK_LOW);
    assert_int_equal(q->oldest_unsettled_ms, 60000);
    assert_int_equal(q->off, 1u << ALERT_LAG | 1u << ALERT_HELD_WAITING);
    assert_int_equal(p->duplicates_high_ppm, 200000);
    assert_int_equal(p->oldest_unsettled_ms, 600000);
    assert_int_equal(p->off, 0);
    config_free(c);
}

static void an_alert_that_cannot_be_is_refused(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {Q("alerts: {of: [lag]}"), "f:2:16: queue q: alerts: no key \"of\". Did you mean off?"},
        {Q("alerts: {off: lag}"), "f:2:21: queue q: alerts.off: \"lag\" is not a list"},
        {Q("alerts: {off: [null]}"),
         "f:2:22: queue q: alerts.off[0]: nothing is given; leave the line out for the default"},
        {Q("alerts: {off: [lag, held_wating]}"), "f:2:27: queue q: alerts.off[1]: \"held_wating\" is none of "
                                                 "duplicates_vanished, duplicates_high, late_replays, "
                                                 "oldest_unsettled, doubled_effect, dead_letters, held_waiting, lag, "
                                                 "loss_rate, group_blocked, key_skew, push_down, "
                                                 "ingest_refused, relay_lag. Did you mean held_waiting?"},
        {Q("alerts: {duplicates_high: 20}"),
         "f:2:33: queue q: alerts.duplicates_high: \"20\" is not a percentage like 0.01%"},
        {Q("alerts: {held_waiting: 1ms}"), "f:2:30: queue q: alerts.held_waiting: 1ms is outside 1s to 36500d"},
        {Q("origin: 'x'"), "f:2:16: queue q: origin: no field in it: it would be the same for every message"},
        {ALERTS("sync_slow: 1"), "f:1:21: alerts.sync_slow: 1 is outside 2 to 100000"},
        {NOTIFY("url: 'https://h/x'"), "f:1:24: alerts.notify.url: needs alerts.notify.secrets beside it"},
        {NOTIFY("secrets: [" SECRET_TEXT "]"), "f:1:28: alerts.notify.secrets: needs alerts.notify.url beside it"},
        {NOTIFY("url: 'ftp://h/x'"), "f:1:24: alerts.notify.url: does not begin with https:// or http://"},
        {NOTIFY("url: 'http:///x'"), "f:1:24: alerts.notify.url: has no host"},
        {NOTIFY("url: 'http://h/a b'"), "f:1:24: alerts.notify.url: a blank or control character"},
        {NOTIFY("url: 'http://ada:pw@h/'"), "f:1:24: alerts.notify.url: has a user name or password before the host"},
        {NOTIFY("secrets: x"),
         "f:1:28: alerts.notify.secrets: expected a list of secrets, each text with ${NAME} from the "
         "environment or {secret_file: PATH}, not text"},
        {NOTIFY("secrets: []"), "f:1:28: alerts.notify.secrets: there must be 1 to 4, not 0"},
        {NOTIFY("secrets: [a, b, c, d, e]"), "f:1:28: alerts.notify.secrets: there must be 1 to 4, not 5"},
        {NOTIFY("secrets: [whsec_c2hvcnQ=]"), "f:1:29: alerts.notify.secrets[0]: is not whsec_ and 24 to 64 bytes in "
                                              "base64; echo whsec_$(openssl rand -base64 32) "
                                              "makes one"},
    };
    assert_wrong(cases, sizeof cases / sizeof *cases);
}

/* A wrong one is not quoted, a right one not shown, and that it changed is all a reload says. */
static void secrets_of_notifications_are_never_shown(void **state) {
    (void)state;
    static const char yaml[] = NOTIFY("url: 'https://h/${HAPAX_TEST_PATH}', secrets: ['${HAPAX_TEST_SECRET}']");
    struct config *before, *after;
    struct buf errors = {0}, changes = {0};
    setenv("HAPAX_TEST_PATH", "hidden-path", 1);
    setenv("HAPAX_TEST_SECRET", "whsec_wrong-secret", 1);
    assert_int_equal(config_parse(slice_str(yaml), "f", &as_daemon, &before, &errors), ST_INVALID);
    buf_char(&errors, '\0');
    assert_non_null(strstr(errors.p, "alerts.notify.secrets[0]: is not whsec_ and"));
    assert_null(strstr(errors.p, "wrong-secret"));
    setenv("HAPAX_TEST_SECRET", SECRET_TEXT, 1);
    assert_int_equal(config_parse(slice_str(yaml), "f", &as_daemon, &before, &errors), ST_OK);
    assert_slice(before->alerts.notify_url, "https://h/hidden-path");
    assert_int_equal(before->alerts.notify_secrets.at[0].n, 24);
    assert_false(before->alerts.notify_secrets.plain);
    after = parse(NOTIFY("url: 'https://h/other', secrets: [" SECRET_TEXT ", " SECRET_TEXT "]"));
    assert_true(after->alerts.notify_secrets.plain);
    config_diff(before, before, &changes);
    assert_int_equal(changes.len, 0);
    config_diff(before, after, &changes);
    buf_char(&changes, '\0');
    assert_string_equal(changes.p, "alerts.notify.url: changed\nalerts.notify.secrets: changed\n");
    config_free(before);
    config_free(after);
    buf_free(&errors);
    buf_free(&changes);
}

/* ---- tenants */

static void what_is_wrong_with_a_tenant_is_told_with_its_place(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {"tenants: []\n", "f:1:10: tenants: expected a map of tenants, not a list"},
        {"tenants: {a: {}}\n", "f:1:14: tenants.a: prefix is missing"},
        {"tenants: {a: 5}\n", "f:1:14: tenants.a: expected a map with prefix, limits, not text"},
        {"tenants: {'a/b': {prefix: x}}\n",
         "f:1:11: tenants: a tenant's name is made of letters, digits and _ - . only, at most 64"},
        {"tenants: {a: {prefix: 'x y'}}\n",
         "f:1:23: tenants.a.prefix: queue names begin with it: at most 127 letters, digits and _ - . : only"},
        {"tenants: {a: {prefix: x., limits: {rate: 5}}}\n",
         "f:1:42: tenants.a.limits.rate: \"5\" is not a rate like 5000/s"},
        {"tenants: {a: {prefix: x., limits: {rate: 0/s}}}\n",
         "f:1:42: tenants.a.limits.rate: 0/s is outside 1/s to 10000000/s"},
        {"tenants: {a: {prefix: x., limits: {rate: 5/m}}}\n",
         "f:1:42: tenants.a.limits.rate: \"5/m\" is not a rate like 5000/s"},
        {"tenants: {a: {prefix: x., limits: {pendig: 5}}}\n",
         "f:1:36: tenants.a.limits: no key \"pendig\". Did you mean pending?"},
        {"tenants:\n  a: {prefix: shop.eu.}\n  b: {prefix: market.}\n  c: {prefix: shop.}\n",
         "f:2:15: tenants.a.prefix: overlaps with the prefix \"shop.\" of tenant c: a queue could be both's"},
        {"tenants: {a: {prefix: x.}, b: {prefix: x.}}\n",
         "f:1:40: tenants.b.prefix: overlaps with the prefix \"x.\" of tenant a: a queue could be both's"},
        {"tenants: {a: {prefix: x., limits: {queues: 1}}}\nqueues: {x.a: {}, x.b: {}, y: {}}\n",
         "f:1:44: tenants.a.limits.queues: this file alone declares 2 queues under x."},
    };
    assert_wrong(cases, sizeof cases / sizeof *cases);
}

static void a_queue_is_the_tenants_whose_prefix_its_name_begins_with(void **state) {
    (void)state;
    struct config *c =
        parse("tenants: {b: {prefix: shop., limits: {queues: 2, pending: 3, bytes: 1MiB, rate: 5/s}}, a: {prefix: m}, "
              "d: {prefix: 'shop:'}, c: {prefix: z.}}\n");
    static const char *const names[][2] = {{"shop.x", "b"}, {"shop:x", "d"}, {"mx", "a"}, {"z.z", "c"},
                                           {"shop.", "b"},  {"shop", ""},    {"a", ""},   {"zz", ""},
                                           {"l", ""},       {"shopping", ""}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct tenant_config *t = config_tenant_of(c, slice_str(names[i][0]));
        assert_string_equal(t ? t->name.p : "", names[i][1]);
    }
    const struct tenant_config *b = config_tenant(c, SL("b"));
    assert_true(b->queues == 2 && b->pending == 3 && b->bytes == 1 << 20 && b->rate_per_s == 5);
    assert_null(config_tenant(c, SL("e")));
    config_free(c);
}

static void a_reload_says_what_changes_for_tenants(void **state) {
    (void)state;
    struct config *before = parse("tenants: {a: {prefix: a.}, b: {prefix: b., limits: {rate: 5/s}}}\n"),
                  *after = parse("tenants: {b: {prefix: c., limits: {rate: 7/s, bytes: 1MiB}}, d: {prefix: d.}}\n");
    struct buf changes = {0};
    config_diff(before, before, &changes);
    assert_int_equal(changes.len, 0);
    config_diff(before, after, &changes);
    buf_char(&changes, '\0');
    assert_string_equal(changes.p, "tenant a: removed; its queues stay, without its limits\n"
                                   "tenant b: prefix: b. -> c.\n"
                                   "tenant b: limits.bytes: none -> 1MiB\n"
                                   "tenant b: limits.rate: 5/s -> 7/s\n"
                                   "tenant d: added\n");
    buf_free(&changes);
    config_free(before);
    config_free(after);
}

/* ---- JSON, and back */

static void what_is_shown_makes_the_same_queue_again(void **state) {
    (void)state;
    static const char *const queues[] = {
        "",
        "class: money, key: 'a:${b}', order_by: '${c}', dead: {owner: me, alert: {count: 3, within: 5m}}",
        "window: {min: 2d, max: 2d}, on_conflict: hold",
        "window: {min: 1h, max: 2d}, upstreams: {dlq: 7d, cron: 1d}, upstream_replay: 3d, keep_payload: 1h",
        "class: analytics, loss: 0.5%, limits: {pending: 5, bytes: 2MiB, lag: 90s, payload: 100}",
        "class: audit, semantics: exactly_once, fingerprint: {ignore: [a, b]}, schema: {required: [x]}",
        "schema: {types: {x: integer, y: [string, null]}, enum: {z: [1, '1', true]}, max_length: {y: 5}}",
        "event_type: '${type}', origin: '${header.x-client-key}', alerts: {duplicates_high: 0.5%, late_replays: 3,"
        "  oldest_unsettled: 1m, held_waiting: 2h, group_blocked: 90s, off: [lag, key_skew, relay_lag]}",
        "key_scope: credential, downstream: {idempotency: none, timeout: 2500ms}, lag: {p95: 1s, alert: 10s, for: 1m}, "
        "on_dead: skip",
        "deliver: {url: 'https://h/a/${b}?k=${hapax.key}', method: PUT, headers: {X-A: 'b ${header.c}'},"
        " secret_headers: {authorization: 'Bearer ${TOKEN}', x-key: {secret_file: /run/key}, x-plain: abc},"
        " sign: {secrets: ['${PUSH_SECRET}']}, rate: 90/m, classify: {transient: [4xx], poison: [404]},"
        " effect_id: 'a[0].b', keep: {body: 0, headers: [Location, ETag]}, circuit: {ratio: 10%, of: 3}}",
        "downstream: {idempotency: key, remembers: 7d}, deliver: {url: 'http://h', rate: 7/s, approve: true,"
        " secret_headers: {x-key: '${KEY}'}, allow_private: true},"
        " reconcile: {url: 'http://h/x', found: [2xx, 409], absent: [204, 404, 410], exists: a, effect_id: b}",
        "class: money, deliver: {url: 'https://h'}, reconcile: {url: 'https://i', headers: {a: b}, attempts: 3}",
    };
    for (size_t i = 0; i < sizeof queues / sizeof *queues; i++) {
        struct config *c = parse_queue(queues[i]);
        struct queue_config *q = c->queues.at[0], *again, *as_said;
        struct buf b = {0}, errors = {0};
        config_queue_to_json(q, &b);
        if (config_queue_from_json(SL("q"), buf_slice(&b), SECRETS_AS_WRITTEN, &again, &errors) != ST_OK)
            fail_msg("%s: %.*s", queues[i], (int)errors.len, errors.p);
        assert_true(config_queue_equal(q, again));
        if (config_queue_from_json(SL("q"), q->json, SECRETS_AS_WRITTEN, &as_said, &errors) != ST_OK)
            fail_msg("%s: %.*s", queues[i], (int)errors.len, errors.p);
        assert_true(config_queue_equal(q, as_said));
        assert_true(rules_equal(&q->rules, &as_said->rules));
        config_queue_free(again);
        config_queue_free(as_said);
        buf_free(&b);
        config_free(c);
    }
}

static void the_effective_rules_are_shown_under_the_configs_names(void **state) {
    (void)state;
    struct queue_config *q = config_queue_default(SL("q"));
    assert_json(
        q,
        "{\"semantics\":\"exactly_once\",\"key_scope\":\"queue\",\"on_dead\":\"block\",\"fingerprint\":\"bytes\","
        "\"refused\":{\"keep\":1000,\"bytes\":\"16MiB\"},\"window\":\"1d\",\"keep_payload\":\"0s\",\"lease\":\"30s\","
        "\"on_unknown\":\"retry\",\"on_conflict\":\"reject\",\"downstream\":{\"idempotency\":\"unsaid\"},"
        "\"retry\":{\"transient\":{\"attempts\":6,\"backoff\":\"1s\",\"max\":\"5m\"},\"unknown\":{\"attempts\":3},"
        "\"crashes\":{\"attempts\":3}},\"limits\":{\"payload\":\"1MiB\"},\"log_duplicates\":false,"
        "\"alerts\":{\"duplicates_high\":\"20%\",\"late_replays\":10,\"oldest_unsettled\":\"10m\",\"held_waiting\":"
        "\"1h\","
        "\"group_blocked\":\"15m\"}}");
    config_queue_free(q);
}

static void a_put_bodys_errors_name_the_key(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {"[]", "expected a map, not a list"},
        {"{\"lease\":\"x\"}", "lease: \"x\" is not a duration like 500ms, 30s, 5m or 14d"},
        {"{\"lease\":30,\"retry\":{\"unknown\":{\"attempts\":-1}}}", "retry.unknown.attempts: -1 is negative"},
        {"{\"windw\":1}", "no key \"windw\". Did you mean window?"},
        {"{\"lease\":null}", "lease: nothing is given; leave the line out for the default"},
        {"{\"lease\":1", "JSON: the text ends inside a value"},
        {"", "JSON: the text ends where a value should be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct queue_config *q;
        struct buf errors = {0};
        assert_int_equal(config_queue_from_json(SL("q"), slice_str(cases[i].yaml), SECRETS_AS_WRITTEN, &q, &errors),
                         ST_INVALID);
        assert_null(q);
        if (!is_lines(&errors, cases[i].error)) fail_msg("%s: %.*s", cases[i].yaml, (int)errors.len, errors.p);
        buf_free(&errors);
    }
}

static void a_reload_says_what_changes(void **state) {
    (void)state;
    struct config *before = parse("auto_create: true\nqueues:\n  a: {window: 1d}\n  b: {}\n  c: {lease: 30}\n");
    struct config *after =
        parse("queues:\n  a: {window: 7d, limits: {pending: 5}, alerts: {held_waiting: 2h, off: [lag]}}\n"
              "  c: {lease: 30s}\n  d: {}\nalerts: {disk_low: 5%}\nhosts: [queue.example.com, '::2']\n");
    struct buf b = {0};
    config_diff(before, before, &b);
    assert_int_equal(b.len, 0);
    config_diff(before, after, &b);
    buf_char(&b, '\0');
    assert_string_equal(b.p, "hosts: none -> [\"queue.example.com\",\"::2\"]\n"
                             "auto_create: true -> false\n"
                             "alerts.disk_low: 10% -> 5%\n"
                             "queue a: window: 1d -> 7d\n"
                             "queue a: limits.pending: none -> 5\n"
                             "queue a: alerts.held_waiting: 1h -> 2h\n"
                             "queue a: alerts.off: none -> [\"lag\"]\n"
                             "queue b: removed; its messages and keys stay, under its last rules\n"
                             "queue d: added\n");
    buf_free(&b);
    config_free(before);
    config_free(after);
}

static void none_can_be_said_of_what_can_be_unset(void **state) {
    (void)state;
    struct config *c =
        parse_queue("key: none, schema: none, limits: {pending: none}, dead: {owner: none}, upstreams: none");
    struct queue_config *plain = config_queue_default(SL("q"));
    assert_true(config_queue_equal(c->queues.at[0], plain));
    config_queue_free(plain);
    config_free(c);
}

/* As hapax.example.yaml does. */
static void a_listener_can_be_said_to_have_no_certificate(void **state) {
    (void)state;
    struct config *c = parse("listen: [{address: \"127.0.0.1:0\", tls: {cert: none, key: none, client_ca: none}}]\n");
    assert_int_equal(c->listen.at[0].tls_cert.n, 0);
    assert_int_equal(c->listen.at[0].tls_client_ca.n, 0);
    config_free(c);
}

/* A token called so was nobody's. Of a tenant the word says that there is none: its token saw everything. */
static void a_token_or_a_queue_may_be_called_none_and_a_tenant_may_not(void **state) {
    (void)state;
    struct config *c =
        parse("sources: {s: {queue: none, verify: {scheme: none}}}\n" TOKEN("none", "A1", "[send]", ", tenant: none"));
    assert_slice(c->tokens.at[0].name, "none");
    assert_slice(c->tokens.at[0].tenant, "");
    assert_slice(c->sources.at[0].queue, "none");
    config_free(c);
    const struct wrong tenant = {"tenants: {none: {prefix: n.}}\n",
                                 "f:1:11: tenants: none is the word for no tenant: take another name"};
    assert_wrong(&tenant, 1);
}

static void without_a_file_queues_make_themselves(void **state) {
    (void)state;
    struct config *c = config_default();
    assert_true(c->auto_create);
    assert_int_equal(c->queues.count, 0);
    assert_null(config_find(c, SL("q")));
    config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_contracts_example_is_read),
        cmocka_unit_test(a_class_presets_and_single_keys_override_it),
        cmocka_unit_test(units_are_understood),
        cmocka_unit_test(whatever_is_wrong_gets_one_line_with_its_place),
        cmocka_unit_test(every_mistake_of_a_file_is_told_in_its_order),
        cmocka_unit_test(what_the_daemon_refuses_is_refused_here),
        cmocka_unit_test(rules_too_long_to_be_written_down_are_refused),
        cmocka_unit_test(a_queue_with_every_kind_of_error_in_it_leaks_nothing),
        cmocka_unit_test(files_are_read_and_refused_like_texts),
        cmocka_unit_test(secrets_come_from_the_environment),
        cmocka_unit_test(alerts_have_thresholds_and_can_be_off),
        cmocka_unit_test(an_alert_that_cannot_be_is_refused),
        cmocka_unit_test(secrets_of_notifications_are_never_shown),
        cmocka_unit_test(what_is_wrong_with_a_tenant_is_told_with_its_place),
        cmocka_unit_test(a_queue_is_the_tenants_whose_prefix_its_name_begins_with),
        cmocka_unit_test(a_reload_says_what_changes_for_tenants),
        cmocka_unit_test(what_is_shown_makes_the_same_queue_again),
        cmocka_unit_test(the_effective_rules_are_shown_under_the_configs_names),
        cmocka_unit_test(a_put_bodys_errors_name_the_key),
        cmocka_unit_test(a_reload_says_what_changes),
        cmocka_unit_test(none_can_be_said_of_what_can_be_unset),
        cmocka_unit_test(a_listener_can_be_said_to_have_no_certificate),
        cmocka_unit_test(a_token_or_a_queue_may_be_called_none_and_a_tenant_may_not),
        cmocka_unit_test(without_a_file_queues_make_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
