/* Patterns: regular expressions whose cost is known before anything is matched.
 *
 * The language is that of POSIX extended regular expressions, without what makes them expensive and with the escapes
 * people write. It is about characters, not bytes: `.` and `{3}` count what a reader counts.
 *
 *   c  \.  \t \n \r    the character; a backslash takes its meaning from any punctuation
 *   .                  any character
 *   [abc] [^a-z]       one of these, one of all others. `]` first and `-` first or last stand for themselves; ranges go
 *                      by code point; escapes mean the same as outside
 *   [[:alpha:]]        alpha digit alnum upper lower space blank punct print graph cntrl xdigit, of ASCII
 *   \d \w \s           [0-9], [A-Za-z0-9_], white space of ASCII; \D \W \S all others
 *   ^ $                the text's beginning and end; a newline is a character like others
 *   (x) (?:x)          a group; groups nest PATTERN_DEPTH_MAX deep
 *   x|y                either
 *   x* x+ x? x{2} x{2,} x{2,5}   repeated, at most PATTERN_REPEAT_MAX times where a number is given
 *
 * Anything else (back-references, look-around, word boundaries, lazy repetitions, [.x.], [=x=]) is refused with its place.
 * A pattern is found anywhere in the text unless it is anchored.
 *
 * A pattern becomes a program of at most PATTERN_STATES_MAX steps, repetitions written out. Where that makes a small
 * automaton, matching is one look-up for each character; else all steps the program can be at are followed at once, so a
 * character costs at most one visit to each. Never more than states times characters, and no memory is allocated. */
#ifndef HAPAX_CONFIG_PATTERN_H
#define HAPAX_CONFIG_PATTERN_H

#include "base/arena.h"
#include "base/base.h"

enum { PATTERN_BYTES_MAX = 256, PATTERN_STATES_MAX = 2048, PATTERN_DEPTH_MAX = 32, PATTERN_REPEAT_MAX = 1000 };

struct pattern;

/* What patterns that belong together may still take. */
struct pattern_budget {
    u32 states;  /* of their programs */
    u32 entries; /* of their automata's tables */
    u64 work;    /* visits while making the automata; a pattern that gets none is matched by its program */
};

/* Lives in the arena. On failure *column says where: the byte of the text, from 1. */
hx_st pattern_compile(slice text, struct pattern_budget *budget, struct arena *arena, struct pattern **out, u32 *column,
                      struct errbuf *err);

/* Is it found in the text, which must be UTF-8? *work grows by the characters looked at and the steps visited. */
bool pattern_match(const struct pattern *p, slice text, u64 *work);

/* Is it matched by an automaton? For tests. */
bool pattern_is_automaton(const struct pattern *p);

#endif
