#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>

#define STATUS_TEXT(name, text) [ST_##name] = text,
static const char *const texts[] = {STATUS_LIST(STATUS_TEXT)};
#undef STATUS_TEXT

const char *status_text(hx_st st) {
    size_t i = (size_t)st;
    return i < sizeof texts / sizeof *texts ? texts[i] : "unknown status";
}

hx_st err_set(struct errbuf *err, hx_st st, const char *fmt, ...) {
    if (!err) return st;
    /* Formatted aside: an argument may be the very text that is being replaced. */
    char text[sizeof err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    utf8_trim(text);
    memcpy(err->text, text, strlen(text) + 1);
    return st;
}

hx_st err_wrap(struct errbuf *err, hx_st st, const char *fmt, ...) {
    if (!err) return st;
    char prefix[sizeof err->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);

    size_t room = sizeof err->text - 1;
    size_t head = strlen(prefix);
    if (head > room - 2) head = room - 2;
    size_t tail = strnlen(err->text, room);
    if (tail > room - 2 - head) tail = room - 2 - head;
    memmove(err->text + head + 2, err->text, tail);
    memcpy(err->text, prefix, head);
    memcpy(err->text + head, ": ", 2);
    err->text[head + 2 + tail] = '\0';
    utf8_trim(err->text);
    return st;
}
