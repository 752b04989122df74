#include "core/needed.h"

#define PIECE_BYTES (NEEDED_WORDS * sizeof(u64))

static u64 piece_of(u64 pos) {
    return pos >> NEEDED_PIECE_BITS;
}
static u32 bit_of(u64 pos) {
    return (u32)(pos / NEEDED_STRETCH) % (NEEDED_WORDS * 64);
}
static u64 **piece_at(const struct needed *n, u64 number) {
    return &n->pieces[number & (n->cap - 1)];
}

static void piece_free(struct needed *n, u64 **piece) {
    if (!*piece) return;
    n->bytes -= PIECE_BYTES;
    mem_free(*piece);
    *piece = NULL;
}

void needed_free(struct needed *n) {
    needed_drop(n, n->beyond << NEEDED_PIECE_BITS);
    mem_free(n->pieces);
    *n = (struct needed){0};
}

static void grow(struct needed *n, u64 pieces) {
    struct needed wider = {.cap = n->cap ? n->cap : 64};
    while (wider.cap < pieces) wider.cap *= 2;
    wider.pieces = mem_zalloc(wider.cap * sizeof *wider.pieces);
    for (u64 i = n->first; i < n->beyond; i++) *piece_at(&wider, i) = *piece_at(n, i);
    mem_free(n->pieces);
    n->bytes += (wider.cap - n->cap) * sizeof *wider.pieces;
    n->pieces = wider.pieces;
    n->cap = wider.cap;
}

void needed_note(struct needed *n, u64 pos, bool counted) {
    u64 number = piece_of(pos);
    if (n->first == n->beyond) n->first = n->beyond = number;
    CHECK(number >= n->first);
    if (number - n->first >= n->cap) grow(n, number - n->first + 1);
    if (number >= n->beyond) n->beyond = number + 1;
    u64 **piece = piece_at(n, number);
    if (!*piece) {
        *piece = mem_zalloc(PIECE_BYTES);
        n->bytes += PIECE_BYTES;
    }
    u64 *word = &(*piece)[bit_of(pos) / 64], bit = (u64)1 << bit_of(pos) % 64;
    n->count += counted && !(*word & bit);
    *word |= bit;
}

static u64 *word_of(const struct needed *n, u64 pos) {
    u64 number = piece_of(pos);
    if (number < n->first || number >= n->beyond || !*piece_at(n, number)) return NULL;
    return &(*piece_at(n, number))[bit_of(pos) / 64];
}

void needed_over(struct needed *n, u64 pos) {
    u64 *word = word_of(n, pos), bit = (u64)1 << bit_of(pos) % 64;
    bool dropped = piece_of(pos) < n->first;
    n->count -= dropped || (word && (*word & bit));
    if (word) *word &= ~bit;
}

void needed_near(const struct needed *n, u64 pos) {
    const u64 *word = word_of(n, pos);
    if (word) near(word);
}

static u64 next_in_piece(const u64 *piece, u32 bit) {
    for (u32 word = bit / 64; word < NEEDED_WORDS; word++, bit = 0) {
        u64 left = piece[word] >> bit % 64 << bit % 64;
        if (left) return (u64)word * 64 + (u32)__builtin_ctzll(left);
    }
    return NEEDED_NONE;
}

u64 needed_next(const struct needed *n, u64 from, u64 upto) {
    u64 number = piece_of(from);
    if (number < n->first) from = (number = n->first) << NEEDED_PIECE_BITS;
    for (; number < n->beyond && from < upto; from = ++number << NEEDED_PIECE_BITS) {
        const u64 *piece = *piece_at(n, number);
        u64 bit = piece ? next_in_piece(piece, bit_of(from)) : NEEDED_NONE;
        u64 at = (number << NEEDED_PIECE_BITS) + bit * NEEDED_STRETCH;
        if (bit != NEEDED_NONE) return at < upto ? at : NEEDED_NONE;
    }
    return NEEDED_NONE;
}

void needed_drop(struct needed *n, u64 before) {
    for (; n->first < n->beyond && n->first < piece_of(before); n->first++) piece_free(n, piece_at(n, n->first));
}
