/* The log: one line per event on stderr, as logfmt or as JSON.
 *
 *     ts=2026-01-31T12:00:00.000Z level=warn event=disk_short msg="the disk has no room for new work" free_bytes=1048576
 *
 * An event's name is a word that stays: programs look for it. The message is a sentence for people. Fields hold what differs
 * from time to time: never payloads or secrets, and keys of messages only where the operator asked for them.
 *
 * Writing a line allocates nothing and never waits: a reader that has stopped reading loses lines, and the next one that gets
 * through says how many (lost=N). Any thread may log. */
#ifndef HAPAX_BASE_LOG_H
#define HAPAX_BASE_LOG_H

#include "base/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_AS_LOGFMT, LOG_AS_JSON };

/* With its newline: what a pipe takes undivided, and takes without waiting when it says that it can be written to. What would
 * be longer is cut, and says so (cut=true). */
#define LOG_LINE_BYTES 4096u

struct log_field {
    const char *name; /* NULL: no field */
    enum { LOG_FIELD_TEXT, LOG_FIELD_NUMBER, LOG_FIELD_REAL, LOG_FIELD_EVERY } kind;
    slice text;
    i64 number;
    double real;
};

static inline struct log_field log_text(const char *name, slice text) {
    return (struct log_field){.name = name, .kind = LOG_FIELD_TEXT, .text = text};
}
static inline struct log_field log_number(const char *name, i64 number) {
    return (struct log_field){.name = name, .kind = LOG_FIELD_NUMBER, .number = number};
}
static inline struct log_field log_real(const char *name, double real) {
    return (struct log_field){.name = name, .kind = LOG_FIELD_REAL, .real = real};
}
/* In the place of a field: this line is never held back, for something else bounds how often it comes. */
#define LOG_EVERY ((struct log_field){.kind = LOG_FIELD_EVERY})

/* The macro's fields are any number of the above:
 *
 *     log_event(LOG_WARN, "alert", "…", log_text("alert", name), log_text("queue", queue), log_real("value", value));
 *
 * Repeats are held back: of one event, and of each value of its field "queue" if it has one, ten lines at once and one a
 * second from then on. The next line that is written says how many were not (suppressed=N). */
#define log_event(level, event, ...) LOG_EVENT((level), (event), __VA_ARGS__, {0})
#define LOG_EVENT(level, event, msg, ...)                                                                              \
    log_fields((level), (event), (msg), (const struct log_field[]){__VA_ARGS__},                                       \
               sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))
void log_fields(enum log_level level, const char *event, const char *msg, const struct log_field *fields, size_t count);
/* A message with values in it and no fields, never held back: starting, stopping, what somebody asked for. */
void log_line(enum log_level level, const char *event, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The last line of a process, from a signal handler too: it takes no lock and waits until it is written. */
void log_last_words(const char *event, const char *msg, struct log_field first, struct log_field second);

void log_set_level(enum log_level level); /* what is less important is not written; LOG_INFO at first */
void log_set_format(enum log_format format);
bool log_level_parse(slice name, enum log_level *out);
bool log_format_parse(slice name, enum log_format *out);

#endif
