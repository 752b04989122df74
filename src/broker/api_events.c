/* Events as they come. */
#include "broker/access.h"
#include "broker/api.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/feeds.h"
#include "broker/named.h"
#include "broker/parse.h"
#include "broker/scope.h"
#include "broker/watch.h"

static u32 kind_bit(slice text) {
    for (u32 k = 0; k < HAPPENING_COUNT; k++) {
        const char *name = happening_text((enum happening_kind)k);
        if (*name && slice_eq(text, slice_str(name))) return 1u << k;
    }
    return 0;
}

/* One, or several with commas between them. */
static bool read_kinds(struct call *c, slice text, u32 *kinds) {
    slice one;
    *kinds = 0;
    while (text.n) {
        slice_cut(text, ',', &one, &text);
        u32 bit = kind_bit(one);
        if (!bit)
            return fail(c, PROBLEM_param_invalid,
                        "kind must be one or several of accepted, duplicate, conflict, delivered, settled, failed, "
                        "dead, held, resolved, expired, alert, audit, config");
        *kinds |= bit;
    }
    return true;
}

static bool read_filter(struct call *c, struct feed_filter *filter) {
    struct buf store[3] = {{0}};
    slice queue, key, kinds;
    const char *why = "";
    bool ok = param_text(c, "queue", &store[0], &queue) && param_text(c, "key", &store[1], &key) &&
              param_text(c, "kind", &store[2], &kinds) &&
              (queue.n == 0 || (may(c, RIGHT_OBSERVE, queue) && queue_to_watch(c, queue))) &&
              read_kinds(c, kinds, &filter->kinds);
    if (ok && key.n && !key_bytes_valid(key, &why)) ok = fail(c, PROBLEM_key_invalid, "%s", why);
    if (ok) {
        buf_slice_add(&filter->queue, queue);
        buf_slice_add(&filter->key, key);
        scope_key(&filter->own, c->who->name, key);
    }
    for (u32 i = 0; i < 3; i++) buf_free(&store[i]);
    return ok;
}

static bool open_feed(struct call *c, const struct feed_filter *filter) {
    slice last_id = SL("");
    if (c->b->draining) return fail(c, PROBLEM_shutting_down, "this broker is about to exit");
    if (!c->b->options.port.feed) return fail(c, PROBLEM_not_implemented, "there is nobody to carry events here");
    if (http_field_get(c->req, SL("Last-Event-ID"), &last_id) > 1)
        return fail(c, PROBLEM_bad_request, "Last-Event-ID is given twice");
    return feed_open(c, filter, last_id);
}

void api_events(struct call *c) {
    struct feed_filter filter = {0};
    bool taken = read_filter(c, &filter) && open_feed(c, &filter);
    if (taken && c->req->method != HTTP_HEAD) return;
    buf_free(&filter.queue);
    buf_free(&filter.key);
    buf_free(&filter.own);
    if (!taken) reply_failure(c);
}
