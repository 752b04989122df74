#include "net/server_priv.h"

#include <time.h>

/* ---- time
 *
 * A turn hands over requests for turn_ms. Connections it has no time for are not read further and stand in line: the
 * next turn begins with them, so that each gets its turn however much the others pipeline. The more stand in line, the
 * less is read of each at a time. The same line takes those who have something to read while reading is paused. No
 * deadline runs for those who stand in it.
 *
 * There are two lines, and they take turns: one for those who had more to say than was read of them the last time, one
 * for the others. So an ack does not wait for a thousand clients that pipeline, only for other acks. Half of a turn's
 * time goes to the lines, half to whoever else comes; what that leaves, to the lines again. */

i64 http_clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (i64)t.tv_sec * 1000 + t.tv_nsec / 1000000 + 1;
}

static i64 turn_ms(struct http_server *s) {
    i64 now = http_clock_ms();
    if (s->turn_began_ms == 0) s->turn_began_ms = now;
    return now - s->turn_began_ms;
}

bool http_turn_spent(struct http_server *s) {
    return turn_ms(s) >= s->limits.turn_ms;
}

bool http_late_must(struct http_conn *c) {
    struct http_server *s = c->server;
    return s->paused || http_turn_spent(s) || (c->talkative && !http_link_alone(&s->late[true]));
}

size_t http_late_share(const struct http_server *s) {
    size_t share = HTTP_READ_BYTES / (s->late_count + 1);
    return share > HTTP_LATE_BYTES ? share : HTTP_LATE_BYTES;
}

void http_late_add(struct http_conn *c) {
    if (!http_link_alone(&c->late)) return;
    http_link_add(&c->server->late[c->talkative], &c->late);
    c->server->late_count++;
    c->late_ms = c->server->now_ms;
    http_link_remove(&c->idle);
    http_socket_reading(c, c->wants_reading);
}

void http_late_remove(struct http_conn *c) {
    i64 now = c->server->now_ms;
    if (http_link_alone(&c->late)) return;
    http_link_remove(&c->late);
    c->server->late_count--;
    c->since_ms += now - c->late_ms;
    if (c->since_ms > now) c->since_ms = now;
}

/* Ends: nobody comes back into a line before the turn is over. */
void http_late_serve(struct http_server *s, bool all_the_time) {
    i64 until_ms = all_the_time ? s->limits.turn_ms : (s->limits.turn_ms + 1) / 2;
    while (s->late_count && !s->paused && turn_ms(s) < until_ms) {
        s->late_next = !s->late_next;
        if (http_link_alone(&s->late[s->late_next])) s->late_next = !s->late_next;
        struct http_conn *c = HTTP_LINK_OF(s->late[s->late_next].next, struct http_conn, late);
        http_late_remove(c);
        http_conn_serve(c);
    }
}

/* ---- places
 *
 * Connections that do nothing must not keep others out. When all places are taken the longest idle connection gives way,
 * which its client has to expect of an idle connection at any time. One that has had part of a head for a while counts
 * as idle too; one whose socket has bytes for us does not. */

#define EVICT_TRIES 8u
#define EVICT_MS    1000 /* how long a head may take to come while others wait for a place */

bool http_evict(struct http_server *s) {
    struct http_link *next = s->idle.next;
    for (u32 i = 0; i < EVICT_TRIES && next != &s->idle; i++) {
        struct http_conn *c = HTTP_LINK_OF(next, struct http_conn, idle);
        next = next->next;
        if (http_socket_readable(c)) {
            http_late_add(c);
        } else if (c->in.len == 0 || s->now_ms - c->since_ms > EVICT_MS) {
            s->stats.evicted++;
            http_conn_drop(c);
            return true;
        }
    }
    return false;
}

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
