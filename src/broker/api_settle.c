/* Settle: ack, nack, extend, step, start, release; one object, or an array of them (a job). */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/consumers.h"
#include "broker/jobs.h"
#include "broker/limits.h"
#include "broker/lookup.h"
#include "broker/parse.h"
#include "broker/render.h"
#include "broker/scope.h"
#include "broker/settling.h"

/* What one item of the request says. */
struct item {
    slice token, reason, name, effect_id, class_name, delay, lease;
    struct result_said result;
    bool says_more; /* than a token */
    bool has_token, has_class, has_delay, has_lease, has_name;
    enum token_verdict verdict;
    struct token parsed; /* of the token, unless it is none */
};

static bool take_member(struct json *j, slice name, struct item *it) {
    bool taken;
    if (slice_eq(name, SL("token"))) return it->has_token = true, json_string(j, &it->token);
    it->says_more = true;
    if (!result_member(j, name, &it->result, &taken)) return false;
    if (taken) return true;
    if (slice_eq(name, SL("effect_id"))) return json_string(j, &it->effect_id);
    if (slice_eq(name, SL("class"))) return it->has_class = true, json_string(j, &it->class_name);
    if (slice_eq(name, SL("reason"))) return json_string(j, &it->reason);
    if (slice_eq(name, SL("delay"))) return it->has_delay = true, json_duration(j, &it->delay);
    if (slice_eq(name, SL("lease"))) return it->has_lease = true, json_duration(j, &it->lease);
    if (slice_eq(name, SL("name"))) return it->has_name = true, json_string(j, &it->name);
    return json_skip(j); /* clients may send more than we know */
}

static bool take_item(struct json *j, struct item *it) {
    slice name;
    if (!json_object(j)) return false;
    while (json_member(j, &name))
        if (!take_member(j, name, it)) return false;
    return j->error == NULL;
}

static void know_token(const struct core *core, struct item *it) {
    it->verdict = it->has_token ? core_token_parse(core, it->token, &it->parsed) : TOKEN_INVALID;
}

/* ---- from what was said to what is meant */

static bool plain(slice s, size_t max) {
    return s.n <= max && !has_control(s);
}

static bool mean_nack(const struct item *it, struct settle_in *in, struct failure *f) {
    if (!it->has_class || !class_parse(it->class_name, &in->failure_class))
        return failure_set(f, PROBLEM_param_invalid, "class must be transient, poison, rejected, unknown or absent");
    /* Long reasons are cut, not refused: losing the failure report would be worse. */
    in->reason = cut_text(it->reason, REASON_BYTES_MAX);
    if (it->has_delay && (!duration_parse(it->delay, &in->delay_ms) || in->delay_ms > DELAY_MS_MAX))
        return failure_set(f, PROBLEM_param_invalid, "delay must be a duration up to 366d, such as 30s");
    return true;
}

static bool mean_extend(const struct item *it, struct settle_in *in, struct failure *f) {
    i64 lease_ms = 0;
    if (!it->has_lease) return true;
    if (!duration_parse(it->lease, &lease_ms) || lease_ms < LEASE_MS_MIN || lease_ms > LEASE_MS_MAX)
        return failure_set(f, PROBLEM_param_invalid, "lease must be a duration from 1s to 12h");
    in->lease_ms = (u32)lease_ms;
    return true;
}

static bool mean_step(const struct item *it, struct settle_in *in, struct failure *f) {
    in->name = it->name;
    if (it->has_name && it->name.n && plain(it->name, STEP_NAME_BYTES_MAX)) return true;
    return failure_set(f, PROBLEM_param_invalid, "name must be given: 1 to %u bytes without control characters",
                       STEP_NAME_BYTES_MAX);
}

static bool mean(const struct item *it, struct settle_in *in, struct buf *decoded, struct failure *f) {
    if (!result_mean(&it->result, decoded, &in->content_type, &in->result, f)) return false;
    if (!plain(it->effect_id, 255))
        return failure_set(f, PROBLEM_param_invalid, "effect_id must be plain text, at most 255 bytes");
    in->effect_id = it->effect_id;
    if (in->verb == VERB_NACK) return mean_nack(it, in, f);
    if (in->verb == VERB_EXTEND) return mean_extend(it, in, f);
    if (in->verb == VERB_STEP) return mean_step(it, in, f);
    return true;
}

/* Its message is gone because its key was replayed: what the key runs as now, or last ran as. */
static const struct seen *later_generation(struct broker *b, const struct token *token) {
    struct core_cursor cursor = {0};
    struct found f;
    while (core_find(b->core, token->hash, &cursor, &f)) {
        const struct seen *s = lookup_found(b, b->other, &f);
        u32 generation = s->settle ? s->settle->generation : s->message->generation;
        if (generation && seen_ref(s)->seq > token->seq) return s;
    }
    return NULL;
}

static bool fail_no_message(struct call *c) {
    return fail(c, PROBLEM_no_such_message, "no message of this broker has that token; its key may be past its window");
}

/* Who may not receive from a queue may not settle there either; and whoever sees nothing of it does not learn that the token is
 * one. */
static bool may_settle(struct call *c, const struct seen *s) {
    if (caller_may_everywhere(c->who, RIGHT_RECEIVE)) return true;
    slice queue = core_queue_name(c->b->core, s->at.queue);
    return caller_sees(c->who, queue) ? may(c, RIGHT_RECEIVE, queue) : fail_no_message(c);
}

/* The message of the token; else the failure is set, and *later is what its key runs as since, if somebody may know. */
static struct seen *find_token(struct call *c, const struct item *it, const struct seen **later) {
    struct broker *b = c->b;
    const struct token *token = &it->parsed;
    *later = NULL;
    if (it->verdict == TOKEN_INVALID) {
        fail(c, PROBLEM_token_invalid, it->has_token ? "this is no token, or a garbled one" : "token is missing");
        return NULL;
    }
    struct seen *s = it->verdict == TOKEN_OK ? lookup_to_settle(b, b->lookup, token->hash, token->seq) : NULL;
    if (s) return may_settle(c, s) ? s : NULL;
    const struct seen *since = it->verdict == TOKEN_OK ? later_generation(b, token) : NULL;
    if (!since)
        fail_no_message(c);
    else if (may_settle(c, since)) {
        *later = since;
        fail(c, PROBLEM_fenced, "the key was replayed since, and runs as a later generation");
    }
    return NULL;
}

static void refuse(enum settle_verdict v, const struct settle_out *out, struct failure *f) {
    const char *state = state_text(out->state);
    buf_reset(&f->more);
    switch (v) {
    case SETTLE_FENCED:
        failure_set(f, PROBLEM_fenced,
                    "the message was handed out again since, under a newer lease; drop this work's result");
        break;
    case SETTLE_SETTLED:
        failure_set(f, PROBLEM_settled, "it was settled otherwise; its state is %s", state);
        break;
    case SETTLE_EXPIRED:
        failure_set(f, PROBLEM_lease_expired, "the lease ran out and the message is %s; ack or nack still settles it",
                    state);
        break;
    case SETTLE_NOT_RECONCILE:
        failure_set(f, PROBLEM_class_invalid,
                    "absent answers a delivery that says \"delivery\":\"reconcile\"; this one did not");
        break;
    case SETTLE_TOO_LARGE:
        failure_set(f, PROBLEM_too_large, "steps of one message take at most %u bytes together", HISTORY_BYTES_MAX);
        break;
    default:
        failure_set(f, PROBLEM_storage_full,
                    "no room for this on the disk or in memory; an ack with a result up to 1 KiB still goes through");
    }
    json_put_member(&f->more, "state", slice_str(state));
}

static void render_ok(struct broker *b, struct buf *body, const struct settle_in *in, const struct settle_out *out,
                      const struct seen *s, const struct ref *ref, slice key, bool duplicate) {
    buf_char(body, '{');
    if (in->verb == VERB_STEP) {
        json_put_member(body, "status", duplicate ? SL("duplicate") : SL("new"));
        json_put_name(body, "result");
        put_result(body, out->step_content_type, out->step_result);
    }
    buf_slice_add(body, in->verb == VERB_STEP ? SL(",\"state\":\"") : SL("\"state\":\""));
    buf_slice_add(body, slice_str(state_text(out->state)));
    buf_lit(body, "\",\"id\":\"");
    core_id_text(ref, body);
    buf_char(body, '"');
    put_shown_key(b, body, ref->queue, key);
    if (duplicate) json_put_member_bool(body, "duplicate", true);
    if (duplicate && s->settle && s->settle->by_token) put_settled_result(body, true, s->settle);
    if (in->verb == VERB_NACK && out->state == STATE_PENDING)
        json_put_member_time(body, "not_before", b->now.wall_ms + out->due_ms);
    if ((in->verb == VERB_EXTEND || in->verb == VERB_START) && s->message) {
        struct message_view v;
        core_message_view(b->core, b->now, s->at.message, &v);
        json_put_member_time(body, "lease_expires_at", b->now.wall_ms + v.lease_left_ms);
    }
    buf_char(body, '}');
}

/* The call that settled the key before it was replayed, once more: the outcome it made stands until the replay has its own. */
static bool render_settled_before(struct broker *b, enum verb verb, const struct item *it, const struct seen *s,
                                  struct buf *body) {
    struct rec_settle was;
    if (!s || !core_settled_before(s, verb, it->parsed.fence, &was)) return false;
    struct ref ref = *seen_ref(s);
    ref.seq = it->parsed.seq;
    was.by_token = true;
    render_ok(b, body, &(struct settle_in){.verb = verb}, &(struct settle_out){.state = (enum state)was.state},
              &(struct seen){.settle = &was}, &ref, seen_key(s), true);
    return true;
}

/* One item: its answer is appended to the body; returns its status. */
static u16 settle_one(struct call *c, enum verb verb, const struct item *it, struct buf *decoded, struct buf *body) {
    struct broker *b = c->b;
    struct settle_in in = {.verb = verb};
    struct settle_out out;
    buf_reset(&c->failure.more);
    buf_reset(decoded);
    in.fence = it->parsed.fence;
    const struct seen *later;
    struct seen *s = find_token(c, it, &later);
    if (!s && render_settled_before(b, verb, it, later, body)) return 200;
    if (s && mean(it, &in, decoded, &c->failure)) {
        if (s->message && verb != VERB_ACK)
            consumer_spoke_of(b, s->at.message, in.fence); /* of an ack: settle_written */
        enum settle_verdict v = settle_message(b, &in, s, &out);
        if (v == SETTLE_OK || v == SETTLE_DUPLICATE) {
            render_ok(b, body, &in, &out, s, seen_ref(s), seen_key(s), v == SETTLE_DUPLICATE);
            return 200;
        }
        refuse(v, &out, &c->failure);
    }
    failure_render(&c->failure, body);
    buf_char(body, '}');
    return problem_status(c->failure.problem);
}

/* ---- one object */

static void settle_object(struct call *c, enum verb verb) {
    struct buf decoded = {0}, *body = &c->b->scratch->body;
    struct json json; /* keeps unescaped strings alive */
    struct item item = {0};
    json_init(&json, c->req->body);
    json.values_left = ITEM_VALUES_MAX;
    bool read = take_item(&json, &item) && json_end(&json);
    if (read) {
        know_token(c->b->core, &item);
        buf_reset(body);
        u16 status = settle_one(c, verb, &item, &decoded, body);
        slice type = status == 200 ? SL("application/json") : SL("application/problem+json");
        reply_with(c->b, c->conn, status, type, SL(""), buf_slice(body), 0);
    } else {
        fail_json(&c->failure, &json);
        reply_failure(c);
    }
    json_free(&json);
    buf_free(&decoded);
}

/* ---- an array */

struct settle_job {
    struct job job;
    enum verb verb;
    struct json json; /* reading the array, as far as `read` */
    size_t read;
    bool split, failed;
    struct item_at {
        u32 from, len; /* in the text */
        bool plain;    /* it is a token and nothing else: these say all of it */
        bool is_token; /* of some broker */
        struct token token;
        u64 code;
    } * items;
    u32 count, cap, at;
    struct buf decoded;
};

/* Well-formed, but is it an item? If not it fails alone, like any other that cannot be done. */
static void settle_text(struct settle_job *j, slice text) {
    struct call *c = &j->job.c;
    struct buf *body = &j->job.reply;
    struct item item = {0};
    struct json json; /* keeps unescaped strings alive */
    json_init(&json, text);
    if (take_item(&json, &item)) {
        know_token(c->b->core, &item);
        settle_one(c, j->verb, &item, &j->decoded, body);
    } else {
        buf_reset(&c->failure.more);
        fail_json(&c->failure, &json);
        failure_render(&c->failure, body);
        buf_char(body, '}');
    }
    json_free(&json);
}

/* Which of them are tokens of this broker? What those point at is brought near. */
static void look_ahead(const struct settle_job *j, const struct item_at *items, u32 count,
                       enum token_verdict *verdicts) {
    const struct token *tokens[TOKENS_TOGETHER];
    u64 codes[TOKENS_TOGETHER], hashes[TOKENS_TOGETHER];
    u32 known = 0;
    for (u32 i = 0; i < count; i++) tokens[i] = &items[i].token;
    core_token_codes(j->job.c.b->core, tokens, count, codes);
    for (u32 i = 0; i < count; i++) {
        verdicts[i] = !items[i].is_token ? TOKEN_INVALID : items[i].code == codes[i] ? TOKEN_OK : TOKEN_FOREIGN;
        if (verdicts[i] == TOKEN_OK) hashes[known++] = items[i].token.hash;
    }
    if (known > 1) lookup_ahead_to_settle(j->job.c.b, hashes, known);
}

#define LOOK_BYTES 8192u
/* Is it time to look at the clock? It takes as long as a fiftieth of a plain item: of those some go by, unless their messages are
 * large. */
static bool look_now(const struct settle_job *j, const struct item_at *it, u64 *read) {
    const struct broker *b = j->job.c.b;
    if (it->plain && b->read_back - *read < LOOK_BYTES) return false;
    *read = b->read_back;
    return true;
}

/* Some items at a time, each on its own. */
static bool settle_some(struct settle_job *j, struct budget *g) {
    const struct item_at *items = j->items + j->at;
    struct item plain = {.has_token = true};
    enum token_verdict verdicts[TOKENS_TOGETHER];
    u32 count = j->count - j->at < TOKENS_TOGETHER ? j->count - j->at : TOKENS_TOGETHER;
    u64 read = j->job.c.b->read_back;
    look_ahead(j, items, count, verdicts);
    for (u32 i = 0; i < count; i++) {
        if ((i == 0 || look_now(j, &items[i], &read)) && budget_spent(g)) return false;
        buf_char(&j->job.reply, j->at++ ? ',' : '[');
        plain.verdict = verdicts[i];
        plain.parsed = items[i].token;
        if (items[i].plain)
            settle_one(&j->job.c, j->verb, &plain, &j->decoded, &j->job.reply);
        else
            settle_text(j, slice_of(j->job.text.p + items[i].from, items[i].len));
    }
    return true;
}

static struct item_at *add_item(struct settle_job *j) {
    if (j->count == j->cap) {
        j->cap = j->cap ? j->cap * 2 : 64;
        j->items = mem_realloc(j->items, j->cap * sizeof *j->items);
    }
    return &j->items[j->count++];
}

/* Most say a token and nothing else, and are done with here; others are read again when it is their turn. What is no item is looked
 * at as any value: the array may still be well-formed. *it: all zero but for what a token sets. */
static bool read_item(struct settle_job *j, struct item *it) {
    struct json *json = &j->json;
    struct json_mark begin = json_mark(json);
    it->has_token = false;
    json->values_left = ITEM_VALUES_MAX - 1; /* it is one itself */
    bool is_item = take_item(json, it), plain = is_item && it->has_token && !it->says_more;
    json->values_left = ITEM_VALUES_MAX;
    if (!is_item) json_back(json, begin);
    if (!is_item && !json_skip(json)) return false;
    struct item_at *at = add_item(j);
    *at = (struct item_at){.from = (u32)(begin.p - json->start), .len = (u32)(json->p - begin.p), .plain = plain};
    at->is_token = is_item && it->has_token && core_token_split(it->token, &at->token, &at->code);
    if (!plain) *it = (struct item){0};
    if (json->scratch) json_free(json); /* nothing of it is looked at again */
    return true;
}

/* The text may have moved since. */
static struct json *go_on_reading(struct settle_job *j) {
    struct json *json = &j->json;
    slice text = j->job.text;
    if (j->read == 0) {
        json_init(json, text);
        json_array(json);
    } else {
        json->start = text.p;
        json->p = text.p + j->read;
        json->end = text.p + text.n;
    }
    return json;
}

#define SPLIT_BYTES 16384u /* between two looks at the clock */
/* The whole text is read before anything is applied: an error after half an array would answer for neither half. true: that is
 * done, or it failed. */
static bool split_some(struct settle_job *j, struct budget *g) {
    struct json *json = go_on_reading(j);
    struct failure *f = &j->job.c.failure;
    struct item item = {0};
    while (j->count <= SETTLE_ITEMS_MAX && json_element(json) && read_item(j, &item)) {
        size_t at = (size_t)(json->p - json->start);
        if (at - j->read < SPLIT_BYTES) continue;
        j->read = at;
        if (budget_spent(g)) return false;
    }
    if (j->count > SETTLE_ITEMS_MAX)
        j->failed = !failure_set(f, PROBLEM_too_large, "an array has at most %u items", SETTLE_ITEMS_MAX);
    else if (!json_end(json))
        j->failed = !fail_json(f, json);
    return j->split = true;
}

static bool run_settle(struct job *job, struct budget *g) {
    struct settle_job *j = (struct settle_job *)(void *)job;
    if (!j->split && !split_some(j, g)) return false;
    if (j->failed) return true;
    while (j->at < j->count)
        if (!settle_some(j, g)) return false;
    return true;
}

static void answer_settle(struct job *job) {
    struct buf *body = &job->reply;
    if (((struct settle_job *)(void *)job)->failed) return reply_failure(&job->c);
    if (body->len == 0) buf_char(body, '[');
    buf_char(body, ']');
    job_reply(job, SL("application/json"), SL(""));
}

static void free_settle(struct job *job) {
    struct settle_job *j = (struct settle_job *)(void *)job;
    json_free(&j->json);
    mem_free(j->items);
    buf_free(&j->decoded);
}

static const struct job_kind settle_kind = {sizeof(struct settle_job), run_settle, answer_settle, free_settle, false};

static void settle_array(struct call *c, enum verb verb) {
    struct settle_job j = {.job = {.kind = &settle_kind}, .verb = verb};
    if (jobs_have_room(c)) return job_start(c, &j.job);
    reply_failure(c);
}

static void settle(struct call *c, enum verb verb) {
    slice text = slice_trim(c->req->body);
    if (text.n && text.p[0] == '[')
        settle_array(c, verb);
    else
        settle_object(c, verb);
}

void api_ack(struct call *c) {
    settle(c, VERB_ACK);
}
void api_nack(struct call *c) {
    settle(c, VERB_NACK);
}
void api_extend(struct call *c) {
    settle(c, VERB_EXTEND);
}
void api_step(struct call *c) {
    settle(c, VERB_STEP);
}
void api_start(struct call *c) {
    settle(c, VERB_START);
}
void api_release(struct call *c) {
    settle(c, VERB_RELEASE);
}
