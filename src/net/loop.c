#include "net/loop.h"

#include <uv.h>

#define SIGNALS_MAX 4u

struct callback {
    loop_fn fn;
    void *ctx;
};

#define LOOP_MAGIC 0x6c6f6f70u

struct loop {
    u32 magic; /* it comes back from libuv as a void * */
    uv_loop_t uv;
    uv_timer_t timer;
    uv_async_t async;
    uv_signal_t signals[SIGNALS_MAX];
    struct callback on_timer, on_wake, on_signal[SIGNALS_MAX];
    u32 signal_count;
    uv_prepare_t prepare;
    uv_check_t check;
    u64 turn_started_ns;
    struct loop_stats stats;
};

static void check_uv(int rc, const char *what) {
    if (rc < 0) check_failed(__FILE__, __LINE__, what, uv_strerror(rc));
}

static struct loop *loop_in(void *data) {
    struct loop *l = data;
    CHECK(l && l->magic == LOOP_MAGIC);
    return l;
}

static void run_timer(uv_timer_t *t) {
    struct loop *l = loop_in(t->data);
    l->on_timer.fn(l->on_timer.ctx);
}

static void run_wake(uv_async_t *a) {
    struct loop *l = loop_in(a->data);
    if (l->on_wake.fn) l->on_wake.fn(l->on_wake.ctx);
}

static void run_signal(uv_signal_t *s, int signum) {
    struct loop *l = loop_in(s->data);
    (void)signum;
    struct callback *cb = &l->on_signal[s - l->signals];
    cb->fn(cb->ctx);
}

/* A turn's work lies between the return from polling (timers and I/O callbacks) and the next poll. libuv runs check right
 * after I/O callbacks and prepare right before polling; the I/O part is seen from uv_update_time at the poll's return. */
static void before_poll(uv_prepare_t *p) {
    struct loop *l = loop_in(p->data);
    u64 now = uv_hrtime();
    if (l->turn_started_ns) {
        u64 us = (now - l->turn_started_ns) / 1000;
        l->stats.turns++;
        hist_add(&l->stats.turn_us, hist_us, us);
        if (us > l->stats.turn_us_max) l->stats.turn_us_max = us;
    }
}

static void after_poll(uv_check_t *c) {
    struct loop *l = loop_in(c->data);
    l->turn_started_ns = uv_now(&l->uv) * 1000000; /* when polling returned, to the millisecond */
}

u64 loop_turn_us(const struct loop *l) {
    u64 now = uv_hrtime();
    return l->turn_started_ns && now > l->turn_started_ns ? (now - l->turn_started_ns) / 1000 : 0;
}

struct loop *loop_new(void) {
    struct loop *l = mem_zalloc(sizeof *l);
    l->magic = LOOP_MAGIC;
    check_uv(uv_loop_init(&l->uv), "uv_loop_init");
    check_uv(uv_timer_init(&l->uv, &l->timer), "uv_timer_init");
    check_uv(uv_async_init(&l->uv, &l->async, run_wake), "uv_async_init");
    check_uv(uv_prepare_init(&l->uv, &l->prepare), "uv_prepare_init");
    check_uv(uv_check_init(&l->uv, &l->check), "uv_check_init");
    l->timer.data = l->async.data = l->prepare.data = l->check.data = l;
    uv_prepare_start(&l->prepare, before_poll);
    uv_check_start(&l->check, after_poll);
    return l;
}

struct uv_loop_s *loop_uv(struct loop *l) {
    return &l->uv;
}

void loop_run(struct loop *l) {
    uv_run(&l->uv, UV_RUN_DEFAULT);
}

void loop_stop(struct loop *l) {
    uv_stop(&l->uv);
}

static void close_handle(uv_handle_t *h, void *arg) {
    (void)arg;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

void loop_free(struct loop *l) {
    close_handle((uv_handle_t *)&l->timer, NULL);
    close_handle((uv_handle_t *)&l->async, NULL);
    close_handle((uv_handle_t *)&l->prepare, NULL);
    close_handle((uv_handle_t *)&l->check, NULL);
    for (u32 i = 0; i < l->signal_count; i++) close_handle((uv_handle_t *)&l->signals[i], NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT);
    check_uv(uv_loop_close(&l->uv), "uv_loop_close");
    l->magic = 0;
    mem_free(l);
}

void loop_timer(struct loop *l, u64 in_ms, loop_fn fn, void *ctx) {
    l->on_timer = (struct callback){fn, ctx};
    check_uv(uv_timer_start(&l->timer, run_timer, in_ms, 0), "uv_timer_start");
}

struct loop_alarm {
    uv_timer_t timer;
    struct callback on_timer;
};

static void run_alarm(uv_timer_t *t) {
    const struct loop_alarm *a = t->data;
    a->on_timer.fn(a->on_timer.ctx);
}

struct loop_alarm *loop_alarm_new(struct loop *l, loop_fn fn, void *ctx) {
    struct loop_alarm *a = mem_zalloc(sizeof *a);
    a->on_timer = (struct callback){fn, ctx};
    check_uv(uv_timer_init(&l->uv, &a->timer), "uv_timer_init");
    a->timer.data = a;
    return a;
}

void loop_alarm_set(struct loop_alarm *a, u64 in_ms) {
    check_uv(uv_timer_start(&a->timer, run_alarm, in_ms, 0), "uv_timer_start");
}

static void free_alarm(uv_handle_t *h) {
    mem_free(h->data);
}

void loop_alarm_free(struct loop_alarm *a) {
    if (a) uv_close((uv_handle_t *)&a->timer, free_alarm);
}

void loop_signal(struct loop *l, int signum, loop_fn fn, void *ctx) {
    CHECK(l->signal_count < SIGNALS_MAX);
    uv_signal_t *s = &l->signals[l->signal_count];
    l->on_signal[l->signal_count++] = (struct callback){fn, ctx};
    check_uv(uv_signal_init(&l->uv, s), "uv_signal_init");
    s->data = l;
    check_uv(uv_signal_start(s, run_signal, signum), "uv_signal_start");
}

void loop_on_wake(struct loop *l, loop_fn fn, void *ctx) {
    l->on_wake = (struct callback){fn, ctx};
}

void loop_wake(struct loop *l) {
    uv_async_send(&l->async);
}

void loop_stats_get(const struct loop *l, struct loop_stats *out) {
    *out = l->stats;
}
