/* What the files of base share with one another and with base's own tests. Other rooms include base.h. */
#ifndef HAPAX_BASE_BASE_PRIV_H
#define HAPAX_BASE_BASE_PRIV_H

#include "base/base.h"

/* Length (1 to 4) of the UTF-8 sequence at p, 0 if there is none that is valid within `left` bytes. */
size_t utf8_sequence(const char *p, size_t left);

/* The value of a hexadecimal digit, -1 if it is none. */
static inline int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* crc32c by table, the way it is computed where the processor has no instruction for it. */
u32 crc32c_by_table(u32 seed, const void *p, size_t n);

#endif
