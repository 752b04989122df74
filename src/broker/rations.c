#include "broker/rations.h"

#include <stdlib.h>

#include "broker/access.h"
#include "broker/broker_priv.h"
#include "broker/queue_rules.h"
#include "broker/report.h"

#define TELL_MS   60000 /* between two lines of the log about one client */
#define STREAM_MS 30000 /* what waits without an end counts as if it ended then */

/* Kept by name over reloads; once its token is gone, until the last of its waits has ended. */
struct token_use {
    struct http_use use;
    bool gone;
    size_t name_bytes;
    char name[];
};

struct rations {
    struct token_use **tokens; /* [number - 1] */
    u32 count;
    struct token_use *asking; /* whose request is being decided; NULL: of no token */
    struct rations_refused refused;
};

struct rations *rations_new(void) {
    return mem_zalloc(sizeof(struct rations));
}

static void forget(struct token_use *t) {
    t->gone = true;
    if (t->use.waiting == 0) mem_free(t);
}

void rations_free(struct rations *r) {
    if (!r) return;
    for (u32 i = 0; i < r->count; i++) forget(r->tokens[i]);
    mem_free(r->tokens);
    mem_free(r);
}

struct rations_refused rations_refused(const struct broker *b) {
    return b->rations->refused;
}

/* ---- tokens */

static struct token_use *new_use(slice name) {
    struct token_use *t = mem_zalloc(sizeof *t + name.n);
    t->name_bytes = name.n;
    memcpy(t->name, name.p, name.n);
    return t;
}

/* By name among those there were, all of which are sorted. */
static int by_name(const void *a, const void *b) {
    const struct token_use *const *x = a, *const *y = b;
    size_t n = (*x)->name_bytes < (*y)->name_bytes ? (*x)->name_bytes : (*y)->name_bytes;
    int order = memcmp((*x)->name, (*y)->name, n);
    return order ? order : ((*x)->name_bytes > (*y)->name_bytes) - ((*x)->name_bytes < (*y)->name_bytes);
}

static struct token_use *take_over(const struct rations *r, struct token_use *fresh) {
    struct token_use **old = r->count ? bsearch(&fresh, r->tokens, r->count, sizeof *r->tokens, by_name) : NULL;
    if (!old) return fresh;
    mem_free(fresh);
    (*old)->gone = false;
    return *old;
}

void rations_configure(struct broker *b, const struct config *config) {
    struct rations *r = b->rations;
    struct token_use **tokens = mem_alloc((config->tokens.count + 1) * sizeof(struct token_use *));
    if (r->count) qsort(r->tokens, r->count, sizeof *r->tokens, by_name);
    for (u32 i = 0; i < r->count; i++) r->tokens[i]->gone = true;
    for (u32 i = 0; i < config->tokens.count; i++) tokens[i] = take_over(r, new_use(config->tokens.at[i].name));
    for (u32 i = 0; i < r->count; i++)
        if (r->tokens[i]->gone) forget(r->tokens[i]);
    mem_free(r->tokens);
    r->tokens = tokens;
    r->count = config->tokens.count;
    r->asking = NULL;
}

/* ---- asking */

static const struct client_limits *of_address(const struct call *c) {
    return &config_in_force(c->b)->limits.per_address;
}

static const struct client_limits *of_token(const struct call *c) {
    return &config_in_force(c->b)->limits.per_token;
}

/* How long until it may; 0: now. A second's worth may come at once. */
static i64 take(const struct call *c, struct http_use *use, u32 per_s, bool watching) {
    struct bucket_rule rule = {.per_s = per_s, .at_once = per_s};
    return bucket_take(watching ? &use->watching : &use->work, rule, 1, c->b->time.mono_ms);
}

static bool told_lately(const struct broker *b, struct http_use *use) {
    if (use->told_ms && b->time.mono_ms - use->told_ms < TELL_MS) return true;
    use->told_ms = b->time.mono_ms;
    return false;
}

static bool refuse_address(struct call *c, i64 retry_ms, const char *what, u32 limit) {
    struct http_use *use = c->req->from;
    char text[HTTP_ADDRESS_TEXT];
    c->b->rations->refused.by_address++;
    c->failure.retry_ms = retry_ms;
    http_use_text(use, text);
    if (!told_lately(c->b, use))
        report(c->b, LOG_WARN, "address_held_back", "an address has what one may have: more is refused",
               log_text("address", slice_str(text)), log_text("limit", slice_str(what)), log_number("most", limit));
    return fail(c, PROBLEM_rate_limited, "%s is at the most an address may have: limits.per_address.%s is %u", text,
                what, limit);
}

static bool refuse_token(struct call *c, i64 retry_ms, const char *what, u32 limit) {
    slice name = c->who->name;
    c->b->rations->refused.by_token++;
    c->failure.retry_ms = retry_ms;
    if (!told_lately(c->b, &c->b->rations->asking->use))
        report(c->b, LOG_WARN, "token_held_back", "a token has what one may have: more is refused",
               log_text("token", name), log_text("limit", slice_str(what)), log_number("most", limit));
    return fail(c, PROBLEM_rate_limited, "token %.*s is at the most one may have: limits.per_token.%s is %u",
                (int)name.n, name.p, what, limit);
}

bool ration_of_address(struct call *c, bool watching) {
    u32 per_s = of_address(c)->rate_per_s;
    c->b->rations->asking = NULL;
    if (per_s == 0 || !c->req->from) return true;
    i64 wait_ms = take(c, c->req->from, per_s, watching);
    return wait_ms == 0 || refuse_address(c, wait_ms, "rate", per_s);
}

bool ration_of_token(struct call *c, bool watching) {
    struct rations *r = c->b->rations;
    u32 number = c->who->number, per_s = of_token(c)->rate_per_s;
    r->asking = number && number <= r->count ? r->tokens[number - 1] : NULL;
    if (per_s == 0 || !r->asking) return true;
    i64 wait_ms = take(c, &r->asking->use, per_s, watching);
    return wait_ms == 0 || refuse_token(c, wait_ms, "rate", per_s);
}

/* ---- waiting */

static bool full(const struct http_use *use, u32 most) {
    return use && most && use->waiting >= most;
}

static struct http_use *asking(const struct call *c) {
    struct token_use *t = c->b->rations->asking;
    return t ? &t->use : NULL;
}

bool ration_has_room(const struct call *c) {
    return !full(c->req->from, of_address(c)->waiting) && !full(asking(c), of_token(c)->waiting);
}

/* The first of n that end at some time, on average so far away, is to be expected after 2/(n+1) of it. */
static i64 next_end_ms(const struct call *c, const struct http_use *use) {
    i64 n = use->waiting, left_ms = use->until_ms - n * c->b->time.mono_ms;
    return left_ms > 0 ? 2 * left_ms / n / (n + 1) : 0;
}

bool ration_to_wait(struct call *c) {
    const struct client_limits *address = of_address(c), *token = of_token(c);
    if (full(c->req->from, address->waiting))
        return refuse_address(c, next_end_ms(c, c->req->from), "waiting", address->waiting);
    if (full(asking(c), token->waiting)) return refuse_token(c, next_end_ms(c, asking(c)), "waiting", token->waiting);
    return true;
}

static void count(struct http_use *use, i64 until_ms) {
    use->waiting++;
    use->until_ms += until_ms;
}

static void uncount(struct http_use *use, i64 until_ms) {
    CHECK(use->waiting > 0);
    use->waiting--;
    use->until_ms -= until_ms;
}

void ration_waits(struct broker *b, struct ration_share *s, i64 until_ms) {
    if (!b->request) return; /* nobody's: the broker's own */
    *s = (struct ration_share){.address = b->request->from,
                               .token = b->rations->asking,
                               .until_ms = until_ms == INT64_MAX ? b->time.mono_ms + STREAM_MS : until_ms};
    if (s->address) count(s->address, s->until_ms);
    if (s->token) count(&s->token->use, s->until_ms);
}

void ration_waited(struct ration_share *s) {
    if (s->address) uncount(s->address, s->until_ms);
    if (s->token) {
        uncount(&s->token->use, s->until_ms);
        if (s->token->gone && s->token->use.waiting == 0) mem_free(s->token);
    }
    *s = (struct ration_share){0};
}
