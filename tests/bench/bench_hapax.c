/* Load client for Hapax: the load generator's own protocol, with payloads of three kinds. --kind json sends 1 KiB of JSON under
 * the same header key, --kind derived the same payload without one: the queue makes the key of its first field. Both only with
 * --mode send. */
#include "bench/client.h"

enum { JSON_BYTES = 1024, JSON_KEY_AT = sizeof("{\"payment_intent_id\":\"") - 1 };

/* An event as payment systems send them, filled up to its size with a note. */
static void json_write(const char key[LOAD_KEY_BYTES], char *payload, u32 bytes) {
    static char event[JSON_BYTES];
    static const char before_note[] =
        "{\"payment_intent_id\":\"000000000000000000000000000000000000\",\"amount\":129900,\"currency\":\"EUR\","
        "\"customer\":{"
        "\"id\":\"cus_8812\",\"name\":\"Zo\\u00eb "
        "Example\",\"address\":{\"city\":\"Hamburg\",\"zip\":\"20095\",\"country\":\"DE\"}},"
        "\"items\":[{\"sku\":\"A-1\",\"quantity\":2,\"price\":49950},{\"sku\":\"B-7\",\"quantity\":1,\"price\":30000}],"
        "\"captured\":true,\"risk\":0.125,\"refund\":null,\"sent_at\":\"2026-01-31T12:00:00.000Z\",\"note\":\"";
    CHECK(bytes == JSON_BYTES);
    if (event[0] == 0) {
        memcpy(event, before_note, sizeof before_note - 1);
        for (size_t i = sizeof before_note - 1; i < JSON_BYTES - 2; i++) event[i] = (char)('a' + i * 7 % 26);
        memcpy(event + JSON_BYTES - 2, "\"}", 2);
    }
    memcpy(payload, event, JSON_BYTES);
    memcpy(payload + JSON_KEY_AT, key, LOAD_KEY_BYTES);
}

int main(int argc, char **argv) {
    const char *kind = "plain";
    struct load_options o = bench_options(&kind, argc, argv);
    if (strcmp(kind, "plain") != 0) {
        o.fill = json_write;
        o.payload = JSON_BYTES;
        o.keyless = strcmp(kind, "derived") == 0;
    }
    return bench_run(&load_hapax, &o);
}
