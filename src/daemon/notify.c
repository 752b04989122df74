#include "daemon/notify.h"

#include <stdio.h>

#include "base/json.h"
#include "base/log.h"
#include "net/outbound.h"
#include "net/webhook.h"

#define CONNECT_MS     5000u
#define TOTAL_MS       10000u
#define BACKOFF_MS     1000
#define BACKOFF_MAX_MS 300000
#define SECRETS_MAX    4u

/* The newest state of an alert that nobody has taken yet. */
struct notice {
    struct notify *all;
    slice id, json; /* owned */
    size_t name_n;  /* of the id: without since when */
    u32 tries;
    i64 due_ms; /* when to try, by the monotonic clock */
    struct outbound_call *call;
    bool changed; /* since the call began */
};

struct notify {
    struct outbound *outbound;
    struct loop_alarm *alarm;
    struct rng rng;
    char *url; /* NULL: nobody is told */
    slice secrets[SECRETS_MAX];
    u32 secret_count;
    struct notice *waiting[NOTIFY_WAITING_MAX]; /* oldest first */
    u32 count, under_way;
    u64 sent, failed, dropped;
    bool failing; /* the last try failed */
};

static slice own(slice s) {
    char *p = mem_alloc(s.n + 1);
    memcpy(p, s.p, s.n);
    p[s.n] = 0;
    return slice_of(p, s.n);
}

static void disown(slice s) {
    mem_free((char *)(uintptr_t)s.p);
}

/* ---- the list */

static void forget(struct notify *n, u32 i) {
    struct notice *x = n->waiting[i];
    CHECK(!x->call);
    memmove(&n->waiting[i], &n->waiting[i + 1], (n->count - i - 1) * sizeof n->waiting[0]);
    n->count--;
    disown(x->id);
    disown(x->json);
    mem_free(x);
}

static u32 place_of(const struct notify *n, const struct notice *x) {
    u32 i = 0;
    while (i < n->count && n->waiting[i] != x) i++;
    CHECK(i < n->count);
    return i;
}

/* "lag:payments:" of "lag:payments:1700000000000": the same alert, whatever its state. */
static size_t name_length(slice id) {
    size_t length = id.n;
    while (length && id.p[length - 1] != ':') length--;
    return length;
}

static struct notice *find(const struct notify *n, slice id) {
    slice name = slice_of(id.p, name_length(id));
    for (u32 i = 0; i < n->count; i++)
        if (slice_eq(slice_of(n->waiting[i]->id.p, n->waiting[i]->name_n), name)) return n->waiting[i];
    return NULL;
}

/* Whoever has waited longest without being sent just now has the least left to say. */
static void drop_oldest(struct notify *n) {
    u32 i = 0;
    while (n->waiting[i]->call) i++;
    n->dropped++;
    log_event(LOG_WARN, "notify_dropped", "too many notifications wait: the oldest is dropped",
              log_text("id", n->waiting[i]->id), log_number("waiting", n->count));
    forget(n, i);
}

/* ---- trying */

/* Scheme and host: the path may be what the receiver takes for a password. */
static slice place_shown(const struct notify *n) {
    const char *host = strstr(n->url, "://");
    CHECK(host);
    host += 3;
    return slice_of(n->url, (size_t)(host - n->url) + strcspn(host, "/?#"));
}

static void look_again(struct notify *n) {
    i64 now = clock_mono_ms(), next = -1;
    for (u32 i = 0; i < n->count; i++) {
        const struct notice *x = n->waiting[i];
        if (!x->call && (next < 0 || x->due_ms < next)) next = x->due_ms;
    }
    if (next >= 0 && n->under_way < NOTIFY_AT_ONCE) loop_alarm_set(n->alarm, next > now ? (u64)(next - now) : 0);
}

/* Doubling from a second to five minutes; up to a quarter is added at random. */
static i64 backoff_ms(struct notify *n, u32 tries) {
    i64 wait = tries > 9 ? BACKOFF_MAX_MS : (i64)BACKOFF_MS << (tries - 1);
    if (wait > BACKOFF_MAX_MS) wait = BACKOFF_MAX_MS;
    return wait + (i64)rng_below(&n->rng, (u64)wait / 4 + 1);
}

static void delivered(struct notify *n, struct notice *x) {
    n->sent++;
    if (n->failing) log_event(LOG_INFO, "notify_again", "notifications are taken again", log_text("id", x->id));
    n->failing = false;
    if (!x->changed) forget(n, place_of(n, x));
}

static void refused(struct notify *n, struct notice *x, u32 status, const char *why) {
    n->failed++;
    n->failing = true;
    x->due_ms = clock_mono_ms() + backoff_ms(n, ++x->tries);
    log_event(LOG_WARN, "notify_failed",
              status ? "a notification was not taken: it is sent again"
                     : "a notification did not arrive: it is sent again",
              log_text("to", place_shown(n)), log_text("id", x->id), log_number("status", status),
              log_text("why", slice_str(why)), log_number("tries", x->tries));
}

static void on_answer(void *ctx, u64 number, const struct outbound_answer *a) {
    struct notice *x = ctx;
    struct notify *n = x->all;
    (void)number;
    x->call = NULL;
    n->under_way--;
    if (a->status >= 200 && a->status <= 299)
        delivered(n, x);
    else
        refused(n, x, a->status, a->why);
    look_again(n);
}

/* The time is of this try: receivers refuse what is old, so that nobody can play it again. */
static void put_signatures(const struct notify *n, struct buf *b, slice id, i64 time_s, slice body) {
    buf_lit(b, "webhook-signature:");
    for (u32 i = 0; i < n->secret_count; i++) {
        buf_char(b, ' ');
        webhook_sign(b, n->secrets[i], id, time_s, body);
    }
    buf_char(b, 0);
}

static void try(struct notify *n, struct notice *x) {
    struct buf id = {0}, id_line = {0}, signatures = {0};
    i64 time_s = clock_wall_ms() / 1000;
    char time_line[64];
    webhook_put_id(&id, x->id);
    buf_printf(&id_line, "webhook-id: %.*s", (int)id.len, id.p);
    buf_char(&id_line, 0);
    snprintf(time_line, sizeof time_line, "webhook-timestamp: %lld", (long long)time_s);
    put_signatures(n, &signatures, buf_slice(&id), time_s, x->json);
    const char *headers[] = {"Content-Type: application/json", id_line.p, time_line, signatures.p, NULL};
    /* Whoever writes the file that names the receiver may name any. */
    struct outbound_request r = {.method = "POST",
                                 .url = n->url,
                                 .headers = headers,
                                 .body = x->json,
                                 .connect_ms = CONNECT_MS,
                                 .total_ms = TOTAL_MS,
                                 .allow_private = true};
    x->changed = false;
    x->call = outbound_call(n->outbound, &r, on_answer, x, 0);
    CHECK(x->call);
    n->under_way++;
    buf_free(&id);
    buf_free(&id_line);
    buf_free(&signatures);
}

static void on_alarm(void *ctx) {
    struct notify *n = ctx;
    i64 now = clock_mono_ms();
    for (u32 i = 0; i < n->count && n->under_way < NOTIFY_AT_ONCE; i++)
        if (!n->waiting[i]->call && n->waiting[i]->due_ms <= now) try(n, n->waiting[i]);
    look_again(n);
}

void notify_tell(struct notify *n, slice id, slice json) {
    if (!n->url) return;
    struct notice *x = find(n, id);
    if (x) {
        disown(x->id);
        disown(x->json);
        x->changed = true;
    } else {
        if (n->count == NOTIFY_WAITING_MAX) drop_oldest(n);
        x = n->waiting[n->count++] = mem_zalloc(sizeof *x);
        x->all = n;
    }
    x->tries = 0; /* what is new does not wait as long as what was refused */
    x->due_ms = clock_mono_ms();
    x->id = own(id);
    x->name_n = name_length(id);
    x->json = own(json);
    if (!x->call) look_again(n);
}

/* ---- the whole */

struct notify *notify_new(struct loop *loop, struct outbound *outbound) {
    struct notify *n = mem_zalloc(sizeof *n);
    u64 seed;
    random_bytes(&seed, sizeof seed);
    rng_seed(&n->rng, seed);
    n->outbound = outbound;
    n->alarm = loop_alarm_new(loop, on_alarm, n);
    return n;
}

static void clear_place(struct notify *n) {
    mem_free_wiped(n->url);
    n->url = NULL;
    for (u32 i = 0; i < n->secret_count; i++) mem_free_wiped((char *)(uintptr_t)n->secrets[i].p);
    n->secret_count = 0;
}

static bool same_place(const struct notify *n, const struct top_alerts *c) {
    const struct secrets *s = &c->notify_secrets;
    bool same = slice_eq(slice_str(n->url ? n->url : ""), c->notify_url) && n->secret_count == s->count;
    for (u32 i = 0; same && i < s->count; i++) same = slice_eq(n->secrets[i], s->at[i]);
    return same;
}

/* What is under way was meant for another place, or signed with what may be known to others. */
static void cancel_calls(struct notify *n) {
    for (u32 i = 0; i < n->count; i++) {
        if (n->waiting[i]->call) outbound_cancel(n->waiting[i]->call);
        n->waiting[i]->call = NULL;
    }
    n->under_way = 0;
}

static void forget_all(struct notify *n, const char *msg) {
    if (n->count) log_event(LOG_WARN, "notify_dropped", msg, log_number("waiting", n->count));
    n->dropped += n->count;
    while (n->count) forget(n, n->count - 1);
}

void notify_configure(struct notify *n, const struct top_alerts *c) {
    if (same_place(n, c)) return;
    cancel_calls(n);
    clear_place(n);
    if (c->notify_url.n) {
        CHECK(c->notify_secrets.count <= SECRETS_MAX);
        n->url = (char *)(uintptr_t)own(c->notify_url).p;
        for (u32 i = 0; i < c->notify_secrets.count; i++) n->secrets[i] = own(c->notify_secrets.at[i]);
        n->secret_count = c->notify_secrets.count;
    } else {
        forget_all(n, "nobody is to be told of alerts any more: what waited is dropped");
    }
    for (u32 i = 0; i < n->count; i++) n->waiting[i]->due_ms = clock_mono_ms(), n->waiting[i]->tries = 0;
    look_again(n);
}

void notify_free(struct notify *n) {
    if (!n) return;
    cancel_calls(n);
    forget_all(n, "notifications that nobody has taken are given up");
    loop_alarm_free(n->alarm);
    clear_place(n);
    mem_free(n);
}

void notify_stats(const struct notify *n, struct buf *b) {
    buf_lit(b, ",\"notify\":{");
    json_put_member_i64(b, "sent", (i64)n->sent);
    json_put_member_i64(b, "failed", (i64)n->failed);
    json_put_member_i64(b, "waiting", n->count);
    json_put_member_i64(b, "dropped", (i64)n->dropped);
    buf_char(b, '}');
}
