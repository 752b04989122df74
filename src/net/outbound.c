#include "net/outbound.h"

#include <stdlib.h>

#include <curl/curl.h>
#include <uv.h>

#define OUTBOUND_MAGIC 0x6f757462u

struct outbound {
    u32 magic; /* it comes back from libcurl and libuv as a void * */
    uv_loop_t *loop;
    uv_timer_t timer;
    CURLM *multi;
    struct outbound_call *calls;
};

struct outbound_call {
    struct outbound *all;
    struct outbound_call *next, **link;
    CURL *easy;
    struct curl_slist *headers;
    size_t answer_bytes;
    outbound_fn done;
    void *ctx;
};

/* A socket of libcurl's. It lives until libuv has let go of it. */
struct watched {
    uv_poll_t poll;
    struct outbound *all;
    curl_socket_t fd;
};

static struct outbound *outbound_in(void *data) {
    struct outbound *o = data;
    CHECK(o && o->magic == OUTBOUND_MAGIC);
    return o;
}

static void check_curl(CURLcode rc) {
    if (rc != CURLE_OK) check_failed(__FILE__, __LINE__, "libcurl", curl_easy_strerror(rc));
}

static void check_multi(CURLMcode rc) {
    if (rc != CURLM_OK) check_failed(__FILE__, __LINE__, "libcurl", curl_multi_strerror(rc));
}

/* ---- calls that end */

static void end_call(struct outbound_call *c) {
    check_multi(curl_multi_remove_handle(c->all->multi, c->easy));
    curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    mem_free(c);
}

void outbound_cancel(struct outbound_call *c) {
    end_call(c);
}

static void finish(CURL *easy, CURLcode result) {
    struct outbound_call *c = NULL;
    long status = 0;
    check_curl(curl_easy_getinfo(easy, CURLINFO_PRIVATE, &c));
    check_curl(curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status));
    /* An answer that talks too long has said its status; one that broke off in between may be half of another one. */
    bool answered = result == CURLE_OK || (result == CURLE_WRITE_ERROR && c->answer_bytes > OUTBOUND_ANSWER_BYTES);
    outbound_fn done = c->done;
    void *ctx = c->ctx;
    end_call(c);
    done(ctx, answered ? (u32)status : 0, answered ? "" : curl_easy_strerror(result));
}

static void finish_calls(struct outbound *o) {
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(o->multi, &left)))
        if (m->msg == CURLMSG_DONE) finish(m->easy_handle, m->data.result);
}

/* ---- libuv's events for libcurl, and the other way round */

static void on_timer(uv_timer_t *t) {
    struct outbound *o = outbound_in(t->data);
    int running;
    check_multi(curl_multi_socket_action(o->multi, CURL_SOCKET_TIMEOUT, 0, &running));
    finish_calls(o);
}

static int set_timer(CURLM *multi, long in_ms, void *ctx) {
    struct outbound *o = outbound_in(ctx);
    (void)multi;
    if (in_ms < 0)
        uv_timer_stop(&o->timer);
    else
        CHECK(uv_timer_start(&o->timer, on_timer, (u64)in_ms, 0) == 0);
    return 0;
}

static void on_socket(uv_poll_t *poll, int status, int events) {
    struct watched *w = poll->data;
    struct outbound *o = outbound_in(w->all);
    int running, flags = status < 0 ? CURL_CSELECT_ERR : 0;
    if (events & UV_READABLE) flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE) flags |= CURL_CSELECT_OUT;
    check_multi(curl_multi_socket_action(o->multi, w->fd, flags, &running));
    finish_calls(o);
}

static void free_watched(uv_handle_t *h) {
    mem_free(h->data);
}

static struct watched *watch(struct outbound *o, curl_socket_t fd) {
    struct watched *w = mem_zalloc(sizeof *w);
    w->all = o;
    w->fd = fd;
    CHECK(uv_poll_init_socket(o->loop, &w->poll, fd) == 0);
    w->poll.data = w;
    check_multi(curl_multi_assign(o->multi, fd, w));
    return w;
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket) {
    struct outbound *o = outbound_in(ctx);
    struct watched *w = socket;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (w) uv_close((uv_handle_t *)&w->poll, free_watched);
        check_multi(curl_multi_assign(o->multi, fd, NULL));
        return 0;
    }
    if (!w) w = watch(o, fd);
    int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
    CHECK(uv_poll_start(&w->poll, events, on_socket) == 0);
    return 0;
}

/* ---- calls that begin */

/* Heads and body alike: less than what it was given, and libcurl ends the call. */
static size_t on_answer(char *bytes, size_t size, size_t count, void *ctx) {
    struct outbound_call *c = ctx;
    (void)bytes;
    c->answer_bytes += size * count;
    return c->answer_bytes > OUTBOUND_ANSWER_BYTES ? 0 : size * count;
}

#define SET(option, value) check_curl(curl_easy_setopt(easy, option, value))

static void set_limits(CURL *easy) {
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_QUICK_EXIT,
        1L); /* else a call that ends while a name is looked up makes the loop wait for the resolver */
    /* Certificates are looked up in the directory one by one: reading the file of all of them takes longer than a turn may. */
    SET(CURLOPT_CAINFO, NULL);
    SET(CURLOPT_CAPATH, "/etc/ssl/certs");
}

struct outbound_call *outbound_post(struct outbound *o, const struct outbound_post *p, outbound_fn done, void *ctx) {
    struct outbound_call *c = mem_zalloc(sizeof *c);
    CURL *easy = c->easy = curl_easy_init();
    CHECK(easy);
    *c = (struct outbound_call){.all = o, .easy = easy, .done = done, .ctx = ctx, .next = o->calls, .link = &o->calls};
    if (c->next) c->next->link = &c->next;
    o->calls = c;
    set_limits(easy);
    for (u32 i = 0; p->headers && p->headers[i]; i++) {
        c->headers = curl_slist_append(c->headers, p->headers[i]);
        CHECK(c->headers);
    }
    SET(CURLOPT_PRIVATE, c);
    SET(CURLOPT_URL, p->url);
    SET(CURLOPT_USERAGENT, "hapax/" HAPAX_VERSION);
    SET(CURLOPT_HTTPHEADER, c->headers);
    SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)p->body.n);
    SET(CURLOPT_COPYPOSTFIELDS, p->body.p);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)p->connect_ms);
    SET(CURLOPT_TIMEOUT_MS, (long)p->total_ms);
    SET(CURLOPT_WRITEFUNCTION, on_answer);
    SET(CURLOPT_WRITEDATA, c);
    SET(CURLOPT_HEADERFUNCTION, on_answer);
    SET(CURLOPT_HEADERDATA, c);
    check_multi(curl_multi_add_handle(o->multi, easy));
    return c;
}

/* ---- the whole */

struct outbound *outbound_new(struct uv_loop_s *loop, u32 connections) {
    struct outbound *o = mem_zalloc(sizeof *o);
    o->magic = OUTBOUND_MAGIC;
    o->loop = loop;
    CHECK(uv_timer_init(loop, &o->timer) == 0);
    o->timer.data = o;
    /* Addresses of receivers are secrets. */
    check_curl(curl_global_init_mem(CURL_GLOBAL_DEFAULT, mem_alloc, mem_free_wiped, mem_realloc_wiped, strdup, calloc));
    o->multi = curl_multi_init();
    CHECK(o->multi);
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_SOCKETFUNCTION, set_socket));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_SOCKETDATA, o));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_TIMERFUNCTION, set_timer));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_TIMERDATA, o));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)connections));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_MAXCONNECTS, (long)connections));
    return o;
}

static void free_all(uv_handle_t *timer) {
    struct outbound *o = outbound_in(timer->data);
    o->magic = 0;
    mem_free(o);
}

void outbound_free(struct outbound *o) {
    if (!o) return;
    while (o->calls) end_call(o->calls);
    check_multi(curl_multi_cleanup(o->multi));
    curl_global_cleanup();
    uv_close((uv_handle_t *)&o->timer, free_all);
}
