/* How the broker as a whole fares. */
#include "base/json.h"
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/compaction.h"
#include "broker/feeds.h"
#include "broker/metrics.h"
#include "broker/room.h"
#include "broker/tasks.h"
#include "broker/tenants.h"
#include "broker/traffic.h"
#include "broker/waits.h"

static void put_memory(struct broker *b, struct buf *body) {
    struct core_memory m;
    core_memory(b->core, &m);
    buf_lit(body, ",\"memory\":{");
    json_put_member_bool(body, "short", core_memory_short(b->core));
    json_put_member_i64(body, "index_bytes", (i64)m.index_bytes);
    json_put_member_i64(body, "arrivals_bytes", (i64)m.arrivals_bytes);
    json_put_member_i64(body, "needed_bytes", (i64)m.needed_bytes);
    json_put_member_i64(body, "pending_bytes", (i64)m.message_bytes);
    json_put_member_i64(body, "group_bytes", (i64)m.group_bytes);
    json_put_member_i64(body, "reserved_bytes", (i64)m.reserved_bytes);
    json_put_member_i64(body, "settled_keys", (i64)m.settled_keys);
    json_put_member_i64(body, "pending_messages", (i64)m.messages);
    json_put_member_i64(body, "repeated_keys", (i64)m.repeated_keys);
    json_put_member_i64(body, "groups", (i64)m.groups);
    u64 keys = m.settled_keys + m.messages;
    json_put_member_i64(body, "bytes_per_key", keys ? (i64)(m.index_bytes / keys) : 0);
    json_put_member_i64(body, "bytes_per_pending",
                        keys && m.messages ? (i64)(m.message_bytes / m.messages + m.index_bytes / keys) : 0);
    buf_char(body, '}');
}

static void put_journal(struct broker *b, struct buf *body) {
    struct journal_stats s;
    journal_stats_get(b->journal, &s);
    buf_lit(body, ",\"journal\":{");
    json_put_member_i64(body, "first", (i64)s.first);
    json_put_member_i64(body, "durable", (i64)s.durable);
    json_put_member_i64(body, "tail", (i64)s.tail);
    json_put_member_i64(body, "disk_bytes", (i64)s.disk_bytes);
    json_put_member_i64(body, "used_bytes", (i64)s.used_bytes);
    json_put_member_i64(body, "live_bytes", (i64)core_live_bytes(b->core));
    json_put_member_i64(body, "reserved_bytes", (i64)room_promised(b));
    json_put_member_i64(body, "room_bytes", (i64)journal_room(b->journal));
    json_put_member_i64(body, "segments", (i64)s.segments);
    json_put_member_i64(body, "spares", (i64)s.spares);
    json_put_member_i64(body, "segment_bytes", (i64)s.segment_bytes);
    json_put_member_i64(body, "compacted_segments", (i64)compaction_segments(b));
    json_put_member_i64(body, "batches", (i64)s.batches);
    json_put_member_i64(body, "synced_bytes", (i64)s.synced_bytes);
    json_put_member_i64(body, "sync_us_mean", s.batches ? (i64)(s.sync_us.sum / s.batches) : 0);
    json_put_member_i64(body, "sync_us_max", (i64)s.sync_us_max);
    buf_char(body, '}');
}

static void put_events(struct broker *b, struct buf *body) {
    struct feeds_stats s;
    feeds_stats_get(b, &s);
    buf_lit(body, ",\"events\":{");
    json_put_member_i64(body, "readers", s.readers);
    json_put_member_i64(body, "dropped", (i64)s.dropped);
    json_put_member_i64(body, "gaps", (i64)s.gaps);
    buf_char(body, '}');
}

static void put_totals(struct broker *b, struct buf *body) {
    struct counters sum = {0};
    u64 pending = 0, leased = 0, held = 0, dead = 0, queues = 0, pressed = 0;
    for (u32 id = 1; id <= core_queue_count(b->core); id++) {
        struct queue_info q;
        core_queue_info(b->core, b->now, (u16)id, &q);
        if (q.deleted) continue;
#define COUNTER_SUM(name) sum.name += q.counters.name;
        COUNTER_LIST(COUNTER_SUM)
#undef COUNTER_SUM
        queues++;
        pressed += q.pressed;
        pending += q.ready + q.delayed + q.behind;
        leased += q.leased;
        held += q.held;
        dead += q.dead;
    }
    json_put_member_i64(body, "queues", (i64)queues);
    json_put_member_i64(body, "queues_pressed", (i64)pressed);
    json_put_member_i64(body, "pending", (i64)pending);
    json_put_member_i64(body, "leased", (i64)leased);
    json_put_member_i64(body, "held", (i64)held);
    json_put_member_i64(body, "dead", (i64)dead);
    buf_lit(body, ",\"counters\":{");
#define COUNTER_PUT(name) json_put_member_i64(body, #name, (i64)sum.name);
    COUNTER_LIST(COUNTER_PUT)
#undef COUNTER_PUT
    buf_char(body, '}');
}

void api_stats(struct call *c) {
    struct broker *b = c->b;
    struct buf *body = &b->scratch->body;
    buf_reset(body);
    buf_char(body, '{');
    if (c->who->tenant.n) { /* how the broker fares is not its business, what it takes of it is */
        put_tenants(b, c->who->tenant, body);
        buf_char(body, '}');
        return reply_json(c, 200, buf_slice(body));
    }
    if (!may_everywhere(c, RIGHT_OBSERVE)) return reply_failure(c);
    json_put_member(body, "version", SL(HAPAX_VERSION));
    json_put_member_time(body, "now", b->now.wall_ms);
    json_put_member_i64(body, "uptime_ms", b->time.mono_ms - b->started_mono_ms);
    json_put_member_i64(body, "run_ms", b->now.run_ms);
    put_totals(b, body);
    put_memory(b, body);
    put_journal(b, body);
    put_process_metrics(b, body);
    json_put_member_i64(body, "waiting", waits_count(b));
    json_put_member_i64(body, "tasks_running", tasks_running(b));
    put_events(b, body);
    put_tenants(b, c->who->tenant, body);
    if (b->options.port.stats) b->options.port.stats(b->options.port.ctx, body);
    buf_char(body, '}');
    reply_json(c, 200, buf_slice(body));
}

/* Alive: it answers, whatever the disk is doing. */
void api_health(struct call *c) {
    struct http_reply reply = {
        .status = 200, .content_type = SL("application/json"), .body = SL("{\"status\":\"ok\"}")};
    traffic_replied(c->b, reply.status, 0);
    c->b->options.port.respond(c->b->options.port.ctx, c->conn, &reply);
}

void api_ready(struct call *c) {
    if (!c->b->draining) return reply_json(c, 200, SL("{\"status\":\"ready\"}"));
    fail(c, PROBLEM_shutting_down, "this broker is about to exit");
    reply_failure(c);
}
