#include "broker/report.h"

#include "broker/broker_priv.h"
#include "broker/effects.h"

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
    r->first = (r->first + 1) % REPORTS_MAX;
    r->count--;
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

/* One effect for each, in the same order: the effect that runs is the oldest report's. */
void report_fields_after(struct broker *b, enum log_level level, const char *event, const char *msg,
                         const struct log_field *fields, size_t count) {
    struct reports *r = b->reports;
    if (!b->options.port.log || r->count == REPORTS_MAX) return;
    if (!r->ring) r->ring = mem_zalloc(REPORTS_MAX * sizeof *r->ring);
    struct parked *p = &r->ring[(r->first + r->count) % REPORTS_MAX];
    *p = (struct parked){.level = level, .event = event, .msg = msg};
    for (size_t i = 0; i < count; i++) {
        if (!fields[i].name) continue;
        CHECK(p->count < REPORT_FIELDS_MAX);
        keep_field(p, &fields[i]);
    }
    r->count++;
    if (!effect_after(b, b->after, let_go, r, 0)) r->count--;
}
