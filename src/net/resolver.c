#include "net/resolver.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <uv.h>

#include "net/reach.h"

#define BUCKETS 1024u /* power of two */

/* A look-up on its way to a thread and back. The thread sees nothing else of the loop's. */
struct job {
    struct job *next;
    struct resolver_name *name; /* for the loop alone */
    struct resolved answer;
    char host[];
};

struct resolver_name {
    struct resolver *all;
    struct resolver_name *chain;         /* of its bucket */
    struct resolver_name *older, *newer; /* of those that are known */
    struct resolver_wait *waits;
    struct resolved answer;
    i64 until_ms; /* the answer counts that long; 0: it is being looked up */
    u64 hash;
    char host[];
};

/* What loop and threads share. It outlives the resolver while a thread hangs. */
struct pool {
    pthread_mutex_t lock;
    struct job *todo, **todo_end, *done;
    u32 threads;
    bool closed; /* nobody wants to hear any more */
    resolver_fn *lookup;
    uv_async_t *wake;
};

struct resolver {
    uv_async_t wake;
    struct pool *pool;
    struct siphash_key key;
    struct resolver_name *buckets[BUCKETS];
    struct resolver_name *oldest, *newest; /* of those that are known */
    u32 known;
    struct resolved address; /* the last that was no name */
};

/* ---- the threads */

static int look_up(const char *host, struct addrinfo **out) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    return getaddrinfo(host, NULL, &hints, out);
}

static const void *address_in(const struct sockaddr *a) {
    return a->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)a)->sin_addr
                                   : (const void *)&((const struct sockaddr_in6 *)a)->sin6_addr;
}

static void take_addresses(const struct addrinfo *list, struct resolved *out) {
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        if (!reach_is_public(a->ai_addr)) out->any_private = true;
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
        if (out->count == RESOLVED_MAX) continue;
        if (inet_ntop(a->ai_family, address_in(a->ai_addr), out->at[out->count], RESOLVED_TEXT)) out->count++;
    }
}

static void resolve(resolver_fn *lookup, struct job *j) {
    struct addrinfo *list = NULL;
    int rc = lookup(j->host, &list);
    if (rc == 0) {
        take_addresses(list, &j->answer);
        freeaddrinfo(list);
    }
    if (j->answer.count == 0) j->answer.why = rc == 0 ? "the name has no address" : gai_strerror(rc);
}

static struct job *next_job(struct pool *p) {
    struct job *j = p->todo;
    if (!j) return NULL;
    p->todo = j->next;
    if (!p->todo) p->todo_end = &p->todo;
    return j;
}

static void end_pool(struct pool *p) {
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* Under the lock: the loop cannot go away meanwhile. */
static void hand_back(struct pool *p, struct job *j) {
    if (p->closed) {
        mem_free(j);
        return;
    }
    j->next = p->done;
    p->done = j;
    CHECK(uv_async_send(p->wake) == 0);
}

static void *run_thread(void *arg) {
    struct pool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (struct job *j; (j = next_job(p));) {
        pthread_mutex_unlock(&p->lock);
        resolve(p->lookup, j);
        pthread_mutex_lock(&p->lock);
        hand_back(p, j);
    }
    bool last = --p->threads == 0 && p->closed;
    pthread_mutex_unlock(&p->lock);
    if (last) end_pool(p);
    return NULL;
}

static bool start_thread(struct pool *p) {
    pthread_t thread;
    pthread_attr_t detached;
    CHECK(pthread_attr_init(&detached) == 0);
    CHECK(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) == 0);
    bool started = pthread_create(&thread, &detached, run_thread, p) == 0;
    pthread_attr_destroy(&detached);
    return started;
}

/* A thread more if all of them may be busy. One that cannot be had is done without, as long as there is any. */
static bool submit(struct pool *p, struct job *j) {
    pthread_mutex_lock(&p->lock);
    bool served = p->threads > 0;
    if (p->threads < RESOLVER_THREADS) {
        p->threads++;
        if (start_thread(p))
            served = true;
        else
            p->threads--;
    }
    if (served) {
        j->next = NULL;
        *p->todo_end = j;
        p->todo_end = &j->next;
    }
    pthread_mutex_unlock(&p->lock);
    return served;
}

/* ---- names */

static void unlist(struct resolver *r, struct resolver_name *n) {
    *(n->older ? &n->older->newer : &r->oldest) = n->newer;
    *(n->newer ? &n->newer->older : &r->newest) = n->older;
    n->older = n->newer = NULL;
    r->known--;
}

static void list_newest(struct resolver *r, struct resolver_name *n) {
    n->older = r->newest;
    *(r->newest ? &r->newest->newer : &r->oldest) = n;
    r->newest = n;
    r->known++;
}

static void forget(struct resolver *r, struct resolver_name *n) {
    struct resolver_name **at = &r->buckets[n->hash & (BUCKETS - 1)];
    while (*at != n) at = &(*at)->chain;
    *at = n->chain;
    mem_free(n);
}

static struct resolver_name *find(const struct resolver *r, const char *host, u64 hash) {
    struct resolver_name *n = r->buckets[hash & (BUCKETS - 1)];
    while (n && (n->hash != hash || strcmp(n->host, host) != 0)) n = n->chain;
    return n;
}

static struct resolver_name *add(struct resolver *r, const char *host, u64 hash) {
    size_t bytes = strlen(host) + 1;
    struct resolver_name *n = mem_zalloc(sizeof *n + bytes);
    memcpy(n->host, host, bytes);
    n->all = r;
    n->hash = hash;
    n->chain = r->buckets[hash & (BUCKETS - 1)];
    r->buckets[hash & (BUCKETS - 1)] = n;
    return n;
}

static void know(struct resolver *r, struct resolver_name *n, const struct resolved *answer) {
    n->answer = *answer;
    n->until_ms = clock_mono_ms() + (answer->count ? RESOLVER_FOUND_MS : RESOLVER_MISSED_MS);
    list_newest(r, n);
    while (r->known > RESOLVER_NAMES) {
        struct resolver_name *old = r->oldest;
        unlist(r, old);
        forget(r, old);
    }
}

static bool begin(struct resolver *r, struct resolver_name *n) {
    size_t bytes = strlen(n->host) + 1;
    struct job *j = mem_zalloc(sizeof *j + bytes);
    memcpy(j->host, n->host, bytes);
    j->name = n;
    n->until_ms = 0;
    if (submit(r->pool, j)) return true;
    mem_free(j);
    return false;
}

/* An address is none to look up, in whatever way it is written. */
static bool is_address(const char *host, struct resolved *out) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list;
    *out = (struct resolved){0};
    if (getaddrinfo(host, NULL, &hints, &list) != 0) return false;
    take_addresses(list, out);
    freeaddrinfo(list);
    return out->count > 0;
}

/* ---- those who wait */

void resolver_leave(struct resolver_wait *w) {
    if (!w->of) return;
    *w->link = w->next;
    if (w->next) w->next->link = w->link;
    w->of = NULL;
}

static void join(struct resolver_name *n, struct resolver_wait *w) {
    w->of = n;
    w->next = n->waits;
    w->link = &n->waits;
    if (w->next) w->next->link = &w->next;
    n->waits = w;
}

const struct resolved *resolver_ask(struct resolver *r, const char *host, struct resolver_wait *w) {
    static const struct resolved no_thread = {.why = "no thread to look the name up"};
    u64 hash = siphash(&r->key, host, strlen(host));
    struct resolver_name *n = find(r, host, hash);
    if (n && n->until_ms > clock_mono_ms()) return &n->answer;
    if (!n && is_address(host, &r->address)) return &r->address;
    bool asked = n && n->until_ms == 0;
    if (n && !asked) unlist(r, n);
    if (!n) n = add(r, host, hash);
    if (!asked && !begin(r, n)) {
        forget(r, n);
        return &no_thread;
    }
    join(n, w);
    return NULL;
}

/* Whoever is told may ask again, leave, or end others that wait: the answer is a copy, and the list is read anew each time. */
static void tell(struct resolver *r, struct job *j) {
    struct resolver_name *n = j->name;
    struct resolver_wait *waits = n->waits;
    n->waits = NULL;
    if (waits) waits->link = &waits;
    know(r, n, &j->answer);
    while (waits) {
        struct resolver_wait *w = waits;
        resolver_leave(w);
        w->fn(w->ctx, &j->answer);
    }
}

static void on_wake(uv_async_t *a) {
    struct resolver *r = a->data;
    pthread_mutex_lock(&r->pool->lock);
    struct job *done = r->pool->done;
    r->pool->done = NULL;
    pthread_mutex_unlock(&r->pool->lock);
    while (done) {
        struct job *j = done;
        done = j->next;
        tell(r, j);
        mem_free(j);
    }
}

/* ---- the whole */

struct resolver *resolver_new(struct uv_loop_s *loop, resolver_fn *lookup) {
    struct resolver *r = mem_zalloc(sizeof *r);
    struct pool *p = r->pool = mem_zalloc(sizeof *p);
    random_bytes(&r->key, sizeof r->key);
    CHECK(uv_async_init(loop, &r->wake, on_wake) == 0);
    r->wake.data = r;
    CHECK(pthread_mutex_init(&p->lock, NULL) == 0);
    p->todo_end = &p->todo;
    p->lookup = lookup ? lookup : look_up;
    p->wake = &r->wake;
    return r;
}

static void free_jobs(struct job *list) {
    while (list) {
        struct job *j = list;
        list = j->next;
        mem_free(j);
    }
}

static void free_resolver(uv_handle_t *h) {
    mem_free(h->data);
}

void resolver_free(struct resolver *r) {
    struct pool *p = r->pool;
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    free_jobs(p->todo);
    free_jobs(p->done);
    p->todo = p->done = NULL;
    p->todo_end = &p->todo;
    bool last = p->threads == 0;
    pthread_mutex_unlock(&p->lock);
    if (last) end_pool(p);
    for (u32 i = 0; i < BUCKETS; i++)
        while (r->buckets[i]) forget(r, r->buckets[i]);
    uv_close((uv_handle_t *)&r->wake, free_resolver);
}
