#include "broker/queue_page.h"

#include <stdio.h>

#include "base/json.h"
#include "broker/access.h"
#include "broker/broker_priv.h"
#include "broker/limits.h"
#include "broker/queue_rules.h"
#include "broker/series.h"

static void put_window(struct buf *b, const char *name, i64 ms) {
    if (ms == WINDOW_FOREVER)
        json_put_member_raw(b, name, SL("null"));
    else
        json_put_member_i64(b, name, ms);
}

/* The rules in figures, as the core applies them at this moment. */
static void put_rules(struct buf *b, const struct rules *r, u64 payload_max) {
    buf_lit(b, ",\"rules\":{");
    json_put_member(b, "semantics", slice_str(semantics_text((enum semantics)r->semantics)));
    put_window(b, "window_ms", r->window_ms);
    if (rules_adaptive(r)) {
        json_put_member_i64(b, "window_min_ms", r->window_min_ms);
        json_put_member_i64(b, "window_max_ms", r->window_max_ms);
    }
    json_put_member_i64(b, "keep_payload_ms", r->keep_payload_ms);
    json_put_member_i64(b, "lease_ms", r->lease_ms);
    json_put_member(b, "on_unknown", slice_str(on_unknown_text((enum on_unknown)r->on_unknown)));
    json_put_member(b, "on_conflict", slice_str(on_conflict_text((enum on_conflict)r->on_conflict)));
    json_put_member(b, "on_dead", slice_str(on_dead_text((enum on_dead)r->on_dead)));
    buf_lit(b, ",\"retry\":{\"transient\":{");
    json_put_member_i64(b, "attempts", r->transient_attempts);
    json_put_member_i64(b, "backoff_ms", r->backoff_ms);
    json_put_member_i64(b, "max_ms", r->backoff_max_ms);
    buf_lit(b, "},\"unknown\":{");
    json_put_member_i64(b, "attempts", r->unknown_attempts);
    buf_lit(b, "},\"crashes\":{");
    json_put_member_i64(b, "attempts", r->crash_attempts);
    buf_lit(b, "}},\"limits\":{");
    if (r->limit_pending) json_put_member_i64(b, "pending", (i64)r->limit_pending);
    if (r->limit_bytes) json_put_member_i64(b, "bytes", (i64)r->limit_bytes);
    if (r->limit_lag_ms) json_put_member_i64(b, "lag_ms", r->limit_lag_ms);
    json_put_member_i64(b, "payload", (i64)payload_max);
    buf_lit(b, "}}");
}

static void put_counts(struct buf *b, const struct queue_info *q) {
    json_put_member_i64(b, "pending", (i64)(q->ready + q->delayed + q->behind));
    json_put_member_i64(b, "ready", (i64)q->ready);
    json_put_member_i64(b, "delayed", (i64)q->delayed);
    json_put_member_i64(b, "behind", (i64)q->behind);
    json_put_member_i64(b, "leased", (i64)q->leased);
    json_put_member_i64(b, "held", (i64)q->held);
    json_put_member_i64(b, "dead", (i64)q->dead);
    json_put_member_i64(b, "keys", (i64)q->settled_keys);
    json_put_member_i64(b, "oldest_ready_ms", q->oldest_ready_ms);
    json_put_member_i64(b, "unsettled", (i64)q->unsettled);
    json_put_member_i64(b, "unsettled_bytes", (i64)q->unsettled_bytes);
    json_put_member_i64(b, "conflict_copies", (i64)q->conflict_copies);
    json_put_member_i64(b, "refused_copies", (i64)q->refused_copies);
    json_put_member_i64(b, "refused_bytes", (i64)q->refused_bytes);
    json_put_member_bool(b, "pressed", q->pressed);
    buf_lit(b, ",\"counters\":{");
#define COUNTER_PUT(name) json_put_member_i64(b, #name, (i64)q->counters.name);
    COUNTER_LIST(COUNTER_PUT)
#undef COUNTER_PUT
    buf_char(b, '}');
}

/* at_most_once: the loss that was accepted, and the loss that was. */
static void put_loss(struct buf *b, const struct queue_info *q, const struct queue_config *config) {
    if (q->rules.semantics != SEMANTICS_AT_MOST_ONCE) return;
    u64 handed_out = q->counters.handed_out, lost = q->counters.lost;
    u64 ppm = handed_out ? lost * 1000000 / handed_out : 0;
    buf_lit(b, ",\"accepted_loss\":{");
    if (config && config->loss_ppm) json_put_member_i64(b, "stated_ppm", config->loss_ppm);
    json_put_member_i64(b, "handed_out", (i64)handed_out);
    json_put_member_i64(b, "lost", (i64)lost);
    json_put_member_i64(b, "lost_ppm", (i64)ppm);
    if (config && config->loss_ppm) json_put_member_bool(b, "within", ppm <= config->loss_ppm);
    buf_char(b, '}');
}

static void put_windows(struct buf *b, const struct queue_info *q) {
    put_window(b, "window_ms", q->rules.window_ms);
    json_put_member_i64(b, "oldest_replay_ms", q->oldest_replay_ms);
    if (q->window_changed_ms) json_put_member_time(b, "window_changed_at", q->window_changed_ms);
    if (q->promised_window_ms) put_window(b, "promised_window_ms", q->promised_window_ms);
}

/* Does the name mean something else up here (how many are dead, who made the queue), or belong to what is evaluated elsewhere
 * (GET /v1/alerts)? Then it stands under `config` only. */
static bool in_config_only(slice name) {
    return slice_eq(name, SL("dead")) || slice_eq(name, SL("origin")) || slice_eq(name, SL("alerts"));
}

/* What was said, under the config's names. */
static void put_said_keys(struct buf *b, slice json) {
    struct json j;
    enum json_type type;
    slice name, raw;
    json_init(&j, json);
    if (json_object(&j))
        while (json_member(&j, &name) && json_value(&j, &type, &raw)) {
            if (in_config_only(name)) continue;
            buf_char(b, ',');
            json_put_string(b, name);
            buf_char(b, ':');
            buf_slice_add(b, raw);
        }
    CHECK(json_end(&j));
    json_free(&j);
}

/* The effective rules as the config would spell them. */
static void config_text(struct broker *br, u16 queue, struct buf *out) {
    const struct queue_config *said = queue_rules_of(br, queue)->config;
    if (said) return config_queue_to_json(said, out);
    struct queue_config *plain = config_queue_default(SL("queue"));
    config_queue_to_json(plain, out);
    config_queue_free(plain);
}

void put_queue_rights(const struct broker *br, struct buf *b, slice queue) {
    if (access_open(br) || !br->caller) return;
    json_put_name(b, "may");
    buf_char(b, '[');
    for (u32 r = RIGHT_OPEN + 1; r < RIGHT_COUNT; r++) {
        if (!caller_may(br->caller, (enum right)r, queue)) continue;
        if (b->p[b->len - 1] != '[') buf_char(b, ',');
        json_put_string(b, slice_str(right_text((enum right)r)));
    }
    buf_char(b, ']');
}

void put_queue_page(struct broker *br, struct buf *b, u16 queue, bool live) {
    struct queue_info q;
    struct buf text = {0};
    const struct queue_config *config = queue_rules_of(br, queue)->config;
    core_queue_info(br->core, br->now, queue, &q);
    config_text(br, queue, &text);
    buf_char(b, '{');
    json_put_member(b, "name", q.name);
    json_put_member_bool(b, "paused", q.paused);
    json_put_member_time(b, "created_at", q.created_ms);
    json_put_member(b, "origin", slice_str(origin_text(q.origin)));
    if (q.origin == ORIGIN_FILE && config && config->file.n) {
        json_put_name(b, "defined_at");
        json_put_string(b, config->file);
        b->len--;
        buf_printf(b, ":%u\"", config->at.line);
    }
    put_counts(b, &q);
    put_windows(b, &q);
    put_loss(b, &q, config);
    if (config && config->dead_owner.n) json_put_member(b, "owner", config->dead_owner);
    put_rules(b, &q.rules, config ? config->payload_max : PAYLOAD_BYTES_MAX);
    json_put_member_raw(b, "config", buf_slice(&text));
    put_said_keys(b, buf_slice(&text));
    if (live) put_live(br, b, &q);
    put_queue_rights(br, b, q.name);
    buf_char(b, '}');
    buf_free(&text);
}

/* Which version of its rules it has. */
void queue_etag(struct broker *br, u16 queue, char out[ETAG_TEXT + 1]) {
    struct buf text = {0};
    struct siphash_key key = {0}; /* no secret: the same rules have the same tag on every broker */
    config_text(br, queue, &text);
    snprintf(out, ETAG_TEXT + 1, "\"%016llx\"", (unsigned long long)siphash(&key, text.p, text.len));
    buf_free(&text);
}
