#include "daemon/relays.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "net/digest.h"
#include "relay/relay.h"

#define REPORT_MS 5000
#define AGAIN_MS  5000 /* after a start that failed: the database, or its table, may come yet */

struct relay {
    struct relays *all;
    struct relay_options options;
    pthread_t thread;
    struct relay_report report; /* the last one */
    struct errbuf trouble;      /* the last one; empty: none since the last report that knew the lag */
};

struct relays {
    pthread_mutex_t lock; /* of every relay's report and trouble */
    int stop_fd;
    char *url;
    /* Who they are to the broker's front door, where tokens are asked for. */
    struct buf text;
    struct token_config token;
    u32 count;
    struct relay at[];
};

static char *text_copy(slice s) {
    char *p = mem_alloc(s.n + 1);
    memcpy(p, s.p, s.n);
    p[s.n] = 0;
    return p;
}

static void on_report(void *ctx, const struct relay_report *report) {
    struct relay *r = ctx;
    pthread_mutex_lock(&r->all->lock);
    r->report = *report;
    if (report->lag_known) r->trouble.text[0] = 0;
    pthread_mutex_unlock(&r->all->lock);
}

static void on_trouble(void *ctx, const char *text) {
    struct relay *r = ctx;
    log_event(LOG_WARN, "relay_trouble", text, log_text("queue", slice_str(r->options.queue)));
    pthread_mutex_lock(&r->all->lock);
    err_set(&r->trouble, ST_IO, "%s", text);
    pthread_mutex_unlock(&r->all->lock);
}

static bool told_to_stop(const struct relays *all, int wait_ms) {
    struct pollfd p = {.fd = all->stop_fd, .events = POLLIN};
    return poll(&p, 1, wait_ms) > 0;
}

static void *run(void *ctx) {
    struct relay *r = ctx;
    while (!told_to_stop(r->all, 0)) {
        struct errbuf err = {{0}};
        if (relay_run(&r->options, &err) == ST_OK) break;
        on_trouble(r, err.text);
        if (told_to_stop(r->all, AGAIN_MS)) break;
    }
    return NULL;
}

static void prepare(struct relays *all, struct relay *r, const struct relay_config *c) {
    r->all = all;
    r->options = (struct relay_options){
        .dsn = text_copy(c->dsn),
        .queue = text_copy(c->queue),
        .table = {.name = c->table.n ? text_copy(c->table) : NULL},
        .grouped = c->grouped,
        .workers = (int)c->workers,
        .batch = (int)c->batch,
        .poll_ms = c->poll_ms,
        .timeout_ms = c->timeout_ms,
        .stop_fd = all->stop_fd,
        .report_ms = REPORT_MS,
        .report = on_report,
        .trouble = on_trouble,
        .ctx = r,
    };
}

/* Nobody is told it: it is drawn anew at each start, and dies with the process. */
static void draw_token(struct relays *all) {
    u8 random[32];
    struct token_config *t = &all->token;
    random_bytes(random, sizeof random);
    buf_grow(&all->text, 64);
    buf_lit(&all->text, "hx_");
    buf_base64url(&all->text, slice_of(random, sizeof random));
    explicit_bzero(random, sizeof random);
    *t = (struct token_config){.name = SL("hapaxd:relay")}; /* no token of a config can be called so */
    t->sha256.count = 1;
    t->sha256.at = mem_zalloc(sizeof *t->sha256.at);
    digest_sha256(buf_slice(&all->text), t->sha256.at[0].bytes);
    buf_char(&all->text, 0);
    t->allow.at = mem_zalloc(sizeof *t->allow.at * 2 * all->count);
    for (u32 i = 0; i < all->count; i++) {
        slice queue = slice_str(all->at[i].options.queue);
        t->allow.at[t->allow.count++] = (struct grant){.right = RIGHT_SEND, .queue = queue};
        t->allow.at[t->allow.count++] = (struct grant){.right = RIGHT_OBSERVE, .queue = queue};
    }
}

const struct token_config *relays_token(const struct relays *all) {
    return all ? &all->token : NULL;
}

struct relays *relays_new(const struct config *config) {
    u32 count = config->relays.count;
    if (count == 0) return NULL;
    struct relays *all = mem_zalloc(sizeof *all + count * sizeof all->at[0]);
    all->count = count;
    all->stop_fd = eventfd(0, EFD_CLOEXEC);
    CHECK(all->stop_fd >= 0 && pthread_mutex_init(&all->lock, NULL) == 0);
    for (u32 i = 0; i < count; i++) prepare(all, &all->at[i], &config->relays.at[i]);
    draw_token(all);
    return all;
}

void relays_start(struct relays *all, const char *url) {
    if (!all) return;
    all->url = text_copy(slice_str(url));
    for (u32 i = 0; i < all->count; i++) {
        /* However it is reached, it is reached inside this machine. */
        all->at[i].options.broker = (hx_options){.url = all->url, .api_token = all->text.p, .insecure_token = true};
        CHECK(pthread_create(&all->at[i].thread, NULL, run, &all->at[i]) == 0);
    }
}

void relays_stop(struct relays *all) {
    u64 one = 1;
    if (all) CHECK(write(all->stop_fd, &one, sizeof one) == sizeof one);
}

void relays_free(struct relays *all) {
    if (!all) return;
    relays_stop(all);
    for (u32 i = 0; i < all->count; i++) {
        struct relay *r = &all->at[i];
        if (all->url) CHECK(pthread_join(r->thread, NULL) == 0);
        mem_free_wiped((char *)(uintptr_t)r->options.dsn);
        mem_free((char *)(uintptr_t)r->options.queue);
        mem_free((char *)(uintptr_t)r->options.table.name);
    }
    close(all->stop_fd);
    pthread_mutex_destroy(&all->lock);
    explicit_bzero(all->text.p, all->text.cap);
    buf_free(&all->text);
    mem_free(all->token.sha256.at);
    mem_free(all->token.allow.at);
    mem_free(all->url);
    mem_free(all);
}

static void put_relay(const struct relay *r, struct buf *b) {
    buf_char(b, '{');
    json_put_member(b, "queue", slice_str(r->options.queue));
    json_put_member(b, "table", slice_str(r->options.table.name ? r->options.table.name : "outbox"));
    json_put_member_i64(b, "sent", r->report.sent);
    json_put_member_i64(b, "duplicates", r->report.duplicates);
    json_put_member_i64(b, "refused", r->report.refused);
    if (r->report.lag_known) {
        json_put_member_i64(b, "pending", r->report.lag.pending);
        json_put_member_i64(b, "refused_rows", r->report.lag.refused);
    }
    if (r->report.lag_known && r->report.lag.oldest_ms >= 0)
        json_put_member_i64(b, "oldest_ms", r->report.lag.oldest_ms);
    if (r->trouble.text[0] && utf8_valid(slice_str(r->trouble.text)))
        json_put_member(b, "trouble", slice_str(r->trouble.text));
    buf_char(b, '}');
}

void relays_stats(struct relays *all, struct buf *b) {
    if (!all) return;
    pthread_mutex_lock(&all->lock);
    buf_lit(b, ",\"relays\":[");
    for (u32 i = 0; i < all->count; i++) {
        if (i) buf_char(b, ',');
        put_relay(&all->at[i], b);
    }
    buf_char(b, ']');
    pthread_mutex_unlock(&all->lock);
}

i64 relays_oldest_ms(struct relays *all, slice queue) {
    i64 oldest_ms = 0;
    if (!all) return 0;
    pthread_mutex_lock(&all->lock);
    for (u32 i = 0; i < all->count; i++) {
        const struct relay *r = &all->at[i];
        bool of_it = r->report.lag_known && slice_eq(slice_str(r->options.queue), queue);
        if (of_it && r->report.lag.oldest_ms > oldest_ms) oldest_ms = r->report.lag.oldest_ms;
    }
    pthread_mutex_unlock(&all->lock);
    return oldest_ms;
}
