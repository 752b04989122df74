/* Ids and tokens: what a message is called outside.
 *
 * An id is the admission number and the key's hash, in hex. A token adds the lease's fence, a keyed code over all three,
 * so that nobody can make one up, and a checksum, so that a garbled one is told from one of another broker. */
#include "core/core_priv.h"

#define TOKEN_BYTES 36u

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

/* A code is a chain of steps that wait for each other; those of several tokens are made side by side. */
void core_token_codes(const struct core *c, const struct token **tokens, u32 count, u64 *codes) {
    struct siphash_key k = {c->options.hash_key.k1, ~c->options.hash_key.k0};
    slice texts[TOKENS_TOGETHER];
    CHECK(count <= TOKENS_TOGETHER);
    for (u32 i = 0; i < count; i++) texts[i] = slice_of(tokens[i], sizeof *tokens[i]);
    siphash_each(&k, texts, count, codes);
}

void core_token_put(const struct token *t, u64 code, char out[TOKEN_TEXT]) {
    char bytes[TOKEN_BYTES];
    struct buf text = {.p = out, .cap = TOKEN_TEXT + 4}; /* encoding asks for a little more than it fills */
    memcpy(bytes, t, sizeof *t);
    put_u64(bytes + 24, code);
    put_u32(bytes + 32, crc32c(0, bytes, 32));
    buf_base64url(&text, slice_of(bytes, sizeof bytes));
    CHECK(text.p == out && text.len == TOKEN_TEXT);
}

bool core_token_split(slice text, struct token *out, u64 *code) {
    char room[64]; /* so does decoding */
    struct buf bytes = {.p = room, .cap = sizeof room};
    if (text.n != TOKEN_TEXT || !buf_base64url_decode(&bytes, text)) return false;
    CHECK(bytes.p == room && bytes.len == TOKEN_BYTES);
    if (get_u32(room + 32) != crc32c(0, room, 32)) return false;
    memcpy(out, room, sizeof *out);
    *code = get_u64(room + 24);
    return true;
}

void core_token_text(const struct core *c, const struct ref *ref, u64 fence, struct buf *out) {
    const struct token t = {.hash = ref->hash, .seq = ref->seq, .fence = fence}, *one = &t;
    u64 code;
    core_token_codes(c, &one, 1, &code);
    buf_grow(out, TOKEN_TEXT);
    core_token_put(&t, code, out->p + out->len);
    out->len += TOKEN_TEXT;
}

enum token_verdict core_token_parse(const struct core *c, slice text, struct token *out) {
    const struct token *one = out;
    u64 said, code;
    if (!core_token_split(text, out, &said)) return TOKEN_INVALID;
    core_token_codes(c, &one, 1, &code);
    return said == code ? TOKEN_OK : TOKEN_FOREIGN;
}
