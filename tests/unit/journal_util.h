/* Shared by the journal's tests: numbered records whose body follows from their number, and what is known about them.
 */
#ifndef HAPAX_TESTS_JOURNAL_UTIL_H
#define HAPAX_TESTS_JOURNAL_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/log.h"
#include "journal/disk_sim.h"
#include "journal/file.h"

#define MODEL_MAX 20000

/* What the test knows: record i is where, and which ones the journal said are durable. A number that a crash took is
 * given again, with the same size and, in another life, another content: old bytes at the same place are not right. */
struct model {
    u64 pos[MODEL_MAX];
    u32 life, wrote[MODEL_MAX];
    u64 end;     /* numbers below this were appended */
    u64 acked;   /* numbers below this were covered by journal_durable */
    u64 dropped; /* numbers below this may be gone */
};

static inline size_t body_size(u64 number, size_t most) {
    struct rng r;
    rng_seed(&r, number * 7919 + 1);
    u64 kind = rng_below(&r, 10);
    size_t n = kind < 5 ? 8 + rng_below(&r, 60) : kind < 9 ? rng_below(&r, 600) : rng_below(&r, most + 1);
    return n < 8 ? 8 : n > most ? most : n;
}

static inline void body_fill(u8 *p, u64 number, u32 life, size_t n) {
    struct rng r;
    rng_seed(&r, number + ((u64)life << 32));
    memcpy(p, &number, 8);
    for (size_t i = 8; i < n; i++) p[i] = (u8)rng_next(&r);
}

static inline u64 body_number(const struct journal_record *rec) {
    assert_true(rec->body.n >= 8);
    return get_u64(rec->body.p);
}

/* Is this record exactly what was appended under its number? */
static inline bool body_right_in(const struct journal_record *rec, u32 life, size_t most) {
    u64 number = body_number(rec);
    size_t n = body_size(number, most);
    if (rec->body.n != n || rec->type != (u8)(number % 200) || rec->version != 1) return false;
    u8 *want = mem_alloc(n);
    body_fill(want, number, life, n);
    bool same = memcmp(want, rec->body.p, n) == 0;
    mem_free(want);
    return same;
}

static inline bool body_right(const struct journal_record *rec, size_t most) {
    return body_right_in(rec, 0, most);
}

static inline u64 append_number_in(struct journal *j, u64 number, u32 life, size_t most) {
    size_t n = body_size(number, most);
    u8 *p = journal_reserve(j, n + number % 3 * 8 <= most ? n + number % 3 * 8 : n);
    body_fill(p, number, life, n);
    return journal_append(j, (u8)(number % 200), 1, n);
}

static inline u64 append_number(struct journal *j, u64 number, size_t most) {
    return append_number_in(j, number, 0, most);
}

static inline void model_append(struct model *m, struct journal *j, size_t most) {
    assert_true(m->end < MODEL_MAX);
    m->pos[m->end] = append_number_in(j, m->end, m->life, most);
    m->wrote[m->end] = m->life;
    m->end++;
}

static inline void model_note_durable(struct model *m, struct journal *j) {
    u64 durable = journal_durable(j);
    while (m->acked < m->end && m->pos[m->acked] < durable) m->acked++;
}

static inline void model_drop_oldest(struct model *m, struct journal *j) {
    u64 upto = journal_oldest_end(j);
    if (upto == 0) return;
    journal_drop(j, upto);
    while (m->dropped < m->end && m->pos[m->dropped] < upto) m->dropped++;
}

struct replayed {
    struct model *m;
    size_t most;
    u64 first, next; /* numbers seen: first..next-1 */
    bool any, wrong;
    u64 last_pos;
    u64 pos[MODEL_MAX];
};

static inline hx_st replay_one(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    struct replayed *r = ctx;
    u64 number = body_number(rec);
    if (!r->any) r->first = r->next = number;
    r->any = true;
    if (number != r->next || number >= MODEL_MAX || rec->pos <= r->last_pos) r->wrong = true;
    if (!r->wrong && !body_right_in(rec, r->m->wrote[number], r->most)) r->wrong = true;
    if (number < MODEL_MAX) r->pos[number] = rec->pos;
    r->last_pos = rec->pos;
    r->next = number + 1;
    return ST_OK;
}

/* Replay must give a gapless run that begins at or before what may be gone and reaches at least `at_least`. */
static inline bool replay_is_right(const struct replayed *r, const struct model *m, u64 at_least) {
    if (r->wrong) return false;
    if (!r->any) return m->dropped >= at_least;
    return r->first <= m->dropped && r->next >= at_least && r->next <= m->end;
}

/* From here on what was replayed is what exists. */
static inline void model_adopt(struct model *m, const struct replayed *r) {
    m->end = r->any ? r->next : m->dropped;
    for (u64 i = r->any ? r->first : m->end; i < m->end; i++) m->pos[i] = r->pos[i];
    m->acked = m->end;
}

static inline void work_all(struct journal *j) {
    while (journal_file_work(j)) {
    }
}

#endif
