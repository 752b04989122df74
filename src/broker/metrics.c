#include "broker/metrics.h"

#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "broker/access.h"
#include "broker/alerts.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/ingest.h"
#include "broker/jobs.h"
#include "broker/limits.h"
#include "broker/proxy.h"
#include "broker/queue_rules.h"
#include "broker/room.h"
#include "broker/route.h"
#include "broker/series.h"
#include "broker/target.h"
#include "broker/tenants.h"
#include "broker/traffic.h"
#include "broker/waits.h"

/* What a queue takes in a scrape, about: its lines, without its name in each. */
#define QUEUE_LINES        90u
#define QUEUE_TEXT_BYTES   6000u
#define PROCESS_TEXT_BYTES (256u << 10)

enum metric_ident {
#define METRIC(ident, ...) METRIC_IS_##ident,
#include "broker/metrics.def"
    METRIC_IDENTS
};

static const struct metric metrics[] = {
#define METRIC(ident, scope, type, name, labels, unit, help, ...)                                                      \
    {name, labels, help, METRIC_##scope, METRIC_##type, unit},
#include "broker/metrics.def"
};

static const char *const type_texts[] = {
#define METRIC_TYPE_TEXT(name, text) text,
    METRIC_TYPE_LIST(METRIC_TYPE_TEXT)
#undef METRIC_TYPE_TEXT
};

u32 metric_count(void) {
    return METRIC_IDENTS;
}

const struct metric *metric_at(u32 i) {
    CHECK(i < METRIC_IDENTS);
    return &metrics[i];
}

/* ---- where the values come from */

struct hour {
    double duplicate_ratio;
};

struct queue_sample {
    struct queue_info q;
    struct counters c;
    const struct queue_watch *w;
    const struct queue_live *l;
    struct hour h;
    bool has_target;
    struct target_view t;
};

struct value {
    double number;
    const struct hist *hist;
    const u64 *bounds;
};

#define VALUE_COUNTER(v)                                                                                               \
    (struct value) {                                                                                                   \
        .number = (double)(v)                                                                                          \
    }
#define VALUE_GAUGE(v)                                                                                                 \
    (struct value) {                                                                                                   \
        .number = (double)(v)                                                                                          \
    }
#define VALUE_HISTOGRAM(at, bounds_)                                                                                   \
    (struct value) {                                                                                                   \
        .hist = (at), .bounds = (bounds_)                                                                              \
    }
#define NOTHING(...)                                                                                                   \
    (struct value) {                                                                                                   \
        0                                                                                                              \
    }

static struct value queue_value(const struct queue_sample *s, u32 i) {
    const struct queue_info *q = &s->q;
    const struct counters *c = &s->c;
    const struct queue_watch *w = s->w;
    const struct queue_live *l = s->l;
    const struct hour *h = &s->h;
    const struct target_view *t = &s->t;
#define OF_QUEUE(type, ...)   return VALUE_##type(__VA_ARGS__)
#define OF_TARGET(type, ...)  return VALUE_##type(__VA_ARGS__)
#define OF_PROCESS(type, ...) break
    switch (i) {
#define METRIC(ident, scope, type, name, labels, unit, help, ...)                                                      \
    case METRIC_IS_##ident:                                                                                            \
        OF_##scope(type, __VA_ARGS__);
#include "broker/metrics.def"
    default:
        break;
    }
#undef OF_QUEUE
#undef OF_TARGET
#undef OF_PROCESS
    CHECK(false && "a metric of a queue");
}

static struct value process_value(const struct process_sample *p, u32 i) {
#define OF_QUEUE(type, ...)   break
#define OF_TARGET(type, ...)  break
#define OF_PROCESS(type, ...) return VALUE_##type(__VA_ARGS__)
    switch (i) {
#define METRIC(ident, scope, type, name, labels, unit, help, ...)                                                      \
    case METRIC_IS_##ident:                                                                                            \
        OF_##scope(type, __VA_ARGS__);
#include "broker/metrics.def"
    default:
        break;
    }
#undef OF_QUEUE
#undef OF_TARGET
#undef OF_PROCESS
    CHECK(false && "a metric of the process");
}

static void queue_sample(const struct broker *b, u16 queue, struct queue_sample *s) {
    static const struct queue_watch nothing;
    core_queue_info(b->core, b->now, queue, &s->q);
    s->c = since_start(b, &s->q);
    s->w = queue_watch(b, queue);
    if (!s->w) s->w = &nothing;
    s->l = queue_live(b, queue);
    s->h.duplicate_ratio = duplicate_ratio(b, queue);
    const struct target *t = target_of(b, queue);
    s->has_target = t != NULL;
    if (t) target_look(t, b->time.mono_ms, &s->t);
}

static u64 queues_there(const struct broker *b) {
    u64 count = 0;
    struct queue_info q;
    for (u32 id = 1; id <= core_queue_count(b->core); id++) {
        core_queue_info(b->core, b->now, (u16)id, &q);
        count += !q.deleted;
    }
    return count;
}

void process_sample(struct broker *b, struct process_sample *p) {
    *p = (struct process_sample){.live_bytes = core_live_bytes(b->core),
                                 .reserved_bytes = room_promised(b),
                                 .memory_max = b->options.memory_max,
                                 .queues = queues_there(b),
                                 .waiting = waits_count(b),
                                 .refused = rations_refused(b)};
    for (u32 i = 0; i < REFUSED_COUNT; i++) p->unauthorized[i] = access_refusals(b, (enum refused)i);
    journal_stats_get(b->journal, &p->journal);
    core_memory(b->core, &p->memory);
    if (b->options.port.surroundings) b->options.port.surroundings(b->options.port.ctx, &p->around);
}

/* ---- Prometheus' text */

struct metrics_job {
    struct job job;
    bool open;    /* OpenMetrics */
    bool sampled; /* the process */
    u32 metric;   /* the first of the name that is being written */
    u32 queue;    /* the next one */
    u32 route;
    u32 tenant_metric, tenant; /* the next ones */
    struct shown_queue {
        u16 queue;
        u64 since; /* by core_queue_since */
    } * queues;    /* those that are shown */
    u32 queue_count;
    struct process_sample process;
};

static void put_number(struct buf *out, double v) {
    if (isinf(v))
        buf_lit(out, "+Inf");
    else if (v == floor(v) && fabs(v) < 1e15)
        buf_dec_signed(out, (i64)v);
    else
        buf_printf(out, "%.9g", v);
}

static void put_head(const struct metrics_job *j, struct buf *out, slice name, const char *type, const char *help) {
    bool counter = type == type_texts[METRIC_COUNTER];
    if (j->open && counter) name.n -= sizeof "_total" - 1;
    buf_printf(out, "# HELP %.*s %s\n# TYPE %.*s %s\n", (int)name.n, name.p, help, (int)name.n, name.p, type);
}

/* name, and what follows it, {labels}: those that are not empty. */
static void put_line(struct buf *out, const char *name, const char *suffix, slice one, const char *two, slice three) {
    slice labels[] = {one, slice_str(two), three};
    bool any = false;
    buf_slice_add(out, slice_str(name));
    buf_slice_add(out, slice_str(suffix));
    for (u32 i = 0; i < 3; i++) {
        if (labels[i].n == 0) continue;
        buf_char(out, any ? ',' : '{');
        buf_slice_add(out, labels[i]);
        any = true;
    }
    if (any) buf_char(out, '}');
    buf_char(out, ' ');
}

static void put_hist(struct buf *out, const struct metric *m, slice label, const struct value *v) {
    u64 below = 0;
    char le[64];
    for (u32 i = 0; i <= HIST_BOUNDS; i++) {
        below += v->hist->count[i];
        if (i < HIST_BOUNDS)
            snprintf(le, sizeof le, "le=\"%.9g\"", (double)v->bounds[i] / m->unit);
        else
            snprintf(le, sizeof le, "le=\"+Inf\"");
        put_line(out, m->name, "_bucket", label, m->labels, slice_str(le));
        buf_dec(out, below);
        buf_char(out, '\n');
    }
    put_line(out, m->name, "_sum", label, m->labels, SL(""));
    put_number(out, (double)v->hist->sum / m->unit);
    buf_char(out, '\n');
    put_line(out, m->name, "_count", label, m->labels, SL(""));
    buf_dec(out, below);
    buf_char(out, '\n');
}

static void put_value(struct buf *out, const struct metric *m, slice label, struct value v) {
    if (v.hist) return put_hist(out, m, label, &v);
    put_line(out, m->name, "", label, m->labels, SL(""));
    put_number(out, v.number / m->unit);
    buf_char(out, '\n');
}

static u32 name_end(u32 first) {
    u32 end = first + 1;
    while (end < METRIC_IDENTS && strcmp(metrics[end].name, metrics[first].name) == 0) end++;
    return end;
}

/* Of an arrival counted by type as well: which kind; ARRIVAL_COUNT: none. */
static enum arrival_kind typed(u32 i) {
    switch (i) {
    case METRIC_IS_accepted:
        return ARRIVAL_NEW;
    case METRIC_IS_duplicates_replay:
        return ARRIVAL_REPLAY;
    case METRIC_IS_duplicates_late:
        return ARRIVAL_LATE;
    case METRIC_IS_conflicts:
        return ARRIVAL_CONFLICT;
    default:
        return ARRIVAL_COUNT;
    }
}

/* A label's value as the format has it: backslash, quote and newline are escaped. Other control characters no reader of metrics expects:
 * their pictures stand for them, U+2400 and on. */
static void put_label_value(struct buf *out, slice value) {
    for (size_t i = 0; i < value.n; i++) {
        u8 c = (u8)value.p[i];
        if (c == '\n')
            buf_lit(out, "\\n");
        else if (c < 0x20 || c == 0x7f)
            buf_add(out, (char[]){(char)0xe2, (char)0x90, (char)(0x80 | (c == 0x7f ? 0x21 : c))}, 3);
        else if (c == '"' || c == '\\')
            buf_add(out, (char[]){'\\', (char)c}, 2);
        else
            buf_char(out, (char)c);
    }
}

/* By type; what came before there were types, or could not be told, is among the others. */
static void put_types(struct buf *out, u32 i, slice label, const struct queue_types *t, double total) {
    struct buf type = {0};
    const struct metric *m = &metrics[i];
    for (u32 k = 0; k < t->count; k++) {
        u64 n = t->at[k].arrivals[typed(i)];
        total -= (double)n;
        buf_reset(&type);
        buf_lit(&type, "type=\"");
        put_label_value(&type, t->at[k].name);
        buf_char(&type, '"');
        put_line(out, m->name, "", label, m->labels, buf_slice(&type));
        put_number(out, (double)n);
        buf_char(out, '\n');
    }
    put_line(out, m->name, "", label, m->labels, SL("type=\"other\""));
    put_number(out, total > 0 ? total : 0);
    buf_char(out, '\n');
    buf_free(&type);
}

static void put_queue(struct metrics_job *j, u16 queue) {
    struct queue_sample s;
    struct buf *out = &j->job.reply;
    char label[300];
    queue_sample(j->job.c.b, queue, &s);
    snprintf(label, sizeof label, "queue=\"%.*s\"", (int)s.q.name.n, s.q.name.p);
    const struct queue_types *types = queue_types(j->job.c.b, queue);
    for (u32 i = j->metric; i < name_end(j->metric); i++) {
        if (metrics[i].scope == METRIC_TARGET && !s.has_target) continue;
        struct value v = queue_value(&s, i);
        if (types && typed(i) != ARRIVAL_COUNT)
            put_types(out, i, slice_str(label), types, v.number);
        else
            put_value(out, &metrics[i], slice_str(label), v);
    }
}

/* One name of all queues, or of the process. true: it is done. */
static bool put_name(struct metrics_job *j, struct budget *g) {
    const struct metric *m = &metrics[j->metric];
    if (j->queue == 0 && budget_spent(g)) return false; /* before its head: that is not to be written again */
    if (j->queue == 0) put_head(j, &j->job.reply, slice_str(m->name), type_texts[m->type], m->help);
    if (m->scope == METRIC_PROCESS) {
        for (u32 i = j->metric; i < name_end(j->metric); i++)
            put_value(&j->job.reply, &metrics[i], SL(""), process_value(&j->process, i));
        return true;
    }
    for (; j->queue < j->queue_count; j->queue++) {
        if (j->queue && budget_spent(g)) return false;
        const struct shown_queue *q = &j->queues[j->queue];
        if (core_queue_since(j->job.c.b->core, q->queue) == q->since) put_queue(j, q->queue);
    }
    j->queue = 0;
    return true;
}

/* ---- by route */

static void put_codes(struct buf *out, const char *route, const struct route_traffic *t) {
    char code[32];
    for (u32 i = 0; i < TRAFFIC_CODES && t->codes[i].code; i++) {
        snprintf(code, sizeof code, "code=\"%u\"", t->codes[i].code);
        put_line(out, "hapax_http_requests_total", "", slice_str(route), code, SL(""));
        buf_dec(out, t->codes[i].count);
        buf_char(out, '\n');
    }
}

static void put_routes(struct metrics_job *j, bool times) {
    static const struct metric took = {.name = "hapax_http_request_seconds", .labels = "", .unit = 1000000};
    struct buf label = {0}, *out = &j->job.reply;
    for (u32 i = 0; i <= route_count(); i++) {
        const struct route_traffic *t = traffic_of(j->job.c.b, i);
        struct value v = {.hist = &t->took_us, .bounds = hist_us};
        if (t->codes[0].code == 0) continue;
        buf_reset(&label);
        buf_lit(&label, "route=\"");
        route_label(i, &label);
        buf_lit(&label, "\"");
        if (times) {
            put_hist(out, &took, buf_slice(&label), &v);
            continue;
        }
        buf_char(&label, '\0');
        put_codes(out, label.p, t);
    }
    buf_free(&label);
}

/* Of a name that has nothing to escape. */
static void put_count(struct metrics_job *j, const char *metric, const char *label, slice name, const char *kind,
                      const char *text, u64 count) {
    struct buf *out = &j->job.reply;
    char first[96], second[64];
    snprintf(first, sizeof first, "%s=\"%.*s\"", label, (int)name.n, name.p);
    snprintf(second, sizeof second, "%s=\"%s\"", kind, text);
    put_line(out, metric, "", slice_str(first), second, SL(""));
    buf_dec(out, count);
    buf_char(out, '\n');
}

static void put_sources(struct metrics_job *j) {
    for (u32 i = 0; i < ingest_count(j->job.c.b); i++) {
        const struct ingest_counts *n = ingest_counts_at(j->job.c.b, i);
        for (u32 k = 0; k < INGEST_OUTCOMES; k++)
            put_count(j, "hapax_ingest_total", "source", n->name, "outcome", ingest_outcome_text(k), n->at[k]);
    }
}

static void put_proxies(struct metrics_job *j) {
    for (u32 i = 0; i < gate_count(j->job.c.b); i++) {
        const struct gate_counts *n = gate_counts_at(j->job.c.b, i);
        for (u32 k = 0; k < GATE_RESULTS; k++)
            put_count(j, "hapax_gate_requests_total", "proxy", n->name, "result", gate_result_text(k), n->at[k]);
    }
}

/* ---- tenants */

static const struct {
    const char *name, *help;
    enum metric_type type;
} tenant_metrics[] = {
    {"hapax_tenant_used", "What a tenant's queues take together of what can be limited.", METRIC_GAUGE},
    {"hapax_tenant_limit", "How much of it they may take, where that is limited; rate: sends a second.", METRIC_GAUGE},
    {"hapax_tenant_refused_total", "Sends and queues refused at a limit of the tenant.", METRIC_COUNTER},
};
enum { TENANT_METRICS = sizeof tenant_metrics / sizeof tenant_metrics[0] };

static void put_tenant_lines(struct metrics_job *j, u32 metric, u16 tenant) {
    struct quota_use use[QUOTA_COUNT];
    struct buf label = {0}, *out = &j->job.reply;
    char limit[32];
    tenant_use(j->job.c.b, tenant, use);
    slice name = config_in_force(j->job.c.b)->tenants.at[tenant - 1].name;
    buf_printf(&label, "tenant=\"%.*s\"", (int)name.n, name.p); /* which has nothing to escape */
    for (u32 q = 0; q < QUOTA_COUNT; q++) {
        if (metric == 0 ? q == QUOTA_RATE : use[q].limit == 0) continue;
        snprintf(limit, sizeof limit, "limit=\"%s\"", quota_text((enum quota)q));
        put_line(out, tenant_metrics[metric].name, "", buf_slice(&label), limit, SL(""));
        buf_dec(out, metric == 0 ? use[q].used : metric == 1 ? use[q].limit : use[q].refused);
        buf_char(out, '\n');
    }
    buf_free(&label);
}

/* All of them, or the one that asks. */
static bool put_tenant_metrics(struct metrics_job *j, struct budget *g) {
    const struct config *config = config_in_force(j->job.c.b);
    slice own = j->job.c.who->tenant;
    for (; j->tenant_metric < TENANT_METRICS; j->tenant_metric++, j->tenant = 0) {
        u32 m = j->tenant_metric;
        if (j->tenant == 0)
            put_head(j, &j->job.reply, slice_str(tenant_metrics[m].name), type_texts[tenant_metrics[m].type],
                     tenant_metrics[m].help);
        for (; j->tenant < config->tenants.count; j->tenant++) {
            if (budget_spent(g)) return false;
            if (own.n && !slice_eq(own, config->tenants.at[j->tenant].name)) continue;
            put_tenant_lines(j, m, (u16)(j->tenant + 1));
        }
    }
    return true;
}

static void put_all_routes(struct metrics_job *j) {
    put_head(j, &j->job.reply, SL("hapax_ingest_total"), type_texts[METRIC_COUNTER],
             "Webhooks that came in, by source and what became of them.");
    put_sources(j);
    put_head(j, &j->job.reply, SL("hapax_gate_requests_total"), type_texts[METRIC_COUNTER],
             "Calls through a proxy, by what became of them.");
    put_proxies(j);
    put_head(j, &j->job.reply, SL("hapax_http_requests_total"), type_texts[METRIC_COUNTER],
             "Requests answered, by route and status.");
    put_routes(j, false);
    put_head(j, &j->job.reply, SL("hapax_http_request_seconds"), type_texts[METRIC_HISTOGRAM],
             "From the turn that brought a request until its reply could leave; long polls with their waiting.");
    put_routes(j, true);
}

static void put_alerts(struct metrics_job *j) {
    put_head(j, &j->job.reply, SL("hapax_alerts"), type_texts[METRIC_GAUGE], "1 while the alert fires.");
    put_alert_metrics(j->job.c.b, j->job.c.who, &j->job.reply);
}

/* ---- the request */

/* Those with traffic first; what does not fit into a reply is left out, and hapax_queues_shown says so. */
static void choose_some(struct metrics_job *j, bool busy, u64 *bytes) {
    const struct broker *b = j->job.c.b;
    for (u32 id = 1; id <= core_queue_count(b->core); id++) {
        struct queue_info q;
        core_queue_info(b->core, b->now, (u16)id, &q);
        if (q.deleted || !caller_may(j->job.c.who, RIGHT_OBSERVE, q.name)) continue;
        if (busy != (q.unsettled > 0 || series_known(b, (u16)id))) continue;
        *bytes += QUEUE_TEXT_BYTES + QUEUE_LINES * q.name.n;
        if (*bytes > REPLY_BYTES_MAX) return;
        j->queues[j->queue_count++] = (struct shown_queue){(u16)id, core_queue_since(b->core, (u16)id)};
    }
}

static void choose_queues(struct metrics_job *j) {
    u64 bytes = PROCESS_TEXT_BYTES;
    j->queues = mem_alloc((core_queue_count(j->job.c.b->core) + 1) * sizeof *j->queues);
    choose_some(j, true, &bytes);
    choose_some(j, false, &bytes);
    j->process.queues_shown = j->queue_count;
}

static bool run_metrics(struct job *job, struct budget *g) {
    struct metrics_job *j = (struct metrics_job *)(void *)job;
    if (!j->sampled) {
        process_sample(job->c.b, &j->process);
        choose_queues(j);
        j->sampled = true;
    }
    bool whole = caller_may_everywhere(job->c.who, RIGHT_OBSERVE); /* else its queues are all there is to see */
    while (j->metric < METRIC_IDENTS) {
        bool shown = whole || metrics[j->metric].scope != METRIC_PROCESS;
        if (shown && !put_name(j, g)) return false;
        j->metric = name_end(j->metric);
    }
    if ((whole || job->c.who->tenant.n) && !put_tenant_metrics(j, g)) return false;
    if (whole) put_all_routes(j);
    put_alerts(j);
    return true;
}

static void answer_metrics(struct job *job) {
    const struct metrics_job *j = (const struct metrics_job *)(const void *)job;
    slice type = j->open ? SL("application/openmetrics-text; version=1.0.0; charset=utf-8")
                         : SL("text/plain; version=0.0.4; charset=utf-8");
    if (j->open) buf_lit(&job->reply, "# EOF\n");
    job_reply(job, type, SL(""));
}

static void free_metrics(struct job *job) {
    mem_free(((struct metrics_job *)(void *)job)->queues);
}

static const struct job_kind metrics_kind = {sizeof(struct metrics_job), run_metrics, answer_metrics, free_metrics,
                                             true};

/* ;q=0.25 among a range's parameters, in thousandths; 1 where nothing is said that can be read. */
static u32 weight_of(slice parameters) {
    slice one, name, value;
    while (parameters.n) {
        slice_cut(parameters, ';', &one, &parameters);
        if (!slice_cut(one, '=', &name, &value) || !slice_eq_nocase(slice_trim(name), SL("q"))) continue;
        value = slice_trim(value);
        u32 q = 0;
        if (value.n == 0 || value.n > 5 || value.p[0] != '0' || (value.n > 1 && value.p[1] != '.')) return 1000;
        for (u32 i = 2, unit = 100; i < value.n; i++, unit /= 10) {
            if (value.p[i] < '0' || value.p[i] > '9') return 1000;
            q += (u32)(value.p[i] - '0') * unit;
        }
        return q;
    }
    return 1000;
}

/* OpenMetrics for those alone who name it, and do not like the plain text better. Of the ranges that take in plain text the one that
 * says most counts. */
static bool wants_openmetrics(const struct http_request *req) {
    static const slice plain[] = {{"*/*", 3}, {"text/*", 6}, {"text/plain", 10}};
    slice accept, one, range, parameters;
    u32 open = 0, text = 0, said = 0;
    if (http_field_get(req, SL("accept"), &accept) == 0) return false;
    while (accept.n) {
        slice_cut(accept, ',', &one, &accept);
        slice_cut(one, ';', &range, &parameters);
        range = slice_trim(range);
        u32 weight = weight_of(parameters);
        if (slice_eq_nocase(range, SL("application/openmetrics-text")) && weight > open) open = weight;
        for (u32 i = 0; i < 3; i++) {
            if (!slice_eq_nocase(range, plain[i]) || i + 1 < said) continue;
            if (i + 1 > said || weight > text) text = weight;
            said = i + 1;
        }
    }
    return open && open >= text;
}

void api_metrics(struct call *c) {
    struct metrics_job j = {.job = {.kind = &metrics_kind}, .open = wants_openmetrics(c->req)};
    if (jobs_have_room(c)) return job_start(c, &j.job);
    reply_failure(c);
}

void put_process_metrics(struct broker *b, struct buf *out) {
    struct process_sample p;
    process_sample(b, &p);
    json_put_name(out, "metrics");
    buf_char(out, '{');
    for (u32 i = 0; i < METRIC_IDENTS; i++) {
        const struct metric *m = &metrics[i];
        if (m->scope != METRIC_PROCESS || m->type == METRIC_HISTOGRAM) continue;
        struct buf name = {0};
        buf_slice_add(&name, slice_str(m->name));
        if (m->labels[0]) buf_printf(&name, "{%s}", m->labels);
        if (out->p[out->len - 1] != '{') buf_char(out, ',');
        json_put_string(out, buf_slice(&name));
        buf_char(out, ':');
        put_number(out, process_value(&p, i).number / m->unit);
        buf_free(&name);
    }
    buf_char(out, '}');
}
