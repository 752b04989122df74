/* Record bodies: whatever decodes, encodes to something that decodes to the same, within the promised size. */
#include <stdlib.h>

#include "core/record.h"

int LLVMFuzzerTestOneInput(const u8 *data, size_t n);

int LLVMFuzzerTestOneInput(const u8 *data, size_t n) {
    if (n < 2) return 0;
    struct record r, again;
    struct errbuf err;
    if (record_decode(data[0], data[1], slice_of(data + 2, n - 2), &r, &err) != ST_OK) return 0;
    char *encoded = malloc(record_size(&r));
    CHECK(encoded);
    size_t size = record_encode(&r, encoded);
    CHECK(size == record_size(&r));
    CHECK(record_decode(data[0], RECORD_VERSION, slice_of(encoded, size), &again, &err) == ST_OK);
    char *twice = malloc(record_size(&again));
    CHECK(twice);
    CHECK(record_encode(&again, twice) == size && memcmp(encoded, twice, size) == 0);
    free(encoded);
    free(twice);
    return 0;
}
