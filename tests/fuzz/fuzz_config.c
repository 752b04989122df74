/* Config files and PUT bodies of arbitrary bytes. Besides surviving them:
 *  - a refusal is lines, with their places when it is a file, and not too many;
 *  - what is accepted shows itself as JSON that is accepted again and makes the same queue, and so does what was said;
 *  - lint and explain have something to say about every queue that loads. */
#include "config/explain.h"
#include "config/lint.h"
#include "config/tree.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

/* `place`: what every line but the one that counts the others begins with. */
static void check_refusal(const struct buf *errors, slice place) {
    slice rest = buf_slice(errors), line;
    u32 lines = 0;
    CHECK(rest.n > 0);
    for (; slice_cut(rest, '\n', &line, &rest); lines++) {
        CHECK(line.n > 0 && line.n < sizeof(struct errbuf));
        for (size_t i = 0; i < line.n; i++) CHECK((u8)line.p[i] >= 0x20);
        CHECK(slice_starts(line, place) || (lines == TREE_MISTAKES_MAX && slice_starts(line, SL("and "))));
    }
    CHECK(line.n == 0 && lines <= TREE_MISTAKES_MAX + 1);
}

static void check_same(const struct queue_config *q, slice json) {
    struct queue_config *again;
    struct buf errors = {0};
    CHECK(config_queue_from_json(q->name, json, SECRETS_AS_WRITTEN, &again, &errors) == ST_OK);
    CHECK(config_queue_equal(q, again));
    CHECK(rules_equal(&q->rules, &again->rules));
    config_queue_free(again);
}

static void check_queue(const struct queue_config *q) {
    struct buf b = {0};
    config_queue_to_json(q, &b);
    check_same(q, buf_slice(&b));
    check_same(q, q->json);
    buf_reset(&b);
    explain_queue(q, &b);
    CHECK(b.len > 0);
    buf_free(&b);
}

static void check_config(const struct config *c) {
    struct lint_report report = {0};
    struct buf diff = {0};
    lint_run(c, &report);
    lint_free(&report);
    for (u32 i = 0; i < c->queues.count; i++) check_queue(c->queues.at[i]);
    config_diff(c, c, &diff);
    CHECK(diff.len == 0);
    buf_free(&diff);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
    slice text = slice_of(data, size);
    struct buf errors = {0};
    struct config *c;
    if (config_parse(text, "f", &(struct config_use){0}, &c, &errors) == ST_OK)
        check_config(c);
    else
        check_refusal(&errors, SL("f:"));
    config_free(c);
    buf_reset(&errors);
    struct queue_config *q;
    if (config_queue_from_json(SL("q"), text, SECRETS_AS_WRITTEN, &q, &errors) == ST_OK)
        check_queue(q);
    else
        check_refusal(&errors, SL(""));
    config_queue_free(q);
    buf_free(&errors);
    return 0;
}
