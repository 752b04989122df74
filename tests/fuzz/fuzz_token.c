/* Tokens and ids: only what this broker made is taken for its own. */
#include "core/core.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t n);

int LLVMFuzzerTestOneInput(const u8 *data, size_t n) {
    static struct core *core;
    if (!core) core = core_new(&(struct core_options){.hash_key = {3, 4}});
    struct token t;
    slice text = slice_of(data, n);
    struct buf made = {0};
    if (core_token_parse(core, text, &t) == TOKEN_OK) {
        struct ref ref = {.hash = t.hash, .seq = t.seq};
        core_token_text(core, &ref, t.fence, &made);
        CHECK(slice_eq(buf_slice(&made), text));
    }
    buf_reset(&made);
    u64 seq, hash;
    if (core_id_parse(text, &seq, &hash)) {
        struct ref ref = {.hash = hash, .seq = seq};
        core_id_text(&ref, &made);
        CHECK(slice_eq_nocase(buf_slice(&made), text));
    }
    buf_free(&made);
    return 0;
}
