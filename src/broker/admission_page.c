#include "broker/admission_page.h"

#include "broker/broker_priv.h"
#include "broker/render.h"
#include "broker/scope.h"

u16 admission_status(const struct admission *a) {
    return state_is_settled(a->state) ? 200 : 202;
}

static slice state_member(enum state s) {
#define STATE_MEMBER(name, text) {",\"state\":\"" text "\"", sizeof(",\"state\":\"" text "\"") - 1},
    static const slice members[] = {STATE_LIST(STATE_MEMBER)};
#undef STATE_MEMBER
    return members[s];
}

/* Room for what is always there, but for the names of the queue and the key. */
#define BEFORE_KEY_BYTES 128u
#define AFTER_KEY_BYTES  192u

static char *write_outcome(char *to, enum send_verdict v) {
    if (v == SEND_ACCEPTED) return write_lit(to, "{\"outcome\":\"accepted\",\"duplicate\":false,\"id\":\"");
    if (v == SEND_HELD) return write_lit(to, "{\"outcome\":\"held\",\"duplicate\":false,\"id\":\"");
    return write_lit(to, "{\"outcome\":\"duplicate\",\"duplicate\":true,\"id\":\"");
}

/* What became of the original, or of what it was before it was replayed. */
static void put_what_became(struct buf *body, const struct seen *s) {
    struct rec_settle previous;
    if (s->settle && s->settle->reason.n) json_put_member(body, "reason", s->settle->reason);
    if (s->settle) put_settled_result(body, true, s->settle);
    if (s->message && put_previous(body, true, true, s->message, &previous)) buf_char(body, '}');
}

static void put_history(struct broker *b, struct buf *body, const struct admission *a) {
    i64 age_ms = b->now.wall_ms - a->out.first_seen_ms;
    buf_grow(body, AFTER_KEY_BYTES);
    char *p = write_lit(buf_end(body), ",\"first_seen\":\"");
    p = write_time(b, p, a->out.first_seen_ms);
    p = write_lit(p, "\",\"age_ms\":");
    if (age_ms < 0) *p++ = '-';
    p = write_dec(p, age_ms < 0 ? -(u64)age_ms : (u64)age_ms);
    p = write_lit(p, ",\"duplicates\":");
    buf_end_at(body, write_dec(p, a->out.duplicates));
}

void put_admission(struct broker *b, struct buf *body, const struct admission *a, slice queue) {
    const struct seen *s = a->seen;
    buf_grow(body, BEFORE_KEY_BYTES + queue.n);
    char *p = write_outcome(buf_end(body), a->verdict);
    p = core_id_write(&a->out.ref, p);
    p = write_lit(p, "\",\"queue\":\"");
    p = write_slice(p, queue); /* no name of a queue has anything to escape */
    buf_end_at(body, write_lit(p, "\",\"key\":"));
    put_key_text(body, key_as_sent(b, a->out.ref.queue, a->key));
    buf_slice_add(body, state_member(a->state));
    if (a->verdict == SEND_DUPLICATE || (s && s->settle)) {
        if (s && (s->settle || s->message->former.n)) put_what_became(body, s);
        put_history(b, body, a);
    }
    put_expires(b, body, s ? s->settle : NULL);
}
