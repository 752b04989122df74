#include "broker/traffic.h"

#include "broker/broker_priv.h"

#define WAITING_MAX 65536u /* replies whose time is taken; beyond, they are only counted */

struct traffic {
    struct asked now;
    u32 routes;
    u64 durable;
    struct waiting {
        u64 position;
        struct asked asked;
    } * waiting; /* a ring, by position */
    u32 first, count, cap;
    struct route_traffic at[];
};

struct traffic *traffic_new(u32 routes) {
    struct traffic *t = mem_zalloc(sizeof *t + routes * sizeof t->at[0]);
    t->routes = routes;
    return t;
}

void traffic_free(struct traffic *t) {
    mem_free(t->waiting);
    mem_free(t);
}

void traffic_asked(struct broker *b, u32 route) {
    CHECK(route < b->traffic->routes);
    b->traffic->now = (struct asked){.began_us = b->time.mono_us, .route = route};
}

struct asked traffic_now(const struct broker *b) {
    return b->traffic->now;
}

void traffic_resumed(struct broker *b, struct asked a) {
    b->traffic->now = a;
}

static void ended(struct broker *b, struct asked a) {
    u64 now = b->time.mono_us;
    hist_add(&b->traffic->at[a.route].took_us, hist_us, now > a.began_us ? now - a.began_us : 0);
}

static void grow(struct traffic *t) {
    u32 cap = t->cap ? t->cap * 2 : 256;
    struct waiting *ring = mem_alloc(cap * sizeof *ring);
    for (u32 i = 0; i < t->count; i++) ring[i] = t->waiting[(t->first + i) & (t->cap - 1)];
    mem_free(t->waiting);
    t->waiting = ring;
    t->first = 0;
    t->cap = cap;
}

void traffic_replied(struct broker *b, u16 code, u64 position) {
    struct traffic *t = b->traffic;
    struct route_traffic *r = &t->at[t->now.route];
    u32 i = 0;
    while (i < TRAFFIC_CODES - 1 && r->codes[i].code && r->codes[i].code != code) i++;
    r->codes[i].code = code;
    r->codes[i].count++;
    if (position <= t->durable) return ended(b, t->now);
    if (t->count == WAITING_MAX) return;
    if (t->count == t->cap) grow(t);
    t->waiting[(t->first + t->count++) & (t->cap - 1)] = (struct waiting){.position = position, .asked = t->now};
}

void traffic_durable(struct broker *b, u64 position) {
    struct traffic *t = b->traffic;
    t->durable = position;
    while (t->count && t->waiting[t->first].position <= position) {
        ended(b, t->waiting[t->first].asked);
        t->first = (t->first + 1) & (t->cap - 1);
        t->count--;
    }
}

const struct route_traffic *traffic_of(const struct broker *b, u32 route) {
    return &b->traffic->at[route];
}
