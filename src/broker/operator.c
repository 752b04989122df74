#include "broker/operator.h"

#include "broker/access.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/room.h"

#define NOTE_BYTES_MAX 512u

static const struct {
    const char *text;
    bool relieves;
} deeds[] = {
#define DEED_ROW(name, text, relieves) {text, relieves},
    DEED_LIST(DEED_ROW)
#undef DEED_ROW
};

slice deed_text(enum deed_kind what) {
    return slice_str(deeds[what].text);
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
    enum json_type type;
    if (slice_eq(name, SL("by"))) return json_string(j, &d->by);
    if (slice_eq(name, SL("note"))) return json_string(j, &d->note);
    if (slice_eq(name, SL("as"))) return json_string(j, &d->as);
    if (slice_eq(name, SL("state"))) return json_string(j, &d->state);
    if (slice_eq(name, SL("class"))) return json_string(j, &d->class_name);
    if (slice_eq(name, SL("reason"))) return json_string(j, &d->reason);
    if (slice_eq(name, SL("since"))) return json_duration(j, &d->since);
    if (slice_eq(name, SL("ids"))) return json_value(j, &type, &d->ids);
    if (slice_eq(name, SL("max")) || slice_eq(name, SL("messages"))) return take_count(j, &d->max);
    if (slice_eq(name, SL("rate"))) return take_count(j, &d->rate);
    if (slice_eq(name, SL("status"))) return take_count(j, &d->status);
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
    return fail_json(&c->failure, &d->json);
}

static bool name_actor(struct call *c, struct deed *d) {
    struct buf *who = &d->who;
    bool open = access_open(c->b);
    if (!open) buf_slice_add(who, c->who->name);
    if (!open && d->by.n) buf_char(who, '/');
    buf_slice_add(who, d->by);
    if (who->len == 0) buf_lit(who, "anonymous");
    return who->len <= ACTOR_BYTES_MAX ||
           fail(c, PROBLEM_param_invalid, "by (or Hapax-Actor) is too long beside the token's name");
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
    return name_actor(c, d);
}

slice deed_who(const struct deed *d) {
    return buf_slice(&d->who);
}

void deed_free(struct deed *d) {
    json_free(&d->json);
    buf_free(&d->who);
}

struct audit_in deed_named(const struct deed *d, enum deed_kind what, slice detail) {
    return (struct audit_in){.who = deed_who(d),
                             .what = deed_text(what),
                             .why = d->note,
                             .detail = detail,
                             .relieves = deeds[what].relieves};
}

bool deed_no_room(struct call *c) {
    return fail(c, PROBLEM_storage_full, "the disk has no room for this");
}

bool deed_audit(struct call *c, const struct deed *d, enum deed_kind what, u16 queue, slice detail) {
    struct audit_in in = deed_named(d, what, detail);
    struct queue_info q;
    if (what == DEED_PURGE) { /* of nothing it gives nothing back */
        core_queue_info(c->b->core, c->b->now, queue, &q);
        in.relieves = q.unsettled > q.leased;
    }
    room_prepare(c->b, detail.n);
    return core_audit(c->b->core, c->b->now, queue, &in) || deed_no_room(c);
}

void deed_prepare(struct call *c, const struct deed *d, const struct seen *s) {
    u64 said = 2 * (d->result.text.n + d->result.base64.n + d->note.n);
    if (s && s->settle) /* a replay writes the outcome down, and its settlement may write it again */
        said += 2 * (s->settle->history.n + s->settle->result.n + s->settle->http.n) + s->settle->kept.payload.n;
    if (s && s->message) said += core_said_bytes(c->b->core, s->at.message);
    room_prepare(c->b, said);
}
