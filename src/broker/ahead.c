/* Requests are looked at before their turn, so that the memory they will touch is near by then. */
#include "broker/broker_priv.h"
#include "broker/lookup.h"
#include "broker/named.h"

static slice key_field(const struct http_request *req) {
    for (size_t i = 0; i < req->field_count; i++)
        if (slice_spells(req->fields[i].name, SL("idempotency-key"))) return req->fields[i].value;
    return (slice){0};
}

/* The hash a send will ask for, if it is a plain one: same queue as the last request, unquoted key. */
static bool guess_hash(struct broker *b, u16 queue, slice name, const struct http_request *req, u64 *hash) {
    static const char before[] = "/v1/queues/", behind[] = "/messages";
    size_t start = sizeof before - 1, end = sizeof behind - 1;
    if (req->method != HTTP_POST || req->path.n != start + name.n + end) return false;
    if (memcmp(req->path.p + start, name.p, name.n) != 0 || memcmp(req->path.p + start + name.n, behind, end) != 0)
        return false;
    slice key = key_field(req);
    if (key.n == 0 || key.p[0] == '"') return false;
    *hash = core_hash(b->core, queue, key);
    return true;
}

void broker_ahead(struct broker *b, struct http_request *const *reqs, u32 count) {
    u64 hashes[AHEAD_MAX];
    u32 n = 0;
    slice name;
    u16 queue = last_queue(b, &name);
    if (queue == 0) return;
    for (u32 i = 0; i < count && n < AHEAD_MAX; i++) {
        if (!guess_hash(b, queue, name, reqs[i], &hashes[n])) continue;
        reqs[i]->noted[0] = hashes[n++];
        reqs[i]->noted[1] = queue;
    }
    if (n) lookup_ahead(b, hashes, n);
}
