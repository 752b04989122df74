/* Every rule of lint.def fires on what it is about, at its place, and keeps quiet otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/lint.h"

static struct config *parse(const char *yaml) {
    struct config *c;
    struct buf errors = {0};
    if (config_parse(slice_str(yaml), "f", &(struct config_use){0}, &c, &errors) != ST_OK)
        fail_msg("%.*s%s", (int)errors.len, errors.p, yaml);
    return c;
}

struct example {
    const char *code;
    const char *bad, *text; /* fires, and what it says: "LINE:COL queue: text" */
    const char *good;       /* the same, put right */
};

#define Q(keys) "queues:\n  q: {" keys "}\n"
#define FLAT    "retry: {transient: {attempts: 1}, unknown: {attempts: 1}, crashes: {attempts: 1}}"

#define TOKEN(allow)                                                                                                   \
    "tokens: [{name: a, sha256: [00000000000000000000000000000000000000000000000000000000000000A1], allow: " allow     \
    "}]\n"

static const struct example examples[] = {
    {"window-below-replay", Q("window: 13d, upstream_replay: 7d"),
     "2:7 q: window 13d is below 14d, twice the longest upstream replay", Q("window: 14d, upstream_replay: 7d")},
    {"window-below-replay", Q("upstreams: {cron: 1d, dlq: 13h}"),
     "2:3 q: window 1d is below 2d, twice the longest upstream replay", Q("window: 2d, upstreams: {cron: 1d}")},
    {"window-below-replay", Q("class: analytics, upstream_replay: 7d"),
     "2:3 q: window 1d is below 14d, twice the longest upstream replay", Q("class: money, upstream_replay: 7d")},
    {"window-below-replay", Q("semantics: exactly_once, upstream_replay: 7d"),
     "2:3 q: window 1d is below 14d, twice the longest upstream replay", Q("class: audit, upstream_replay: 7d")},
    {"window-max-below-replay", Q("window: {min: 7d, max: 13d}, upstream_replay: 7d"),
     "2:7 q: window max 13d is below 14d, twice the longest upstream replay",
     Q("window: {min: 7d, max: 14d}, upstream_replay: 7d")},
    {"window-min-below-replay", Q("window: {min: 6d, max: 14d}, upstream_replay: 7d"),
     "2:7 q: window min 6d is below 7d, the longest upstream replay",
     Q("window: {min: 7d, max: 14d}, upstream_replay: 7d")},
    {"window-below-retries", Q("window: 89s, " FLAT),
     "2:7 q: window 89s is below 90s, what the queue's own retries may take", Q("window: 90s, " FLAT)},
    {"window-below-retries", Q("window: 5m"), "2:7 q: window 5m is below 398s, what the queue's own retries may take",
     Q("window: 399s")},
    {"window-below-retries", Q("window: {min: 5m, max: 9d}"),
     "2:7 q: window 5m is below 398s, what the queue's own retries may take", Q("window: {min: 7m, max: 9d}")},
    {"key-from-transport", Q("key: 'a:${message_id}'"),
     "2:7 q: the key uses message_id, which changes when the same work is sent again", Q("key: 'a:${payment_id}'")},
    {"key-from-transport", Q("key: 'a:${meta.Retry-Count}'"),
     "2:7 q: the key uses meta.Retry-Count, which changes when the same work is sent again", Q("key: 'a:${retry_of}'")},
    {"key-from-transport", Q("key: '${header.x-request-id}'"),
     "2:7 q: the key uses x-request-id, which changes when the same work is sent again", Q("key: '${header.x-order}'")},
    {"key-from-transport", Q("key: '${a}:${receivedAt}'"),
     "2:7 q: the key uses receivedAt, which changes when the same work is sent again",
     Q("class: audit, key: '${a}:${receivedAt}'")},
    {"key-from-transport", Q("key: '${header.x-amz-sns-message-id}'"),
     "2:7 q: the key uses x-amz-sns-message-id, which changes when the same work is sent again",
     Q("key: '${cloudevent}'")},
    {"key-from-hash", Q("key: 'a:${payload_hash}'"), "2:7 q: the key uses payload_hash, which is made from the content",
     Q("key: 'a:${tx_hash}'")},
    {"scope-without-tokens", Q("key_scope: credential"),
     "2:7 q: key_scope is credential, and the file has no tokens: all senders are one",
     "tokens: [{name: a, allow: [send], sha256: "
     "[0000000000000000000000000000000000000000000000000000000000000000]}]\n" Q("key_scope: credential")},
    {"tenant-prefix-open", "tenants: {a: {prefix: shop}}\n",
     "1:1 : the prefix \"shop\" of tenant a has no separator at its end", "tenants: {a: {prefix: shop-}}\n"},
    {"unknown-retried", Q("downstream: {idempotency: none}"),
     "2:20 q: on_unknown is retry, and the downstream has no idempotency",
     Q("downstream: {idempotency: none}, on_unknown: hold")},
    {"unknown-retried", Q("on_unknown: retry, downstream: {idempotency: none}"),
     "2:7 q: on_unknown is retry, and the downstream has no idempotency",
     Q("on_unknown: retry, downstream: {idempotency: key}")},
    {"unknown-retried", Q("on_unknown: retry, downstream: {remembers: 24h}"),
     "2:7 q: on_unknown is retry, and downstream.idempotency is not said, which counts as none",
     Q("on_unknown: retry, downstream: {idempotency: key, remembers: 24h}")},
    {"unknown-retried", Q("downstream: {timeout: 5s}"),
     "2:20 q: on_unknown is retry, and downstream.idempotency is not said, which counts as none",
     Q("on_unknown: hold, downstream: {timeout: 5s}")},
    {"lease-below-timeout", Q("lease: 10s, downstream: {idempotency: key}, deliver: {url: 'https://h', timeout: 20s}"),
     "2:7 q: lease 10s is below the push's timeout of 20s",
     Q("lease: 20s, downstream: {idempotency: key}, deliver: {url: 'https://h', timeout: 20s}")},
    {"lease-below-timeout", Q("downstream: {idempotency: key}, deliver: {url: 'https://h', timeout: 31s}"),
     "2:39 q: lease 30s is below the push's timeout of 31s",
     Q("lease: 31s, downstream: {idempotency: key}, deliver: {url: 'https://h', timeout: 31s}")},
    {"lease-below-timeout", Q("lease: 9s, downstream: {timeout: 10s}"),
     "2:7 q: lease 9s is below the downstream's timeout of 10s", Q("lease: 10s, downstream: {timeout: 10s}")},
    {"lease-below-timeout", Q("downstream: {timeout: 31s}"),
     "2:20 q: lease 30s is below the downstream's timeout of 31s", Q("")},
    {"push-unknown-held", Q("deliver: {url: 'https://h'}"),
     "2:7 q: downstream.idempotency is not said, and there is no reconcile",
     Q("deliver: {url: 'https://h'}, downstream: {idempotency: none}")},
    {"push-unknown-held", Q("deliver: {url: 'https://h'}"),
     "2:7 q: downstream.idempotency is not said, and there is no reconcile",
     Q("deliver: {url: 'https://h'}, reconcile: {url: 'https://h/${hapax.key}'}")},
    {"push-unknown-held", Q("deliver: {url: 'https://h'}"),
     "2:7 q: downstream.idempotency is not said, and there is no reconcile",
     Q("deliver: {url: 'https://h'}, on_unknown: hold")},
    {"push-unknown-held", Q("class: money, deliver: {url: 'https://h'}, downstream: {idempotency: key}"),
     "2:21 q: its class looks unknown outcomes up, and there is no reconcile: they are held",
     Q("class: money, deliver: {url: 'https://h'}, downstream: {idempotency: key}, on_unknown: retry")},
    {"lookup-of-anything", Q("reconcile: {url: 'https://h/x'}"), "2:7 q: reconcile.url has no value of the message",
     Q("reconcile: {url: 'https://h/x', headers: {key: '${hapax.effect_key}'}}")},
    {"lookup-without-exists", Q("reconcile: {url: 'https://h/x?k=${hapax.effect_key}'}"),
     "2:7 q: reconcile.url is a search, and exists is not said",
     Q("reconcile: {url: 'https://h/x?k=${hapax.effect_key}', exists: 'items[0].id'}")},
    {"header-not-kept", Q("deliver: {url: 'https://h/${header.x-a}'}"),
     "2:7 q: deliver names the header x-a, which is not kept with a message",
     Q("deliver: {url: 'https://h/${header.Hapax-Attr-a}', headers: {a: '${header.traceparent} ${a.x-a}'}}")},
    {"header-not-kept", Q("reconcile: {url: 'https://h/${hapax.key}', headers: {a: '${b}${header.x-a}'}}"),
     "2:7 q: reconcile names the header x-a, which is not kept with a message",
     Q("reconcile: {url: 'https://h/${hapax.key}', secret_headers: {a: '${A}'}}")},
    {"remembers-below-retries", Q("deliver: {url: 'https://h'}, downstream: {idempotency: key, remembers: 2m}"),
     "2:67 q: remembers 2m is below 158s, for which a message may be sent",
     Q("deliver: {url: 'https://h'}, downstream: {idempotency: key, remembers: 3m}")},
    {"remembers-below-window", Q("deliver: {url: 'https://h'}, downstream: {idempotency: key, remembers: 23h}"),
     "2:67 q: remembers 23h is below the window",
     Q("deliver: {url: 'https://h'}, downstream: {idempotency: key, remembers: 24h}")},
    {"approve-at-speed", Q("deliver: {url: 'https://h', approve: true, rate: 2/s}"),
     "2:7 q: approve is true, and up to 120 messages a minute are sent",
     Q("deliver: {url: 'https://h', approve: true, rate: 60/m}")},
    {"private-by-message", Q("deliver: {url: 'https://h/${a}', allow_private: true}"),
     "2:7 q: allow_private is true, and the url has values of the message",
     Q("deliver: {url: 'https://h/a', headers: {a: '${a}'}, allow_private: true}")},
    {"private-refused", Q("deliver: {url: 'http://localhost:81'}"),
     "2:7 q: deliver.url is a private address, and allow_private is not set",
     Q("deliver: {url: 'http://localhost:81', allow_private: true}")},
    {"private-refused", Q("reconcile: {url: 'https://10.0.0.1/${a}'}"),
     "2:7 q: reconcile.url is a private address, and allow_private is not set",
     Q("reconcile: {url: 'https://100.0.0.1/${a}'}")},
    {"proxy-private-refused", "proxies: {p: {upstream: 'http://127.0.0.1:8080'}}\n",
     "1:11 : the upstream of proxy p is a private address, and allow_private is not set",
     "proxies: {p: {upstream: 'http://127.0.0.1:8080', allow_private: true}}\n"},
    {"secret-in-clear", Q("deliver: {url: 'http://h', secret_headers: {a: '${A}'}}"),
     "2:7 q: deliver.url is not https, and secret_headers go there",
     Q("deliver: {url: 'http://localhost:81', secret_headers: {a: '${A}'}}")},
    {"secret-in-clear", Q("reconcile: {url: 'http://h/${a}', secret_headers: {a: '${A}'}}"),
     "2:7 q: reconcile.url is not https, and secret_headers go there",
     Q("reconcile: {url: 'http://h/${a}', headers: {a: b}}")},
    {"proxy-in-clear", "proxies: {p: {upstream: 'http://h'}}\n", "1:11 : the upstream of proxy p is not https",
     "proxies: {p: {upstream: 'http://127.0.0.1:8080'}}\n"},
    {"proxy-lookup-of-anything", "proxies: {p: {upstream: 'https://h', reconcile: {url: 'https://h'}}}\n",
     "1:11 : reconcile.url of proxy p has no value of the call",
     "proxies: {p: {upstream: 'https://h', reconcile: {url: 'https://h/${hapax.key}'}}}\n"},
    {"proxy-lookup-without-exists",
     "proxies: {p: {upstream: 'https://h', reconcile: {url: 'https://h?k=${hapax.key}'}}}\n",
     "1:11 : reconcile.url of proxy p is a search, and exists is not said",
     "proxies: {p: {upstream: 'https://h', reconcile: {url: 'https://h/${hapax.key}'}}}\n"},
    {"secret-in-file", Q("deliver: {url: 'https://h', secret_headers: {a: abc}}"),
     "2:7 : queue q has a secret in clear",
     Q("deliver: {url: 'https://h', secret_headers: {a: {secret_file: abc}, b: '${A}'}, sign: {secrets: ['${B}']}}")},
    {"secret-in-file", Q("deliver: {url: 'https://h', sign: {secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]}}"),
     "2:7 : queue q has a secret in clear", Q("deliver: {url: 'https://h', sign: {secrets: ['${B}']}}")},
    {"money-not-exactly-once", Q("class: money, semantics: at_least_once"), "2:21 q: a money queue is at_least_once",
     Q("class: money")},
    {"money-conflict-new", Q("class: money, on_conflict: new"), "2:21 q: on_conflict is new in a money queue",
     Q("class: notification, on_conflict: new")},
    {"fingerprint-none", Q("fingerprint: none"), "2:7 q: payloads under one key are not compared",
     Q("fingerprint: json")},
    {"lag-alert-below-p95", Q("lag: {p95: 30s, alert: 299s}"), "2:23 q: lag alert 299s is below 5m, ten times p95",
     Q("lag: {p95: 30s, alert: 5m}")},
    {"dead-without-owner", Q(""), "2:3 q: the dead lane has no owner", Q("dead: {owner: me}")},
    {"dead-without-owner", Q("class: money"), "2:3 q: the dead lane has no owner", Q("class: analytics")},
    {"dead-without-alert", Q("dead: {owner: me}"), "2:3 q: the dead lane has no alert",
     Q("dead: {owner: me, alert: {count: 1, within: 1m}}")},
    {"replay-unsaid", Q(""), "2:3 q: neither upstream_replay nor upstreams is said: the window cannot be checked",
     Q("upstreams: {dlq: 1h}")},
    {"replay-unsaid", Q("window: 9d"),
     "2:3 q: neither upstream_replay nor upstreams is said: the window cannot be checked", Q("window: forever")},
    {"key-unchecked", Q("key: '${a}:${b.c}', schema: {required: [a]}"),
     "2:7 q: the key uses b.c, which the schema does not name", Q("key: '${a}:${b.c}', schema: {required: [a, b.c]}")},
    {"loss-unsaid", Q("class: analytics"), "2:3 q: loss is not stated", Q("class: analytics, loss: 1%")},
    {"unlimited", Q(""), "2:3 q: no limit on pending, bytes or lag", Q("limits: {lag: 5m}")},
    {"auto-create-typos", "auto_create: true\nqueues: {q: {}}\n", "1:1 : auto_create beside declared queues",
     "auto_create: true\nproxies: {p: {upstream: 'https://h'}}\n"},
    {"listen-open", "listen: 0.0.0.0:4279\ninsecure_listen: true\n",
     "2:1 : insecure_listen is set; the broker asks for no credentials", "listen: 127.0.0.1:4279\n"},
    {"hosts-any", "hosts: ['*']\n", "1:1 : hosts has *: every host name is answered to",
     "hosts: [queue.example.com]\n"},
    {"source-undeclared", "sources: {s: {queue: slots, verify: {scheme: none}}}\n",
     "1:22 : source s sends to queue slots, which the file does not declare",
     "sources: {s: {queue: slots, verify: {scheme: none}}}\nqueues: {slots: {}}\n"},
    {"source-unsigned-id", "sources: {s: {queue: q, verify: {scheme: github, secrets: ['${X}']}}}\nqueues: {q: {}}\n",
     "1:11 : the key of source s is a header that github does not sign",
     "sources: {s: {queue: q, verify: {scheme: github, secrets: ['${X}']}}}\nqueues: {q: {key: '${after}'}}\n"},
    {"secret-in-file", "sources: {s: {queue: q, verify: {scheme: stripe, secrets: [abc]}}}\nqueues: {q: {}}\n",
     "1:11 : source s has a secret in clear",
     "sources: {s: {queue: q, verify: {scheme: stripe, secrets: ['${X}']}}}\nqueues: {q: {}}\n"},
    {"relay-undeclared", "relay: [{dsn: d, queue: orders}]\nqueues: {q: {}}\n",
     "1:25 : relay[0] sends to queue orders, which the file does not declare",
     "relay: [{dsn: d, queue: q}]\nqueues: {q: {}}\n"},
    {"relay-undeclared", "relay: [{dsn: d, queue: orders}]\n",
     "1:25 : relay[0] sends to queue orders, which the file does not declare",
     "relay: [{dsn: d, queue: orders}]\nauto_create: true\n"},
    {"grant-undeclared", TOKEN("['send:payment']") "queues: {payments: {}}\n",
     "1:104 : a may send on queue payment, which the file does not declare",
     TOKEN("['send:payments', observe, 'operate:pay*', 'receive:*']") "queues: {payments: {}}\n"},
    {"grant-undeclared", "anonymous: ['observe:payment']\n",
     "1:13 : anonymous may observe on queue payment, which the file does not declare",
     "anonymous: ['observe:payment']\nauto_create: true\n"},
    {"notify-in-clear", "alerts: {notify: {url: 'http://h/x', secrets: ['${X}']}}\n",
     "1:19 : alerts.notify.url is not https", "alerts: {notify: {url: 'http://127.0.0.1:1/x', secrets: ['${X}']}}\n"},
    {"notify-in-clear", "alerts: {notify: {url: 'http://h/x', secrets: ['${X}']}}\n",
     "1:19 : alerts.notify.url is not https", "alerts: {notify: {url: 'https://h/x', secrets: ['${X}']}}\n"},
    {"secret-in-file", "alerts: {notify: {url: 'https://h/', secrets: [whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw]}}\n",
     "1:38 : alerts.notify.secrets holds one in clear", "alerts: {notify: {url: 'https://h/', secrets: ['${X}']}}\n"},
    {"secret-in-file", "relay:\n  - {dsn: 'host=db password=x', queue: q}\n", "2:5 : relay[0].dsn holds a password",
     "relay: [{dsn: 'host=db password=${X}', queue: q}]\n"},
    {"secret-in-file", "relay: [{dsn: 'postgresql://me:secret@db/x', queue: q}]\n",
     "1:9 : relay[0].dsn holds a password", "relay: [{dsn: 'postgresql://me@db:5432/x', queue: q}]\n"},
};

/* What the rule says about this file, NULL if nothing. */
static const char *finding_of(const char *yaml, const char *code, char text[512]) {
    struct config *c = parse(yaml);
    struct lint_report r = {0};
    const char *found = NULL;
    lint_run(c, &r);
    for (u32 i = 0; i < r.count && !found; i++) {
        const struct lint_finding *f = &r.at[i];
        if (strcmp(f->rule->code, code) != 0) continue;
        snprintf(text, 512, "%u:%u %.*s: %s", f->at.line, f->at.column, (int)f->queue.n, f->queue.p, f->text);
        found = text;
    }
    lint_free(&r);
    config_free(c);
    return found;
}

static void every_rule_fires_at_its_place_and_is_content_when_put_right(void **state) {
    (void)state;
    int failures = 0;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const struct example *e = &examples[i];
        char text[512];
        const char *bad = finding_of(e->bad, e->code, text);
        if (!bad || strcmp(bad, e->text) != 0) {
            print_error("%s: %s\n  expected: %s\n  got:      %s\n", e->code, e->bad, e->text, bad ? bad : "nothing");
            failures++;
        }
        const char *good = finding_of(e->good, e->code, text);
        if (good) {
            print_error("%s: %s\n  should be content: %s\n", e->code, e->good, good);
            failures++;
        }
    }
    assert_int_equal(failures, 0);
}

/* As people spell them: in payloads, nested, and as headers. */
static void names_of_a_transport_are_known_in_every_spelling(void **state) {
    (void)state;
    static const char *const bad[] = {"event_id",
                                      "eventId",
                                      "evt-id",
                                      "webhook_id",
                                      "header.webhook-id",
                                      "uuid",
                                      "guid",
                                      "meta.uuid",
                                      "event.uuid",
                                      "timestamp",
                                      "ts",
                                      "sent_timestamp",
                                      "header.webhook-timestamp",
                                      "created_at",
                                      "createdAt",
                                      "order.created_at",
                                      "created",
                                      "updated_at",
                                      "publishedAt",
                                      "delivery.attempt",
                                      "attemptNumber",
                                      "header.hapax-request-id",
                                      "header.x-github-delivery",
                                      "header.x-shopify-webhook-id",
                                      "header.svix-id",
                                      "redelivery_count",
                                      "attempt_no",
                                      "event.timestamp_ms",
                                      "kafka_offset",
                                      "header.hapax-attr-message-id",
                                      "header.x-correlation-trace-id",
                                      "data.requestId",
                                      "nonce",
                                      "offset",
                                      "header.ce-time",
                                      "ApproximateReceiveCount",
                                      "msgs[0].msg_id",
                                      "requested_at"};
    static const char *const good[] = {"order_id",
                                       "payment_intent_id",
                                       "customer.uuid",
                                       "order_uuid",
                                       "order.guid",
                                       "shipment.id",
                                       "effectiveDate",
                                       "appointment_time",
                                       "retry_of",
                                       "calendar_event_id",
                                       "chat_message.thread_id",
                                       "due_at",
                                       "header.x-order",
                                       "header.idempotency-key",
                                       "invoice_number",
                                       "sequence",
                                       "timestamp.zone",
                                       "attempt_policy"};
    char yaml[256], text[512];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(yaml, sizeof yaml, Q("key: 'a:${%s}'"), bad[i]);
        if (!finding_of(yaml, "key-from-transport", text)) fail_msg("%s is not found", bad[i]);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(yaml, sizeof yaml, Q("key: 'a:${%s}'"), good[i]);
        if (finding_of(yaml, "key-from-transport", text)) fail_msg("%s is found", good[i]);
    }
}

static void every_rule_has_an_example_here_and_an_explanation(void **state) {
    (void)state;
    for (u32 i = 0; i < lint_rule_count; i++) {
        const struct lint_rule *rule = &lint_rules[i];
        bool there = false;
        for (size_t k = 0; k < sizeof examples / sizeof *examples; k++)
            there |= strcmp(examples[k].code, rule->code) == 0;
        if (!there) fail_msg("%s has no example", rule->code);
        assert_ptr_equal(lint_rule_find(slice_str(rule->code)), rule);
        assert_true(strlen(rule->explanation) > 80);
    }
    assert_null(lint_rule_find(SL("no-such-rule")));
}

/* The example an explanation ends with must itself be loadable, and not be what it warns of. */
static void every_explanation_ends_with_an_example_that_its_rule_accepts(void **state) {
    (void)state;
    for (u32 i = 0; i < lint_rule_count; i++) {
        const char *example = strstr(lint_rules[i].explanation, "\n    ");
        assert_non_null(example);
        char text[512];
        struct buf yaml = {0}, errors = {0};
        struct config *c;
        buf_printf(&yaml, "queues:\n  q:%s\n", example); /* a queue's keys, or the file's */
        buf_char(&yaml, '\0');
        bool queue = config_parse(slice_of(yaml.p, yaml.len - 1), "f", &(struct config_use){0}, &c, &errors) == ST_OK;
        config_free(c);
        buf_free(&errors);
        const char *found = finding_of(queue ? yaml.p : example, lint_rules[i].code, text);
        if (found) fail_msg("%s: its own example: %s", lint_rules[i].code, found);
        buf_free(&yaml);
    }
}

static void findings_come_in_the_order_of_the_file(void **state) {
    (void)state;
    struct config *c =
        parse("queues:\n  z: {}\n  a:\n    fingerprint: none\n    lag: {p95: 1s, alert: 2s}\nauto_create: true\n");
    struct lint_report r = {0};
    lint_run(c, &r);
    assert_true(r.count > 6);
    for (u32 i = 1; i < r.count; i++) assert_true(r.at[i - 1].at.line <= r.at[i].at.line);
    assert_string_equal(r.at[r.count - 1].rule->code, "auto-create-typos");
    assert_false(lint_is_content(&r));
    lint_free(&r);
    config_free(c);
}

static void advice_alone_is_contentment(void **state) {
    (void)state;
    struct config *c = parse(Q("dead: {owner: me}"));
    struct lint_report r = {0};
    lint_run(c, &r);
    assert_true(r.count > 0);
    assert_true(lint_is_content(&r));
    lint_free(&r);
    config_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_fires_at_its_place_and_is_content_when_put_right),
        cmocka_unit_test(names_of_a_transport_are_known_in_every_spelling),
        cmocka_unit_test(every_rule_has_an_example_here_and_an_explanation),
        cmocka_unit_test(every_explanation_ends_with_an_example_that_its_rule_accepts),
        cmocka_unit_test(findings_come_in_the_order_of_the_file),
        cmocka_unit_test(advice_alone_is_contentment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
