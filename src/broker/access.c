#include "broker/access.h"

#include "broker/broker_priv.h"
#include "broker/call.h"
#include "net/digest.h"

#define TEXT_WORDS    8u                         /* of a token's text, that it is known again by */
#define TEXT_BYTES    (TEXT_WORDS * sizeof(u64)) /* a longer one is hashed every time */
#define TEXT_MAX      512u                       /* a longer one is no token */
#define TAG_WORDS     4u                         /* two sums of 128 bits */
#define KNOWN_SLOTS   1024u                      /* tokens known again; a power of two */
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

struct access {
    u64 key[TEXT_WORDS + 2]; /* of the texts' hashes; the second sum uses it two words on */
    struct known known[KNOWN_SLOTS];
    struct caller *callers; /* [0] stands for the empty places of buckets; a caller for each hash behind it */
    u32 count;
    u16 (*buckets)[BUCKET_PLACES]; /* places in `callers` */
    u32 bucket_mask;
    struct siphash_key bucket_key;
    struct caller anonymous, wrong, expired;
    const struct token_config *own; /* or NULL */
    bool open;
};

static const u8 no_hash[DIGEST_BYTES];

struct access *access_new(const struct token_config *own) {
    struct access *a = mem_zalloc(sizeof *a);
    a->own = own;
    random_bytes(a->key, sizeof a->key);
    a->anonymous = (struct caller){.name = SL("anonymous"), .bare = RIGHTS_ALL, .anywhere = RIGHTS_ALL};
    a->wrong = a->expired = (struct caller){.name = SL("nobody")};
    a->open = true;
    return a;
}

static void forget_callers(struct access *a) {
    for (u32 i = 0; i < a->count; i++) mem_free(a->callers[i].memo);
    mem_free(a->callers);
    mem_free(a->buckets);
    mem_free(a->anonymous.memo);
    memset(a->known, 0, sizeof a->known);
    a->callers = NULL;
    a->buckets = NULL;
    a->count = 0;
}

void access_free(struct access *a) {
    if (!a) return;
    forget_callers(a);
    explicit_bzero(a->key, sizeof a->key);
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

/* ---- who */

static u32 bucket_of(const struct access *a, const u8 hash[DIGEST_BYTES]) {
    return (u32)siphash(&a->bucket_key, hash, DIGEST_BYTES) & a->bucket_mask;
}

/* false: a bucket has too few places under this key. */
static bool place_all(struct access *a) {
    memset(a->buckets, 0, (a->bucket_mask + 1) * sizeof *a->buckets);
    for (u32 i = 1; i < a->count; i++) {
        u16 *places = a->buckets[bucket_of(a, a->callers[i].hash)];
        u32 p = 0;
        while (p < BUCKET_PLACES && places[p]) p++;
        if (p == BUCKET_PLACES) return false;
        places[p] = (u16)i;
    }
    return true;
}

/* With four buckets for each hash, of four places each, one key in thousands fails. */
static void build_buckets(struct access *a) {
    u32 buckets = BUCKETS_EACH;
    while (buckets < BUCKETS_EACH * a->count) buckets *= 2;
    a->bucket_mask = buckets - 1;
    a->buckets = mem_zalloc(buckets * sizeof *a->buckets);
    do random_bytes(&a->bucket_key, sizeof a->bucket_key);
    while (!place_all(a));
}

static void take_token(struct access *a, const struct config *config, const struct token_config *t, u32 number) {
    const struct tenant_config *tenant = t->tenant.n ? config_tenant(config, t->tenant) : NULL;
    for (u32 h = 0; h < t->sha256.count; h++) {
        struct caller *who = &a->callers[a->count++];
        *who = (struct caller){.name = t->name,
                               .tenant = t->tenant,
                               .prefix = tenant ? tenant->prefix : SL(""),
                               .number = number,
                               .hash = t->sha256.at[h].bytes,
                               .expires_ms = t->expires_ms};
        take_grants(who, &t->allow);
    }
}

void access_configure(struct broker *b, const struct config *config) {
    struct access *a = b->access;
    u32 hashes = a->own ? a->own->sha256.count : 0;
    forget_callers(a);
    a->open = config->tokens.count == 0 && config->said[TOP_KEY_anonymous].line == 0;
    a->anonymous = (struct caller){.name = SL("anonymous")};
    take_grants(&a->anonymous, &config->anonymous);
    if (a->open) a->anonymous.bare = a->anonymous.anywhere = RIGHTS_ALL;
    for (u32 i = 0; i < config->tokens.count; i++) hashes += config->tokens.at[i].sha256.count;
    a->callers = mem_zalloc((hashes + 1) * sizeof *a->callers);
    a->callers[a->count++] = (struct caller){.name = SL("nobody"), .hash = no_hash};
    for (u32 i = 0; i < config->tokens.count; i++) take_token(a, config, &config->tokens.at[i], i + 1);
    if (a->own) take_token(a, config, a->own, CALLER_OWN);
    build_buckets(a);
}

bool access_open(const struct broker *b) {
    return b->access->open;
}

bool access_anonymous(const struct broker *b) {
    return b->access->anonymous.anywhere != 0;
}

static u64 hash_differs(const u8 *a, const u8 *b) {
    u64 differs = 0;
    for (u32 i = 0; i < DIGEST_BYTES; i += 8) differs |= get_u64(a + i) ^ get_u64(b + i);
    return differs;
}

/* Every place of the bucket is compared, whatever is found. */
static const struct caller *by_hash(struct access *a, const u8 hash[DIGEST_BYTES]) {
    const u16 *places = a->buckets[bucket_of(a, hash)];
    u32 found = 0;
    for (u32 p = 0; p < BUCKET_PLACES; p++)
        found |= hash_differs(hash, a->callers[places[p]].hash) == 0 ? places[p] : 0;
    return found ? &a->callers[found] : &a->wrong;
}

/* NH, twice: the words of the text are fixed in number, and no text has a zero byte in it, so no two are the same words. */
static void tag_of(const struct access *a, slice text, u64 tag[TAG_WORDS]) {
    u64 words[TEXT_WORDS] = {0};
    memcpy(words, text.p, text.n);
    for (u32 s = 0; s < 2; s++) {
        const u64 *key = a->key + 2 * s;
        unsigned __int128 sum = 0;
        for (u32 i = 0; i < TEXT_WORDS; i += 2)
            sum += (unsigned __int128)(words[i] + key[i]) * (words[i + 1] + key[i + 1]);
        tag[2 * s] = (u64)sum;
        tag[2 * s + 1] = (u64)(sum >> 64);
    }
    explicit_bzero(words, sizeof words);
}

static const struct caller *hashed(struct access *a, slice text) {
    u8 hash[DIGEST_BYTES];
    digest_sha256(text, hash);
    return by_hash(a, hash);
}

static const struct caller *by_text(struct access *a, slice text) {
    u64 tag[TAG_WORDS], differs = 0;
    if (text.n == 0 || text.n > TEXT_MAX || a->count < 2) return &a->wrong;
    if (text.n > TEXT_BYTES) return hashed(a, text);
    tag_of(a, text, tag);
    struct known *slot = &a->known[tag[0] & (KNOWN_SLOTS - 1)];
    for (u32 i = 0; i < TAG_WORDS; i++) differs |= tag[i] ^ slot->tag[i];
    if (differs == 0 && slot->who) return slot->who;
    const struct caller *who = hashed(a, text);
    if (who->number) {
        memcpy(slot->tag, tag, sizeof tag);
        slot->who = who;
    }
    return who;
}

static slice bearer(slice authorization) {
    static const slice scheme = {"bearer ", 7};
    if (authorization.n < scheme.n || !slice_spells(slice_of(authorization.p, scheme.n), scheme)) return SL("");
    return slice_trim(slice_of(authorization.p + scheme.n, authorization.n - scheme.n));
}

const struct caller *access_caller(struct broker *b, slice authorization) {
    struct access *a = b->access;
    if (a->open || authorization.n == 0) return &a->anonymous;
    const struct caller *who = by_text(a, bearer(authorization));
    return who->expires_ms && b->now.wall_ms >= who->expires_ms ? &a->expired : who;
}
