/* What the broker may call: deliver, reconcile and proxies say what they mean, and no secret of theirs is ever written down. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/call_template.h"
#include "config/config.h"
#include "config/explain.h"
#include "config/path.h"
#include "config/template.h"

#define DAY_MS  ((i64)24 * 3600 * 1000)
#define WHSEC   "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define WHSEC_2 "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"

static const struct config_use as_lint = {0}, as_daemon = {.secrets = SECRETS_FROM_ENVIRONMENT};

static struct config *parse_as(const char *yaml, const struct config_use *use) {
    struct config *c;
    struct buf errors = {0};
    if (config_parse(slice_str(yaml), "f", use, &c, &errors) != ST_OK)
        fail_msg("%.*s%s", (int)errors.len, errors.p, yaml);
    return c;
}

static struct config *parse(const char *yaml) {
    return parse_as(yaml, &as_lint);
}

#define Q(keys)       "queues: {q: {" keys "}}\n"
#define DELIVER(keys) Q("deliver: {url: 'https://h/', " keys "}")

static u8 class_of(const struct deliver_config *d, u32 status) {
    return d->classify.class_of[status - STATUS_LEAST];
}

static bool has(const struct buf *b, const char *text) {
    return b->len && memmem(b->p, b->len, text, strlen(text));
}

/* ---- what is said is what is meant */

static void the_contracts_example_is_read(void **state) {
    (void)state;
    struct config *c = parse(
        "sources:\n"
        "  terminal: {queue: slots, verify: {scheme: standard, secrets: [\"${TERMINAL_SECRET}\"]}}\n"
        "queues:\n"
        "  slots:\n"
        "    key: \"slot:${terminal}:${date}:${container}\"\n"
        "    downstream: {idempotency: key, remembers: 24h}\n"
        "    deliver:\n"
        "      url: \"https://terminal.example/slots/${container}\"\n"
        "      method: POST\n"
        "      headers: {x-trace: \"${header.traceparent}\"}\n"
        "      secret_headers: {x-api-key: \"${TERMINAL_API_KEY}\"}\n"
        "      timeout: 10s\n"
        "      concurrency: 32\n"
        "      rate: 100/s\n"
        "      sign: {secrets: [\"${PUSH_SECRET}\"]}\n"
        "      approve: false\n"
        "      classify: {transient: [401, 403, 408, 409, 425, 429, 5xx], rejected: [402, 422], poison: [3xx, 4xx]}\n"
        "      effect_id: \"booking.id\"\n"
        "      keep: {body: 64KiB, headers: [location]}\n"
        "      circuit: {ratio: 50%, of: 10, within: 1m, open: 30s}\n"
        "      allow_private: false\n"
        "    reconcile: {url: \"https://terminal.example/slots?key=${hapax.effect_key}\", found: [200], exists: "
        "\"items[0].id\", effect_id: \"items[0].id\", absent: [404], after: 30s, every: 30s, attempts: 10, timeout: "
        "10s}\n"
        "proxies:\n"
        "  payments: {upstream: \"https://api.example/v1\", require_key: [POST], in_progress: wait, store: final, "
        "window: "
        "24h, timeout: 30s, max_response: 1MiB, scope: \"${header.x-account}\", downstream: {idempotency: key}, "
        "reconcile: "
        "{url: \"https://api.example/v1/charges?key=${hapax.effect_key}\"}}\n");
    const struct queue_config *q = config_find(c, SL("slots"));
    const struct deliver_config *d = q->deliver;
    const struct reconcile_config *r = q->reconcile;
    assert_int_equal(q->remembers_ms, DAY_MS);
    assert_true(slice_eq(call_template_origin(d->url), SL("https://terminal.example")));
    assert_true(slice_eq(d->method, SL("POST")) && d->timeout_ms == 10000 && d->concurrency == 32);
    assert_true(d->rate_per_min == 6000 && !d->approve && d->keep_body == 65536 && !d->allow_private);
    assert_int_equal(d->headers.count, 2);
    assert_true(slice_eq(d->headers.at[1].name, SL("x-api-key")) && d->headers.at[1].secret);
    assert_true(slice_eq(d->effect_id->text, SL("booking.id")) && d->sign.count == 1 && d->lacks_secrets);
    assert_true(d->keep_headers.count == 1 && slice_eq(d->keep_headers.at[0], SL("location")));
    assert_true(d->circuit.ratio_ppm == 500000 && d->circuit.of == 10 && d->circuit.within_ms == 60000);
    assert_int_equal(d->circuit.open_ms, 30000);
    assert_true(r->after_ms == 30000 && r->every_ms == 30000 && r->attempts == 10 && r->timeout_ms == 10000);
    assert_true(r->found[200 - STATUS_LEAST] && !r->found[201 - STATUS_LEAST] && r->absent[404 - STATUS_LEAST]);
    assert_true(slice_eq(r->exists->text, SL("items[0].id")));
    assert_int_equal(q->rules.on_unknown, ON_UNKNOWN_RECONCILE);
    assert_true(q->rules.lookup_attempts == 10 && q->rules.lookup_after_ms == 30000);
    const struct proxy_config *p = config_proxy(c, SL("payments"));
    assert_true(slice_eq(p->upstream, SL("https://api.example/v1")) && p->require_key.count == 1);
    assert_true(p->in_progress == IN_PROGRESS_WAIT && p->store == STORE_FINAL && p->window_ms == DAY_MS);
    assert_true(p->timeout_ms == 30000 && p->max_response == 1 << 20 && p->idempotency == IDEMPOTENCY_KEY);
    assert_true(slice_eq(template_text(p->scope), SL("${header.x-account}")) && p->reconcile);
    assert_null(config_proxy(c, SL("other")));
    config_free(c);
}

static void a_proxys_keys_live_in_a_queue_of_its_own(void **state) {
    (void)state;
    struct config *c = parse(
        "proxies:\n"
        "  b: {upstream: 'https://b/v1/', window: forever, timeout: 1m}\n"
        "  a: {upstream: 'http://a:81', allow_private: true, reconcile: {url: 'http://a/${hapax.key}', attempts: 3}}\n"
        "queues: {q: {}}\n");
    assert_int_equal(c->queues.count, 3);
    const struct queue_config *a = config_find(c, SL("gate:a")), *b = config_find(c, SL("gate:b"));
    assert_ptr_equal(a, config_proxy(c, SL("a"))->queue);
    assert_ptr_equal(a->proxy, config_proxy(c, SL("a")));
    assert_null(config_find(c, SL("q"))->proxy);
    assert_true(slice_eq(b->proxy->upstream, SL("https://b/v1")));
    assert_true(a->rules.on_unknown == ON_UNKNOWN_RECONCILE && a->rules.lookup_attempts == 3);
    assert_true(b->rules.on_unknown == ON_UNKNOWN_HOLD && b->rules.lookup_attempts == 0);
    assert_true(b->rules.window_ms == WINDOW_FOREVER && b->rules.lease_ms == 65000);
    assert_true(a->reconcile->allow_private); /* as the proxy */
    /* What is journaled of it makes it again, without the file. */
    struct queue_config *again;
    struct buf errors = {0};
    assert_int_equal(config_queue_from_json(SL("gate:a"), a->json, SECRETS_AS_WRITTEN, &again, &errors), ST_OK);
    assert_true(rules_equal(&a->rules, &again->rules) && config_queue_equal(a, again));
    config_queue_free(again);
    config_free(c);
}

/* ---- classes */

static void the_most_specific_status_wins_and_what_is_said_beats_a_default(void **state) {
    (void)state;
    static const struct {
        const char *classify;
        u32 status;
        enum failure_class class;
    } cases[] = {
        {"", 200, CLASS_NONE},
        {"", 204, CLASS_NONE},
        {"", 301, CLASS_POISON},
        {"", 400, CLASS_POISON},
        {"", 402, CLASS_REJECTED},
        {"", 409, CLASS_TRANSIENT},
        {"", 429, CLASS_TRANSIENT},
        {"", 500, CLASS_TRANSIENT},
        {"transient: [429, 5xx]", 401, CLASS_POISON}, /* taken out of the list: what is left has it */
        {"rejected: [404]", 404, CLASS_REJECTED},
        {"rejected: [404]", 422, CLASS_POISON},
        {"rejected: [409]", 409, CLASS_REJECTED},
        {"poison: [5xx]", 500, CLASS_POISON},
        {"poison: [5xx]", 404, CLASS_POISON},
        {"transient: [4xx]", 404, CLASS_TRANSIENT},
        {"transient: [4xx]", 402, CLASS_REJECTED},
        {"transient: [4xx]", 302, CLASS_POISON},
        {"transient: [500]", 503, CLASS_TRANSIENT}, /* no list has it: as by default */
        {"transient: [5XX], rejected: [501], poison: [599]", 501, CLASS_REJECTED},
        {"transient: [5XX], rejected: [501], poison: [599]", 599, CLASS_POISON},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char yaml[512];
        snprintf(yaml, sizeof yaml,
                 "queues: {q: {downstream: {idempotency: key}, deliver: {url: 'https://h', classify: {%s}}}}\n",
                 cases[i].classify);
        struct config *c = parse(yaml);
        if (class_of(c->queues.at[0]->deliver, cases[i].status) != cases[i].class)
            fail_msg("{%s}: %u is %d", cases[i].classify, cases[i].status,
                     class_of(c->queues.at[0]->deliver, cases[i].status));
        config_free(c);
    }
}

static void what_may_have_been_done_is_unknown_where_nobody_deduplicates(void **state) {
    (void)state;
    static const char *const queues[] = {DELIVER(""),
                                         Q("downstream: {idempotency: none}, deliver: {url: 'https://h'}")};
    for (size_t i = 0; i < 2; i++) {
        struct config *c = parse(queues[i]);
        const struct queue_config *q = c->queues.at[0];
        assert_int_equal(q->rules.on_unknown, ON_UNKNOWN_HOLD);
        assert_int_equal(class_of(q->deliver, 408), CLASS_UNKNOWN);
        assert_int_equal(class_of(q->deliver, 500), CLASS_UNKNOWN);
        assert_int_equal(class_of(q->deliver, 504), CLASS_UNKNOWN);
        assert_int_equal(class_of(q->deliver, 599), CLASS_UNKNOWN);
        assert_int_equal(class_of(q->deliver, 503), CLASS_TRANSIENT);
        assert_int_equal(class_of(q->deliver, 409), CLASS_TRANSIENT);
        assert_int_equal(class_of(q->deliver, 429), CLASS_TRANSIENT);
        config_free(c);
    }
    struct config *c = parse(DELIVER("classify: {rejected: [500]}")); /* who says that it means no is believed */
    assert_int_equal(class_of(c->queues.at[0]->deliver, 500), CLASS_REJECTED);
    config_free(c);
}

static void what_is_unknown_of_a_push_is_looked_up_or_held_unless_the_downstream_deduplicates(void **state) {
    (void)state;
    static const struct {
        const char *queue;
        enum on_unknown rule;
    } cases[] = {
        {Q("deliver: {url: 'https://h'}"), ON_UNKNOWN_HOLD},
        {Q("downstream: {idempotency: key}, deliver: {url: 'https://h'}"), ON_UNKNOWN_RETRY},
        {Q("downstream: {idempotency: key}, on_unknown: hold, deliver: {url: 'https://h'}"), ON_UNKNOWN_HOLD},
        {Q("class: money, downstream: {idempotency: key}, deliver: {url: 'https://h'}"), ON_UNKNOWN_HOLD},
        {Q("deliver: {url: 'https://h'}, reconcile: {url: 'https://h'}"), ON_UNKNOWN_RECONCILE},
        {Q("reconcile: {url: 'https://h'}"), ON_UNKNOWN_RECONCILE},
        {Q("class: audit, deliver: {url: 'https://h'}"), ON_UNKNOWN_HOLD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config *c = parse(cases[i].queue);
        if (c->queues.at[0]->rules.on_unknown != cases[i].rule) fail_msg("%s", cases[i].queue);
        config_free(c);
    }
}

static void a_look_up_takes_the_pushs_headers_to_the_same_place_only(void **state) {
    (void)state;
    static const struct {
        const char *reconcile;
        u32 headers;
        bool private;
    } cases[] = {
        {"url: 'https://h:1/y'", 2, true},
        {"url: 'https://h:1/y', allow_private: false", 2, false},
        {"url: 'https://h:2/y'", 0, true},
        {"url: 'http://h:1/y'", 0, true},
        {"url: 'https://h.evil/y'", 0, true},
        {"url: 'https://h:1/y', headers: {c: d}", 1, true},
        {"url: 'https://h:1/y', headers: {}", 0, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char yaml[512];
        snprintf(
            yaml, sizeof yaml,
            "queues: {q: {deliver: {url: 'https://h:1/x', allow_private: true, headers: {a: b}, secret_headers: {x: "
            "'${KEY}'}}, reconcile: {%s}}}\n",
            cases[i].reconcile);
        struct config *c = parse(yaml);
        const struct reconcile_config *r = c->queues.at[0]->reconcile;
        if (r->headers.count != cases[i].headers || r->allow_private != cases[i].private)
            fail_msg("%s: %u headers", cases[i].reconcile, r->headers.count);
        assert_int_equal(r->lacks_secrets, r->headers.count == 2);
        config_free(c);
    }
}

/* ---- mistakes */

struct wrong {
    const char *yaml, *error;
};

static void whatever_is_wrong_gets_a_line_with_its_place(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {Q("deliver: {}"), "f:1:23: queue q: deliver: url is missing: where should the messages go?"},
        {Q("deliver: 'https://h'"),
         "f:1:23: queue q: deliver: expected a map with url and what else a push needs, not text"},
        {Q("deliver: {urll: x}"), "f:1:24: queue q: deliver: no key \"urll\". Did you mean url?"},
        {Q("deliver: {url: 'ftp://h'}"), "f:1:30: queue q: deliver.url: does not begin with https:// or http://"},
        {Q("deliver: {url: 'https://${h}/'}"),
         "f:1:38: queue q: deliver.url: a value may stand in the path and the query only: no message decides whom the "
         "broker calls"},
        {Q("deliver: {url: [a]}"), "f:1:29: queue q: deliver.url: expected an address like "
                                   "https://example.com/slots/${container}, not a list"},
        {Q("reconcile: {}"), "f:1:25: queue q: reconcile: url is missing: what should be asked?"},
        {Q("reconcile: {url: 'https://h/#'}"),
         "f:1:42: queue q: reconcile.url: a fragment is never sent: leave it out"},
        /* numbers */
        {DELIVER("timeout: 0s"), "f:1:52: queue q: deliver.timeout: 0s is outside 1ms to 10m"},
        {DELIVER("timeout: 11m"), "f:1:52: queue q: deliver.timeout: 11m is outside 1ms to 10m"},
        {DELIVER("concurrency: 0"), "f:1:56: queue q: deliver.concurrency: 0 is outside 1 to 1000"},
        {DELIVER("concurrency: 1001"), "f:1:56: queue q: deliver.concurrency: 1001 is outside 1 to 1000"},
        {DELIVER("rate: 100"), "f:1:49: queue q: deliver.rate: \"100\" is not a rate like 100/s or 90/m"},
        {DELIVER("rate: 100/h"), "f:1:49: queue q: deliver.rate: \"100/h\" is not a rate like 100/s or 90/m"},
        {DELIVER("rate: 0/s"), "f:1:49: queue q: deliver.rate: 0/s is outside 1/m to 1000000/s"},
        {DELIVER("rate: 99999999999/s"),
         "f:1:49: queue q: deliver.rate: \"99999999999/s\" is not a rate like 100/s or 90/m"},
        {DELIVER("keep: {body: 2MiB}"), "f:1:56: queue q: deliver.keep.body: 2MiB is outside 0B to 1MiB"},
        {DELIVER("circuit: {ratio: 0%}"), "f:1:60: queue q: deliver.circuit.ratio: 0% is outside 0.0001% to 100%"},
        {DELIVER("circuit: {of: 0}"), "f:1:57: queue q: deliver.circuit.of: 0 is outside 1 to 10000"},
        {DELIVER("circuit: {within: 2h}"), "f:1:61: queue q: deliver.circuit.within: 2h is outside 1s to 1h"},
        {DELIVER("circuit: {open: 6m}"), "f:1:59: queue q: deliver.circuit.open: 6m is outside 1ms to 5m"},
        {Q("reconcile: {url: 'https://h', attempts: 0}"),
         "f:1:54: queue q: reconcile.attempts: 0 is outside 1 to 1000"},
        {Q("reconcile: {url: 'https://h', every: 0s}"), "f:1:51: queue q: reconcile.every: 0s is outside 1ms to 1d"},
        {Q("downstream: {remembers: 1ms}"), "f:1:38: queue q: downstream.remembers: 1ms is outside 1s to 36500d"},
        {DELIVER("approve: yes"), "f:1:52: queue q: deliver.approve: \"yes\" is not true or false"},
        {DELIVER("method: TRACE"),
         "f:1:51: queue q: deliver.method: \"TRACE\" is none of POST, PUT, PATCH, DELETE, GET"},
        {DELIVER("method: post"), "f:1:51: queue q: deliver.method: \"post\" is none of POST, PUT, PATCH, DELETE, GET"},
        /* headers */
        {DELIVER("headers: [a]"),
         "f:1:52: queue q: deliver.headers: expected a map of header names to values, not a list"},
        {DELIVER("headers: {'a b': c}"),
         "f:1:53: queue q: deliver.headers: a header name has 1 to 128 letters, digits and "
         "! # $ % & ' * + - . ^ _ ` | ~"},
        {DELIVER("headers: {\"a\\0b\": c}"),
         "f:1:53: queue q: deliver.headers: a header name has 1 to 128 letters, digits and "
         "! # $ % & ' * + - . ^ _ ` | ~"},
        {"proxies: {\"a\\0b\": {upstream: 'https://h'}}\n",
         "f:1:11: proxies: a proxy's name has 1 to 64 letters, digits and - _ ."},
        {"sources: {\"a\\0b\": {queue: q, verify: {scheme: none}}}\n",
         "f:1:11: sources: a source's name has 1 to 64 letters, digits and - _ ."},
        {DELIVER("headers: {Host: c}"), "f:1:53: queue q: deliver.headers: Hapax says host itself"},
        {DELIVER("headers: {content-length: c}"), "f:1:53: queue q: deliver.headers: Hapax says content-length itself"},
        {DELIVER("headers: {Connection: c}"), "f:1:53: queue q: deliver.headers: Hapax says connection itself"},
        {DELIVER("headers: {Transfer-Encoding: c}"),
         "f:1:53: queue q: deliver.headers: Hapax says transfer-encoding itself"},
        {DELIVER("secret_headers: {Idempotency-Key: '${K}'}"),
         "f:1:60: queue q: deliver.secret_headers: Hapax says idempotency-key itself"},
        {DELIVER("headers: {webhook-id: c}"), "f:1:53: queue q: deliver.headers: Hapax says webhook-id itself"},
        {DELIVER("headers: {Hapax-Attempt: c}"), "f:1:53: queue q: deliver.headers: Hapax says hapax-attempt itself"},
        {DELIVER("headers: {a: b, A: c}"), "f:1:59: queue q: deliver.headers: a is given twice"},
        {DELIVER("headers: {a: b}, secret_headers: {A: '${C}'}"),
         "f:1:77: queue q: deliver.secret_headers: a is given twice"},
        {DELIVER("headers: {a: {b: c}}"), "f:1:56: queue q: deliver.headers.a: expected text, not a map"},
        {DELIVER("headers: {a: ''}"), "f:1:57: queue q: deliver.headers.a: empty"},
        {DELIVER("headers: {a: ~}"),
         "f:1:56: queue q: deliver.headers.a: nothing is given; leave the line out for the default"},
        {DELIVER("headers: {a: \"b\\nc: d\"}"),
         "f:1:57: queue q: deliver.headers.a: a control character, or not UTF-8"},
        {DELIVER("headers: {a: 'x${b'}"), "f:1:58: queue q: deliver.headers.a: the brace opened here is not closed"},
        {DELIVER("secret_headers: {a: '${B c}'}"),
         "f:1:63: queue q: deliver.secret_headers.a: ${B c} names no environment variable"},
        {DELIVER("secret_headers: {a: {file: x}}"), "f:1:63: queue q: deliver.secret_headers.a: expected text with "
                                                    "${NAME} from the environment or {secret_file: PATH}, not a map"},
        {DELIVER("keep: {headers: ['a b']}"), "f:1:59: queue q: deliver.keep.headers: \"a b\" is no header's name"},
        {DELIVER("sign: {secrets: [abc]}"), "f:1:60: queue q: deliver.sign.secrets[0]: is not whsec_ and 24 to 64 "
                                            "bytes in base64; echo whsec_$(openssl rand "
                                            "-base64 32) makes one"},
        {DELIVER("sign: {secrets: []}"), "f:1:59: queue q: deliver.sign.secrets: there must be 1 to 4, not 0"},
        /* statuses */
        {DELIVER("classify: {transient: [409], rejected: [409]}"),
         "f:1:83: queue q: deliver.classify.rejected[0]: 409 is in transient already"},
        {DELIVER("classify: {rejected: [4xx], poison: [404, 4xx]}"),
         "f:1:85: queue q: deliver.classify.poison[1]: 4xx is in rejected already"},
        {DELIVER("classify: {poison: [404, 404]}"), NULL},
        {DELIVER("classify: {transient: [200]}"),
         "f:1:66: queue q: deliver.classify.transient[0]: 200 is no failure: 2xx means that it was taken"},
        {DELIVER("classify: {poison: [1xx]}"),
         "f:1:63: queue q: deliver.classify.poison[0]: 1xx is no failure: 2xx means that it was taken"},
        {DELIVER("classify: {poison: [600]}"),
         "f:1:63: queue q: deliver.classify.poison[0]: \"600\" is no status: they are "
         "100 to 599, or a hundred like 5xx"},
        {DELIVER("classify: {poison: [40x]}"),
         "f:1:63: queue q: deliver.classify.poison[0]: \"40x\" is no status: they are "
         "100 to 599, or a hundred like 5xx"},
        {DELIVER("classify: {poison: 404}"),
         "f:1:62: queue q: deliver.classify.poison: expected a list of statuses like 404 "
         "or 5xx, not text"},
        {DELIVER("classify: {unknown: [500]}"),
         "f:1:54: queue q: deliver.classify: no key \"unknown\": known are transient, rejected, poison"},
        {Q("reconcile: {url: 'https://h', found: [200], absent: [200]}"),
         "f:1:67: queue q: reconcile.absent[0]: 200 is in found already"},
        {Q("reconcile: {url: 'https://h', found: []}"),
         "f:1:51: queue q: reconcile.found: found is empty: no answer would ever say that it was done"},
        {Q("reconcile: {url: 'https://h', exists: 'a..b'}"),
         "f:1:55: queue q: reconcile.exists: a field name is missing"},
        {DELIVER("effect_id: 'a['"),
         "f:1:57: queue q: deliver.effect_id: expected an index from 0 to 1000000 or \"name\""},
        /* what cannot go together */
        {Q("on_unknown: hold, reconcile: {url: 'https://h'}"),
         "f:1:26: queue q: on_unknown: reconcile is given, and it means on_unknown: reconcile; leave this out"},
        {Q("on_unknown: reconcile, deliver: {url: 'https://h'}"),
         "f:1:26: queue q: on_unknown: needs reconcile beside deliver: where should the broker look it up?"},
        {Q("on_unknown: retry, deliver: {url: 'https://h'}"),
         "f:1:26: queue q: on_unknown: what may have been done would be sent again, and downstream.idempotency is not "
         "key. "
         "Say hold, or give reconcile"},
        {Q("semantics: at_most_once, deliver: {url: 'https://h'}"),
         "f:1:48: queue q: deliver: an at_most_once queue settles what it hands out: nobody would look at the answer. "
         "Use "
         "exactly_once"},
        {Q("class: analytics, reconcile: {url: 'https://h'}"),
         "f:1:43: queue q: reconcile: an at_most_once queue settles what it hands out: nobody would look at the "
         "answer. Use "
         "exactly_once"},
        {Q("semantics: at_least_once, reconcile: {url: 'https://h'}"),
         "f:1:51: queue q: reconcile: on an at_least_once queue keys repeat: what is found may be another message's. "
         "Use "
         "exactly_once"},
        {"queues: {'gate:x': {}}\n", "f:1:10: queues: queues called gate:NAME are those of `proxies`"},
        {"sources: {s: {queue: 'gate:x', verify: {scheme: none}}}\n",
         "f:1:22: sources.s.queue: queues called gate:NAME are those of `proxies`"},
        {"relay: [{dsn: d, queue: 'gate:x'}]\n",
         "f:1:25: relay[0].queue: queues called gate:NAME are those of `proxies`"},
        /* proxies */
        {"proxies: []\n", "f:1:10: proxies: expected a map of proxies, not a list"},
        {"proxies: {p: {}}\n", "f:1:14: proxies.p: upstream is missing: what should be called?"},
        {"proxies: {'a/b': {upstream: 'https://h'}}\n",
         "f:1:11: proxies: a proxy's name has 1 to 64 letters, digits and - _ ."},
        {"proxies: {p: {upstream: 'h/v1'}}\n", "f:1:25: proxies.p.upstream: does not begin with https:// or http://"},
        {"proxies: {p: {upstream: 'https://u@h'}}\n",
         "f:1:25: proxies.p.upstream: has a user name or password before the host"},
        {"proxies: {p: {upstream: 'https://h/?a=b'}}\n",
         "f:1:25: proxies.p.upstream: a query comes with the request only"},
        {"proxies: {p: {upstream: 'https://h/${a}'}}\n",
         "f:1:25: proxies.p.upstream: ${...} is for secrets only, and this is none"},
        {"proxies: {p: {upstream: 'https://h', require_key: [GET]}}\n",
         "f:1:51: proxies.p.require_key: GET never needs a key: it passes through, or is refused"},
        {"proxies: {p: {upstream: 'https://h', require_key: [post]}}\n",
         "f:1:51: proxies.p.require_key: \"post\" is no method: they are written like POST"},
        {"proxies: {p: {upstream: 'https://h', in_progress: 408}}\n",
         "f:1:51: proxies.p.in_progress: \"408\" is none of wait, 409. Did you mean 409?"},
        {"proxies: {p: {upstream: 'https://h', max_response: 2MiB}}\n",
         "f:1:52: proxies.p.max_response: 2MiB is outside 1B to 1MiB"},
        {"proxies: {p: {upstream: 'https://h', deliver: {}}}\n",
         "f:1:38: proxies.p: no key \"deliver\": known are upstream, "
         "require_key, in_progress, store, window, timeout, "
         "max_response, scope, downstream, reconcile, "
         "allow_private"},
        {"proxies: {p: {upstream: 'https://h', scope: 'one'}}\n",
         "f:1:46: proxies.p.scope: no field in it: it would be the same for every message"},
    };
    int failures = 0;
    for (const struct wrong *w = cases; w < cases + sizeof cases / sizeof *cases; w++) {
        struct config *c;
        struct buf errors = {0};
        bool refused = config_parse(slice_str(w->yaml), "f", &as_lint, &c, &errors) == ST_INVALID && !c;
        if (errors.len) errors.len--; /* the newline */
        if (w->error ? !refused || !slice_eq(buf_slice(&errors), slice_str(w->error)) : refused) {
            print_error("%s  expected: %s\n  got:      %.*s\n", w->yaml, w->error, (int)errors.len,
                        refused ? errors.p : "");
            failures++;
        }
        buf_free(&errors);
        config_free(c);
    }
    assert_int_equal(failures, 0);
}

/* ---- secrets */

#define WITH_SECRETS                                                                                                   \
    "deliver: {url: 'https://h/', secret_headers: {x-api-key: 'k ${HAPAX_TEST_KEY}', x-file: {secret_file: %s}, "      \
    "x-plain: in-the-file}, sign: {secrets: ['${HAPAX_TEST_SIGN}', '" WHSEC_2 "']}}, reconcile: {url: "                \
    "'https://h/', secret_headers: {x-look: '${HAPAX_TEST_LOOK}'}}"

static const char *const hidden[] = {"key-from-env", "file-content", "in-the-file", "look-from-env",
                                     WHSEC,          WHSEC_2,        "MfKQ9r8G"};

static void assert_hidden(const char *where, const struct buf *b) {
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (has(b, hidden[i])) fail_msg("%s tells %s: %.*s", where, hidden[i], (int)b->len, b->p);
}

static void put(struct buf *b, slice s) {
    buf_reset(b);
    buf_slice_add(b, s);
}

/* With the secrets in the environment and in a file. */
static struct config *with_secrets(void) {
    const char *tmp = getenv("TMPDIR");
    char path[256], yaml[2048];
    snprintf(path, sizeof path, "%s/secret-XXXXXX", tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "file-content\n", 13) == 13);
    close(fd);
    setenv("HAPAX_TEST_KEY", "key-from-env", 1);
    setenv("HAPAX_TEST_SIGN", WHSEC, 1);
    setenv("HAPAX_TEST_LOOK", "look-from-env", 1);
    snprintf(yaml, sizeof yaml,
             "relay: [{dsn: {secret_file: %s}, queue: r}]\nqueues: {q: {" WITH_SECRETS
             "}}\nproxies: {p: {upstream: 'https://h', reconcile: {url: "
             "'https://h', secret_headers: {a: '${HAPAX_TEST_KEY}'}}}}\n",
             path, path);
    struct config *c = parse_as(yaml, &as_daemon);
    unlink(path);
    return c;
}

static void a_call_has_its_secrets(void **state) {
    (void)state;
    struct config *c = with_secrets();
    const struct queue_config *q = config_find(c, SL("q"));
    static const char *const values[] = {"k key-from-env", "file-content", "in-the-file"};
    for (u32 i = 0; i < 3; i++)
        assert_true(slice_eq(call_template_text(q->deliver->headers.at[i].value), slice_str(values[i])));
    assert_true(q->deliver->sign.count == 2 && q->deliver->sign.at[0].n == 24 && q->deliver->sign.at[1].n == 24);
    assert_true(slice_eq(call_template_text(q->reconcile->headers.at[0].value), SL("look-from-env")));
    assert_false(q->deliver->lacks_secrets || q->reconcile->lacks_secrets);
    assert_true(slice_eq(c->relays.at[0].dsn, SL("file-content")));
    config_free(c);
}

static void no_secret_is_journaled_shown_or_told(void **state) {
    (void)state;
    struct config *c = with_secrets(), *other = parse("queues: {q: {}}\n");
    struct buf b = {0};
    static const char *const queues[] = {"q", "gate:p"};
    for (size_t i = 0; i < 2; i++) {
        const struct queue_config *q = config_find(c, slice_str(queues[i]));
        put(&b, q->json);
        assert_hidden("the journal", &b);
        assert_true(has(&b, "${HAPAX_TEST_KEY}"));
        buf_reset(&b);
        config_queue_to_json(q, &b);
        assert_hidden("GET", &b);
        assert_true(has(&b, "${HAPAX_TEST_KEY}"));
        buf_reset(&b);
        explain_queue(q, &b);
        explain_runbook(q, NULL, 0, &b);
        assert_hidden("explain", &b);
        buf_reset(&b);
        struct queue_config *plain = config_queue_default(q->name);
        config_queue_diff(plain, q, &b);
        config_queue_diff(q, plain, &b);
        assert_hidden("the trail", &b);
        config_queue_free(plain);
    }
    buf_reset(&b);
    config_diff(c, other, &b);
    config_diff(other, c, &b);
    assert_hidden("the reload", &b);
    buf_free(&b);
    config_free(c);
    config_free(other);
}

/* What a broker reads back has names instead of secrets: it must know that it cannot call. */
static void what_is_read_from_the_journal_lacks_its_secrets(void **state) {
    (void)state;
    struct config *c = with_secrets();
    struct queue_config *again;
    struct buf errors = {0};
    const struct queue_config *q = config_find(c, SL("q"));
    if (config_queue_from_json(SL("q"), q->json, SECRETS_AS_WRITTEN, &again, &errors) != ST_OK)
        fail_msg("%.*s", (int)errors.len, errors.p);
    assert_true(again->deliver->lacks_secrets && again->reconcile->lacks_secrets);
    assert_true(config_queue_equal(q, again));
    config_queue_diff(q, again, &errors); /* nor is that a change */
    assert_int_equal(errors.len, 0);
    config_queue_free(again);
    assert_int_equal(config_queue_from_json(SL("q"), SL("{\"deliver\":{\"url\":\"https://h\"}}"), SECRETS_AS_WRITTEN,
                                            &again, &errors),
                     ST_OK);
    assert_false(again->deliver->lacks_secrets);
    config_queue_free(again);
    config_free(c);
}

static void rules_through_the_api_take_no_secrets(void **state) {
    (void)state;
    static const char refusal[] =
        ": rules that come through the API take no secrets: they are journaled and shown as they "
        "are. Declare the queue in the file";
    static const struct {
        const char *json, *key;
    } cases[] = {
        {"{\"deliver\":{\"url\":\"https://h\",\"secret_headers\":{\"a\":\"${PATH}\"}}}", "deliver.secret_headers"},
        {"{\"deliver\":{\"url\":\"https://h\",\"secret_headers\":{\"a\":\"plain\"}}}", "deliver.secret_headers"},
        {"{\"deliver\":{\"url\":\"https://h\",\"secret_headers\":{\"a\":{\"secret_file\":\"/etc/passwd\"}}}}",
         "deliver.secret_headers"},
        {"{\"deliver\":{\"url\":\"https://h\",\"sign\":{\"secrets\":[\"" WHSEC "\"]}}}", "deliver.sign.secrets"},
        {"{\"reconcile\":{\"url\":\"https://h\",\"secret_headers\":{}}}", "reconcile.secret_headers"},
    };
    setenv("HAPAX_TEST_KEY", "key-from-env", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct queue_config *q;
        struct buf errors = {0}, expected = {0};
        buf_printf(&expected, "%s%s\n", cases[i].key, refusal);
        assert_int_equal(config_queue_from_json(SL("q"), slice_str(cases[i].json), SECRETS_REFUSED, &q, &errors),
                         ST_INVALID);
        if (!slice_eq(buf_slice(&errors), buf_slice(&expected))) fail_msg("%.*s", (int)errors.len, errors.p);
        buf_free(&errors);
        buf_free(&expected);
    }
    struct queue_config *q;
    struct buf errors = {0};
    assert_int_equal(config_queue_from_json(SL("q"),
                                            SL("{\"deliver\":{\"url\":\"https://h\",\"headers\":{\"a\":\"${b}\"}}}"),
                                            SECRETS_REFUSED, &q, &errors),
                     ST_OK);
    config_queue_free(q);
}

static void a_secret_that_is_not_there_is_a_mistake_which_tells_none(void **state) {
    (void)state;
    static const struct wrong cases[] = {
        {DELIVER("secret_headers: {a: '${HAPAX_TEST_UNSET}'}"),
         "f:1:63: queue q: deliver.secret_headers.a: the environment variable HAPAX_TEST_UNSET is not set\n"},
        {DELIVER("secret_headers: {a: 'x${HAPAX_TEST_EMPTY}'}"),
         "f:1:63: queue q: deliver.secret_headers.a: the environment variable HAPAX_TEST_EMPTY is empty\n"},
        {DELIVER("secret_headers: {a: {secret_file: /hapax/no/such}}"),
         "f:1:77: queue q: deliver.secret_headers.a.secret_file: /hapax/no/such: No such file or directory\n"},
        {"relay: [{dsn: {secret_file: /hapax/no/such}, queue: q}]\n",
         "f:1:29: relay[0].dsn.secret_file: /hapax/no/such: No such file or directory\n"},
        {"relay: [{dsn: {secret_file: /dev/null}, queue: q}]\n", "f:1:15: relay[0].dsn: empty\n"},
        {DELIVER("secret_headers: {a: (secret)}"),
         "f:1:63: queue q: deliver.secret_headers.a: (secret) is what is shown in "
         "the place of a secret: write ${NAME}\n"},
        {DELIVER("sign: {secrets: ['${HAPAX_TEST_WRONG}']}"), "f:1:60: queue q: deliver.sign.secrets[0]: is not whsec_ "
                                                              "and 24 to 64 bytes in base64; echo whsec_$(openssl rand "
                                                              "-base64 32) makes one\n"},
        {DELIVER("secret_headers: {a: '${HAPAX_TEST_BREAK}'}"),
         "f:1:63: queue q: deliver.secret_headers.a: what it stands for has a control character\n"},
    };
    unsetenv("HAPAX_TEST_UNSET");
    setenv("HAPAX_TEST_EMPTY", "", 1);
    setenv("HAPAX_TEST_WRONG", "key-from-env", 1);
    setenv("HAPAX_TEST_BREAK", "key-from-env\r\nevil: 1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config *c;
        struct buf errors = {0};
        assert_int_equal(config_parse(slice_str(cases[i].yaml), "f", &as_daemon, &c, &errors), ST_INVALID);
        if (!slice_eq(buf_slice(&errors), slice_str(cases[i].error))) fail_msg("%.*s", (int)errors.len, errors.p);
        buf_free(&errors);
    }
}

/* ---- what a reload changes */

static void a_reload_says_what_changes_for_calls(void **state) {
    (void)state;
    setenv("HAPAX_TEST_KEY", "one", 1);
    struct config *before =
        parse_as("queues: {a: {deliver: {url: 'https://h/a', secret_headers: {k: '${HAPAX_TEST_KEY}'}}}, b: {}, c: "
                 "{reconcile: {url: "
                 "'https://h'}}}\nproxies: {p: {upstream: 'https://h'}, q: {upstream: 'https://h'}}\n",
                 &as_daemon);
    setenv("HAPAX_TEST_KEY", "two", 1);
    struct config *after = parse_as(
        "queues: {a: {deliver: {url: 'https://h/b', timeout: 20s, secret_headers: {k: '${HAPAX_TEST_KEY}'}, classify: "
        "{poison: [404]}}}, b: {downstream: {remembers: 1d}}, c: {}}\nproxies: {p: {upstream: 'https://i', reconcile: "
        "{url: "
        "'https://h'}}, r: {upstream: 'https://h'}}\n",
        &as_daemon);
    struct buf changes = {0};
    config_diff(before, before, &changes);
    assert_int_equal(changes.len, 0);
    config_diff(before, after, &changes);
    buf_char(&changes, '\0');
    assert_string_equal(changes.p, "proxy p: upstream: https://h -> https://i\n"
                                   "proxy p: reconcile: none -> https://h\n"
                                   "proxy q: removed; what is sent to it gets 404, its keys stay\n"
                                   "proxy r: added\n"
                                   "queue a: deliver.url: https://h/a -> https://h/b\n"
                                   "queue a: deliver.secret_headers: changed\n"
                                   "queue a: deliver.timeout: 10s -> 20s\n"
                                   "queue a: deliver.classify.poison: [\"3xx\",\"4xx\"] -> [404]\n"
                                   "queue b: downstream.remembers: none -> 1d\n"
                                   "queue c: on_unknown: reconcile -> retry\n"
                                   "queue c: reconcile: https://h -> none\n");
    buf_free(&changes);
    config_free(before);
    config_free(after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_contracts_example_is_read),
        cmocka_unit_test(a_proxys_keys_live_in_a_queue_of_its_own),
        cmocka_unit_test(the_most_specific_status_wins_and_what_is_said_beats_a_default),
        cmocka_unit_test(what_may_have_been_done_is_unknown_where_nobody_deduplicates),
        cmocka_unit_test(what_is_unknown_of_a_push_is_looked_up_or_held_unless_the_downstream_deduplicates),
        cmocka_unit_test(a_look_up_takes_the_pushs_headers_to_the_same_place_only),
        cmocka_unit_test(whatever_is_wrong_gets_a_line_with_its_place),
        cmocka_unit_test(a_call_has_its_secrets),
        cmocka_unit_test(no_secret_is_journaled_shown_or_told),
        cmocka_unit_test(what_is_read_from_the_journal_lacks_its_secrets),
        cmocka_unit_test(rules_through_the_api_take_no_secrets),
        cmocka_unit_test(a_secret_that_is_not_there_is_a_mistake_which_tells_none),
        cmocka_unit_test(a_reload_says_what_changes_for_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
