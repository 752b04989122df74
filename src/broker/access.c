#include "broker/access.h"

#include <stdio.h>

#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/feeds.h"
#include "broker/jobs.h"
#include "broker/report.h"
#include "broker/waits.h"
#include "net/digest.h"

#define TEXT_WORDS    8u                         /* of a token's text, that it is known again by */
#define TEXT_BYTES    (TEXT_WORDS * sizeof(u64)) /* a longer one is hashed every time */
#define TEXT_MAX      512u                       /* a longer one is no token */
#define TAG_WORDS     4u                         /* two sums of 128 bits */
#define KNOWN_BITS    10u
#define KNOWN_SLOTS   (1u << KNOWN_BITS) /* tokens known again */
#define BUCKET_PLACES 4u
#define BUCKETS_EACH  4u /* for each hash */

struct caller_memo { /* the last queue asked about: requests come in runs of the same one */
    char queue[QUEUE_NAME_MAX];
    size_t bytes;
    u8 bits;
};

struct known {
    u64 tag[TAG_WORDS];
    const struct caller *who;
};

/* The callers of a config. */
struct roll {
    struct caller *at; /* [0] stands for the empty places of buckets; a caller for each hash behind it */
    u32 count;
    u16 (*buckets)[BUCKET_PLACES]; /* places in `at` */
    u32 mask;
    struct siphash_key key;
    i64 expires_ms; /* the next of them to; INT64_MAX: none */
};

struct access {
    u64 key[TEXT_WORDS + 2]; /* of the texts' hashes; the second sum uses it two words on */
    u64 spread[2];           /* odd: of the tags over the slots */
    struct known known[KNOWN_SLOTS];
    struct roll roll;
    struct caller anonymous, wrong, expired;
    const struct token_config *own; /* or NULL */
    bool open;
    u64 refused[REFUSED_COUNT];
};

static const u8 no_hash[DIGEST_BYTES];

struct access *access_new(const struct token_config *own) {
    struct access *a = mem_zalloc(sizeof *a);
    a->own = own;
    random_bytes(a->key, sizeof a->key);
    random_bytes(a->spread, sizeof a->spread);
    a->spread[0] |= 1;
    a->spread[1] |= 1;
    a->anonymous = (struct caller){.name = SL("anonymous"), .bare = RIGHTS_ALL, .anywhere = RIGHTS_ALL};
    a->wrong = a->expired = (struct caller){.name = SL("nobody")};
    a->roll.expires_ms = INT64_MAX;
    a->open = true;
    return a;
}

static void roll_free(struct roll *r) {
    for (u32 i = 0; i < r->count; i++) mem_free(r->at[i].memo);
    mem_free(r->at);
    mem_free(r->buckets);
}

void access_free(struct access *a) {
    if (!a) return;
    roll_free(&a->roll);
    mem_free(a->anonymous.memo);
    explicit_bzero(a, sizeof *a);
    mem_free(a);
}

/* ---- rights */

static void take_grants(struct caller *who, const struct grants *grants) {
    who->patterns = grants;
    who->memo = mem_zalloc(sizeof *who->memo);
    for (u32 i = 0; i < grants->count; i++) {
        u8 bits = right_implies(grants->at[i].right);
        who->anywhere |= bits;
        if (grants->at[i].everywhere) who->bare |= bits;
    }
}

static u8 patterns_on(const struct caller *who, slice queue) {
    u8 bits = who->bare;
    for (u32 i = 0; i < who->patterns->count; i++) {
        const struct grant *g = &who->patterns->at[i];
        if (!g->everywhere && grant_fits(g->queue, queue)) bits |= right_implies(g->right);
    }
    return bits;
}

static u8 rights_on(const struct caller *who, slice queue) {
    struct caller_memo *m = who->memo;
    if (who->prefix.n && !slice_starts(queue, who->prefix)) return 0;
    if (who->bare == who->anywhere) return who->bare; /* patterns add nothing */
    if (queue.n > QUEUE_NAME_MAX) return who->bare;   /* no queue's name */
    if (slice_eq(queue, slice_of(m->queue, m->bytes))) return m->bits;
    memcpy(m->queue, queue.p, queue.n);
    m->bytes = queue.n;
    m->bits = patterns_on(who, queue);
    return m->bits;
}

bool caller_may(const struct caller *who, enum right r, slice queue) {
    return rights_on(who, queue) & right_bit(r);
}

bool caller_sees(const struct caller *who, slice queue) {
    return rights_on(who, queue) != 0;
}

bool caller_may_everywhere(const struct caller *who, enum right r) {
    return who->prefix.n == 0 && who->bare & right_bit(r);
}

static bool shows(const struct broker *b, slice queue, u8 rights) {
    return !b->caller || (rights_on(b->caller, queue) & rights) != 0;
}

bool shows_payload(const struct broker *b, slice queue) {
    return shows(b, queue, right_bit(RIGHT_RECEIVE) | right_bit(RIGHT_OPERATE));
}

bool shows_result(const struct broker *b, slice queue) {
    return shows(b, queue, right_bit(RIGHT_RESULT) | right_bit(RIGHT_OPERATE));
}

static bool fail_unknown(struct call *c) {
    const struct access *a = c->b->access;
    if (c->who == &a->expired) return fail(c, PROBLEM_unauthorized, "this token has expired");
    if (c->who == &a->wrong) return fail(c, PROBLEM_unauthorized, "this token is not known here");
    return fail(c, PROBLEM_unauthorized, "this needs a token: Authorization: Bearer hx_...");
}

/* Rights it lacks. */
static bool fail_without(struct call *c, enum right r, slice where) {
    if (c->who->number == 0) return fail_unknown(c);
    return fail(c, PROBLEM_forbidden, "token %.*s lacks the right %s%.*s", (int)c->who->name.n, c->who->name.p,
                right_text(r), (int)where.n, where.p);
}

bool may(struct call *c, enum right r, slice queue) {
    u8 bits = rights_on(c->who, queue);
    if (bits & right_bit(r)) return true;
    if (c->who->number == 0) return fail_unknown(c);
    queue.n = queue.n < QUEUE_NAME_MAX ? queue.n : QUEUE_NAME_MAX;
    if (bits == 0) return fail(c, PROBLEM_no_such_queue, "queue '%.*s' does not exist", (int)queue.n, queue.p);
    struct buf where = {0};
    buf_printf(&where, ":%.*s", (int)queue.n, queue.p);
    fail_without(c, r, buf_slice(&where));
    buf_free(&where);
    return false;
}

bool may_somewhere(struct call *c, enum right r) {
    return (c->who->anywhere & right_bit(r)) != 0 || fail_without(c, r, SL(", on any queue"));
}

bool may_everywhere(struct call *c, enum right r) {
    return caller_may_everywhere(c->who, r) || fail_without(c, r, SL(" on all of the broker"));
}

/* ---- the roll */

static u32 bucket_of(const struct roll *r, const u8 hash[DIGEST_BYTES]) {
    return (u32)siphash(&r->key, hash, DIGEST_BYTES) & r->mask;
}

/* false: a bucket has too few places under this key. */
static bool place_all(struct roll *r) {
    memset(r->buckets, 0, (r->mask + 1) * sizeof *r->buckets);
    for (u32 i = 1; i < r->count; i++) {
        u16 *places = r->buckets[bucket_of(r, r->at[i].hash)];
        u32 p = 0;
        while (p < BUCKET_PLACES && places[p]) p++;
        if (p == BUCKET_PLACES) return false;
        places[p] = (u16)i;
    }
    return true;
}

/* With four buckets for each hash, of four places each, one key in thousands fails. */
static void build_buckets(struct roll *r) {
    u32 buckets = BUCKETS_EACH;
    while (buckets < BUCKETS_EACH * r->count) buckets *= 2;
    r->mask = buckets - 1;
    r->buckets = mem_zalloc(buckets * sizeof *r->buckets);
    do random_bytes(&r->key, sizeof r->key);
    while (!place_all(r));
}

static void take_token(struct roll *r, const struct config *config, const struct token_config *t, u32 number) {
    const struct tenant_config *tenant = t->tenant.n ? config_tenant(config, t->tenant) : NULL;
    for (u32 h = 0; h < t->sha256.count; h++) {
        struct caller *who = &r->at[r->count++];
        *who = (struct caller){.name = t->name,
                               .tenant = t->tenant,
                               .prefix = tenant ? tenant->prefix : SL(""),
                               .number = number,
                               .hash = t->sha256.at[h].bytes,
                               .expires_ms = t->expires_ms};
        take_grants(who, &t->allow);
    }
}

static void roll_new(struct roll *r, const struct config *config, const struct token_config *own) {
    u32 hashes = own ? own->sha256.count : 0;
    for (u32 i = 0; i < config->tokens.count; i++) hashes += config->tokens.at[i].sha256.count;
    *r = (struct roll){.at = mem_zalloc((hashes + 1) * sizeof *r->at), .count = 1, .expires_ms = INT64_MIN};
    r->at[0] = (struct caller){.name = SL("nobody"), .hash = no_hash};
    for (u32 i = 0; i < config->tokens.count; i++) take_token(r, config, &config->tokens.at[i], i + 1);
    if (own) take_token(r, config, own, CALLER_OWN);
    build_buckets(r);
}

static u64 hash_differs(const u8 *a, const u8 *b) {
    u64 differs = 0;
    for (u32 i = 0; i < DIGEST_BYTES; i += 8) differs |= get_u64(a + i) ^ get_u64(b + i);
    return differs;
}

/* Every place of the bucket is compared, whatever is found. */
static const struct caller *by_hash(const struct access *a, const u8 hash[DIGEST_BYTES]) {
    const struct roll *r = &a->roll;
    const u16 *places = r->buckets[bucket_of(r, hash)];
    u32 found = 0;
    for (u32 p = 0; p < BUCKET_PLACES; p++) found |= hash_differs(hash, r->at[places[p]].hash) == 0 ? places[p] : 0;
    return found ? &r->at[found] : &a->wrong;
}

/* ---- who */

/* NH, twice: the words of the text are fixed in number, and no text has a zero byte in it, so no two are the same words. */
static void tag_of(const struct access *a, slice text, u64 tag[TAG_WORDS]) {
    u64 words[TEXT_WORDS] = {0};
    memcpy(words, text.p, text.n);
    for (size_t s = 0; s < 2; s++) {
        const u64 *key = a->key + 2 * s;
        unsigned __int128 sum = 0;
        for (u32 i = 0; i < TEXT_WORDS; i += 2)
            sum += (unsigned __int128)(words[i] + key[i]) * (words[i + 1] + key[i + 1]);
        tag[2 * s] = (u64)sum;
        tag[2 * s + 1] = (u64)(sum >> 64);
    }
    explicit_bzero(words, sizeof words);
}

static const struct caller *hashed(const struct access *a, slice text) {
    u8 hash[DIGEST_BYTES];
    digest_sha256(text, hash);
    return by_hash(a, hash);
}

/* Texts that begin alike have tags with the same low bits, and must not share a slot for it: one that is in the cache because
 * the right token was there would tell them. */
static struct known *slot_of(struct access *a, const u64 tag[TAG_WORDS]) {
    return &a->known[(tag[0] * a->spread[0] + tag[1] * a->spread[1]) >> (64 - KNOWN_BITS)];
}

static const struct caller *by_text(struct access *a, slice text) {
    u64 tag[TAG_WORDS], differs = 0;
    if (text.n == 0 || text.n > TEXT_MAX || a->roll.count < 2) return &a->wrong;
    if (text.n > TEXT_BYTES) return hashed(a, text);
    tag_of(a, text, tag);
    struct known *slot = slot_of(a, tag);
    for (u32 i = 0; i < TAG_WORDS; i++) differs |= tag[i] ^ slot->tag[i];
    if (differs == 0 && slot->who) return slot->who;
    const struct caller *who = hashed(a, text);
    if (who->number) {
        memcpy(slot->tag, tag, sizeof tag);
        slot->who = who;
    }
    return who;
}

/* "Bearer ", in any case, seven of eight bytes at once. No other letter or sign becomes one of these by a bit that is set. */
static slice bearer(slice authorization) {
    static const char scheme[9] = "bearer \0";
    const u64 letters = UINT64_C(0x0000202020202020), seven = UINT64_C(0x00FFFFFFFFFFFFFF);
    if (authorization.n < 8 || ((get_u64(authorization.p) | letters) & seven) != get_u64(scheme)) return SL("");
    slice text = slice_of(authorization.p + 7, authorization.n - 7);
    return text.p[0] == ' ' || text.p[0] == '\t' ? slice_trim(text)
                                                 : text; /* blanks at its end are no part of a field */
}

static const struct caller *unless_expired(const struct broker *b, const struct caller *who) {
    return who->expires_ms && b->now.wall_ms >= who->expires_ms ? &b->access->expired : who;
}

const struct caller *access_caller(struct broker *b, slice authorization) {
    struct access *a = b->access;
    if (a->open || authorization.n == 0) return &a->anonymous;
    return unless_expired(b, by_text(a, bearer(authorization)));
}

const struct caller *access_by_token(struct broker *b, slice token) {
    struct access *a = b->access;
    return a->open || token.n == 0 ? &a->anonymous : unless_expired(b, by_text(a, token));
}

bool access_open(const struct broker *b) {
    return b->access->open;
}

bool access_anonymous(const struct broker *b) {
    return b->access->anonymous.anywhere != 0;
}

/* ---- callers change */

const struct caller *access_again(struct broker *b, const struct caller *who) {
    return who->hash ? unless_expired(b, by_hash(b->access, who->hash)) : who;
}

static void review(struct broker *b) {
    jobs_review(b);
    feeds_review(b);
    waits_review(b);
}

void access_configure(struct broker *b, const struct config *config) {
    struct access *a = b->access;
    struct roll before = a->roll;
    memset(a->known, 0, sizeof a->known);
    mem_free(a->anonymous.memo);
    a->open = config->tokens.count == 0 && config->said[TOP_KEY_anonymous].line == 0;
    a->anonymous = (struct caller){.name = SL("anonymous")};
    take_grants(&a->anonymous, &config->anonymous);
    if (a->open) a->anonymous.bare = a->anonymous.anywhere = RIGHTS_ALL;
    roll_new(&a->roll, config, a->own);
    review(b);
    roll_free(&before);
}

void access_run(struct broker *b) {
    struct roll *r = &b->access->roll;
    i64 now = b->now.wall_ms;
    if (now < r->expires_ms) return;
    if (r->expires_ms != INT64_MIN) review(b);
    r->expires_ms = INT64_MAX;
    for (u32 i = 1; i < r->count; i++) {
        i64 at = r->at[i].expires_ms;
        if (at > now && at < r->expires_ms) r->expires_ms = at;
    }
}

/* ---- refusals */

static struct log_field from(const struct call *c, char text[HTTP_ADDRESS_TEXT]) {
    snprintf(text, HTTP_ADDRESS_TEXT, "unknown");
    if (c->req && c->req->from) http_use_text(c->req->from, text);
    return log_text("address", slice_str(text));
}

void access_forbidden(struct call *c) {
    char address[HTTP_ADDRESS_TEXT];
    report(c->b, LOG_WARN, "right_refused", "a token asked for what it may not do",
           log_text("why", buf_slice(&c->failure.detail)), from(c, address));
}

void access_refused(struct call *c) {
    char address[HTTP_ADDRESS_TEXT];
    static const char *const why[REFUSED_COUNT] = {"missing", "wrong", "expired"};
    struct access *a = c->b->access;
    enum refused r = c->who == &a->expired ? REFUSED_EXPIRED : c->who == &a->wrong ? REFUSED_WRONG : REFUSED_MISSING;
    a->refused[r]++;
    if (r == REFUSED_MISSING) return; /* a browser asks so before somebody signs in */
    report(c->b, LOG_WARN, "token_refused", "a request showed a token that is not known, or not any more",
           log_text("why", slice_str(why[r])), from(c, address));
}

u64 access_refusals(const struct broker *b, enum refused why) {
    return b->access->refused[why];
}

bool access_own(struct broker *b, slice authorization) {
    return by_text(b->access, bearer(authorization))->number == CALLER_OWN;
}
