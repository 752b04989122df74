/* Patterns: the C library's answers where the languages agree, and a cost that is known beforehand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <locale.h>
#include <regex.h>

#include "config/pattern.h"

static const struct pattern_budget plenty = {PATTERN_STATES_MAX, 16384, 300000};
static const struct pattern_budget no_automaton = {PATTERN_STATES_MAX, 0, 0};

struct made {
    struct arena arena;
    struct pattern *pattern;
};

static struct made make(slice text, struct pattern_budget budget) {
    struct made m = {0};
    struct errbuf err = {0};
    u32 column;
    if (pattern_compile(text, &budget, &m.arena, &m.pattern, &column, &err) != ST_OK)
        fail_msg("%.*s: %s at %u", (int)text.n, text.p, err.text, column);
    return m;
}

/* By the automaton, and by the program. */
struct pair {
    struct made automaton, program;
};

static struct pair make_pair(slice text) {
    return (struct pair){make(text, plenty), make(text, no_automaton)};
}

static void free_pair(struct pair *p) {
    arena_clear(&p->automaton.arena);
    arena_clear(&p->program.arena);
}

static bool found(const struct pair *p, slice text) {
    u64 work = 0;
    bool answer = pattern_match(p->automaton.pattern, text, &work);
    if (pattern_match(p->program.pattern, text, &work) != answer)
        fail_msg("\"%.*s\": %d says the automaton, the program does not", (int)text.n, text.p, answer);
    return answer;
}

static void what_the_language_means(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *yes, *no; /* texts by blanks; "-" for the empty one */
    } cases[] = {
        {"", "- a abc", ""},
        {"b", "b abc", "- a"},
        {"^b$", "b", "- ab bc abc"},
        {"^pi_[A-Za-z0-9]+$", "pi_1 pi_aB9", "pi_ pi_\xc3\xa9 xpi_1"},
        {"^[0-9]{4}-[0-9]{2}$", "2026-01", "226-01 2026-1 2026-011"},
        {"^a{2,3}$", "aa aaa", "a aaaa"},
        {"^a{2,}$", "aa aaaaaa", "a -"},
        {"^a{,2}$", "- a aa", "aaa"},
        {"^(ab|cd|)$", "ab cd -", "a abcd"},
        {"^(ab)*$", "- ab abab", "aba"},
        {"^(?:ab)+$", "ab abab", "- aba"},
        {"^(a|b)?c$", "c ac bc", "abc"},
        {"^(a*)*$", "- a aaa", "b"},
        {"^((a|b)*c){2}$", "cc abcc abcac", "c ccc"},
        {"a|b|c", "xax xbx c", "x -"},
        {"^a|b$", "ax xb", "xa bx"},
        {"(^a|b$)", "ax xb", "xa bx"},
        {"a^b", "", "ab a^b b"},
        {"a$b", "", "ab a$b"},
        {"^$", "-", "a"},
        {"$^", "-", "a"},
        {"x{0}y", "y xy", "x"},
        {"^[]a]$", "] a", "b"},
        {"^[^]a]$", "b [", "] a"},
        {"^[a-c-]$", "a b c -x", "d"},
        {"^[+--]$", "+ , -x", "."},
        {"^[[:digit:]_]+$", "1_2", "a -"},
        {"^[^[:space:]]+$", "abc", "-"},
        {"^\\d{3}\\.\\w+$", "123.a_1", "123a 12.a 123."},
        {"^\\D\\W\\S$", "a.b", "1.b aab"},
        {"^[\\w.-]+@[\\w-]+\\.[a-z]{2,}$", "a.b-c@d-e.org", "a@b a@b.c @b.org"},
        {"^[\\]\\\\]+$", "]\\", "[ -"},
        {"^\\(\\)\\[\\]\\{\\}\\|\\*\\+\\?\\^\\$\\\\\\/$", "()[]{}|*+?^$\\/", "x"},
        {"^]}$", "]}", "]"},
        {"^.{3}$", "abc \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "ab \xc3\xa9\xc3\xa9 abcd"},
        {"^[\xc3\xa0-\xc3\xbf]+$", "\xc3\xa9\xc3\xbc", "e \xc3\xa9x \xe2\x82\xac"},
        {"^[^a]$", "\xf0\x9f\x98\x80 b", "a -"},
        {"\xe2\x82\xac", "5\xe2\x82\xac", "5$"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pair p = make_pair(slice_str(cases[i].pattern));
        for (int yes = 0; yes < 2; yes++) {
            slice rest = slice_str(yes ? cases[i].yes : cases[i].no), text;
            while (rest.n) {
                slice_cut(rest, ' ', &text, &rest);
                if (text.p[0] == '-' && text.n <= 2) text = slice_of(text.p, text.n - 1); /* "-x" is a dash */
                if (found(&p, text) != (bool)yes) fail_msg("%s in \"%.*s\"", cases[i].pattern, (int)text.n, text.p);
            }
        }
        free_pair(&p);
    }
}

static void nul_and_newline_are_characters_like_others(void **state) {
    (void)state;
    struct pair p = make_pair(SL("^a.b[^c]$"));
    assert_true(found(&p, slice_of("a\0b\n", 4)));
    assert_false(found(&p, slice_of("a\0b\nc", 5)));
    free_pair(&p);
}

static void what_is_not_in_the_language_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        u32 column;
        const char *why;
    } cases[] = {
        {"ab(c", 3, "the group opened here is not closed"},
        {"a(b(c)", 2, "the group opened here is not closed"},
        {"ab)", 3, "a ')' without its '('; the character is written \\)"},
        {"a[bc", 2, "the bracket opened here is not closed"},
        {"[]", 1, "the bracket opened here is not closed"},
        {"[z-a]", 2, "the range ends before it begins"},
        {"[[:alfa:]]", 2, NULL},
        {"[[.a.]]", 2, "[.x.] and [=x=] are not supported"},
        {"*a", 1, "nothing to repeat stands before this"},
        {"a|+", 3, "nothing to repeat stands before this"},
        {"(?", 1, "of (?...) there is only (?:...)"},
        {"(?=a)", 1, "of (?...) there is only (?:...)"},
        {"^*", 2, "nothing to repeat stands before this"},
        {"a**", 3, "a repetition of a repetition: put the inner one into parentheses"},
        {"a{2}{3}", 5, "a repetition of a repetition: put the inner one into parentheses"},
        {"a+?", 3, "a lazy repetition matches the same texts: leave the ? out"},
        {"a{", 2, "a repetition is {2}, {2,} or {2,5}; the character is written \\{"},
        {"a{x}", 2, "a repetition is {2}, {2,} or {2,5}; the character is written \\{"},
        {"a{,}", 2, "a repetition is {2}, {2,} or {2,5}; the character is written \\{"},
        {"a{1,2", 2, "a repetition is {2}, {2,} or {2,5}; the character is written \\{"},
        {"a{3,2}", 2, "the repetition's upper bound is below its lower one"},
        {"a{1001}", 2, "more than 1000 repetitions"},
        {"a{1,99999999999999999999}", 2, "more than 1000 repetitions"},
        {"(a)\\1", 4, "back-references can take forever; not supported"},
        {"a\\", 2, "a backslash at the end"},
        {"a\\b", 2, "no such escape: there are \\d \\w \\s \\t \\n \\r"},
        {"[\\b]", 2, "no such escape: there are \\d \\w \\s \\t \\n \\r"},
        {"(x{100}){100}", 9, "too large: with all repetitions written out it takes more than 2048 steps"},
        {"\xff", 1, "not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arena arena = {0};
        struct pattern *p;
        struct pattern_budget budget = plenty;
        struct errbuf err = {0};
        u32 column;
        if (pattern_compile(slice_str(cases[i].pattern), &budget, &arena, &p, &column, &err) == ST_OK)
            fail_msg("%s is accepted", cases[i].pattern);
        assert_null(p);
        if (column != cases[i].column || (cases[i].why && strcmp(err.text, cases[i].why) != 0))
            fail_msg("%s: %s at %u", cases[i].pattern, err.text, column);
        arena_clear(&arena);
    }
}

/* ---- against the C library */

static const char *const characters[] = {"a", "b", "c", "\xc3\xa9", "\xf0\x9f\x98\x80"};

enum { DEPTH = 3 };

static void put_random(struct buf *b, struct rng *r, int depth);

static void put_random_atom(struct buf *b, struct rng *r, int depth) {
    static const char *const fixed[] = {".",    "[ab]",          "[^a]", "[a-c]",       "[^b-c]", "[[:xdigit:]]",
                                        "[]a]", "[^[:upper:]b]", "\\.",  "[b\xc3\xa9]", "()",     "a"};
    u64 kind = rng_below(r, 10);
    if (kind < 4) {
        buf_slice_add(b, slice_str(characters[rng_below(r, 5)]));
    } else if (kind < 7 || depth == 0) {
        buf_slice_add(b, slice_str(fixed[rng_below(r, sizeof fixed / sizeof fixed[0])]));
    } else {
        buf_char(b, '(');
        put_random(b, r, depth - 1);
        buf_char(b, ')');
    }
}

/* The C library loses an anchor in a group that it writes down twice: "(b|^c)+d" matches bcd there. So anchors
 * stand in groups, or + and counts are used. */
static bool counts;

static void put_random_piece(struct buf *b, struct rng *r, int depth) {
    static const char *const repetitions[] = {"*", "?", "+", "{2}", "{0,1}", "{1,}", "{0,2}", "{1,3}", "{0}", "{2,3}"};
    u64 kind = rng_below(r, 14);
    if (kind < 2 && (!counts || depth == DEPTH)) {
        buf_char(b, "^$"[kind]);
    } else {
        put_random_atom(b, r, depth);
        if (rng_below(r, 2)) buf_slice_add(b, slice_str(repetitions[rng_below(r, counts ? 10 : 2)]));
    }
}

static void put_random(struct buf *b, struct rng *r, int depth) {
    for (u64 alternatives = 1 + rng_below(r, 5) / 3; alternatives; alternatives--) {
        for (u64 pieces = rng_below(r, 4) + (depth > 1); pieces; pieces--) put_random_piece(b, r, depth);
        if (alternatives > 1) buf_char(b, '|');
    }
}

static void agrees_with_the_c_library_on_random_patterns(void **state) {
    (void)state;
    struct rng r;
    struct buf pattern = {0}, text = {0};
    u64 compared = 0, matched = 0;
    rng_seed(&r, 9);
    if (!setlocale(LC_ALL, "C.UTF-8")) fail_msg("no UTF-8 locale");
    for (int round = 0; round < 20000; round++) {
        regex_t other;
        buf_reset(&pattern);
        counts = rng_below(&r, 2);
        put_random(&pattern, &r, DEPTH);
        buf_char(&pattern, '\0');
        slice said = slice_of(pattern.p, pattern.len - 1);
        if (said.n > PATTERN_BYTES_MAX || regcomp(&other, pattern.p, REG_EXTENDED | REG_NOSUB) != 0) continue;
        struct pair p = make_pair(said);
        for (int i = 0; i < 6; i++) {
            buf_reset(&text);
            for (u64 n = rng_below(&r, 8); n; n--) {
                slice one = slice_str(characters[rng_below(&r, 5)]);
                for (u64 times = rng_below(&r, 4) ? 1 : rng_below(&r, 20); times; times--) buf_slice_add(&text, one);
            }
            buf_char(&text, '\0');
            bool expected = regexec(&other, text.p, 0, NULL, 0) == 0, got = found(&p, slice_of(text.p, text.len - 1));
            if (got != expected) fail_msg("%s in \"%s\": the C library says %d", pattern.p, text.p, expected);
            compared++;
            matched += expected;
        }
        regfree(&other);
        free_pair(&p);
    }
    assert_true(compared > 80000 && matched > compared / 5 && matched < compared * 4 / 5);
    buf_free(&pattern);
    buf_free(&text);
}

/* ---- what it costs */

/* The steps visited in a text of n characters, as bad as it gets for them. */
static u64 work_in(const char *pattern, struct pattern_budget budget, u32 n) {
    struct made m = make(slice_str(pattern), budget);
    struct rng r;
    u64 most = 0;
    rng_seed(&r, n);
    for (int kind = 0; kind < 3; kind++) {
        struct buf text = {0};
        for (u32 i = 0; i < n; i++) buf_char(&text, kind == 0 ? 'a' : kind == 1 ? "ab"[rng_below(&r, 2)] : 'b');
        u64 work = 0;
        pattern_match(m.pattern, buf_slice(&text), &work);
        if (work > most) most = work;
        buf_free(&text);
    }
    arena_clear(&m.arena);
    return most;
}

/* Each of these takes the C library seconds, gigabytes or the whole stack. */
static const char *const hard[] = {
    "(.?){999}y",           "(a?){500}(a){500}y", "(a*)*y",
    "((a|b)*a)(a|b){400}y", "^(a|aa)+$",          "(((a*)*)*)*y",
    "^.{1,500}b.{1,500}y$", "(a|b|ab)*c",         "(x+x+)+y",
    "(a+){0,400}y",         "^(([a-b])+.)+[A-Z]", "(.*)(.*)(.*)(.*)y",
    "[ab]{0,900}[^a]y",
};

static void matching_never_visits_more_than_all_steps_for_each_character(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hard / sizeof hard[0]; i++) {
        for (int program = 0; program < 2; program++) {
            u64 work = work_in(hard[i], program ? no_automaton : plenty, 1000);
            if (work > 1002 * 2 * (u64)PATTERN_STATES_MAX) fail_msg("%s: %llu", hard[i], (unsigned long long)work);
        }
    }
}

static void matching_is_linear_in_the_text(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof hard / sizeof hard[0]; i++) {
        u64 some = work_in(hard[i], no_automaton, 2000), more = work_in(hard[i], no_automaton, 8000);
        if (more > 5 * some + 1000)
            fail_msg("%s: %llu, then %llu", hard[i], (unsigned long long)some, (unsigned long long)more);
    }
}

static void what_people_write_is_one_look_up_for_each_character(void **state) {
    (void)state;
    static const char *const common[] = {
        "^pi_[A-Za-z0-9]+$",
        "^[0-9a-f-]+$",
        "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
        "^[^@]+@[^@]+\\.[a-z]{2,}$",
        "^[0-9]{4}-[0-9]{2}-[0-9]{2}(T.*)?$",
        "^.{1,1000}$",
        "^(EUR|USD|GBP)$",
        "^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$",
        "error|warning|fatal",
        "(.?){999}y",
        "^https?://[^/ ]+(/[^ ]*)?$",
        "^\\+?[0-9 ()-]{6,20}$",
    };
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        struct made m = make(slice_str(common[i]), plenty);
        if (!pattern_is_automaton(m.pattern)) fail_msg("%s has no automaton", common[i]);
        arena_clear(&m.arena);
        assert_true(work_in(common[i], plenty, 1000) <= 1000);
    }
}

/* 210 bytes that overflow the C library's stack, and their like: a bounded pattern or an error, always in bounded work. */
static void compiling_is_bounded_whatever_the_pattern(void **state) {
    (void)state;
    static const char *const bombs[] = {"((%s)){1000}", "(%s){1000}", "((((((((%s))))))))", "(((%s)*)*)*",
                                        "(%s){0,9}{2}"};
    static const char *const fill[] = {"a?", "(", "a|", "[^a-z]?", "(a", ".*"};
    for (size_t i = 0; i < sizeof bombs / sizeof bombs[0]; i++) {
        for (size_t k = 0; k < sizeof fill / sizeof fill[0]; k++) {
            struct buf inner = {0}, all = {0};
            struct arena arena = {0};
            struct pattern_budget budget = plenty;
            struct pattern *p;
            struct errbuf err = {0};
            u32 column;
            while (inner.len < 200) buf_slice_add(&inner, slice_str(fill[k]));
            buf_char(&inner, '\0');
            size_t hole = (size_t)(strstr(bombs[i], "%s") - bombs[i]);
            buf_add(&all, bombs[i], hole);
            buf_slice_add(&all, slice_str(inner.p));
            buf_slice_add(&all, slice_str(bombs[i] + hole + 2));
            hx_st st = pattern_compile(buf_slice(&all), &budget, &arena, &p, &column, &err);
            assert_true(st == ST_OK ? p != NULL : err.text[0] && column >= 1 && column <= all.len + 1);
            buf_free(&inner);
            buf_free(&all);
            arena_clear(&arena);
        }
    }
}

/* Patterns of one schema share what there is: the first take it, the later get errors, not memory. */
static void patterns_share_their_budget(void **state) {
    (void)state;
    struct arena arena = {0};
    struct pattern_budget budget = {1000, 100, 1000};
    struct pattern *p;
    struct errbuf err = {0};
    u32 column;
    assert_int_equal(pattern_compile(SL("^a{600}$"), &budget, &arena, &p, &column, &err), ST_OK);
    assert_false(pattern_is_automaton(p));
    assert_true(budget.states < 400);
    assert_int_equal(pattern_compile(SL("^a{600}$"), &budget, &arena, &p, &column, &err), ST_INVALID);
    assert_non_null(strstr(err.text, "what other patterns have left, "));
    assert_int_equal(column, 3);
    arena_clear(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_language_means),
        cmocka_unit_test(nul_and_newline_are_characters_like_others),
        cmocka_unit_test(what_is_not_in_the_language_is_refused_with_its_place),
        cmocka_unit_test(agrees_with_the_c_library_on_random_patterns),
        cmocka_unit_test(matching_never_visits_more_than_all_steps_for_each_character),
        cmocka_unit_test(matching_is_linear_in_the_text),
        cmocka_unit_test(what_people_write_is_one_look_up_for_each_character),
        cmocka_unit_test(compiling_is_bounded_whatever_the_pattern),
        cmocka_unit_test(patterns_share_their_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
