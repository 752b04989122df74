#include "broker/signature.h"

#include "net/webhook.h"

/* The value of a field that must be there once: of two, somebody else may take the other. */
static bool only_field(const struct http_request *req, slice name, slice *value) {
    return http_field_get(req, name, value) == 1 && value->n;
}

/* What was signed, beside the secret. */
struct claim {
    slice parts[5];
    u32 count;
};

struct macs {
    u8 at[SECRETS_MAX][WEBHOOK_MAC_BYTES];
    u32 count;
};

static void make_macs(const struct source_config *source, const struct claim *c, struct macs *out) {
    out->count = source->secrets.count;
    for (u32 i = 0; i < out->count; i++) webhook_mac(source->secrets.at[i], c->parts, c->count, out->at[i]);
}

/* However many are compared and whichever fits, each takes the same time. */
static bool fits(const struct macs *m, const u8 given[WEBHOOK_MAC_BYTES]) {
    u32 good = 0;
    for (u32 i = 0; i < m->count; i++) {
        u32 differs = 0;
        for (u32 k = 0; k < WEBHOOK_MAC_BYTES; k++) differs |= (u32)(m->at[i][k] ^ given[k]);
        good |= (differs - 1) >> 31;
    }
    return good != 0;
}

static bool fits_base64(const struct macs *m, slice text) {
    struct buf bytes = {0};
    bool good = text.n <= 2 * (size_t)WEBHOOK_MAC_BYTES && buf_base64_decode(&bytes, text) &&
                bytes.len == WEBHOOK_MAC_BYTES && fits(m, (const u8 *)bytes.p);
    buf_free(&bytes);
    return good;
}

static bool fits_hex(const struct macs *m, slice text) {
    u8 bytes[WEBHOOK_MAC_BYTES];
    return hex_decode(text, bytes, sizeof bytes) && fits(m, bytes);
}

/* Of a list with `between` between its items: the part behind `prefix` of any that begins with it. */
static bool any_fits(const struct macs *m, slice list, char between, slice prefix,
                     bool (*one_fits)(const struct macs *m, slice text)) {
    slice item;
    while (list.n) {
        slice_cut(list, between, &item, &list);
        item = slice_trim(item);
        if (slice_starts(item, prefix) && one_fits(m, slice_of(item.p + prefix.n, item.n - prefix.n))) return true;
    }
    return false;
}

static const char *time_wrong(slice text, i64 tolerance_ms, i64 wall_ms) {
    u64 seconds;
    if (text.n > 12 || !slice_u64(text, &seconds)) return "the time of the signature is not a number of seconds";
    i64 off = wall_ms - (i64)seconds * 1000;
    if (off > tolerance_ms) return "the signature is too old: send it again with a new one";
    return off < -tolerance_ms ? "the signature is of a time to come: the clocks differ" : NULL;
}

static const char *standard_wrong(const struct source_config *source, const struct http_request *req, i64 wall_ms) {
    slice id, time, list;
    struct macs macs;
    if (!only_field(req, SL("webhook-id"), &id) || !only_field(req, SL("webhook-timestamp"), &time) ||
        !only_field(req, SL("webhook-signature"), &list))
        return "webhook-id, webhook-timestamp and webhook-signature must be there, once each";
    const char *wrong = time_wrong(time, source->tolerance_ms, wall_ms);
    if (wrong) return wrong;
    /* With a dot in it the id could end elsewhere than the sender meant. */
    if (memchr(id.p, '.', id.n)) return "webhook-id has a dot in it";
    make_macs(source, &(struct claim){{id, SL("."), time, SL("."), req->body}, 5}, &macs);
    return any_fits(&macs, list, ' ', SL("v1,"), fits_base64) ? NULL : "no signature fits";
}

static const char *stripe_wrong(const struct source_config *source, const struct http_request *req, i64 wall_ms) {
    slice list, rest, item, time = {0};
    struct macs macs;
    u32 times = 0;
    if (!only_field(req, SL("stripe-signature"), &list)) return "stripe-signature must be there, once";
    for (rest = list; rest.n;) {
        slice_cut(rest, ',', &item, &rest);
        item = slice_trim(item);
        if (!slice_starts(item, SL("t="))) continue;
        time = slice_of(item.p + 2, item.n - 2);
        times++;
    }
    if (times != 1) return "stripe-signature must have one t=";
    const char *wrong = time_wrong(time, source->tolerance_ms, wall_ms);
    if (wrong) return wrong;
    make_macs(source, &(struct claim){{time, SL("."), req->body}, 3}, &macs);
    return any_fits(&macs, list, ',', SL("v1="), fits_hex) ? NULL : "no signature fits";
}

static const char *body_wrong(const struct source_config *source, const struct http_request *req, slice header,
                              slice prefix, bool base64) {
    slice value;
    struct macs macs;
    if (!only_field(req, header, &value)) return "the header with the signature must be there, once";
    if (!slice_starts(value, prefix)) return "the signature does not begin as it should";
    value = slice_of(value.p + prefix.n, value.n - prefix.n);
    make_macs(source, &(struct claim){{req->body}, 1}, &macs);
    return (base64 ? fits_base64 : fits_hex)(&macs, value) ? NULL : "the signature does not fit";
}

const char *signature_wrong(const struct source_config *source, const struct http_request *req, i64 wall_ms) {
    switch ((enum scheme)source->scheme) {
    case SCHEME_STANDARD:
        return standard_wrong(source, req, wall_ms);
    case SCHEME_STRIPE:
        return stripe_wrong(source, req, wall_ms);
    case SCHEME_GITHUB:
        return body_wrong(source, req, SL("x-hub-signature-256"), SL("sha256="), false);
    case SCHEME_HMAC:
        return body_wrong(source, req, source->header, source->prefix, source->encoding == ENCODING_BASE64);
    case SCHEME_NONE:
    case SCHEME_COUNT:
        break;
    }
    return NULL;
}
