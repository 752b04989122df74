#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/index.h"

static u64 mixed(u64 i) {
    struct siphash_key k = {1, 2};
    return siphash(&k, &i, sizeof i);
}

static u32 find_first(const struct index *ix, u64 hash) {
    struct index_cursor cursor = {0};
    return index_find(ix, hash, &cursor);
}

static void every_entry_is_found_while_the_table_grows(void **state) {
    (void)state;
    struct index ix;
    index_init(&ix);
    for (u64 i = 1; i <= 200000; i++) {
        u32 no = index_insert(&ix, mixed(i));
        index_entry(&ix, no)->at = i;
        u64 probe = 1 + mixed(i * 7) % i; /* an older one, wherever growth has got to */
        assert_int_equal(index_entry(&ix, find_first(&ix, mixed(probe)))->at, probe);
        assert_int_equal(find_first(&ix, mixed(i + 1000000)), ENTRY_NONE);
    }
    for (u64 i = 1; i <= 200000; i++) assert_int_equal(index_entry(&ix, find_first(&ix, mixed(i)))->at, i);
    index_free(&ix);
}

static void a_removed_entry_is_gone_and_its_neighbours_stay(void **state) {
    (void)state;
    struct index ix;
    struct rng rng;
    index_init(&ix);
    rng_seed(&rng, 7);
    enum { N = 30000 };
    static u32 no[N];
    for (u64 round = 0; round < 300000; round++) {
        u64 i = rng_below(&rng, N);
        if (no[i]) {
            index_remove(&ix, no[i]);
            index_release(&ix, no[i]);
            no[i] = 0;
        } else {
            no[i] = index_insert(&ix, mixed(i));
        }
        u64 j = rng_below(&rng, N);
        assert_int_equal(find_first(&ix, mixed(j)), no[j]);
    }
    for (u64 i = 0; i < N; i++) assert_int_equal(find_first(&ix, mixed(i)), no[i]);
    index_free(&ix);
}

/* Hashes whose upper bits are all ones live at the table's end and wrap to its start. */
static void entries_that_wrap_around_the_end_survive_growth_and_removal(void **state) {
    (void)state;
    struct index ix;
    index_init(&ix);
    enum { N = 3000 };
    static u32 no[N];
    for (u64 i = 0; i < N; i++) no[i] = index_insert(&ix, ~(u64)0 - (i << 32));
    for (u64 i = 0; i < N; i += 2) {
        index_remove(&ix, no[i]);
        index_release(&ix, no[i]);
    }
    for (u64 i = 0; i < 8000; i++) index_insert(&ix, mixed(i)); /* forces growth */
    for (u64 i = 0; i < N; i++) {
        u32 found = find_first(&ix, ~(u64)0 - (i << 32));
        assert_int_equal(found, i % 2 ? no[i] : ENTRY_NONE);
    }
    index_free(&ix);
}

/* Memory of a table that has just doubled is paid for as it fills: a turn's keys must not touch all of it. */
static void a_new_table_is_filled_from_its_start_on(void **state) {
    (void)state;
    struct index ix;
    index_init(&ix);
    u64 i = 0;
    while (!ix.old.slots || ix.now.bits < 18) index_insert(&ix, mixed(i++));
    for (u64 from = i; i < from + 1000; i++) index_insert(&ix, mixed(i));
    assert_non_null(ix.old.slots);
    u64 edge = ix.move_at << 1, beyond = 0;
    for (u64 at = edge + 1024; at < (u64)1 << ix.now.bits; at++) beyond += ix.now.slots[at] != 0;
    assert_true(beyond < 16); /* the few whose run met the old table's end */
    for (u64 known = 0; known < i; known++) assert_int_not_equal(find_first(&ix, mixed(known)), ENTRY_NONE);
    index_free(&ix);
}

static void equal_hashes_are_all_yielded(void **state) {
    (void)state;
    struct index ix;
    index_init(&ix);
    u32 a = index_insert(&ix, 42), b = index_insert(&ix, 42), c = index_insert(&ix, 42);
    for (u64 i = 0; i < 5000; i++) index_insert(&ix, mixed(i));
    struct index_cursor cursor = {0};
    u32 seen = 0;
    for (u32 no; (no = index_find(&ix, 42, &cursor)) != ENTRY_NONE;) {
        assert_true(no == a || no == b || no == c);
        seen++;
    }
    assert_int_equal(seen, 3);
    index_free(&ix);
}

static void a_million_keys_cost_at_most_64_bytes_each(void **state) {
    (void)state;
    struct index ix;
    index_init(&ix);
    for (u64 i = 1; i <= 3000000; i++) {
        index_insert(&ix, mixed(i));
        if (i >= 1000000 && i % 1000 == 0) assert_true(index_bytes(&ix) <= i * 64 + ENTRY_CHUNK * sizeof(struct entry));
    }
    index_free(&ix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_entry_is_found_while_the_table_grows),
        cmocka_unit_test(a_removed_entry_is_gone_and_its_neighbours_stay),
        cmocka_unit_test(entries_that_wrap_around_the_end_survive_growth_and_removal),
        cmocka_unit_test(a_new_table_is_filled_from_its_start_on),
        cmocka_unit_test(equal_hashes_are_all_yielded),
        cmocka_unit_test(a_million_keys_cost_at_most_64_bytes_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
