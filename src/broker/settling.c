#include "broker/settling.h"

#include "broker/broker_priv.h"
#include "broker/lookup.h"
#include "broker/room.h"
#include "broker/watch.h"

/* What the step may write down of what was said, then or before. */
static u64 settle_bytes(const struct broker *b, const struct settle_in *in, const struct seen *s) {
    u64 said = 2 * (in->result.n + in->http.n + in->reason.n + in->effect_id.n + in->name.n);
    if (!s->settle) return said + core_said_bytes(b->core, s->at.message);
    return said + s->settle->history.n + s->settle->result.n + s->settle->http.n + s->settle->kept.payload.n;
}

/* What no record tells of it, or not as such. */
static void watch_settle(struct broker *b, const struct seen *s, enum settle_verdict v, const struct settle_out *out) {
    struct happening h = {.queue = s->at.queue, .ref = *seen_ref(s), .key = seen_key(s)};
    h.kind = HAPPENING_FENCED;
    if (v == SETTLE_FENCED) watch_happened(b, &h);
    h.kind = HAPPENING_DOUBLED;
    if (out->effects > 1) watch_happened(b, &h);
}

enum settle_verdict settle_message(struct broker *b, const struct settle_in *in, const struct seen *s,
                                   struct settle_out *out) {
    room_prepare(b, settle_bytes(b, in, s));
    enum settle_verdict v = core_settle(b->core, b->now, in, s, out);
    if (v == SETTLE_FENCED || out->effects > 1) watch_settle(b, s, v, out);
    return v;
}
