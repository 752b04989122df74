/* Operators' calls: who, what and why. Every deed is in the audit trail before it is done, and only if there is room for it
 * too: nothing is done unnamed, and what was refused is not in the trail. */
#include "broker/broker_priv.h"

#define NOTE_BYTES_MAX 512u

static const char *const deed_texts[] = {
#define DEED_TEXT(name, text) text,
    DEED_LIST(DEED_TEXT)
#undef DEED_TEXT
};

slice deed_text(enum deed_kind what) {
    return slice_str(deed_texts[what]);
}

static bool listed(const char *members, slice name) {
    slice rest = slice_str(members), one;
    while (rest.n) {
        slice_cut(rest, ' ', &one, &rest);
        if (slice_eq(one, name)) return true;
    }
    return false;
}

static bool take_count(struct json *j, u64 *out) {
    i64 n;
    if (!json_i64(j, &n)) return false;
    if (n < 1) return json_fail(j, "a number from 1 on was expected");
    *out = (u64)n;
    return true;
}

static bool take_member(struct json *j, slice name, struct deed *d) {
    bool taken;
    if (slice_eq(name, SL("by"))) return json_string(j, &d->by);
    if (slice_eq(name, SL("note"))) return json_string(j, &d->note);
    if (slice_eq(name, SL("as"))) return json_string(j, &d->as);
    if (slice_eq(name, SL("state"))) return json_string(j, &d->state);
    if (slice_eq(name, SL("class"))) return json_string(j, &d->class_name);
    if (slice_eq(name, SL("reason"))) return json_string(j, &d->reason);
    if (slice_eq(name, SL("since"))) return json_duration(j, &d->since);
    if (slice_eq(name, SL("max")) || slice_eq(name, SL("messages"))) return take_count(j, &d->max);
    if (slice_eq(name, SL("rate"))) return take_count(j, &d->rate);
    if (slice_eq(name, SL("dry_run"))) return json_bool(j, &d->dry_run);
    return result_member(j, name, &d->result, &taken) && taken;
}

/* Nothing is passed over: a filter that was mistyped would let everything through. */
static bool known(const char *members, slice name) {
    return listed("by note", name) || listed(members, name);
}

static bool read_body(struct call *c, struct deed *d, const char *members) {
    slice name = SL("");
    bool strange = false;
    if (!members || slice_trim(c->req->body).n == 0) return true;
    if (json_object(&d->json)) {
        while (json_member(&d->json, &name)) {
            strange = !known(members, name);
            if (strange || !take_member(&d->json, name, d)) break;
        }
    }
    if (strange)
        return fail(c, PROBLEM_json_invalid, "this call has no member \"%.*s\"; it has: by note%s%s", (int)name.n,
                    name.p, *members ? " " : "", members);
    if (json_end(&d->json)) return true;
    struct buf why = {0};
    json_error(&d->json, &why);
    fail(c, PROBLEM_json_invalid, "%.*s", (int)why.len, why.p);
    buf_free(&why);
    return false;
}

bool deed_read(struct call *c, struct deed *d, const char *members) {
    *d = (struct deed){0};
    json_init(&d->json, c->req->body);
    http_field_get(c->req, SL("hapax-actor"), &d->by);
    http_field_get(c->req, SL("hapax-reason"), &d->note);
    if (!read_body(c, d, members)) return false;
    d->by = slice_trim(d->by);
    if (!text_ok(d->by, ACTOR_BYTES_MAX))
        return fail(c, PROBLEM_param_invalid,
                    "by (or Hapax-Actor) must be UTF-8 without control characters, at most %u bytes", ACTOR_BYTES_MAX);
    if (d->note.n > NOTE_BYTES_MAX || !utf8_valid(d->note))
        return fail(c, PROBLEM_param_invalid, "note (or Hapax-Reason) must be UTF-8, at most %u bytes", NOTE_BYTES_MAX);
    return true;
}

void deed_free(struct deed *d) {
    json_free(&d->json);
}

#define DEED_BYTES 8192u /* what a deed asks of the journal beside what is said in it: more than enough */

static u64 deed_room(const struct deed *d, enum deed_kind what, const struct seen *s, slice detail) {
    u64 bytes = DEED_BYTES + d->result.text.n + d->result.base64.n;
    if (what == DEED_QUEUE_PUT) bytes += detail.n;
    if (what != DEED_REPLAY || !s || !s->settle) return bytes;
    const struct kept *k = &s->settle->kept;
    return bytes + k->group.n + k->content_type.n + k->attrs.n + k->traceparent.n + k->tracestate.n + k->payload.n;
}

bool deed_audit(struct call *c, const struct deed *d, enum deed_kind what, u16 queue, const struct seen *s,
                slice detail) {
    struct buf id = {0};
    struct queue_info q = {0};
    if (queue) core_queue_info(c->b->core, c->b->now, queue, &q);
    if (s) core_id_text(seen_ref(s), &id);
    struct audit_in in = {
        .queue = queue,
        .who = d->by.n ? d->by : SL("anonymous"),
        .what = deed_text(what),
        .queue_name = queue ? q.name : c->arg[0],
        .key = s ? seen_key(s) : SL(""),
        .id = buf_slice(&id),
        .why = d->note,
        .detail = detail,
        .then = deed_room(d, what, s, detail),
    };
    bool ok = core_audit(c->b->core, c->b->now, &in);
    buf_free(&id);
    return ok || fail(c, PROBLEM_storage_full, "the disk has no room for this");
}

/* ---- a drill */

static bool audit_drill(struct call *c, const struct deed *d, u16 queue) {
    struct buf detail = {0};
    i64 since_ms;
    if (d->since.n && !parse_since(c->b, d->since, &since_ms))
        return fail(c, PROBLEM_param_invalid, "since must be a time such as 2026-01-31T12:00:00Z, or a duration: 1h");
    buf_char(&detail, '{');
    if (d->since.n) json_put_member(&detail, "since", d->since);
    if (d->max) json_put_member_i64(&detail, "messages", (i64)d->max);
    buf_char(&detail, '}');
    bool ok = deed_audit(c, d, DEED_DRILL, queue, NULL, buf_slice(&detail));
    buf_free(&detail);
    return ok;
}

/* The sends of a replay drill come through the normal door and look like any others: this is its only trace. */
void api_drill(struct call *c) {
    struct deed d;
    u16 queue;
    bool ok = deed_read(c, &d, "since messages") && queue_of_call(c, false, &queue) && audit_drill(c, &d, queue);
    if (ok)
        reply_json(c, 200, SL("{\"ok\":true}"));
    else
        reply_failure(c);
    deed_free(&d);
}

/* ---- looking at the trail */

struct audit_query {
    struct buf store[4];
    slice queue, who, what, since;
    i64 since_ms;
    u64 limit, before;
};

static bool is_deed(slice text) {
    for (u32 i = 0; i < DEED_COUNT; i++)
        if (slice_eq(text, slice_str(deed_texts[i]))) return true;
    return false;
}

static bool read_query(struct call *c, struct audit_query *q) {
    bool ok = param_text(c, "queue", &q->store[0], &q->queue) && param_text(c, "who", &q->store[1], &q->who) &&
              param_text(c, "what", &q->store[2], &q->what) && param_text(c, "since", &q->store[3], &q->since) &&
              param_u64(c, "limit", 1, LIST_LIMIT_MAX, 100, &q->limit) &&
              param_u64(c, "cursor", 1, UINT64_MAX, 0, &q->before);
    q->since_ms = INT64_MIN;
    if (ok && q->what.n && !is_deed(q->what))
        return fail(c, PROBLEM_param_invalid,
                    "what must be a verb of the audit trail, such as pause, purge or resolve");
    if (!ok || q->since.n == 0 || parse_since(c->b, q->since, &q->since_ms)) return ok;
    return fail(c, PROBLEM_param_invalid, "since must be a time such as 2026-01-31T12:00:00Z, or a duration: 1h");
}

static bool wanted(const struct audit_query *q, const struct rec_audit *r) {
    return (q->queue.n == 0 || slice_eq(q->queue, r->queue_name)) && (q->who.n == 0 || slice_eq(q->who, r->who)) &&
           (q->what.n == 0 || slice_eq(q->what, r->what)) && r->at_ms >= q->since_ms;
}

static void put_audit(struct buf *b, const struct rec_audit *r) {
    buf_char(b, '{');
    json_put_member_time(b, "at", r->at_ms);
    json_put_member(b, "who", r->who);
    json_put_member(b, "what", r->what);
    if (r->queue_name.n) json_put_member(b, "queue", r->queue_name);
    if (r->key.n) json_put_member(b, "key", r->key);
    if (r->id.n) json_put_member(b, "id", r->id);
    if (r->why.n) json_put_member(b, "why", r->why);
    if (r->detail.n) json_put_member_raw(b, "detail", r->detail);
    buf_char(b, '}');
}

/* Newest first. A page ends early when it has looked at many that were not wanted. */
#define AUDIT_LOOKED_AT_MAX 10000u

static void put_trail(struct broker *b, struct audit_query *q, struct buf *body) {
    struct audit_at at;
    u64 shown = 0;
    u32 looked = 0;
    bool more = true;
    buf_lit(body, "{\"items\":[");
    while (shown < q->limit && looked++ < AUDIT_LOOKED_AT_MAX && body->len < REPLY_BYTES_MAX) {
        if (!(more = core_audit_prev(b->core, q->before, &at))) break;
        struct record *r = &b->lookup.base;
        broker_fetch(b, at.pos, at.size_hint, &b->lookup.base_store, r);
        CHECK(r->type == REC_AUDIT);
        q->before = at.number;
        if (!wanted(q, &r->audit)) continue;
        if (shown++) buf_char(body, ',');
        put_audit(body, &r->audit);
    }
    more = more && core_audit_prev(b->core, q->before, &at);
    buf_lit(body, "],\"next_cursor\":");
    if (more)
        buf_printf(body, "\"%llu\"}", (unsigned long long)q->before);
    else
        buf_lit(body, "null}");
}

void api_audit(struct call *c) {
    struct audit_query q = {0};
    bool ok = read_query(c, &q);
    buf_reset(&c->b->body);
    if (ok) put_trail(c->b, &q, &c->b->body);
    for (u32 i = 0; i < 4; i++) buf_free(&q.store[i]);
    if (!ok) return reply_failure(c);
    reply_json(c, 200, buf_slice(&c->b->body));
}
