#include "net/outbound.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <curl/curl.h>
#include <uv.h>

#include "net/answer.h"
#include "net/outbound_priv.h"

#define OUTBOUND_MAGIC 0x6f757462u
#define TURN_US        5000 /* of a turn, for calls that begin, and for calls that end */
#define SOCKETS_A_TURN 64
#define CALLS_A_TURN   64u /* that begin or are late; libcurl connects all it was given in one go */
#define IDLE_EASIES    64u
#define BUFFER_BYTES   4096L  /* wiped after each call, like all that was libcurl's */
#define BODY_WHOLE_MAX 65536u /* libcurl sends as much together with the head, in one piece */
/* Seconds. A server closes what was idle for long, many after 5 seconds and some after 2: what it closes while a request is on its way
 * there has an outcome nobody knows. libcurl counts in whole seconds, so that this is less than two. */
#define IDLE_S_MAX 1L

struct outbound {
    u32 magic; /* it comes back from libcurl and libuv as a void * */
    uv_loop_t *loop;
    uv_timer_t timer; /* libcurl's */
    bool due;         /* it wants to be called at once */
    uv_idle_t
        pump; /* once a turn, while there is something: a timer of no time would run again and again in one turn */
    uv_poll_t poll; /* of the sockets, which are all in one epoll */
    int sockets;
    struct watched {
        u8 events; /* it is in there for these; 0: it is not */
        bool wanted;
        u32 uses; /* how often this number was opened: an event of the socket before is not this one's */
    } * watched;  /* [descriptor] */
    u32 watched_cap;
    u32 handles; /* of libuv's, to be closed */
    CURLM *multi;
    CURL *idle[IDLE_EASIES]; /* set up, and without a call */
    u32 idle_count;
    u32 forgets; /* how often it was asked to */
    struct resolver *resolver;
    char *authorities; /* a directory */
    struct outbound_call *calls;
    struct outbound_call *queue, **queue_end; /* those that begin, go on or are late */
    u64 turn_us;                              /* when this turn of libcurl's began */
    u32 first;                                /* where it begins among the sockets */
    u32 count, max;
    bool told; /* somebody was, and on_ended does not know yet */
    void (*on_ended)(void *ctx);
    void *ended_ctx;
};

struct outbound_call {
    struct outbound *all;
    struct outbound_call *next, **link;   /* of all */
    struct outbound_call *queued, **wait; /* of the queue; wait NULL: it is not in it */
    outbound_fn done;
    void *ctx;
    u64 number;
    const char *refused; /* why it cannot begin at all */

    /* the request */
    CURL *easy; /* NULL: it has none yet */
    u32 forgets;
    CURLU *url;
    char *host;
    struct curl_slist *headers, *connect_to;
    char method[24];
    char *body;
    size_t body_bytes, body_read;
    bool allow_private, verbatim_head;

    /* Deadlines are ours: of thousands that end in the same moment libcurl would deal with all in one turn. */
    uv_timer_t deadline;
    u64 began_us;
    i64 connect_ms, total_ms; /* from there */
    i64 try_ms;               /* from there: so long may the address under way take */
    bool late;                /* the timer has gone off */

    /* where it goes */
    struct resolver_wait wait_name;
    struct resolved to;
    u32 tried;   /* addresses, the one under way too */
    bool sent;   /* a byte of it may have left */
    bool paused; /* its answer is read on in another turn */

    /* the answer */
    struct answer_head head;
    struct buf answer;
    u32 answer_max;
    u64 excess;
    bool cut; /* its excess was too much */
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

#define SET(option, value) check_curl(curl_easy_setopt(easy, option, value))

/* For the next call, without what was given to it. It still knows the parts of the last URL: see outbound_forget. What a large body was
 * sent by is large, too, and not kept. */
static void drop_easy(struct outbound_call *c) {
    CURL *easy = c->easy;
    struct outbound *o = c->all;
    if (!easy) return;
    c->easy = NULL;
    if (c->tried) check_multi(curl_multi_remove_handle(o->multi, easy));
    if (o->idle_count == IDLE_EASIES || c->body_bytes > BODY_WHOLE_MAX || c->forgets != o->forgets) {
        curl_easy_cleanup(easy);
        return;
    }
    SET(CURLOPT_CURLU, NULL);
    SET(CURLOPT_URL, NULL);
    SET(CURLOPT_HTTPHEADER, NULL);
    SET(CURLOPT_POSTFIELDS, NULL);
    SET(CURLOPT_CONNECT_TO, NULL);
    o->idle[o->idle_count++] = easy;
}

static void free_call(uv_handle_t *h) {
    mem_free(h->data);
}

static void unqueue(struct outbound_call *c) {
    if (!c->wait) return;
    *c->wait = c->queued;
    if (c->queued)
        c->queued->wait = c->wait;
    else
        c->all->queue_end = c->wait;
    c->wait = NULL;
}

/* It counts no more, and nothing comes for it. */
static void take_out(struct outbound_call *c) {
    unqueue(c);
    resolver_leave(&c->wait_name);
    drop_easy(c);
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->all->count--;
}

static void free_parts(struct outbound_call *c) {
    curl_url_cleanup(c->url);
    curl_free(c->host);
    curl_slist_free_all(c->headers);
    curl_slist_free_all(c->connect_to);
    mem_free(c->body);
    buf_free(&c->head.lines);
    buf_free(&c->answer);
    uv_close((uv_handle_t *)&c->deadline, free_call);
}

void outbound_cancel(struct outbound_call *c) {
    take_out(c);
    free_parts(c);
}

/* Whoever is told may begin another one at once. */
static void tell(struct outbound_call *c, enum outbound_end end, const char *why) {
    struct outbound_answer a = {.end = end, .why = why, .took_us = (u64)clock_mono_us() - c->began_us};
    if (end == OUTBOUND_ANSWERED) {
        a.status = c->head.status;
        a.head = buf_slice(&c->head.lines);
        a.body = buf_slice(&c->answer);
        a.truncated = c->excess > 0;
    }
    take_out(c);
    c->all->told = true;
    c->done(c->ctx, c->number, &a);
    free_parts(c);
}

static i64 elapsed_ms(const struct outbound_call *c) {
    return (i64)(((u64)clock_mono_us() - c->began_us) / 1000);
}

static bool try_next(struct outbound_call *c);

/* In words of what came: libcurl's are of what it was about. It has no memory for a line that is too long, and what on_head will not
 * have was not written. */
static const char *why_broken(const struct outbound_call *c, CURLcode result) {
    if (result == CURLE_OUT_OF_MEMORY || (result == CURLE_WRITE_ERROR && !c->cut))
        return "the answer's head is too large, or is none";
    return curl_easy_strerror(result);
}

/* Not by what libcurl calls the error, but by how far it came: before a request's first byte it asks may_send. */
static void finish(struct outbound_call *c, CURLcode result) {
    bool whole = result == CURLE_OK || (result == CURLE_WRITE_ERROR && c->cut);
    if (whole && c->head.ended && c->head.status <= 599) return tell(c, OUTBOUND_ANSWERED, "");
    if (whole) return tell(c, OUTBOUND_BROKEN, c->head.ended ? "an unknown status" : "the answer's head is not whole");
    bool again =
        result == CURLE_SEND_FAIL_REWIND || result == CURLE_ABORTED_BY_CALLBACK || result == CURLE_COULDNT_CONNECT;
    if (c->sent && again) /* libcurl was about to */
        return tell(c, OUTBOUND_BROKEN, "the connection was closed before anything was answered");
    if (c->sent) return tell(c, OUTBOUND_BROKEN, why_broken(c, result));
    if (result != CURLE_COULDNT_CONNECT || !try_next(c)) tell(c, OUTBOUND_NOT_SENT, curl_easy_strerror(result));
}

static bool turn_is_over(u64 since_us) {
    return (u64)clock_mono_us() - since_us > TURN_US;
}

static void on_pump(uv_idle_t *t);

/* In the next turn. */
static void pump_soon(struct outbound *o) {
    CHECK(uv_idle_start(&o->pump, on_pump) == 0);
}

static void say_ended(struct outbound *o) {
    bool told = o->told;
    o->told = false;
    if (told && o->on_ended) o->on_ended(o->ended_ctx);
}

static void finish_calls(struct outbound *o) {
    CURLMsg *m;
    int left = 0;
    u64 since = (u64)clock_mono_us();
    while (!turn_is_over(since) && (m = curl_multi_info_read(o->multi, &left))) {
        struct outbound_call *c = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        check_curl(curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c));
        finish(c, m->data.result);
    }
    if (left) pump_soon(o);
}

/* ---- libuv's events for libcurl, and the other way round */

static void on_timer(uv_timer_t *t) {
    struct outbound *o = outbound_in(t->data);
    o->due = true;
    pump_soon(o);
}

static int set_timer(CURLM *multi, long in_ms, void *ctx) {
    struct outbound *o = outbound_in(ctx);
    (void)multi;
    uv_timer_stop(&o->timer);
    o->due = in_ms == 0;
    if (o->due) pump_soon(o);
    if (in_ms > 0) CHECK(uv_timer_start(&o->timer, on_timer, (u64)in_ms, 0) == 0);
    return 0;
}

/* One epoll for all of libcurl's sockets, itself watched by the loop. A socket that libcurl wants to hear nothing of for now stays in
 * there, until it says something: mostly the next call uses it first, and nothing has to be changed. Sockets that are closed fall
 * out by themselves, and all of them are made by open_socket, which begins anew with their number. */
static struct watched *watched_of(struct outbound *o, int fd) {
    if ((u32)fd >= o->watched_cap) {
        u32 cap = ((u32)fd + 256) * 2;
        o->watched = mem_realloc(o->watched, cap * sizeof *o->watched);
        memset(o->watched + o->watched_cap, 0, (cap - o->watched_cap) * sizeof *o->watched);
        o->watched_cap = cap;
    }
    return &o->watched[fd];
}

static int set_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *ignored) {
    struct outbound *o = outbound_in(ctx);
    struct watched *w = watched_of(o, fd);
    struct epoll_event e = {.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u),
                            .data = {.u64 = (u64)w->uses << 32 | (u32)fd}};
    (void)easy, (void)ignored;
    w->wanted = what != CURL_POLL_REMOVE;
    if (!w->wanted || w->events == e.events) return 0;
    CHECK(epoll_ctl(o->sockets, w->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e) == 0);
    w->events = (u8)e.events;
    return 0;
}

/* What libcurl did at an earlier event may have closed this one's socket, and opened another of the same number. */
static void on_socket(struct outbound *o, u64 which, u32 events) {
    int running, fd = (int)(u32)which;
    struct watched *w = watched_of(o, fd);
    if (w->uses != which >> 32) return;
    int flags = events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0;
    if (!w->wanted) {
        CHECK(epoll_ctl(o->sockets, EPOLL_CTL_DEL, fd, NULL) == 0 || errno == EBADF || errno == ENOENT);
        w->events = 0;
        return;
    }
    if (events & EPOLLIN) flags |= CURL_CSELECT_IN;
    if (events & EPOLLOUT) flags |= CURL_CSELECT_OUT;
    check_multi(curl_multi_socket_action(o->multi, fd, flags, &running));
}

static void on_sockets(uv_poll_t *poll, int status, int events) {
    struct outbound *o = outbound_in(poll->data);
    struct epoll_event ready[SOCKETS_A_TURN];
    (void)status, (void)events;
    o->turn_us = (u64)clock_mono_us();
    int n = epoll_wait(o->sockets, ready, SOCKETS_A_TURN, 0);
    o->first++;
    for (int i = 0; i < n && !turn_is_over(o->turn_us); i++) {
        const struct epoll_event *e = &ready[(o->first + (u32)i) % (u32)n]; /* what is not reached is ready again */
        on_socket(o, e->data.u64, e->events);
    }
    finish_calls(o);
    say_ended(o);
}

/* ---- what libcurl asks while a call is under way */

/* Once more what the resolver has looked at: whatever libcurl takes for the address, it is the one that was chosen. */
static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a) {
    const struct outbound_call *c = ctx;
    const void *in = a->family == AF_INET ? (const void *)&((struct sockaddr_in *)&a->addr)->sin_addr
                                          : (const void *)&((struct sockaddr_in6 *)&a->addr)->sin6_addr;
    char text[RESOLVED_TEXT];
    if (c->sent) return CURL_SOCKET_BAD; /* it would send the same again */
    if (purpose != CURLSOCKTYPE_IPCXN || (a->family != AF_INET && a->family != AF_INET6)) return CURL_SOCKET_BAD;
    if (!inet_ntop(a->family, in, text, sizeof text) || strcmp(text, c->to.at[c->tried - 1]) != 0)
        return CURL_SOCKET_BAD;
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->protocol);
    if (fd < 0) return fd;
    struct watched *w = watched_of(c->all, fd);
    *w = (struct watched){.uses = w->uses + 1};
    return fd;
}

/* Before the first byte of a request, and before that of one which libcurl would send again. */
static int may_send(void *ctx, char *to, char *from, int to_port, int from_port) {
    struct outbound_call *c = ctx;
    (void)to, (void)from, (void)to_port, (void)from_port;
    if (c->sent) return CURL_PREREQFUNC_ABORT;
    c->sent = true;
    return CURL_PREREQFUNC_OK;
}

/* Of large ones. There is no way back to its beginning: libcurl is given no function to seek with. */
static size_t read_body(char *out, size_t size, size_t count, void *ctx) {
    struct outbound_call *c = ctx;
    size_t left = c->body_bytes - c->body_read, n = size * count < left ? size * count : left;
    memcpy(out, c->body + c->body_read, n);
    c->body_read += n;
    return n;
}

static size_t on_head(char *bytes, size_t size, size_t count, void *ctx) {
    struct outbound_call *c = ctx;
    return answer_head_line(&c->head, slice_of(bytes, size * count), OUTBOUND_HEAD_BYTES) ? size * count : 0;
}

/* Less than what it was given, and libcurl ends the call. */
static size_t on_body(char *bytes, size_t size, size_t count, void *ctx) {
    struct outbound_call *c = ctx;
    size_t n = size * count, room = c->answer_max - c->answer.len, kept = n < room ? n : room;
    buf_add(&c->answer, bytes, kept);
    c->excess += n - kept;
    c->cut = c->excess > OUTBOUND_EXCESS_BYTES;
    return c->cut ? 0 : n;
}

static void enqueue(struct outbound_call *c);

/* After each piece of an answer, of some hundred reads at most. libcurl goes on at once with every call that has more to be read, in
 * the same turn: many that never end would keep the loop for seconds. Those of a turn that is over wait for one of their own. */
static int on_progress(void *ctx, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up) {
    struct outbound_call *c = ctx;
    (void)down_all, (void)down, (void)up_all, (void)up;
    if (!c->easy || !c->sent || c->paused || !turn_is_over(c->all->turn_us)) return 0; /* it may be on its way out */
    c->paused = true;
    check_curl(curl_easy_pause(c->easy, CURLPAUSE_ALL));
    if (!c->wait) enqueue(c);
    return 0;
}

static void read_on(struct outbound_call *c) {
    struct outbound *o = c->all;
    int running;
    c->paused = false;
    CURLcode rc = curl_easy_pause(c->easy, CURLPAUSE_CONT);
    if (rc != CURLE_OK) return finish(c, rc); /* what had been read already was too much */
    check_multi(curl_multi_socket_action(o->multi, CURL_SOCKET_TIMEOUT, 0, &running));
    pump_soon(o);
}

/* ---- calls that begin */

static CURL *new_easy(const struct outbound *o) {
    CURL *easy = curl_easy_init();
    CHECK(easy);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    SET(CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    SET(CURLOPT_MAXAGE_CONN, IDLE_S_MAX);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)INT32_MAX); /* without it, five minutes */
    SET(CURLOPT_HAPPY_EYEBALLS_TIMEOUT_MS, 1L); /* for a second address: there is none, and its timer reads answers */
    SET(CURLOPT_DNS_CACHE_TIMEOUT, 0L);         /* libcurl would walk over all of it whenever a call ends */
    /* Certificates are looked up in the directory one by one: reading the file of all of them takes longer than a turn may. */
    SET(CURLOPT_CAINFO, NULL);
    SET(CURLOPT_CAPATH, o->authorities);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_PREREQFUNCTION, may_send);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_HEADERFUNCTION, on_head);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress);
    SET(CURLOPT_NOPROGRESS, 0L);
    return easy;
}

/* Of no body, too. */
static bool says_length(const char *method) {
    return strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 || strcmp(method, "PATCH") == 0;
}

/* A handle may have had another call before: everything that differs between two is said. */
static void set_request(CURL *easy, struct outbound_call *c) {
    long bodiless = c->body_bytes == 0;
    SET(CURLOPT_PRIVATE, c);
    SET(CURLOPT_HTTPGET, 1L);
    SET(CURLOPT_CURLU, c->url);
    SET(CURLOPT_USERAGENT, c->verbatim_head ? NULL : "hapax/" HAPAX_VERSION);
    SET(CURLOPT_HTTPHEADER, c->headers);
    if (c->body_bytes > BODY_WHOLE_MAX) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->body_bytes);
        SET(CURLOPT_READFUNCTION, read_body);
        SET(CURLOPT_READDATA, c);
    } else if (c->body_bytes || says_length(c->method)) {
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body_bytes);
        SET(CURLOPT_POSTFIELDS, c->body_bytes ? c->body : "");
    }
    /* One without a body, on a connection that was used before, would go out again, were it not for may_send. */
    SET(CURLOPT_FRESH_CONNECT, bodiless);
    SET(CURLOPT_FORBID_REUSE, bodiless);
    if (strcmp(c->method, "HEAD") == 0) SET(CURLOPT_NOBODY, 1L);
    SET(CURLOPT_CUSTOMREQUEST, c->method);
}

static CURL *take_easy(struct outbound_call *c) {
    struct outbound *o = c->all;
    CURL *easy = o->idle_count ? o->idle[--o->idle_count] : new_easy(o);
    c->forgets = o->forgets;
    SET(CURLOPT_OPENSOCKETDATA, c);
    SET(CURLOPT_PREREQDATA, c);
    SET(CURLOPT_WRITEDATA, c);
    SET(CURLOPT_HEADERDATA, c);
    SET(CURLOPT_XFERINFODATA, c);
    set_request(easy, c);
    return easy;
}

static void on_deadline(uv_timer_t *t);

static void set_deadline(struct outbound_call *c, i64 in_ms) {
    CHECK(uv_timer_start(&c->deadline, on_deadline, in_ms > 0 ? (u64)in_ms : 0, 0) == 0);
}

/* To the next of its addresses; each has a part of the time there is to connect. false: there is none, or no time. */
static bool try_next(struct outbound_call *c) {
    CURL *easy = c->easy;
    i64 elapsed = elapsed_ms(c), left = c->connect_ms - elapsed, others = c->to.count - c->tried;
    if (others == 0 || left <= 0) return false;
    const char *at = c->to.at[c->tried];
    char to[RESOLVED_TEXT + 8];
    snprintf(to, sizeof to, strchr(at, ':') ? "::[%s]:" : "::%s:", at);
    if (c->tried) check_multi(curl_multi_remove_handle(c->all->multi, easy));
    curl_slist_free_all(c->connect_to);
    c->connect_to = curl_slist_append(NULL, to);
    CHECK(c->connect_to);
    c->tried++;
    c->try_ms = elapsed + (left + others - 1) / others;
    set_deadline(c, c->try_ms - elapsed);
    SET(CURLOPT_CONNECT_TO, c->connect_to);
    check_multi(curl_multi_add_handle(c->all->multi, easy));
    return true;
}

static void connect_call(struct outbound_call *c) {
    if (c->to.count == 0) return tell(c, OUTBOUND_NOT_SENT, c->to.why);
    if (c->to.any_private && !c->allow_private)
        return tell(c, OUTBOUND_NOT_SENT, "the address is not public, and allow_private is not set");
    c->easy = take_easy(c);
    if (!try_next(c)) tell(c, OUTBOUND_NOT_SENT, "no time was left to connect");
}

/* How many of them have their turn in one of the loop's is decided in take_turns. */
static void enqueue(struct outbound_call *c) {
    struct outbound *o = c->all;
    c->queued = NULL;
    c->wait = o->queue_end;
    *o->queue_end = c;
    o->queue_end = &c->queued;
    pump_soon(o);
}

static void on_found(void *ctx, const struct resolved *to) {
    struct outbound_call *c = ctx;
    c->to = *to;
    enqueue(c);
}

static void on_deadline(uv_timer_t *t) {
    struct outbound_call *c = t->data;
    c->late = true;
    if (!c->wait) enqueue(c);
}

/* A timer that goes off too early, or was set before the first byte left, is set again. */
static void end_late(struct outbound_call *c) {
    i64 until = c->sent ? c->total_ms : c->easy ? c->try_ms : c->connect_ms, elapsed = elapsed_ms(c);
    c->late = false;
    if (elapsed < until) {
        set_deadline(c, until - elapsed);
        if (c->paused) enqueue(c);
        return;
    }
    if (c->sent) return tell(c, OUTBOUND_BROKEN, "it took too long");
    if (!c->easy) return tell(c, OUTBOUND_NOT_SENT, "the name was not found in time");
    if (!try_next(c)) tell(c, OUTBOUND_NOT_SENT, "there was no connection in time");
}

static void take_turn(struct outbound_call *c) {
    if (c->refused) return tell(c, OUTBOUND_NOT_SENT, c->refused);
    if (c->late) return end_late(c);
    if (c->paused) return read_on(c);
    if (c->to.count || c->to.why) return connect_call(c);
    c->wait_name.fn = on_found;
    c->wait_name.ctx = c;
    const struct resolved *to = resolver_ask(c->all->resolver, c->host, &c->wait_name);
    if (!to) return set_deadline(c, c->connect_ms - elapsed_ms(c));
    c->to = *to;
    connect_call(c);
}

static void take_turns(struct outbound *o) {
    for (u32 n = 0; o->queue && n < CALLS_A_TURN && (n == 0 || !turn_is_over(o->turn_us)); n++) {
        struct outbound_call *c = o->queue;
        unqueue(c);
        take_turn(c);
    }
    if (o->queue) pump_soon(o);
}

static void on_pump(uv_idle_t *t) {
    struct outbound *o = outbound_in(t->data);
    int running;
    uv_idle_stop(t);
    o->turn_us = (u64)clock_mono_us();
    if (o->due) {
        o->due = false;
        check_multi(curl_multi_socket_action(o->multi, CURL_SOCKET_TIMEOUT, 0, &running));
    }
    finish_calls(o);
    take_turns(o);
    say_ended(o);
}

/* ---- a request, as it was asked for */

static bool is_method(const char *text, size_t max) {
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if (text[i] < 'A' || text[i] > 'Z') return false;
    return n > 0 && n < max;
}

/* The parts of a URL as libcurl reads it, and as it will be used: what is looked at here is what is connected to. */
static const char *take_url(struct outbound_call *c, const char *url) {
    char *part = NULL;
    c->url = curl_url();
    CHECK(c->url);
    if (curl_url_set(c->url, CURLUPART_URL, url, CURLU_PATH_AS_IS | CURLU_DISALLOW_USER)) return "the URL is none";
    if (curl_url_get(c->url, CURLUPART_SCHEME, &part, 0)) return "the URL has no scheme";
    bool http = strcmp(part, "http") == 0 || strcmp(part, "https") == 0;
    curl_free(part);
    if (!http) return "the URL's scheme is neither http nor https";
    CURLUPart none[] = {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_OPTIONS, CURLUPART_ZONEID};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        if (curl_url_get(c->url, none[i], &part, 0)) continue;
        curl_free(part);
        return "the URL has a user, a password or a zone";
    }
    if (curl_url_get(c->url, CURLUPART_PORT, &part, CURLU_DEFAULT_PORT)) return "the URL's port is none";
    bool port = strspn(part, "0") < strlen(part);
    curl_free(part);
    if (!port) return "the URL's port is none";
    if (curl_url_get(c->url, CURLUPART_HOST, &c->host, 0)) return "the URL has no host";
    return NULL;
}

/* A name in ASCII: libcurl and the resolver could take other letters for different names. */
static const char *take_host(struct outbound_call *c) {
    size_t n = strlen(c->host);
    for (size_t i = 0; i < n; i++)
        if (c->host[i] <= ' ' || c->host[i] > '~' || strchr("\"<>\\^`{|}%", c->host[i]))
            return "the URL's host is no name";
    if (n == 0 || n > 255) return "the URL's host is no name";
    if (c->host[0] != '[') return NULL;
    memmove(c->host, c->host + 1, n - 2);
    c->host[n - 2] = 0;
    return NULL;
}

static void add_header(struct outbound_call *c, const char *line) {
    struct curl_slist *more = curl_slist_append(c->headers, line);
    CHECK(more);
    c->headers = more;
}

static bool names_any(slice name, const char *const *words) {
    for (; *words; words++)
        if (slice_eq_nocase(name, slice_str(*words))) return true;
    return false;
}

/* libcurl leaves out a header without a value, and sends one that ends in a semicolon without it. */
static void add_empty(struct outbound_call *c, slice name) {
    char *line = mem_alloc(name.n + 2);
    memcpy(line, name.p, name.n);
    memcpy(line + name.n, ";", 2);
    add_header(c, line);
    mem_free(line);
}

static const char *take_headers(struct outbound_call *c, const char *const *headers) {
    static const char *const own[] = {"Host", "Content-Length", "Transfer-Encoding", "Expect", "Connection", NULL};
    bool accept = false, type = false;
    for (; headers && *headers; headers++) {
        slice name, value, line = slice_str(*headers);
        for (size_t i = 0; i < line.n; i++)
            if (((u8)line.p[i] < ' ' && line.p[i] != '\t') || line.p[i] == 0x7f)
                return "a header has a control character";
        if (!slice_cut(line, ':', &name, &value) || name.n == 0) return "a header has no name";
        accept |= slice_eq_nocase(name, SL("Accept"));
        type |= slice_eq_nocase(name, SL("Content-Type"));
        if (names_any(name, own)) continue;
        if (slice_trim(value).n)
            add_header(c, *headers);
        else
            add_empty(c, name);
    }
    add_header(c, "Expect:");
    if (c->verbatim_head && !accept) add_header(c, "Accept:");
    if (!type) add_header(c, "Content-Type:");
    return NULL;
}

static void take_request(struct outbound_call *c, const struct outbound_request *r) {
    if (is_method(r->method, sizeof c->method))
        snprintf(c->method, sizeof c->method, "%s", r->method);
    else
        c->refused = "the method is none";
    if (!c->refused) c->refused = take_url(c, r->url);
    if (!c->refused) c->refused = take_host(c);
    if (!c->refused) c->refused = take_headers(c, r->headers);
    if (r->body.n) c->body = memcpy(mem_alloc(r->body.n), r->body.p, r->body.n);
    c->body_bytes = r->body.n;
}

static void open_multi(struct outbound *o);

struct outbound_call *outbound_call(struct outbound *o, const struct outbound_request *r, outbound_fn done, void *ctx,
                                    u64 number) {
    if (o->count == o->max) return NULL;
    if (!o->multi) open_multi(o);
    struct outbound_call *c = mem_zalloc(sizeof *c);
    *c = (struct outbound_call){.all = o,
                                .done = done,
                                .ctx = ctx,
                                .number = number,
                                .next = o->calls,
                                .link = &o->calls,
                                .began_us = (u64)clock_mono_us(),
                                .connect_ms = r->connect_ms < r->total_ms ? r->connect_ms : r->total_ms,
                                .total_ms = r->total_ms,
                                .answer_max = r->answer_max,
                                .allow_private = r->allow_private,
                                .verbatim_head = r->verbatim_head};
    if (c->next) c->next->link = &c->next;
    o->calls = c;
    o->count++;
    CHECK(uv_timer_init(o->loop, &c->deadline) == 0);
    c->deadline.data = c;
    take_request(c, r);
    enqueue(c);
    return c;
}

/* ---- the whole */

/* With the first call: libcurl takes memory even if nobody is ever called. */
static void open_multi(struct outbound *o) {
    /* Addresses of receivers and headers are secrets. */
    check_curl(curl_global_init_mem(CURL_GLOBAL_DEFAULT, mem_alloc, mem_free_wiped, mem_realloc_wiped, strdup, calloc));
    o->multi = curl_multi_init();
    CHECK(o->multi);
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_SOCKETFUNCTION, set_socket));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_SOCKETDATA, o));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_TIMERFUNCTION, set_timer));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_TIMERDATA, o));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)o->max));
    check_multi(curl_multi_setopt(o->multi, CURLMOPT_MAXCONNECTS, (long)o->max));
    o->sockets = epoll_create1(EPOLL_CLOEXEC);
    CHECK(o->sockets >= 0);
    CHECK(uv_poll_init(o->loop, &o->poll, o->sockets) == 0);
    CHECK(uv_poll_start(&o->poll, UV_READABLE, on_sockets) == 0);
    o->poll.data = o;
    o->handles++;
}

struct outbound *outbound_new(struct uv_loop_s *loop, u32 calls) {
    return outbound_new_with(loop, calls, NULL, "/etc/ssl/certs");
}

struct outbound *outbound_new_with(struct uv_loop_s *loop, u32 calls, resolver_fn *lookup, const char *authorities) {
    struct outbound *o = mem_zalloc(sizeof *o);
    o->magic = OUTBOUND_MAGIC;
    o->loop = loop;
    o->max = calls;
    o->queue_end = &o->queue;
    o->resolver = resolver_new(loop, lookup);
    o->authorities = strdup(authorities);
    CHECK(o->authorities);
    CHECK(uv_timer_init(loop, &o->timer) == 0 && uv_idle_init(loop, &o->pump) == 0);
    o->timer.data = o->pump.data = o;
    o->handles = 2;
    return o;
}

void outbound_on_ended(struct outbound *o, void (*fn)(void *ctx), void *ctx) {
    o->on_ended = fn;
    o->ended_ctx = ctx;
}

void outbound_forget(struct outbound *o) {
    o->forgets++;
    while (o->idle_count) curl_easy_cleanup(o->idle[--o->idle_count]);
}

static void free_all(uv_handle_t *h) {
    struct outbound *o = outbound_in(h->data);
    if (--o->handles) return;
    o->magic = 0;
    mem_free(o->authorities);
    mem_free(o->watched);
    mem_free(o);
}

void outbound_free(struct outbound *o) {
    if (!o) return;
    while (o->calls) outbound_cancel(o->calls);
    outbound_forget(o);
    if (o->multi) {
        check_multi(curl_multi_cleanup(o->multi));
        curl_global_cleanup();
        uv_close((uv_handle_t *)&o->poll, free_all);
        close(o->sockets);
    }
    resolver_free(o->resolver);
    uv_close((uv_handle_t *)&o->timer, free_all);
    uv_close((uv_handle_t *)&o->pump, free_all);
}
