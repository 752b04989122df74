/* The cursor's memory: unescaped strings, and the member names of objects too large to be compared one by one.
 * Allocated on first need, owned by the cursor, given back by json_free. */
#ifndef HAPAX_BASE_JSON_PRIV_H
#define HAPAX_BASE_JSON_PRIV_H

#include "base/json.h"

struct json_scratch *json_scratch_new(void);
void json_scratch_free(struct json_scratch *s);

/* At least n bytes that stay where they are until json_scratch_free. The caller writes the first `used` of them and
 * then says so with json_scratch_keep; without that the next reservation gets the same bytes. */
char *json_scratch_reserve(struct json_scratch *s, size_t n);
void json_scratch_keep(struct json_scratch *s, size_t used);

/* One set of names for each nesting level. Add returns false if the name is there already; the name is borrowed. */
bool json_names_add(struct json_scratch *s, int level, slice name);
void json_names_clear(struct json_scratch *s, int level);

#endif
