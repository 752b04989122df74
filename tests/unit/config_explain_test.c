/* A queue's rules in words: the words follow the rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/explain.h"

enum { WIDTH_MAX = 150 };

#define PUSH(keys) "deliver: {url: 'https://h/${a}', " keys "}"
#define LOOK(keys) "reconcile: {url: 'https://h/${hapax.effect_key}', " keys "}"

static void each_queue(const char *flow, void (*each)(const struct queue_config *q, struct buf *out), struct buf *out) {
    char yaml[2048];
    struct config *c;
    struct buf errors = {0};
    snprintf(yaml, sizeof yaml, "queues: {q: {%s}}\n", flow);
    if (config_parse(slice_str(yaml), "f", &(struct config_use){0}, &c, &errors) != ST_OK)
        fail_msg("%.*s", (int)errors.len, errors.p);
    each(c->queues.at[0], out);
    buf_char(out, '\0');
    config_free(c);
}

static void explain(const char *flow, struct buf *out) {
    each_queue(flow, explain_queue, out);
}

static void write_page(const struct queue_config *q, struct buf *out) {
    static const struct type_counts types[] = {
        {SL("paid"), 90, 10, 0}, {SL("a|b<c>"), 5, 0, 2}, {SL("quiet"), 7, 0, 0}};
    explain_runbook(q, types, 3, out);
}

/* The page of a queue: what applies to it and nothing else. */
static void the_operators_page_follows_the_rules(void **state) {
    (void)state;
    static const struct {
        const char *queue, *says, *does_not_say;
    } cases[] = {
        {"", "# Queue q\n\nOwner: nobody is named", "Its event types"},
        {"dead: {owner: 'pay|ops'}", "Owner: pay\\|ops.", NULL},
        {"", "Rules: f, line 1; change them there and reload.", "hapax queues show"},
        {"", "\n## What repeats look like\n\n- The key is what the sender gives", "  -"},
        {"on_unknown: reconcile", "says reconcile and asks what became of it; nothing", NULL},
        {"on_conflict: new", "key~\\<fingerprint>", "key~<"},
        {"", "| `oldest_unsettled` | begun 10m ago | ", "`lag`"},
        {"alerts: {oldest_unsettled: 2m, off: [held_waiting]}", "| begun 2m ago |", "`held_waiting`"},
        {"lag: {p95: 30s, alert: 5m}", "| `lag` | oldest ready above 5m, or p95 above 30s |", NULL},
        {"dead: {owner: a, alert: {count: 3, within: 1h}}", "| `dead_letters` | 3 within 1h |", NULL},
        {"class: analytics, loss: 1%", "| `loss_rate` | above 1 % |", "`group_blocked`"},
        {"class: audit", "| `dead_letters` | 10 within 15m |", "`duplicates_high`"},
        {"origin: '${header.x}'", "`key_skew`", NULL},
        {PUSH(""), "\n## What the broker calls\n\n- Each message goes to https://h/${a} (POST)", NULL},
        {PUSH(""), "| `push_down` | its target's circuit is open for 5m, or it is gone (410) for as long | ", NULL},
        {LOOK(""), "effect_key} 30s after the attempt's end", "push_down"},
        {"event_type: '${type}'", "| paid | 90 | 10 | 0 | 10 % of what comes |\n", NULL},
        {"event_type: '${type}'", "| a\\|b\\<c\\> | 5 | 0 | 2 | none is the same: what changes between tries?", NULL},
        {"event_type: '${type}'", "| quiet | 7 | 0 | 0 | none so far |\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = {0};
        each_queue(cases[i].queue, write_page, &out);
        if (!strstr(out.p, cases[i].says)) fail_msg("%s: no \"%s\" in\n%s", cases[i].queue, cases[i].says, out.p);
        if (cases[i].does_not_say && strstr(out.p, cases[i].does_not_say))
            fail_msg("%s: \"%s\" in\n%s", cases[i].queue, cases[i].does_not_say, out.p);
        buf_free(&out);
    }
}

static void the_words_follow_the_rules(void **state) {
    (void)state;
    static const struct {
        const char *queue, *says, *does_not_say;
    } cases[] = {
        {"", "Exactly once", "class"},
        {"class: money", "class money", "for 1d"},
        {"class: money", "remembered forever", "done again; dead"},
        {"class: money", "the next delivery says reconcile", "held at once"},
        {"", "for 1d; a repeat after that is new work", "Upstreams"},
        {"window: {min: 3d, max: 14d}", "from 3d to 14d", "forever"},
        {"upstreams: {a: 1h, b: 2h}", "up to 2h late", NULL},
        {"", "Idempotency-Key; without one it is refused", "made from the message"},
        {"key: 'a:${b}'", "made from the message: a:${b}", "Idempotency-Key"},
        {"class: audit", "A repeated key is a second message", "answered with the state"},
        {"class: audit", "At least once", "Two payloads"},
        {"class: analytics, loss: 0.05%", "Accepted loss: 0.05 %", "Transient"},
        {"class: analytics", "settled when it was handed out", "hapax dead list"},
        {"", "if their bytes are", NULL},
        {"fingerprint: bytes", "if their bytes are", "\"bytes\""},
        {"fingerprint: json", "the same as JSON", "bytes are"},
        {"fingerprint: {ignore: [sent_at, m.ts]}", "agree in all fields but sent_at, m.ts.", "{"},
        {"fingerprint: {only: [amount]}", "agree in these fields: amount.", "{"},
        {"key: '${id}'", "a field of its template is missing): not admitted", "schema"},
        {"class: analytics", "only the disk", "dead"},
        {"fingerprint: none", "Payloads are not compared", "key_reused"},
        {"", "422 key_reused", "is held (202)"},
        {"on_conflict: hold", "is held (202)", "key_reused"},
        {"on_conflict: hold", "a conflict as new or duplicate", NULL},
        {"on_conflict: new", "under key~<fingerprint>", "key_reused"},
        {"on_unknown: hold", "held at once, a person decides", "done again; dead"},
        {"on_unknown: hold", "hapax held list q", NULL},
        {"", "done again; dead after 3 unknown outcomes or 3", "hapax held"},
        {"downstream: {idempotency: none}", "THE EFFECT MAY HAPPEN TWICE", NULL},
        {"downstream: {idempotency: key}", "so this is safe", "TWICE"},
        {"lease: 45s", "lease of 45s", NULL},
        {"retry: {transient: {attempts: 9, backoff: 2s, max: 1m}}", "tried 9 times in all, waiting 2s", NULL},
        {"retry: {transient: {attempts: 9, backoff: 2s, max: 1m}}", "up to 1m", NULL},
        {"retry: {transient: {attempts: 1}}", "not tried again", "1 times"},
        {"retry: {unknown: {attempts: 1}}", "dead after 1 unknown outcome or 3", NULL},
        {"retry: {crashes: {attempts: 1}}", "  crash. ", NULL},
        {"on_unknown: reconcile, retry: {unknown: {attempts: 1}, crashes: {attempts: 1}}",
         "1 unknown outcome or 1 crash.", NULL},
        {"schema: {required: [a]}, refused: {keep: 7, bytes: 1MiB}", "up to 7 of them or 1MiB", NULL},
        {"", "same Hapax-Group header", "Wrong shape"},
        {"order_by: '${u}', on_dead: skip", "same ${u} are delivered one after the other", "Hapax-Group"},
        {"on_dead: skip", "the group goes on without it", NULL},
        {"on_dead: dead_letter_group", "dies with it", NULL},
        {"", "only the disk does", "429"},
        {"limits: {pending: 5}", "With 5 messages unsettled, sends get 429", "only the disk"},
        {"limits: {bytes: 1GiB, lag: 5m, payload: 1KiB}", "the oldest ready message is 5m old", NULL},
        {"limits: {payload: 1KiB}", "above 1KiB is refused (413)", NULL},
        {"", "nobody (no dead.owner is set)", NULL},
        {"dead: {owner: me, alert: {count: 3, within: 5m}}", "3 dead within 5m", "nobody"},
        {"lag: {p95: 1s, alert: 5m, for: 2m}", "Lag above 5m for 2m", NULL},
        {"", "Started 10m ago and not settled", "Held for"},
        {"alerts: {off: [oldest_unsettled]}", "A group blocked for 15m", "not settled"},
        {"on_unknown: hold, alerts: {held_waiting: 2h}", "Held for 2h", NULL},
        {"alerts: {duplicates_high: 12.5%}", "12.5 % of 100 messages", NULL},
        {"window: forever", "20 % of 100", "past half"},
        {"keep_payload: 6h", "hapax replay q --since 6h", "are not kept"},
        {"", "are not kept", "hapax replay"},
        /* calls */
        {"", "Transient: tried", "What the broker calls"},
        {PUSH(""), "Each message goes to https://h/${a} (POST), with its effect key as Idempotency-Key.", "looked up"},
        {PUSH("method: PUT, concurrency: 3, rate: 2/s"), "At most 3 calls are under way at a time, and 120 are made",
         "POST"},
        {PUSH("approve: true"), "a person resolves it as retry, or it is not sent", NULL},
        {PUSH("approve: true"), "hapax held list q", NULL},
        {PUSH(""), "An address of a private network or of this machine is refused.", "signed"},
        {PUSH("sign: {secrets: ['${S}']}, allow_private: true"),
         "They are signed (webhook-signature). Addresses of private", "${S}"},
        {PUSH("secret_headers: {x-api-key: '${K}'}"), "Each message goes", "${K}"},
        {PUSH("keep: {body: 1KiB}"), "the first 1KiB of it", NULL},
        {PUSH(""), "401, 403, 408, 409, 425, 429, 5xx: transient.", NULL},
        {PUSH("classify: {rejected: [409]}"), "409: rejected.", "402"},
        {PUSH("timeout: 3s"), "not answered within 3s: unknown", NULL},
        {PUSH(""), "So are 408 and 5xx but 503", NULL},
        {PUSH("") ", downstream: {idempotency: key}", "Cut, or not answered", "So are 408"},
        {PUSH("circuit: {ratio: 20%, of: 5}"), "When 20 % of 5 calls or more within 1m fail", NULL},
        {PUSH(""), "hapax push pause q", "LOOK"},
        {LOOK(""), "What is unknown is looked up: GET https://h/${hapax.effect_key}", "Each message goes"},
        {LOOK(""), "30s after the attempt's end, then every 30s, 10 times at most; then it is held.", NULL},
        {LOOK(""), "Unknown: the broker looks it up", "next delivery"},
        {LOOK("exists: a.b"), "200 with the field a.b: found.", NULL},
        {LOOK("exists: a.b, absent: [404, 410]"), "404, 410, or found without that field: absent.", NULL},
        {LOOK(""), "It is held: the downstream does not deduplicate", "It is done again"},
        {LOOK("") ", downstream: {idempotency: key}", "It is done again, under the same key.", "older than"},
        {LOOK("") ", downstream: {idempotency: key, remembers: 1d}", "older than 1d it is held", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = {0};
        explain(cases[i].queue, &b);
        if (!strstr(b.p, cases[i].says)) fail_msg("{%s} does not say \"%s\":\n%s", cases[i].queue, cases[i].says, b.p);
        if (cases[i].does_not_say && strstr(b.p, cases[i].does_not_say))
            fail_msg("{%s} says \"%s\":\n%s", cases[i].queue, cases[i].does_not_say, b.p);
        buf_free(&b);
    }
}

static void lines_fit_a_wide_terminal(void **state) {
    (void)state;
    struct buf b = {0};
    explain(
        "class: money, on_conflict: hold, dead: {owner: somebody, alert: {count: 3, within: 5m}}, limits: {lag: 1h},"
        "lag: {p95: 1s, alert: 5m, for: 2m}, schema: {required: [a]}, keep_payload: 1d, downstream: {idempotency: key, "
        "remembers: 1d}, " PUSH("rate: 100/s, sign: {secrets: ['${S}']}, allow_private: true") ", " LOOK("exists: a.b"),
        &b);
    slice rest = slice_of(b.p, b.len - 1), line;
    while (rest.n) {
        slice_cut(rest, '\n', &line, &rest);
        if (line.n > WIDTH_MAX) fail_msg("%zu characters: %.*s", line.n, (int)line.n, line.p);
    }
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_operators_page_follows_the_rules),
        cmocka_unit_test(the_words_follow_the_rules),
        cmocka_unit_test(lines_fit_a_wide_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
