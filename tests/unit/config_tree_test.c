/* Documents as trees: what is let in, where things are, and that everything else gets one line that says where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/tree.h"

/* The tree as text, so that a whole shape is one comparison: maps {a=..}, lists [..], quoted scalars 'x'. */
static void put_tree(struct buf *b, const struct node *n) {
    if (n->name) buf_printf(b, "%s=", n->name->text.p);
    if (n->kind == NODE_NULL) buf_lit(b, "null");
    if (n->kind == NODE_SCALAR) buf_printf(b, n->quoted ? "'%s'" : "%s", n->text.p);
    if (n->kind == NODE_MAP || n->kind == NODE_SEQ) {
        u32 count = 0;
        buf_char(b, n->kind == NODE_MAP ? '{' : '[');
        for (const struct node *c = n->first; c; c = c->next, count++) {
            if (c != n->first) buf_char(b, ' ');
            assert_ptr_equal(c->parent, n);
            put_tree(b, c);
        }
        buf_char(b, n->kind == NODE_MAP ? '}' : ']');
        assert_int_equal(count, n->count);
    }
}

typedef hx_st reader(slice text, const char *file, struct tree *out, struct errbuf *err);

static void assert_tree(reader *read, const char *text, const char *expected) {
    struct tree t;
    struct errbuf err = {0};
    struct buf b = {0};
    if (read(slice_str(text), "f", &t, &err) != ST_OK) fail_msg("%s: %s", text, err.text);
    put_tree(&b, t.root);
    buf_char(&b, '\0');
    assert_string_equal(b.p, expected);
    buf_free(&b);
    tree_free(&t);
}

static void assert_refused(reader *read, slice text, const char *expected) {
    struct tree t;
    struct errbuf err = {0};
    assert_int_equal(read(text, "f", &t, &err), ST_INVALID);
    assert_string_equal(err.text, expected);
    assert_null(t.arena);
}

static void yaml_becomes_maps_lists_and_scalars(void **state) {
    (void)state;
    assert_tree(tree_from_yaml, "a: 1\nb: [x, 'y', \"z\", ~, null, '']\nc: {d: {}, e: []}\nf:\n",
                "{a=1 b=[x 'y' 'z' null null ''] c={d={} e=[]} f=null}");
    assert_tree(tree_from_yaml, "\xEF\xBB\xBF# a mark of order, and a comment\na:\n  - b\n  - c: d\n", "{a=[b {c=d}]}");
    assert_tree(tree_from_yaml, "a: |\n  two\n  lines\n", "{a='two\nlines\n'}");
    assert_tree(tree_from_yaml, "just text", "just text");
    assert_tree(tree_from_yaml, "---\na: 1\n...\n", "{a=1}");
}

static void json_becomes_the_same(void **state) {
    (void)state;
    assert_tree(tree_from_json, "{\"a\":1,\"b\":[\"x\",true,null,-2.5e3],\"c\":{\"d\":{}, \"e\":[]}}",
                "{a=1 b=['x' true null -2.5e3] c={d={} e=[]}}");
    assert_tree(tree_from_json, " \"k\\u00f6\" ", "'k\xC3\xB6'");
}

static void every_node_knows_its_line_and_column(void **state) {
    (void)state;
    static const char yaml[] = "a: 1\nb:\n  \xC3\xBC: {c: [x, y]}\n", json[] = "{\"a\":1,\n \"b\":\n  {\"c\": [7, 8]}}";
    struct tree t;
    struct errbuf err;
    assert_int_equal(tree_from_yaml(slice_str(yaml), "f", &t, &err), ST_OK);
    const struct node *u = node_get(node_get(t.root, SL("b")), SL("\xC3\xBC")), *c = node_get(u, SL("c"));
    assert_int_equal(u->name->line, 3);
    assert_int_equal(u->name->column, 3);
    assert_int_equal(c->first->next->column, 14);
    node_error(c->first->next, &err, "no %s", "good");
    assert_string_equal(err.text, "f:3:14: b.\xC3\xBC.c[1]: no good");
    assert_null(node_get(t.root, SL("x")));
    assert_null(node_get(c, SL("x")));
    tree_free(&t);
    assert_int_equal(tree_from_json(slice_str(json), NULL, &t, &err), ST_OK);
    c = node_get(node_get(t.root, SL("b")), SL("c"));
    assert_int_equal(c->first->next->line, 3);
    assert_int_equal(c->first->next->column, 13);
    node_error(c->first->next, &err, "no good");
    assert_string_equal(err.text, "b.c[1]: no good");
    tree_free(&t);
}

static void assert_mistakes(const struct tree *t, const char *expected) {
    struct buf lines = {0};
    tree_put_mistakes(t, &lines);
    buf_char(&lines, '\0');
    assert_string_equal(lines.p, expected);
    buf_free(&lines);
}

static void a_queue_is_named_as_people_name_it(void **state) {
    (void)state;
    struct tree t;
    struct errbuf err;
    assert_int_equal(tree_from_yaml(SL("queues:\n  payments:\n    retry: {unknown: 3}\n"), "f", &t, &err), ST_OK);
    const struct node *queue = node_get(node_get(t.root, SL("queues")), SL("payments"));
    node_error(node_get(node_get(queue, SL("retry")), SL("unknown")), &err, "x\ny");
    assert_string_equal(err.text, "f:3:22: queue payments: retry.unknown: x y");
    node_error(queue, &err, "x");
    assert_mistakes(&t, "f:3:5: queue payments: x\nf:3:22: queue payments: retry.unknown: x y\n");
    assert_string_equal(err.text, "f:3:22: queue payments: retry.unknown: x y"); /* the first that was found */
    tree_free(&t);
}

static void reading_goes_on_behind_a_name_given_twice(void **state) {
    (void)state;
    struct tree t;
    assert_int_equal(tree_read(TREE_YAML, SL("a: 1\nb: {c: 1, c: 2, d: 3, c: 4}\na: 5\n"), "f", &t), ST_INVALID);
    assert_mistakes(&t, "f:2:11: b: c is given twice; first on line 2\n"
                        "f:2:23: b: c is given twice; first on line 2\n"
                        "f:3:1: a is given twice; first on line 1\n");
    assert_int_equal(t.root->count, 2);
    assert_int_equal(node_get(t.root, SL("b"))->count, 2);
    assert_true(slice_eq(node_get(t.root, SL("a"))->text, SL("1")));
    tree_free(&t);
    assert_int_equal(tree_read(TREE_YAML, SL("a: 1\na: 2\nb: [\n"), "f", &t), ST_INVALID);
    assert_null(t.root);
    tree_free(&t);
}

static void mistakes_are_counted_and_the_first_fifty_told(void **state) {
    (void)state;
    struct tree t;
    struct buf yaml = {0}, lines = {0};
    for (int i = 0; i < 500; i++) buf_lit(&yaml, "- x\n");
    assert_int_equal(tree_read(TREE_YAML, buf_slice(&yaml), "f", &t), ST_OK);
    for (const struct node *n = t.root->first; n; n = n->next) {
        node_error(n, NULL, "wrong");
        if (n->line < 5) node_error(n, NULL, "wrong"); /* told once */
    }
    tree_put_mistakes(&t, &lines);
    assert_true(slice_starts(buf_slice(&lines), SL("f:1:3: [0]: wrong\nf:2:3: [1]: wrong\n")));
    const char *last = "f:50:3: [49]: wrong\nand 450 more\n";
    assert_true(lines.len > strlen(last) && memcmp(lines.p + lines.len - strlen(last), last, strlen(last)) == 0);
    tree_free(&t);
    buf_free(&yaml);
    buf_free(&lines);
}

static void what_a_config_does_not_need_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        slice text;
        const char *error;
    } cases[] = {
        {SL("a: &x 1\n"), "f:1:4: anchors (&name) are not supported: write the value out"},
        {SL("a: &x [*x]\n"), "f:1:4: anchors (&name) are not supported: write the value out"},
        {SL("a: *x\n"), "f:1:4: aliases (*name) are not supported: write the value out"},
        {SL("a: !!int 1\n"), "f:1:4: tags (!name) are not supported"},
        {SL("a: !!python/object:os.system x\n"), "f:1:4: tags (!name) are not supported"},
        {SL("b: 1\n<<: {a: 1}\n"), "f:2:1: merge keys (<<) are not supported"},
        {SL("a: 1\nb: 2\na: 3\n"), "f:3:1: a is given twice; first on line 1"},
        {SL("q: {a: 1, 'a': 3}\n"), "f:1:11: q: a is given twice; first on line 1"},
        {SL("a:\n\tb: 1\n"), "f:2:1: a tab: indent with spaces"},
        {SL("a: 1\n---\nb: 2\n"), "f:2:1: a second document: one file is one document"},
        {SL("[a]: 1\n"), "f:1:1: a key must be a name"},
        {SL("{}: 1\n"), "f:1:1: a key must be a name"},
        {SL("? \n: 1\n"), "f:1:2: a key is missing before ':'"},
        {SL("a: b: c\n"), "f:1:5: a ':' where none can be: is the line above indented or quoted wrongly?"},
        {SL("a: [1, 2\nb: 3\n"),
         "f:2:2: YAML: did not find expected ',' or ']', while parsing a flow sequence begun on line 1"},
        {SL("a: 'open\n"),
         "f:2:1: YAML: found unexpected end of stream, while scanning a quoted scalar begun on line 1"},
        {SL("a: @x\n"), "f:1:4: YAML: found character that cannot start any token"},
        {SL("a: 1\nb: \0\n"), "f:2:4: a NUL byte"},
        {SL("a: 1\nb: \xC3\xBC\xFF\n"), "f:2:5: not UTF-8"},
        {SL("a: \xC3"), "f:1:4: not UTF-8"},
        {SL("\xFE\xFF\x00\x61"), "f:1:3: a NUL byte"},
        {SL("a: \x01\n"), "f:1:4: control characters are not allowed"},
        {SL(""), "f:1:1: the file is empty"},
        {SL("# nothing\n"), "f:1:1: the file is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(tree_from_yaml, cases[i].text, cases[i].error);
}

static void broken_json_is_refused_with_its_place(void **state) {
    (void)state;
    assert_refused(tree_from_json, SL(""), "f:1:1: JSON: the text ends where a value should be");
    assert_refused(tree_from_json, SL("{\"a\":1,\n\"a\":2}"), "f:2:1: JSON: repeated member name");
    assert_refused(tree_from_json, SL("{\"a\":01}"), "f:1:7: JSON: expected ',' or '}'");
    assert_refused(tree_from_json, SL("[1,]"), "f:1:4: JSON: expected a value");
    assert_refused(tree_from_json, SL("{\"\":1}"), "f:1:2: a key is missing before ':'");
    assert_refused(tree_from_json, SL("{} x"), "f:1:4: JSON: unexpected bytes after the value");
}

static void nothing_grows_without_bound(void **state) {
    (void)state;
    struct buf b = {0};
    for (int i = 0; i < 10 << 20; i++) buf_char(&b, 'x');
    assert_refused(tree_from_yaml, buf_slice(&b), "f:1:1: 10485760 bytes are too many: the limit is 1048576");
    buf_reset(&b);
    for (int i = 0; i < 100000; i++) buf_char(&b, '[');
    assert_refused(tree_from_yaml, buf_slice(&b), "f:1:33: nested deeper than 32 levels");
    assert_refused(tree_from_json, buf_slice(&b), "f:1:33: nested deeper than 32 levels");
    buf_reset(&b);
    for (int i = 0; i < 10001; i++) buf_printf(&b, "k%d:\n", i);
    assert_refused(tree_from_yaml, buf_slice(&b), "f:10001:1: more than 10000 entries in one map");
    buf_reset(&b);
    for (int i = 0; i < 12; i++) {
        buf_lit(&b, "-\n");
        for (int k = 0; k < 9000; k++) buf_lit(&b, " -\n");
    }
    assert_refused(tree_from_yaml, buf_slice(&b), "f:100000:3: more than 100000 values");
    buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml_becomes_maps_lists_and_scalars),
        cmocka_unit_test(json_becomes_the_same),
        cmocka_unit_test(every_node_knows_its_line_and_column),
        cmocka_unit_test(a_queue_is_named_as_people_name_it),
        cmocka_unit_test(reading_goes_on_behind_a_name_given_twice),
        cmocka_unit_test(mistakes_are_counted_and_the_first_fifty_told),
        cmocka_unit_test(what_a_config_does_not_need_is_refused_with_its_place),
        cmocka_unit_test(broken_json_is_refused_with_its_place),
        cmocka_unit_test(nothing_grows_without_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
