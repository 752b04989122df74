/* A template tried on past payloads: would it have told repeats from new intents? Fed message by message, whatever
 * they come from. */
#ifndef HAPAX_CLI_TRIAL_H
#define HAPAX_CLI_TRIAL_H

#include "config/fingerprint.h"
#include "config/schema.h"
#include "config/template.h"

enum { TRIAL_EXAMPLES = 5, TRIAL_REASONS = 10, TRIAL_CHANGED = 16 };

struct trial_message {
    u64 number; /* of the line, or whatever counts them */
    slice payload, content_type;
    header_lookup *header;
    void *header_ctx;
};

/* Two messages of one key that differ. */
struct trial_conflict {
    slice key;
    u64 first, second;
    bool compared; /* both are JSON */
    u32 changed_count;
    slice changed[TRIAL_CHANGED];
};

struct trial_reason {
    slice text;
    u64 count, first;
};

struct trial_field {
    slice name;
    u64 count; /* conflicts it takes part in; for template fields: different values */
};

struct trial_counts {
    u64 messages, keys, repeats, conflicts, failures;
};

struct trial;

/* The template, the fingerprint (NULL: bytes) and the schema (NULL: none) stay the caller's and must outlive it. */
struct trial *trial_new(const struct template *key, const struct fingerprint *fingerprint, const struct schema *schema);
void trial_free(struct trial *t);

/* The payload must stay where it is until trial_free: it may be the first of its key, and compared with later ones. */
void trial_add(struct trial *t, const struct trial_message *m);

struct trial_counts trial_counts(const struct trial *t);
const struct trial_conflict *trial_conflicts(const struct trial *t, u32 *count); /* the first few */
const struct trial_reason *trial_reasons(const struct trial *t, u32 *count);     /* why messages got no key */
const struct trial_field *trial_changed(const struct trial *t, u32 *count);      /* fields conflicts differ in */
/* A field of the template with another value in every message, while no key came twice; NULL if there is none. */
const struct trial_field *trial_narrowing(const struct trial *t);

#endif
