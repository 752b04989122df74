/* The rules. Each looks at one thing and says what it found in figures; why it matters is in lint.def. */
#include "config/lint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/call_template.h"
#include "config/config_priv.h"
#include "config/template.h"

struct lint {
    const struct config *config;
    struct lint_report *report;
    const struct lint_rule *rule;
};

#define QUEUE_RULE(ident, code, severity, title, explanation) {code, severity, title, explanation},
#define FILE_RULE                                             QUEUE_RULE
const struct lint_rule lint_rules[] = {
#include "config/lint.def"
};
const u32 lint_rule_count = sizeof(lint_rules) / sizeof(lint_rules[0]);

/* ---- saying */

static void report(struct lint *l, slice queue, struct said_at at, const char *fmt, va_list args) {
    struct lint_report *r = l->report;
    if (r->count == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 16;
        r->at = mem_realloc(r->at, r->cap * sizeof(*r->at));
    }
    struct lint_finding *f = &r->at[r->count++];
    *f = (struct lint_finding){.rule = l->rule, .queue = queue, .at = at};
    vsnprintf(f->text, sizeof(f->text), fmt, args);
    utf8_trim(f->text);
}

/* At the key if it was said, else at the queue. */
PRINTF_LIKE(4, 5)
static void found(struct lint *l, const struct queue_config *q, enum queue_key k, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    report(l, q->name, q->said[k].line ? q->said[k] : q->at, fmt, args);
    va_end(args);
}

PRINTF_LIKE(3, 4) static void found_in_file(struct lint *l, struct said_at at, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    report(l, SL(""), at, fmt, args);
    va_end(args);
}

/* ---- windows */

static bool dedups(const struct queue_config *q) {
    return q->rules.semantics != SEMANTICS_AT_LEAST_ONCE;
}

static void window_below_replay(struct lint *l, const struct queue_config *q) {
    i64 replay = config_longest_replay_ms(q);
    if (!dedups(q) || rules_adaptive(&q->rules) || q->rules.window_ms / 2 >= replay) return;
    found(l, q, QUEUE_KEY_window, "window %s is below %s, twice the longest upstream replay",
          value_duration_text(q->rules.window_ms).p, value_duration_text(2 * replay).p);
}

static void window_max_below_replay(struct lint *l, const struct queue_config *q) {
    i64 replay = config_longest_replay_ms(q);
    if (!dedups(q) || !rules_adaptive(&q->rules) || q->rules.window_max_ms / 2 >= replay) return;
    found(l, q, QUEUE_KEY_window, "window max %s is below %s, twice the longest upstream replay",
          value_duration_text(q->rules.window_max_ms).p, value_duration_text(2 * replay).p);
}

static void window_min_below_replay(struct lint *l, const struct queue_config *q) {
    i64 replay = config_longest_replay_ms(q);
    if (!dedups(q) || !rules_adaptive(&q->rules) || q->rules.window_min_ms >= replay) return;
    found(l, q, QUEUE_KEY_window, "window min %s is below %s, the longest upstream replay",
          value_duration_text(q->rules.window_min_ms).p, value_duration_text(replay).p);
}

/* From the first delivery to the last: every wait with its jitter, every try with its whole lease. */
static i64 retry_budget_ms(const struct rules *r) {
    i64 waits = 0, wait = r->backoff_ms;
    for (u32 i = 1; i < r->transient_attempts; i++) {
        waits += wait + wait / 4;
        wait = wait * 2 < r->backoff_max_ms ? wait * 2 : r->backoff_max_ms;
    }
    return waits + (i64)r->lease_ms * (r->transient_attempts + r->unknown_attempts + r->crash_attempts);
}

static void window_below_retries(struct lint *l, const struct queue_config *q) {
    const struct rules *r = &q->rules;
    i64 window = rules_adaptive(r) ? r->window_min_ms : r->window_ms, budget = retry_budget_ms(r);
    if (r->semantics != SEMANTICS_EXACTLY_ONCE || window >= budget) return;
    found(l, q, QUEUE_KEY_window, "window %s is below %s, what the queue's own retries may take",
          value_duration_text(window).p, value_duration_text(budget / 1000 * 1000).p);
}

/* ---- keys */

/* "meta.Message-Id" -> "messageid": how the last name reads without its spelling, and the one before it ("meta"). */
struct plain_name {
    char last[64], before[64];
};

static struct plain_name plain_name(const struct template_field *f) {
    static const char *const prefixes[] = {"x-", "hapax-attr-", "hapax-"};
    struct plain_name out = {0};
    size_t n = 0;
    slice name = f->name;
    for (size_t i = 0; f->source == TEMPLATE_HEADER && i < sizeof prefixes / sizeof *prefixes; i++) {
        slice prefix = slice_str(prefixes[i]);
        if (slice_starts(name, prefix)) name = slice_of(name.p + prefix.n, name.n - prefix.n);
    }
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        if (c == '.') {
            memcpy(out.before, out.last, sizeof out.last);
            memset(out.last, 0, sizeof out.last);
            n = 0;
        }
        if (c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (letter && n < sizeof out.last - 1) out.last[n++] = c;
    }
    return out;
}

/* What one delivery, one event or one try is called: another each time the same work is sent. */
static const char *const transport_names[] = {"messageid",
                                              "msgid",
                                              "eventid",
                                              "evtid",
                                              "webhookid",
                                              "deliveryid",
                                              "deliverytag",
                                              "deliverycount",
                                              "notificationid",
                                              "requestid",
                                              "reqid",
                                              "receipthandle",
                                              "offset",
                                              "partition",
                                              "sequencenumber",
                                              "seqno",
                                              "nonce",
                                              "retry",
                                              "retries",
                                              "retrycount",
                                              "retrycounter",
                                              "retrynumber",
                                              "tries",
                                              "attempt",
                                              "attempts",
                                              "attemptcount",
                                              "attemptnumber",
                                              "receivecount",
                                              "redelivered",
                                              "redelivery",
                                              "traceid",
                                              "spanid",
                                              "traceparent",
                                              "hostname",
                                              "podname",
                                              "pid",
                                              "now",
                                              "ts",
                                              "datetime",
                                              "createdat",
                                              "createdon",
                                              "createdtime",
                                              "creationtime",
                                              "createtime",
                                              "created",
                                              "updatedat",
                                              "updated",
                                              "modifiedat",
                                              "lastmodified",
                                              "generatedat",
                                              "emittedat",
                                              "firedat",
                                              "triggeredat",
                                              "sentat",
                                              "sendtime",
                                              "senttime",
                                              "enqueuedat",
                                              "queuedat",
                                              "publishedat",
                                              "publishtime",
                                              "receivedat",
                                              "receivetime",
                                              "receivedtime",
                                              "deliveredat",
                                              "processedat",
                                              "ingestedat",
                                              "requestedat",
                                              "attemptedat",
                                              "requesttime",
                                              "cetime",
                                              NULL};
/* However it goes on before: "x-amz-sns-message-id", "webhook-timestamp". */
static const char *const transport_ends[] = {"timestamp",
                                             "requestid",
                                             "traceid",
                                             "snsmessageid",
                                             "sqsmessageid",
                                             "retrycount",
                                             "deliverytag",
                                             "deliveryattempt",
                                             "receivecount",
                                             "deliverycount",
                                             "redeliveries",
                                             "trycount",
                                             "retryno",
                                             "attemptno",
                                             "timestampms",
                                             "unixtime",
                                             "insertedat",
                                             "correlationid",
                                             "kafkaoffset",
                                             "webhookid",
                                             "githubdelivery",
                                             "svixid",
                                             NULL};
/* Of nothing in particular, or of an envelope, it names the message; of an order it names the order. */
static const char *const bare_names[] = {"uuid", "guid", "ulid", "random", NULL};
static const char *const envelope_names[] = {"",         "meta",    "metadata", "header",  "headers",
                                             "envelope", "message", "event",    "webhook", "delivery",
                                             "request",  "context", "trace",    NULL};

static const char *const hash_names[] = {
    "hash",   "sha",  "sha1",     "sha256",      "sha512",      "md5",         "crc",        "crc32",       "checksum",
    "digest", "etag", "bodyhash", "contenthash", "messagehash", "payloadhash", "contentmd5", "fingerprint", NULL};

static bool in_list(const char *const *names, const char *name) {
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

static bool ends_in(const char *const *ends, const char *name) {
    size_t n = strlen(name);
    for (; *ends; ends++) {
        size_t end = strlen(*ends);
        if (n >= end && strcmp(name + n - end, *ends) == 0) return true;
    }
    return false;
}

static bool is_transport(struct plain_name name) {
    return in_list(transport_names, name.last) || ends_in(transport_ends, name.last) ||
           (in_list(bare_names, name.last) && in_list(envelope_names, name.before));
}

static bool is_hash(struct plain_name name) {
    return in_list(hash_names, name.last);
}

static void key_from(struct lint *l, const struct queue_config *q, bool (*is_bad)(struct plain_name name),
                     const char *what) {
    if (!q->key || !dedups(q)) return;
    for (u32 i = 0; i < template_field_count(q->key); i++) {
        struct template_field f = template_field_at(q->key, i);
        if (is_bad(plain_name(&f))) found(l, q, QUEUE_KEY_key, "the key uses %.*s, %s", (int)f.name.n, f.name.p, what);
    }
}

static void key_from_transport(struct lint *l, const struct queue_config *q) {
    key_from(l, q, is_transport, "which changes when the same work is sent again");
}

static void key_from_hash(struct lint *l, const struct queue_config *q) {
    key_from(l, q, is_hash, "which is made from the content");
}

static void scope_without_tokens(struct lint *l, const struct queue_config *q) {
    if (q->key_scope == KEY_SCOPE_CREDENTIAL && l->config->tokens.count == 0)
        found(l, q, QUEUE_KEY_key_scope, "key_scope is credential, and the file has no tokens: all senders are one");
}

static bool requires_field(const struct queue_config *q, slice field) {
    struct buf quoted = {0};
    buf_printf(&quoted, "\"%.*s\"", (int)field.n, field.p);
    bool there = q->schema_json.n && memmem(q->schema_json.p, q->schema_json.n, quoted.p, quoted.len);
    buf_free(&quoted);
    return there;
}

static void key_unchecked(struct lint *l, const struct queue_config *q) {
    if (!q->key || !dedups(q)) return;
    for (u32 i = 0; i < template_field_count(q->key); i++) {
        struct template_field f = template_field_at(q->key, i);
        if (f.source != TEMPLATE_FIELD || requires_field(q, f.name)) continue;
        found(l, q, QUEUE_KEY_key, "the key uses %.*s, which the schema does not name", (int)f.name.n, f.name.p);
        return;
    }
}

/* ---- failures */

/* The first key that says something of a downstream; QUEUE_KEY_COUNT: none does. */
static enum queue_key downstream_said(const struct queue_config *q) {
    static const enum queue_key keys[] = {QUEUE_KEY_downstream_idempotency, QUEUE_KEY_downstream_remembers,
                                          QUEUE_KEY_downstream_timeout};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (q->said[keys[i]].line) return keys[i];
    return QUEUE_KEY_COUNT;
}

static void unknown_retried(struct lint *l, const struct queue_config *q) {
    bool blind = q->rules.on_unknown == ON_UNKNOWN_RETRY && q->rules.semantics != SEMANTICS_AT_MOST_ONCE;
    enum queue_key at = downstream_said(q);
    if (!blind || at == QUEUE_KEY_COUNT || q->idempotency == IDEMPOTENCY_KEY) return;
    if (q->said[QUEUE_KEY_on_unknown].line) at = QUEUE_KEY_on_unknown;
    found(l, q, at,
          q->idempotency == IDEMPOTENCY_NONE
              ? "on_unknown is retry, and the downstream has no idempotency"
              : "on_unknown is retry, and downstream.idempotency is not said, which counts as none");
}

static void lease_below_timeout(struct lint *l, const struct queue_config *q) {
    bool pushed = q->deliver && q->deliver->timeout_ms > q->downstream_timeout_ms;
    i64 timeout_ms = pushed ? q->deliver->timeout_ms : q->downstream_timeout_ms;
    if (q->rules.semantics == SEMANTICS_AT_MOST_ONCE || q->rules.lease_ms >= timeout_ms) return;
    enum queue_key at = q->said[QUEUE_KEY_lease].line ? QUEUE_KEY_lease
                        : pushed                      ? QUEUE_KEY_deliver
                                                      : QUEUE_KEY_downstream_timeout;
    found(l, q, at, "lease %s is below the %s timeout of %s", value_duration_text(q->rules.lease_ms).p,
          pushed ? "push's" : "downstream's", value_duration_text(timeout_ms).p);
}

/* ---- calls */

static void push_unknown_held(struct lint *l, const struct queue_config *q) {
    if (!q->deliver || q->reconcile || q->said[QUEUE_KEY_on_unknown].line) return;
    if (q->idempotency == IDEMPOTENCY_UNSAID)
        found(l, q, QUEUE_KEY_deliver, "downstream.idempotency is not said, and there is no reconcile");
    else if (q->idempotency == IDEMPOTENCY_KEY && q->rules.on_unknown == ON_UNKNOWN_HOLD)
        found(l, q, QUEUE_KEY_deliver, "its class looks unknown outcomes up, and there is no reconcile: they are held");
}

static bool asks_of_nothing(const struct reconcile_config *r) {
    bool plain = r && call_template_is_plain(r->url);
    for (u32 i = 0; plain && i < r->headers.count; i++) plain = call_template_is_plain(r->headers.at[i].value);
    return plain;
}

static void lookup_of_anything(struct lint *l, const struct queue_config *q) {
    if (asks_of_nothing(q->reconcile)) found(l, q, QUEUE_KEY_reconcile, "reconcile.url has no value of the message");
}

/* A search that finds nothing is mostly answered with 200 and an empty list. */
static bool takes_any_list(const struct reconcile_config *r) {
    slice url = r && !r->exists ? call_template_text(r->url) : SL("");
    return url.n > 0 && memchr(url.p, '?', url.n);
}

static void lookup_without_exists(struct lint *l, const struct queue_config *q) {
    if (takes_any_list(q->reconcile))
        found(l, q, QUEUE_KEY_reconcile, "reconcile.url is a search, and exists is not said");
}

static bool is_kept(slice header) {
    static const char *const kept[] = {"hapax-group", "hapax-request-id", "content-type", "traceparent"};
    bool known = slice_starts(header, SL("hapax-attr-"));
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) known |= slice_eq(header, slice_str(kept[i]));
    return known;
}

static void check_kept(struct lint *l, const struct queue_config *q, enum queue_key k, const struct call_template *t) {
    slice name;
    for (u32 part = 0; call_template_header(t, &part, &name);)
        if (!is_kept(name))
            found(l, q, k, "%s names the header %.*s, which is not kept with a message",
                  k == QUEUE_KEY_deliver ? "deliver" : "reconcile", (int)name.n, name.p);
}

static void header_not_kept(struct lint *l, const struct queue_config *q) {
    if (q->deliver) check_kept(l, q, QUEUE_KEY_deliver, q->deliver->url);
    for (u32 i = 0; q->deliver && i < q->deliver->headers.count; i++)
        check_kept(l, q, QUEUE_KEY_deliver, q->deliver->headers.at[i].value);
    if (q->reconcile) check_kept(l, q, QUEUE_KEY_reconcile, q->reconcile->url);
    for (u32 i = 0; q->reconcile && i < q->reconcile->headers.count; i++)
        check_kept(l, q, QUEUE_KEY_reconcile, q->reconcile->headers.at[i].value);
}

/* From the first call to the last. */
static i64 push_span_ms(const struct queue_config *q) {
    struct rules r = q->rules;
    r.lease_ms = (u32)q->deliver->timeout_ms;
    return retry_budget_ms(&r);
}

static void remembers_below_retries(struct lint *l, const struct queue_config *q) {
    if (!q->deliver || !q->remembers_ms || q->remembers_ms >= push_span_ms(q)) return;
    found(l, q, QUEUE_KEY_downstream_remembers, "remembers %s is below %s, for which a message may be sent",
          value_duration_text(q->remembers_ms).p, value_duration_text(push_span_ms(q) / 1000 * 1000).p);
}

static void remembers_below_window(struct lint *l, const struct queue_config *q) {
    if (!q->deliver || q->reconcile || !q->remembers_ms || q->remembers_ms >= q->rules.window_ms) return;
    found(l, q, QUEUE_KEY_downstream_remembers, "remembers %s is below the window",
          value_duration_text(q->remembers_ms).p);
}

static void approve_at_speed(struct lint *l, const struct queue_config *q) {
    if (!q->deliver || !q->deliver->approve || q->deliver->rate_per_min <= 60) return;
    found(l, q, QUEUE_KEY_deliver, "approve is true, and up to %u messages a minute are sent",
          q->deliver->rate_per_min);
}

static void private_by_message(struct lint *l, const struct queue_config *q) {
    const struct deliver_config *d = q->deliver;
    if (d && d->allow_private && !call_template_is_plain(d->url))
        found(l, q, QUEUE_KEY_deliver, "allow_private is true, and the url has values of the message");
}

/* Those that can be told without asking for the name's address. */
static bool is_private(slice url) {
    static const char *const hosts[] = {"127.", "localhost", "[::1]", "10.", "192.168."};
    size_t scheme = slice_starts(url, SL("https://")) ? 8 : 7;
    slice host = slice_of(url.p + scheme, url.n - scheme);
    bool is = false;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) is |= slice_starts(host, slice_str(hosts[i]));
    return is;
}

static void private_refused(struct lint *l, const struct queue_config *q) {
    const struct deliver_config *d = q->deliver;
    const struct reconcile_config *r = q->reconcile;
    if (d && !d->allow_private && is_private(call_template_origin(d->url)))
        found(l, q, QUEUE_KEY_deliver, "deliver.url is a private address, and allow_private is not set");
    if (r && !r->allow_private && is_private(call_template_origin(r->url)))
        found(l, q, QUEUE_KEY_reconcile, "reconcile.url is a private address, and allow_private is not set");
}

static bool in_clear(slice url) {
    static const char *const here[] = {"http://127.", "http://localhost", "http://[::1]"};
    bool clear = slice_starts(url, SL("http://"));
    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        if (slice_starts(url, slice_str(here[i]))) clear = false;
    return clear;
}

static bool has_secrets(const struct call_headers *h) {
    bool secret = false;
    for (u32 i = 0; i < h->count; i++) secret |= h->at[i].secret;
    return secret;
}

static void secret_in_clear(struct lint *l, const struct queue_config *q) {
    const struct deliver_config *d = q->deliver;
    const struct reconcile_config *r = q->reconcile;
    if (d && has_secrets(&d->headers) && in_clear(call_template_origin(d->url)))
        found(l, q, QUEUE_KEY_deliver, "deliver.url is not https, and secret_headers go there");
    if (r && has_secrets(&r->headers) && in_clear(call_template_origin(r->url)))
        found(l, q, QUEUE_KEY_reconcile, "reconcile.url is not https, and secret_headers go there");
}

static void proxy_private_refused(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->proxies.count; i++)
        if (!c->proxies.at[i].allow_private && is_private(c->proxies.at[i].upstream))
            found_in_file(l, c->proxies.at[i].at,
                          "the upstream of proxy %s is a private address, and allow_private is not set",
                          c->proxies.at[i].name.p);
}

static void proxy_in_clear(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->proxies.count; i++)
        if (in_clear(c->proxies.at[i].upstream))
            found_in_file(l, c->proxies.at[i].at, "the upstream of proxy %s is not https", c->proxies.at[i].name.p);
}

static void proxy_lookup_of_anything(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->proxies.count; i++)
        if (asks_of_nothing(c->proxies.at[i].reconcile))
            found_in_file(l, c->proxies.at[i].at, "reconcile.url of proxy %s has no value of the call",
                          c->proxies.at[i].name.p);
}

static void proxy_lookup_without_exists(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->proxies.count; i++)
        if (takes_any_list(c->proxies.at[i].reconcile))
            found_in_file(l, c->proxies.at[i].at, "reconcile.url of proxy %s is a search, and exists is not said",
                          c->proxies.at[i].name.p);
}

/* ---- money, and payloads */

static void class_below_money(struct lint *l, const struct queue_config *q) {
    if (q->preset != PRESET_MONEY || q->rules.semantics == SEMANTICS_EXACTLY_ONCE) return;
    found(l, q, QUEUE_KEY_semantics, "a money queue is %s", semantics_text((enum semantics)q->rules.semantics));
}

static void conflict_new(struct lint *l, const struct queue_config *q) {
    if (q->preset != PRESET_MONEY || q->rules.on_conflict != ON_CONFLICT_NEW) return;
    found(l, q, QUEUE_KEY_on_conflict, "on_conflict is new in a money queue");
}

static void fingerprint_none(struct lint *l, const struct queue_config *q) {
    if (!dedups(q) || !slice_eq(q->fingerprint_json, SL("\"none\""))) return;
    found(l, q, QUEUE_KEY_fingerprint, "payloads under one key are not compared");
}

/* ---- watching */

static void lag_alert_below_p95(struct lint *l, const struct queue_config *q) {
    if (!q->lag_p95_ms || !q->lag_alert_ms || q->lag_alert_ms / 10 >= q->lag_p95_ms) return;
    found(l, q, QUEUE_KEY_lag_alert, "lag alert %s is below %s, ten times p95", value_duration_text(q->lag_alert_ms).p,
          value_duration_text(10 * q->lag_p95_ms).p);
}

static void dead_without_owner(struct lint *l, const struct queue_config *q) {
    if (q->rules.semantics != SEMANTICS_EXACTLY_ONCE || q->dead_owner.n) return;
    found(l, q, QUEUE_KEY_dead_owner, "the dead lane has no owner");
}

static void dead_without_alert(struct lint *l, const struct queue_config *q) {
    if (q->rules.semantics != SEMANTICS_EXACTLY_ONCE || q->dead_alert_count) return;
    found(l, q, QUEUE_KEY_dead_alert_count, "the dead lane has no alert");
}

static void replay_unsaid(struct lint *l, const struct queue_config *q) {
    bool forever = q->rules.window_ms == WINDOW_FOREVER;
    if (q->rules.semantics != SEMANTICS_EXACTLY_ONCE || forever || config_longest_replay_ms(q)) return;
    found(l, q, QUEUE_KEY_upstream_replay,
          "neither upstream_replay nor upstreams is said: the window cannot be checked");
}

static void loss_unsaid(struct lint *l, const struct queue_config *q) {
    if (q->rules.semantics != SEMANTICS_AT_MOST_ONCE || q->loss_ppm) return;
    found(l, q, QUEUE_KEY_loss, "loss is not stated");
}

static void unlimited(struct lint *l, const struct queue_config *q) {
    if (q->rules.limit_pending || q->rules.limit_bytes || q->rules.limit_lag_ms) return;
    found(l, q, QUEUE_KEY_limits_pending, "no limit on pending, bytes or lag");
}

/* ---- the file */

static void auto_create_typos(struct lint *l) {
    const struct config *c = l->config;
    if (!c->auto_create || !config_declared(c)) return;
    found_in_file(l, c->said[TOP_KEY_auto_create], "auto_create beside declared queues");
}

static void tenant_prefix_open(struct lint *l) {
    for (u32 i = 0; i < l->config->tenants.count; i++) {
        const struct tenant_config *t = &l->config->tenants.at[i];
        if (!memchr("._-:", t->prefix.p[t->prefix.n - 1], 4))
            found_in_file(l, l->config->said[TOP_KEY_tenants],
                          "the prefix \"%s\" of tenant %s has no separator at its end", t->prefix.p, t->name.p);
    }
}

static void listen_open(struct lint *l) {
    const struct config *c = l->config;
    if (!c->insecure_listen) return;
    found_in_file(l, c->said[TOP_KEY_insecure_listen], "insecure_listen is set; the broker asks for no credentials");
}

static void hosts_any(struct lint *l) {
    if (l->config->hosts.any)
        found_in_file(l, l->config->said[TOP_KEY_hosts], "hosts has *: every host name is answered to");
}

/* It may have been made through the API; a file that says so by itself can be read by itself. */
static void relay_undeclared(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->relays.count; i++) {
        const struct relay_config *r = &c->relays.at[i];
        if (!c->auto_create && !config_find(c, r->queue))
            found_in_file(l, r->queue_at, "relay[%u] sends to queue %s, which the file does not declare", i,
                          r->queue.p);
    }
}

static void check_grants(struct lint *l, slice who, const struct grants *grants) {
    for (u32 i = 0; i < grants->count; i++) {
        const struct grant *g = &grants->at[i];
        if (g->everywhere || memchr(g->queue.p, '*', g->queue.n) || config_find(l->config, g->queue)) continue;
        found_in_file(l, g->at, "%.*s may %s on queue %s, which the file does not declare", (int)who.n, who.p,
                      right_text(g->right), g->queue.p);
    }
}

static void grant_undeclared(struct lint *l) {
    const struct config *c = l->config;
    if (c->auto_create) return;
    check_grants(l, SL("anonymous"), &c->anonymous);
    for (u32 i = 0; i < c->tokens.count; i++) check_grants(l, c->tokens.at[i].name, &c->tokens.at[i].allow);
}

static void source_undeclared(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->sources.count; i++) {
        const struct source_config *s = &c->sources.at[i];
        if (!c->auto_create && !config_find(c, s->queue))
            found_in_file(l, s->queue_at, "source %s sends to queue %s, which the file does not declare", s->name.p,
                          s->queue.p);
    }
}

/* A header that the signature does not cover names the event: whoever recorded a request can send it under another name. */
static void source_unsigned_id(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->sources.count; i++) {
        const struct source_config *s = &c->sources.at[i];
        const struct queue_config *q = config_find(c, s->queue);
        bool uncovered = s->scheme == SCHEME_GITHUB || s->scheme == SCHEME_HMAC;
        if (uncovered && q && !q->key && q->rules.semantics == SEMANTICS_EXACTLY_ONCE)
            found_in_file(l, s->at, "the key of source %s is a header that %s does not sign", s->name.p,
                          config_scheme_names[s->scheme]);
    }
}

static void notify_in_clear(struct lint *l) {
    const struct config *c = l->config;
    if (in_clear(c->alerts.notify_url))
        found_in_file(l, c->said[TOP_KEY_alerts_notify_url], "alerts.notify.url is not https");
}

/* "password=..." of libpq's keyword form, or user:password@ of its URL form. */
static bool has_password(slice dsn) {
    if (strcasestr(dsn.p, "password=")) return true;
    const char *user = strstr(dsn.p, "://"), *at = strchr(dsn.p, '@');
    return user && at && memchr(user + 3, ':', at > user + 3 ? (size_t)(at - user - 3) : 0);
}

static bool written_out(const struct call_headers *h) {
    bool plain = false;
    for (u32 i = 0; i < h->count; i++)
        plain |= h->at[i].secret && slice_eq(h->at[i].written, SL("\"" NODE_WITHHELD "\""));
    return plain;
}

static void queue_secret_in_file(struct lint *l, const struct queue_config *q) {
    const struct deliver_config *d = q->deliver;
    bool deliver = d && (d->sign.plain || written_out(&d->headers));
    if (deliver || (q->reconcile && written_out(&q->reconcile->headers)))
        found_in_file(l, q->said[deliver ? QUEUE_KEY_deliver : QUEUE_KEY_reconcile], "queue %s has a secret in clear",
                      q->name.p);
}

static void secret_in_file(struct lint *l) {
    const struct config *c = l->config;
    for (u32 i = 0; i < c->relays.count; i++)
        if (c->relays.at[i].dsn_plain && has_password(c->relays.at[i].dsn))
            found_in_file(l, c->relays.at[i].at, "relay[%u].dsn holds a password", i);
    for (u32 i = 0; i < c->sources.count; i++)
        if (c->sources.at[i].secrets.plain)
            found_in_file(l, c->sources.at[i].at, "source %s has a secret in clear", c->sources.at[i].name.p);
    for (u32 i = 0; i < c->queues.count; i++) queue_secret_in_file(l, c->queues.at[i]);
    if (c->alerts.notify_secrets.plain)
        found_in_file(l, c->said[TOP_KEY_alerts_notify_secrets], "alerts.notify.secrets holds one in clear");
}

/* ---- running */

static void check_queue(struct lint *l, const struct queue_config *q) {
    l->rule = lint_rules;
#define QUEUE_RULE(ident, ...)                                                                                         \
    ident(l, q);                                                                                                       \
    l->rule++;
#include "config/lint.def"
}

static void check_file(struct lint *l) {
    l->rule = lint_rules;
#define QUEUE_RULE(ident, ...) l->rule++;
#define FILE_RULE(ident, ...)                                                                                          \
    ident(l);                                                                                                          \
    l->rule++;
#include "config/lint.def"
}

static int by_place(const void *a, const void *b) {
    const struct lint_finding *x = a, *y = b;
    if (x->at.line != y->at.line) return x->at.line < y->at.line ? -1 : 1;
    if (x->at.column != y->at.column) return x->at.column < y->at.column ? -1 : 1;
    return (x->rule > y->rule) - (x->rule < y->rule);
}

void lint_run(const struct config *c, struct lint_report *out) {
    struct lint l = {.config = c, .report = out};
    for (u32 i = 0; i < c->queues.count; i++)
        if (!c->queues.at[i]->proxy) check_queue(&l, c->queues.at[i]); /* what a proxy makes is nobody's mistake */
    check_file(&l);
    if (out->count) qsort(out->at, out->count, sizeof(*out->at), by_place);
}

void lint_free(struct lint_report *r) {
    mem_free(r->at);
    *r = (struct lint_report){0};
}

bool lint_is_content(const struct lint_report *r) {
    for (u32 i = 0; i < r->count; i++)
        if (r->at[i].rule->severity != LINT_ADVICE) return false;
    return true;
}

const struct lint_rule *lint_rule_find(slice code) {
    for (u32 i = 0; i < lint_rule_count; i++)
        if (slice_eq(code, slice_str(lint_rules[i].code))) return &lint_rules[i];
    return NULL;
}

const char *lint_rule_code_at(const void *unused, size_t i) {
    (void)unused;
    return i < lint_rule_count ? lint_rules[i].code : NULL;
}

const char *lint_severity_text(enum lint_severity s) {
    static const char *const texts[] = {[LINT_ERROR] = "error", [LINT_WARNING] = "warning", [LINT_ADVICE] = "advice"};
    return texts[s];
}
