/* witness: producers and consumers that misbehave on purpose, and write down everything they asked and were told.
 *
 * An independent witness: plain sockets and its own HTTP and JSON reading, nothing shared with the broker or its client
 * library, so that a mistake in either cannot hide itself. One thread, one clock (CLOCK_MONOTONIC), one history file in
 * the format check_history describes; each connection is a process of that history and has one request (or one
 * pipeline of requests) in flight.
 *
 *   witness --port P --history FILE [--host A] [--seed N] [--time-ms N] [--producers N] [--consumers N] [--lease-ms N]
 *        [--batch-max N] [--pending-max N] [--messages-max N] [--payload-max N] [--drain-s N]
 *
 * Chaos lasts until --time-ms is over or SIGUSR1 arrives ("the faults have ended"). The broker may be killed and
 * restarted on its port at any moment: a lost connection makes its calls `info`, and they are made again with the same
 * key or token, as a client should. Even producers send to the queue `plain`, odd ones to `fifo`, where each group
 * belongs to one producer, which keeps the order of its sends even over retries. A dead head would block its group, so
 * there consumers reserve first (a lost answer then costs no crash) and are spared what kills messages.
 *
 * After the chaos: sends of unknown outcome are repeated until known; consumers take and ack everything; when no key
 * is left unsettled, every key ever admitted is sent once more (verify=1) and the answers are written down, so that the
 * judge can compare the stored outcomes; the dead, pending, leased and held lists are read; then `drained ok`.
 * Nothing about a message is remembered but a byte per key: key, payload and attributes are functions of
 * (seed, producer, index).
 *
 * Exit: 0 drained; 1 the broker gave an answer the contract does not know (shown on stderr); 2 usage; 3 not drained. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "crash/wire.h"

enum {
    CALLS_MAX = 256,  /* calls in one request or pipeline */
    LATER_MAX = 4096, /* postponed settling calls of one consumer */
    TOKEN_MAX = 256,
    KEY_MAX = 96,
    ID_MAX = 96,
    REQUEST_TIMEOUT_MS = 30000,
    GROUPS_PER_PRODUCER = 16,
    ODD_SHOWN = 10,
};

static struct {
    const char *host, *history;
    uint64_t port, seed, time_ms, producers, consumers, lease_ms, batch_max, pending_max, messages_max, payload_max,
        drain_s;
} opt = {.host = "127.0.0.1",
         .time_ms = 10000,
         .producers = 8,
         .consumers = 16,
         .lease_ms = 1500,
         .batch_max = 60,
         .pending_max = 20000,
         .messages_max = 5000000,
         .payload_max = 20000,
         .drain_s = 60};

enum op { OP_SEND, OP_RECV, OP_ACK, OP_NACK, OP_EXTEND, OP_STEP, OP_START, OP_RELEASE, OP_LIST };
static const char *const op_names[] = {"send", "recv", "ack", "nack", "extend", "step", "start", "release", "list"};

/* One settling call to make: enough to make it again after a lost answer. */
struct todo {
    enum op op;
    int64_t due_us;
    char token[TOKEN_MAX], key[KEY_MAX];
    const char *queue, *class; /* class: of a nack */
    uint32_t delay_ms, lease_ms;
    uint32_t variant; /* which result or step is offered */
    bool explicit_delay;
};

/* One send to make. */
struct item {
    uint32_t producer, index, variant; /* variant 1: the same key with another payload */
    bool unknown;                      /* an earlier try got no answer */
};

struct call {
    uint64_t number;
    enum op op;
    struct item item;
    struct todo todo;
    uint32_t lease_ms; /* recv */
    bool explicit_start, answered, retry;
};

enum link { LINK_DOWN, LINK_CONNECTING, LINK_READY, LINK_BUSY };
enum shape { SHAPE_SINGLES, SHAPE_BATCH, SHAPE_RECV, SHAPE_SETTLE_ONE, SHAPE_SETTLE_MANY, SHAPE_LIST };

struct conn {
    int fd;
    uint32_t process;
    enum link link;
    bool producer;
    uint32_t owner; /* producer number, or consumer number */
    int64_t wake_us, deadline_us;
    struct bytes in, out;
    size_t sent;
    enum shape shape;
    struct call *calls;
    uint32_t call_count, answered;
    /* a producer's plan */
    struct item items[CALLS_MAX];
    uint32_t item_count;
    uint32_t cursor; /* of the passes after the chaos */
    /* a consumer's plan */
    struct todo *now, *later;
    uint32_t now_count, later_count;
    /* listing */
    uint32_t list_step;
    struct bytes list_cursor;
};

enum { KEY_ADMITTED = 1, KEY_SETTLED = 2, KEY_UNKNOWN = 4, KEY_VERIFIED = 8 };

struct keys {
    uint8_t *flags;
    uint32_t n, cap;
};

enum stage { STAGE_CHAOS, STAGE_RESOLVE, STAGE_DRAIN, STAGE_VERIFY, STAGE_LIST, STAGE_END };

static struct conn *conns;
static uint32_t conn_count;
static struct keys *keys_of; /* per producer */
static enum stage stage;
static int epoll_fd;
static int64_t now_us, heal_us, last_delivery_us;
static uint64_t call_numbers, admitted, settled, odd_answers, total_keys, acks_ok, deliveries, reconnects;
static volatile sig_atomic_t heal_asked, stop_asked;
static struct bytes history;
static int history_fd;
static uint64_t rng_state;

/* Small tools. */

static _Noreturn void die(const char *what) {
    fprintf(stderr, "witness: %s: %s\n", what, strerror(errno));
    exit(2);
}

static int64_t clock_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t random_next(void) {
    return mix(rng_state += 0x9e3779b97f4a7c15u);
}
static uint32_t random_below(uint64_t bound) {
    return (uint32_t)(random_next() % bound);
}
static bool chance(uint32_t permille) {
    return random_below(1000) < permille;
}

static uint64_t digest_add(uint64_t h, const void *p, size_t n) {
    const unsigned char *s = p;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = mix(h ^ w);
        s += 8;
        n -= 8;
    }
    uint64_t w = (uint64_t)n << 56;
    memcpy(&w, s, n);
    return mix(h ^ w ^ (uint64_t)n << 60);
}

/* What a key stands for: pure functions of (seed, producer, index, variant). */

static bool producer_is_fifo(uint32_t producer) {
    return producer % 2 == 1;
}
static const char *queue_of(uint32_t producer) {
    return producer_is_fifo(producer) ? "fifo" : "plain";
}

static uint64_t item_hash(const struct item *it, uint32_t salt) {
    uint64_t h = mix(opt.seed ^ mix(it->producer + 1) ^ mix((uint64_t)it->index << 32 | it->variant));
    return mix(h ^ salt);
}

/* One key in eight needs the quoting rules: a slash, a blank, a quote and a letter beyond ASCII. */
static void key_text(const struct item *it, char out[KEY_MAX]) {
    const char *suffix = it->index % 8 == 5 ? "/\xc3\xa9 \"x\"" : it->index % 8 == 3 ? " \"b\\\"" : "";
    snprintf(out, KEY_MAX, "p%u-%u%s", it->producer, it->index, suffix);
}

static bool key_parse(const char *key, struct item *out) {
    char *end;
    if (key[0] != 'p') return false;
    unsigned long producer = strtoul(key + 1, &end, 10);
    if (*end != '-' || producer >= opt.producers) return false;
    unsigned long index = strtoul(end + 1, &end, 10);
    if (index >= keys_of[producer].n) return false;
    *out = (struct item){.producer = (uint32_t)producer, .index = (uint32_t)index};
    char back[KEY_MAX];
    key_text(out, back);
    return strcmp(back, key) == 0;
}

static void group_text(const struct item *it, char out[32]) {
    if (producer_is_fifo(it->producer))
        snprintf(out, 32, "g%u-%u", it->producer,
                 (uint32_t)(item_hash(&(struct item){it->producer, it->index, 0, false}, 7) % GROUPS_PER_PRODUCER));
    else
        snprintf(out, 32, "-");
}

static uint32_t delay_of(const struct item *it) {
    if (producer_is_fifo(it->producer)) return 0;
    uint64_t h = item_hash(&(struct item){it->producer, it->index, 0, false}, 9);
    return h % 50 == 0 ? 300 + (uint32_t)(h >> 32) % 700 : 0;
}

/* Some messages are not worth doing later. */
static uint32_t ttl_of(const struct item *it) {
    if (producer_is_fifo(it->producer) || delay_of(it)) return 0;
    uint64_t h = item_hash(&(struct item){it->producer, it->index, 0, false}, 11);
    return h % 60 == 0 ? 200 + (uint32_t)(h >> 32) % 1500 : 0;
}

static const char *content_type_of(const struct item *it) {
    static const char *const types[] = {"text/plain", "application/octet-stream", "application/vnd.load+json"};
    return types[item_hash(it, 3) % 3];
}

static bool is_binary(const struct item *it) {
    return item_hash(it, 3) % 3 == 1;
}

static void value_text(const struct item *it, char out[33]) {
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, item_hash(it, 1), item_hash(it, 2));
}

/* The 128-bit value first, then filler of a length and kind the value decides. */
static void payload_add(struct bytes *b, const struct item *it) {
    char value[33];
    value_text(it, value);
    bytes_text(b, value);
    uint64_t h = item_hash(it, 4);
    size_t filler = h % 200 == 0 && opt.payload_max ? (size_t)(h >> 20) % opt.payload_max : (size_t)(h >> 8) % 200;
    for (size_t i = 0; i < filler; i++) {
        uint64_t bits = h >> (i % 57);
        char c = (char)(is_binary(it) ? bits & 0xff : ' ' + bits % 95);
        bytes_add(b, &c, 1);
    }
}

static uint64_t digest_of(struct text payload, const char *content_type, const char *attr) {
    uint64_t h = digest_add(0, content_type, strlen(content_type));
    h = digest_add(h, attr, strlen(attr));
    return digest_add(h, payload.p, payload.n);
}

static uint64_t item_digest(const struct item *it) {
    static struct bytes payload;
    char value[33];
    payload.n = 0;
    payload_add(&payload, it);
    value_text(it, value);
    return digest_of((struct text){payload.p, payload.n}, content_type_of(it), value);
}

/* The result an attempt offers: the variant makes repeated acks differ on purpose; one in four is no UTF-8. */
static bool result_is_binary(const struct todo *t) {
    return t->op != OP_STEP && (t->variant + strlen(t->key)) % 4 == 0;
}

static struct text result_of(const struct todo *t, char out[KEY_MAX + 64]) {
    int n = snprintf(out, KEY_MAX + 64, "result %u of %s", t->variant, t->key);
    if (result_is_binary(t)) out[0] = (char)0xff;
    return (struct text){out, (size_t)n};
}

static uint64_t result_digest(struct text body, const char *content_type) {
    return digest_add(digest_add(1, content_type, strlen(content_type)), body.p, body.n);
}

/* The history. */

static void history_flush(void) {
    size_t done = 0;
    while (done < history.n) {
        ssize_t n = write(history_fd, history.p + done, history.n - done);
        if (n < 0) die("writing the history");
        done += (size_t)n;
    }
    history.n = 0;
}

static void history_key(const char *key) {
    for (const char *p = key; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c > 0x20 && c < 0x7f && c != '%')
            bytes_add(&history, p, 1);
        else
            bytes_format(&history, "%%%02x", c);
    }
    if (!*key) bytes_text(&history, "-");
}

struct entry {
    const char *phase, *queue, *key, *id, *token, *fence, *group;
    uint64_t value, result;
    char extra[160];
};

static void history_digest(uint64_t d) {
    if (d)
        bytes_format(&history, " %016" PRIx64, d);
    else
        bytes_text(&history, " -");
}

static const char *or_dash(const char *s) {
    return s && *s ? s : "-";
}

static void record(const struct conn *c, enum op op, uint64_t number, const struct entry *e) {
    bytes_format(&history, "%" PRId64 " p%u %s %s %" PRIu64 " %s ", now_us, c->process, op_names[op], e->phase, number,
                 or_dash(e->queue));
    history_key(e->key ? e->key : "");
    history_digest(e->value);
    bytes_format(&history, " %s %s %s %s", or_dash(e->id), or_dash(e->token), or_dash(e->fence), or_dash(e->group));
    history_digest(e->result);
    bytes_format(&history, " %s\n", or_dash(e->extra));
    if (history.n > 1 << 20) history_flush();
}

static void odd_answer(const struct conn *c, const char *what, int status, struct text body) {
    if (odd_answers++ >= ODD_SHOWN) return;
    fprintf(stderr, "witness: odd answer to process p%u: %s: status %d: %.*s\n", c->process, what, status,
            (int)(body.n > 300 ? 300 : body.n), body.p);
}

/* What is known of keys. */

static uint8_t *flags_of(const struct item *it) {
    return &keys_of[it->producer].flags[it->index];
}

static void key_admitted(const struct item *it) {
    uint8_t *f = flags_of(it);
    if (!(*f & KEY_ADMITTED)) admitted++;
    *f = (uint8_t)((*f | KEY_ADMITTED) & ~KEY_UNKNOWN);
}

static void key_settled(const struct item *it) {
    key_admitted(it);
    uint8_t *f = flags_of(it);
    if (!(*f & KEY_SETTLED)) settled++;
    *f |= KEY_SETTLED;
}

static uint32_t key_new(uint32_t producer) {
    struct keys *k = &keys_of[producer];
    if (k->n == k->cap) {
        k->cap = k->cap ? k->cap * 2 : 4096;
        k->flags = realloc(k->flags, k->cap);
        if (!k->flags) die("memory");
    }
    k->flags[k->n] = 0;
    total_keys++;
    return k->n++;
}

/* Requests. */

static struct call *call_add(struct conn *c, enum op op) {
    struct call *call = &c->calls[c->call_count++];
    memset(call, 0, sizeof *call);
    call->number = ++call_numbers;
    call->op = op;
    return call;
}

static void send_recorded(const struct conn *c, const struct call *call) {
    struct entry e = {.phase = "invoke", .queue = queue_of(call->item.producer), .value = item_digest(&call->item)};
    char key[KEY_MAX], group[32];
    key_text(&call->item, key);
    group_text(&call->item, group);
    e.key = key;
    e.group = group;
    snprintf(e.extra, sizeof e.extra, "delay=%u,ttl=%u,verify=%d", delay_of(&call->item), ttl_of(&call->item),
             stage == STAGE_VERIFY);
    record(c, OP_SEND, call->number, &e);
}

/* The three spellings of a key in the header; which ones a key can wear depends on its bytes. */
static void key_header_add(struct bytes *b, const struct item *it) {
    char key[KEY_MAX];
    key_text(it, key);
    bool ascii = it->index % 8 != 5, bare = ascii && it->index % 8 != 3;
    uint32_t spelling = bare ? random_below(3) : ascii ? 1 + random_below(2) : 2;
    bytes_text(b, "Idempotency-Key: ");
    if (spelling == 0) {
        bytes_text(b, key);
    } else if (spelling == 1) {
        bytes_text(b, "\"");
        for (const char *p = key; *p; p++) {
            if (*p == '"' || *p == '\\') bytes_text(b, "\\");
            bytes_add(b, p, 1);
        }
        bytes_text(b, "\"");
    } else {
        bytes_text(b, "%\"");
        for (const char *p = key; *p; p++) {
            unsigned char ch = (unsigned char)*p;
            if (ch < 0x20 || ch > 0x7e || ch == '"' || ch == '%')
                bytes_format(b, "%%%02x", ch);
            else
                bytes_add(b, p, 1);
        }
        bytes_text(b, "\"");
    }
    bytes_text(b, "\r\n");
}

static void single_send_add(struct conn *c, const struct item *it) {
    static struct bytes payload;
    char value[33], group[32];
    payload.n = 0;
    payload_add(&payload, it);
    value_text(it, value);
    group_text(it, group);
    bytes_format(&c->out, "POST /v1/queues/%s/messages HTTP/1.1\r\nHost: %s:%" PRIu64 "\r\nContent-Type: %s\r\n",
                 queue_of(it->producer), opt.host, opt.port, content_type_of(it));
    key_header_add(&c->out, it);
    bytes_format(&c->out, "Hapax-Attr-V: %s\r\n", value);
    if (group[0] != '-') bytes_format(&c->out, "Hapax-Group: %s\r\n", group);
    if (delay_of(it)) bytes_format(&c->out, "Hapax-Delay: %ums\r\n", delay_of(it));
    if (ttl_of(it)) bytes_format(&c->out, "Hapax-Ttl: %ums\r\n", ttl_of(it));
    if (c->item_count == 1 && stage == STAGE_CHAOS && chance(200)) bytes_text(&c->out, "Prefer: wait=1\r\n");
    bytes_format(&c->out, "Content-Length: %zu\r\n\r\n", payload.n);
    bytes_add(&c->out, payload.p, payload.n);
}

static void batch_line_add(struct bytes *b, const struct item *it) {
    static struct bytes payload;
    char key[KEY_MAX], value[33], group[32];
    payload.n = 0;
    payload_add(&payload, it);
    struct text text = {payload.p, payload.n};
    key_text(it, key);
    value_text(it, value);
    group_text(it, group);
    bytes_text(b, "{\"key\":");
    json_quote(b, (struct text){key, strlen(key)});
    if (is_binary(it)) {
        bytes_text(b, ",\"payload_base64\":\"");
        base64_add(b, text);
        bytes_text(b, "\"");
    } else {
        bytes_text(b, ",\"payload\":");
        json_quote(b, text);
    }
    bytes_format(b, ",\"content_type\":\"%s\",\"attrs\":{\"v\":\"%s\"}", content_type_of(it), value);
    if (group[0] != '-') bytes_format(b, ",\"group\":\"%s\"", group);
    if (delay_of(it)) bytes_format(b, ",\"delay\":\"%ums\"", delay_of(it));
    if (ttl_of(it)) bytes_format(b, ",\"ttl\":\"%ums\"", ttl_of(it));
    bytes_text(b, "}\n");
}

static void request_add(struct conn *c, const char *method, const char *path, const char *type, struct text body) {
    bytes_format(&c->out, "%s %s HTTP/1.1\r\nHost: %s:%" PRIu64 "\r\n", method, path, opt.host, opt.port);
    if (type) bytes_format(&c->out, "Content-Type: %s\r\n", type);
    if (body.n || strcmp(method, "POST") == 0) bytes_format(&c->out, "Content-Length: %zu\r\n", body.n);
    bytes_text(&c->out, "\r\n");
    bytes_add(&c->out, body.p, body.n);
}

static void items_sent(struct conn *c, bool batch) {
    static struct bytes body;
    body.n = 0;
    for (uint32_t i = 0; i < c->item_count; i++) {
        struct call *call = call_add(c, OP_SEND);
        call->item = c->items[i];
        send_recorded(c, call);
        if (batch)
            batch_line_add(&body, &call->item);
        else
            single_send_add(c, &call->item);
    }
    c->shape = batch ? SHAPE_BATCH : SHAPE_SINGLES;
    if (!batch) return;
    char path[64];
    snprintf(path, sizeof path, "/v1/queues/%s/batch", queue_of(c->owner));
    request_add(c, "POST", path, "application/x-ndjson", (struct text){body.p, body.n});
}

static void result_add(struct bytes *b, const struct todo *t, struct text result) {
    if (result_is_binary(t)) {
        bytes_text(b, ",\"content_type\":\"application/octet-stream\",\"result_base64\":\"");
        base64_add(b, result);
        bytes_text(b, "\"");
    } else {
        bytes_text(b, ",\"result\":");
        json_quote(b, result);
    }
}

static void settle_object_add(struct bytes *b, const struct todo *t) {
    char memory[KEY_MAX + 64];
    struct text result = result_of(t, memory);
    bytes_format(b, "{\"token\":\"%s\"", t->token);
    if (t->op == OP_NACK) bytes_format(b, ",\"class\":\"%s\",\"reason\":\"on purpose\"", t->class);
    if (t->op == OP_NACK && t->explicit_delay) bytes_format(b, ",\"delay\":\"%ums\"", t->delay_ms);
    if (t->op == OP_EXTEND) bytes_format(b, ",\"lease\":\"%ums\"", t->lease_ms);
    if (t->op == OP_STEP) bytes_format(b, ",\"name\":\"step%u\"", t->variant);
    bool rejects = t->op == OP_NACK && strcmp(t->class, "rejected") == 0;
    if (t->op == OP_ACK || t->op == OP_STEP || rejects) result_add(b, t, result);
    bytes_text(b, "}");
}

static uint64_t todo_result_digest(const struct todo *t) {
    char memory[KEY_MAX + 64];
    if (t->op != OP_ACK && !(t->op == OP_NACK && strcmp(t->class, "rejected") == 0)) return 0;
    return result_digest(result_of(t, memory), result_is_binary(t) ? "application/octet-stream" : "text/plain");
}

static void settle_recorded(const struct conn *c, const struct call *call) {
    const struct todo *t = &call->todo;
    struct entry e = {.phase = "invoke", .queue = t->queue, .key = t->key, .token = t->token};
    e.result = todo_result_digest(t);
    if (t->op == OP_NACK) snprintf(e.extra, sizeof e.extra, "class=%s,delay=%u", t->class, t->delay_ms);
    if (t->op == OP_EXTEND) snprintf(e.extra, sizeof e.extra, "lease=%u", t->lease_ms);
    record(c, t->op, call->number, &e);
}

/* The first calls of the plan that share a verb go out together, or the first alone. */
static void todos_sent(struct conn *c) {
    static struct bytes body;
    uint32_t n = 1;
    bool many = chance(700);
    while (many && n < c->now_count && n < CALLS_MAX && c->now[n].op == c->now[0].op) n++;
    body.n = 0;
    if (many) bytes_text(&body, "[");
    for (uint32_t i = 0; i < n; i++) {
        struct call *call = call_add(c, c->now[i].op);
        call->todo = c->now[i];
        settle_recorded(c, call);
        if (i) bytes_text(&body, ",");
        settle_object_add(&body, &call->todo);
    }
    if (many) bytes_text(&body, "]");
    char path[32];
    snprintf(path, sizeof path, "/v1/%s", op_names[c->now[0].op]);
    memmove(c->now, c->now + n, (c->now_count - n) * sizeof *c->now);
    c->now_count -= n;
    c->shape = many ? SHAPE_SETTLE_MANY : SHAPE_SETTLE_ONE;
    request_add(c, "POST", path, "application/json", (struct text){body.p, body.n});
}

static void receive_sent(struct conn *c) {
    static const uint32_t sizes[] = {1, 5, 20, 50};
    const char *queue = c->owner % 2 ? "fifo" : "plain";
    bool calm = stage != STAGE_CHAOS;
    uint32_t max = calm ? 100 : sizes[random_below(4)], wait = calm ? 200 : random_below(3) * 300;
    struct call *call = call_add(c, OP_RECV);
    call->lease_ms = (uint32_t)opt.lease_ms;
    call->explicit_start = !calm && (c->owner % 2 || chance(200));
    call->todo.queue = queue;
    const char *start = call->explicit_start ? "explicit" : "auto";
    struct entry e = {.phase = "invoke", .queue = queue};
    snprintf(e.extra, sizeof e.extra, "lease=%u,start=%s", call->lease_ms, start);
    record(c, OP_RECV, call->number, &e);
    char path[160];
    snprintf(path, sizeof path, "/v1/queues/%s/receive?max=%u&wait=%ums&lease=%ums&consumer=c%u&start=%s", queue, max,
             wait, call->lease_ms, c->owner, start);
    c->shape = SHAPE_RECV;
    request_add(c, "POST", path, NULL, (struct text){NULL, 0});
}

static const char *const list_states[] = {"dead", "pending", "leased", "held"};
static const char *list_queue(uint32_t step) {
    return step / 4 ? "fifo" : "plain";
}

static void list_sent(struct conn *c) {
    static struct bytes path;
    path.n = 0;
    bytes_format(&path, "/v1/queues/%s/messages?state=%s&limit=100", list_queue(c->list_step),
                 list_states[c->list_step % 4]);
    if (c->list_cursor.n) bytes_text(&path, "&cursor=");
    for (size_t i = 0; i < c->list_cursor.n; i++) bytes_format(&path, "%%%02x", (unsigned char)c->list_cursor.p[i]);
    bytes_add(&path, "", 1);
    call_add(c, OP_LIST);
    c->shape = SHAPE_LIST;
    request_add(c, "GET", path.p, NULL, (struct text){NULL, 0});
}

/* Answers. */

/* Whether a refusal says that nothing happened; an answer without `applied` says nothing at all. */
static const char *refusal_phase(struct text body) {
    return json_is(body, "applied", "\"no\"") ? "fail" : "info";
}

static uint64_t told_result(struct text body) {
    struct text result = json_member(body, "result");
    if (!result.p || result.p[0] != '{') return 0;
    struct bytes raw = {0}, decoded = {0};
    char type[128];
    uint64_t d = 0;
    bool base64 = json_is(result, "encoding", "\"base64\"");
    if (json_copy(result, "content_type", type, sizeof type) && json_string(json_member(result, "body"), &raw)) {
        if (base64) base64_read(&decoded, (struct text){raw.p, raw.n});
        const struct bytes *b = base64 ? &decoded : &raw;
        d = result_digest((struct text){b->p, b->n}, type);
    }
    free(raw.p);
    free(decoded.p);
    return d;
}

static bool state_is_final(const char *state) {
    return strcmp(state, "done") == 0 || strcmp(state, "rejected") == 0 || strcmp(state, "cancelled") == 0;
}

static void send_answered(struct conn *c, struct call *call, int status, struct text body) {
    char key[KEY_MAX], group[32], id[ID_MAX], state[32], code[64];
    struct entry e = {.queue = queue_of(call->item.producer), .value = item_digest(&call->item)};
    key_text(&call->item, key);
    group_text(&call->item, group);
    e.key = key;
    e.group = group;
    call->answered = true;
    if (status == 200 || status == 202) {
        if (!json_copy(body, "id", id, sizeof id) || !json_copy(body, "state", state, sizeof state))
            odd_answer(c, "send without id or state", status, body);
        bool dup = json_is(body, "duplicate", "true");
        if ((status == 200) != state_is_final(state)) odd_answer(c, "status and state differ", status, body);
        e.phase = "ok";
        e.id = id;
        if (state_is_final(state)) e.result = told_result(body);
        snprintf(e.extra, sizeof e.extra, "dup=%d,state=%s", dup, state);
        key_admitted(&call->item);
        if (state_is_final(state) || strcmp(state, "dead") == 0) key_settled(&call->item);
        if (stage == STAGE_VERIFY) *flags_of(&call->item) |= KEY_VERIFIED;
    } else {
        json_copy(body, "code", code, sizeof code);
        bool reused = status == 422 && strcmp(code, "key_reused") == 0;
        if (!reused && status != 429 && status != 503 && status != 507) odd_answer(c, "send", status, body);
        e.phase = refusal_phase(body);
        call->retry = !reused;
        call->item.unknown |= e.phase[0] == 'i';
        snprintf(e.extra, sizeof e.extra, "code=%s", or_dash(code));
    }
    record(c, OP_SEND, call->number, &e);
}

static void settle_answered(struct conn *c, struct call *call, int status, struct text body) {
    const struct todo *t = &call->todo;
    char code[64], state[32];
    struct entry e = {.queue = t->queue, .key = t->key, .token = t->token, .phase = "ok"};
    struct item it;
    call->answered = true;
    bool refused = json_member(body, "code").p != NULL;
    json_copy(body, "state", state, sizeof state);
    if (!refused) {
        bool dup = json_is(body, "duplicate", "true") || json_is(body, "status", "\"duplicate\"");
        snprintf(e.extra, sizeof e.extra, "dup=%d", dup);
        if (status != 200) odd_answer(c, "settle", status, body);
        acks_ok += t->op == OP_ACK;
    } else {
        json_copy(body, "code", code, sizeof code);
        bool known = strcmp(code, "fenced") == 0 || strcmp(code, "settled") == 0;
        bool busy = status == 503 || status == 507 || status == 429;
        if (!known && !busy) odd_answer(c, op_names[t->op], status, body);
        e.phase = refusal_phase(body);
        call->retry = busy;
        snprintf(e.extra, sizeof e.extra, "code=%s", code);
    }
    if ((state_is_final(state) || strcmp(state, "dead") == 0) && key_parse(t->key, &it)) key_settled(&it);
    record(c, t->op, call->number, &e);
}

static void todo_add(struct conn *c, struct todo t) {
    if (c->now_count < LATER_MAX) c->now[c->now_count++] = t;
}

static void later_add(struct conn *c, struct todo t, int64_t after_ms) {
    if (c->later_count == LATER_MAX) return;
    t.due_us = now_us + after_ms * 1000;
    c->later[c->later_count++] = t;
}

static struct todo with(struct todo t, enum op op, const char *class, uint32_t delay_ms) {
    t.op = op;
    t.class = class;
    t.delay_ms = delay_ms;
    t.explicit_delay = delay_ms > 0;
    return t;
}

struct delivery {
    uint64_t attempt, failures, crashes, steps;
    bool explicit_start, fifo;
};

/* The rarer fates: everything that makes a message come back, die, or be fought over. */
static void rare_fate(struct conn *c, struct todo t, const struct delivery *d, uint32_t roll) {
    if (roll < 35) {
        todo_add(c, with(t, OP_NACK, "transient", 50 + random_below(350)));
    } else if (roll < 45 && d->failures < 3) {
        t = with(t, OP_NACK, "transient", 1000); /* the default backoff, left to the broker, is no less */
        t.explicit_delay = false;
        todo_add(c, t);
    } else if (roll < 55 && d->failures + d->crashes == 0) {
        todo_add(c, with(t, OP_NACK, "unknown", 0));
    } else if (roll < 60 && !d->fifo) {
        todo_add(c, with(t, OP_NACK, "poison", 0));
    } else if (roll < 85) {
        todo_add(c, with(t, OP_NACK, "rejected", 0));
    } else if (roll < 115) {
        todo_add(c, with(t, OP_RELEASE, NULL, 0));
    } else if (roll < 130 && d->crashes == 0) {
        return; /* the consumer dies silently */
    } else if (roll < 150) {
        later_add(c, with(t, OP_ACK, NULL, 0), (int64_t)opt.lease_ms + random_below(600)); /* a zombie */
    } else if (roll < 170) {
        later_add(c, with(t, OP_ACK, NULL, 0), (int64_t)opt.lease_ms / 2);
    } else {
        todo_add(c, with(t, OP_ACK, NULL, 0));
    }
}

static void fate(struct conn *c, struct todo t, const struct delivery *d) {
    t.variant = (uint32_t)d->attempt * 10;
    if (d->explicit_start && chance(50)) return; /* the reservation runs out unstarted */
    if (d->explicit_start) todo_add(c, with(t, OP_START, NULL, 0));
    uint32_t roll = random_below(1000);
    bool calm = stage != STAGE_CHAOS || d->attempt > 4;
    if (!calm && roll < 200) {
        rare_fate(c, t, d, roll);
        return;
    }
    if (!calm && roll < 240) {
        struct todo extend = with(t, OP_EXTEND, NULL, 0);
        extend.lease_ms = (uint32_t)opt.lease_ms + random_below(500);
        todo_add(c, extend);
    } else if (!calm && roll < 280) {
        todo_add(c, with(t, OP_STEP, NULL, 0));
        if (roll < 255) {
            todo_add(c, with(t, OP_RELEASE, NULL, 0));
            return;
        }
    }
    todo_add(c, with(t, OP_ACK, NULL, 0));
    if (!calm && roll > 960) {
        t.variant++; /* repeated with another result: the first must stand */
        later_add(c, with(t, OP_ACK, NULL, 0), random_below(2000));
    }
}

static uint64_t delivered_digest(struct text m) {
    struct bytes raw = {0}, decoded = {0};
    char type[128], attr[64];
    json_copy(m, "content_type", type, sizeof type);
    json_copy(json_member(m, "attrs"), "v", attr, sizeof attr);
    bool base64 = json_is(m, "encoding", "\"base64\"");
    json_string(json_member(m, "payload"), &raw);
    if (base64) base64_read(&decoded, (struct text){raw.p, raw.n});
    const struct bytes *b = base64 ? &decoded : &raw;
    uint64_t d = digest_of((struct text){b->p, b->n}, type, attr);
    free(raw.p);
    free(decoded.p);
    return d;
}

static void message_received(struct conn *c, const struct call *call, struct text m) {
    char id[ID_MAX], group[32], fence[32];
    struct todo t = {.queue = call->todo.queue};
    if (!json_copy(m, "id", id, sizeof id) || !json_copy(m, "key", t.key, sizeof t.key) ||
        !json_copy(m, "token", t.token, sizeof t.token) || !json_copy(m, "fence", fence, sizeof fence)) {
        odd_answer(c, "delivery without id, key, token or fence", 200, m);
        return;
    }
    struct delivery d = {.attempt = json_number(m, "attempt"),
                         .failures = json_number(m, "failures"),
                         .crashes = json_number(m, "crashes"),
                         .explicit_start = call->explicit_start,
                         .fifo = call->todo.queue[0] == 'f'};
    struct text steps = json_member(m, "steps"), step;
    while (steps.p && json_next(&steps, &step)) d.steps++;
    json_copy(m, "group", group, sizeof group);
    struct entry e = {.phase = "ok", .queue = t.queue, .key = t.key, .id = id, .token = t.token, .fence = fence};
    e.group = group;
    e.value = delivered_digest(m);
    snprintf(e.extra, sizeof e.extra, "crashes=%" PRIu64 ",failures=%" PRIu64 ",steps=%" PRIu64, d.crashes, d.failures,
             d.steps);
    record(c, OP_RECV, call->number, &e);
    struct item it;
    if (key_parse(t.key, &it)) key_admitted(&it);
    deliveries++;
    last_delivery_us = now_us;
    fate(c, t, &d);
}

static void receive_answered(struct conn *c, struct call *call, int status, struct text body) {
    struct text messages = json_member(body, "messages"), m;
    struct entry e = {.phase = "ok", .queue = call->todo.queue};
    call->answered = true;
    if (status != 200 || !messages.p) {
        if (status != 503 && status != 507 && status != 429) odd_answer(c, "receive", status, body);
        e.phase = refusal_phase(body);
        record(c, OP_RECV, call->number, &e);
        c->wake_us = now_us + 50000;
        return;
    }
    uint32_t n = 0;
    for (; json_next(&messages, &m); n++) message_received(c, call, m);
    if (!n) record(c, OP_RECV, call->number, &e);
}

static void list_answered(struct conn *c, struct call *call, int status, struct text body) {
    call->answered = true;
    struct text items = json_member(body, "items"), m;
    if (status != 200 || !items.p) {
        odd_answer(c, "list", status, body);
        stage = STAGE_END;
        return;
    }
    struct entry e = {.phase = "ok", .queue = list_queue(c->list_step)};
    snprintf(e.extra, sizeof e.extra, "state=%s", list_states[c->list_step % 4]);
    record(c, OP_LIST, 0, &e);
    while (json_next(&items, &m)) {
        char id[ID_MAX], key[KEY_MAX];
        json_copy(m, "id", id, sizeof id);
        json_copy(m, "key", key, sizeof key);
        e.id = id;
        e.key = key;
        record(c, OP_LIST, 0, &e);
    }
    c->list_cursor.n = 0;
    json_string(json_member(body, "next_cursor"), &c->list_cursor);
    if (!c->list_cursor.n) c->list_step++;
}

/* Plans. */

static void items_planned(struct conn *c) {
    struct keys *k = &keys_of[c->owner];
    uint32_t n = 1 + random_below(chance(500) ? opt.batch_max : 5);
    for (c->item_count = 0; c->item_count < n; c->item_count++) {
        struct item *it = &c->items[c->item_count];
        *it = (struct item){.producer = c->owner};
        bool old = k->n > 0 && chance(150);
        if (old) {
            it->index = chance(500) ? random_below(k->n) : k->n - 1 - random_below(k->n < 50 ? k->n : 50);
            bool conflict = (k->flags[it->index] & KEY_ADMITTED) && chance(200);
            it->variant = conflict;
        } else {
            it->index = key_new(c->owner);
        }
    }
}

/* After the chaos: the next keys with all of `want` and none of `without` in their flags. */
static void items_with_flags(struct conn *c, uint8_t want, uint8_t without, uint32_t limit) {
    const struct keys *k = &keys_of[c->owner];
    for (c->item_count = 0; c->item_count < limit && c->cursor < k->n; c->cursor++) {
        uint8_t f = k->flags[c->cursor];
        if ((f & want) != want || (f & without)) continue;
        c->items[c->item_count++] = (struct item){.producer = c->owner, .index = c->cursor};
    }
}

/* Keeps what must be sent again. An unknown send is retried; now and then a hurried client gives up on one (never in
 * a group, whose order would suffer). */
static void items_after_answer(struct conn *c) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->call_count; i++) {
        struct call *call = &c->calls[i];
        bool fifo = producer_is_fifo(c->owner);
        bool again = !call->answered || call->retry;
        if (again && call->retry && fifo && !call->item.unknown) again = false;
        if (again && !fifo && stage == STAGE_CHAOS && chance(50)) {
            if (call->item.variant == 0 && !(*flags_of(&call->item) & KEY_ADMITTED))
                *flags_of(&call->item) |= KEY_UNKNOWN;
            again = false;
        }
        if (again) c->items[kept++] = call->item;
    }
    c->item_count = kept;
    if (kept) c->wake_us = now_us + 10000;
}

static bool producer_next(struct conn *c) {
    if (!c->item_count && stage == STAGE_CHAOS) {
        if (admitted - settled > opt.pending_max || total_keys >= opt.messages_max) {
            c->wake_us = now_us + 5000;
            return false;
        }
        items_planned(c);
    } else if (!c->item_count && stage == STAGE_RESOLVE) {
        items_with_flags(c, KEY_UNKNOWN, 0, 100);
    } else if (!c->item_count && stage == STAGE_DRAIN) {
        items_with_flags(c, KEY_ADMITTED, KEY_SETTLED, 100);
    } else if (!c->item_count && stage == STAGE_VERIFY) {
        items_with_flags(c, KEY_ADMITTED, KEY_VERIFIED, 200);
    }
    if (!c->item_count) {
        c->wake_us = now_us + 20000;
        return false;
    }
    items_sent(c, c->item_count > 1 ? chance(700) : chance(100));
    return true;
}

static void later_due(struct conn *c) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->later_count; i++) {
        if (c->later[i].due_us <= now_us && c->now_count < LATER_MAX)
            c->now[c->now_count++] = c->later[i];
        else
            c->later[kept++] = c->later[i];
    }
    c->later_count = kept;
}

static bool consumer_next(struct conn *c) {
    later_due(c);
    if (c->now_count) {
        todos_sent(c);
        return true;
    }
    if (stage >= STAGE_VERIFY) {
        c->wake_us = now_us + 50000;
        return false;
    }
    receive_sent(c);
    return true;
}

/* Calls without an answer go back to the head of the plan; a few are abandoned, as by a consumer that crashed. */
static void todos_after_answer(struct conn *c) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->call_count; i++) {
        struct call *call = &c->calls[i];
        if (call->op == OP_RECV || (call->answered && !call->retry)) continue;
        if (stage == STAGE_CHAOS && c->owner % 2 == 0 && chance(100)) continue;
        memmove(c->now + kept + 1, c->now + kept, (c->now_count - kept) * sizeof *c->now);
        c->now[kept++] = call->todo;
        c->now_count++;
    }
}

/* Connections. */

static void watch(struct conn *c, uint32_t events) {
    struct epoll_event ev = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &ev) != 0) die("epoll_ctl");
}

static void calls_ended(struct conn *c) {
    if (c->producer)
        items_after_answer(c);
    else
        todos_after_answer(c);
    c->call_count = 0;
    c->answered = 0;
}

static void conn_lost(struct conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    bool busy = c->link == LINK_BUSY;
    c->link = LINK_DOWN;
    c->in.n = c->out.n = c->sent = 0;
    c->wake_us = now_us + 2000 + random_below(20000);
    if (!busy) return;
    for (uint32_t i = 0; i < c->call_count; i++) {
        struct call *call = &c->calls[i];
        if (call->answered || call->op == OP_LIST) continue;
        struct entry e = {.phase = "info", .queue = call->todo.queue, .key = call->todo.key, .token = call->todo.token};
        char key[KEY_MAX];
        if (call->op == OP_SEND) {
            key_text(&call->item, key);
            e.queue = queue_of(call->item.producer);
            e.key = key;
            e.value = item_digest(&call->item);
            call->item.unknown = true;
        }
        record(c, call->op, call->number, &e);
    }
    calls_ended(c);
}

static void conn_open(struct conn *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
    int one = 1;
    if (inet_pton(AF_INET, opt.host, &to.sin_addr) != 1) die("host");
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) != 0) die("epoll_ctl");
    c->link = LINK_CONNECTING;
    c->deadline_us = now_us + (int64_t)REQUEST_TIMEOUT_MS * 1000;
    reconnects++;
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to) != 0 && errno != EINPROGRESS) conn_lost(c);
}

static void conn_write(struct conn *c) {
    while (c->sent < c->out.n) {
        ssize_t n = send(c->fd, c->out.p + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch(c, EPOLLIN | EPOLLOUT);
            return;
        }
        if (n < 0) {
            conn_lost(c);
            return;
        }
        c->sent += (size_t)n;
    }
    c->out.n = c->sent = 0;
    watch(c, EPOLLIN);
}

static bool list_next(struct conn *c) {
    if (c->list_step >= 8) {
        stage = STAGE_END;
        return false;
    }
    list_sent(c);
    return true;
}

static void conn_next(struct conn *c) {
    if (c->link == LINK_DOWN) {
        conn_open(c);
        return;
    }
    if (c->link != LINK_READY) return;
    bool lists = stage == STAGE_LIST && c == &conns[0];
    bool asked = lists ? list_next(c) : c->producer ? producer_next(c) : consumer_next(c);
    if (!asked) return;
    c->link = LINK_BUSY;
    c->deadline_us = now_us + (int64_t)REQUEST_TIMEOUT_MS * 1000;
    conn_write(c);
}

static void batch_answered(struct conn *c, int status, struct text body) {
    const char *p = body.p, *end = body.p + body.n;
    for (uint32_t i = 0; i < c->call_count; i++) {
        struct text line = body;
        int line_status = status;
        if (status == 200) {
            const char *newline = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
            if (!newline) {
                odd_answer(c, "batch answer with too few lines", status, body);
                return;
            }
            line = (struct text){p, (size_t)(newline - p)};
            line_status = (int)json_number(line, "status");
            if (!json_valid(line)) odd_answer(c, "not JSON", status, line);
            p = newline + 1;
        }
        send_answered(c, &c->calls[i], line_status, line);
    }
}

static void settle_many_answered(struct conn *c, int status, struct text body) {
    struct text rest = body, one;
    for (uint32_t i = 0; i < c->call_count; i++) {
        if (status != 200) {
            settle_answered(c, &c->calls[i], status, body);
        } else if (json_next(&rest, &one)) {
            bool problem = json_member(one, "code").p != NULL;
            settle_answered(c, &c->calls[i], problem ? (int)json_number(one, "status") : 200, one);
        } else {
            odd_answer(c, "settle answer with too few items", status, body);
            return;
        }
    }
}

/* One whole HTTP answer; true when the request (or the whole pipeline) is answered. */
static bool answer(struct conn *c, int status, struct text body) {
    if ((c->shape != SHAPE_BATCH || status != 200) && !json_valid(body)) odd_answer(c, "not JSON", status, body);
    switch (c->shape) {
    case SHAPE_SINGLES:
        send_answered(c, &c->calls[c->answered++], status, body);
        return c->answered == c->call_count;
    case SHAPE_BATCH:
        batch_answered(c, status, body);
        break;
    case SHAPE_RECV:
        receive_answered(c, &c->calls[0], status, body);
        break;
    case SHAPE_SETTLE_ONE:
        settle_answered(c, &c->calls[0], status, body);
        break;
    case SHAPE_SETTLE_MANY:
        settle_many_answered(c, status, body);
        break;
    case SHAPE_LIST:
        list_answered(c, &c->calls[0], status, body);
        break;
    }
    return true;
}

/* The head of an answer: its status and the length of its body. 0: not all here, -1: not HTTP as we know it. */
static int head_read(struct text in, size_t *head_n, int *status, size_t *body_n) {
    const char *end = memmem(in.p, in.n, "\r\n\r\n", 4);
    if (!end) return 0;
    *head_n = (size_t)(end - in.p) + 4;
    if (in.n < 12 || memcmp(in.p, "HTTP/1.1 ", 9) != 0) return -1;
    *status = (in.p[9] - '0') * 100 + (in.p[10] - '0') * 10 + (in.p[11] - '0');
    *body_n = 0;
    static const char name[] = "\r\ncontent-length:";
    for (const char *p = in.p; p + sizeof name <= end + 2; p++) {
        if (strncasecmp(p, name, sizeof name - 1) != 0) continue;
        *body_n = (size_t)strtoull(p + sizeof name - 1, NULL, 10);
        return 1;
    }
    return *status == 204 ? 1 : -1;
}

static void answers_read(struct conn *c) {
    size_t used = 0;
    while (c->link == LINK_BUSY) {
        struct text in = {c->in.p + used, c->in.n - used};
        size_t head_n = 0, body_n = 0;
        int status = 0, have = in.n ? head_read(in, &head_n, &status, &body_n) : 0;
        if (have < 0) {
            odd_answer(c, "not an HTTP answer with a length", 0, in);
            conn_lost(c);
            return;
        }
        if (!have || in.n < head_n + body_n) break;
        used += head_n + body_n;
        if (!answer(c, status, (struct text){in.p + head_n, body_n})) continue;
        c->link = LINK_READY;
        c->wake_us = now_us;
        calls_ended(c);
    }
    memmove(c->in.p, c->in.p + used, c->in.n - used);
    c->in.n -= used;
}

static void conn_read(struct conn *c) {
    char chunk[65536];
    for (;;) {
        ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) {
            now_us = clock_us();
            answers_read(c);
            if (c->link != LINK_DOWN) conn_lost(c);
            return;
        }
        bytes_add(&c->in, chunk, (size_t)n);
    }
    now_us = clock_us();
    answers_read(c);
}

static void conn_event(struct conn *c, uint32_t events) {
    if (c->link == LINK_DOWN) return;
    if (c->link == LINK_CONNECTING) {
        int error = 0;
        socklen_t n = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &n);
        if (error || (events & (EPOLLERR | EPOLLHUP))) {
            conn_lost(c);
            return;
        }
        c->link = LINK_READY;
        c->wake_us = now_us;
        watch(c, EPOLLIN);
        return;
    }
    if (events & EPOLLOUT) conn_write(c);
    if (c->link != LINK_DOWN && (events & (EPOLLIN | EPOLLERR | EPOLLHUP))) conn_read(c);
}

/* Stages. */

static bool producers_idle(void) {
    for (uint32_t i = 0; i < conn_count; i++) {
        const struct conn *c = &conns[i];
        if (c->producer && (c->link == LINK_BUSY || c->item_count || c->cursor < keys_of[c->owner].n)) return false;
    }
    return true;
}

static void cursors_reset(uint32_t to_end) {
    for (uint32_t i = 0; i < conn_count; i++)
        if (conns[i].producer) conns[i].cursor = to_end ? keys_of[conns[i].owner].n : 0;
}

static bool consumers_idle(void) {
    for (uint32_t i = 0; i < conn_count; i++)
        if (!conns[i].producer && (conns[i].later_count || conns[i].now_count || conns[i].link == LINK_BUSY))
            return false;
    return true;
}

static void stage_enter(enum stage s) {
    static const char *const names[] = {"chaos", "resolve", "drain", "verify", "list", "end"};
    fprintf(stderr,
            "witness: %s: %" PRIu64 " keys, %" PRIu64 " admitted, %" PRIu64 " settled, %" PRIu64 " deliveries\n",
            names[s], total_keys, admitted, settled, deliveries);
    stage = s;
    cursors_reset(false);
}

static void stage_step(int64_t chaos_ends_us) {
    bool timed_out = stage != STAGE_CHAOS && now_us - heal_us > (int64_t)opt.drain_s * 1000000;
    if (stage == STAGE_CHAOS && (heal_asked || now_us >= chaos_ends_us)) {
        heal_us = now_us;
        stage_enter(STAGE_RESOLVE);
    } else if (stage == STAGE_RESOLVE && producers_idle()) {
        stage_enter(STAGE_DRAIN);
        cursors_reset(true);
    } else if (stage == STAGE_DRAIN && settled == admitted) {
        stage_enter(STAGE_VERIFY);
    } else if (stage == STAGE_DRAIN && producers_idle() && now_us - last_delivery_us > 500000) {
        cursors_reset(false); /* quiet, but some keys are not known settled: ask what became of them */
        last_delivery_us = now_us;
    } else if (stage == STAGE_VERIFY && producers_idle() && consumers_idle()) {
        stage_enter(STAGE_LIST);
    } else if ((stage == STAGE_RESOLVE || stage == STAGE_DRAIN) && timed_out) {
        fprintf(stderr, "witness: not drained: %" PRIu64 " keys unsettled\n", admitted - settled);
        stage_enter(STAGE_VERIFY);
    }
    if (timed_out && now_us - heal_us > (int64_t)opt.drain_s * 2000000) stage = STAGE_END;
}

static int64_t conns_step(void) {
    int64_t next = now_us + 100000;
    for (uint32_t i = 0; i < conn_count; i++) {
        struct conn *c = &conns[i];
        bool waiting = c->link == LINK_BUSY || c->link == LINK_CONNECTING;
        if (waiting && now_us > c->deadline_us) conn_lost(c);
        if (!waiting && c->wake_us <= now_us) conn_next(c);
        if ((c->link == LINK_DOWN || c->link == LINK_READY) && c->wake_us < next) next = c->wake_us;
    }
    return next;
}

static void run(void) {
    int64_t chaos_ends_us = now_us + (int64_t)opt.time_ms * 1000;
    struct epoll_event events[64];
    while (stage != STAGE_END && !stop_asked) {
        stage_step(chaos_ends_us);
        int64_t next = conns_step();
        int wait_ms = next <= now_us ? 0 : (int)((next - now_us + 999) / 1000);
        int n = epoll_wait(epoll_fd, events, 64, wait_ms);
        now_us = clock_us();
        for (int i = 0; i < n; i++) {
            conn_event(events[i].data.ptr, events[i].events);
            now_us = clock_us();
        }
    }
}

/* Start. */

static void on_signal(int sig) {
    if (sig == SIGUSR1)
        heal_asked = 1;
    else
        stop_asked = 1;
}

static void options_read(int argc, char **argv) {
    const struct {
        const char *name;
        uint64_t *number;
        const char **text;
    } known[] = {{"--host", NULL, &opt.host},
                 {"--history", NULL, &opt.history},
                 {"--port", &opt.port, NULL},
                 {"--seed", &opt.seed, NULL},
                 {"--time-ms", &opt.time_ms, NULL},
                 {"--producers", &opt.producers, NULL},
                 {"--consumers", &opt.consumers, NULL},
                 {"--lease-ms", &opt.lease_ms, NULL},
                 {"--batch-max", &opt.batch_max, NULL},
                 {"--pending-max", &opt.pending_max, NULL},
                 {"--messages-max", &opt.messages_max, NULL},
                 {"--payload-max", &opt.payload_max, NULL},
                 {"--drain-s", &opt.drain_s, NULL}};
    bool bad = argc % 2 == 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        size_t k = 0, count = sizeof known / sizeof known[0];
        while (k < count && strcmp(known[k].name, argv[i]) != 0) k++;
        if (k == count)
            bad = true;
        else if (known[k].text)
            *known[k].text = argv[i + 1];
        else
            *known[k].number = strtoull(argv[i + 1], NULL, 10);
    }
    if (bad || !opt.port || !opt.history || opt.batch_max < 1 || opt.batch_max > 200 || !opt.producers) {
        fprintf(stderr, "usage: witness --port P --history FILE [--OPTION VALUE]...\n");
        exit(2);
    }
    if (!opt.seed && getrandom(&opt.seed, sizeof opt.seed, 0) < 0) die("getrandom");
}

static void conns_made(void) {
    conn_count = (uint32_t)(opt.producers + opt.consumers);
    conns = calloc(conn_count, sizeof *conns);
    keys_of = calloc(opt.producers, sizeof *keys_of);
    if (!conns || !keys_of) die("memory");
    for (uint32_t i = 0; i < conn_count; i++) {
        struct conn *c = &conns[i];
        c->fd = -1;
        c->process = i;
        c->producer = i < opt.producers;
        c->owner = c->producer ? i : i - (uint32_t)opt.producers;
        c->calls = calloc(CALLS_MAX, sizeof *c->calls);
        c->now = calloc(LATER_MAX + CALLS_MAX, sizeof *c->now);
        c->later = calloc(LATER_MAX, sizeof *c->later);
        if (!c->calls || !c->now || !c->later) die("memory");
    }
}

int main(int argc, char **argv) {
    options_read(argc, argv);
    rng_state = mix(opt.seed);
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
    history_fd = open(opt.history, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (history_fd < 0) die(opt.history);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) die("epoll");
    now_us = clock_us();
    conns_made();
    run();
    bool drained = stage == STAGE_END && settled == admitted && conns[0].list_step >= 8;
    bytes_format(&history, "%" PRId64 " p0 drained %s 0 - - - - - - - - -\n", now_us, drained ? "ok" : "fail");
    history_flush();
    printf("witness: seed %" PRIu64 ": %" PRIu64 " keys, %" PRIu64 " admitted, %" PRIu64 " settled, %" PRIu64
           " deliveries, %" PRIu64 " acks, %" PRIu64 " connections, %" PRIu64 " odd answers, %s\n",
           opt.seed, total_keys, admitted, settled, deliveries, acks_ok, reconnects, odd_answers,
           drained ? "drained" : "NOT DRAINED");
    return !drained ? 3 : odd_answers ? 1 : 0;
}
