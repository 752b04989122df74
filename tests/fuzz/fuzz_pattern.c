/* Patterns from arbitrary bytes: the first line is the pattern, the rest the text it is looked for in.
 *  - an error names a byte of the pattern or its end;
 *  - the automaton and the program give the same answer;
 *  - no text costs more than the steps of the program for each of its characters. */
#include "config/pattern.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static struct pattern *made(slice said, struct pattern_budget budget, struct arena *arena) {
    struct pattern *p;
    struct errbuf err = {0};
    u32 column;
    if (pattern_compile(said, &budget, arena, &p, &column, &err) != ST_OK)
        CHECK(!p && err.text[0] && column >= 1 && column <= said.n + 1);
    return p;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
    slice said, text;
    struct arena arena = {0};
    slice_cut(slice_of(data, size), '\n', &said, &text);
    struct pattern *p = made(said, (struct pattern_budget){PATTERN_STATES_MAX, 16384, 300000}, &arena);
    struct pattern *slow = made(said, (struct pattern_budget){PATTERN_STATES_MAX, 0, 0}, &arena);
    CHECK(!p == !slow);
    if (p && text.n <= 1024 && utf8_valid(text)) {
        u64 work = 0, more = 0;
        CHECK(pattern_match(p, text, &work) == pattern_match(slow, text, &more));
        CHECK(more <= (text.n + 2) * 2 * (u64)PATTERN_STATES_MAX && work <= (text.n + 2) * 2 * (u64)PATTERN_STATES_MAX);
        CHECK(!pattern_is_automaton(p) || work <= text.n);
    }
    arena_clear(&arena);
    return 0;
}
