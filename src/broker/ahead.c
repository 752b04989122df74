/* Requests are looked at before their turn, so that the memory they will touch is near by then, and hashed together. */
#include "broker/broker_priv.h"
#include "broker/lookup.h"
#include "broker/named.h"
#include "broker/queue_rules.h"

#define PRINTED_MAX 4096u /* bytes of a payload: what is looked at ahead may come to be looked at again */

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

/* Of those that say it, and unquoted; the others are out. unsettled: which of them seem to be there to compare with. */
static void note_keys(struct broker *b, u16 queue, struct sends *s, bool *unsettled) {
    u64 hashes[AHEAD_MAX];
    u32 left = 0;
    for (u32 i = 0; i < s->n; i++) {
        s->text[left] = key_field(s->at[i]);
        if (s->text[left].n && s->text[left].p[0] != '"') s->at[left++] = s->at[i];
    }
    s->n = left;
    core_hashes(b->core, queue, s->text, s->n, hashes);
    for (u32 i = 0; i < s->n; i++) {
        s->at[i]->noted[0] = hashes[i];
        s->at[i]->noted[1] = queue;
    }
    lookup_ahead(b, hashes, s->n, unsettled);
}

static void note_fingerprints(struct broker *b, struct sends *s, const bool *unsettled) {
    u64 prints[AHEAD_MAX];
    u32 left = 0;
    for (u32 i = 0; i < s->n; i++) {
        if (unsettled[i] || s->at[i]->body.n > PRINTED_MAX) continue;
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
    if (queue == 0) return;
    s.n = 0;
    for (u32 i = 0; i < count && s.n < AHEAD_MAX; i++)
        if (is_send(name, reqs[i])) s.at[s.n++] = reqs[i];
    const struct queue_config *rules = queue_rules_of(b, queue)->config;
    if (!rules || !rules->key) note_keys(b, queue, &s, unsettled);
    if (!rules || !rules->fingerprint) note_fingerprints(b, &s, unsettled);
}
