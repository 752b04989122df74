#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/needed.h"

#define SPAN 4096u /* stretches the plain form knows of */

struct plain {
    bool at[SPAN];
    u64 first;
};

static u64 plain_next(const struct plain *p, u64 from) {
    for (u64 i = from; i < SPAN; i++)
        if (p->at[i]) return i;
    return SPAN;
}

/* As records are written: ever further on, some over, the journal's beginning moving up behind. */
static void what_was_noted_and_is_not_over_is_found_and_nothing_else(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3);
    for (u32 round = 0; round < 20; round++) {
        struct needed a = {0};
        struct plain p = {0};
        u64 base = rng_below(&rng, 1u << 20) * NEEDED_STRETCH, gap = 1 + rng_below(&rng, 9);
        for (u64 i = 0; i < SPAN; i += 1 + rng_below(&rng, gap)) {
            needed_note(&a, base + i * NEEDED_STRETCH + 8 * rng_below(&rng, 4), true);
            p.at[i] = true;
            u64 over = rng_below(&rng, i + 1);
            needed_over(&a, base + over * NEEDED_STRETCH + 8 * rng_below(&rng, 4));
            p.at[over] = false;
            u64 from = rng_below(&rng, SPAN), upto = from + rng_below(&rng, SPAN - from + 1),
                plain = plain_next(&p, from),
                found = needed_next(&a, base + from * NEEDED_STRETCH, base + upto * NEEDED_STRETCH);
            assert_true(found == (plain >= upto ? NEEDED_NONE : base + plain * NEEDED_STRETCH));
        }
        u64 count = 0;
        for (u32 i = 0; i < SPAN; i++) count += p.at[i];
        assert_int_equal(a.count, count);
        needed_free(&a);
        assert_true(a.count == 0 && a.bytes == 0);
    }
}

static void what_lies_before_the_journals_beginning_takes_no_memory(void **state) {
    (void)state;
    struct needed a = {0};
    for (u64 pos = 0; pos < 64u << 20; pos += 256) {
        needed_note(&a, pos, true);
        if (pos >= 1u << 20) needed_drop(&a, pos - (1u << 20));
    }
    assert_true(a.bytes < 16384);
    assert_int_equal(needed_next(&a, 0, 64u << 20), (63u << 20) - 65536);
    assert_int_equal(a.count, (64u << 20) / 256); /* nobody has said that they are over */
    for (u64 pos = 0; pos < 64u << 20; pos += 256) needed_over(&a, pos);
    assert_true(a.count == 0 && needed_next(&a, 0, 64u << 20) == NEEDED_NONE);
    needed_free(&a);
}

/* Large payloads: where no record begins there is nothing to remember. */
static void memory_is_by_what_is_written_not_by_its_size(void **state) {
    (void)state;
    struct needed a = {0};
    for (u64 i = 0; i < 1000; i++) needed_note(&a, i << 20, false);
    assert_true(a.bytes < 1000 * 512);
    for (u64 i = 0; i < 1000; i++) assert_int_equal(needed_next(&a, i ? (i << 20) - 64 : 0, UINT64_MAX), i << 20);
    needed_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_noted_and_is_not_over_is_found_and_nothing_else),
        cmocka_unit_test(what_lies_before_the_journals_beginning_takes_no_memory),
        cmocka_unit_test(memory_is_by_what_is_written_not_by_its_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
