/* Fingerprints: what tells a repeat of a message from another message under the same key (M4).
 *
 *   bytes             the payload as it is; the default
 *   json              what it means: order of members, white space and spelling of numbers and strings do not matter
 *   {only: [a, b.c]}  these fields alone, in the sense of json; that a field is absent counts too
 *   {ignore: [a]}     json without these fields: volatile ones such as sent_at
 *   none              nothing: under one key every message is a repeat
 *
 * Fields are paths (config/path.h), `items[*].sent_at` reaches into every element of a list. A payload that is no JSON
 * is taken by its bytes, in a way that never equals the fingerprint of one that is; so is one whose parts paths of `only`
 * name over and over, until they are ten times as long as the payload. */
#ifndef HAPAX_CONFIG_FINGERPRINT_H
#define HAPAX_CONFIG_FINGERPRINT_H

#include "config/path.h"
#include "config/tree.h"
#include "config/view.h"

enum { FINGERPRINT_PATHS_MAX = PATHS_MAX };

struct fingerprint;

/* One line with the position in err. *out is NULL for `bytes`. */
hx_st fingerprint_from_tree(const struct node *said, struct fingerprint **out, struct errbuf *err);
void fingerprint_free(struct fingerprint *f); /* NULL is fine */

/* f NULL: the payload's bytes. The key must be the data directory's own, so that nobody can prepare payloads that
 * agree. */
u64 fingerprint_eval(const struct fingerprint *f, struct payload_view *v, const struct siphash_key *key);

/* Does a field count, that of this path ("a.b") or something in it? For showing what makes two payloads differ. */
bool fingerprint_looks_at(const struct fingerprint *f, slice path);

#endif
