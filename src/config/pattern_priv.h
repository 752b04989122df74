/* A pattern between its text (pattern_read.c) and what matches it (pattern.c). */
#ifndef HAPAX_CONFIG_PATTERN_PRIV_H
#define HAPAX_CONFIG_PATTERN_PRIV_H

#include "config/pattern.h"

enum { PATTERN_SETS_MAX = 256 }; /* no more than a pattern has bytes */

#define CODE_POINT_END 0x110000u

/* A program is walked by following all ways at once. SET goes on to the next instruction with a character of its set,
 * the others without one: SPLIT to the next and to another, JUMP to another, BEGIN and END to the next if the text begins
 * or ends here. Others are given relative to the instruction, so a piece of a program can be copied. */
enum pattern_op { OP_SET, OP_SPLIT, OP_JUMP, OP_BEGIN, OP_END, OP_MATCH };

struct instruction {
    int16_t op; /* enum pattern_op */
    int16_t arg;
};

struct code_range {
    u32 from, to; /* both in it */
};

struct code_set {
    u32 first, count; /* of the program's ranges, in order and apart from each other */
};

struct program {
    u32 limit, count;
    struct instruction at[PATTERN_STATES_MAX];
    u32 set_count;
    struct code_set sets[PATTERN_SETS_MAX];
    struct buf ranges; /* struct code_range */
};

static inline struct code_range *program_ranges(const struct program *p, u32 first) {
    return (struct code_range *)(void *)p->ranges.p + first;
}

/* The code point at *p, of valid UTF-8; *p moves behind it. */
static inline u32 code_point(const char **p) {
    const u8 *s = (const u8 *)*p;
    if (s[0] < 0x80) return *p += 1, s[0];
    if (s[0] < 0xE0) return *p += 2, (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
    if (s[0] < 0xF0) return *p += 3, (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
    return *p += 4, (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
}

/* program_free ends it, also after a failure. */
hx_st program_read(slice text, u32 limit, struct program *out, u32 *column, struct errbuf *err);
void program_free(struct program *p);

#endif
