#include "broker/problem.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/json.h"
#include "broker/broker_priv.h"
#include "broker/call.h"

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

bool problem_retryable(enum problem p) {
    return problems[p].retryable;
}

u16 failure_status(const struct failure *f) {
    return f->status ? f->status : problems[f->problem].status;
}

static void put_problem(struct buf *b, const struct problem_row *row, u16 status, slice detail, bool applied_unknown) {
    buf_lit(b, "{\"type\":\"urn:hapax:");
    buf_slice_add(b, slice_str(row->code));
    buf_char(b, '"');
    json_put_member(b, "title", slice_str(row->title));
    json_put_member_i64(b, "status", status);
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
    put_problem(body, row, row->status, slice_str(detail), applied_unknown);
    buf_char(body, '}');
}

static void failure_vset(struct failure *f, enum problem p, const char *fmt, va_list args) {
    char text[512];
    vsnprintf(text, sizeof text, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized): started by both callers
    f->problem = p;
    buf_reset(&f->detail);
    buf_slice_add(&f->detail, slice_str(text));
}

bool failure_set(struct failure *f, enum problem p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    failure_vset(f, p, fmt, args);
    va_end(args);
    return false;
}

bool fail(struct call *c, enum problem p, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    failure_vset(&c->failure, p, fmt, args);
    va_end(args);
    return false;
}

void failure_free(struct failure *f) {
    buf_free(&f->detail);
    buf_free(&f->more);
}

void failure_render(const struct failure *f, struct buf *body) {
    put_problem(body, &problems[f->problem], failure_status(f), buf_slice(&f->detail), f->applied_unknown);
    if (f->more.len) buf_char(body, ',');
    buf_slice_add(body, buf_slice(&f->more));
}
