/* Tokens and rights: who is not allowed gets nothing done and nothing told. */
#include "broker/route.h"
#include "broker_world.h"
#include "net/digest.h"
#include "net/parse.h"

/* Tokens are hx_NAME here. */
static void put_token(struct buf *yaml, const char *name, const char *rest) {
    u8 hash[DIGEST_BYTES];
    char text[64];
    snprintf(text, sizeof text, "hx_%s", name);
    digest_sha256(slice_str(text), hash);
    buf_printf(yaml, "  - {name: %s, sha256: [", name);
    buf_hex(yaml, slice_of(hash, sizeof hash));
    buf_printf(yaml, "], %s}\n", rest);
}

/* tokens: NAME, "allow: [...]" in turn, NULL-ended. */
static void serve(const char *more, const char *const *tokens) {
    struct buf yaml = {0};
    buf_printf(&yaml, "%stokens:\n", more);
    for (; *tokens; tokens += 2) put_token(&yaml, tokens[0], tokens[1]);
    buf_char(&yaml, 0);
    reload(yaml.p);
    buf_free(&yaml);
}

static u16 ask(const char *authorization, const char *line) {
    w.authorization = authorization;
    u16 status = request(line, "k", SL("{}"), NULL);
    w.authorization = NULL;
    return status;
}

#define QUEUES "auto_create: true\nqueues: {payments: {}, orders: {}}\n"

static void without_tokens_nobody_is_asked(void **state) {
    (void)state;
    reload(QUEUES);
    assert_int_equal(ask(NULL, "POST /v1/queues/payments/messages"), 202);
    assert_int_equal(ask("Bearer hx_whatever", "GET /v1/queues/payments"), 200);
}

static void a_token_opens_what_it_allows_and_nothing_else(void **state) {
    (void)state;
    serve(QUEUES, (const char *[]){"shop", "allow: ['send:payments']", NULL});
    assert_int_equal(ask("Bearer hx_shop", "POST /v1/queues/payments/messages"), 202);
    assert_int_equal(ask("bearer   hx_shop", "POST /v1/queues/payments/messages"), 202);
    assert_int_equal(ask("Bearer hx_shop", "GET /v1/queues/payments"), 403);
    assert_said("\"code\":\"forbidden\"");
    assert_said("observe:payments");
    assert_int_equal(ask("Bearer hx_shop", "POST /v1/queues/orders/messages"), 404);
    assert_said("\"code\":\"no_such_queue\"");
    static const char *const wrong[] = {NULL,      "Bearer hx_shoq", "Bearer",        "Basic hx_shop",
                                        "hx_shop", "Bearerhx_shop",  "Bearer hx_sho", "Bearer hx_shop x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(ask(wrong[i], "POST /v1/queues/payments/messages"), 401);
        assert_said("\"code\":\"unauthorized\"");
        assert_non_null(strstr(w.fields.p, "WWW-Authenticate: Bearer\r\n"));
        assert_int_equal(ask(wrong[i], "GET /healthz"), 200);
    }
}

/* ---- every route by every right */

enum where { OPEN, QUEUE, SOMEWHERE, EVERYWHERE, OWN_FIELD /* Authorization is somebody else's there */ };

/* What each route needs, said a second time: a route that is not here fails, and so does one that asks for something else. */
static const struct matrix_case {
    const char *route;
    enum right right;
    enum where where;
} cases[] = {
    {"POST /v1/queues/*/messages", RIGHT_SEND, QUEUE},
    {"POST /v1/queues/*/batch", RIGHT_SEND, QUEUE},
    {"POST /v1/queues/*/receive", RIGHT_RECEIVE, QUEUE},
    {"POST /v1/ack", RIGHT_RECEIVE, SOMEWHERE},
    {"POST /v1/nack", RIGHT_RECEIVE, SOMEWHERE},
    {"POST /v1/extend", RIGHT_RECEIVE, SOMEWHERE},
    {"POST /v1/step", RIGHT_RECEIVE, SOMEWHERE},
    {"POST /v1/start", RIGHT_RECEIVE, SOMEWHERE},
    {"POST /v1/release", RIGHT_RECEIVE, SOMEWHERE},
    {"GET /v1/queues/*/keys/*", RIGHT_OBSERVE, QUEUE},
    {"GET /v1/queues/*/keys", RIGHT_OBSERVE, QUEUE},
    {"GET /v1/queues/*/keys/*/result", RIGHT_RESULT, QUEUE},
    {"GET /v1/queues/*/messages", RIGHT_OBSERVE, QUEUE},
    {"GET /v1/queues/*/messages/*", RIGHT_OBSERVE, QUEUE},
    {"POST /v1/queues/*/messages/*/cancel", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/messages/*/revoke", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/messages/*/resolve", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/keys/*/resolve", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/keys/*/replay", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/keys/*/erase", RIGHT_OPERATE, QUEUE},
    {"DELETE /v1/queues/*/keys/*", RIGHT_OPERATE, QUEUE},
    {"GET /v1/queues", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/queues/*", RIGHT_OBSERVE, QUEUE},
    {"PUT /v1/queues/*", RIGHT_OPERATE, QUEUE},
    {"DELETE /v1/queues/*", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/pause", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/resume", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/purge", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/redrive", RIGHT_OPERATE, QUEUE},
    {"POST /v1/queues/*/drill", RIGHT_OPERATE, QUEUE},
    {"GET /v1/tasks", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/tasks/*", RIGHT_OBSERVE, SOMEWHERE},
    {"DELETE /v1/tasks/*", RIGHT_OPERATE, SOMEWHERE},
    {"GET /v1/find", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/consumers", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/audit", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/alerts", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/history", RIGHT_OBSERVE, EVERYWHERE},
    {"GET /v1/queues/*/histograms", RIGHT_OBSERVE, QUEUE},
    {"GET /metrics", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/events", RIGHT_OBSERVE, SOMEWHERE},
    {"GET /v1/stats", RIGHT_OBSERVE, EVERYWHERE},
    {"GET /v1/targets", RIGHT_OBSERVE, SOMEWHERE},
    {"POST /v1/targets/*/test", RIGHT_OPERATE, QUEUE},
    {"POST /v1/targets/*/pause", RIGHT_OPERATE, QUEUE},
    {"POST /v1/targets/*/resume", RIGHT_OPERATE, QUEUE},
    {"POST /in/*", RIGHT_OPEN, OPEN},           /* its signature, or a token, is asked for by the source */
    {"ANY /gate/*/...", RIGHT_OPEN, OWN_FIELD}, /* `send` on gate:NAME, by a field of its own: e2e/proxy_test */
    {"GET /healthz", RIGHT_OPEN, OPEN},
    {"GET /readyz", RIGHT_OPEN, OPEN},
    {"GET /", RIGHT_OPEN, OPEN},
    {"GET /ui/*", RIGHT_OPEN, OPEN},
};
#define CASES (sizeof cases / sizeof *cases)

static const struct matrix_case *case_of(slice route) {
    for (size_t i = 0; i < CASES; i++)
        if (slice_eq(slice_str(cases[i].route), route)) return &cases[i];
    return NULL;
}

static void every_route_has_a_case_and_no_other(void **state) {
    (void)state;
    struct buf label = {0};
    assert_int_equal(route_count(), CASES);
    for (u32 i = 0; i < route_count(); i++) {
        buf_reset(&label);
        route_label(i, &label);
        if (!case_of(buf_slice(&label))) fail_msg("%.*s has no case", (int)label.len, label.p);
    }
    buf_free(&label);
}

/* The first argument is a queue's name, the second a key. */
static void line_of(const char *route, const char *queue, char *out, size_t size) {
    const char *args[] = {queue, "k"};
    size_t n = 0, arg = 0;
    for (; *route; route++) {
        if (*route == '*')
            n += (size_t)snprintf(out + n, size - n, "%s", args[arg++]);
        else
            out[n++] = *route;
        assert_true(n < size);
    }
    out[n] = 0;
}

static bool code_is(const char *code) {
    char member[64];
    snprintf(member, sizeof member, "\"code\":\"%s\"", code);
    return strstr(w.body.p, member) != NULL;
}

/* 0: let in. */
static u16 verdict(const char *token, const char *line) {
    u16 status = ask(token, line);
    if (status == 401 || (status == 403 && code_is("forbidden"))) return status;
    return status == 404 && code_is("no_such_queue") ? 404 : 0;
}

static bool implied(enum right has, enum right needed) {
    return has == needed || has == RIGHT_ADMIN || (has == RIGHT_OPERATE && needed == RIGHT_OBSERVE);
}

static u16 expected(const struct matrix_case *m, enum right has, bool bare, bool on_it) {
    if (m->where == OPEN) return 0;
    if (m->where == OWN_FIELD) return 401;
    if (m->where == EVERYWHERE) return bare && implied(has, m->right) ? 0 : 403;
    if (m->where == SOMEWHERE || on_it) return implied(has, m->right) ? 0 : 403;
    return 404;
}

static void check_case(const struct matrix_case *m) {
    char line[128], token[64];
    line_of(m->route, "q", line, sizeof line);
    for (int r = RIGHT_OPEN + 1; r < RIGHT_COUNT; r++)
        for (int kind = 0; kind < 3; kind++) {
            snprintf(token, sizeof token, "Bearer hx_%s%d", right_text((enum right)r), kind);
            u16 got = verdict(token, line), want = expected(m, (enum right)r, kind == 0, kind < 2);
            if (got != want) fail_msg("%s with %s: %u, not %u", line, token, got, want);
            if (got == 403) assert_said(right_text(m->right));
        }
    u16 nobody = m->where == OPEN ? 0 : 401;
    assert_int_equal(verdict(NULL, line), nobody);
    assert_int_equal(verdict("Bearer hx_other", line), nobody);
}

/* Each right bare, on the queue, and on others alone. */
static void every_route_is_asked_for_with_every_right(void **state) {
    (void)state;
    struct buf yaml = {0};
    char name[32], rest[64];
    static const char *const kinds[] = {"", ":q", ":other*"};
    buf_lit(&yaml, "queues: {q: {}}\ntokens:\n");
    for (int r = RIGHT_OPEN + 1; r < RIGHT_COUNT; r++)
        for (int kind = 0; kind < 3; kind++) {
            snprintf(name, sizeof name, "%s%d", right_text((enum right)r), kind);
            snprintf(rest, sizeof rest, "allow: ['%s%s']", right_text((enum right)r), kinds[kind]);
            put_token(&yaml, name, rest);
        }
    buf_char(&yaml, 0);
    reload(yaml.p);
    buf_free(&yaml);
    for (size_t i = 0; i < CASES; i++) check_case(&cases[i]);
}

/* ---- where the path names no queue */

static void lease_of_payments(const char *key) {
    w.authorization = "Bearer hx_all";
    assert_int_equal(send("payments", key, "{}"), 202);
    assert_int_equal(call("POST /v1/queues/payments/receive", ""), 200);
    w.authorization = NULL;
}

static u16 settle_as(const char *token, const char *verb) {
    w.authorization = token;
    u16 status = settle(verb, strcmp(verb, "nack") == 0 ? ",\"class\":\"poison\"" : ",\"name\":\"n\"");
    w.authorization = NULL;
    return status;
}

static void a_lease_is_settled_by_who_may_receive_from_its_queue(void **state) {
    (void)state;
    static const char *const verbs[] = {"step", "extend", "start", "nack", "ack", "release"};
    serve(QUEUES,
          (const char *[]){"all", "allow: [admin]", "worker", "allow: ['receive:payments']", "other",
                           "allow: ['receive:orders']", "shop", "allow: ['send:payments', 'receive:orders']", NULL});
    lease_of_payments("k");
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(settle_as("Bearer hx_other", verbs[i]), 404);
        assert_true(code_is("no_such_message"));
        assert_int_equal(settle_as("Bearer hx_shop", verbs[i]), 403);
        assert_said("receive:payments");
        assert_int_equal(settle_as(NULL, verbs[i]), 401);
    }
    assert_int_equal(ask("Bearer hx_all", "GET /v1/queues/payments/keys/k"), 200);
    assert_said("\"state\":\"leased\"");
    assert_said("\"steps\":[]");
    assert_int_equal(settle_as("Bearer hx_worker", "step"), 200);
    assert_int_equal(settle_as("Bearer hx_worker", "ack"), 200);
}

/* One item's right is not the next one's. */
static void each_lease_of_an_array_is_asked_for(void **state) {
    (void)state;
    char body[256], theirs[TOKEN_TEXT + 1];
    serve(QUEUES, (const char *[]){"all", "allow: [admin]", "worker", "allow: ['receive:payments']", NULL});
    w.authorization = "Bearer hx_all";
    assert_int_equal(send("orders", "k", "{}"), 202);
    assert_int_equal(call("POST /v1/queues/orders/receive", ""), 200);
    memcpy(theirs, w.token, sizeof theirs);
    lease_of_payments("k");
    snprintf(body, sizeof body, "[{\"token\":\"%s\"},{\"token\":\"%s\"}]", theirs, w.token);
    w.authorization = "Bearer hx_worker";
    assert_int_equal(call("POST /v1/ack", body), 200);
    assert_said("\"code\":\"no_such_message\"");
    assert_said("\"state\":\"done\"");
    w.authorization = NULL;
    ask("Bearer hx_all", "GET /v1/queues/orders/keys/k");
    assert_said("\"state\":\"leased\"");
}

static bool shows(const char *token, const char *line, const char *part) {
    assert_int_equal(ask(token, line), 200);
    return strstr(w.body.p, part) != NULL;
}

static void lists_tell_of_what_the_caller_may_see(void **state) {
    (void)state;
    static const char *const lists[] = {"GET /v1/queues",     "GET /v1/consumers", "GET /v1/audit",
                                        "GET /v1/find?key=k", "GET /v1/tasks",     "GET /metrics"};
    serve(QUEUES,
          (const char *[]){"all", "allow: [observe, operate, send, receive]", "some", "allow: ['observe:pay*']", NULL});
    w.authorization = "Bearer hx_all";
    static const char *const queues[] = {"payments", "orders"};
    for (int i = 0; i < 2; i++) {
        char line[96];
        assert_int_equal(send(queues[i], "k", "{}"), 202);
        snprintf(line, sizeof line, "POST /v1/queues/%s/receive?consumer=w", queues[i]);
        assert_int_equal(call(line, ""), 200);
        snprintf(line, sizeof line, "POST /v1/queues/%s/redrive", queues[i]);
        assert_int_equal(call(line, "{\"rate\":1}"), 202);
    }
    w.authorization = NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (!shows("Bearer hx_all", lists[i], "orders")) fail_msg("%s", lists[i]);
        if (!shows("Bearer hx_all", lists[i], "payments")) fail_msg("%s", lists[i]);
        if (shows("Bearer hx_some", lists[i], "orders")) fail_msg("%s", lists[i]);
        if (!shows("Bearer hx_some", lists[i], "payments")) fail_msg("%s", lists[i]);
    }
    assert_true(shows("Bearer hx_all", "GET /v1/audit", "config_reload"));
    assert_false(shows("Bearer hx_some", "GET /v1/audit", "config_reload"));
    assert_false(shows("Bearer hx_some", "GET /metrics", "hapax_build_info"));
    assert_false(shows("Bearer hx_some", "GET /metrics", "hapax_http_requests_total"));
    assert_true(shows("Bearer hx_some", "GET /v1/history?queue=payments", "payments"));
    assert_int_equal(ask("Bearer hx_some", "GET /v1/history"), 403);
    assert_int_equal(ask("Bearer hx_some", "GET /v1/history?queue=orders"), 404);
    assert_int_equal(ask("Bearer hx_some", "GET /v1/consumers?queue=orders"), 404);
    assert_int_equal(ask("Bearer hx_some", "GET /v1/events?queue=orders"), 404);
    assert_int_equal(ask("Bearer hx_some", "GET /v1/stats"), 403);
}

static void a_task_is_there_for_who_sees_its_queue(void **state) {
    (void)state;
    char line[64], id[32];
    serve(QUEUES, (const char *[]){"all", "allow: [admin]", "some", "allow: ['observe:payments']", "other",
                                   "allow: ['operate:orders']", NULL});
    w.authorization = "Bearer hx_all";
    assert_int_equal(send("payments", "k", "{}"), 202);
    assert_int_equal(call("POST /v1/queues/payments/redrive", "{\"rate\":1}"), 202);
    const char *at = strstr(w.body.p, "\"task\":\"") + 8;
    snprintf(id, sizeof id, "%.*s", (int)strcspn(at, "\""), at);
    snprintf(line, sizeof line, "GET /v1/tasks/%s", id);
    assert_int_equal(ask("Bearer hx_some", line), 200);
    assert_int_equal(ask("Bearer hx_other", line), 404);
    assert_true(code_is("no_such_task"));
    snprintf(line, sizeof line, "DELETE /v1/tasks/%s", id);
    assert_int_equal(ask("Bearer hx_some", line), 403);
    assert_int_equal(ask("Bearer hx_other", line), 404);
    assert_true(code_is("no_such_task"));
    assert_int_equal(ask("Bearer hx_all", line), 200);
}

static void one_queue_among_many_is_found_in_short_turns(void **state) {
    (void)state;
    u32 turns = 0;
    char line[64];
    struct buf yaml = {0};
    buf_lit(&yaml, "queues:\n");
    for (u32 i = 0; i < 3000; i++) buf_printf(&yaml, "  other%u: {}\n", i);
    buf_lit(&yaml, "  mine: {}\ntokens:\n");
    put_token(&yaml, "some", "allow: ['observe:mine']");
    buf_char(&yaml, 0);
    reload(yaml.p);
    buf_free(&yaml);
    w.us_a_look = 1000; /* what a look at the clock costs: a turn is over after a few */
    snprintf(line, sizeof line, "GET /v1/queues");
    while (!shows("Bearer hx_some", line, "\"mine\"")) {
        assert_null(strstr(w.body.p, "\"other"));
        const char *at = strstr(w.body.p, "\"next_cursor\":\"");
        assert_non_null(at);
        at += 15;
        snprintf(line, sizeof line, "GET /v1/queues?cursor=%.*s", (int)strcspn(at, "\""), at);
        turns++;
    }
    assert_true(turns >= 2);
}

/* ---- what messages carry */

static void payloads_and_results_are_shown_to_who_may_see_them(void **state) {
    (void)state;
    static const struct {
        const char *token;
        bool payload, result;
    } viewers[] = {
        {"Bearer hx_observe", false, false}, {"Bearer hx_receive", true, false}, {"Bearer hx_result", false, true},
        {"Bearer hx_operate", true, true},   {"Bearer hx_send", false, false},   {"Bearer hx_elsewhere", false, false},
    };
    serve("queues: {payments: {keep_payload: 1h, on_conflict: hold}, orders: {}}\n",
          (const char *[]){"all", "allow: [admin]", "observe", "allow: [observe]", "receive",
                           "allow: [observe, receive]", "result", "allow: [observe, result]", "operate",
                           "allow: [operate]", "send", "allow: [observe, send]", "elsewhere",
                           "allow: [observe, 'operate:orders']", NULL});
    w.authorization = "Bearer hx_all";
    assert_int_equal(send("payments", "done", "{\"a\":\"PAYLOAD\"}"), 202);
    assert_int_equal(call("POST /v1/queues/payments/receive", ""), 200);
    assert_int_equal(settle("step", ",\"name\":\"s\",\"result\":\"PAYLOAD\""), 200);
    assert_int_equal(settle("ack", ",\"result\":\"OUTCOME\""), 200);
    assert_int_equal(send("payments", "open", "{\"a\":\"PAYLOAD\"}"), 202);
    assert_int_equal(send("payments", "open", "{\"a\":\"PAYLOAD2\"}"), 202); /* a conflict, held */
    w.authorization = NULL;
    static const char *const pages[] = {
        "GET /v1/queues/payments/keys/done",           "GET /v1/queues/payments/keys?key=done",
        "GET /v1/queues/payments/keys/open",           "GET /v1/queues/payments/messages",
        "GET /v1/queues/payments/messages?state=held", "GET /v1/queues/payments/messages?accepted_since=1h",
    };
    for (size_t v = 0; v < sizeof viewers / sizeof *viewers; v++)
        for (size_t p = 0; p < sizeof pages / sizeof *pages; p++) {
            if (shows(viewers[v].token, pages[p], "PAYLOAD") != viewers[v].payload)
                fail_msg("payload: %s %s %s", viewers[v].token, pages[p], w.body.p);
            bool there = p < 2;
            if (there && shows(viewers[v].token, pages[p], "OUTCOME") != viewers[v].result)
                fail_msg("result: %s %s", viewers[v].token, pages[p]);
        }
    assert_true(shows("Bearer hx_observe", "GET /v1/queues/payments/keys/open", "\"payload_hidden\":true"));
    assert_true(shows("Bearer hx_observe", "GET /v1/queues/payments/keys/done", "\"result_hidden\":true"));
}

/* A repeat is told what became of the original, by whoever may send: that is what a key is for. */
static void a_repeat_gets_its_result_and_no_payload(void **state) {
    (void)state;
    serve("queues: {payments: {}}\n",
          (const char *[]){"all", "allow: [admin]", "shop", "allow: ['send:payments']", NULL});
    w.authorization = "Bearer hx_all";
    assert_int_equal(send("payments", "k", "{\"a\":\"FIRST\"}"), 202);
    assert_int_equal(call("POST /v1/queues/payments/receive", ""), 200);
    w.authorization = "Bearer hx_shop";
    assert_int_equal(send("payments", "k", "{\"a\":\"SECOND\"}"), 422);
    assert_said("\"changed\":[\"a\"]");
    assert_null(strstr(w.body.p, "FIRST"));
    w.authorization = "Bearer hx_all";
    assert_int_equal(settle("ack", ",\"result\":\"OUTCOME\""), 200);
    w.authorization = "Bearer hx_shop";
    assert_int_equal(send("payments", "k", "{\"a\":\"FIRST\"}"), 200);
    assert_said("OUTCOME");
    w.authorization = NULL;
}

/* ---- tokens come and go */

static void *wait_as(const char *token, const char *line) {
    void *user = NULL;
    w.authorization = token;
    assert_int_equal(request(line, "k", SL("{}"), &user), 0);
    w.authorization = NULL;
    return user;
}

#define POLL "POST /v1/queues/payments/receive?wait=30s"

static void a_token_that_is_removed_ends_its_polls(void **state) {
    (void)state;
    serve(QUEUES, (const char *[]){"a", "allow: [receive]", "b", "allow: [receive]", NULL});
    wait_as("Bearer hx_a", POLL);
    wait_as("Bearer hx_a", "POST /v1/queues/absent/receive?wait=30s");
    void *left = wait_as("Bearer hx_b", POLL);
    u32 before = w.answers;
    serve(QUEUES, (const char *[]){"b", "allow: [receive]", NULL});
    assert_int_equal(w.answers, before + 2);
    assert_int_equal(w.status, 401);
    assert_int_equal(ask("Bearer hx_a", POLL), 401);
    broker_gone(w.broker, w.t, left);
}

static void a_token_that_may_less_ends_what_it_may_not_wait_for(void **state) {
    (void)state;
    serve(QUEUES, (const char *[]){"a", "allow: [receive, send, result]", NULL});
    wait_as("Bearer hx_a", POLL);
    wait_as("Bearer hx_a", "POST /v1/queues/orders/receive?wait=30s");
    assert_int_equal(ask("Bearer hx_a", "POST /v1/queues/other/messages"), 202);
    wait_as("Bearer hx_a", "GET /v1/queues/other/keys/k/result?wait=30s");
    u32 before = w.answers;
    serve(QUEUES, (const char *[]){"a", "allow: ['receive:orders', 'send:other']", NULL});
    assert_int_equal(w.answers, before + 2);
    pass(30000);
    assert_int_equal(w.answers, before + 3);
    assert_said("{\"messages\":[]");
}

static void a_token_that_expires_is_a_wrong_one_and_ends_its_polls(void **state) {
    (void)state;
    char rest[96];
    struct buf when = {0};
    buf_rfc3339(&when, w.t.wall_ms + 10000);
    snprintf(rest, sizeof rest, "allow: [receive], expires: '%.*s'", (int)when.len, when.p);
    serve(QUEUES, (const char *[]){"a", rest, "b", "allow: [receive]", NULL});
    pass(1);
    wait_as("Bearer hx_a", POLL);
    void *left = wait_as("Bearer hx_b", POLL);
    u32 before = w.answers;
    pass(9000);
    assert_int_equal(w.answers, before);
    pass(1000);
    assert_int_equal(w.answers, before + 1);
    assert_int_equal(w.status, 401);
    assert_said("expired");
    assert_int_equal(ask("Bearer hx_a", POLL), 401);
    assert_said("expired");
    broker_gone(w.broker, w.t, left);
    buf_free(&when);
}

static void put_hash(struct buf *b, const char *text) {
    u8 hash[DIGEST_BYTES];
    digest_sha256(slice_str(text), hash);
    buf_hex(b, slice_of(hash, sizeof hash));
}

static void rotate(const char *first, const char *second) {
    struct buf yaml = {0};
    buf_lit(&yaml, QUEUES "tokens:\n  - {name: worker, allow: [receive], sha256: [");
    put_hash(&yaml, first);
    if (second) buf_lit(&yaml, ", ");
    if (second) put_hash(&yaml, second);
    buf_lit(&yaml, "]}\n\0");
    reload(yaml.p);
    buf_free(&yaml);
}

static void a_token_is_rotated_without_anybody_noticing(void **state) {
    (void)state;
    rotate("hx_old", "hx_new");
    wait_as("Bearer hx_old", POLL);
    void *left = wait_as("Bearer hx_new", POLL);
    u32 before = w.answers;
    rotate("hx_new", NULL);
    assert_int_equal(w.answers, before + 1);
    assert_int_equal(w.status, 401);
    assert_int_equal(ask("Bearer hx_old", POLL), 401);
    broker_gone(w.broker, w.t, left);
}

static void anonymous_calls_may_do_what_is_said(void **state) {
    (void)state;
    serve(QUEUES "anonymous: [observe, 'send:orders']\n", (const char *[]){"a", "allow: [admin]", NULL});
    assert_int_equal(ask(NULL, "GET /v1/queues/payments"), 200);
    assert_int_equal(ask(NULL, "GET /v1/stats"), 200);
    assert_int_equal(ask(NULL, "POST /v1/queues/orders/messages"), 202);
    assert_int_equal(ask(NULL, "POST /v1/queues/payments/messages"), 401);
    assert_int_equal(ask("Bearer hx_wrong", "GET /v1/queues/payments"), 401);
    reload(QUEUES "anonymous: []\n");
    assert_int_equal(ask(NULL, "GET /v1/queues/payments"), 401);
    reload(QUEUES);
    assert_int_equal(ask(NULL, "POST /v1/queues/payments/messages"), 202);
}

static void a_tenants_token_sees_nothing_beyond_its_prefix(void **state) {
    (void)state;
    serve("auto_create: true\ntenants: {shop: {prefix: 'shop.'}}\nqueues: {shop.a: {}, other.a: {}, shop: {}}\n",
          (const char *[]){"shop", "allow: [admin], tenant: shop", NULL});
    assert_int_equal(ask("Bearer hx_shop", "POST /v1/queues/shop.a/messages"), 202);
    assert_int_equal(ask("Bearer hx_shop", "POST /v1/queues/shop.new/messages"), 202);
    static const char *const beyond[] = {"GET /v1/queues/other.a", "POST /v1/queues/other.a/messages",
                                         "PUT /v1/queues/other.b", "GET /v1/queues/shop",
                                         "POST /v1/queues/absent/messages"};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        assert_int_equal(verdict("Bearer hx_shop", beyond[i]), 404);
    assert_true(shows("Bearer hx_shop", "GET /v1/queues", "shop.a"));
    assert_false(shows("Bearer hx_shop", "GET /v1/queues", "other.a"));
    assert_false(shows("Bearer hx_shop", "GET /metrics", "hapax_build_info"));
    assert_false(shows("Bearer hx_shop", "GET /v1/stats", "\"journal\""));
}

/* ---- whom the broker may call */

static u16 put(const char *token, const char *queue, const char *rules) {
    char line[128], authorization[64];
    snprintf(line, sizeof line, "PUT /v1/queues/%s", queue);
    snprintf(authorization, sizeof authorization, "Bearer hx_%s", token);
    w.authorization = authorization;
    u16 status = call(line, rules);
    w.authorization = NULL;
    return status;
}

static void only_an_administrator_has_the_broker_call_somebody(void **state) {
    (void)state;
    static const char *const rules[] = {
        "{\"deliver\":{\"url\":\"https://example.com/\"}}",
        "{\"reconcile\":{\"url\":\"https://example.com/\"}}",
        "{\"deliver\":{\"url\":\"https://example.com/\",\"allow_private\":true}}",
        "{\"reconcile\":{\"url\":\"https://example.com/\",\"allow_private\":true}}",
    };
    serve("tenants: {shop: {prefix: 'shop.'}}\n",
          (const char *[]){"operator", "allow: [operate, send, receive, result]", "one", "allow: ['admin:a*']", "all",
                           "allow: [admin]", "shop", "allow: [admin], tenant: shop", NULL});
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        u16 private = i < 2 ? 201 : 403;
        assert_int_equal(put("operator", "a1", rules[i]), 403);
        assert_said("\"code\":\"forbidden\"");
        assert_said("admin");
        assert_int_equal(ask("Bearer hx_all", "GET /v1/queues/a1"), 404); /* nothing was made */
        assert_int_equal(put("one", "a1", rules[i]), private);
        assert_int_equal(put("shop", "shop.a", rules[i]), private);
        assert_int_equal(put("all", "b", rules[i]), 201);
        assert_int_equal(put("operator", "b", "{}"), 403); /* nor end it: he pauses the target */
        assert_int_equal(put("all", "b", "{}"), 200);
        static const char *const made[] = {"DELETE /v1/queues/a1", "DELETE /v1/queues/b", "DELETE /v1/queues/shop.a"};
        for (size_t k = 0; k < 3; k++) ask("Bearer hx_all", made[k]);
    }
}

static void no_rules_through_the_api_have_secrets_or_a_proxys_name(void **state) {
    (void)state;
    reload(QUEUES);
    assert_int_equal(call("PUT /v1/queues/a", "{\"deliver\":{\"url\":\"https://example.com/\",\"secret_headers\":"
                                              "{\"x\":\"${PATH}\"}}}"),
                     400);
    assert_said("deliver.secret_headers: rules that come through the API take no secrets");
    assert_int_equal(call("PUT /v1/queues/a", "{\"deliver\":{\"url\":\"https://example.com/\",\"sign\":{\"secrets\":"
                                              "[\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]}}}"),
                     400);
    assert_said("deliver.sign.secrets: rules that come through the API take no secrets");
    assert_int_equal(call("PUT /v1/queues/gate:a", "{}"), 409);
    assert_int_equal(ask(NULL, "GET /v1/queues/a"), 404);
}

/* ---- who is named */

static void the_trail_names_the_token_and_nobody_can_claim_another(void **state) {
    (void)state;
    static const char by[] = "{\"by\":\"oncall\"}";
    reload(QUEUES);
    assert_int_equal(call("POST /v1/queues/payments/pause", by), 200);
    ask(NULL, "GET /v1/audit?what=pause");
    assert_said("\"who\":\"oncall\"");
    serve(QUEUES "anonymous: [operate]\n",
          (const char *[]){"oncall", "allow: [operate]", "mallory", "allow: [operate]", NULL});
    w.authorization = "Bearer hx_mallory";
    assert_int_equal(call("POST /v1/queues/payments/resume", by), 200);
    w.authorization = NULL;
    assert_int_equal(call("POST /v1/queues/payments/pause", by), 200);
    w.authorization = "Bearer hx_oncall";
    assert_int_equal(call("POST /v1/queues/payments/resume", ""), 200);
    ask("Bearer hx_oncall", "GET /v1/audit?limit=1");
    assert_said("\"who\":\"oncall\"");
    ask("Bearer hx_oncall", "GET /v1/audit?who=mallory");
    assert_said("\"who\":\"mallory/oncall\"");
    ask("Bearer hx_oncall", "GET /v1/audit?who=anonymous");
    assert_said("\"who\":\"anonymous/oncall\"");
    assert_true(heard("by=mallory/oncall") == 1);
    assert_true(heard("hx_") == 0);
}

/* ---- at the head */

static u16 head_says(const char *head, bool *wanted) {
    struct http_head h;
    struct http_parse_error error;
    struct buf in = {0};
    void *user = NULL;
    buf_printf(&in, "%s\r\n", head);
    assert_int_equal(http_parse_head(buf_slice(&in), &h, &error), HTTP_PARSE_OK);
    *wanted = broker_body_limit(w.broker, &h.req) != HTTP_BODY_UNWANTED;
    broker_request(w.broker, w.t, &w, &user, &h.req);
    work();
    buf_free(&in);
    return w.status;
}

#define HEAD(path, fields) "POST " path " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n" fields

static void who_may_not_ask_has_no_body_read(void **state) {
    (void)state;
    bool wanted;
    serve(QUEUES, (const char *[]){"shop", "allow: ['send:payments']", NULL});
    assert_int_equal(head_says(HEAD("/v1/queues/payments/messages", ""), &wanted), 401);
    assert_false(wanted);
    assert_int_equal(head_says(HEAD("/v1/queues/orders/messages", "Authorization: Bearer hx_shop\r\n"), &wanted), 404);
    assert_false(wanted);
    assert_int_equal(head_says(HEAD("/v1/queues/payments/pause", "Authorization: Bearer hx_shop\r\n"), &wanted), 403);
    assert_false(wanted);
    assert_int_equal(head_says(HEAD("/v1/queues/order%73/messages", "Authorization: Bearer hx_shop\r\n"), &wanted),
                     404);
    assert_false(wanted);
    assert_int_equal(head_says(HEAD("/v1/ack", "Authorization: Bearer hx_shop\r\n"), &wanted), 403);
    assert_false(wanted);
    head_says(HEAD("/v1/queues/payments/messages", "Authorization: Bearer hx_shop\r\n"), &wanted);
    assert_true(wanted);
    head_says(HEAD("/v1/queues/payment%73/messages", "Authorization: Bearer hx_shop\r\n"), &wanted);
    assert_true(wanted);
}

static void hosts_matter_where_a_call_without_a_token_may_do_something(void **state) {
    (void)state;
    static const char foreign[] = "GET /v1/queues HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer hx_a\r\n";
    static const char *const token[] = {"a", "allow: [observe]", NULL};
    bool wanted;
    serve(QUEUES, token);
    assert_int_equal(head_says(foreign, &wanted), 200);
    serve(QUEUES "anonymous: ['observe:orders']\n", token);
    assert_int_equal(head_says(foreign, &wanted), 421);
    serve(QUEUES "hosts: [queue.example]\n", token);
    assert_int_equal(head_says(foreign, &wanted), 421);
    serve(QUEUES "hosts: []\n", token);
    assert_int_equal(head_says(foreign, &wanted), 421);
}

static void wrong_tokens_are_counted_and_told_without_their_text(void **state) {
    (void)state;
    serve(QUEUES, (const char *[]){"a", "allow: [observe]", NULL});
    assert_int_equal(ask("Bearer hx_secret", "GET /v1/queues"), 401);
    assert_int_equal(ask(NULL, "GET /v1/queues"), 401);
    assert_true(shows("Bearer hx_a", "GET /metrics", "hapax_unauthorized_total{why=\"wrong\"} 1"));
    assert_non_null(strstr(w.body.p, "hapax_unauthorized_total{why=\"missing\"} 1"));
    assert_int_equal(heard("token_refused why=wrong"), 1);
    assert_int_equal(heard("hx_"), 0);
}

/* Thousands of tokens, each with a right of its own. */
static void every_one_of_many_tokens_is_known(void **state) {
    (void)state;
    struct buf yaml = {0};
    char name[32], rest[64], token[64], line[64];
    buf_lit(&yaml, "auto_create: true\ntokens:\n");
    for (u32 i = 0; i < TOKENS_MAX; i++) {
        snprintf(name, sizeof name, "t%u", i);
        snprintf(rest, sizeof rest, "allow: ['send:q%u']", i);
        put_token(&yaml, name, rest);
    }
    buf_char(&yaml, 0);
    reload(yaml.p);
    buf_free(&yaml);
    for (u32 round = 0; round < 2; round++)
        for (u32 i = 0; i < TOKENS_MAX; i += 7) {
            snprintf(token, sizeof token, "Bearer hx_t%u", i);
            snprintf(line, sizeof line, "POST /v1/queues/q%u/messages", i);
            assert_int_equal(ask(token, line), 202);
            snprintf(line, sizeof line, "POST /v1/queues/q%u/messages", i + 1);
            assert_int_equal(ask(token, line), 404);
        }
}

static void patterns_fit_as_they_are_written(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool fits;
    } table[] = {
        {"a", "a", true},
        {"a", "ab", false},
        {"a*", "a", true},
        {"a*", "abc", true},
        {"*", "", true},
        {"*a", "ba", true},
        {"*a", "ab", false},
        {"a*b*c", "a1b2c", true},
        {"a*b*c", "a1b2", false},
        {"*.dead", "x.dead.y.dead", true},
        {"shop.*", "shopx", false},
        {"**", "x", true},
        {"a*a", "a", false},
        {"*ab*ab", "abab", true},
        {"*ab*ab", "ab", false},
        {"", "a", false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (grant_fits(slice_str(table[i].pattern), slice_str(table[i].name)) != table[i].fits)
            fail_msg("%s %s", table[i].pattern, table[i].name);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        T(without_tokens_nobody_is_asked),
        T(a_token_opens_what_it_allows_and_nothing_else),
        T(every_route_has_a_case_and_no_other),
        T(every_route_is_asked_for_with_every_right),
        T(a_lease_is_settled_by_who_may_receive_from_its_queue),
        T(each_lease_of_an_array_is_asked_for),
        T(lists_tell_of_what_the_caller_may_see),
        T(a_task_is_there_for_who_sees_its_queue),
        T(one_queue_among_many_is_found_in_short_turns),
        T(payloads_and_results_are_shown_to_who_may_see_them),
        T(a_repeat_gets_its_result_and_no_payload),
        T(a_token_that_is_removed_ends_its_polls),
        T(a_token_that_may_less_ends_what_it_may_not_wait_for),
        T(a_token_that_expires_is_a_wrong_one_and_ends_its_polls),
        T(a_token_is_rotated_without_anybody_noticing),
        T(anonymous_calls_may_do_what_is_said),
        T(a_tenants_token_sees_nothing_beyond_its_prefix),
        T(only_an_administrator_has_the_broker_call_somebody),
        T(no_rules_through_the_api_have_secrets_or_a_proxys_name),
        T(the_trail_names_the_token_and_nobody_can_claim_another),
        T(who_may_not_ask_has_no_body_read),
        T(hosts_matter_where_a_call_without_a_token_may_do_something),
        T(wrong_tokens_are_counted_and_told_without_their_text),
        T(every_one_of_many_tokens_is_known),
        T(patterns_fit_as_they_are_written),
    };
#undef T
    return cmocka_run_group_tests(tests, NULL, NULL);
}
