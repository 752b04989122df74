#include "net/server_priv.h"

/* ---- memory
 *
 * What a single connection may hold is bounded: a request of the size its route allows, HTTP_UNSENT_PAUSE and one reply
 * more. All together may still be too much, when many clients send slowly or read nothing. Then it is not the next one
 * to come who is turned away, who may have an ack of 100 bytes, but the one that holds most, for longest: a reply that
 * was made this moment must not pay for those that nobody has read for half a minute. Looked at when a turn's replies
 * have been written, so that what is above the limit for a moment is no more than one turn brings. */

#define FRESH_MS 1000

static i64 held_for_ms(const struct http_conn *c) {
    return c->server->now_ms - (c->out ? c->progress_ms : c->since_ms);
}

/* A shared body is not given back before the last who waits to send it goes: each answers for its part. */
static u64 burden(const struct http_conn *c) {
    const struct http_body *body = c->out ? c->out->body : NULL;
    u64 bytes = c->counted + (body ? body->bytes.len / body->queued : 0);
    return bytes * (u64)(held_for_ms(c) + FRESH_MS);
}

static struct http_conn *heaviest(struct http_server *s) {
    struct http_conn *most = NULL;
    u64 most_burden = 0;
    for (struct http_link *l = s->conns.next; l != &s->conns; l = l->next) {
        struct http_conn *c = HTTP_LINK_OF(l, struct http_conn, all);
        u64 b = burden(c);
        if (b <= most_burden) continue;
        most = c;
        most_burden = b;
    }
    return most;
}

void http_relieve(struct http_server *s) {
    while (s->buffered > s->limits.buffered_max) {
        struct http_conn *c = heaviest(s);
        if (!c) return;
        http_conn_pay(c);
    }
}
