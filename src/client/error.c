#include <stdarg.h>
#include <stdio.h>

#include "client/client_priv.h"

hx_status error_set(hx_error *err, hx_status status, hx_applied applied, const char *code, const char *fmt, ...) {
    *err = (hx_error){.status = status, .applied = applied};
    err->retryable = applied == HX_APPLIED_UNKNOWN || status == HX_UNREACHABLE || status == HX_BUSY;
    snprintf(err->code, sizeof(err->code), "%s", code);
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->detail, sizeof(err->detail), fmt, args);
    va_end(args);
    return status;
}

hx_status error_ok(hx_error *err) {
    *err = (hx_error){.status = HX_OK, .applied = HX_APPLIED_YES};
    return HX_OK;
}

hx_status error_protocol(hx_error *err, int http_status, const char *what) {
    error_set(err, HX_PROTOCOL, HX_APPLIED_UNKNOWN, "protocol", "unexpected answer from the broker: %s", what);
    err->http_status = http_status;
    return HX_PROTOCOL;
}
