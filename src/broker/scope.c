#include "broker/scope.h"

#include "base/json.h"
#include "broker/access.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/lookup.h"
#include "broker/queue_rules.h"
#include "broker/render.h"

#define SCOPE_END '/'

bool scope_key(struct buf *store, slice scope, slice key) {
    buf_reset(store);
    buf_slice_add(store, scope);
    buf_char(store, SCOPE_END);
    buf_slice_add(store, key);
    return store->len <= KEY_BYTES_MAX;
}

struct shown_key shown_key(const struct broker *b, u16 queue, slice stored) {
    struct shown_key shown = {.key = stored};
    if (queue_rules_of(b, queue)->scoped) slice_cut(stored, SCOPE_END, &shown.credential, &shown.key);
    return shown;
}

/* Two slices are returned in memory, and read from there before they have arrived: most keys have no scope, and need not. */
slice key_as_sent(const struct broker *b, u16 queue, slice stored) {
    return queue_rules_of(b, queue)->scoped ? shown_key(b, queue, stored).key : stored;
}

void put_shown_key(const struct broker *b, struct buf *body, u16 queue, slice stored) {
    put_key(body, key_as_sent(b, queue, stored));
    if (!queue_rules_of(b, queue)->scoped) return;
    slice credential = shown_key(b, queue, stored).credential;
    if (credential.n) json_put_member(body, "credential", credential);
}

void put_effect_key(struct buf *out, const struct ref *ref, slice known_by, u32 generation) {
    if (known_by.n)
        buf_slice_add(out, known_by);
    else
        core_id_text(ref, out);
    if (generation) buf_printf(out, "~g%u", generation);
}

slice key_downstream(const struct broker *b, u16 queue, slice stored) {
    const struct queue_config *q = queue_rules_of(b, queue)->config;
    return q && q->proxy ? key_as_sent(b, queue, stored) : stored;
}

void put_effect_key_member(const struct broker *b, struct buf *body, const struct ref *ref, slice stored,
                           u32 generation) {
    char text[KEY_BYTES_MAX + 16];
    struct buf key = {.p = text, .cap = sizeof text};
    slice known_by = key_downstream(b, ref->queue, stored);
    buf_lit(body, ",\"effect_key\":");
    if (known_by.n && generation == 0) return json_put_string(body, known_by); /* nearly always */
    put_effect_key(&key, ref, known_by, generation);
    CHECK(key.p == text);
    json_put_string(body, buf_slice(&key));
}

static bool sees_all(const struct call *c, u16 queue) {
    struct queue_info q;
    core_queue_info(c->b->core, c->b->now, queue, &q);
    return caller_may(c->who, RIGHT_OBSERVE, q.name);
}

static bool is_known(struct broker *b, u16 queue, slice stored) {
    const struct seen *s = lookup_key(b, b->lookup, queue, core_hash(b->core, queue, stored), stored);
    return s && seen_in_force(b, s);
}

slice key_meant(struct call *c, u16 queue, slice key) {
    if (!queue_rules_of(c->b, queue)->scoped) return key;
    struct buf *own = &c->b->scratch->scoped;
    bool could_be = scope_key(own, c->who->name, key);
    if (sees_all(c, queue) && !(could_be && is_known(c->b, queue, buf_slice(own)))) return key;
    return buf_slice(own);
}

bool caller_sees_key(const struct call *c, u16 queue, slice stored) {
    if (!queue_rules_of(c->b, queue)->scoped) return true;
    return slice_eq(shown_key(c->b, queue, stored).credential, c->who->name) || sees_all(c, queue);
}

bool scope_said(slice config) {
    struct json j;
    slice name, value = {0};
    bool found = false;
    json_init(&j, config);
    if (json_object(&j))
        while (!found && json_member(&j, &name))
            found = slice_eq(name, SL("key_scope")) ? json_string(&j, &value) : !json_skip(&j);
    bool scoped = found && slice_eq(value, SL("credential"));
    json_free(&j);
    return scoped;
}

/* What was known would be new under another name, and be done again (P2); and what was one sender's would be everybody's. */
bool scope_may_change(const struct broker *b, u16 queue, const struct queue_config *to, struct errbuf *err) {
    struct queue_info q;
    bool scoped = queue_rules_of(b, queue)->scoped;
    core_queue_info(b->core, b->now, queue, &q);
    u64 keys = q.unsettled + q.settled_keys;
    if (scoped == (to->key_scope == KEY_SCOPE_CREDENTIAL) || !keys) return true;
    err_set(err, ST_INVALID,
            "queue %.*s: key_scope: it knows %llu keys as those of %s, and a repeat of them would be done again: wait "
            "until "
            "it knows none, delete it, or take a new queue",
            (int)q.name.n, q.name.p, (unsigned long long)keys, scoped ? "each sender (credential)" : "the queue");
    return false;
}
