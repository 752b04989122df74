#include "net/server_priv.h"

#include <time.h>

#include "base/log.h"

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
 * Connections that do nothing must not keep others out, nor may those of one address. When all places are taken, somebody
 * gives way to a newcomer:
 *
 *   - the address with most connections, if it has more than a quarter of all places, and the newcomer is of another that has
 *     fewer: whatever that connection does, unless it is being worked on. A long poll is answered early;
 *   - else the longest idle of all, which its client has to expect of an idle connection at any time. One that has had part of a
 *     head, or of a handshake, for a while counts as idle too; one whose socket has bytes for us does not. Newcomers of an address with more than
 *     a quarter take only its own, or such as have been idle for long;
 *   - else the address with most, if the newcomer's has fewer. If that one has more than a quarter, also what is arriving there this
 *     moment: whoever begins all its requests anew within the second that a head may take would keep the others out.
 *
 * So a proxy may have all places, as long as nobody else wants one, and 10,000 connections from one place keep nobody out from
 * another.
 *
 * If nobody gives way, a few places are left in reserve. Whoever gets one of them is answered if what it asks is urgent, which
 * the handler says of an operator's call, and told 503 otherwise. Those who say nothing give way to the next. */

#define EVICT_TRIES 8u
#define CROWD_SHARE 4u
#define STALE_MS    10000
#define RESERVE_OF  40u /* one place of so many */
#define PACE_MS     INT64_C(10000)
#define TELL_MS     60000 /* between two lines of the log about one address */
#define RETRY_S_MAX 30u

static u32 reserve_places(const struct http_server *s) {
    return s->handler.urgent ? s->limits.connections_max / RESERVE_OF : 0;
}

static bool places_taken(const struct http_server *s) {
    return s->live - s->reserved > s->limits.connections_max - reserve_places(s);
}

/* How far a connection must have fallen back to give way. */
enum evicted { IDLE, SLOW, ARRIVING };

static bool evict_idle(struct http_conn *c, enum evicted least) {
    struct http_server *s = c->server;
    if (http_socket_readable(c)) {
        http_late_add(c);
        return false;
    }
    bool begun = c->in.len || c->handshaking;
    if (least != ARRIVING && begun && s->now_ms - c->since_ms <= HTTP_PATIENCE_MS) return false;
    s->stats.evicted++;
    http_conn_drop(c);
    return true;
}

/* crowd: the newcomer's address, if it has so many that it takes no other's, unless it is stale. */
static bool evict_longest_idle(struct http_server *s, const struct http_address *crowd) {
    struct http_link *next = s->idle.next;
    for (u32 i = 0; i < EVICT_TRIES && next != &s->idle; i++) {
        struct http_conn *c = HTTP_LINK_OF(next, struct http_conn, idle);
        next = next->next;
        if (crowd && c->address != crowd && s->now_ms - c->since_ms < STALE_MS) continue;
        if (evict_idle(c, IDLE)) return true;
    }
    return false;
}

/* Some of its connections are looked at, others the next time. */
static bool evict_of(struct http_address *a, const struct http_conn *newcomer, enum evicted least) {
    for (u32 i = 0; i < EVICT_TRIES && i < a->count; i++) {
        struct http_conn *c = HTTP_LINK_OF(a->conns.next, struct http_conn, mine);
        http_link_remove(&c->mine);
        http_link_add(&a->conns, &c->mine);
        if (c == newcomer || http_place_lent(c)) continue;
        i64 patience_ms = least == ARRIVING ? 0 : HTTP_PATIENCE_MS;
        if (http_conn_idle(c) ? evict_idle(c, least) : least != IDLE && http_conn_dismiss(c, patience_ms)) return true;
    }
    return false;
}

/* Whom an operator has to look for. */
static void tell_of(const struct http_server *s, struct http_address *a, const char *what) {
    char text[HTTP_ADDRESS_TEXT];
    if (a->told_ms && s->now_ms - a->told_ms < TELL_MS) return;
    a->told_ms = s->now_ms;
    http_address_text(a, text);
    log_event(LOG_WARN, "address_held_back", what, log_text("address", slice_str(text)),
              log_number("connections", a->count));
}

static bool make_place(struct http_conn *newcomer) {
    struct http_server *s = newcomer->server;
    struct http_address *most = http_address_most(s->addresses);
    bool crowd = most->count > s->limits.connections_max / CROWD_SHARE;
    bool modest = newcomer->address->count < most->count;
    if (crowd && modest && evict_of(most, newcomer, SLOW)) {
        tell_of(s, most, "all connections are taken, most by this address: its own give way to others");
        return true;
    }
    if (evict_longest_idle(s, crowd && !modest ? most : NULL)) return true;
    return modest && (evict_of(most, newcomer, SLOW) || (crowd && evict_of(most, newcomer, ARRIVING)));
}

static void end_loan(struct http_conn *c) {
    http_link_remove(&c->reserve);
    c->server->reserved--;
}

/* The first who has nothing urgent under way. */
static bool take_back(struct http_server *s) {
    struct http_link *next = s->reserve.next;
    for (u32 i = 0; i < EVICT_TRIES && next != &s->reserve; i++) {
        struct http_conn *c = HTTP_LINK_OF(next, struct http_conn, reserve);
        next = next->next;
        if (c->urgent && !http_conn_idle(c)) continue;
        http_conn_refuse(c);
        http_conn_flush(c);
        http_conn_drop(c);
        return true;
    }
    return false;
}

static bool lend_place(struct http_conn *c) {
    struct http_server *s = c->server;
    u32 reserve = reserve_places(s);
    if (reserve == 0 || (s->reserved >= reserve && !take_back(s))) return false;
    http_link_add(&s->reserve, &c->reserve);
    s->reserved++;
    return true;
}

bool http_place_find(struct http_conn *c, u16 *status, const char **detail) {
    struct http_server *s = c->server;
    u32 most = s->limits.per_address;
    if (most && c->address->count > most && !evict_of(c->address, c, IDLE)) {
        *status = 429;
        *detail = "this address has as many connections as one may";
        s->stats.per_address++;
        tell_of(s, c->address, "this address has as many connections as one may: more are refused");
        return false;
    }
    c->placed = !places_taken(s) || make_place(c) || lend_place(c);
    if (http_place_lent(c) || !c->placed)
        tell_of(s, http_address_most(s->addresses),
                "all connections are at work, most from this address: newcomers are refused");
    if (c->placed) return true;
    *status = 503;
    *detail = "the server has as many connections as it may";
    s->stats.no_place++;
    return false;
}

/* The next one comes up from the reserve. */
void http_place_free(struct http_conn *c) {
    struct http_server *s = c->server;
    if (http_place_lent(c)) {
        end_loan(c);
        return;
    }
    if (!c->placed) return;
    s->pace.freed++;
    if (s->reserved == 0 || s->live - s->reserved >= s->limits.connections_max - reserve_places(s)) return;
    struct http_conn *next = HTTP_LINK_OF(s->reserve.next, struct http_conn, reserve);
    end_loan(next);
    http_conn_note_idle(next);
}

/* As long as it takes, at the pace of the last seconds, until as many places have come free as were asked for; one a second
 * if none has. */
u32 http_retry_s(struct http_server *s) {
    struct http_pace *p = &s->pace;
    if (s->now_ms - p->since_ms >= PACE_MS) {
        bool just = s->now_ms - p->since_ms < 2 * PACE_MS;
        *p = (struct http_pace){
            .since_ms = s->now_ms, .freed_before = just ? p->freed : 0, .refused_before = just ? p->refused : 0};
    }
    p->refused++;
    u64 wanted = (u64)p->refused + p->refused_before, freed = (u64)p->freed + p->freed_before;
    u64 after = wanted * (PACE_MS / 1000) / (freed + PACE_MS / 1000);
    return after < 1 ? 1 : after > RETRY_S_MAX ? RETRY_S_MAX : (u32)after;
}

/* ---- memory
 *
 * What a single connection may hold is bounded: a request of the size its route allows, HTTP_UNSENT_PAUSE and one reply
 * more, sent or still being made. All together may still be too much, when many clients send slowly or read nothing. Then it is not the next one
 * to come who is turned away, who may have an ack of 100 bytes, but the one that holds most, for longest, of the address
 * that does: a reply that was made this moment must not pay for those that nobody has read for half a minute. Looked at when a turn's replies
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

/* Whose connections bear most together: many small ones from one address weigh as much as a large one. */
static struct http_address *heaviest_address(struct http_server *s) {
    struct http_address *most = NULL;
    for (struct http_link *l = s->conns.next; l != &s->conns; l = l->next)
        HTTP_LINK_OF(l, struct http_conn, all)->address->burden = 0;
    for (struct http_link *l = s->conns.next; l != &s->conns; l = l->next) {
        const struct http_conn *c = HTTP_LINK_OF(l, struct http_conn, all);
        c->address->burden += burden(c);
        if (!most || c->address->burden > most->burden) most = c->address;
    }
    return most;
}

static struct http_conn *heaviest(struct http_server *s) {
    struct http_address *a = heaviest_address(s);
    struct http_conn *most = NULL;
    u64 most_burden = 0;
    if (!a) return NULL;
    for (struct http_link *l = a->conns.next; l != &a->conns; l = l->next) {
        struct http_conn *c = HTTP_LINK_OF(l, struct http_conn, mine);
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
