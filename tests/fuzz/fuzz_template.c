/* Templates, fingerprints and schemas on arbitrary bytes: the first line is what a config says, the rest a payload.
 *  - the tape accepts what the cursor accepts, and refuses the rest with the same words at the same byte;
 *  - an error of a template names a byte of it or its end;
 *  - a key is 1 to 255 bytes of UTF-8 without control characters;
 *  - white space around the payload changes neither key nor schema verdict nor fingerprint by meaning. */
#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static void walk(struct json *j) {
    slice name;
    switch (json_peek(j)) {
    case JSON_OBJECT:
        json_object(j);
        while (json_member(j, &name)) walk(j);
        return;
    case JSON_ARRAY:
        json_array(j);
        while (json_element(j)) walk(j);
        return;
    default:
        json_skip(j);
    }
}

static void check_tape(slice text) {
    struct json_tape t = {0};
    struct json j;
    json_init(&j, text);
    walk(&j);
    bool expected = json_end(&j);
    CHECK(json_tape_read(&t, text) == expected);
    CHECK(expected || (strcmp(t.error, j.error) == 0 && t.error_at == j.error_at));
    for (u32 i = 0; expected && i < t.count; i++) CHECK(t.at[i].next > i && t.at[i].next <= t.count);
    if (expected) { /* then each part of it is the beginning of a text, and says some of the same */
        u32 count = t.count;
        CHECK(json_tape_read_cut(&t, slice_of(text.p, text.n - text.n / 3)) || t.count == 0);
        CHECK(t.count <= count);
        for (u32 i = 0; i < t.count; i++) CHECK(t.at[i].next > i && t.at[i].next <= t.count);
    } else if (json_tape_read_cut(&t, text)) {
        for (u32 i = 0; i < t.count; i++) CHECK(t.at[i].next > i && t.at[i].next <= t.count);
    }
    json_free(&j);
    json_tape_free(&t);
}

/* Any header there is a wish for, from the payload's bytes. */
static slice header(void *ctx, slice name) {
    const slice *payload = ctx;
    return name.n % 2 ? *payload : (slice){0};
}

struct outcome {
    enum template_verdict verdict;
    struct buf key;
    bool passed;
    u64 fingerprint;
};

static struct outcome look(const struct template *t, const struct schema *s, const struct fingerprint *f,
                           slice payload) {
    static const struct siphash_key hash_key = {3, 4};
    struct payload_view v = {0};
    struct errbuf why = {0};
    struct outcome o = {0};
    slice trimmed = payload;
    while (trimmed.n && *trimmed.p == ' ') trimmed = slice_of(trimmed.p + 1, trimmed.n - 1);
    payload_view_init(&v, payload, SL(""), header, &trimmed);
    if (t) o.verdict = template_eval(t, &v, &o.key, &why);
    if (s) o.passed = schema_check(s, &v, &why);
    if (f) o.fingerprint = fingerprint_eval(f, &v, &hash_key);
    if (v.state != VIEW_JSON) o.fingerprint = 0;
    payload_view_free(&v);
    return o;
}

static void check_payload(const struct template *t, const struct schema *s, const struct fingerprint *f,
                          slice payload) {
    struct buf spaced = {0};
    buf_lit(&spaced, " ");
    buf_slice_add(&spaced, payload);
    struct outcome a = look(t, s, f, payload), b = look(t, s, f, buf_slice(&spaced));
    CHECK(a.verdict == b.verdict && a.passed == b.passed && a.fingerprint == b.fingerprint);
    CHECK(slice_eq(buf_slice(&a.key), buf_slice(&b.key)));
    if (t && a.verdict == TEMPLATE_OK)
        CHECK(a.key.len > 0 && a.key.len <= 255 && utf8_valid(buf_slice(&a.key)) && !has_control(buf_slice(&a.key)));
    buf_free(&a.key);
    buf_free(&b.key);
    buf_free(&spaced);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
    slice said, payload;
    slice_cut(slice_of(data, size), '\n', &said, &payload);
    check_tape(payload);
    struct template *t = NULL;
    struct schema *s = NULL;
    struct fingerprint *f = NULL;
    struct errbuf err = {0};
    struct tree tree;
    u32 column;
    if (template_compile(said, &t, &column, &err) != ST_OK) CHECK(err.text[0] && column >= 1 && column <= said.n + 1);
    if (tree_from_yaml(said, "said", &tree, &err) == ST_OK) {
        schema_from_tree(tree.root, &s, &err);
        fingerprint_from_tree(tree.root, &f, &err);
        tree_free(&tree);
    }
    check_payload(t, s, f, payload);
    template_free(t);
    schema_free(s);
    fingerprint_free(f);
    return 0;
}
