/* Reports: what the broker has to tell the log. It goes out through the port, so that the simulator hears of it or not. */
#ifndef HAPAX_BROKER_REPORT_H
#define HAPAX_BROKER_REPORT_H

#include "base/log.h"

struct broker;
struct happening;
struct rec_audit;
struct reports;

struct reports *reports_new(void);
void reports_free(struct reports *r);

/* As log_event. At once: for what no record stands behind. */
#define report(b, level, event, ...) REPORT(report_fields, (b), (level), (event), __VA_ARGS__, {0})
/* As log_event, once everything appended so far is durable (P1): for what was done. At most REPORTS_MAX wait, and a text of
 * theirs has at most REPORT_TEXT_BYTES; what comes beyond is not told. `msg` and the names are
 * literals. */
#define report_after(b, level, event, ...) REPORT(report_fields_after, (b), (level), (event), __VA_ARGS__, {0})

/* A repeat, where the queue's log_duplicates asks for it: the only line with a message's key in it. */
void report_repeat(struct broker *b, const struct happening *h);
/* What an operator did, once it is in the audit trail. */
void report_deed(struct broker *b, const struct rec_audit *a);

/* Something that may come and go many times a second at a limit. It is told when it begins, and again when it has been over for
 * SPELL_MS. */
#define SPELL_MS 5000
struct spell {
    bool on;
    i64 seen_run_ms;
};
enum spell_change { SPELL_SAME, SPELL_BEGINS, SPELL_ENDS };
enum spell_change spell_look(struct spell *s, bool there, i64 run_ms);

#define REPORTS_MAX       1024u
#define REPORT_FIELDS_MAX 8u
#define REPORT_TEXT_BYTES 300u

#define REPORT(fn, b, level, event, msg, ...)                                                                          \
    fn((b), (level), (event), (msg), (const struct log_field[]){__VA_ARGS__},                                          \
       sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))
void report_fields(struct broker *b, enum log_level level, const char *event, const char *msg,
                   const struct log_field *fields, size_t count);
void report_fields_after(struct broker *b, enum log_level level, const char *event, const char *msg,
                         const struct log_field *fields, size_t count);

#endif
