/* Requests are looked at before their turn, so that the memory they will touch is near by then, and hashed together. */
#include "broker/ahead.h"

#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/route.h"
#include "config/schema.h"
#include "config/template.h"

#define LOOKED_AT_MAX 4096u  /* bytes of a payload: what is looked at ahead may come to be looked at again */
#define WORK_MAX      16384u /* of rules on payloads (view.h), all of a call: some 50 us */

/* What is noted in a request: its key's hash; the queue that is for and, above, which of `derived` the key is, from 1, if it is one of
 * those; its payload's fingerprint. */
enum { PLACE_SHIFT = 16 };

static slice key_field(const struct http_request *req) {
    for (size_t i = 0; i < req->field_count; i++)
        if (slice_spells(req->fields[i].name, SL("idempotency-key"))) return req->fields[i].value;
    return (slice){0};
}

/* Is it a send to that queue, the one of the last request? */
static bool is_send(slice queue, const struct http_request *req) {
    static const char before[] = "/v1/queues/", behind[] = "/messages";
    size_t start = sizeof before - 1, end = sizeof behind - 1;
    return req->method == HTTP_POST && req->path.n == start + queue.n + end &&
           memcmp(req->path.p + start, queue.p, queue.n) == 0 &&
           memcmp(req->path.p + start + queue.n, behind, end) == 0;
}

struct sends {
    struct http_request *at[AHEAD_MAX];
    slice text[AHEAD_MAX]; /* of each: the key, then the payload of those that are left */
    u32 n;
};

/* Of those that say it, and unquoted; the others are out. */
static void say_keys(struct sends *s) {
    u32 left = 0;
    for (u32 i = 0; i < s->n; i++) {
        s->text[left] = key_field(s->at[i]);
        if (s->text[left].n && s->text[left].p[0] != '"') s->at[left++] = s->at[i];
    }
    s->n = left;
}

/* Are key and schema all that the rules want of a payload? What else they want of it is made in its turn, of one reading. */
static bool only_keyed(const struct queue_config *q) {
    return q->key && !q->order_by && !q->fingerprint && !q->event_type && !q->origin;
}

/* As api_send takes it. */
static slice content_type_of(const struct http_request *req) {
    slice type = SL("");
    for (size_t i = 0; i < req->field_count; i++)
        if (slice_spells(req->fields[i].name, SL("content-type"))) type = req->fields[i].value;
    return type;
}

/* false, and nothing in `keys`: it fails the rules, and is told so in its turn. */
static bool derive(struct broker *b, const struct queue_config *q, struct http_request *req, struct buf *keys) {
    struct payload_view *v = &b->scratch->view;
    struct errbuf why;
    size_t before = keys->len;
    payload_view_init(v, req->body, content_type_of(req), request_header, req);
    if (template_eval(q->key, v, keys, &why) != TEMPLATE_OK) return false;
    if (!q->schema || schema_check(q->schema, v, &why)) return true;
    keys->len = before;
    return false;
}

/* The same where rules make the key. They are read over payloads only of those who may send them. The first that fails the rules ends
 * it: where one does others may, and they would all be looked at twice. */
static void derive_keys(struct broker *b, u16 queue, slice name, struct sends *s) {
    const struct queue_config *q = queue_rules_of(b, queue)->config;
    struct derived *d = &b->scratch->derived;
    u32 count = s->n;
    u64 work = 0;
    buf_reset(&d->keys);
    s->n = 0;
    for (u32 i = 0; i < count && work < WORK_MAX; i++) {
        struct http_request *req = s->at[i];
        size_t from = d->keys.len;
        if (req->body.n > LOOKED_AT_MAX || req->body.n > q->payload_max || !route_may_send(b, req, name)) continue;
        if (!derive(b, q, req, &d->keys)) break;
        work += b->scratch->view.work;
        d->of[s->n] = s->at[s->n] = req;
        s->text[s->n++] = slice_of(NULL, d->keys.len - from);
    }
    const char *p = d->keys.p;
    for (u32 i = 0; i < s->n; p += s->text[i++].n) d->key[i] = s->text[i] = slice_of(p, s->text[i].n);
    d->count = s->n;
}

/* unsettled: which of the keys seem to be there to compare with. */
static void note_keys(struct broker *b, u16 queue, struct sends *s, bool *unsettled) {
    u64 hashes[AHEAD_MAX];
    bool derived = b->scratch->derived.count > 0;
    core_hashes(b->core, queue, s->text, s->n, hashes);
    for (u32 i = 0; i < s->n; i++) {
        s->at[i]->noted[0] = hashes[i];
        s->at[i]->noted[1] = queue | (u64)(derived ? i + 1 : 0) << PLACE_SHIFT;
    }
    lookup_ahead(b, hashes, s->n, unsettled);
}

static void note_fingerprints(struct broker *b, struct sends *s, const bool *unsettled) {
    u64 prints[AHEAD_MAX];
    u32 left = 0;
    for (u32 i = 0; i < s->n; i++) {
        if (unsettled[i] || s->at[i]->body.n > LOOKED_AT_MAX) continue;
        s->at[left] = s->at[i];
        s->text[left++] = s->at[i]->body;
    }
    core_fingerprints(b->core, s->text, left, prints);
    for (u32 i = 0; i < left; i++) s->at[i]->noted[2] = prints[i];
}

void broker_ahead(struct broker *b, struct http_request *const *reqs, u32 count) {
    struct sends s;
    bool unsettled[AHEAD_MAX] = {0};
    slice name;
    u16 queue = last_queue(b, &name);
    ahead_forget(b);
    if (queue == 0) return;
    s.n = 0;
    for (u32 i = 0; i < count && s.n < AHEAD_MAX; i++)
        if (is_send(name, reqs[i])) s.at[s.n++] = reqs[i];
    const struct queue_rules *rules = queue_rules_of(b, queue);
    const struct queue_config *q = rules->config;
    bool derives = q && only_keyed(q) && !rules->undeclared;
    if (derives) derive_keys(b, queue, name, &s);
    if (!q || !q->key) say_keys(&s);
    if (derives || !q || !q->key) note_keys(b, queue, &s, unsettled);
    if (!q || !q->fingerprint) note_fingerprints(b, &s, unsettled);
}

struct foreknown ahead_known(const struct broker *b, const struct http_request *req, slice key) {
    const struct derived *d = &b->scratch->derived;
    struct foreknown known = {
        .key = key, .hash = req->noted[0], .queue = (u16)req->noted[1], .fingerprint = req->noted[2]};
    u64 place = req->noted[1] >> PLACE_SHIFT;
    if (place == 0) return known;
    known.derived = place <= d->count && d->of[place - 1] == req;
    if (known.derived)
        known.key = d->key[place - 1];
    else
        known.queue = 0;
    return known;
}

void ahead_forget(struct broker *b) {
    b->scratch->derived.count = 0;
}
