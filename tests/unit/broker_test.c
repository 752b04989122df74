/* The broker as its clients see it, on a disk in memory and a clock that only the test moves: rules and reloads, long work
 * in slices, the audit trail, what is erased. */
#include "unit/broker_world.h"

#include <malloc.h>

#include "broker/parse.h"
#include "broker/report.h"

/* ---- rules */

static void rules_given_with_put_survive_a_restart(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"key\":\"o:${id}\",\"window\":\"1h\"}"), 201);
    restart();
    assert_int_equal(send("q", NULL, "{\"id\":7}"), 202);
    assert_said("\"key\":\"o:7\"");
    assert_int_equal(send("q", "o:8", "{\"id\":7}"), 400);
    assert_said("key_mismatch");
    assert_int_equal(send("q", NULL, "{}"), 422);
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    assert_said("\"window\":\"1h\"");
    assert_said("\"origin\":\"api\"");
}

/* Every byte, at every place of keys of every length around sixteen. */
static void a_key_without_quotes_is_printable_ascii_without_quotes_and_commas(void **state) {
    (void)state;
    struct buf store = {0};
    char text[35];
    for (size_t n = 1; n <= sizeof text; n++) {
        for (size_t at = 0; at < n; at++) {
            for (unsigned byte = 0; byte < 256; byte++) {
                slice key;
                const char *why;
                memset(text, 'k', sizeof text);
                text[at] = (char)byte;
                bool blank_at_end = (at == 0 || at == n - 1) && (byte == ' ' || byte == '\t');
                bool bare = byte > 0x20 && byte < 0x7f && byte != '"' && byte != ',';
                if (blank_at_end && n > 1) continue; /* is no part of it */
                assert_int_equal(parse_key_field(slice_of(text, n), &store, &key, &why), bare);
                if (bare) assert_true(slice_eq(key, slice_of(text, n)));
            }
        }
    }
    buf_free(&store);
}

static void a_parameter_that_a_call_does_not_have_is_refused_and_the_nearest_one_named(void **state) {
    (void)state;
    assert_int_equal(send("q", "k", "x"), 202);
    assert_int_equal(call("GET /healthz?now=1", ""), 200); /* a probe that will not be told something old */
    assert_int_equal(call("POST /v1/queues/q/receive?max=1&wiat=5s", ""), 400);
    assert_said("\"code\":\"param_invalid\"");
    assert_said("no parameter \\\"wiat\\\"; it has: max wait lease start consumer. Did you mean wait?");
    assert_int_equal(call("POST /v1/queues/q/receive?w%69at=5s", ""), 400);
    assert_said("\\\"wiat\\\"");
    assert_int_equal(call("POST /v1/queues/q/receive?%zz=1", ""), 400);
    assert_said("\\\"%zz\\\"");
    assert_int_equal(call("POST /v1/queues/q/receive?=1", ""), 400);
    assert_int_equal(call("POST /v1/queues/q/messages?delay=1h", "x"), 400);
    assert_said("\\\"delay\\\"; it has none\"");
    assert_int_equal(call("DELETE /v1/queues/q?force", ""), 400);
    assert_int_equal(call("GET /?theme=dark", ""), 400);
    assert_int_equal(call("GET /v1/queues/q/messages?limit=1&acepted_since=1h", ""), 400);
    assert_said("Did you mean accepted_since?");
    assert_int_equal(call("POST /v1/queues/q/receive?&m%61x=1&", ""), 200); /* as another would write it */
    assert_said("\"key\":\"k\"");
}

static void a_file_wins_over_the_api_and_what_it_lets_go_keeps_its_rules(void **state) {
    (void)state;
    call("PUT /v1/queues/q", "{\"window\":\"1h\"}");
    send("q", "k", "x");
    reload("queues: {q: {window: 2h, key: 'o:${id}'}}\n");
    assert_int_equal(call("PUT /v1/queues/q", "{}"), 409);
    assert_said("hapax.yaml:1");
    assert_int_equal(call("DELETE /v1/queues/q", ""), 409);
    assert_int_equal(send("unknown", "k", "x"), 404);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    assert_int_equal(settle("ack", ""), 200);

    reload("queues: {other: {}}\n");
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    assert_said("\"origin\":\"auto\"");
    assert_said("\"window\":\"2h\"");
    assert_int_equal(send("q", "k", "x"), 404); /* not declared, so nothing new */
    restart();
    reload("auto_create: true\n");
    assert_int_equal(send("q", NULL, "{\"id\":1}"), 202);
    assert_said("\"key\":\"o:1\"");
}

/* As another version might have left it. */
static void give_unreadable_rules(void) {
    struct config *config;
    struct errbuf err;
    struct buf errors = {0};
    assert_int_equal(config_parse(SL("queues: {q: {}}\n"), "f", &(struct config_use){0}, &config, &errors), ST_OK);
    config->queues.at[0]->json = SL("{\"schema\":{\"pattern\":{\"a\":\"(a)\\\\1\"}}}");
    assert_int_equal(broker_configure(w.broker, w.t, config, "test", SL(""), &err), ST_OK);
    work();
}

static void rules_that_cannot_be_read_stop_one_queue_and_not_the_start(void **state) {
    (void)state;
    assert_int_equal(send("q", "k", "x"), 202);
    give_unreadable_rules();
    restart();
    assert_int_equal(send("q", "new", "x"), 503);
    assert_said("rules_unreadable");
    assert_int_equal(send("other", "new", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    assert_int_equal(settle("ack", ""), 200);
    reload("auto_create: true\n");
    assert_int_equal(send("q", "new", "x"), 503); /* nobody gave it others */
    assert_int_equal(call("PUT /v1/queues/q", "{}"), 200);
    assert_int_equal(send("q", "k", "x"), 200);
    assert_int_equal(send("q", "new", "x"), 202);

    give_unreadable_rules();
    restart();
    reload("queues: {q: {window: 2h}}\n");
    assert_int_equal(send("q", "newer", "x"), 202);
}

static void undeclared_queues_can_still_be_emptied(void **state) {
    (void)state;
    send("old", "a", "x");
    send("old", "b", "x");
    reload("queues: {new: {}}\n");
    assert_int_equal(send("old", "c", "x"), 404);
    assert_int_equal(call("POST /v1/queues/old/receive", ""), 200);
    assert_int_equal(settle("ack", ""), 200);
    assert_int_equal(call("POST /v1/queues/old/purge", ""), 200);
    assert_said("\"purged\":1");
    assert_int_equal(call("DELETE /v1/queues/old", ""), 204);
}

static void a_reload_without_room_changes_nothing(void **state) {
    (void)state;
    reload("auto_create: true\nqueues: {q: {window: 1h}}\n");
    disk_sim_set_capacity(w.disk, 0);
    for (u32 i = 0; i < 10000 && w.status != 507; i++) {
        char key[16];
        static char large[65536];
        memset(large, 'x', sizeof large - 1);
        snprintf(key, sizeof key, "k%u", i);
        send("q", key, large);
        pass(1);
    }
    assert_int_equal(w.status, 507);
    struct errbuf err = {{0}};
    struct buf yaml = {0};
    buf_printf(&yaml, "queues:\n  q: {window: 3h}\n");
    for (u32 i = 0; i < 200; i++) buf_printf(&yaml, "  q%u: {window: 2h}\n", i);
    buf_char(&yaml, 0);
    assert_int_equal(configure(yaml.p, &err), ST_NO_SPACE);
    buf_free(&yaml);
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    assert_said("\"window\":\"1h\"");
    assert_int_equal(call("GET /v1/queues/q0", ""), 404);
}

static void a_reload_is_in_the_audit_trail_with_what_it_changed(void **state) {
    (void)state;
    reload("queues: {q: {window: 1h}}\n");
    reload("queues: {q: {window: 2h}}\n");
    reload("queues: {q: {window: 2h}}\n"); /* nothing new, no entry */
    assert_int_equal(call("GET /v1/audit?what=config_reload&limit=1", ""), 200);
    assert_said("queue q: window: 1h -> 2h");
    assert_said("\"who\":\"test\"");
}

/* How many entries a queue has. */
static u32 audited(const char *queue) {
    char line[64];
    u32 n = 0;
    snprintf(line, sizeof line, "GET /v1/audit?queue=%s&limit=100", queue);
    assert_int_equal(call(line, ""), 200);
    for (const char *at = w.body.p; (at = strstr(at, "\"what\":")); at++) n++;
    return n;
}

static void what_a_file_changes_in_a_queue_is_in_its_audit_trail_after_a_restart_too(void **state) {
    (void)state;
    reload("queues: {q: {window: 1h}, r: {}}\n"); /* made new */
    assert_int_equal(audited("q"), 0);
    reload("queues: {q: {window: 2h}, r: {}}\n");
    assert_int_equal(audited("q"), 1);
    assert_said("\"who\":\"test\",\"what\":\"queue_put\"");
    assert_said("window: 1h -> 2h");
    restart_with("queues: {q: {window: 3h, key: \"o:${id}\"}, r: {}}\n");
    assert_int_equal(audited("q"), 2);
    assert_said("\"who\":\"start\",\"what\":\"queue_put\"");
    assert_said("window: 2h -> 3h");
    assert_said("o:${id}");
    assert_int_equal(heard("rules_changed queue=q"), 1);
    restart_with("queues: {q: {window: 3h, key: \"o:${id}\"}, r: {}}\n"); /* nothing new */
    reload("queues: {q: {window: 3h, key: \"o:${id}\"}, r: {}}\n");
    assert_int_equal(audited("q"), 2);
    assert_int_equal(audited("r"), 0);
    assert_int_equal(heard("rules_changed"), 1);
    restart_with("queues: {r: {}}\n");
    assert_int_equal(audited("q"), 3);
    assert_said("removed from the file");
    assert_int_equal(heard("rules_changed queue=q"), 2);
}

static void put_queues(struct buf *yaml, u32 count, const char *rules) {
    buf_reset(yaml);
    buf_printf(yaml, "auto_create: true\nqueues:\n");
    for (u32 i = 0; i < count; i++) buf_printf(yaml, "  q%u: {%s}\n", i, rules);
    buf_char(yaml, 0);
}

static void a_start_without_room_for_the_audit_trail_puts_the_rules_in_force_and_tells_the_log(void **state) {
    (void)state;
    static char large[230001];
    struct buf yaml = {0};
    put_queues(&yaml, 200, "window: 1h");
    reload(yaml.p);
    disk_sim_set_capacity(w.disk, 24u << 20);
    memset(large, 'x', sizeof large - 1);
    for (u32 i = 0; w.status != 507; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%u", i);
        send("full", key, large);
        pass(1);
    }
    disk_sim_set_capacity(w.disk, 27u << 20); /* for the rules; not for a word on each of them beside */
    put_queues(&yaml, 200, "window: 2h");
    restart_with(yaml.p);
    assert_int_equal(call("GET /v1/queues/q0", ""), 200);
    assert_said("\"window\":\"2h\"");
    assert_int_equal(audited("q0"), 0);
    assert_int_equal(heard("rules_changed queue=q"), 20);
    assert_int_equal(heard("rules_changed queues=180"), 1);
    disk_sim_set_capacity(w.disk, 64u << 20);
    put_queues(&yaml, 200, "window: 3h");
    restart_with(yaml.p);
    assert_int_equal(audited("q0"), 1);
    assert_int_equal(audited("q199"), 1);
    buf_free(&yaml);
}

/* ---- long work */

static void a_purge_goes_in_slices_and_takes_only_what_was_there(void **state) {
    (void)state;
    void *user;
    send_many("q", "a", 3500);
    assert_int_equal(request("POST /v1/queues/q/purge", NULL, SL("{\"by\":\"ann\"}"), &user), 0);
    assert_non_null(user);
    assert_int_equal(send("q", "late", "x"), 202); /* requests go on meanwhile */
    u32 before = w.answers;
    for (u32 i = 0; i < 10 && w.answers == before; i++) pass(1);
    assert_int_equal(w.status, 200);
    assert_said("{\"purged\":3500}");
    assert_int_equal(call("GET /v1/queues/q", ""), 200);
    assert_said("\"pending\":1,");
    assert_int_equal(send("q", "a0", "x"), 200); /* the keys stay */
    assert_said("\"reason\":\"purged\"");
}

static void a_purge_goes_on_when_its_client_is_gone(void **state) {
    (void)state;
    void *user;
    send_many("q", "a", 3500);
    assert_int_equal(request("POST /v1/queues/q/purge", NULL, SL(""), &user), 0);
    broker_gone(w.broker, w.t, user);
    for (u32 i = 0; i < 10; i++) pass(1);
    call("GET /v1/queues/q", "");
    assert_said("\"pending\":0,");
}

static void a_purge_that_the_end_of_the_broker_cuts_short_says_unknown(void **state) {
    (void)state;
    void *user;
    send_many("q", "a", 3500);
    assert_int_equal(request("POST /v1/queues/q/purge", NULL, SL(""), &user), 0);
    broker_drain(w.broker, w.t);
    assert_int_equal(w.status, 503);
    assert_said("\"applied\":\"unknown\"");
}

static void a_rated_redrive_keeps_to_its_rate_and_passes_over_what_was_decided_meanwhile(void **state) {
    (void)state;
    make_dead("q", 10);
    assert_int_equal(call("POST /v1/queues/q/redrive", "{\"rate\":2}"), 202);
    char task[64] = "GET /v1/tasks/";
    assert_non_null(strstr(w.fields.p, "Location: /v1/tasks/"));
    snprintf(task + strlen(task), 16, "%.13s", strstr(w.fields.p, "/v1/tasks/") + strlen("/v1/tasks/"));
    assert_int_equal(call("POST /v1/queues/q/keys/d9/resolve", "{\"as\":\"done\"}"), 200);
    for (u32 i = 0; i < 8; i++) pass(250);
    assert_int_equal(call(task, ""), 200);
    assert_said("\"redriven\":5,"); /* one at once, then two a second */
    for (u32 i = 0; i < 20; i++) pass(250);
    assert_int_equal(call(task, ""), 200);
    assert_said("\"state\":\"done\"");
    assert_said("\"redriven\":9,\"no_op\":1");
}

static void a_long_redrive_becomes_a_task_and_can_be_stopped(void **state) {
    (void)state;
    make_dead("q", 1500);
    assert_int_equal(call("POST /v1/queues/q/redrive", "{\"dry_run\":true}"), 200);
    assert_said(
        "{\"matched\":1500,\"redriven\":0,\"no_op\":0,\"dry_run\":true,\"would_run\":1500,\"would_reconcile\":0,"
        "\"would_refuse\":0}");
    assert_int_equal(call("POST /v1/queues/q/redrive", ""), 202);
    char line[64];
    snprintf(line, sizeof line, "DELETE %.23s", strstr(w.fields.p, "/v1/tasks/"));
    assert_int_equal(call(line, ""), 200);
    assert_said("\"state\":\"cancelled\"");
    call("GET /v1/queues/q", "");
    assert_said("\"ready\":1000,");
    assert_said("\"dead\":500,");
}

static void refused_copies_are_sent_through_the_door_again(void **state) {
    (void)state;
    call("PUT /v1/queues/q", "{\"key\":\"o:${id}\",\"schema\":{\"types\":{\"amount\":\"integer\"}}}");
    assert_int_equal(send("q", NULL, "{\"id\":1,\"amount\":\"x\"}"), 422);
    assert_int_equal(send("q", NULL, "{\"id\":1,\"amount\":\"x\"}"), 422); /* one copy of each */
    assert_int_equal(send("q", NULL, "{\"amount\":2}"), 422);
    call("GET /v1/queues/q", "");
    assert_said("\"refused_copies\":2,");
    call("PUT /v1/queues/q", "{\"key\":\"o:${id}\"}");
    assert_int_equal(call("POST /v1/queues/q/redrive", ""), 200);
    assert_said("{\"matched\":2,\"redriven\":1,\"no_op\":0,\"still_refused\":1}");
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    assert_said("\"key\":\"o:1\"");
}

/* ---- operators */

static void what_is_refused_is_not_in_the_audit_trail(void **state) {
    (void)state;
    send("q", "k", "x");
    assert_int_equal(call("POST /v1/queues/q/keys/k/resolve", "{\"as\":\"done\"}"), 409);
    assert_int_equal(call("POST /v1/queues/q/keys/k/replay", ""), 409);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    assert_int_equal(call("POST /v1/queues/q/keys/k/erase", ""), 409);
    assert_int_equal(call("DELETE /v1/queues/q/keys/k", ""), 409);
    assert_int_equal(call("DELETE /v1/queues/q", ""), 409);
    assert_int_equal(call("GET /v1/audit", ""), 200);
    assert_said("{\"items\":[],\"next_cursor\":null}");
}

static void an_old_generations_token_is_fenced_once_the_new_one_has_an_outcome(void **state) {
    (void)state;
    call("PUT /v1/queues/q", "{\"keep_payload\":\"1h\"}");
    send("q", "k", "x");
    call("POST /v1/queues/q/receive", "");
    char old[TOKEN_TEXT + 1];
    memcpy(old, w.token, sizeof old);
    assert_int_equal(settle("ack", ""), 200);
    assert_int_equal(call("POST /v1/queues/q/keys/k/replay", "{\"by\":\"ann\"}"), 202);
    assert_said("\"effect_key\":\"k~g1\"");
    memcpy(w.token, old, sizeof old);
    assert_int_equal(settle("release", ""), 409);
    assert_said("\"code\":\"fenced\"");
    assert_int_equal(settle("ack", ""), 200);
    assert_said("\"duplicate\":true");
    call("POST /v1/queues/q/receive", "");
    assert_int_equal(settle("ack", ""), 200);
    memcpy(w.token, old, sizeof old);
    assert_int_equal(settle("ack", ""), 409);
    assert_said("\"code\":\"fenced\"");
}

/* ---- erasing */

struct hunt {
    const char *text;
    u32 found;
};

static void look_into(void *ctx, const char *name, u64 size) {
    (void)size;
    struct hunt *h = ctx;
    struct buf bytes = {0};
    if (disk_sim_get(w.disk, name, &bytes) && memmem(bytes.p, bytes.len, h->text, strlen(h->text))) h->found++;
    buf_free(&bytes);
}

static u32 files_with(const char *text) {
    struct hunt h = {.text = text};
    disk_sim_each(w.disk, look_into, &h);
    return h.found;
}

static void erased_bytes_leave_the_disk(void **state) {
    (void)state;
    call("PUT /v1/queues/q", "{\"keep_payload\":\"30d\",\"window\":\"forever\"}");
    send("q", "k", "the customer's secret");
    call("POST /v1/queues/q/receive", "");
    settle("ack", ",\"result\":\"the customer's result\"");
    assert_true(files_with("the customer's secret") > 0);
    assert_int_equal(call("POST /v1/queues/q/keys/k/erase", "{\"by\":\"ann\",\"note\":\"asked for it\"}"), 200);
    assert_int_equal(call("GET /v1/queues/q/keys/k", ""), 200);
    assert_said("\"erased\":true");
    assert_null(strstr(w.body.p, "customer"));
    /* Everything sent from here on stays, so nothing else makes it worth while to write old segments anew. The file of a
     * dropped one is used again, and written over. */
    for (u32 i = 0; i < 30; i++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "p%u-", i);
        send_many("q", prefix, 2000);
        for (u32 n = 0; n < 20; n++) pass(50);
    }
    assert_int_equal(files_with("the customer's secret"), 0);
    assert_int_equal(files_with("the customer's result"), 0);
    assert_int_equal(send("q", "k", "the customer's secret"), 200); /* the key is known all the same */
}

/* ---- one admission per key, whatever its rules were or are */

static void take_and_ack(const char *queue) {
    char path[64];
    snprintf(path, sizeof path, "POST /v1/queues/%s/receive", queue);
    w.token[0] = 0;
    assert_int_equal(call(path, ""), 200);
    assert_int_equal(settle("ack", ""), 200);
}

static void pass_seconds(u32 seconds) {
    while (seconds--) pass(1000);
}

/* ---- where requests go */

static void a_path_asked_for_again_leads_where_its_method_and_its_own_words_say(void **state) {
    (void)state;
    for (u32 i = 0; i < 2; i++) {
        assert_int_equal(send("q", "k", "x"), 202);
        assert_int_equal(call("GET /v1/queues/q/messages", ""), 200); /* the same path, asked otherwise */
        assert_said("\"items\":[");
        assert_int_equal(call("GET /v1/queues/q/messages", ""), 200);
        assert_int_equal(call("DELETE /v1/queues/q/messages", ""), 405);
        assert_int_equal(send("p", "k", "x"), 202);
        assert_said("\"queue\":\"p\"");
        assert_int_equal(call("GET /v1/queues/%70/keys/k", ""), 200); /* decoded into memory of its own */
        assert_said("\"queue\":\"p\"");
        assert_int_equal(call("GET /v1/queues/%70/keys/k", ""), 200);
        assert_said("\"queue\":\"p\"");
        assert_int_equal(call("GET /v1/queues/q/keys/nobody", ""), 404);
    }
}

static void last_seen(char *out, size_t bytes) {
    assert_int_equal(call("GET /v1/consumers?queue=q", ""), 200);
    remember(buf_slice(&w.body), "\"last_seen\":\"", out, bytes - 1);
}

static void an_ack_is_a_sign_of_life_of_who_holds_the_lease(void **state) {
    (void)state;
    char before[25] = "", later[25] = "";
    assert_int_equal(send("q", "k", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive?consumer=w1&lease=1h", ""), 200);
    last_seen(before, sizeof before);
    pass_seconds(30);
    last_seen(later, sizeof later);
    assert_string_equal(before, later);
    assert_int_equal(settle("ack", ""), 200);
    last_seen(later, sizeof later);
    assert_true(strcmp(before, later) < 0);
}

/* ---- compaction's pace */

static u64 journal_says(const char *name) {
    char member[64];
    assert_int_equal(call("GET /v1/stats", ""), 200);
    int n = snprintf(member, sizeof member, "\"%s\":", name);
    const char *at = strstr(w.body.p, member);
    assert_non_null(at);
    return strtoull(at + n, NULL, 10);
}

static void send_large(const char *queue, const char *prefix, u32 count) {
    struct buf payload = {0};
    char key[32];
    buf_grow(&payload, 64u << 10);
    memset(payload.p, 'x', 64u << 10);
    payload.p[(64u << 10) - 1] = 0;
    for (u32 i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%s%u", prefix, i);
        assert_int_equal(send(queue, key, payload.p), 202);
    }
    buf_free(&payload);
}

static bool within_threshold(void) {
    return journal_says("used_bytes") <= journal_says("live_bytes") * 12 / 5 + (7u << 20);
}

static void who_sends_after_a_purge_does_not_pay_for_it_and_it_is_cleaned_within_minutes(void **state) {
    (void)state;
    char prefix[16];
    for (u32 i = 0; i < 100; i++) { /* so that what is kept has to be carried from among what is not */
        snprintf(prefix, sizeof prefix, "k%u-", i);
        send_large("purged", prefix, 9);
        send_large("also-purged", prefix, 9);
        send_large("kept", prefix, 3);
    }
    assert_int_equal(call("POST /v1/queues/purged/purge", ""), 200);
    assert_int_equal(call("POST /v1/queues/also-purged/purge", ""), 200);
    assert_false(within_threshold());
    u64 before = journal_says("tail");
    send_large("new", "k", 480); /* 30 MiB, in no time at all */
    assert_in_range(journal_says("tail") - before, 30u << 20, 36u << 20);
    for (u32 i = 0; i < 5 * 60; i++) pass(1000);
    assert_true(within_threshold());
}

static void what_is_dead_altogether_is_dropped_at_once_and_costs_nobody(void **state) {
    (void)state;
    send_large("purged", "k", 900);
    send_large("kept", "k", 100);
    assert_int_equal(call("POST /v1/queues/purged/purge", ""), 200);
    u64 before = journal_says("tail");
    for (u32 i = 0; i < 10; i++) pass(10);
    assert_in_range(journal_says("used_bytes"), 0,
                    journal_says("live_bytes") + (3u << 20)); /* far below the threshold */
    assert_in_range(journal_says("tail") - before, 0, 1u << 20);
}

static void what_a_purge_leaves_is_cleaned_at_once_while_nobody_asks(void **state) {
    (void)state;
    send_large("purged", "k", 950);
    send_large("kept", "k", 100);
    assert_int_equal(call("POST /v1/queues/purged/purge", ""), 200);
    assert_false(within_threshold());
    for (u32 i = 0; i < 250; i++) pass(4); /* a second */
    assert_true(within_threshold());
}

static void a_queue_that_churns_stays_within_the_threshold_though_no_time_passes(void **state) {
    (void)state;
    for (u32 i = 0; i < 60; i++) {
        char prefix[16];
        snprintf(prefix, sizeof prefix, "k%u-", i);
        send_large("q", prefix, 16);
        for (u32 n = 0; n < 16; n++) take_and_ack("q");
    }
    assert_true(within_threshold());
}

/* What is kept has to be carried out of the way of what is not, again and again. */
static void a_churn_beside_what_is_kept_stays_below_four_times_that_though_no_time_passes(void **state) {
    (void)state;
    char prefix[16];
    send_large("kept", "k", 300); /* 19 MiB */
    u64 most = 0;
    for (u32 i = 0; i < 150; i++) {
        snprintf(prefix, sizeof prefix, "k%u-", i);
        send_large("churned", prefix, 16);
        for (u32 n = 0; n < 16; n++) take_and_ack("churned");
        u64 used = journal_says("used_bytes");
        if (used > most) most = used;
    }
    assert_in_range(most, 0,
                    journal_says("live_bytes") * 4 + (4u << 20)); /* all of it is carried before anything is gained */
}

static void a_conflict_admitted_under_its_own_key_is_known_though_the_first_key_is_past_its_window(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"on_conflict\":\"new\",\"window\":\"20s\"}"), 201);
    assert_int_equal(send("q", "k", "first"), 202);
    take_and_ack("q");
    pass_seconds(15);
    assert_int_equal(send("q", "k", "second"), 202);
    take_and_ack("q");
    pass_seconds(10); /* the first is forgotten, the second was done ten seconds ago */
    send("q", "k", "second");
    assert_said("\"duplicate\":true");
    assert_int_equal(send("q", "k", "third"), 202); /* it is not the key that is known, but that payload under it */
    assert_said("\"duplicate\":false");
}

static void a_queue_that_stops_repeating_keys_knows_the_last_one_of_each(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"semantics\":\"at_least_once\",\"window\":\"20s\"}"), 201);
    assert_int_equal(send("q", "k", "x"), 202);
    take_and_ack("q");
    pass_seconds(15);
    assert_int_equal(send("q", "k", "x"), 202);
    take_and_ack("q");
    assert_int_equal(call("PUT /v1/queues/q", "{\"window\":\"20s\"}"), 200);
    pass_seconds(5); /* the first is just past its window and still in memory */
    assert_int_equal(send("q", "k", "x"), 200);
    assert_said("\"duplicate\":true");
}

/* ---- a full disk */

static u32 fill_disk_by(const char *queue, u32 payload) {
    static char large[250001];
    CHECK(payload < sizeof large);
    memset(large, 'x', payload);
    large[payload] = 0;
    u32 n = 0;
    for (;; n++) {
        char key[16];
        snprintf(key, sizeof key, "k%u", n);
        if (send(queue, key, large) == 507) return n;
        pass(1);
    }
}

static u32 fill_disk(const char *queue) {
    return fill_disk_by(queue, 65535);
}

static void repeats_on_a_full_disk_leave_what_was_accepted_its_room(void **state) {
    (void)state;
    static char result[1100];
    disk_sim_set_capacity(w.disk, 24u << 20);
    u32 accepted = fill_disk("q");
    assert_true(accepted > 10);
    for (u32 i = 0; i < 20000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%u", i % accepted);
        assert_int_equal(send("q", key, "another payload"), 422);
        if (i % 100 == 0) pass(10);
    }
    memset(result, 'r', sizeof result);
    snprintf(result, sizeof result, ",\"result\":\"%0*d\"", 1000, 1);
    for (u32 i = 0; i < accepted; i++) {
        assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
        char body[1300];
        snprintf(body, sizeof body, "{\"token\":\"%s\"%s}", w.token, result);
        assert_int_equal(call("POST /v1/ack", body), 200);
    }
}

static void what_is_refused_for_lack_of_room_is_not_in_the_audit_trail(void **state) {
    (void)state;
    make_dead("q", 1);
    char line[128];
    snprintf(line, sizeof line, "POST /v1/queues/q/messages/%s/resolve", w.id);
    disk_sim_set_capacity(w.disk, 24u << 20);
    fill_disk("q");
    struct buf body = {0};
    buf_lit(&body, "{\"as\":\"done\",\"by\":\"ada\",\"result\":\"");
    for (u32 i = 0; i < 600000; i++) buf_char(&body, 'r');
    buf_lit(&body, "\"}");
    assert_int_equal(request(line, NULL, buf_slice(&body), NULL), 507);
    buf_free(&body);
    assert_said("\"applied\":\"no\"");
    assert_int_equal(call("GET /v1/audit?who=ada", ""), 200);
    assert_said("{\"items\":[]");
}

static void operators_can_make_room_on_a_full_disk(void **state) {
    (void)state;
    disk_sim_set_capacity(w.disk, 24u << 20);
    fill_disk("q");
    for (u32 i = 0;; i++) { /* to the brim */
        char key[16];
        snprintf(key, sizeof key, "s%u", i);
        if (send("q", key, "x") == 507) break;
    }
    for (u32 i = 0; i < 40; i++)
        assert_int_equal(call(i % 2 ? "POST /v1/queues/q/resume" : "POST /v1/queues/q/pause", ""), 200);
    assert_int_equal(call("DELETE /v1/queues/q/keys/k0", "{\"by\":\"ada\"}"), 204);
    assert_int_equal(call("POST /v1/queues/q/keys/k1/erase", "{\"by\":\"ada\"}"), 200);
    void *user;
    request("POST /v1/queues/q/purge", NULL, SL("{\"by\":\"ada\"}"), &user);
    for (u32 i = 0; i < 100; i++) pass(10);
    assert_int_equal(w.status, 200);
    assert_said("\"purged\":");
}

static void a_small_disk_full_of_what_is_done_takes_new_work_by_itself(void **state) {
    (void)state;
    disk_sim_set_capacity(w.disk, 6u << 20); /* room for five segments */
    for (u32 round = 0; round < 20; round++) {
        char queue[16];
        snprintf(queue, sizeof queue, "q%u", round);
        u32 accepted = fill_disk_by(queue, 6000);
        for (u32 i = 0; i < accepted; i++) take_and_ack(queue);
        for (u32 i = 0; i < 300; i++) pass(100); /* nobody asks */
        assert_int_equal(send("q", queue, "x"), 202);
        assert_in_range(accepted, 100, 10000); /* not a handful between two refusals */
    }
}

/* A segment that was compacted is room only when its copies are on the disk. */
static void a_full_disk_that_takes_long_to_sync_is_not_compacted_to_death(void **state) {
    (void)state;
    char prefix[16];
    disk_sim_set_capacity(w.disk, 24u << 20);
    for (u32 i = 0; i < 17; i++) { /* 64 KiB each: what is kept has to be carried from among what is not */
        snprintf(prefix, sizeof prefix, "k%u-", i);
        send_large("kept", prefix, 8);
        send_large("purged", prefix, 8);
    }
    fill_disk("purged");
    submit("POST /v1/queues/purged/purge", NULL, SL("{\"by\":\"ada\"}"), NULL);
    for (u32 i = 0; i < 1000; i++) { /* the disk does not answer */
        w.t.mono_ms += 4;
        broker_tick(w.broker, w.t);
        broker_turn_end(w.broker, w.t);
        assert_null(journal_failed(w.journal));
    }
    for (u32 i = 0; i < 1000; i++) pass(4);
    assert_int_equal(send("new", "k", "x"), 202);
    assert_in_range(journal_says("used_bytes"), 0, 17u << 20); /* it goes on where it had waited */
}

/* ---- what operators hear */

static void a_disk_that_is_full_is_told_once_and_once_when_it_is_not_any_more(void **state) {
    (void)state;
    disk_sim_set_capacity(w.disk, 24u << 20);
    fill_disk("q");
    for (u32 i = 0; i < 50; i++) {
        pass(100);
        send("q", "more", "x");
    }
    assert_int_equal(heard("disk_short room_bytes="), 1);
    assert_int_equal(heard("disk_enough"), 0);
    void *user;
    request("POST /v1/queues/q/purge", NULL, SL("{\"by\":\"ada\"}"), &user);
    for (u32 i = 0; i < 100; i++) pass(100);
    assert_int_equal(heard("disk_short"), 1);
    assert_int_equal(heard("disk_enough"), 1);
}

static void a_disk_has_room_again_only_when_what_was_refused_would_be_taken(void **state) {
    (void)state;
    disk_sim_set_capacity(w.disk, 24u << 20);
    fill_disk_by("q", 230000); /* something smaller would still fit */
    pass(1);
    assert_int_equal(heard("disk_short room_bytes="), 1);
    for (u32 i = 0; i < 300; i++) pass(100); /* nobody asks, and nothing changes */
    assert_int_equal(heard("disk_enough"), 0);
    disk_sim_set_capacity(w.disk, 64u << 20);
    for (u32 i = 0; i < 300; i++) pass(100);
    assert_int_equal(heard("disk_enough"), 1);
    assert_int_equal(send("q", "more", "x"), 202);
    assert_int_equal(heard("disk_short"), 1);
}

static void memory_that_is_short_is_told_once_and_once_when_it_is_not_any_more(void **state) {
    (void)state;
    char key[16];
    u32 n = 0;
    w.memory_max = 16u << 20;
    restart();
    do {
        snprintf(key, sizeof key, "m%u-", n++);
        send_many("q", key, 1000);
    } while (!strstr(w.body.p, "\"status\":507"));
    for (u32 i = 0; i < 300; i++) pass(100);
    assert_int_equal(heard("memory_short limit_bytes=16777216"), 1);
    assert_int_equal(heard("memory_enough"), 0);
    call("POST /v1/queues/q/purge", "{\"by\":\"ada\"}");
    for (u32 i = 0; i < 100; i++) pass(100);
    assert_int_equal(heard("memory_short"), 1);
    assert_int_equal(heard("memory_enough"), 1);
    w.memory_max = 0;
}

static void compaction_that_cannot_keep_up_is_told(void **state) {
    (void)state;
    static char large[250000];
    char key[16];
    memset(large, 'x', sizeof large - 1);
    assert_int_equal(call("PUT /v1/queues/q", "{\"class\":\"analytics\"}"), 201);
    w.us_a_look = 1000000; /* one piece of everything a turn */
    for (u32 i = 0; i < 240; i++) {
        snprintf(key, sizeof key, "k%u", i);
        submit("POST /v1/queues/q/messages", key, slice_str(large), NULL);
        submit("POST /v1/queues/q/receive", NULL, SL(""), NULL); /* and is settled with that */
        if (i % 8 == 0) submit("POST /v1/queues/kept/messages", key, slice_str(large), NULL);
        if (i % 8 == 7) pass(1000);
    }
    assert_int_equal(heard("compaction_behind used_bytes="), 1);
    w.us_a_look = 0;
    for (u32 i = 0; i < 60; i++) pass(1000);
    assert_int_equal(heard("compaction_behind"), 1);
    assert_int_equal(heard("compaction_keeps_up"), 1);
}

static void a_repeat_is_logged_where_the_queue_says_so_and_not_before_it_is_durable(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"log_duplicates\":true,\"window\":\"20s\"}"), 201);
    assert_int_equal(heard("operator what=queue_put queue=q by=anonymous audit=1\n"), 1);
    submit("POST /v1/queues/q/messages", "k", SL("x"), NULL);
    submit("POST /v1/queues/q/messages", "k", SL("x"), NULL);
    assert_int_equal(heard("duplicate"), 0);
    work();
    assert_int_equal(heard("duplicate queue=q key=k kind=replay age_ms=0\n"), 1);
    send("q", "k", "other");
    assert_int_equal(heard("duplicate queue=q key=k kind=conflict"), 1);
    take_and_ack("q");
    pass_seconds(15);
    send("q", "k", "x");
    assert_int_equal(heard("duplicate queue=q key=k kind=late age_ms=15"), 1);
    send("silent", "k", "x");
    send("silent", "k", "x");
    assert_int_equal(heard("duplicate"), 3);
    submit("POST /v1/queues/q/messages", "new", SL("x"), NULL); /* now they wait for the disk */
    for (u32 i = 0; i < 200; i++) submit("POST /v1/queues/q/messages", "k", SL("x"), NULL);
    call("POST /v1/queues/q/pause", "{\"by\":\"ada\"}"); /* a storm of repeats leaves room for what operators do */
    assert_int_equal(heard("operator what=pause queue=q by=ada"), 1);
    assert_in_range(heard("duplicate"), 10, 40);
}

static void what_waits_for_the_disk_is_told_whole_and_in_order(void **state) {
    (void)state;
    submit("POST /v1/queues/q/messages", "k", SL("x"), NULL);
    for (u32 i = 0; i < 2 * REPORTS_MAX; i++)
        report_after(w.broker, LOG_WARN, "alert", "…", log_number("n", (i64)i), log_text("queue", SL("q")), LOG_EVERY);
    assert_int_equal(heard("alert"), 0);
    work();
    assert_int_equal(heard("alert n=0 queue=q every\nalert n=1 queue=q every\n"), 1);
    assert_int_equal(heard("alert"), REPORTS_MAX); /* and no more than that wait */
    assert_int_equal(heard("n=1023 "), 1);
}

static void many_times_to_live_that_end_together_are_ended_in_slices(void **state) {
    (void)state;
    struct buf body = {0};
    for (u32 i = 0; i < 9000; i++) buf_printf(&body, "{\"key\":\"t%u\",\"payload\":\"x\",\"ttl\":\"1s\"}\n", i);
    assert_int_equal(request("POST /v1/queues/q/batch", NULL, buf_slice(&body), NULL), 200);
    buf_free(&body);
    w.t.mono_ms += 2000;
    w.t.wall_ms += 2000;
    broker_tick(w.broker, w.t);
    call("GET /v1/queues/q", "");
    assert_null(strstr(w.body.p, "\"cancelled\":9000"));
    for (u32 i = 0; i < 20; i++) pass(1);
    call("GET /v1/queues/q", "");
    assert_said("\"cancelled\":9000");
}

/* ---- long work in parts */

/* Turns until there has been another answer. */
static u32 turns_to_answer(u32 answers) {
    u32 turns = 0;
    for (; w.answers < answers && turns < 10000; turns++) work();
    assert_int_equal(w.answers, answers);
    return turns;
}

static void put_acks(struct buf *body, u32 *count) {
    static const char name[] = "\"token\":\"";
    slice rest = buf_slice(&w.body);
    const char *at;
    *count = 0;
    buf_char(body, '[');
    while ((at = memmem(rest.p, rest.n, name, sizeof name - 1))) {
        at += sizeof name - 1;
        if ((*count)++) buf_char(body, ',');
        buf_printf(body, "{\"token\":\"%.*s\"}", (int)TOKEN_TEXT, at);
        rest = slice_of(at, rest.n - (size_t)(at - rest.p));
    }
    buf_char(body, ']');
}

static u32 times_said(const char *part) {
    u32 n = 0;
    for (const char *at = w.body.p; (at = strstr(at, part)); at++) n++;
    return n;
}

static void others_are_answered_while_a_long_array_is_settled(void **state) {
    (void)state;
    struct buf acks = {0};
    u32 count;
    send_many("q", "k", 500);
    assert_int_equal(call("POST /v1/queues/q/receive?max=500", ""), 200);
    put_acks(&acks, &count);
    assert_int_equal(count, 500);
    w.us_a_look = 1000; /* it looks every some items */
    u32 answers = w.answers;
    assert_int_equal(submit("POST /v1/ack", NULL, buf_slice(&acks), NULL), 0);
    memset(acks.p, 'x', acks.len); /* the request's bytes are the network's */
    buf_free(&acks);
    broker_turn_end(w.broker, w.t);
    assert_int_equal(w.answers, answers);
    assert_int_equal(submit("GET /v1/queues/q", NULL, SL(""), NULL), 200);
    assert_null(strstr(w.body.p, "\"leased\":500"));
    assert_null(strstr(w.body.p, "\"leased\":0"));
    assert_int_equal(broker_next_ms(w.broker, w.t), 0);
    assert_true(turns_to_answer(answers + 2) > 3);
    assert_int_equal(w.status, 200);
    assert_int_equal(times_said("\"state\":\"done\""), 500);
    call("GET /v1/queues/q", "");
    assert_said("\"leased\":0");
    assert_said("\"keys\":500");
}

static void large_messages_are_acked_few_at_a_time(void **state) {
    (void)state;
    struct buf acks = {0}, line = {0};
    char payload[9000];
    u32 count;
    memset(payload, 'p', sizeof payload);
    for (u32 i = 0; i < 20; i++) {
        buf_reset(&line);
        buf_printf(&line, "k%u%c", i, 0);
        assert_int_equal(request("POST /v1/queues/q/messages", line.p, slice_of(payload, sizeof payload), NULL), 202);
    }
    call("POST /v1/queues/q/receive?max=20", "");
    put_acks(&acks, &count);
    assert_int_equal(count, 20);
    w.us_a_look = 1000;
    u32 answers = w.answers;
    assert_int_equal(submit("POST /v1/ack", NULL, buf_slice(&acks), NULL), 0);
    assert_int_equal(submit("GET /v1/queues/q", NULL, SL(""), NULL), 200);
    assert_said("\"leased\":16"); /* a request has 4 ms at once */
    turns_to_answer(answers + 2);
    assert_int_equal(times_said("\"state\":\"done\""), 20);
    buf_free(&acks);
    buf_free(&line);
}

/* A token and nothing else is read once, whatever says more a second time: nobody can tell. */
static void each_item_of_an_array_gets_its_own_answer_however_it_is_spelled(void **state) {
    (void)state;
    struct buf acks = {0}, body = {0};
    u32 count;
    send_many("q", "k", 6);
    call("POST /v1/queues/q/receive?max=6", "");
    put_acks(&acks, &count);
    slice token[6];
    for (u32 i = 0; i < 6; i++) token[i] = slice_of(acks.p + 11 + i * (13 + TOKEN_TEXT), TOKEN_TEXT);
#define TOKEN(i) (int)token[i].n, token[i].p
    buf_printf(&body,
               " [ 7, {}, {\"token\":\"%.*s\"}, {\"token\":9}, {\"token\":\"%.*s\",\"more\":[{\"token\":1}]},"
               "{\"\\u0074oken\":\"%.*s\"},{\"token\":\"%.*s\",\"token\":\"%.*s\"},\"x\",null,[1,[2]],"
               "{\"result\":5,\"token\":\"%.*s\"} , {\"token\":\"\\u%04x%.*s\"}, {\"result\":5}]",
               TOKEN(0), TOKEN(1), TOKEN(2), TOKEN(3), TOKEN(3), TOKEN(4), (unsigned)token[5].p[0], (int)token[5].n - 1,
               token[5].p + 1);
#undef TOKEN
    assert_int_equal(request("POST /v1/ack", NULL, buf_slice(&body), NULL), 200);
    const char *want[] = {"expected an object at byte 0",
                          "token is missing",
                          "\"state\":\"done\"",
                          "expected a string at byte 9",
                          "\"state\":\"done\"",
                          "\"state\":\"done\"",
                          "repeated member name at byte 60",
                          "expected an object at byte 0",
                          "expected an object at byte 0",
                          "expected an object at byte 0",
                          "\"state\":\"done\"",
                          "\"state\":\"done\"",
                          "token is missing"};
    const char *at = w.body.p;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_non_null(at = strstr(at, want[i]));
        at++;
    }
    assert_int_equal(times_said("\"state\":\"done\""), 5);
    assert_int_equal(times_said("\"code\":"), 8);
    call("GET /v1/queues/q", "");
    assert_said("\"leased\":1");
    buf_free(&acks);
    buf_free(&body);
}

/* Reading it is work too, and no item may be all of it. */
static void others_are_answered_while_a_long_array_is_read(void **state) {
    (void)state;
    struct buf acks = {0};
    buf_char(&acks, '[');
    for (u32 i = 0; i < 5000; i++) buf_printf(&acks, "%s{\"token\":\"none\",\"more\":\"%0400u\"}", i ? "," : "", i);
    buf_lit(&acks, "]!");
    w.us_a_look = 500;
    u32 answers = w.answers;
    assert_int_equal(submit("POST /v1/ack", NULL, buf_slice(&acks), NULL), 0);
    assert_int_equal(submit("GET /v1/queues", NULL, SL(""), NULL), 200);
    assert_true(turns_to_answer(answers + 2) > 3);
    assert_int_equal(w.status, 400); /* nothing was applied: it ends in nonsense */
    assert_said("json_invalid");
    acks.len--;
    answers = w.answers;
    submit("POST /v1/ack", NULL, buf_slice(&acks), NULL);
    turns_to_answer(answers + 1);
    assert_int_equal(w.status, 200);
    assert_int_equal(times_said("\"code\":\"token_invalid\""), 5000);

    buf_reset(&acks);
    buf_lit(&acks, "{\"token\":\"none\",\"more\":[1");
    for (u32 i = 0; i < 20000; i++) buf_lit(&acks, ",1");
    buf_lit(&acks, "]}");
    assert_int_equal(request("POST /v1/ack", NULL, buf_slice(&acks), NULL), 400);
    assert_said("too many values");
    acks.p[0] = '[';
    memset(acks.p + 1, ' ', 22);
    acks.p[acks.len - 1] = ']';
    assert_int_equal(request("POST /v1/ack", NULL, buf_slice(&acks), NULL), 400);
    assert_said("too many values");
    buf_free(&acks);
}

static void others_are_answered_while_a_long_batch_is_taken(void **state) {
    (void)state;
    struct buf lines = {0};
    for (u32 i = 0; i < 300; i++) buf_printf(&lines, "{\"key\":\"k%u\",\"payload\":\"x\"}\n", i % 150);
    w.us_a_look = 100;
    u32 answers = w.answers;
    assert_int_equal(submit("POST /v1/queues/q/batch", NULL, buf_slice(&lines), NULL), 0);
    assert_int_equal(submit("POST /v1/queues/q/messages", "k149", SL("x"), NULL), 202);
    assert_said("accepted");
    memset(lines.p, 'x', lines.len);
    buf_free(&lines);
    assert_true(turns_to_answer(answers + 2) > 3);
    assert_int_equal(times_said("\n"), 300);
    assert_int_equal(times_said("\"outcome\":\"accepted\""), 149);
    assert_int_equal(times_said("\"outcome\":\"duplicate\""), 151);
    slice rest = slice_str(w.body.p), line;
    for (u32 i = 0; i < 300; i++) { /* in order */
        char key[32];
        snprintf(key, sizeof key, "\"key\":\"k%u\"", i % 150);
        slice_cut(rest, '\n', &line, &rest);
        assert_non_null(memmem(line.p, line.n, key, strlen(key)));
    }
}

static void a_batch_goes_on_though_its_client_is_gone_and_its_queue_was_deleted(void **state) {
    (void)state;
    struct buf lines = {0};
    void *user = NULL;
    assert_int_equal(call("PUT /v1/queues/q", "{\"semantics\":\"at_most_once\"}"), 201);
    for (u32 i = 0; i < 200; i++) buf_printf(&lines, "{\"key\":\"k%u\",\"payload\":\"x\"}\n", i);
    w.us_a_look = 100;
    assert_int_equal(submit("POST /v1/queues/q/batch", NULL, buf_slice(&lines), &user), 0);
    buf_free(&lines);
    w.us_a_look = 0;
    assert_int_equal(submit("POST /v1/queues/q/receive?max=1000", NULL, SL(""), NULL), 200);
    u32 taken = times_said("\"token\"");
    assert_true(taken > 0 && taken < 200);
    assert_int_equal(submit("DELETE /v1/queues/q", NULL, SL(""), NULL), 204);
    broker_gone(w.broker, w.t, user);
    u32 answers = w.answers;
    for (u32 i = 0; i < 20; i++) work();
    assert_int_equal(w.answers, answers);
    call("GET /v1/queues/q", "");
    char pending[32];
    snprintf(pending, sizeof pending, "\"pending\":%u,", 200 - taken);
    assert_said(pending);
    assert_said("\"origin\":\"auto\"");
}

static void long_requests_that_come_together_leave_time_to_read_others(void **state) {
    (void)state;
    char line[64];
    u32 answers = w.answers, at_once = 0;
    w.us_a_look = 3000;
    for (u32 i = 0; i < 20; i++) {
        snprintf(line, sizeof line, "{\"key\":\"k%u\",\"payload\":\"x\"}\n", i);
        at_once += submit("POST /v1/queues/q/batch", NULL, slice_str(line), NULL) == 200;
    }
    assert_in_range(at_once, 1, 4);
    assert_int_equal(submit("POST /v1/queues/q/messages", "small", SL("x"), NULL), 202);
    for (u32 i = 0; i < 20; i++) work();
    assert_int_equal(w.answers, answers + 21);
    w.us_a_look = 0;
    call("GET /v1/queues/q", "");
    assert_said("\"pending\":21,");
}

/* A batch of lines that repeat one key with a large result, and of one that is new, a line a turn. */
#define REPEATS      45u
#define RESULT_BYTES 400000u
#define RESULTS_KEPT 36u /* one more might pass 16 MiB, if all of it had to be escaped */
static void *begin_large_batch(void) {
    struct buf text = {0};
    void *user = NULL;
    assert_int_equal(send("q", "k", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    buf_printf(&text, "{\"token\":\"%s\",\"result\":\"", w.token);
    for (u32 i = 0; i < RESULT_BYTES; i++) buf_char(&text, 'r');
    buf_lit(&text, "\"}");
    assert_int_equal(request("POST /v1/ack", NULL, buf_slice(&text), NULL), 200);
    buf_reset(&text);
    for (u32 i = 0; i < REPEATS; i++) buf_lit(&text, "{\"key\":\"k\",\"payload\":\"x\"}\n");
    buf_lit(&text, "{\"key\":\"new\",\"payload\":\"x\"}\n");
    w.us_a_look = 1000000;
    assert_int_equal(submit("POST /v1/queues/q/batch", NULL, buf_slice(&text), &user), 0);
    buf_free(&text);
    return user;
}

static void a_reply_being_made_is_said_to_be_kept_and_ends_at_its_bound(void **state) {
    (void)state;
    assert_non_null(begin_large_batch());
    assert_true(w.kept > RESULT_BYTES);
    for (u32 i = 2; i <= REPEATS; i++) {
        size_t before = w.kept;
        for (u32 turns = 0; turns < 2 && w.kept == before; turns++) work(); /* the first may be long without it */
        assert_true(w.kept > before && w.kept < 16u << 20);
        assert_true(w.kept > (i < RESULTS_KEPT ? i : RESULTS_KEPT) * RESULT_BYTES);
    }
    for (u32 turns = 0, answers = w.answers; turns < 2 && w.answers == answers; turns++) work();
    assert_int_equal(w.status, 200);
    assert_int_equal(times_said("\"outcome\":\"duplicate\""), REPEATS);
    assert_int_equal(times_said("\"result_omitted\":true"), REPEATS - RESULTS_KEPT);
    assert_said("\"outcome\":\"accepted\"");
    w.us_a_look = 0;
}

static void nothing_is_kept_for_a_client_that_is_gone_and_its_batch_is_done(void **state) {
    (void)state;
    void *user = begin_large_batch();
    for (u32 i = 0; i < 10 && w.kept <= 6 * RESULT_BYTES; i++) work();
    struct mallinfo2 before = mallinfo2();
    assert_true(w.kept > 6 * RESULT_BYTES);
    w.kept = 0;
    broker_gone(w.broker, w.t, user);
    struct mallinfo2 after = mallinfo2();
    if (before.uordblks) /* else a sanitizer's */
        assert_true(after.uordblks + after.hblkhd + 5 * RESULT_BYTES < before.uordblks + before.hblkhd);
    for (u32 i = 0; i <= 2 * REPEATS; i++) work();
    assert_int_equal(w.kept, 0);
    w.us_a_look = 0;
    assert_int_equal(send("q", "new", "x"), 202);
    assert_said("\"outcome\":\"duplicate\"");
}

static void many_who_wait_for_one_outcome_are_answered_over_turns(void **state) {
    (void)state;
    assert_int_equal(send("q", "k", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    for (u32 i = 0; i < 300; i++)
        assert_int_equal(submit("GET /v1/queues/q/keys/k/result?wait=60s", NULL, SL(""), NULL), 0);
    w.us_a_look = 100;
    u32 answers = w.answers;
    assert_int_equal(settle("ack", ",\"result\":\"r\""), 200);
    assert_true(w.answers < answers + 1 + 100);
    assert_int_equal(broker_next_ms(w.broker, w.t), 0);
    assert_true(turns_to_answer(answers + 301) > 2);
    assert_string_equal(w.body.p, "r");
}

static void many_polls_that_can_be_answered_together_are_answered_over_turns(void **state) {
    (void)state;
    assert_int_equal(send("q", "first", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    for (u32 i = 0; i < 300; i++) assert_int_equal(submit("POST /v1/queues/q/receive?wait=60s", NULL, SL(""), NULL), 0);
    u32 answers = w.answers;
    w.us_a_look = 0;
    struct buf lines = {0};
    for (u32 i = 0; i < 300; i++) buf_printf(&lines, "{\"key\":\"k%u\",\"payload\":\"x\"}\n", i);
    assert_int_equal(submit("POST /v1/queues/q/batch", NULL, buf_slice(&lines), NULL), 200);
    buf_free(&lines);
    w.us_a_look = 100;
    assert_true(turns_to_answer(answers + 301) > 2);
    call("GET /v1/queues/q", "");
    assert_said("\"leased\":301");
}

static void a_request_too_long_to_be_kept_is_refused_before_anything_is_applied(void **state) {
    (void)state;
    struct buf lines = {0};
    for (u32 i = 0; i < 5000; i++) buf_printf(&lines, "{\"key\":\"k%u\",\"payload\":\"%01000u\"}\n", i, i); /* 5 MB */
    w.us_a_look = 4000;
    u32 kept = 0;
    while (submit("POST /v1/queues/q/batch", NULL, buf_slice(&lines), NULL) == 0) kept++;
    buf_free(&lines);
    assert_in_range(kept, 8, 16); /* 64 MiB */
    assert_int_equal(w.status, 503);
    assert_said("\"applied\":\"no\"");
    assert_int_equal(submit("POST /v1/queues/q/messages", "other", SL("x"), NULL), 202);
    w.us_a_look = 0;
    turns_to_answer(w.answers + kept);
}

static void a_key_that_repeats_is_shown_in_pages_within_the_bound_of_a_reply(void **state) {
    (void)state;
    struct buf payload = {0};
    assert_int_equal(call("PUT /v1/queues/q", "{\"semantics\":\"at_least_once\"}"), 201);
    while (payload.len < 100000) buf_char(&payload, 1); /* six bytes each in a JSON text */
    for (u32 i = 0; i < 32; i++)
        assert_int_equal(request("POST /v1/queues/q/messages", "k", buf_slice(&payload), NULL), 202);
    buf_free(&payload);
    u32 shown = 0, pages = 0;
    for (char line[64] = "GET /v1/queues/q/keys/k"; line[0]; pages++) {
        assert_int_equal(call(line, ""), 200);
        assert_true(w.body.len < (16u << 20) + (1u << 20));
        assert_true(times_said("\"fingerprint\"") > 0);
        shown += times_said("\"fingerprint\"");
        const char *next = strstr(w.body.p, "\"next_cursor\":\"");
        line[0] = 0;
        if (next) snprintf(line, sizeof line, "GET /v1/queues/q/keys/k?cursor=%d", (int)strtol(next + 15, NULL, 10));
    }
    assert_int_equal(shown, 32);
    assert_int_equal(pages, 2);
}

/* ---- queues that are not there */

static void receiving_makes_no_queue_and_hears_of_the_first_message(void **state) {
    (void)state;
    void *users[3];
    assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
    assert_said("\"messages\":[]");
    for (u32 i = 0; i < 3; i++)
        assert_int_equal(request("POST /v1/queues/q/receive?wait=30s", NULL, SL(""), &users[i]), 0);
    request("POST /v1/queues/r/receive?wait=30s", NULL, SL(""), NULL);
    assert_int_equal(call("GET /v1/queues/q", ""), 404);
    call("GET /v1/queues", "");
    assert_said("\"items\":[]");
    broker_gone(w.broker, w.t, users[0]);
    u32 answers = w.answers;
    assert_int_equal(submit("POST /v1/queues/q/messages", "k1", SL("x"), NULL), 202);
    work();
    assert_int_equal(w.answers, answers + 2);
    assert_said("\"key\":\"k1\"");
    assert_int_equal(settle("ack", ""), 200);
    assert_int_equal(submit("POST /v1/queues/q/messages", "k2", SL("x"), NULL), 202);
    work();
    assert_said("\"key\":\"k2\"");
    answers = w.answers;
    pass(30000); /* who waits for what never comes is told so */
    assert_int_equal(w.answers, answers + 1);
    assert_said("\"messages\":[]");
}

static void a_queue_made_by_put_or_by_a_file_has_those_who_waited_for_it(void **state) {
    (void)state;
    request("POST /v1/queues/q/receive?wait=60s", NULL, SL(""), NULL);
    request("POST /v1/queues/r/receive?wait=60s", NULL, SL(""), NULL);
    assert_int_equal(call("PUT /v1/queues/q", "{\"lease\":\"7s\"}"), 201);
    reload("auto_create: true\nqueues:\n  r: {lease: 9s}\n");
    submit("POST /v1/queues/q/messages", "k1", SL("x"), NULL);
    work();
    assert_said("\"queue\":\"q\"");
    assert_said("\"lease_expires_at\":\"2027-01-15T08:00:07.000Z\""); /* the lease is the queue's */
    submit("POST /v1/queues/r/messages", "k1", SL("x"), NULL);
    work();
    assert_said("\"queue\":\"r\"");
    assert_said("\"lease_expires_at\":\"2027-01-15T08:00:09.000Z\"");
}

static void queues_made_by_first_messages_leave_room_for_those_that_are_asked_for(void **state) {
    (void)state;
    char name[16];
    for (u32 i = 0; i < 10000; i++) {
        snprintf(name, sizeof name, "auto%u", i);
        char line[64];
        snprintf(line, sizeof line, "POST /v1/queues/%s/messages", name);
        assert_int_equal(submit(line, "k", SL("x"), NULL), 202);
    }
    assert_int_equal(send("one-more", "k", "x"), 409);
    assert_said("queue_limit");
    assert_int_equal(call("POST /v1/queues/one-more/pause", ""), 409);
    assert_int_equal(call("PUT /v1/queues/one-more", "{}"), 201);
    assert_int_equal(send("one-more", "k", "x"), 202);
    restart();
    assert_int_equal(send("another", "k", "x"), 409);
    assert_int_equal(call("PUT /v1/queues/auto7", "{\"lease\":\"9s\"}"), 200); /* asked for now */
    assert_int_equal(send("another", "k", "x"), 202);
    assert_int_equal(send("yet-another", "k", "x"), 409);
}

/* ---- time */

static void a_clock_read_earlier_in_the_turn_is_not_charged_twice(void **state) {
    (void)state;
    assert_int_equal(send("q", "k", "x"), 202);
    assert_int_equal(call("POST /v1/queues/q/receive?lease=60s", ""), 200);
    for (u32 i = 0; i < 59; i++) {
        pass(1000);
        struct broker_time fresh = w.t;
        for (u32 n = 0; n < 5; n++) { /* requests share the turn's time, the others bring their own */
            w.t = (struct broker_time){.mono_ms = fresh.mono_ms - 900, .wall_ms = fresh.wall_ms - 900};
            submit("GET /v1/queues/q", NULL, SL(""), NULL);
            w.t = fresh;
            broker_durable(w.broker, w.t, journal_durable(w.journal));
        }
    }
    call("GET /v1/queues/q", "");
    assert_said("\"leased\":1");
    pass(1000);
    pass(1);
    call("GET /v1/queues/q", "");
    assert_said("\"leased\":0");
}

/* ---- effects */

static struct buf left; /* the effects that ran, one letter each */

static void leave(struct broker *b, void *ctx, u64 arg) {
    assert_ptr_equal(b, w.broker);
    buf_char(ctx, (char)arg);
}

static bool park(u64 position, char name) {
    return effect_after(w.broker, position, leave, &left, (u64)name);
}

static void assert_left(const char *names) {
    assert_int_equal(left.len, strlen(names));
    if (left.len) assert_memory_equal(left.p, names, left.len);
}

static int tear_down_effects(void **state) {
    buf_free(&left);
    return tear_down(state);
}

static void nothing_leaves_before_what_it_saw_is_durable(void **state) {
    (void)state;
    work();
    u64 before = w.released;
    assert_int_equal(submit("POST /v1/queues/q/messages", "k", SL("x"), NULL), 202);
    u64 saw = w.after;
    assert_true(saw > before);
    assert_true(park(saw, 'a'));
    broker_turn_end(w.broker, w.t);
    broker_durable(w.broker, w.t, journal_durable(w.journal)); /* of the disk nothing is heard yet */
    assert_left("");
    assert_true(w.released < saw);
    work();
    assert_left("a");
    assert_true(w.released >= saw);
}

/* P1: with all it is told of its original, and with nothing that others did meanwhile. */
static void a_repeat_waits_with_its_original_and_not_for_others(void **state) {
    static const char sends[] = "POST /v1/queues/q/messages", receives[] = "POST /v1/queues/q/receive";
    (void)state;
    submit(sends, "k", SL("x"), NULL);
    u64 original = w.after;
    submit(sends, "k", SL("x"), NULL);
    assert_int_equal(w.after, original);
    submit(sends, "other", SL("x"), NULL);
    u64 other = w.after;
    assert_true(other > original);
    submit(sends, "k", SL("x"), NULL);
    assert_int_equal(w.after, original);
    assert_said("\"state\":\"pending\"");
    submit(receives, NULL, SL(""), NULL);
    u64 handed_out = w.after;
    assert_true(handed_out > other);
    submit(sends, "k", SL("x"), NULL);
    assert_int_equal(w.after, handed_out);
    assert_said("\"state\":\"leased\"");
    work();
    assert_int_equal(settle("ack", ""), 200);
    submit(sends, "k", SL("x"), NULL);
    assert_said("\"state\":\"done\"");
    u64 settled = w.after;
    assert_true(settled > handed_out);
    submit(sends, "third", SL("x"), NULL);
    assert_true(w.after > settled);
    submit(sends, "k", SL("x"), NULL);
    assert_int_equal(w.after, settled);
    submit(receives, NULL, SL(""), NULL);
    work();
    char acks[128];
    snprintf(acks, sizeof acks, "{\"token\":\"%s\"}", w.token);
    submit("POST /v1/ack", NULL, slice_str(acks), NULL); /* it may be the head of a group, and the others alive again */
    u64 acked = w.after;
    submit(sends, "third", SL("x"), NULL);
    assert_int_equal(w.after, acked);
    submit(sends, "k", SL("x"), NULL);
    assert_int_equal(w.after, settled);
    submit("PUT /v1/queues/q", NULL, SL("{\"window\":\"20s\"}"), NULL); /* it shows for how long it is remembered */
    u64 ruled = w.after;
    assert_true(ruled > settled);
    submit(sends, "k", SL("x"), NULL);
    assert_true(w.after >= ruled);
    submit(sends, "k", SL("another"), NULL); /* a conflict is written down at once */
    assert_int_equal(w.status, 422);
    assert_true(w.after > ruled);
}

/* What was replayed is durable, and nobody is told so before the first batch of this life is: a repeat waited for that, a second or a minute. */
static void a_repeat_of_what_was_there_at_the_start_waits_for_nothing(void **state) {
    static const char sends[] = "POST /v1/queues/q/messages";
    (void)state;
    submit(sends, "k", SL("x"), NULL);
    work();
    restart();
    submit(sends, "k", SL("x"), NULL);
    assert_said("\"outcome\":\"duplicate\"");
    assert_int_equal(w.after, 0);
    submit(sends, "other", SL("x"), NULL);
    assert_true(w.after > 0);
}

static void effects_leave_in_the_order_they_were_parked(void **state) {
    (void)state;
    work();
    submit("POST /v1/queues/q/messages", "k1", SL("x"), NULL);
    u64 first = w.after;
    submit("POST /v1/queues/q/messages", "k2", SL("x"), NULL);
    u64 second = w.after;
    assert_true(second > first);
    park(first, 'a');
    park(second, 'b');
    park(0, 'c'); /* depends on nothing, and is not the first all the same */
    park(second, 'd');
    broker_durable(w.broker, w.t, first);
    assert_left("a");
    assert_int_equal(w.released, first);
    work();
    assert_left("abcd");
    park(second, 'e'); /* nothing to wait for any more */
    assert_left("abcde");
}

/* What has not been synced after a turn and all that the disk had to do. */
static u64 unsynced_after(i64 ms) {
    struct journal_stats s;
    w.t.mono_ms += ms;
    w.t.wall_ms += ms;
    broker_tick(w.broker, w.t);
    work();
    journal_stats_get(w.journal, &s);
    return s.unsynced_bytes;
}

/* How often a key came is written down about a second later, and nobody waits for it. */
static void count_a_repeat(const char *key, const char *other) {
    submit("POST /v1/queues/q/messages", key, SL("x"), NULL);
    assert_int_equal(unsynced_after(0), 0);
    submit("POST /v1/queues/q/messages", key, SL("x"), NULL);
    assert_int_equal(unsynced_after(995), 0);
    submit("POST /v1/queues/q/messages", other, SL("x"), NULL);
    assert_int_equal(unsynced_after(0), 0);
    assert_true(unsynced_after(8) > 0);
}

static void records_that_nobody_waits_for_do_not_have_the_disk_sync_at_once(void **state) {
    (void)state;
    work();
    count_a_repeat("k1", "k2");
    assert_true(broker_next_ms(w.broker, w.t) <= 12);
    assert_true(unsynced_after(11) > 0);
    assert_int_equal(unsynced_after(1), 0);
    count_a_repeat("k3", "k4");
    submit("POST /v1/queues/q/messages", "k5", SL("x"), NULL); /* somebody waits now */
    assert_int_equal(unsynced_after(0), 0);
}

/* The disk is at work on a batch, the next one is ready, and a record comes into it that nobody waits for. */
static void what_somebody_waits_for_is_synced_next_whatever_comes_after_it(void **state) {
    (void)state;
    work();
    submit("POST /v1/queues/q/messages", "k1", SL("x"), NULL);
    unsynced_after(0);
    submit("POST /v1/queues/q/messages", "k1", SL("x"), NULL); /* to be counted in a second */
    unsynced_after(995);
    submit("POST /v1/queues/q/messages", "k2", SL("x"), NULL);
    broker_turn_end(w.broker, w.t);
    assert_true(journal_file_work(w.journal)); /* written, not synced */
    submit("POST /v1/queues/q/messages", "k3", SL("x"), NULL);
    u64 third = w.after;
    broker_turn_end(w.broker, w.t);
    w.t.mono_ms += 8;
    broker_tick(w.broker, w.t);
    work();
    work();
    assert_true(w.released >= third);
}

static void effects_are_bounded(void **state) {
    (void)state;
    work();
    submit("POST /v1/queues/q/messages", "k", SL("x"), NULL);
    for (u32 i = 0; i < EFFECTS_MAX; i++) assert_true(park(w.after, 'x'));
    assert_false(park(w.after, 'y'));
    work();
    assert_int_equal(left.len, EFFECTS_MAX);
    assert_true(park(w.after, 'z'));
}

static void nothing_leaves_after_a_failed_journal(void **state) {
    (void)state;
    work();
    u64 released = w.released;
    submit("POST /v1/queues/q/messages", "k", SL("x"), NULL);
    park(w.after, 'a');
    broker_turn_end(w.broker, w.t);
    disk_sim_fail_at(w.disk, disk_sim_ops(w.disk), DISK_SIM_EIO, true);
    while (journal_file_work(w.journal)) {
    }
    assert_non_null(journal_failed(w.journal));
    broker_durable(w.broker, w.t, journal_durable(w.journal));
    broker_durable(w.broker, w.t, w.after); /* not even if somebody claims it */
    park(0, 'b');
    assert_left("");
    assert_int_equal(w.released, released);
}

/* ---- what many wait for */

/* Turns until all of them are answered; none answers more than the time of a turn allows. */
static u32 turns_until_answered(u32 count, u32 a_turn) {
    u32 turns = 0;
    for (u32 before = w.answers, all = w.answers + count; w.answers < all; turns++, before = w.answers) {
        work();
        assert_in_range(w.answers - before, 1, a_turn);
        assert_true(turns < 10000);
    }
    return turns;
}

static void polls_of_a_deleted_queue_are_answered_over_several_turns(void **state) {
    (void)state;
    void *user;
    send("q", "k", "x");
    call("POST /v1/queues/q/receive", "");
    settle("ack", "");
    for (u32 i = 0; i < 1000; i++)
        assert_int_equal(request("POST /v1/queues/q/receive?wait=60s", NULL, SL(""), &user), 0);
    w.us_a_look = 20;
    assert_int_equal(submit("DELETE /v1/queues/q", NULL, SL(""), NULL), 204);
    assert_true(turns_until_answered(1000, 101) >= 9);
    assert_int_equal(w.status, 200);
    assert_said("{\"messages\":[]}");
    assert_int_equal(call("GET /v1/queues/q", ""), 404);
}

static void a_queue_is_not_deleted_before_those_who_wait_have_heard_its_outcomes(void **state) {
    (void)state;
    void *user;
    send("q", "k", "x");
    call("POST /v1/queues/q/receive", "");
    for (u32 i = 0; i < 1000; i++)
        assert_int_equal(request("GET /v1/queues/q/keys/k/result?wait=60s", NULL, SL(""), &user), 0);
    char ack[128];
    snprintf(ack, sizeof ack, "{\"token\":\"%s\",\"result\":\"done\"}", w.token);
    w.us_a_look = 20;
    assert_int_equal(submit("POST /v1/ack", NULL, slice_str(ack), NULL), 200);
    u32 answered = w.answers;
    assert_int_equal(submit("DELETE /v1/queues/q", NULL, SL(""), NULL), 503);
    assert_said("being answered");
    assert_in_range(w.answers - answered, 100, 250); /* a part of them, and the refusal */
    turns_until_answered(1000 - (w.answers - answered - 1), 101);
    assert_int_equal(w.status, 200);
    assert_said("done");
    assert_int_equal(call("DELETE /v1/queues/q", ""), 204);
}

static void health_is_told_while_the_disk_has_yet_to_answer(void **state) {
    (void)state;
    assert_int_equal(submit("POST /v1/queues/q/messages", "k", SL("x"), NULL), 202);
    assert_true(w.after > 0);
    assert_int_equal(submit("GET /healthz", NULL, SL(""), NULL), 200);
    assert_int_equal(w.after, 0); /* it waits for nothing */
}

/* ---- who only looks */

static void requests_that_only_look_are_few_at_a_time_and_end_with_their_client(void **state) {
    (void)state;
    void *users[64] = {0};
    u32 waiting = 0, refused = 0;
    send_many("q", "k", 8000);
    w.us_a_look = 500; /* slow: nothing is done in its first slice */
    for (u32 i = 0; i < 64; i++) {
        u16 status = submit("GET /v1/queues/q/keys?prefix=zzz", NULL, SL(""), &users[i]);
        waiting += status == 0;
        refused += status == 503;
    }
    assert_int_equal(waiting, 16);
    assert_int_equal(refused, 48);
    assert_int_equal(submit("GET /metrics", NULL, SL(""), NULL), 503);
    u32 before = w.answers;
    for (u32 i = 0; i < 64; i++)
        if (users[i]) broker_gone(w.broker, w.t, users[i]);
    work(); /* a turn that was long without them */
    work(); /* they are given up, and there is room for others */
    assert_int_equal(w.answers, before);
    void *user = NULL;
    assert_int_equal(submit("GET /v1/queues/q/keys?prefix=zzz", NULL, SL(""), &user), 0);
    w.us_a_look = 0;
    work();
    assert_int_equal(w.answers, before + 1);
}

static void a_page_of_a_filtered_list_ends_with_its_time_and_the_next_goes_on(void **state) {
    (void)state;
    u32 pages = 0, found = 0;
    char line[256] = "GET /v1/queues/q/messages?state=dead&limit=1000&reason=needle";
    make_dead("q", 300);
    send("q", "last", "x");
    call("POST /v1/queues/q/receive", "");
    assert_int_equal(settle("nack", ",\"class\":\"poison\",\"reason\":\"a needle\""), 200);
    w.us_a_look = 100;
    for (;; pages++) {
        assert_int_equal(call(line, ""), 200);
        found += strstr(w.body.p, "\"key\":\"last\"") != NULL;
        const char *next = strstr(w.body.p, "\"next_cursor\":\"");
        if (!next) break;
        next += sizeof "\"next_cursor\":\"" - 1;
        snprintf(line, sizeof line, "GET /v1/queues/q/messages?state=dead&limit=1000&reason=needle&cursor=%.*s",
                 (int)strcspn(next, "\""), next);
    }
    assert_in_range(pages, 2, 50);
    assert_int_equal(found, 1);
}

static void a_queue_at_its_limit_says_when_it_may_take_more(void **state) {
    (void)state;
    assert_int_equal(call("PUT /v1/queues/q", "{\"limits\":{\"pending\":100}}"), 201);
    send_many("q", "k", 100);
    assert_int_equal(send("q", "more", "x"), 429);
    assert_non_null(strstr(w.fields.p, "Retry-After: 1\r\n")); /* nobody works on it: there is nothing to go by */
    for (u32 i = 0; i < 19; i++) {
        assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
        assert_int_equal(settle("ack", ""), 200);
    }
    for (u32 i = 0; i < 3; i++) pass(10000);
    assert_int_equal(send("q", "more", "x"), 429);
    assert_non_null(strstr(w.fields.p, "Retry-After: 7\r\n")); /* two more to be settled, at 19 a minute */
    for (u32 i = 0; i < 2; i++) {
        assert_int_equal(call("POST /v1/queues/q/receive", ""), 200);
        assert_int_equal(settle("ack", ""), 200);
    }
    assert_int_equal(send("q", "more", "x"), 202);
}

static void a_scrape_has_each_metric_once_however_often_it_is_put_off(void **state) {
    (void)state;
    for (u64 cost = 100; cost <= 1000; cost += 100) { /* of a look at the clock: slices end at every place there is */
        void *user = NULL;
        assert_int_equal(send("a", "k", "x") | send("b", "k", "x"), 202);
        u32 before = w.answers;
        w.us_a_look = cost;
        submit("GET /metrics", NULL, SL(""), &user);
        for (u32 i = 0; w.answers == before; i++) {
            assert_true(i < 10000);
            work();
        }
        w.us_a_look = 0;
        assert_int_equal(w.status, 200);
        for (const char *at = w.body.p; (at = strstr(at, "# HELP ")); at++) {
            char head[160];
            snprintf(head, sizeof head, "%.*s ", (int)strcspn(at + 7, " ") + 7, at);
            assert_null(strstr(at + 1, head));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_queue_at_its_limit_says_when_it_may_take_more, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_scrape_has_each_metric_once_however_often_it_is_put_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(requests_that_only_look_are_few_at_a_time_and_end_with_their_client, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_page_of_a_filtered_list_ends_with_its_time_and_the_next_goes_on, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(rules_given_with_put_survive_a_restart, set_up, tear_down),
        cmocka_unit_test(a_key_without_quotes_is_printable_ascii_without_quotes_and_commas),
        cmocka_unit_test_setup_teardown(a_parameter_that_a_call_does_not_have_is_refused_and_the_nearest_one_named,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_path_asked_for_again_leads_where_its_method_and_its_own_words_say, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(an_ack_is_a_sign_of_life_of_who_holds_the_lease, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_wins_over_the_api_and_what_it_lets_go_keeps_its_rules, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(rules_that_cannot_be_read_stop_one_queue_and_not_the_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(undeclared_queues_can_still_be_emptied, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reload_without_room_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_file_changes_in_a_queue_is_in_its_audit_trail_after_a_restart_too,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            a_start_without_room_for_the_audit_trail_puts_the_rules_in_force_and_tells_the_log, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reload_is_in_the_audit_trail_with_what_it_changed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_purge_goes_in_slices_and_takes_only_what_was_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_purge_goes_on_when_its_client_is_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_purge_that_the_end_of_the_broker_cuts_short_says_unknown, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_rated_redrive_keeps_to_its_rate_and_passes_over_what_was_decided_meanwhile,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_long_redrive_becomes_a_task_and_can_be_stopped, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refused_copies_are_sent_through_the_door_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_refused_is_not_in_the_audit_trail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_old_generations_token_is_fenced_once_the_new_one_has_an_outcome, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(erased_bytes_leave_the_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_sends_after_a_purge_does_not_pay_for_it_and_it_is_cleaned_within_minutes,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_dead_altogether_is_dropped_at_once_and_costs_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_purge_leaves_is_cleaned_at_once_while_nobody_asks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_churn_beside_what_is_kept_stays_below_four_times_that_though_no_time_passes,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_queue_that_churns_stays_within_the_threshold_though_no_time_passes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            a_conflict_admitted_under_its_own_key_is_known_though_the_first_key_is_past_its_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_queue_that_stops_repeating_keys_knows_the_last_one_of_each, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(repeats_on_a_full_disk_leave_what_was_accepted_its_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_refused_for_lack_of_room_is_not_in_the_audit_trail, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_small_disk_full_of_what_is_done_takes_new_work_by_itself, set_up, tear_down),
        cmocka_unit_test_setup_teardown(operators_can_make_room_on_a_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_that_takes_long_to_sync_is_not_compacted_to_death, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_disk_that_is_full_is_told_once_and_once_when_it_is_not_any_more, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_disk_has_room_again_only_when_what_was_refused_would_be_taken, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(memory_that_is_short_is_told_once_and_once_when_it_is_not_any_more, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(compaction_that_cannot_keep_up_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_repeat_is_logged_where_the_queue_says_so_and_not_before_it_is_durable, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_waits_for_the_disk_is_told_whole_and_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_times_to_live_that_end_together_are_ended_in_slices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(others_are_answered_while_a_long_array_is_settled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(large_messages_are_acked_few_at_a_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_item_of_an_array_gets_its_own_answer_however_it_is_spelled, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(others_are_answered_while_a_long_array_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(others_are_answered_while_a_long_batch_is_taken, set_up, tear_down),
        cmocka_unit_test_setup_teardown(long_requests_that_come_together_leave_time_to_read_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reply_being_made_is_said_to_be_kept_and_ends_at_its_bound, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_kept_for_a_client_that_is_gone_and_its_batch_is_done, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_batch_goes_on_though_its_client_is_gone_and_its_queue_was_deleted, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(many_who_wait_for_one_outcome_are_answered_over_turns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(many_polls_that_can_be_answered_together_are_answered_over_turns, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(polls_of_a_deleted_queue_are_answered_over_several_turns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_queue_is_not_deleted_before_those_who_wait_have_heard_its_outcomes, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(health_is_told_while_the_disk_has_yet_to_answer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_request_too_long_to_be_kept_is_refused_before_anything_is_applied, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_key_that_repeats_is_shown_in_pages_within_the_bound_of_a_reply, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(receiving_makes_no_queue_and_hears_of_the_first_message, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_queue_made_by_put_or_by_a_file_has_those_who_waited_for_it, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(queues_made_by_first_messages_leave_room_for_those_that_are_asked_for, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_clock_read_earlier_in_the_turn_is_not_charged_twice, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_leaves_before_what_it_saw_is_durable, set_up, tear_down_effects),
        cmocka_unit_test_setup_teardown(a_repeat_waits_with_its_original_and_not_for_others, set_up, tear_down_effects),
        cmocka_unit_test_setup_teardown(a_repeat_of_what_was_there_at_the_start_waits_for_nothing, set_up,
                                        tear_down_effects),
        cmocka_unit_test_setup_teardown(effects_leave_in_the_order_they_were_parked, set_up, tear_down_effects),
        cmocka_unit_test_setup_teardown(records_that_nobody_waits_for_do_not_have_the_disk_sync_at_once, set_up,
                                        tear_down_effects),
        cmocka_unit_test_setup_teardown(what_somebody_waits_for_is_synced_next_whatever_comes_after_it, set_up,
                                        tear_down_effects),
        cmocka_unit_test_setup_teardown(effects_are_bounded, set_up, tear_down_effects),
        cmocka_unit_test_setup_teardown(nothing_leaves_after_a_failed_journal, set_up, tear_down_effects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
