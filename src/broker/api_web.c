/* The dashboard. A page of the operators' own browser, on the same port as everything that can be destroyed: it may load nothing
 * from elsewhere, run nothing that is not a file of it, and be shown inside no other page. */
#include <stdio.h>

#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/web.h"

#define POLICY                                                                                                         \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "              \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

#define WEB_TAG_TEXT 18u /* 16 hexadecimal digits in quotes */

static void file_tag(slice bytes, char out[WEB_TAG_TEXT + 1]) {
    struct siphash_key key = {0}; /* no secret: the same file has the same tag on every broker */
    snprintf(out, WEB_TAG_TEXT + 1, "\"%016llx\"", (unsigned long long)siphash(&key, bytes.p, bytes.n));
}

/* Waits for nothing: the pages open while the disk is stuck, too. Browsers ask each time whether they are still the same,
 * so that a page never meets the broker of another version. */
static void serve(struct call *c, const struct web_file *f) {
    char tag[WEB_TAG_TEXT + 1];
    slice known = SL("");
    struct buf *fields = &c->b->scratch->fields;
    slice bytes = slice_of(f->bytes, (size_t)(f->end - f->bytes));
    file_tag(bytes, tag);
    http_field_get(c->req, SL("If-None-Match"), &known);
    bool same = slice_eq(known, slice_str(tag));
    buf_reset(fields);
    buf_printf(fields, "ETag: %s\r\nCache-Control: no-cache\r\nContent-Security-Policy: " POLICY "\r\n", tag);
    buf_lit(fields, "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"
                    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n");
    struct http_reply reply = {
        .status = same ? 304 : 200,
        .content_type = same ? SL("") : slice_str(f->type),
        .fields = buf_slice(fields),
        .body = same ? SL("") : bytes,
        .close = c->b->draining,
    };
    c->b->options.port.respond(c->b->options.port.ctx, c->conn, &reply);
}

void api_page(struct call *c) {
    serve(c, &web_files[0]);
}

void api_page_file(struct call *c) {
    for (const struct web_file *f = web_files; f->name; f++)
        if (slice_eq(c->arg[0], slice_str(f->name))) return serve(c, f);
    fail(c, PROBLEM_not_found, "no such path");
    reply_failure(c);
}
