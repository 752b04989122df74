#include "client/client_priv.h"

enum { POLL_MS_MAX = 20000 };

/* The state a not_settled problem tells, if it does. */
static hx_state problem_state(slice body) {
    hx_state state = HX_STATE_NONE;
    struct json j;
    slice name, s;
    json_init(&j, body);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (!slice_eq(name, SL("state")) || json_peek(&j) != JSON_STRING)
                json_skip(&j);
            else if (json_string(&j, &s))
                state = state_of(s);
        }
    }
    json_free(&j);
    return state;
}

static hx_status poll_result(hx_client *c, const char *queue, const char *key, i64 wait_ms, struct reply *reply,
                             hx_error *err) {
    struct buf target = {0};
    target_queue(&target, queue, "/keys/");
    buf_percent_encode(&target, slice_str(key));
    buf_lit(&target, "/result?wait=");
    buf_duration(&target, wait_ms);
    struct call call = CALL(.method = "GET", .target = buf_slice(&target), .wait_ms = wait_ms);
    hx_status st = client_call(c, &call, reply, err);
    buf_free(&target);
    return st;
}

static void result_fill(struct reply *reply, hx_result *out) {
    struct arena *a = arena_new();
    slice body = arena_adopt(a, &reply->body);
    *out = (hx_result){.memory = a, .body = hx_bytes_of(body.p, body.n)};
    out->state = state_of(slice_str(reply->state));
    out->content_type = arena_string(a, slice_str(reply->content_type));
}

static void refusal_fill(struct reply *reply, hx_result *out) {
    struct arena *a = arena_new();
    slice body = arena_adopt(a, &reply->body);
    *out = (hx_result){.memory = a, .problem = hx_bytes_of(body.p, body.n), .state = problem_state(body)};
}

hx_status hx_wait(hx_client *c, const char *queue, const char *key, i64 wait_ms, hx_result *out, hx_error *err) {
    hx_error spare_err;
    hx_result spare_out;
    if (!err) err = &spare_err;
    hx_result *result = out ? out : &spare_out;
    *result = (hx_result){0};
    if (!queue_ok(queue, err)) return HX_INVALID;
    if (!key || !*key) return error_set(err, HX_INVALID, HX_APPLIED_NO, "key_invalid", "no key given");
    i64 until = clock_mono_ms() + (wait_ms > 0 ? wait_ms : 0);
    for (;;) {
        struct reply reply = {0};
        i64 began = clock_mono_ms(), left = until - began;
        i64 ask = left < 0 ? 0 : left < POLL_MS_MAX ? left : POLL_MS_MAX;
        hx_status st = poll_result(c, queue, key, ask, &reply, err);
        hx_result_free(result);
        if (st == HX_OK && !*reply.state) /* anybody may answer 200, with whatever he has */
            st = error_protocol(err, reply.status, "a result that does not say its state; is this a broker?");
        else if (st == HX_OK)
            result_fill(&reply, result);
        else if (reply.status)
            refusal_fill(&reply, result);
        reply_free(&reply);
        /* Answered before its time: it is dead, more waiting would not help. */
        bool early = clock_mono_ms() - began < ask / 2;
        if (st != HX_NOT_SETTLED || early || clock_mono_ms() >= until) {
            if (!out) hx_result_free(&spare_out);
            return st;
        }
    }
}

void hx_result_free(hx_result *result) {
    arena_free(result->memory);
    *result = (hx_result){0};
}
