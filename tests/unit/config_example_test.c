/* hapax.example.yaml is the manual of the config: complete, true, and a file that loads. Run from the project's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/config_priv.h"
#include "config/lint.h"

#define EXAMPLE "hapax.example.yaml"

static void read_example(struct buf *out) {
    FILE *f = fopen(EXAMPLE, "r");
    assert_non_null(f);
    buf_grow(out, 1 << 18);
    out->len = fread(out->p, 1, 1 << 18, f);
    fclose(f);
}

/* Line `number` of the text, from 1, without blanks at its ends. */
static slice line_of(slice text, u32 number) {
    slice line = SL("");
    for (u32 i = 0; i < number; i++) slice_cut(text, '\n', &line, &text);
    return slice_trim(line);
}

/* The comment right above a line, as one text; then a blank. */
static void comment_above(slice text, u32 line, struct buf *out) {
    u32 from = line;
    while (from > 1 && slice_starts(line_of(text, from - 1), SL("#"))) from--;
    for (; from < line; from++) {
        slice s = line_of(text, from);
        buf_slice_add(out, slice_trim(slice_of(s.p + 1, s.n - 1)));
        buf_char(out, ' ');
    }
    buf_char(out, '\0');
}

static const struct node *find(const struct node *map, const char *path) {
    slice rest = slice_str(path), name;
    const struct node *n = map;
    while (n && slice_cut(rest, '.', &name, &rest)) n = node_get(n, name);
    return n ? node_get(n, name) : NULL;
}

/* In a map of every queue, or in the queue itself. */
static const struct node *in_any_queue(const struct node *root, const char *map, const char *path) {
    const struct node *n = NULL;
    for (const struct node *q = node_get(root, SL("queues"))->first; q && !n; q = q->next) {
        const struct node *at = map ? node_get(q, slice_str(map)) : q;
        n = at ? find(at, path) : NULL;
    }
    return n;
}

/* Where the example shows the key: at the top, in the first listener, relay, token, tenant, source or proxy, or in any queue. */
static const struct node *shown_at(const struct node *root, enum key_table scope, const char *path) {
    if (scope == TABLE_TOP) return find(root, path);
    if (scope == TABLE_LISTENER) return find(node_get(root, SL("listen"))->first, path);
    if (scope == TABLE_RELAY) return find(node_get(root, SL("relay"))->first, path);
    if (scope == TABLE_TOKEN) return find(node_get(root, SL("tokens"))->first, path);
    if (scope == TABLE_TENANT) return find(node_get(root, SL("tenants"))->first, path);
    if (scope == TABLE_SOURCE) return find(node_get(root, SL("sources"))->first, path);
    if (scope == TABLE_PROXY) return find(node_get(root, SL("proxies"))->first, path);
    const char *map = scope == TABLE_DELIVER ? "deliver" : scope == TABLE_RECONCILE ? "reconcile" : NULL;
    return in_any_queue(root, map, path);
}

static void every_key_is_shown_with_its_doc_its_default_and_its_unit(void **state) {
    (void)state;
    struct buf text = {0};
    struct tree tree;
    struct errbuf err;
    struct key_info k;
    read_example(&text);
    if (tree_from_yaml(buf_slice(&text), EXAMPLE, &tree, &err) != ST_OK) fail_msg("%s", err.text);
    for (int scope = 0; scope < TABLE_COUNT; scope++) {
        for (u32 i = 0; config_key((enum key_table)scope, i, &k); i++) {
            const struct node *n = shown_at(tree.root, (enum key_table)scope, k.path);
            struct buf comment = {0}, expected = {0};
            if (!n) fail_msg("%s is not in " EXAMPLE, k.path);
            comment_above(buf_slice(&text), n->name->line, &comment);
            buf_printf(&expected, "%s Default: %s (", k.doc, k.fallback);
            const char *first = strcmp(k.type, "a list") == 0 ? "a list of " : "one of ";
            for (size_t w = 0; k.names && k.names[w]; w++) buf_printf(&expected, "%s%s", w ? ", " : first, k.names[w]);
            buf_printf(&expected, "%s) ", k.names ? "" : k.type);
            buf_char(&expected, '\0');
            if (!strstr(comment.p, expected.p))
                fail_msg(EXAMPLE ":%u: %s\n  expected: %s\n  got:      %s", n->name->line, k.path, expected.p,
                         comment.p);
            buf_free(&comment);
            buf_free(&expected);
        }
    }
    tree_free(&tree);
    buf_free(&text);
}

static void it_loads_and_lint_finds_nothing(void **state) {
    (void)state;
    struct config *c;
    struct buf errors = {0};
    struct lint_report r = {0};
    if (config_load(EXAMPLE, &(struct config_use){0}, &c, &errors) != ST_OK)
        fail_msg("%.*s", (int)errors.len, errors.p);
    lint_run(c, &r);
    for (u32 i = 0; i < r.count; i++)
        fail_msg(EXAMPLE ":%u: %s: %s", r.at[i].at.line, r.at[i].rule->code, r.at[i].text);
    lint_free(&r);
    config_free(c);
}

/* "a.b: V" as YAML of one line: {a: {b: V}}. */
static void put_said(struct buf *b, const char *path, const char *value) {
    int depth = 0;
    for (const char *p = path; *p; p++) {
        if (*p == '.') {
            buf_lit(b, ": {");
            depth++;
        } else {
            buf_char(b, *p);
        }
    }
    buf_printf(b, ": %s", value);
    while (depth--) buf_char(b, '}');
}

/* The effective values of a scope when the file says just this. */
static void effective(enum key_table scope, const char *path, const char *value, struct buf *out) {
    static const char *const around[][2] = {
        [TABLE_TOP] = {"{", "}"},
        [TABLE_LISTENER] = {"listen: [{address: 127.0.0.1:1, ", "}]"},
        [TABLE_RELAY] = {"relay: [{dsn: d, queue: q, ", "}]"},
        [TABLE_TOKEN] = {"tokens: [{name: t, allow: [], sha256: "
                         "[0000000000000000000000000000000000000000000000000000000000000000], ",
                         "}]"},
        [TABLE_TENANT] = {"tenants: {t: {prefix: \"p.\", ", "}}"},
        [TABLE_SOURCE] = {"sources: {s: {queue: q, verify: {scheme: hmac, header: x, secrets: [s]}, ", "}}"},
        [TABLE_PROXY] = {"proxies: {p: {upstream: 'https://h', ", "}}"},
        [TABLE_QUEUE] = {"queues: {q: {", "}}"},
        [TABLE_DELIVER] = {"queues: {q: {deliver: {url: 'https://h/', ", "}}}"},
        [TABLE_RECONCILE] = {"queues: {q: {reconcile: {url: 'https://h/', ", "}}}"},
    };
    struct buf yaml = {0}, errors = {0};
    struct config *c;
    buf_slice_add(&yaml, slice_str(around[scope][0]));
    if (path) put_said(&yaml, path, value);
    buf_slice_add(&yaml, slice_str(around[scope][1]));
    if (config_parse(buf_slice(&yaml), "f", &(struct config_use){0}, &c, &errors) != ST_OK)
        fail_msg("%.*s: %.*s", (int)yaml.len, yaml.p, (int)errors.len, errors.p);
    const struct queue_config *q = c->queues.count ? c->queues.at[0] : NULL;
    const void *bases[] = {
        c, c->listen.at,          c->relays.at,           c->tokens.at, c->tenants.at, c->sources.at, c->proxies.at,
        q, q ? q->deliver : NULL, q ? q->reconcile : NULL};
    buf_reset(out);
    bind_put_json(&config_keys[scope], bases[scope], out);
    config_free(c);
    buf_free(&yaml);
}

/* Saying the default changes nothing; what has none is not shown. */
static void the_documented_defaults_are_the_real_ones(void **state) {
    (void)state;
    for (int scope = 0; scope < TABLE_COUNT; scope++) {
        struct buf unsaid = {0}, said = {0};
        struct key_info k;
        struct tree tree;
        struct errbuf err;
        effective((enum key_table)scope, NULL, NULL, &unsaid);
        assert_int_equal(tree_from_json(buf_slice(&unsaid), "f", &tree, &err), ST_OK);
        for (u32 i = 0; config_key((enum key_table)scope, i, &k); i++) {
            bool required = (scope == TABLE_LISTENER && i < 1) || (scope == TABLE_RELAY && i < 2) ||
                            (scope == TABLE_TOKEN && i < 3) || (scope == TABLE_TENANT && i < 1) ||
                            (scope == TABLE_SOURCE && i < 7) ||
                            (i < 1 && (scope == TABLE_PROXY || scope == TABLE_DELIVER || scope == TABLE_RECONCILE));
            if (required) continue;
            effective((enum key_table)scope, k.path, k.fallback, &said);
            if (!slice_eq(buf_slice(&said), buf_slice(&unsaid)))
                fail_msg("%s: %s is not the default\n%.*s\n%.*s", k.path, k.fallback, (int)unsaid.len, unsaid.p,
                         (int)said.len, said.p);
            if (strcmp(k.fallback, "none") == 0) assert_null(find(tree.root, k.path));
        }
        tree_free(&tree);
        buf_free(&unsaid);
        buf_free(&said);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_shown_with_its_doc_its_default_and_its_unit),
        cmocka_unit_test(it_loads_and_lint_finds_nothing),
        cmocka_unit_test(the_documented_defaults_are_the_real_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
