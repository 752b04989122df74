#include "broker/target_page.h"

#include <stdio.h>

#include "base/hist.h"
#include "base/json.h"
#include "broker/access.h"
#include "broker/answer.h"
#include "broker/broker_priv.h"
#include "broker/queue_page.h"
#include "broker/queue_rules.h"
#include "broker/target.h"
#include "config/call_template.h"

static i64 wall_of(const struct broker *b, i64 mono_ms) {
    return b->now.wall_ms + (mono_ms - b->time.mono_ms);
}

/* What may be said of it in one word, and why. */
struct stand {
    const char *state;
    i64 since_ms; /* wall; 0: not known */
    char why[TARGET_ERROR_BYTES + 160];
};

static void say(struct stand *s, const char *state, i64 since_ms, const char *why, slice more) {
    s->state = state;
    s->since_ms = since_ms;
    snprintf(s->why, sizeof s->why, "%s%.*s", why, (int)more.n, more.p);
}

static bool lacks_secrets(const struct queue_config *q) {
    return (q->deliver && q->deliver->lacks_secrets) || (q->reconcile && q->reconcile->lacks_secrets);
}

static slice error_text(const struct target_error *e, bool payloads) {
    return answer_reason(slice_str(e->why), payloads);
}

static void stand_of(const struct broker *b, const struct queue_config *q, const struct target_view *v, bool payloads,
                     struct stand *s) {
    if (v->gone_ms) return say(s, "paused", v->paused_ms, "it answered 410 Gone, and nobody has decided yet", SL(""));
    if (v->paused && *v->paused_why) return say(s, "paused", v->paused_ms, "by ", slice_str(v->paused_why));
    if (v->paused)
        return say(s, "paused", v->paused_ms, "since before the broker began; the audit trail has by whom", SL(""));
    if (lacks_secrets(q))
        return say(s, "paused", 0, "a secret that its rules name is not there: only the config file can give it",
                   SL(""));
    if (v->wait_ms) return say(s, "paused", 0, "the target asked for time (Retry-After)", SL(""));
    if (v->circuit == CIRCUIT_OPEN)
        return say(s, circuit_text(v->circuit), wall_of(b, v->down_ms),
                   "too many calls failed: ", error_text(v->error, payloads));
    if (v->circuit == CIRCUIT_HALF_OPEN)
        return say(s, circuit_text(v->circuit), wall_of(b, v->down_ms),
                   "one call is under way to see whether it is back", SL(""));
    say(s, circuit_text(v->circuit), wall_of(b, v->since_ms),
        v->window ? "it has just come back, and gets more call by call" : "", SL(""));
}

static void put_requests(struct buf *out, const struct target_view *v) {
    json_put_name(out, "requests");
    buf_char(out, '{');
    json_put_member_i64(out, "done", (i64)v->pushes[CLASS_NONE]);
    json_put_member_i64(out, "transient", (i64)v->pushes[CLASS_TRANSIENT]);
    json_put_member_i64(out, "rejected", (i64)v->pushes[CLASS_REJECTED]);
    json_put_member_i64(out, "poison", (i64)v->pushes[CLASS_POISON]);
    json_put_member_i64(out, "unknown", (i64)v->pushes[CLASS_UNKNOWN]);
    buf_char(out, '}');
    json_put_member_i64(out, "lookups", (i64)v->lookups);
}

static void put_latency(struct buf *out, const struct hist *h) {
    static const u32 percents[] = {50, 95, 99};
    json_put_name(out, "latency");
    buf_char(out, '{');
    json_put_member_i64(out, "count", (i64)hist_total(h));
    for (u32 i = 0; i < 3 && hist_total(h); i++)
        buf_printf(out, ",\"p%u_ms\":%.1f", percents[i], (double)hist_quantile(h, hist_us, percents[i]) / 1000);
    buf_char(out, '}');
}

static void put_error(struct buf *out, const struct target_error *e, bool payloads) {
    if (e->wall_ms == 0) return;
    json_put_name(out, "last_error");
    buf_char(out, '{');
    json_put_member_time(out, "at", e->wall_ms);
    json_put_member(out, "class", slice_str(class_text(e->failure_class)));
    if (e->status) json_put_member_i64(out, "status", e->status);
    if (e->lookup) json_put_member_bool(out, "lookup", true);
    json_put_member(out, "detail", error_text(e, payloads));
    buf_char(out, '}');
}

/* As it was written: a secret has its ${NAME} there, and none stands in an address. */
static void put_addresses(struct buf *out, const struct queue_config *q) {
    if (q->deliver) json_put_member(out, "url", call_template_text(q->deliver->url));
    if (q->deliver) json_put_member(out, "method", q->deliver->method);
    if (q->reconcile) json_put_member(out, "reconcile_url", call_template_text(q->reconcile->url));
}

static void put_stand(const struct broker *b, struct buf *out, const struct queue_config *q,
                      const struct target_view *v, bool payloads) {
    struct stand s;
    stand_of(b, q, v, payloads, &s);
    json_put_member(out, "state", slice_str(s.state));
    if (v->gone_ms) json_put_member_bool(out, "gone", true);
    if (*s.why) json_put_member(out, "why", slice_str(s.why));
    if (s.since_ms) json_put_member_time(out, "since", s.since_ms);
    if (v->wait_ms) json_put_member_time(out, "waits_until", wall_of(b, v->wait_ms));
    if (v->probe_ms) json_put_member_time(out, "next_probe", wall_of(b, v->probe_ms));
}

void put_target_page(struct broker *b, struct buf *out, u16 queue) {
    const struct queue_config *said = queue_rules_of(b, queue)->config;
    struct target_view v;
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    target_look(target_of(b, queue), b->time.mono_ms, &v);
    bool payloads = shows_payload(b, q.name);
    buf_char(out, '{');
    json_put_member(out, "queue", q.name);
    put_addresses(out, said);
    put_stand(b, out, said, &v, payloads);
    json_put_member_i64(out, "waiting", (i64)(q.ready + q.delayed));
    json_put_member_i64(out, "in_flight", v.in_flight);
    json_put_member_i64(out, "concurrency", v.rules.concurrency);
    if (v.window) json_put_member_i64(out, "window", v.window);
    if (v.rules.rate_per_min) json_put_member_i64(out, "rate_per_min", v.rules.rate_per_min);
    put_requests(out, &v);
    put_latency(out, v.took_us);
    put_error(out, v.error, payloads);
    put_queue_rights(b, out, q.name);
    buf_char(out, '}');
}
