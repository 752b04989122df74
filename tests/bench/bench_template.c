/* What a queue's template, schema and fingerprint cost for one payload: nanoseconds, the best of several rounds.
 * bench_template [FILE]: the payload is a shipment's milestone of about 1 KiB, or the file's first megabyte.
 * bench_template --count N: each row N times, for counting its instructions where time says nothing:
 *   valgrind --tool=callgrind --toggle-collect=do_derived build/tests/bench_template --count 1000 */
#include <stdio.h>

#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

static const char milestone[] =
    "{\"specversion\":\"1.0\",\"type\":\"com.example.shipment.milestone\",\"source\":\"/tms/eu-west/terminal-gateway\","
    "\"id\":\"7f3c1a52-9f0e-4e6b-8a77-2f1d0c9be871\",\"time\":\"2026-03-14T09:26:53.589Z\","
    "\"shipmentId\":\"SHP-2026-0098127\",\"milestoneType\":\"GATE_OUT\",\"effectiveDate\":\"2026-03-14\","
    "\"container\":{\"number\":\"MSKU9070323\",\"isoType\":\"45G1\",\"sealNumbers\":[\"EU1234567\",\"MA998211\"],"
    "\"grossWeightKg\":24310.5,\"reefer\":false},\"location\":{\"unlocode\":\"NLRTM\",\"terminal\":\"ECT Delta\","
    "\"gate\":\"7B\",\"lat\":51.9536,\"lon\":4.0553},\"carrier\":{\"scac\":\"MAEU\",\"bookingRef\":\"MAEU588213907\","
    "\"voyage\":\"412W\",\"vessel\":\"EMMA MAERSK\"},\"amount\":18250,\"currency\":\"EUR\","
    "\"references\":[{\"kind\":\"PO\",\"value\":\"4500091822\"},{\"kind\":\"BL\",\"value\":\"MAEU588213907\"}],"
    "\"remarks\":\"Released by customs, driver Jan de Vries, plate 12-BXK-7, please collect before 18:00 at gate 7B\","
    "\"customer\":{\"id\":88123,\"name\":\"Freightworks Logistics BV\",\"email\":\"ops@freightworks.example\"},"
    "\"sent_at\":\"2026-03-14T09:26:54.012Z\",\"retry\":0,\"traceId\":\"4bf92f3577b34da6a3ce929d0e0e4736\",\"schema\":"
    "3}";

static const char template_said[] = "shipment-milestone:${shipmentId}:${milestoneType}:${effectiveDate}";
static const char schema_said[] = "required: [shipmentId, milestoneType, effectiveDate, customer.id]\n"
                                  "types: {shipmentId: string, amount: integer, customer.id: integer}\n"
                                  "enum: {milestoneType: [GATE_IN, GATE_OUT, LOADED, DISCHARGED]}\n"
                                  "max_length: {shipmentId: 64}\n";

/* As tests/bench/run has it: one field is the key, and a schema. */
static const char payment[] =
    "{\"payment_intent_id\":\"0f9c2a64-7d1e-4b58-9c33-a2b1c0d9e8f7\",\"amount\":129900,\"currency\":\"EUR\","
    "\"customer\":{"
    "\"id\":\"cus_8812\",\"name\":\"Zo\\u00eb "
    "Example\",\"address\":{\"city\":\"Hamburg\",\"zip\":\"20095\",\"country\":\"DE\"}},"
    "\"items\":[{\"sku\":\"A-1\",\"quantity\":2,\"price\":49950},{\"sku\":\"B-7\",\"quantity\":1,\"price\":30000}],"
    "\"captured\":true,\"risk\":0.125,\"refund\":null,\"sent_at\":\"2026-01-31T12:00:00.000Z\",\"note\":\"%0*d\"}";
static const char payment_key[] = "${payment_intent_id}";
static const char payment_schema[] = "required: [payment_intent_id, amount, currency]\n"
                                     "types: {amount: integer, customer.id: string}\n"
                                     "enum: {currency: [EUR, USD]}\n"
                                     "pattern: {payment_intent_id: '^[0-9a-f-]+$'}\n"
                                     "max_length: {payment_intent_id: 64}\n";

enum { ROUNDS = 200, ROUND_MS = 2 }; /* short, so that some of them are not disturbed */

struct bench {
    slice payload, payment;
    struct payload_view view;
    struct template *template, *payment_key;
    struct schema *schema, *payment_schema;
    struct fingerprint *ignore;
    struct siphash_key key;
    struct buf out;
    u64 sum; /* keeps the work from being optimised away */
};

static void fresh(struct bench *b) {
    payload_view_init(&b->view, b->payload, SL(""), NULL, NULL);
    buf_reset(&b->out);
}

static void do_bytes(struct bench *b) {
    fresh(b);
    b->sum += fingerprint_eval(NULL, &b->view, &b->key);
}

static void do_scan(struct bench *b) {
    fresh(b);
    b->sum += payload_view_json(&b->view);
}

static void do_template(struct bench *b) {
    struct errbuf why;
    fresh(b);
    b->sum += template_eval(b->template, &b->view, &b->out, &why);
}

static void do_schema(struct bench *b) {
    struct errbuf why;
    do_template(b);
    b->sum += schema_check(b->schema, &b->view, &why);
}

static void do_all(struct bench *b) {
    do_schema(b);
    b->sum += fingerprint_eval(b->ignore, &b->view, &b->key);
}

static void do_derived(struct bench *b) {
    struct errbuf why;
    payload_view_init(&b->view, b->payment, SL(""), NULL, NULL);
    buf_reset(&b->out);
    b->sum += schema_check(b->payment_schema, &b->view, &why);
    b->sum += template_eval(b->payment_key, &b->view, &b->out, &why);
}

static double best_ns(struct bench *b, void (*work)(struct bench *b)) {
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        i64 from = clock_mono_us(), to = from;
        u64 count = 0;
        for (; to - from < ROUND_MS * 1000; to = clock_mono_us()) {
            for (int i = 0; i < 256; i++) work(b);
            count += 256;
        }
        double ns = (double)(to - from) * 1000 / (double)count;
        if (ns < best) best = ns;
    }
    return best;
}

static struct schema *schema_of(const char *said) {
    struct errbuf err = {0};
    struct tree tree;
    struct schema *s;
    CHECK(tree_from_yaml(slice_str(said), "schema", &tree, &err) == ST_OK);
    CHECK(schema_from_tree(tree.root, &s, &err) == ST_OK);
    tree_free(&tree);
    return s;
}

static void compile(struct bench *b) {
    struct errbuf err = {0};
    struct tree tree;
    u32 column;
    CHECK(template_compile(slice_str(template_said), &b->template, &column, &err) == ST_OK);
    CHECK(template_compile(slice_str(payment_key), &b->payment_key, &column, &err) == ST_OK);
    b->schema = schema_of(schema_said);
    b->payment_schema = schema_of(payment_schema);
    CHECK(tree_from_yaml(SL("ignore: [sent_at, retry]"), "fingerprint", &tree, &err) == ST_OK);
    CHECK(fingerprint_from_tree(tree.root, &b->ignore, &err) == ST_OK);
    tree_free(&tree);
}

int main(int argc, char **argv) {
    static char file[1 << 20], event[1025];
    static const struct {
        const char *name;
        void (*work)(struct bench *b);
    } rows[] = {{"bytes fingerprint alone (a header key)", do_bytes},
                {"scan", do_scan},
                {"scan, template of 3 fields", do_template},
                {"scan, template, schema of 5 fields", do_schema},
                {"scan, template, schema, fingerprint ignore", do_all},
                {"a payment of 1 KiB: scan, schema with a pattern, key", do_derived}};
    struct bench b = {.payload = slice_of(milestone, sizeof milestone - 1), .key = {1, 2}};
    u64 count = 0;
    if (argc > 2 && strcmp(argv[1], "--count") == 0) CHECK(slice_u64(slice_str(argv[2]), &count));
    FILE *f = argc > 1 && !count ? fopen(argv[1], "rb") : NULL;
    if (f) b.payload = slice_of(file, fread(file, 1, sizeof file, f));
    if (f) fclose(f);
    int bare = snprintf(event, sizeof event, payment, 1, 0);
    b.payment = slice_of(event, (size_t)snprintf(event, sizeof event, payment, 1025 - bare, 0));
    compile(&b);
    printf("payload of %zu bytes, ns each\n", b.payload.n);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (u64 k = 0; k < count; k++) rows[i].work(&b);
        if (!count) printf("%7.0f  %s\n", best_ns(&b, rows[i].work), rows[i].name);
    }
    template_free(b.template);
    template_free(b.payment_key);
    schema_free(b.schema);
    schema_free(b.payment_schema);
    fingerprint_free(b.ignore);
    payload_view_free(&b.view);
    buf_free(&b.out);
    return b.sum == 0;
}
