#include "core/alive.h"

#define PIECE_BYTES (ALIVE_WORDS * sizeof(u64))

static u64 piece_of(u64 pos) {
    return pos >> ALIVE_PIECE_BITS;
}
static u32 bit_of(u64 pos) {
    return (u32)(pos / ALIVE_STRETCH) % (ALIVE_WORDS * 64);
}
static u64 **piece_at(const struct alive *a, u64 number) {
    return &a->pieces[number & (a->cap - 1)];
}

static void piece_free(struct alive *a, u64 **piece) {
    if (!*piece) return;
    a->bytes -= PIECE_BYTES;
    mem_free(*piece);
    *piece = NULL;
}

void alive_free(struct alive *a) {
    alive_drop(a, a->beyond << ALIVE_PIECE_BITS);
    mem_free(a->pieces);
    *a = (struct alive){0};
}

static void grow(struct alive *a, u64 pieces) {
    struct alive wider = {.cap = a->cap ? a->cap : 64};
    while (wider.cap < pieces) wider.cap *= 2;
    wider.pieces = mem_zalloc(wider.cap * sizeof *wider.pieces);
    for (u64 i = a->first; i < a->beyond; i++) *piece_at(&wider, i) = *piece_at(a, i);
    mem_free(a->pieces);
    a->bytes += (wider.cap - a->cap) * sizeof *wider.pieces;
    a->pieces = wider.pieces;
    a->cap = wider.cap;
}

void alive_note(struct alive *a, u64 pos, bool counted) {
    u64 number = piece_of(pos);
    if (a->first == a->beyond) a->first = a->beyond = number;
    CHECK(number >= a->first);
    if (number - a->first >= a->cap) grow(a, number - a->first + 1);
    if (number >= a->beyond) a->beyond = number + 1;
    u64 **piece = piece_at(a, number);
    if (!*piece) {
        *piece = mem_zalloc(PIECE_BYTES);
        a->bytes += PIECE_BYTES;
    }
    u64 *word = &(*piece)[bit_of(pos) / 64], bit = (u64)1 << bit_of(pos) % 64;
    a->count += counted && !(*word & bit);
    *word |= bit;
}

static u64 *word_of(const struct alive *a, u64 pos) {
    u64 number = piece_of(pos);
    if (number < a->first || number >= a->beyond || !*piece_at(a, number)) return NULL;
    return &(*piece_at(a, number))[bit_of(pos) / 64];
}

void alive_over(struct alive *a, u64 pos) {
    u64 *word = word_of(a, pos), bit = (u64)1 << bit_of(pos) % 64;
    bool dropped = piece_of(pos) < a->first;
    a->count -= dropped || (word && (*word & bit));
    if (word) *word &= ~bit;
}

void alive_near(const struct alive *a, u64 pos) {
    const u64 *word = word_of(a, pos);
    if (word) near(word);
}

static u64 next_in_piece(const u64 *piece, u32 bit) {
    for (u32 word = bit / 64; word < ALIVE_WORDS; word++, bit = 0) {
        u64 left = piece[word] >> bit % 64 << bit % 64;
        if (left) return (u64)word * 64 + (u32)__builtin_ctzll(left);
    }
    return ALIVE_NONE;
}

u64 alive_next(const struct alive *a, u64 from, u64 upto) {
    u64 number = piece_of(from);
    if (number < a->first) from = (number = a->first) << ALIVE_PIECE_BITS;
    for (; number < a->beyond && from < upto; from = ++number << ALIVE_PIECE_BITS) {
        const u64 *piece = *piece_at(a, number);
        u64 bit = piece ? next_in_piece(piece, bit_of(from)) : ALIVE_NONE;
        u64 at = (number << ALIVE_PIECE_BITS) + bit * ALIVE_STRETCH;
        if (bit != ALIVE_NONE) return at < upto ? at : ALIVE_NONE;
    }
    return ALIVE_NONE;
}

void alive_drop(struct alive *a, u64 before) {
    for (; a->first < a->beyond && a->first < piece_of(before); a->first++) piece_free(a, piece_at(a, a->first));
}
