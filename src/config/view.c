#include "config/view.h"

void payload_view_init(struct payload_view *v, slice payload, slice content_type, header_lookup *header, void *ctx) {
    v->payload = payload;
    v->content_type = content_type;
    v->cut = false;
    v->header = header;
    v->header_ctx = ctx;
    v->state = VIEW_UNREAD;
    v->work = 0;
}

void payload_view_free(struct payload_view *v) {
    json_tape_free(&v->tape);
    buf_free(&v->text);
    buf_free(&v->spelling);
    buf_free(&v->ranking);
    *v = (struct payload_view){0};
}

bool payload_view_json(struct payload_view *v) {
    if (v->state == VIEW_UNREAD) {
        bool read = v->cut ? json_tape_read_cut(&v->tape, v->payload) : json_tape_read(&v->tape, v->payload);
        v->state = read ? VIEW_JSON : VIEW_NOT_JSON;
    }
    return v->state == VIEW_JSON;
}

void payload_view_why_not(const struct payload_view *v, struct errbuf *why) {
    CHECK(v->state == VIEW_NOT_JSON);
    err_set(why, ST_INVALID, "the payload is not JSON: %s at byte %zu", v->tape.error, v->tape.error_at);
}

slice payload_view_header(struct payload_view *v, slice name) {
    return v->header ? v->header(v->header_ctx, name) : (slice){0};
}

bool payload_view_scalar(struct payload_view *v, const struct json_item *item, slice *out) {
    slice text = json_item_text(item);
    *out = text;
    buf_reset(&v->text);
    switch (item->type) {
    case JSON_BOOL:
        return true;
    case JSON_STRING:
        if (!item->escaped) return true;
        json_item_string(item, &v->text);
        break;
    case JSON_NUMBER:
        if (number_is_plain(text)) return true;
        if (!number_canonical(text, &v->text)) return false;
        break;
    default:
        return false;
    }
    *out = buf_slice(&v->text);
    return true;
}
