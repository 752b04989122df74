/* Config files and PUT bodies of arbitrary bytes. Besides surviving them:
 *  - a refusal is one line, and with a place when it is a file;
 *  - what is accepted shows itself as JSON that is accepted again and makes the same queue, and so does what was said;
 *  - lint and explain have something to say about every queue that loads. */
#include "config/explain.h"
#include "config/lint.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t size);

static void check_refusal(const struct errbuf *err) {
    size_t n = strnlen(err->text, sizeof(err->text));
    CHECK(n > 0 && n < sizeof(err->text));
    for (size_t i = 0; i < n; i++) CHECK((u8)err->text[i] >= 0x20);
}

static void check_same(const struct queue_config *q, slice json) {
    struct queue_config *again;
    struct errbuf err;
    CHECK(config_queue_from_json(q->name, json, &again, &err) == ST_OK);
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
    struct errbuf err = {0};
    struct config *c;
    if (config_parse(text, "f", SECRETS_AS_WRITTEN, &c, &err) == ST_OK) {
        check_config(c);
    } else {
        check_refusal(&err);
        CHECK(slice_starts(slice_str(err.text), SL("f:")));
    }
    config_free(c);
    struct queue_config *q;
    if (config_queue_from_json(SL("q"), text, &q, &err) == ST_OK)
        check_queue(q);
    else
        check_refusal(&err);
    config_queue_free(q);
    return 0;
}
