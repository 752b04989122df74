#include "base/json.h"
#include "relay/relay_priv.h"

enum { PIECE_BYTES = 4 << 20, PIECE_LINES = 10000, REASON_MAX = 400 };

void relay_batch_begin(struct batch *b, struct pg_rows *take_rows) {
    pg_rows_free(b->rows);
    b->rows = take_rows;
    b->count = pg_row_count(take_rows);
    b->sent = b->duplicates = b->refused = 0;
    b->trouble = (hx_error){0};
    buf_reset(&b->reasons);
    if (b->count > b->capacity) {
        b->capacity = b->count;
        b->outcomes = mem_realloc(b->outcomes, b->count * sizeof(*b->outcomes));
        b->row_of_line = mem_realloc(b->row_of_line, b->count * sizeof(*b->row_of_line));
    }
    if (b->count) memset(b->outcomes, 0, b->count * sizeof(*b->outcomes));
}

void relay_batch_free(struct batch *b) {
    pg_rows_free(b->rows);
    buf_free(&b->reasons);
    buf_free(&b->body);
    mem_free(b->outcomes);
    mem_free(b->row_of_line);
    *b = (struct batch){0};
}

static void refuse(struct batch *b, size_t row, slice code, slice detail) {
    struct outcome *o = &b->outcomes[row];
    o->verdict = ROW_VERDICT_REFUSED;
    o->reason_at = (u32)b->reasons.len;
    buf_slice_add(&b->reasons, code);
    buf_lit(&b->reasons, ": ");
    /* Not in the middle of a character. */
    size_t n = detail.n < REASON_MAX ? detail.n : REASON_MAX;
    while (n && n < detail.n && ((u8)detail.p[n] & 0xc0) == 0x80) n--;
    buf_add(&b->reasons, detail.p, n);
    o->reason_n = (u32)(b->reasons.len - o->reason_at);
    b->refused++;
}

/* ---- a row as a line */

static void put_attr(struct buf *out, const char *name, slice value) {
    if (value.n) json_put_member(out, name, value);
}

/* A database in another encoding than UTF-8 can hold names that are no text to us. */
static bool names_ok(const struct batch *b, size_t row) {
    for (int c = ROW_ID; c <= ROW_TYPE; c++)
        if (!utf8_valid(pg_cell(b->rows, row, c))) return false;
    return true;
}

/* What is not even worth asking. */
static bool refused_unsent(struct batch *b, size_t row) {
    if (pg_cell(b->rows, row, ROW_FITS).p[0] != 't')
        refuse(b, row, SL("too_large"), SL("larger than any message, it was not read"));
    else if (!pg_cell(b->rows, row, ROW_ID).p)
        refuse(b, row, SL("key_invalid"), SL("the id is NULL"));
    else if (!names_ok(b, row))
        refuse(b, row, SL("key_invalid"), SL("the id or another name is not UTF-8"));
    return b->outcomes[row].verdict == ROW_VERDICT_REFUSED;
}

static void put_payload(struct buf *out, slice payload, bool base64) {
    if (base64) {
        json_put_member(out, "payload_base64", payload);
    } else if (utf8_valid(payload)) {
        json_put_member(out, "payload", payload);
    } else {
        struct buf text = {0};
        buf_base64(&text, payload);
        json_put_member(out, "payload_base64", buf_slice(&text));
        buf_free(&text);
    }
}

/* The payload always goes as a string: its exact text, whatever white space a json column kept. */
static void put_line(const struct relay_sender *s, struct buf *out, const struct batch *b, size_t row) {
    slice group = pg_cell(b->rows, row, ROW_AGGREGATEID);
    buf_char(out, '{');
    json_put_member(out, "key", pg_cell(b->rows, row, ROW_ID));
    put_payload(out, pg_cell(b->rows, row, ROW_PAYLOAD), s->base64);
    json_put_member(out, "content_type", slice_str(s->content_type));
    if (s->grouped && group.n) json_put_member(out, "group", group);
    json_put_name(out, "attrs");
    buf_char(out, '{');
    put_attr(out, "aggregatetype", pg_cell(b->rows, row, ROW_AGGREGATETYPE));
    put_attr(out, "aggregateid", group);
    put_attr(out, "type", pg_cell(b->rows, row, ROW_TYPE));
    buf_lit(out, "}}\n");
}

/* Lines for rows from `row` on, as many as fit. Returns how many rows were dealt with. */
static size_t fill_piece(const struct relay_sender *s, struct batch *b, size_t row, size_t lines_max, size_t *lines) {
    size_t from = row;
    *lines = 0;
    buf_reset(&b->body);
    for (; row < b->count && *lines < lines_max && (!*lines || b->body.len < PIECE_BYTES); row++) {
        if (refused_unsent(b, row)) continue;
        b->row_of_line[(*lines)++] = row;
        put_line(s, &b->body, b, row);
    }
    return row - from;
}

/* ---- the answer */

struct answer {
    i64 status;
    bool retryable, duplicate;
    slice code, detail;
};

static bool read_answer(struct json *j, struct answer *a) {
    slice name;
    if (!json_object(j)) return false;
    while (json_member(j, &name)) {
        if (slice_eq(name, SL("status")))
            json_i64(j, &a->status);
        else if (slice_eq(name, SL("code")))
            json_string(j, &a->code);
        else if (slice_eq(name, SL("detail")))
            json_string(j, &a->detail);
        else if (slice_eq(name, SL("retryable")))
            json_bool(j, &a->retryable);
        else if (slice_eq(name, SL("duplicate")))
            json_bool(j, &a->duplicate);
        else
            json_skip(j);
    }
    return json_end(j);
}

static void note_trouble(struct batch *b, const struct answer *a) {
    struct hx_error *e = &b->trouble;
    e->status = HX_BUSY;
    e->http_status = (int)a->status;
    size_t code = a->code.n < sizeof(e->code) - 1 ? a->code.n : sizeof(e->code) - 1;
    size_t detail = a->detail.n < sizeof(e->detail) - 1 ? a->detail.n : sizeof(e->detail) - 1;
    if (code) memcpy(e->code, a->code.p, code);
    e->code[code] = '\0';
    if (detail) memcpy(e->detail, a->detail.p, detail);
    e->detail[detail] = '\0';
}

/* One line. Refused for good only if the broker says so in so many words; anything odd is tried again, and so are 404, 401
 * and 403: that the queue is not there, or that we may not send to it, is not the row's fault. */
static void line_answered(struct batch *b, size_t row, slice line) {
    struct answer a = {0};
    struct json j;
    json_init(&j, line);
    bool read = read_answer(&j, &a), denied = a.status == 401 || a.status == 403;
    if (read && a.status >= 200 && a.status < 300) {
        b->outcomes[row].verdict = ROW_VERDICT_SENT;
        b->sent++;
        b->duplicates += a.duplicate;
    } else if (read && a.status >= 400 && a.status < 500 && a.status != 404 && a.status != 429 && !denied &&
               !a.retryable) {
        refuse(b, row, a.code, a.detail);
    } else {
        note_trouble(b, &a);
    }
    json_free(&j);
}

static void piece_answered(struct batch *b, size_t lines, slice body) {
    for (size_t i = 0; i < lines && body.n; i++) {
        slice line, rest;
        slice_cut(body, '\n', &line, &rest);
        line_answered(b, b->row_of_line[i], line);
        body = rest;
    }
}

/* false: the broker cannot be worked with now. *too_large: not as one request. */
static bool post(const struct relay_sender *s, struct batch *b, size_t lines, bool *too_large) {
    hx_request request = {.method = "POST",
                          .target = s->target.p,
                          .body = hx_bytes_of(b->body.p, b->body.len),
                          .content_type = "application/x-ndjson"};
    hx_reply reply;
    hx_error err;
    hx_status st = hx_call(s->client, &request, &reply, &err);
    *too_large = st == HX_TOO_LARGE;
    if (st == HX_OK)
        piece_answered(b, lines, slice_of(reply.body.data, reply.body.size));
    else if (!*too_large)
        b->trouble = err;
    hx_reply_free(&reply);
    return st == HX_OK || *too_large;
}

static void forget_refusals(struct batch *b, size_t from, size_t count, size_t refused_before) {
    memset(&b->outcomes[from], 0, count * sizeof(*b->outcomes));
    b->refused = refused_before;
}

void relay_send(const struct relay_sender *s, struct batch *b) {
    i64 until = clock_mono_ms() + s->timeout_ms;
    size_t lines_max = PIECE_LINES, lines;
    for (size_t row = 0; row < b->count && clock_mono_ms() < until;) {
        bool too_large = false;
        size_t refused_before = b->refused;
        size_t done = fill_piece(s, b, row, lines_max, &lines);
        if (lines && !post(s, b, lines, &too_large)) return;
        if (too_large && lines > 1) {
            lines_max = lines / 2;
            forget_refusals(b, row, done, refused_before); /* its rows are looked at again */
            continue;
        }
        if (too_large) refuse(b, b->row_of_line[0], SL("too_large"), SL("larger than the broker takes"));
        row += done;
        if (s->grouped && b->sent + b->refused < row) return; /* a row was put off: its successors wait behind it */
    }
}

bool relay_probe(const struct relay_sender *s, hx_error *err) {
    hx_request request = {.method = "GET", .target = "/readyz"};
    hx_reply reply;
    hx_status st = hx_call(s->client, &request, &reply, err);
    hx_reply_free(&reply);
    return st == HX_OK;
}

/* ---- the queue's rules */

struct rules {
    slice semantics, key;
};

static bool read_rules(struct json *j, struct rules *r) {
    slice name;
    if (!json_object(j)) return false;
    while (json_member(j, &name)) {
        if (slice_eq(name, SL("semantics")))
            json_string(j, &r->semantics);
        else if (slice_eq(name, SL("key")))
            json_string(j, &r->key);
        else
            json_skip(j);
    }
    return json_end(j);
}

static const char *misfit(slice body) {
    struct json j;
    struct rules r = {0};
    json_init(&j, body);
    const char *why = NULL;
    if (read_rules(&j, &r) && r.key.n)
        why = "it makes its keys from the payload (key:), and a row's key is its id";
    else if (slice_eq(r.semantics, SL("at_least_once")))
        why = "it is at_least_once: a row that is sent again after a crash would be a second message";
    json_free(&j);
    return why;
}

const char *relay_queue_misfit(const struct relay_sender *s, const char *queue, hx_error *err) {
    struct buf target = {0};
    buf_lit(&target, "/v1/queues/");
    buf_percent_encode(&target, slice_str(queue));
    buf_char(&target, '\0');
    hx_request request = {.method = "GET", .target = target.p};
    hx_reply reply;
    const char *why = NULL;
    if (hx_call(s->client, &request, &reply, err) == HX_OK)
        why = misfit(slice_of(reply.body.data, reply.body.size));
    else if (err->http_status >= 400 && err->http_status < 500 && err->http_status != 401 && err->http_status != 429)
        *err = (hx_error){0}; /* not there yet, or not for us to see: who may send need not be allowed to look */
    hx_reply_free(&reply);
    buf_free(&target);
    return why;
}
