/* Schemas: the few checks that catch an upstream's drift before it silently changes keys (M2).
 *
 *   schema:
 *     required: [payment_intent_id, amount]         there, and not null unless its type may be
 *     types: {amount: integer, note: [string, null]}
 *     enum: {currency: [EUR, USD]}
 *     pattern: {payment_intent_id: "^pi_[A-Za-z0-9]+$"}
 *     max_length: {payment_intent_id: 64}           in characters
 *
 * Fields are paths (config/path.h). All but `required` speak of a field only where it is there. A whole number is an
 * integer however it is spelled (5, 5.0, 5e0). `enum`, `pattern` and `max_length` look at a scalar's canonical text
 * (config/view.h) and refuse lists and objects. An enum's values are numbers, true, false or null if they are written
 * so without quotes, else text.
 *
 * Patterns are regular expressions (config/pattern.h), found anywhere unless anchored. What makes matching expensive is
 * refused when the schema is read, and a text longer than SCHEMA_MATCHED_MAX bytes fails its pattern unmatched. */
#ifndef HAPAX_CONFIG_SCHEMA_H
#define HAPAX_CONFIG_SCHEMA_H

#include "config/path.h"
#include "config/tree.h"
#include "config/view.h"

enum { SCHEMA_FIELDS_MAX = PATHS_MAX, SCHEMA_MATCHED_MAX = 1024 };

struct schema;

/* One line with the position in err. */
hx_st schema_from_tree(const struct node *said, struct schema **out, struct errbuf *err);
void schema_free(struct schema *s); /* NULL is fine */

/* False: `why` names the first field that is wrong, what was expected and, behind SCHEMA_FOUND, what was found, from the payload. */
#define SCHEMA_FOUND ", found "
bool schema_check(const struct schema *s, struct payload_view *v, struct errbuf *why);

#endif
