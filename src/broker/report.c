#include "broker/report.h"

#include "broker/broker_priv.h"
#include "broker/effects.h"
#include "broker/queue_rules.h"
#include "broker/watch.h"

struct reports {
    struct parked {
        enum log_level level;
        const char *event, *msg;
        size_t count;
        struct log_field fields[REPORT_FIELDS_MAX];
        char texts[REPORT_FIELDS_MAX][REPORT_TEXT_BYTES];
    } * ring;
    u32 first, count;
};

struct reports *reports_new(void) {
    return mem_zalloc(sizeof(struct reports));
}

void reports_free(struct reports *r) {
    if (r) mem_free(r->ring);
    mem_free(r);
}

void report_fields(struct broker *b, enum log_level level, const char *event, const char *msg,
                   const struct log_field *fields, size_t count) {
    const struct broker_port *port = &b->options.port;
    if (port->log) port->log(port->ctx, level, event, msg, fields, count);
}

static void let_go(struct broker *b, void *ctx, u64 arg) {
    struct reports *r = ctx;
    (void)arg;
    CHECK(r->count > 0);
    const struct parked *p = &r->ring[r->first];
    r->first =
        --r->count ? (r->first + 1) % REPORTS_MAX : 0; /* few wait at a time: the memory behind them is never touched */
    report_fields(b, p->level, p->event, p->msg, p->fields, p->count);
}

static void keep_field(struct parked *p, const struct log_field *f) {
    struct log_field *to = &p->fields[p->count];
    char *text = p->texts[p->count++];
    *to = *f;
    if (f->kind != LOG_FIELD_TEXT || !f->text.p) return;
    to->text = slice_of(text, f->text.n < REPORT_TEXT_BYTES ? f->text.n : REPORT_TEXT_BYTES);
    memcpy(text, f->text.p, to->text.n);
}

/* Of the request that is being decided, if it has one. */
static slice request_id(const struct broker *b) {
    slice id = SL("");
    if (b->request && !http_field_get(b->request, SL("hapax-request-id"), &id))
        http_field_get(b->request, SL("x-request-id"), &id);
    return id;
}

static struct log_field text_if_any(const char *name, slice text) {
    return text.n ? log_text(name, text) : (struct log_field){0};
}

/* One effect for each, in the same order: the effect that runs is the oldest report's. */
void report_fields_after(struct broker *b, enum log_level level, const char *event, const char *msg,
                         const struct log_field *fields, size_t count) {
    struct reports *r = b->reports;
    if (!b->options.port.log || r->count == REPORTS_MAX) return;
    if (!r->ring) r->ring = mem_zalloc(REPORTS_MAX * sizeof *r->ring);
    struct parked *p = &r->ring[(r->first + r->count) % REPORTS_MAX];
    *p = (struct parked){.level = level, .event = event, .msg = msg};
    for (size_t i = 0; i < count; i++) {
        if (!fields[i].name && fields[i].kind != LOG_FIELD_EVERY) continue;
        CHECK(p->count < REPORT_FIELDS_MAX);
        keep_field(p, &fields[i]);
    }
    r->count++;
    if (!effect_after(b, b->after, let_go, r, 0)) r->count--;
}

/* ---- what is told */

static const char *repeat_kind(const struct happening *h) {
    if (h->kind == HAPPENING_CONFLICT) return "conflict";
    if (h->kind == HAPPENING_AGAIN) return "after_window";
    return h->detail == ARRIVAL_LATE ? "late" : "replay";
}

/* They leave most of the places to others: a storm of repeats must not hide an alert, or what an operator does. */
#define REPEATS_MAX 32u
void report_repeat(struct broker *b, const struct happening *h) {
    const struct queue_config *rules = queue_rules_of(b, h->queue)->config;
    if (!rules || !rules->log_duplicates || b->reports->count >= REPEATS_MAX) return;
    report_after(b, LOG_INFO, "duplicate", "a key came again", log_text("queue", rules->name), log_text("key", h->key),
                 log_text("kind", slice_str(repeat_kind(h))), log_number("age_ms", h->age_ms),
                 text_if_any("request_id", h->request_id));
}

void report_deed(struct broker *b, const struct rec_audit *a) {
    report_after(b, LOG_INFO, "operator", "an operator's deed, in the audit trail", log_text("what", a->what),
                 text_if_any("queue", a->queue_name), log_text("by", a->who), log_number("audit", (i64)a->number),
                 text_if_any("request_id", request_id(b)));
}

enum spell_change spell_look(struct spell *s, bool there, i64 run_ms) {
    if (there) s->seen_run_ms = run_ms;
    if (there == s->on || (s->on && run_ms - s->seen_run_ms < SPELL_MS)) return SPELL_SAME;
    s->on = there;
    return there ? SPELL_BEGINS : SPELL_ENDS;
}
