/* Targets of pushes: servers that take work, and may crash, hang, answer late, lie about failing, or be gone; and the account of what
 * they were sent, which is all the model there is of pushing.
 *
 * Each queue below delivers to a target of its own. What a target has done outlives the broker. Everything that leaves the broker comes
 * through outside_fetch, and is held against the promise there, at every step (P5):
 *
 *   - after a request whose outcome nobody was told, nothing is sent again before a look-up was answered `absent`, or a person let it out;
 *   - where the target does not know keys, `absent` is not enough: nothing is sent again unless it was surely not done;
 *   - where it knows them for a time, not after that time;
 *   - where a person has to approve, nothing is sent before;
 *   - every attempt carries the same key and the same id;
 *   - what was sent is known ever after, whatever crashed: its lease was durable before (P1).
 *
 * Hence nothing takes effect twice: counted where it happens. And what the broker says of a key is what happened: done with the answer
 * of the effect, not done without one. In the end the targets are well, a person decides what is held, and every key is done once.
 *
 * A random number of its own: what the others do is the same with and without this. */
#include "sim.h"

#include "base/json.h"
#include "config/config.h"
#include "net/outbound.h"

#define ERRANDS_MOST 160u
#define FLIGHTS_MOST 256u
#define REMEMBERS_MS 600000
#define LATE_MS_MOST 40000
#define SLOW_MS      4000
#define ID_BYTES     32u
#define OPEN_MOST    24u /* errands that are not done, before more are sent */

enum kind { TARGET_KEYED, TARGET_FORGETS, TARGET_KEYLESS, TARGET_APPROVED, TARGET_KINDS };
static const char *const names[TARGET_KINDS] = {"keyed", "forgets", "keyless", "approved"};

/* What the broker was told of the last request for it. */
enum told { TOLD_NEVER_SENT, TOLD_NOTHING, TOLD_TAKEN, TOLD_FAILED, TOLD_REFUSED /* for good */ };

/* A key, and what became of it out there. */
struct errand {
    enum kind kind;
    u32 number, sends, effects;
    u32 begun; /* the first delivery of which it was not said that nothing was done by it; 0: none */
    enum told told;
    bool sent_for; /* to the broker; it may not have kept it */
    bool absent;   /* a look-up was answered so since the last request left */
    bool let_out;  /* a person wants it sent */
    bool vouched;  /* a person had it sent although it may have been done */
    bool decided;  /* a person said what came of it */
    bool done;     /* shown as settled */
    i64 begun_ms, begun_hidden_ms, effect_ms;
    char id[ID_BYTES];
};

/* A request out there. */
struct flight {
    u64 number, life;       /* as the broker named it; 0: nobody waits for the answer any more */
    struct errand *e;       /* NULL: free */
    u32 send_no;            /* the how-manieth delivery; 0: a look-up */
    i64 ends_ms, effect_ms; /* effect 0: none, or it was */
    enum outbound_end end;
    u32 status;
};

struct outside {
    struct rng rng;
    struct errand errands[ERRANDS_MOST];
    u32 count;
    struct flight flights[FLIGHTS_MOST];
    u32 trouble; /* in 10,000: what goes wrong */
    i64 down_until[TARGET_KINDS];
    bool well;
    bool ruled; /* the broker has the rules: on a full disk it may have to wait for them */
};

static u64 roll(struct outside *t, u64 sides) {
    return rng_below(&t->rng, sides);
}
static i64 some_ms(struct outside *t, i64 low, i64 high) {
    return low + (i64)roll(t, (u64)(high - low + 1));
}

static slice key_of(struct world *w, const struct errand *e) {
    return arena_printf(&w->scratch, "%s-%u", names[e->kind], e->number);
}
static slice effect_of(struct world *w, const struct errand *e) {
    return arena_printf(&w->scratch, "effect of %s-%u", names[e->kind], e->number);
}

/* ---- the rules */

static void put_queue(struct buf *b, enum kind kind) {
    buf_printf(b,
               "  push-%s:\n    window: forever\n    retry: {transient: {attempts: 5, backoff: 100ms, max: 2s}, "
               "unknown: {attempts: 4}, crashes: {attempts: 4}}\n",
               names[kind]);
    if (kind == TARGET_FORGETS)
        buf_printf(b, "    downstream: {idempotency: key, remembers: %us}\n", REMEMBERS_MS / 1000);
    else
        buf_printf(b, "    downstream: {idempotency: %s}\n", kind == TARGET_KEYLESS ? "none" : "key");
    buf_printf(b,
               "    deliver: {url: \"http://target.example/%s/do/${hapax.key}\", timeout: 4s, concurrency: 4, approve: "
               "%s, keep: "
               "{body: 512, headers: [location]}, circuit: {open: 1s}, allow_private: true}\n",
               names[kind], kind == TARGET_APPROVED ? "true" : "false");
    buf_printf(
        b,
        "    reconcile: {url: \"http://target.example/%s/look/${hapax.effect_key}\", found: [200], absent: [404], "
        "after: 2s, every: 1s, attempts: 5, timeout: 3s}\n",
        names[kind]);
}

static struct config *rules(void) {
    struct buf yaml = {0}, errors = {0};
    struct config *config;
    buf_lit(&yaml, "auto_create: true\nqueues:\n");
    for (u32 k = 0; k < TARGET_KINDS; k++) put_queue(&yaml, (enum kind)k);
    if (config_parse(buf_slice(&yaml), "hapax.yaml", &(struct config_use){0}, &config, &errors) != ST_OK)
        sim_fail("the rules of targets are refused: %.*s", (int)errors.len, errors.p);
    buf_free(&yaml);
    buf_free(&errors);
    return config;
}

/* As the daemon does it at each start. */
static void give_rules(struct world *w) {
    struct errbuf err;
    struct config *config = rules();
    hx_st st = broker_configure(w->broker, world_time(w), config, NULL, SL(""), &err);
    w->outside->ruled = st == ST_OK;
    if (st == ST_OK) return;
    config_free(config);
    if (st != ST_NO_SPACE) sim_fail("the rules of targets cannot be had: %s", err.text);
}

void outside_boot(struct world *w) {
    if (w->outside) give_rules(w);
}

void outside_open(struct world *w, u64 seed) {
    struct rng r;
    rng_seed(&r, seed * 40503 + 5);
    if (w->profile.fat_result || rng_below(&r, 2)) return;
    w->outside = arena_alloc(&w->arena, sizeof *w->outside);
    w->outside->rng = r;
    w->outside->trouble = rng_below(&r, 3) ? 3000 : 8000;
}

/* ---- what leaves */

static slice header_of(const struct outbound_request *r, slice name) {
    for (u32 i = 0; r->headers && r->headers[i]; i++) {
        slice line = slice_str(r->headers[i]), head, value;
        if (slice_cut(line, ':', &head, &value) && slice_eq_nocase(head, name))
            return slice_of(value.p + 1, value.n - 1);
    }
    return SL("");
}

static struct errand *errand_of(struct world *w, const struct outbound_request *r, bool *lookup) {
    slice url = slice_str(r->url);
    *lookup = strstr(r->url, "/look/") != NULL;
    for (u32 i = 0; i < w->outside->count; i++) {
        slice key = key_of(w, &w->outside->errands[i]);
        if (url.n > key.n && url.p[url.n - key.n - 1] == '/' && memcmp(url.p + url.n - key.n, key.p, key.n) == 0)
            return &w->outside->errands[i];
    }
    sim_fail("a request leaves that nobody asked for: %s", r->url);
}

/* Every attempt is known for the same one. */
static void check_names(struct world *w, struct errand *e, const struct outbound_request *r) {
    slice key = header_of(r, SL("idempotency-key")), id = header_of(r, SL("webhook-id"));
    if (!slice_eq(key, key_of(w, e))) sim_fail("%s is sent under the key %.*s", key_of(w, e).p, (int)key.n, key.p);
    if (id.n != ID_BYTES) sim_fail("an id of another length: %.*s", (int)id.n, id.p);
    if (e->sends && memcmp(e->id, id.p, ID_BYTES) != 0) sim_fail("%s is sent under another id", key_of(w, e).p);
    memcpy(e->id, id.p, ID_BYTES);
}

/* The work on it began longer ago than the target remembers, and the broker can know that. Since it was decided to send it the disk may
 * have been slow. */
static bool is_forgotten(const struct world *w, const struct errand *e) {
    i64 hidden_ms = w->hidden_ms - e->begun_hidden_ms;
    return e->kind == TARGET_FORGETS && w->mono_ms - e->begun_ms - hidden_ms > REMEMBERS_MS + SLOW_MS;
}

/* P5: may it be sent now? */
static void check_send(struct world *w, struct errand *e) {
    bool again = e->told == TOLD_FAILED, let_out = e->let_out;
    bool asked = e->absent && e->kind != TARGET_KEYLESS && !is_forgotten(w, e);
    if (let_out || e->told == TOLD_NEVER_SENT) {
        if (e->kind == TARGET_APPROVED && !let_out && !e->sends)
            sim_fail("%s is sent, and nobody approved", key_of(w, e).p);
        e->vouched |= let_out && e->sends;
        return;
    }
    e->vouched |= w->hidden_ms > e->begun_hidden_ms;
    if (again || asked) return;
    sim_fail("%s is sent again after %s%s", key_of(w, e).p,
             e->told == TOLD_NOTHING ? "a request whose outcome nobody knows" : "it was taken or refused",
             e->absent ? " (looked up, and absent, but that does not count here)" : ", and nobody looked it up");
}

static struct flight *free_flight(struct outside *t) {
    for (u32 i = 0; i < FLIGHTS_MOST; i++)
        if (!t->flights[i].e) return &t->flights[i];
    return NULL;
}

/* ---- fates */

static void answer(struct flight *f, enum outbound_end end, u32 status) {
    f->end = end;
    f->status = status;
}

static void fate_of_trouble(struct outside *t, struct flight *f, i64 now_ms) {
    enum kind kind = f->e->kind;
    i64 until_ms = f->ends_ms;
    switch (roll(t, 10)) {
    case 0:
        tally.push_not_sent++;
        return answer(f, OUTBOUND_NOT_SENT, 0);
    case 1: /* it crashes before it does anything */
        return answer(f, OUTBOUND_BROKEN, 0);
    case 2: /* and after */
    case 3:
        tally.push_cut++;
        f->effect_ms = some_ms(t, now_ms, until_ms);
        return answer(f, OUTBOUND_BROKEN, 0);
    case 4: /* hangs, and does it much later */
    case 5:
        tally.push_late++;
        f->effect_ms = until_ms + some_ms(t, 1, LATE_MS_MOST);
        return answer(f, OUTBOUND_BROKEN, 0);
    case 6: /* does it, and says that it failed: who forgets keys is not trusted with that */
        if (kind != TARGET_FORGETS) f->effect_ms = some_ms(t, now_ms, until_ms);
        return answer(f, OUTBOUND_ANSWERED, 500);
    case 7:
        return answer(f, OUTBOUND_ANSWERED, roll(t, 2) ? 503 : 429);
    case 8:
        return answer(f, OUTBOUND_ANSWERED, roll(t, 4) ? 409 : 422);
    default:
        t->down_until[kind] = until_ms + some_ms(t, 0, 20000);
        return answer(f, OUTBOUND_NOT_SENT, 0);
    }
}

static void fate_of_delivery(struct outside *t, struct flight *f, i64 now_ms) {
    if (!t->well && t->down_until[f->e->kind] > now_ms) return answer(f, OUTBOUND_NOT_SENT, 0);
    if (!t->well && roll(t, 10000) < t->trouble) return fate_of_trouble(t, f, now_ms);
    f->effect_ms = some_ms(t, now_ms, f->ends_ms);
    answer(f, OUTBOUND_ANSWERED, 201);
}

/* What is true when it arrives; the answer may come later than what it tells of changes. */
static void fate_of_lookup(struct outside *t, struct flight *f, i64 now_ms) {
    if (!t->well && (t->down_until[f->e->kind] > now_ms || roll(t, 10000) < t->trouble / 2)) {
        static const u32 none[] = {500, 503, 200};
        tally.push_lookups_in_vain++;
        u64 n = roll(t, 4);
        return n < 2 ? answer(f, OUTBOUND_ANSWERED, none[n])
                     : answer(f, n == 2 ? OUTBOUND_BROKEN : OUTBOUND_NOT_SENT, 0);
    }
    answer(f, OUTBOUND_ANSWERED, f->e->effects ? 200 : 404);
}

bool outside_fetch(void *ctx, u64 number, const struct outbound_request *r) {
    struct world *w = ctx;
    struct outside *t = w->outside;
    bool lookup;
    if (world_dead(w)) sim_fail("a request leaves after the journal failed");
    struct errand *e = errand_of(w, r, &lookup);
    struct flight *f = free_flight(t);
    if (!f || (!t->well && roll(t, 100) == 0)) return false; /* no room out there: it never left */
    trace("  %s %s leaves (%u sent, %u effects)", lookup ? "look-up of" : "delivery of", key_of(w, e).p, e->sends,
          e->effects);
    *f = (struct flight){.number = number, .life = w->lives, .e = e};
    f->ends_ms = w->mono_ms + some_ms(t, 0, t->well ? 50 : r->total_ms);
    if (lookup) {
        tally.push_lookups++;
        fate_of_lookup(t, f, w->mono_ms);
        return true;
    }
    check_names(w, e, r);
    check_send(w, e);
    tally.pushes++;
    tally.pushes_again += e->sends > 0;
    f->send_no = ++e->sends;
    if (!e->begun) {
        e->begun = e->sends;
        e->begun_ms = w->mono_ms;
        e->begun_hidden_ms = w->hidden_ms;
    }
    e->told = TOLD_NOTHING;
    e->absent = e->let_out = false;
    fate_of_delivery(t, f, w->mono_ms);
    return true;
}

/* ---- what happens out there */

/* Once, as far as the target can tell. */
static void take_effect(struct world *w, struct errand *e, i64 at_ms) {
    i64 age_ms = at_ms - e->effect_ms;
    bool knows = e->kind != TARGET_KEYLESS && e->effects && !(e->kind == TARGET_FORGETS && age_ms > REMEMBERS_MS);
    trace("  %s %s", key_of(w, e).p, knows ? "is known there" : "takes effect");
    if (knows) return;
    e->effects++;
    e->effect_ms = at_ms;
    tally.push_effects++;
    if (e->effects > 1 && !e->vouched) sim_fail("%s took effect twice", key_of(w, e).p);
}

/* What the broker may make of this answer. */
static enum told told_by(const struct flight *f) {
    if (f->end != OUTBOUND_ANSWERED) return f->end == OUTBOUND_NOT_SENT ? TOLD_FAILED : TOLD_NOTHING;
    if (f->status == 201) return TOLD_TAKEN;
    if (f->status == 422) return TOLD_REFUSED;
    return f->status == 500 && f->e->kind == TARGET_KEYLESS ? TOLD_NOTHING : TOLD_FAILED;
}

/* No byte of it left, or it was sent away at the door. */
static bool surely_undone(const struct flight *f) {
    if (f->end != OUTBOUND_ANSWERED) return f->end == OUTBOUND_NOT_SENT;
    return f->status == 503 || f->status == 429;
}

static void note_answer(struct flight *f) {
    struct errand *e = f->e;
    if (f->send_no == e->sends) {
        e->told = told_by(f);
        if (e->begun == f->send_no && surely_undone(f)) e->begun = 0;
    }
    if (f->send_no || f->end != OUTBOUND_ANSWERED) return;
    if (f->status == 404) e->absent = true;
    tally.push_found += f->status == 200;
    tally.push_absent += f->status == 404;
}

static void tell(struct world *w, struct flight *f) {
    struct outbound_answer a = {.end = f->end, .why = f->end == OUTBOUND_ANSWERED ? "" : "drawn", .took_us = 1000};
    bool good = f->end == OUTBOUND_ANSWERED && (f->status == 201 || f->status == 200);
    u64 number = f->number;
    if (f->end == OUTBOUND_ANSWERED) a.status = f->status;
    a.head = SL("Content-Type: text/plain\r\nLocation: /there\r\n");
    a.body = good ? effect_of(w, f->e) : SL("no");
    trace("  %s %s is answered: %u, status %u", f->send_no ? "delivery of" : "look-up of", key_of(w, f->e).p, f->end,
          f->status);
    if (!world_dead(w)) note_answer(f);
    f->life = 0;
    broker_fetched(w->broker, world_time(w), number, &a);
}

/* In the order of time, however much of it has passed at once. */
static struct flight *next_effect(struct outside *t, i64 ms) {
    struct flight *first = NULL;
    for (u32 i = 0; i < FLIGHTS_MOST; i++) {
        struct flight *f = &t->flights[i];
        if (f->e && f->effect_ms && f->effect_ms <= ms && (!first || f->effect_ms < first->effect_ms)) first = f;
    }
    return first;
}

static void work(struct world *w, i64 ms) {
    struct outside *t = w->outside;
    for (struct flight *f; (f = next_effect(t, ms));) {
        take_effect(w, f->e, f->effect_ms);
        f->effect_ms = 0;
    }
    for (u32 i = 0; i < FLIGHTS_MOST; i++) {
        struct flight *f = &t->flights[i];
        if (f->e && f->life == w->lives && f->ends_ms <= ms) tell(w, f);
        if (f->e && !f->effect_ms && f->life != w->lives) *f = (struct flight){0};
    }
    arena_reset(&w->scratch);
}

void outside_work(struct world *w) {
    if (!w->outside) return;
    if (!w->outside->ruled) give_rules(w);
    work(w, w->mono_ms);
}

/* A clean end waits for what is under way, but not for ever. */
void outside_drain(struct world *w) {
    if (w->outside && roll(w->outside, 3)) work(w, INT64_MAX);
}

/* ---- clients and operators */

static slice ask(struct world *w, enum http_method method, slice path, slice body, struct http_reply *out) {
    struct request r = {.http = {.method = method, .path = path, .body = body, .body_length = body.n}};
    r.http.fields = r.fields;
    net_ask_built(w, &r, out);
    trace("  targets %.*s: %.*s -> %u: %.*s", (int)path.n, path.p, (int)body.n, body.p, out->status,
          (int)(out->body.n < 700 ? out->body.n : 700), out->body.p);
    return out->body;
}

static void send(struct world *w, struct errand *e) {
    struct http_reply reply;
    slice path = arena_printf(&w->scratch, "/v1/queues/push-%s/batch", names[e->kind]);
    slice line = arena_printf(&w->scratch, "{\"key\":\"%s\",\"payload\":\"p%u\"}\n", key_of(w, e).p, e->number);
    e->sent_for = true;
    ask(w, HTTP_POST, path, line, &reply);
}

static void send_more(struct world *w) {
    struct outside *t = w->outside;
    u32 open = 0;
    for (u32 i = 0; i < t->count; i++) open += !t->errands[i].done;
    if (open >= OPEN_MOST || t->count == ERRANDS_MOST) return;
    struct errand *e = &t->errands[t->count++];
    *e = (struct errand){.kind = (enum kind)roll(t, TARGET_KINDS), .number = t->count};
    send(w, e);
}

/* What it says of the key is what happened. */
static void check_page(struct world *w, struct errand *e, const struct view *v) {
    slice key = key_of(w, e), body;
    if (view_is(v, "state", "done") && !e->decided) {
        const struct member *result = view_get(v, "result");
        struct view r = view_of(&w->scratch, result ? result->raw : SL("{}"));
        if (!view_bytes(&w->scratch, &r, "body", &body) || !slice_eq(body, effect_of(w, e)))
            sim_fail("%s is done with another answer than its own", key.p);
        if (e->effects == 0) sim_fail("%s is done, and nothing happened", key.p);
        struct view http = view_of(&w->scratch, view_text(v, "http"));
        if (!view_is(&http, "status", "201") && !view_is(&http, "status", "200"))
            sim_fail("%s is done without the status of its answer", key.p);
    }
    if (view_is(v, "state", "rejected") && !e->decided && e->told != TOLD_REFUSED)
        sim_fail("%s is rejected, and the target did not say so", key.p);
    bool settled = view_is(v, "state", "done") || view_is(v, "state", "rejected") || view_is(v, "state", "cancelled");
    if (e->done && !settled) e->done = false; /* not durable yet when a crash came */
    e->done |= settled;
}

static bool look(struct world *w, struct errand *e, struct view *v) {
    struct http_reply reply;
    slice path = arena_printf(&w->scratch, "/v1/queues/push-%s/keys/%s", names[e->kind], key_of(w, e).p);
    slice body = ask(w, HTTP_GET, path, SL(""), &reply);
    *v = view_of(&w->scratch, body);
    if (reply.status == 200) {
        check_page(w, e, v);
        return true;
    }
    if (reply.status == 404 && e->sends) sim_fail("%s was sent, and is not known", key_of(w, e).p);
    return false;
}

static void resolve(struct world *w, struct errand *e, bool again) {
    struct http_reply reply;
    slice path = arena_printf(&w->scratch, "/v1/queues/push-%s/keys/%s/resolve", names[e->kind], key_of(w, e).p);
    ask(w, HTTP_POST, path, again ? SL("{\"as\":\"retry\",\"by\":\"ann\"}") : SL("{\"as\":\"done\",\"by\":\"ann\"}"),
        &reply);
    if (reply.status != 200) return;
    tally.push_resolved++;
    if (again)
        e->let_out = true;
    else
        e->decided = true;
}

/* Who is asked knows whether it was done, mostly. */
static void decide(struct world *w, struct errand *e, const struct view *v) {
    bool held = view_is(v, "state", "held"), dead = view_is(v, "state", "dead");
    tally.push_held += held;
    if (held || dead) resolve(w, e, e->effects == 0 || roll(w->outside, 10) == 0);
}

/* Somebody takes the lease away while the request is out there. */
static void revoke(struct world *w, const struct errand *e, const struct view *v) {
    struct http_reply reply;
    slice id = view_text(v, "id");
    if (!view_is(v, "state", "leased")) return;
    slice path = arena_printf(&w->scratch, "/v1/queues/push-%s/messages/%.*s/revoke", names[e->kind], (int)id.n, id.p);
    ask(w, HTTP_POST, path, SL("{\"by\":\"ann\"}"), &reply);
    tally.push_revoked += reply.status == 200;
}

void outside_act(struct world *w) {
    struct outside *t = w->outside;
    struct view v;
    if (!t || roll(t, 3) == 0) return;
    if (roll(t, 2)) send_more(w);
    if (t->count == 0 || world_dead(w)) return;
    struct errand *e = &t->errands[roll(t, t->count)];
    if (!e->done || roll(t, 5) == 0) {
        if (roll(t, 4) == 0) send(w, e); /* a repeat: it must not matter */
        if (!world_dead(w) && look(w, e, &v) && !world_dead(w)) {
            u64 n = roll(t, 10);
            if (n < 3) decide(w, e, &v);
            if (n == 9) revoke(w, e, &v);
        }
    }
    arena_reset(&w->scratch);
}

/* ---- lives, and the end */

void outside_life_ends(struct world *w) {
    struct outside *t = w->outside;
    for (u32 i = 0; t && i < FLIGHTS_MOST; i++) {
        struct flight *f = &t->flights[i];
        if (f->e && f->life) tally.push_killed++;
        f->life = f->number = 0; /* nobody hears the answer; what was to be done there is done */
    }
}

/* What was sent is known. */
void outside_life_begins(struct world *w) {
    struct outside *t = w->outside;
    struct view v;
    for (u32 i = 0; t && i < t->count; i++) {
        if (t->errands[i].sends && !t->errands[i].done) look(w, &t->errands[i], &v);
        arena_reset(&w->scratch);
    }
}

/* All is well out there, and somebody decides what is held. How many are not done yet. */
u32 outside_calm(struct world *w) {
    struct outside *t = w->outside;
    u32 open = 0;
    if (!t) return 0;
    t->well = true;
    for (u32 i = 0; i < t->count && !world_dead(w); i++) {
        struct errand *e = &t->errands[i];
        struct view v;
        if (e->done && e->told != TOLD_NOTHING) continue;
        if (!look(w, e, &v))
            send(w, e);
        else if (!e->done)
            decide(w, e, &v);
        open += !e->done;
        arena_reset(&w->scratch);
    }
    for (u32 i = 0; i < FLIGHTS_MOST; i++) open += t->flights[i].e != NULL;
    return open;
}

void outside_end(struct world *w) {
    struct outside *t = w->outside;
    for (u32 i = 0; t && i < t->count; i++) {
        const struct errand *e = &t->errands[i];
        if (e->told == TOLD_TAKEN && e->effects == 0) sim_fail("%s was taken, and nothing happened", key_of(w, e).p);
    }
    arena_reset(&w->scratch);
}
