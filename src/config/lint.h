/* Lint: what a valid config should not say. lint.def is the list of rules; a finding names one, and its place.
 *
 * Errors break the queue's promise sooner or later; warnings leave a bad day without an owner or a bound; advice is about
 * what was not said. Advice alone leaves `hapax lint` content. */
#ifndef HAPAX_CONFIG_LINT_H
#define HAPAX_CONFIG_LINT_H

#include "config/config.h"

enum lint_severity { LINT_ERROR, LINT_WARNING, LINT_ADVICE };
const char *lint_severity_text(enum lint_severity s);

struct lint_rule {
    const char *code;
    enum lint_severity severity;
    const char *title;
    const char *explanation; /* what goes wrong, how to fix it, an example; lines of text */
};

extern const struct lint_rule lint_rules[];
extern const u32 lint_rule_count;
const struct lint_rule *lint_rule_find(slice code);          /* or NULL */
const char *lint_rule_code_at(const void *unused, size_t i); /* for nearest_name */

struct lint_finding {
    const struct lint_rule *rule;
    slice queue; /* empty: about the file; lives as long as the config */
    struct said_at at;
    char text[320];
};

struct lint_report {
    struct lint_finding *at; /* in the order of the file */
    u32 count, cap;
};

/* Zero-initialise the report; lint_free ends it. */
void lint_run(const struct config *c, struct lint_report *report);
void lint_free(struct lint_report *report);
bool lint_is_content(const struct lint_report *report); /* nothing but advice */

#endif
