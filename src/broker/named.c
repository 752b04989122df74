#include "broker/named.h"

#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/lookup.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/room.h"

struct named_queue {
    u16 queue;
    slice name;
};

struct named_queue *named_queue_new(void) {
    return mem_zalloc(sizeof(struct named_queue));
}

void named_queue_free(struct named_queue *n) {
    mem_free(n);
}

u16 last_queue(const struct broker *b, slice *name) {
    *name = b->named->name;
    return b->named->queue;
}

void last_queue_forget(struct broker *b) {
    *b->named = (struct named_queue){0};
}

bool queue_name_ok(struct call *c, slice name) {
    struct errbuf err;
    return config_queue_name_ok(name, &err) || fail(c, PROBLEM_queue_invalid, "%s", err.text);
}

static void remember(struct broker *b, u16 queue) {
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    *b->named = (struct named_queue){.queue = queue, .name = q.name};
}

static bool make_queue(struct call *c, slice name, u16 *queue) {
    struct broker *b = c->b;
    const struct config *config = config_in_force(b);
    if (!config->auto_create)
        return fail(c, PROBLEM_no_such_queue, "queue '%.*s' is not declared in %.*s, nor made with PUT", (int)name.n,
                    name.p, (int)config->file.n, config->file.p);
    struct rules rules = rules_default();
    room_prepare(b, 0);
    if (core_queue_ensure(b->core, b->now, name, &rules, queue)) return true;
    if (core_queues_full(b->core))
        return fail(c, PROBLEM_queue_limit, "%u queues are the most one broker has", QUEUES_MAX);
    return fail(c, PROBLEM_storage_full, "no room to create queue '%.*s'", (int)name.n, name.p);
}

bool queue_of_call(struct call *c, bool create, u16 *queue) {
    slice name = c->arg[0];
    struct broker *b = c->b;
    *queue = b->named->queue;
    if (*queue && slice_eq(name, b->named->name)) return true;
    if (core_queue_find(b->core, name, queue)) {
        remember(b, *queue);
        return true;
    }
    if (!queue_name_ok(c, name)) return false;
    if (create) return make_queue(c, name, queue);
    return fail(c, PROBLEM_no_such_queue, "queue '%.*s' does not exist", (int)name.n, name.p);
}

struct seen *seen_of_key(struct call *c, slice key) {
    const char *why;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    if (!key_bytes_valid(key, &why)) return fail(c, PROBLEM_key_invalid, "%s", why), NULL;
    struct seen *s = lookup_key(c->b, c->b->lookup, queue, core_hash(c->b->core, queue, key), key);
    if (s && seen_in_force(c->b, s)) return s;
    return fail(c, PROBLEM_no_such_key, "never seen here, or past its window"), NULL;
}

struct seen *seen_of_id(struct call *c) {
    u64 seq, hash;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    struct seen *s = core_id_parse(c->arg[1], &seq, &hash) ? lookup_id(c->b, c->b->lookup, hash, seq) : NULL;
    if (s && s->at.queue == queue && seen_in_force(c->b, s)) return s;
    return fail(c, PROBLEM_no_such_message, "queue '%.*s' has no message with that id, or its key is past its window",
                (int)c->arg[0].n, c->arg[0].p),
           NULL;
}
