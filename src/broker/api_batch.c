/* Send many messages: a line each, answered by a line each, as a job. */
#include "broker/access.h"
#include "broker/admission_page.h"
#include "broker/admit.h"
#include "broker/api.h"
#include "broker/attrs.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/jobs.h"
#include "broker/limits.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/queue_rules.h"

/* A line as the sender wrote it. */
struct line {
    struct send_in in;
    slice key, credential, payload_text, payload_base64;
    enum json_type payload_type;
    bool has_key, has_payload, has_base64, has_delay, has_ttl;
    slice delay, ttl;
};

static bool line_attrs(struct json *j, struct attrs *attrs) {
    slice name, value;
    if (!json_object(j)) return false;
    while (json_member(j, &name)) {
        bool too_large;
        if (!json_string(j, &value)) return false;
        const char *why = attrs_add(attrs, name, value, &too_large);
        if (why) return json_fail(j, why);
    }
    return true;
}

static bool line_member(struct json *j, slice name, struct line *l, struct attrs *attrs) {
    if (slice_eq(name, SL("key"))) return l->has_key = true, json_string(j, &l->key);
    if (slice_eq(name, SL("payload"))) {
        l->has_payload = true;
        l->payload_type = json_peek(j);
        if (l->payload_type == JSON_STRING) return json_string(j, &l->payload_text);
        return json_value(j, &l->payload_type, &l->payload_text);
    }
    if (slice_eq(name, SL("credential"))) return json_string(j, &l->credential);
    if (slice_eq(name, SL("payload_base64"))) return l->has_base64 = true, json_string(j, &l->payload_base64);
    if (slice_eq(name, SL("content_type"))) return json_string(j, &l->in.content_type);
    if (slice_eq(name, SL("group"))) return json_string(j, &l->in.group);
    if (slice_eq(name, SL("request_id"))) return json_string(j, &l->in.request_id);
    if (slice_eq(name, SL("delay"))) return l->has_delay = true, json_duration(j, &l->delay);
    if (slice_eq(name, SL("ttl"))) return l->has_ttl = true, json_duration(j, &l->ttl);
    if (slice_eq(name, SL("attrs"))) return line_attrs(j, attrs);
    return json_fail(j, "a member that a batch line does not have");
}

static bool line_parse(struct json *j, struct line *l, struct attrs *attrs, struct failure *f) {
    slice name;
    if (json_object(j))
        while (json_member(j, &name))
            if (!line_member(j, name, l, attrs)) break;
    if (json_end(j)) return true;
    return fail_json(f, j);
}

static bool line_payload(struct line *l, struct buf *decoded, struct failure *f) {
    if (l->has_payload == l->has_base64)
        return failure_set(f, PROBLEM_param_invalid, "a line has either payload or payload_base64");
    l->in.payload = l->payload_text;
    if (l->has_base64) {
        if (!buf_base64_decode(decoded, l->payload_base64))
            return failure_set(f, PROBLEM_param_invalid, "payload_base64 is not base64");
        l->in.payload = buf_slice(decoded);
    } else if (l->payload_type != JSON_STRING && l->in.content_type.n == 0) {
        l->in.content_type = SL("application/json");
    }
    if (l->in.payload.n <= PAYLOAD_BYTES_MAX) return true;
    return failure_set(f, PROBLEM_too_large, "the payload has %zu bytes, the limit is %u", l->in.payload.n,
                       PAYLOAD_BYTES_MAX);
}

static bool line_check(struct line *l, struct failure *f) {
    const char *why;
    if (l->has_key && !key_bytes_valid(l->key, &why)) return failure_set(f, PROBLEM_key_invalid, "%s", why);
    l->in.key = l->key;
    bool delay_ok = !l->has_delay || (duration_parse(l->delay, &l->in.delay_ms) && l->in.delay_ms <= DELAY_MS_MAX);
    bool ttl_ok =
        !l->has_ttl || (duration_parse(l->ttl, &l->in.ttl_ms) && l->in.ttl_ms > 0 && l->in.ttl_ms <= DELAY_MS_MAX);
    if (!delay_ok || !ttl_ok)
        return failure_set(f, PROBLEM_param_invalid, "%s must be a duration up to 366d, such as 500ms or 30s",
                           delay_ok ? "ttl" : "delay");
    if (!text_ok(l->in.group, GROUP_BYTES_MAX) || !text_ok(l->in.content_type, TYPE_BYTES_MAX))
        return failure_set(f, PROBLEM_param_invalid, "group and content_type must be plain text, at most %u bytes",
                           GROUP_BYTES_MAX);
    request_id_or_none(&l->in.request_id);
    return true;
}

/* ---- the batch */

struct batch_job {
    struct job job;
    size_t at;    /* in the text: what is behind it is not done yet */
    bool ordered; /* a line that is put off puts off all behind it */
    bool put_off; /* one was; the failure is its */
    bool drill;   /* they try whether repeats are known: not what an upstream does */
    bool for_all; /* and the sender may say whose keys they are */
    struct buf sender;
    struct attrs attrs;
    struct buf decoded;
};

/* Whose key it is: the sender's. In a drill an operator sends again what others sent, and says for each line who that was: under his own
 * name it would be new, and be done. */
static bool line_scope(const struct batch_job *j, u16 queue, const struct line *l, slice *scope, struct failure *f) {
    bool drilled = j->drill && queue_rules_of(j->job.c.b, queue)->scoped;
    *scope = drilled ? l->credential : buf_slice(&j->sender);
    if (drilled && !j->for_all)
        return failure_set(f, PROBLEM_forbidden,
                           "keys of this queue are their senders': a drill needs the right operate");
    if (l->credential.n == 0 && drilled)
        return failure_set(f, PROBLEM_param_invalid,
                           "keys of this queue are their senders': a line of a drill has a credential");
    if (l->credential.n && !drilled)
        return failure_set(f, PROBLEM_param_invalid,
                           "credential is for a drill, in a queue whose keys are their senders'");
    if (!memchr(scope->p, '/', scope->n)) return true;
    return failure_set(f, PROBLEM_param_invalid, "there is no '/' in a credential");
}

/* One line, from text to its line of the reply. A bad one fails alone. */
static void do_line(struct batch_job *j, u16 queue, slice text) {
    struct call *c = &j->job.c;
    struct buf *body = &j->job.reply, *decoded = &j->decoded;
    struct attrs *attrs = &j->attrs;
    struct line l = {.in = {.queue = queue}};
    struct admission a;
    struct json json;
    slice scope;
    attrs_reset(attrs);
    buf_reset(decoded);
    buf_reset(&c->failure.more);
    json_init(&json, text);
    bool ok = line_parse(&json, &l, attrs, &c->failure) && line_check(&l, &c->failure) &&
              line_payload(&l, decoded, &c->failure) && line_scope(j, queue, &l, &scope, &c->failure);
    l.in.attrs = buf_slice(&attrs->bytes);
    c->b->scratch->drill = j->drill;
    ok = ok && admit_message(c->b, &l.in, scope, NULL, said_header, &l.in, &a, &c->failure);
    c->b->scratch->drill = false;
    if (ok && !j->job.unheard) {
        put_admission(c->b, body, &a, c->arg[0]);
        json_put_member_i64(body, "status", admission_status(&a));
    } else if (!ok) {
        failure_render(&c->failure, body);
        j->put_off = j->ordered && problem_retryable(c->failure.problem);
    }
    buf_lit(body, "}\n");
    json_free(&json);
}

static bool next_line(slice *rest, slice *line) {
    while (rest->n) {
        slice_cut(*rest, '\n', line, rest);
        if (line->n && line->p[line->n - 1] == '\r') line->n--;
        if (slice_trim(*line).n) return true; /* blank lines, such as one at the end, say nothing */
    }
    return false;
}

/* The queue is looked up anew each time: it may have been deleted since, and then a line makes it as the first one did. */
static bool run_batch(struct job *job, struct budget *g) {
    struct batch_job *j = (struct batch_job *)(void *)job;
    slice rest = job->text, line;
    u16 queue;
    if (j->at) rest = slice_of(rest.p + j->at, rest.n - j->at); /* an empty text has no address to add to */
    bool there = queue_to_send(&job->c, 0, &queue);
    while (j->at < job->text.n && !budget_spent(g)) {
        bool more = next_line(&rest, &line);
        j->at = job->text.n - rest.n;
        if (!more) break;
        if (there && !j->put_off) {
            do_line(j, queue, line);
        } else {
            failure_render(&job->c.failure, &job->reply);
            buf_lit(&job->reply, "}\n");
        }
    }
    return j->at == job->text.n;
}

static void answer_batch(struct job *job) {
    job_reply(job, SL("application/x-ndjson"), SL(""));
}

static void free_batch(struct job *job) {
    struct batch_job *j = (struct batch_job *)(void *)job;
    attrs_free(&j->attrs);
    buf_free(&j->sender);
    buf_free(&j->decoded);
}

static const struct job_kind batch_kind = {sizeof(struct batch_job), run_batch, answer_batch, free_batch, false};

static bool batch_ok(struct call *c) {
    slice rest = c->req->body, line, coding;
    u32 lines = 0;
    u16 queue;
    while (lines <= BATCH_LINES_MAX && next_line(&rest, &line)) lines++;
    if (http_field_get(c->req, SL("content-encoding"), &coding) && !slice_eq_nocase(coding, SL("identity")))
        return fail(c, PROBLEM_unsupported_media, "Content-Encoding is not accepted: send the lines as they are");
    if (lines > BATCH_LINES_MAX) return fail(c, PROBLEM_too_large, "a batch has at most %u lines", BATCH_LINES_MAX);
    return jobs_have_room(c) && queue_to_send(c, 0, &queue);
}

void api_batch(struct call *c) {
    struct batch_job j = {.job = {.kind = &batch_kind}};
    if (!param_bool(c, "ordered", &j.ordered) || !param_bool(c, "drill", &j.drill) || !batch_ok(c))
        return reply_failure(c);
    buf_slice_add(&j.sender, c->who->name);
    j.for_all = caller_may(c->who, RIGHT_OPERATE, c->arg[0]);
    job_start(c, &j.job);
}
