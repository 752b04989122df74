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

void put_admission(struct broker *b, struct buf *body, const struct admission *a, slice queue) {
    const struct rec_settle *settle = a->seen ? a->seen->settle : NULL;
    if (a->verdict == SEND_ACCEPTED)
        buf_lit(body, "{\"outcome\":\"accepted\",\"duplicate\":false,\"id\":\"");
    else if (a->verdict == SEND_HELD)
        buf_lit(body, "{\"outcome\":\"held\",\"duplicate\":false,\"id\":\"");
    else
        buf_lit(body, "{\"outcome\":\"duplicate\",\"duplicate\":true,\"id\":\"");
    core_id_text(&a->out.ref, body);
    buf_lit(body, "\",\"queue\":\"");
    buf_slice_add(body, queue); /* no name of a queue has anything to escape */
    buf_char(body, '"');
    put_key(body, shown_key(b, a->out.ref.queue, a->key).key);
    buf_slice_add(body, state_member(a->state));
    if (a->verdict != SEND_DUPLICATE && !settle) {
        buf_lit(body, ",\"expires_at\":null");
        return;
    }
    if (settle && settle->reason.n) json_put_member(body, "reason", settle->reason);
    if (settle) put_settled_result(body, true, settle);
    struct rec_settle previous;
    if (a->seen && a->seen->message && put_previous(body, true, a->seen->message, &previous)) buf_char(body, '}');
    put_time_member(b, body, "first_seen", a->out.first_seen_ms);
    buf_lit(body, ",\"age_ms\":");
    buf_dec_signed(body, b->now.wall_ms - a->out.first_seen_ms);
    buf_lit(body, ",\"duplicates\":");
    buf_dec(body, a->out.duplicates);
    put_expires(b, body, settle);
}
