/* What pushing is measured against: a receiver that does nothing but answer, and a loop that does nothing but send.
 *
 *   bench_push receive                       serves on a free port, which it prints, until its input ends
 *   bench_push curl PORT SECONDS CALLS       a bare libcurl-multi loop: handles used again, the body a pointer
 *   bench_push outbound PORT SECONDS CALLS   the same requests through net/outbound, on the loop, without a broker
 *
 * The senders print {"rate":...,"seconds":...,"client_cpu":...}. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <curl/curl.h>

#include "net/loop.h"
#include "net/outbound.h"

#define CALLS_MAX 4096

static const char body[] = "{\"container\":\"MSCU1234567\",\"terminal\":\"RTM-4\",\"date\":\"2026-03-01\",\"window\":"
                           "\"14:00-15:00\",\"carrier\":\"0142\"}";
static const char *const headers[] = {"Content-Type: application/json",
                                      "Idempotency-Key: slot:RTM-4:2026-03-01:MSCU1234567",
                                      "webhook-id: 01ARZ3NDEKTSV4RRFFQ69G5FAV0123456",
                                      "webhook-timestamp: 1772370000",
                                      "Hapax-Attempt: 1",
                                      "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                      NULL};

/* ---- the receiver */

struct conn {
    char bytes[16384];
    size_t n;
    int fd;
};

static size_t request_bytes(const char *p, size_t n) {
    const char *end = memmem(p, n, "\r\n\r\n", 4);
    if (!end) return 0;
    const char *said = memmem(p, (size_t)(end - p), "Content-Length: ", 16);
    return (size_t)(end - p) + 4 + (said ? strtoul(said + 16, NULL, 10) : 0);
}

/* false: it is gone. */
static bool answer(struct conn *c) {
    static const char reply[] =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"id\":\"b-42\"}";
    ssize_t n = read(c->fd, c->bytes + c->n, sizeof c->bytes - c->n);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    c->n += (size_t)n;
    for (size_t one; (one = request_bytes(c->bytes, c->n)) && one <= c->n;) {
        if (send(c->fd, reply, sizeof reply - 1, MSG_NOSIGNAL) != sizeof reply - 1) return false;
        memmove(c->bytes, c->bytes + one, c->n -= one);
    }
    return true;
}

static void add(int all, int fd, void *what) {
    struct epoll_event e = {.events = EPOLLIN, .data = {.ptr = what}};
    CHECK(epoll_ctl(all, EPOLL_CTL_ADD, fd, &e) == 0);
}

static void take(int all, int listener) {
    int one = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    struct conn *c = mem_zalloc(sizeof *c);
    c->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    add(all, fd, c);
}

static int receive(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), all = epoll_create1(0), stdin_marker;
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 4096) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &n) == 0);
    add(all, listener, &listener);
    add(all, 0, &stdin_marker);
    printf("%u\n", ntohs(at.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event ready[256];
        int count = epoll_wait(all, ready, 256, -1);
        for (int i = 0; i < count; i++) {
            if (ready[i].data.ptr == &stdin_marker) return 0;
            if (ready[i].data.ptr == &listener) {
                take(all, listener);
                continue;
            }
            struct conn *c = ready[i].data.ptr;
            if (answer(c)) continue;
            close(c->fd);
            mem_free(c);
        }
    }
}

/* ---- the senders */

static struct {
    char url[64];
    i64 until_us;
    u64 done, failed;
    u32 under_way;
    struct loop *loop;
    struct outbound *outbound;
} run;

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static size_t drop(char *bytes, size_t size, size_t count, void *ctx) {
    (void)bytes, (void)ctx;
    return size * count;
}

static CURL *new_easy(struct curl_slist *list) {
    CURL *easy = curl_easy_init();
    curl_easy_setopt(easy, CURLOPT_URL, run.url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, drop);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    return easy;
}

static void run_curl(u32 calls) {
    struct curl_slist *list = NULL;
    CURL *easies[CALLS_MAX];
    CURLM *multi = curl_multi_init();
    int running = 1, left;
    for (u32 i = 0; headers[i]; i++) list = curl_slist_append(list, headers[i]);
    curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)calls);
    for (u32 i = 0; i < calls; i++) curl_multi_add_handle(multi, easies[i] = new_easy(list));
    while (running) {
        CURLMsg *m;
        curl_multi_perform(multi, &running);
        while ((m = curl_multi_info_read(multi, &left))) {
            CURL *easy = m->easy_handle;
            *(m->data.result == CURLE_OK ? &run.done : &run.failed) += 1;
            curl_multi_remove_handle(multi, easy);
            if (clock_mono_us() >= run.until_us) continue;
            curl_multi_add_handle(multi, easy);
            running = 1;
        }
        if (running) curl_multi_poll(multi, NULL, 0, 1000, NULL);
    }
    for (u32 i = 0; i < calls; i++) curl_easy_cleanup(easies[i]);
    curl_multi_cleanup(multi);
    curl_slist_free_all(list);
}

static void call_next(void);

static void on_answer(void *ctx, u64 number, const struct outbound_answer *a) {
    (void)ctx, (void)number;
    *(a->status == 200 ? &run.done : &run.failed) += 1;
    run.under_way--;
    if (clock_mono_us() < run.until_us) call_next();
    if (run.under_way == 0) loop_stop(run.loop);
}

static void call_next(void) {
    struct outbound_request r = {.method = "POST",
                                 .url = run.url,
                                 .headers = headers,
                                 .body = slice_of(body, sizeof body - 1),
                                 .connect_ms = 5000,
                                 .total_ms = 10000,
                                 .answer_max = 65536,
                                 .allow_private = true};
    CHECK(outbound_call(run.outbound, &r, on_answer, NULL, 0));
    run.under_way++;
}

static void run_outbound(u32 calls) {
    run.loop = loop_new();
    run.outbound = outbound_new(loop_uv(run.loop), calls);
    for (u32 i = 0; i < calls; i++) call_next();
    loop_run(run.loop);
    struct loop_stats stats;
    loop_stats_get(run.loop, &stats);
    fprintf(stderr, "longest turn %llu us\n", (unsigned long long)stats.turn_us_max);
    outbound_free(run.outbound);
    loop_free(run.loop);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "receive") == 0) return receive();
    u64 port, seconds, calls;
    if (argc != 5 || !slice_u64(slice_str(argv[2]), &port) || !slice_u64(slice_str(argv[3]), &seconds) ||
        !slice_u64(slice_str(argv[4]), &calls) || calls == 0 || calls > CALLS_MAX) {
        fprintf(stderr, "usage: bench_push receive | curl PORT SECONDS CALLS | outbound PORT SECONDS CALLS\n");
        return 2;
    }
    snprintf(run.url, sizeof run.url, "http://127.0.0.1:%llu/slots", (unsigned long long)port);
    i64 began = clock_mono_us();
    double cpu = cpu_seconds();
    run.until_us = began + (i64)seconds * 1000000;
    if (strcmp(argv[1], "curl") == 0)
        run_curl((u32)calls);
    else
        run_outbound((u32)calls);
    double took = (double)(clock_mono_us() - began) / 1e6;
    printf("{\"rate\":%.0f,\"seconds\":%.3f,\"client_cpu\":%.2f,\"failed\":%llu}\n", (double)run.done / took, took,
           (cpu_seconds() - cpu) / took, (unsigned long long)run.failed);
    return run.failed ? 1 : 0;
}
