#include <stdio.h>

#include "client/client_priv.h"

#define TEXT(name, text) text,
#define NAME(name, text) #name,
static const char *const texts[] = {HX_STATUS_MAP(TEXT)};
static const char *const names[] = {HX_STATUS_MAP(NAME)};

enum { STATUS_COUNT = sizeof(texts) / sizeof(texts[0]) };

const char *hx_status_text(hx_status status) {
    return (size_t)status < STATUS_COUNT ? texts[status] : "no such status";
}

const char *hx_status_name(hx_status status) {
    return (size_t)status < STATUS_COUNT ? names[status] : "?";
}

const char *hx_version(void) {
    return HAPAX_VERSION;
}

static const char *const states[] = {"", "pending", "leased", "held", "dead", "done", "rejected", "cancelled"};
enum { STATE_COUNT = sizeof(states) / sizeof(states[0]) };

const char *hx_state_text(hx_state state) {
    return (size_t)state < STATE_COUNT ? states[state] : "";
}

hx_state state_of(slice text) {
    for (int i = 1; i < STATE_COUNT; i++)
        if (slice_eq(text, slice_str(states[i]))) return (hx_state)i;
    return HX_STATE_NONE;
}

const char *hx_class_text(hx_class failure_class) {
    static const char *const classes[] = {"transient", "poison", "rejected", "unknown", "absent"};
    return (size_t)failure_class < sizeof(classes) / sizeof(classes[0]) ? classes[failure_class] : "unknown";
}

/* Refusals by their code where it says more than the HTTP status. */
static const struct {
    const char *code;
    hx_status status;
} by_code[] = {
    {"key_reused", HX_CONFLICT}, {"fenced", HX_FENCED},           {"lease_expired", HX_FENCED},
    {"settled", HX_SETTLED},     {"not_settled", HX_NOT_SETTLED},
};

static hx_status status_of(int http_status, const char *code) {
    for (size_t i = 0; i < sizeof(by_code) / sizeof(by_code[0]); i++)
        if (strcmp(code, by_code[i].code) == 0) return by_code[i].status;
    switch (http_status) {
    case 400:
        return HX_INVALID;
    case 401:
    case 403:
        return HX_DENIED;
    case 404:
        return HX_NOT_FOUND;
    case 413:
        return HX_TOO_LARGE;
    case 429:
        return HX_BUSY;
    case 507:
        return HX_FULL;
    default:
        return http_status >= 500 ? HX_UNAVAILABLE : HX_REFUSED;
    }
}

static void copy_text(char *to, size_t size, slice from) {
    size_t n = from.n < size - 1 ? from.n : size - 1;
    if (n) memcpy(to, from.p, n);
    to[n] = '\0';
}

static void problem_member(struct json *j, slice name, hx_error *err, char *title, size_t title_size) {
    slice s;
    if (slice_eq(name, SL("code")) && json_peek(j) == JSON_STRING) {
        if (json_string(j, &s)) copy_text(err->code, sizeof(err->code), s);
    } else if (slice_eq(name, SL("detail")) && json_peek(j) == JSON_STRING) {
        if (json_string(j, &s)) copy_text(err->detail, sizeof(err->detail), s);
    } else if (slice_eq(name, SL("title")) && json_peek(j) == JSON_STRING) {
        if (json_string(j, &s)) copy_text(title, title_size, s);
    } else if (slice_eq(name, SL("applied")) && json_peek(j) == JSON_STRING) {
        if (json_string(j, &s)) err->applied = slice_eq(s, SL("unknown")) ? HX_APPLIED_UNKNOWN : HX_APPLIED_NO;
    } else if (slice_eq(name, SL("retryable")) && json_peek(j) == JSON_BOOL) {
        json_bool(j, &err->retryable);
    } else {
        json_skip(j);
    }
}

hx_status problem_read(int http_status, slice body, hx_error *err) {
    *err = (hx_error){.http_status = http_status};
    /* A gateway's bare 5xx says nothing about what happened behind it. */
    err->applied = http_status >= 500 ? HX_APPLIED_UNKNOWN : HX_APPLIED_NO;
    char title[128] = "";
    struct json j;
    json_init(&j, body);
    slice name;
    if (json_object(&j))
        while (json_member(&j, &name)) problem_member(&j, name, err, title, sizeof(title));
    if (!json_end(&j)) err->code[0] = '\0';
    json_free(&j);
    if (!err->code[0]) snprintf(err->code, sizeof(err->code), "http_%d", http_status);
    if (!err->detail[0]) snprintf(err->detail, sizeof(err->detail), "%s", title);
    err->status = err->applied == HX_APPLIED_UNKNOWN ? HX_UNKNOWN : status_of(http_status, err->code);
    if (!err->detail[0]) snprintf(err->detail, sizeof(err->detail), "HTTP status %d", http_status);
    return err->status;
}

bool problem_passes(const hx_error *err) {
    return err->status == HX_BUSY || err->status == HX_UNAVAILABLE || err->status == HX_FULL ||
           err->applied == HX_APPLIED_UNKNOWN;
}
