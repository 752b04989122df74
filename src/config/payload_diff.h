/* Which fields two JSON payloads do not agree on, by what they mean: for the person who has to tell a duplicate from a
 * new intent. */
#ifndef HAPAX_CONFIG_PAYLOAD_DIFF_H
#define HAPAX_CONFIG_PAYLOAD_DIFF_H

#include "config/view.h"

/* Called for each field, until it returns false. path: "a.b"; "" for the payload as a whole. before or after is NULL
 * where the field is absent. Lists are compared as a whole. */
typedef bool change_visitor(void *ctx, slice path, const struct json_item *before, const struct json_item *after);

/* False if one of the payloads is no JSON, or they have more values together than `most`: then they are not compared, and `before`
 * is not read where `after`, which mostly is already, has too many alone. */
bool payload_diff(struct payload_view *before, struct payload_view *after, u32 most, change_visitor *each, void *ctx);

#endif
