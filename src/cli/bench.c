#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/load.h"

const struct flag flags_bench[] = {
    {"mode", "MODE", "single, batch, dup, consume, latency, or all (default)"},
    {"connections", "N", "connections, default 8"},
    {"depth", "N", "requests under way on each, default 64"},
    {"payload", "BYTES", "size of a payload, default 200"},
    {"seconds", "N", "how long each mode sends, default 5"},
    {"count", "N", "send this many messages instead"},
    {"lines", "N", "messages in a batch and in a receive, default 100"},
    {"queue", "QUEUE", "the queue, default bench"},
    {0},
};

const char about_bench[] =
    "Modes: single (pipelined sends of new 36-character keys), batch (NDJSON), dup (resends of known keys),\n"
    "consume (receive and ack in arrays; fills the queue first), latency (one connection, one request at a time).\n"
    "Every answer is checked; a wrong one ends it with exit code 1. What is not consumed stays in the queue.";

enum { BATCH_DEPTH = 4, KNOWN_KEYS = 10000 };

struct bench {
    struct cli *cli;
    struct load_options base;
    char *host, *port, *authority, *prefix;
    struct buf queue, fields;
    struct table *table;
    struct buf json;
    u64 next; /* key numbers go on from mode to mode */
};

static char *copy(slice s) {
    char *p = mem_zalloc(s.n + 1);
    if (s.n) memcpy(p, s.p, s.n);
    return p;
}

/* The library has checked the URL already; this only cuts it up. */
static void cut_url(struct bench *b, slice url, slice scheme, slice usual_port) {
    slice authority, path, host, port;
    slice_cut(slice_of(url.p + scheme.n, url.n - scheme.n), '/', &authority, &path);
    bool v6 = slice_starts(authority, SL("["));
    if (v6) {
        slice_cut(slice_of(authority.p + 1, authority.n - 1), ']', &host, &port);
        if (port.n) port = slice_of(port.p + 1, port.n - 1);
    } else {
        slice_cut(authority, ':', &host, &port);
    }
    while (path.n && path.p[path.n - 1] == '/') path.n--;
    b->host = copy(host);
    b->port = copy(port.n ? port : usual_port);
    b->authority = copy(authority);
    b->prefix = copy(path.n ? slice_of(path.p - 1, path.n + 1) : SL(""));
    b->base.host = b->host;
    b->base.port = b->port;
    b->base.authority = b->authority;
    b->base.prefix = b->prefix;
}

/* The library has looked at the token, too. false: its file is gone since, and it was said. */
static bool put_token(struct bench *b) {
    const hx_options *o = cli_connect(b->cli);
    struct buf token = {0};
    bool ok = o->api_token || !o->api_token_file || cli_read_file(o->api_token_file, &token);
    if (o->api_token) buf_slice_add(&token, slice_str(o->api_token));
    while (token.len && strchr(" \t\r\n", token.p[token.len - 1])) token.len--;
    if (token.len) buf_printf(&b->fields, "\r\nAuthorization: Bearer %.*s", (int)token.len, token.p);
    buf_char(&b->fields, '\0');
    b->base.fields = b->fields.p;
    buf_free(&token);
    return ok;
}

static bool use_tls(struct bench *b) {
    const hx_options *o = cli_connect(b->cli);
    struct load_tls_options files = {b->host, o->ca_file, o->cert_file, o->key_file};
    struct errbuf err;
    signal(SIGPIPE, SIG_IGN);
    if ((b->base.tls = load_tls_new(&files, &err))) return true;
    args_wrong(b->cli, "%s", err.text);
    return false;
}

static void cell_number(struct table *t, double value, int digits) {
    char text[64];
    snprintf(text, sizeof(text), "%.*f", digits, value);
    struct buf b = {0};
    size_t whole = strcspn(text, "."), n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % 3 == 0) buf_char(&b, ',');
        buf_char(&b, text[i]);
    }
    table_cell(t, buf_slice(&b));
    buf_free(&b);
}

static void report(struct bench *b, const char *mode, const struct load_result *r) {
    double rate = load_rate(r);
    double p50 = load_percentile_us(r, 0.5), p99 = load_percentile_us(r, 0.99), p999 = load_percentile_us(r, 0.999);
    table_cell(b->table, slice_str(mode));
    cell_number(b->table, rate, 0);
    cell_number(b->table, (double)r->messages, 0);
    cell_number(b->table, (double)r->requests, 0);
    cell_number(b->table, p50, 0);
    cell_number(b->table, p99, 0);
    cell_number(b->table, p999, 0);
    table_row(b->table);
    buf_printf(&b->json,
               "%s{\"mode\":\"%s\",\"messages\":%llu,\"requests\":%llu,\"seconds\":%.3f,\"rate\":%.1f,"
               "\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f}",
               b->json.len ? "," : "", mode, (unsigned long long)r->messages, (unsigned long long)r->requests,
               r->seconds, rate, p50, p99, p999);
}

static hx_st run(struct bench *b, struct load_options *o, const char *mode, bool show, struct errbuf *err) {
    struct load_result *r = mem_zalloc(sizeof(*r));
    bool sends = o->mode == LOAD_SEND || o->mode == LOAD_BATCH;
    if (isatty(STDERR_FILENO)) fprintf(stderr, "bench: %s%s...\n", mode, show ? "" : " (filling the queue)");
    if (sends) o->first = b->next;
    hx_st st = load_run(&load_hapax, o, r, err);
    if (st != ST_OK) err_wrap(err, st, "%s", mode);
    if (sends) b->next += r->messages;
    if (st == ST_OK && show) report(b, mode, r);
    mem_free(r);
    return st;
}

static hx_st run_single(struct bench *b, struct errbuf *err) {
    struct load_options o = b->base;
    o.mode = LOAD_SEND;
    return run(b, &o, "single", true, err);
}

static hx_st run_batch(struct bench *b, struct errbuf *err) {
    struct load_options o = b->base;
    o.mode = LOAD_BATCH;
    if (o.depth > BATCH_DEPTH) o.depth = BATCH_DEPTH;
    return run(b, &o, "batch", true, err);
}

static hx_st run_dup(struct bench *b, struct errbuf *err) {
    struct load_options first = b->base, again = b->base;
    first.mode = LOAD_SEND;
    first.for_ms = 0;
    first.count = KNOWN_KEYS;
    hx_st st = run(b, &first, "dup", false, err);
    if (st != ST_OK) return st;
    again.mode = LOAD_DUPLICATE;
    again.first = first.first;
    again.known = KNOWN_KEYS;
    return run(b, &again, "dup", true, err);
}

static hx_st run_consume(struct bench *b, struct errbuf *err) {
    struct load_options fill = b->base, take = b->base;
    fill.mode = LOAD_BATCH;
    if (fill.depth > BATCH_DEPTH) fill.depth = BATCH_DEPTH;
    hx_st st = run(b, &fill, "consume", false, err);
    if (st != ST_OK) return st;
    take.mode = LOAD_CONSUME;
    take.depth = 1;
    take.for_ms = 0;
    take.count = 0; /* all there is, of other modes and runs as well */
    return run(b, &take, "consume", true, err);
}

static hx_st run_latency(struct bench *b, struct errbuf *err) {
    struct load_options o = b->base;
    o.mode = LOAD_SEND;
    o.connections = o.depth = 1;
    return run(b, &o, "latency", true, err);
}

static const struct {
    const char *name;
    hx_st (*run)(struct bench *b, struct errbuf *err);
} modes[] = {
    {"single", run_single}, {"batch", run_batch}, {"dup", run_dup}, {"consume", run_consume}, {"latency", run_latency},
};
enum { MODE_COUNT = sizeof(modes) / sizeof(modes[0]) };

static bool options_read(struct bench *b) {
    struct cli *cli = b->cli;
    i64 connections = 8, depth = 64, payload = 200, seconds = 5, count = 0, lines = 100;
    if (!args_number(cli, "connections", 1, 10000, &connections) || !args_number(cli, "depth", 1, 100000, &depth) ||
        !args_number(cli, "payload", 0, 1 << 20, &payload) || !args_number(cli, "seconds", 1, 86400, &seconds) ||
        !args_number(cli, "count", 1, INT64_MAX, &count) || !args_number(cli, "lines", 1, 1000, &lines))
        return false;
    if (count && args_has(cli, "seconds")) return args_wrong(cli, "--seconds or --count, not both"), false;
    b->base.connections = (u32)connections;
    b->base.depth = (u32)depth;
    b->base.payload = (u32)payload;
    b->base.batch = (u32)lines;
    b->base.count = (u64)count;
    b->base.for_ms = count ? 0 : seconds * 1000;
    random_bytes(&b->base.seed, sizeof(b->base.seed));
    const char *queue = args_get(cli, "queue");
    buf_percent_encode(&b->queue, slice_str(queue ? queue : "bench"));
    buf_char(&b->queue, '\0');
    b->base.queue = b->queue.p;
    return true;
}

static void header(struct bench *b) {
    static const char *const names[] = {"mode", "messages/s", "messages", "requests", "p50 us", "p99 us", "p99.9 us"};
    b->table = table_new();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) table_cell(b->table, slice_str(names[i]));
    table_row(b->table);
}

static void footer(struct bench *b) {
    struct buf out = {0};
    const struct load_options *o = &b->base;
    if (b->cli->json) {
        buf_lit(&out, "{\"url\":");
        json_put_string(&out, slice_str(b->cli->url));
        buf_printf(&out, ",\"connections\":%u,\"depth\":%u,\"payload\":%u,\"lines\":%u,\"runs\":[", o->connections,
                   o->depth, o->payload, o->batch);
        buf_slice_add(&out, buf_slice(&b->json));
        buf_lit(&out, "]}\n");
    }
    struct buf text = {0};
    buf_printf(&text, "%s, %u connections, depth %u, %u-byte payloads\n", b->cli->url, o->connections, o->depth,
               o->payload);
    table_print(b->table, &text, "");
    if (!b->cli->json) buf_slice_add(&out, buf_slice(&text));
    buf_free(&text);
    print_buf(&out);
}

static int run_modes(struct bench *b, const char *wanted) {
    bool all = strcmp(wanted, "all") == 0, found = false;
    struct errbuf err;
    hx_st st = ST_OK;
    header(b);
    for (size_t i = 0; i < MODE_COUNT && st == ST_OK; i++) {
        if (!all && strcmp(wanted, modes[i].name) != 0) continue;
        found = true;
        st = modes[i].run(b, &err);
    }
    if (!found) {
        table_print(b->table, &b->json, "");
        return args_wrong(b->cli, "no mode \"%s\": single, batch, dup, consume, latency or all", wanted);
    }
    footer(b);
    if (st != ST_OK) say("bench: %s", err.text);
    return st == ST_OK ? EXIT_DONE : st == ST_INVALID ? EXIT_REFUSED : EXIT_UNREACHABLE;
}

int cmd_bench(struct cli *cli) {
    struct bench b = {.cli = cli};
    if (!cli_client(cli, 0)) return EXIT_USAGE;
    const slice url = slice_str(cli->url), secure = SL("https://");
    bool https = slice_starts(url, secure);
    cut_url(&b, url, https ? secure : SL("http://"), https ? SL("443") : SL("80"));
    const char *mode = args_get(cli, "mode");
    int rc =
        (!https || use_tls(&b)) && put_token(&b) && options_read(&b) ? run_modes(&b, mode ? mode : "all") : EXIT_USAGE;
    load_tls_free(b.base.tls);
    mem_free(b.host);
    mem_free(b.port);
    mem_free(b.authority);
    mem_free(b.prefix);
    buf_free(&b.queue);
    buf_free(&b.fields);
    buf_free(&b.json);
    return rc;
}
