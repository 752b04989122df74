/* Replies and problems. */
#include <stdarg.h>
#include <stdio.h>

#include "broker/broker_priv.h"

struct problem_row {
    const char *code, *title;
    u16 status;
    bool retryable;
};

static const struct problem_row problems[] = {
#define PROBLEM(code, status, retryable, title) {#code, title, status, retryable},
#include "broker/problem.def"
#undef PROBLEM
};

u16 problem_status(enum problem p) {
    return problems[p].status;
}

static void put_problem(struct buf *b, const struct problem_row *row, slice detail, bool applied_unknown) {
    buf_lit(b, "{\"type\":\"urn:hapax:");
    buf_slice_add(b, slice_str(row->code));
    buf_char(b, '"');
    json_put_member(b, "title", slice_str(row->title));
    json_put_member_i64(b, "status", row->status);
    json_put_member(b, "detail", utf8_valid(detail) ? detail : SL("(not UTF-8)"));
    json_put_member(b, "code", slice_str(row->code));
    json_put_member_bool(b, "retryable", row->retryable);
    json_put_member(b, "applied", applied_unknown ? SL("unknown") : SL("no"));
}

void broker_render_problem(struct buf *body, u16 status, const char *code, const char *detail, bool applied_unknown) {
    const struct problem_row *row = &problems[PROBLEM_bad_request];
    for (u32 i = 0; i < PROBLEM_COUNT; i++)
        if (problems[i].status == status &&
            (row->status != status || slice_eq(slice_str(code), slice_str(problems[i].code))))
            row = &problems[i];
    put_problem(body, row, slice_str(detail), applied_unknown);
    buf_char(body, '}');
}

static void failure_vset(struct failure *f, enum problem p, const char *fmt, va_list args) {
    char text[512];
    vsnprintf(text, sizeof text, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized): started by both callers
    f->problem = p;
    buf_reset(&f->detail);
    buf_slice_add(&f->detail, slice_str(text));
}

void failure_set(struct failure *f, enum problem p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    failure_vset(f, p, fmt, args);
    va_end(args);
}

bool fail(struct call *c, enum problem p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    failure_vset(&c->failure, p, fmt, args);
    va_end(args);
    return false;
}

void failure_render(const struct failure *f, struct buf *body) {
    put_problem(body, &problems[f->problem], buf_slice(&f->detail), f->applied_unknown);
    if (f->more.len) buf_char(body, ',');
    buf_slice_add(body, buf_slice(&f->more));
}

void reply_with(struct broker *b, void *conn, u16 status, slice content_type, slice fields, slice body, u64 receipt) {
    struct http_reply reply = {
        .status = status,
        .content_type = content_type,
        .fields = fields,
        .body = body,
        .after = {.position = b->after},
        .receipt = receipt,
        .close = b->draining,
    };
    b->options.port.respond(b->options.port.ctx, conn, &reply);
}

void reply_json(struct call *c, u16 status, slice body) {
    reply_with(c->b, c->conn, status, SL("application/json"), SL(""), body, 0);
}

void reply_failure(struct call *c) {
    struct broker *b = c->b;
    buf_reset(&b->body);
    failure_render(&c->failure, &b->body);
    buf_char(&b->body, '}');
    buf_reset(&b->fields);
    if (c->failure.allow) buf_printf(&b->fields, "Allow: %s\r\n", c->failure.allow);
    u16 status = problem_status(c->failure.problem);
    if (status == 429 || status == 503 || status == 507) buf_lit(&b->fields, "Retry-After: 1\r\n");
    reply_with(b, c->conn, status, SL("application/problem+json"), buf_slice(&b->fields), buf_slice(&b->body), 0);
}
