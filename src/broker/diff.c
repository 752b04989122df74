#include "broker/diff.h"

#include "base/json.h"
#include "broker/broker_priv.h"
#include "broker/call.h"
#include "broker/queue_rules.h"
#include "config/fingerprint.h"
#include "config/payload_diff.h"

#define CHANGES_MAX       32u
#define CHANGE_BYTES_MAX  256u
#define CHANGES_BYTES_MAX 8192u
#define CHANGES_SEEN_MAX  1000u  /* with those the fingerprint passes over */
#define VALUES_MAX        50000u /* of both payloads: what more would take is time nobody else should wait for */

struct changes {
    const struct fingerprint
        *fingerprint; /* what it passes over makes no conflict; NULL: the bytes, so everything counts */
    struct buf names, values;
    u32 count, seen;
};

static bool add_name(void *ctx, slice path, const struct json_item *before, const struct json_item *after) {
    struct changes *c = ctx;
    if (c->count == CHANGES_MAX || c->seen++ == CHANGES_SEEN_MAX || c->names.len > CHANGES_BYTES_MAX) return false;
    if (path.n > CHANGES_BYTES_MAX) return true;       /* a name that long is no name */
    if (!(before ? before : after)->name) return true; /* the payloads as wholes: that is known already */
    if (c->fingerprint && !fingerprint_looks_at(c->fingerprint, path)) return true;
    if (c->count++) buf_char(&c->names, ',');
    json_put_string(&c->names, path);
    return true;
}

/* As it was written; what is long says only that. */
static void put_value(struct buf *b, const char *name, const struct json_item *item) {
    if (!item) return;
    json_put_name(b, name);
    if (item->text_len > CHANGE_BYTES_MAX || b->len > CHANGES_BYTES_MAX) {
        buf_lit(b, "\"(long)\"");
        return;
    }
    if (item->type == JSON_STRING) buf_char(b, '"');
    buf_slice_add(b, json_item_text(item));
    if (item->type == JSON_STRING) buf_char(b, '"');
}

static bool add_values(void *ctx, slice path, const struct json_item *before, const struct json_item *after) {
    struct changes *c = ctx;
    u32 count = c->count;
    if (!add_name(ctx, path, before, after)) return false;
    if (c->count == count) return true;
    if (c->values.len) buf_char(&c->values, ',');
    buf_char(&c->values, '{');
    json_put_member(&c->values, "field", path);
    put_value(&c->values, "was", before);
    put_value(&c->values, "is", after);
    buf_char(&c->values, '}');
    return true;
}

void put_changed_views(struct broker *br, struct buf *b, u16 queue, struct payload_view *was, struct payload_view *is,
                       bool with_values, u64 *left) {
    u64 bytes = was->payload.n + is->payload.n;
    if (*left == 0) return;
    *left -= bytes < *left ? bytes : *left;
    const struct queue_config *rules = queue_rules_of(br, queue)->config;
    struct changes c = {.fingerprint = rules ? rules->fingerprint : NULL};
    payload_diff(was, is, VALUES_MAX, with_values ? add_values : add_name, &c);
    if (c.count) {
        json_put_name(b, "changed");
        buf_printf(b, "[%.*s]", (int)c.names.len, c.names.p);
    }
    if (c.values.len) {
        json_put_name(b, "difference");
        buf_printf(b, "[%.*s]", (int)c.values.len, c.values.p);
    }
    buf_free(&c.names);
    buf_free(&c.values);
}

void put_changed(struct broker *br, struct buf *b, u16 queue, slice before, slice after, bool with_values, u64 *left) {
    struct payload_view *was = &br->scratch->other_view, *is = &br->scratch->view;
    payload_view_init(was, before, SL(""), NULL, NULL);
    payload_view_init(is, after, SL(""), NULL, NULL);
    put_changed_views(br, b, queue, was, is, with_values, left);
}
