/* Ids and tokens: what a message is called outside.
 *
 * An id is the admission number and the key's hash, in hex. A token adds the lease's fence, a keyed code over all three,
 * so that nobody can make one up, and a checksum, so that a garbled one is told from one of another broker. */
#include "core/core_priv.h"

#define TOKEN_BYTES 36u

static u64 code(const struct core *c, const struct token *t) {
    struct siphash_key k = {c->options.hash_key.k1, ~c->options.hash_key.k0};
    return siphash(&k, t, sizeof *t);
}

char *core_id_write(const struct ref *ref, char *to) {
    u64 words[2] = {__builtin_bswap64(ref->seq), __builtin_bswap64(ref->hash)};
    return write_hex(to, slice_of(words, sizeof words));
}

void core_id_text(const struct ref *ref, struct buf *out) {
    buf_grow(out, ID_TEXT);
    buf_end_at(out, core_id_write(ref, buf_end(out)));
}

bool core_id_parse(slice text, u64 *seq, u64 *hash) {
    u8 bytes[16];
    if (text.n != ID_TEXT || !hex_decode(text, bytes, sizeof bytes)) return false;
    *seq = *hash = 0;
    for (u32 i = 0; i < 8; i++) {
        *seq = *seq << 8 | bytes[i];
        *hash = *hash << 8 | bytes[8 + i];
    }
    return true;
}

void core_token_text(const struct core *c, const struct ref *ref, u64 fence, struct buf *out) {
    struct token t = {.hash = ref->hash, .seq = ref->seq, .fence = fence};
    char bytes[TOKEN_BYTES];
    memcpy(bytes, &t, sizeof t);
    put_u64(bytes + 24, code(c, &t));
    put_u32(bytes + 32, crc32c(0, bytes, 32));
    buf_base64url(out, slice_of(bytes, sizeof bytes));
}

enum token_verdict core_token_parse(const struct core *c, slice text, struct token *out) {
    char room[64]; /* decoding asks for a little more than it fills */
    struct buf bytes = {.p = room, .cap = sizeof room};
    if (text.n != TOKEN_TEXT || !buf_base64url_decode(&bytes, text)) return TOKEN_INVALID;
    CHECK(bytes.p == room && bytes.len == TOKEN_BYTES);
    if (get_u32(room + 32) != crc32c(0, room, 32)) return TOKEN_INVALID;
    memcpy(out, room, sizeof *out);
    return get_u64(room + 24) == code(c, out) ? TOKEN_OK : TOKEN_FOREIGN;
}
