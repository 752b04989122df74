/* Queues that come and go, so that their numbers are given again: made, used, deleted, by somebody the model does not know.
 *
 * The same few keys are sent to each, and every payload and result says in which life of which queue it was said. No answer may
 * come from a life that has ended: not a duplicate's, not an id's, not a token's, not after a restart. What a crash may have
 * undone is not known to have ended. The requests are answered at once, past the net; that they leave in time is the others'
 * matter. */
#include "sim.h"

#include "base/json.h"

#define KEYS 3u

static slice ask(struct world *w, enum http_method method, slice path, slice body, struct http_reply *out) {
    struct request r = {.http = {.method = method, .path = path, .body = body, .body_length = body.n}};
    slice_cut(path, '?', &r.http.path, &r.http.query);
    r.http.fields = r.fields;
    net_ask_built(w, &r, out);
    trace("  passing %.*s: %.*s -> %u: %.*s", (int)path.n, path.p, (int)body.n, body.p, out->status,
          (int)(out->body.n < 300 ? out->body.n : 300), out->body.p);
    return out->body;
}

static slice name_of(struct world *w, u32 queue) {
    return arena_printf(&w->scratch, "/v1/queues/passing-%u", queue);
}

/* "life 12 of 1", wherever it occurs. */
static void check_lives(const struct world *w, u32 queue, slice body) {
    slice all = body, before, word;
    while (slice_cut(body, ' ', &before, &body)) {
        u64 life, of;
        if (before.n < 4 || memcmp(before.p + before.n - 4, "life", 4) != 0) continue;
        if (!slice_cut(body, ' ', &word, &body) || !slice_u64(word, &life)) continue;
        if (body.n < 4 || !slice_u64(slice_of(body.p + 3, 1), &of)) continue;
        if (of != queue || life <= w->passing[queue].ended)
            sim_fail("life %llu of %llu does not answer any more for passing-%u: %.*s", (unsigned long long)life,
                     (unsigned long long)of, queue, (int)all.n, all.p);
    }
}

static void send_keys(struct world *w, u32 queue, bool just_made) {
    struct passing *p = &w->passing[queue];
    for (u32 key = 0; key < KEYS && !world_dead(w); key++) {
        struct http_reply reply;
        struct buf line = {0};
        buf_printf(&line, "{\"key\":\"key-%u\",\"payload\":\"life %u of %u\"}\n", key + 1, p->life, queue);
        slice path = arena_printf(&w->scratch, "%s/batch", name_of(w, queue).p);
        slice body = arena_copy(&w->scratch, buf_slice(&line));
        buf_free(&line);
        body = ask(w, HTTP_POST, path, body, &reply);
        check_lives(w, queue, body);
        struct view v = view_of(&w->scratch, body);
        if (reply.status != 200 || !view_text(&v, "outcome").n) continue; /* no room, or it was made again meanwhile */
        if (just_made && !view_is(&v, "outcome", "accepted"))
            sim_fail("a queue that was just made knows a key: %.*s", (int)body.n, body.p);
    }
}

static void note_former(struct passing *p, slice id, slice token) {
    struct former *f = &p->used[p->used_count++ % FORMERS_KEPT];
    if (id.n != FORMER_ID || token.n != FORMER_TOKEN) sim_fail("an id or a token of another length");
    memcpy(f->id, id.p, id.n);
    memcpy(f->token, token.p, token.n);
}

static void ack(struct world *w, u32 queue, slice token) {
    struct http_reply reply;
    slice body = arena_printf(&w->scratch, "{\"token\":\"%.*s\",\"result\":\"life %u of %u\"}", (int)token.n, token.p,
                              w->passing[queue].life, queue);
    check_lives(w, queue, ask(w, HTTP_POST, SL("/v1/ack"), body, &reply));
}

static void take(struct world *w, u32 queue) {
    struct passing *p = &w->passing[queue];
    struct http_reply reply;
    slice body = ask(w, HTTP_POST, arena_printf(&w->scratch, "%s/receive?max=5", name_of(w, queue).p), SL(""), &reply);
    check_lives(w, queue, body);
    struct view v = view_of(&w->scratch, body);
    struct view items = view_of(&w->scratch, view_text(&v, "messages"));
    for (u32 i = 0; i < items.count && !world_dead(w); i++) {
        struct view item = view_of(&w->scratch, items.at[i].raw);
        note_former(p, view_text(&item, "id"), view_text(&item, "token"));
        ack(w, queue, view_text(&item, "token"));
    }
}

static void make(struct world *w, u32 queue) {
    static const char *const rules[] = {"{}", "{\"window\":\"forever\"}", "{\"window\":\"10s\"}"};
    struct passing *p = &w->passing[queue];
    struct http_reply reply;
    ask(w, HTTP_PUT, name_of(w, queue), slice_str(rules[rng_below(&w->passing_rng, 3)]), &reply);
    if (reply.status != 201) return;
    p->life = ++w->passing_lives;
    p->used_count = 0;
    send_keys(w, queue, true);
}

static void end(struct world *w, u32 queue) {
    struct passing *p = &w->passing[queue];
    struct http_reply reply;
    ask(w, HTTP_DELETE, name_of(w, queue), SL(""), &reply);
    if (reply.status != 204) return;
    tally.queues_deleted++;
    if (p->deleted_at <= w->released) p->ended_durably = p->ended;
    p->deleted_at = reply.after.position;
    memcpy(p->former, p->used, sizeof p->former);
    p->former_count = p->used_count < FORMERS_KEPT ? p->used_count : FORMERS_KEPT;
    p->ended = p->life; /* until a crash says otherwise */
    p->life = 0;
}

/* What the former one's clients still hold means nothing to any queue. */
static void ask_for_former(struct world *w, u32 queue) {
    struct passing *p = &w->passing[queue];
    struct http_reply reply;
    if (p->former_count == 0) return;
    const struct former *f = &p->former[rng_below(&w->passing_rng, p->former_count)];
    for (u32 q = 0; q < PASSING && !world_dead(w); q++) {
        ask(w, HTTP_GET, arena_printf(&w->scratch, "%s/messages/%.32s", name_of(w, q).p, f->id), SL(""), &reply);
        if (reply.status == 200) sim_fail("the id of a message of a deleted queue is known");
    }
    if (world_dead(w)) return;
    ask(w, HTTP_POST, SL("/v1/ack"), arena_printf(&w->scratch, "{\"token\":\"%.48s\"}", f->token), &reply);
    if (reply.status == 200) sim_fail("a token of a deleted queue settles");
}

void passing_act(struct world *w) {
    u32 queue = (u32)rng_below(&w->passing_rng, PASSING);
    struct passing *p = &w->passing[queue];
    if (rng_below(&w->passing_rng, 4) != 0) return;
    switch (p->life ? rng_below(&w->passing_rng, 5) : 5) {
    case 0:
        send_keys(w, queue, false);
        break;
    case 1:
    case 2:
        take(w, queue);
        break;
    case 3:
        ask_for_former(w, queue);
        break;
    case 4:
        take(w, queue);
        if (!world_dead(w)) end(w, queue);
        break;
    default:
        make(w, queue);
    }
    arena_reset(&w->scratch);
}

/* A deletion that was not durable may not have happened: then all that is known is what ended before. A queue that is there is
 * one of the later lives, and goes on as the latest. */
void passing_life_ends(struct world *w) {
    for (u32 q = 0; q < PASSING; q++) {
        struct passing *p = &w->passing[q];
        if (p->deleted_at <= w->released)
            p->ended_durably = p->ended;
        else
            p->former_count = 0;
        p->ended = p->ended_durably;
        p->deleted_at = 0;
    }
}

void passing_life_begins(struct world *w) {
    for (u32 q = 0; q < PASSING; q++) {
        struct http_reply reply;
        ask(w, HTTP_GET, name_of(w, q), SL(""), &reply);
        w->passing[q].life = reply.status == 200 ? ++w->passing_lives : 0;
        w->passing[q].used_count = 0;
        arena_reset(&w->scratch);
    }
}
