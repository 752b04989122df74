/* The last hour: series, and a queue's histograms. */
#include "base/json.h"
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/series.h"

#define HOUR_MS ((i64)SERIES_STEPS * SERIES_STEP_MS)

/* The queue of a parameter; *queue 0: it was not given. */
static bool param_queue(struct call *c, u16 *queue, slice *name) {
    bool bad = false;
    *queue = 0;
    buf_reset(&c->args);
    if (!http_query_get(c->req, SL("queue"), &c->args, name, &bad) && !bad) return may_everywhere(c, RIGHT_OBSERVE);
    if (bad) return fail(c, PROBLEM_param_invalid, "queue is given twice, or badly encoded");
    if (!may(c, RIGHT_OBSERVE, *name)) return false;
    if (core_queue_find(c->b->core, *name, queue)) return true;
    return fail(c, PROBLEM_no_such_queue, "there is no queue of that name");
}

void api_history(struct call *c) {
    struct buf *body = &c->b->scratch->body;
    i64 since_ms, step_ms;
    u16 queue;
    slice name;
    if (!param_queue(c, &queue, &name) || !param_duration(c, "since", SERIES_STEP_MS, HOUR_MS, HOUR_MS, &since_ms) ||
        !param_duration(c, "step", SERIES_STEP_MS, HOUR_MS, SERIES_STEP_MS, &step_ms))
        return reply_failure(c);
    u32 steps = (u32)(since_ms / SERIES_STEP_MS), together = (u32)(step_ms / SERIES_STEP_MS);
    if (steps < together) steps = together;
    buf_reset(body);
    buf_char(body, '{');
    if (queue) json_put_member(body, "queue", name);
    put_series(c->b, body, queue, steps, together);
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}

static void put_hist(struct buf *out, const char *name, const struct hist *h, const u64 *bounds) {
    json_put_name(out, name);
    buf_lit(out, "{\"bounds\":[");
    for (u32 i = 0; i < HIST_BOUNDS; i++) buf_printf(out, "%s%.9g", i ? "," : "", (double)bounds[i] / 1000);
    buf_lit(out, "],\"counts\":[");
    for (u32 i = 0; i <= HIST_BOUNDS; i++) {
        if (i) buf_char(out, ',');
        buf_dec(out, h->count[i]);
    }
    buf_lit(out, "]}");
}

void api_histograms(struct call *c) {
    static const struct queue_watch nothing;
    struct buf *body = &c->b->scratch->body;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return reply_failure(c);
    const struct queue_watch *w = queue_watch(c->b, queue);
    if (!w) w = &nothing;
    buf_reset(body);
    buf_char(body, '{');
    put_hist(body, "replay_age_seconds", &w->replay_age, replay_age_bounds_ms);
    put_hist(body, "wait_seconds", &w->wait, work_bounds_ms);
    put_hist(body, "work_seconds", &w->work, work_bounds_ms);
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}
