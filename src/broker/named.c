#include "broker/named.h"

#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/limits.h"
#include "broker/lookup.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/tenants.h"

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

bool not_of_a_proxy(struct call *c) {
    slice name = c->arg[0];
    return !slice_starts(name, SL(GATE_PREFIX)) ||
           fail(c, PROBLEM_gate_queue, "%.*s is for the proxy of that name alone: call it by /gate/", (int)name.n,
                name.p);
}

static void remember(struct broker *b, u16 queue) {
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    *b->named = (struct named_queue){.queue = queue, .name = q.name};
}

/* May a queue that is not there be made on use? */
static bool may_make(struct call *c, slice name) {
    const struct config *config = config_in_force(c->b);
    if (!queue_name_ok(c, name)) return false;
    return (config->auto_create && !slice_starts(name, SL(GATE_PREFIX))) ||
           fail(c, PROBLEM_no_such_queue,
                "queue '%.*s' is not declared in %.*s, nor made with `hapax queues set` (PUT)", (int)name.n, name.p,
                (int)config->file.n, config->file.p);
}

/* payload: how large the one is that it is made for; NULL: it is not made by a send. */
static bool make_queue(struct call *c, slice name, const size_t *payload, u16 *queue) {
    struct broker *b = c->b;
    if (!may_make(c, name)) return false;
    if (queues_made_on_use(b) >= QUEUES_ON_USE_MAX)
        return fail(c, PROBLEM_queue_limit,
                    "%u queues were made by their first message; make further ones with `hapax queues set` (PUT)",
                    QUEUES_ON_USE_MAX);
    if (!tenants_take_queue(b, name, &c->failure)) return false;
    if (payload && !tenants_take_first(b, name, *payload, &c->failure)) return false;
    struct rules rules = rules_default();
    room_prepare(b, 0);
    if (core_queue_ensure(b->core, b->now, name, &rules, queue)) {
        queue_rules_take(b, *queue, NULL);
        return true;
    }
    if (core_queues_left(b->core) == 0)
        return fail(c, PROBLEM_queue_limit, "%u queues are the most one broker has", QUEUES_MAX);
    return fail(c, PROBLEM_storage_full, "no room to create queue '%.*s'", (int)name.n, name.p);
}

bool queue_known(struct call *c, u16 *queue) {
    struct broker *b = c->b;
    *queue = b->named->queue;
    if (*queue && slice_eq(c->arg[0], b->named->name)) return true;
    if (!core_queue_find(b->core, c->arg[0], queue)) return false;
    remember(b, *queue);
    return true;
}

bool queue_of_call(struct call *c, bool create, u16 *queue) {
    slice name = c->arg[0];
    if (queue_known(c, queue)) return true;
    if (create) return make_queue(c, name, NULL, queue);
    return queue_name_ok(c, name) && fail(c, PROBLEM_no_such_queue, "queue '%.*s' does not exist", (int)name.n, name.p);
}

bool queue_to_send(struct call *c, size_t payload, u16 *queue) {
    if (!not_of_a_proxy(c)) return false;
    return queue_known(c, queue) || make_queue(c, c->arg[0], &payload, queue);
}

bool queue_to_receive(struct call *c, u16 *queue) {
    if (!not_of_a_proxy(c)) return false;
    if (queue_known(c, queue)) return true;
    *queue = 0;
    return may_make(c, c->arg[0]);
}

bool queue_to_watch(struct call *c, slice name) {
    u16 queue;
    return core_queue_find(c->b->core, name, &queue) || may_make(c, name);
}

struct seen *seen_of_key(struct call *c, slice key) {
    const char *why;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    if (!key_bytes_valid(key, &why)) return fail(c, PROBLEM_key_invalid, "%s", why), NULL;
    key = key_meant(c, queue, key);
    struct seen *s = lookup_key(c->b, c->b->lookup, queue, core_hash(c->b->core, queue, key), key);
    if (s && seen_in_force(c->b, s)) return s;
    return fail(c, PROBLEM_no_such_key, "never seen here, or past its window"), NULL;
}

struct seen *seen_of_id(struct call *c) {
    u64 seq, hash;
    u16 queue;
    if (!queue_of_call(c, false, &queue)) return NULL;
    struct seen *s = core_id_parse(c->arg[1], &seq, &hash) ? lookup_id(c->b, c->b->lookup, hash, seq) : NULL;
    if (s && s->at.queue == queue && seen_in_force(c->b, s) && caller_sees_key(c, queue, seen_key(s))) return s;
    return fail(c, PROBLEM_no_such_message, "queue '%.*s' has no message with that id, or its key is past its window",
                (int)c->arg[0].n, c->arg[0].p),
           NULL;
}
