/* cli: the hapax command. One .c per family of verbs; verbs.def is the list of them.
 *
 * A verb gets its parsed arguments and returns an exit code. Results go to stdout, everything said about them to
 * stderr. What comes from the broker or from users reaches a terminal through text.c only, so that no payload can drive
 * it. */
#ifndef HAPAX_CLI_CLI_H
#define HAPAX_CLI_CLI_H

#include "base/base.h"
#include "hapax/hapax.h"
#include "pg/pg.h"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_REFUSED = 1, /* refused, not found, nothing received */
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3, /* or not known whether applied */
};

struct flag {
    const char *name; /* without the dashes; NULL ends a table */
    const char *arg;  /* what its value is called; NULL: it takes none */
    const char *help;
};

struct cli;

struct verb {
    const char *name, *words;
    int fewest, most;
    const char *summary;
    const struct flag *flags;
    const char *about;
    int (*run)(struct cli *cli);
};

extern const struct verb cli_verbs[];
extern const size_t cli_verb_count;
extern const struct flag cli_common_flags[];

struct cli_value {
    const struct flag *flag;
    const char *value; /* "" for a flag without one */
};

/* One run of the command. */
struct cli {
    const struct verb *verb;
    const char **words;
    int word_count;
    struct cli_value *values;
    size_t value_count;
    const char *url;
    bool json;
    hx_options connect; /* filled in by cli_connect */
    hx_client *client;  /* made by cli_client */
    char *dsn;          /* made by cli_dsn */
};

/* ---- args.c */

/* Fills words, values, url and json. false: a usage error was printed. */
bool args_parse(struct cli *cli, int argc, char **argv);
const struct verb *args_find_verb(int argc, char **argv, int *used);
bool args_has(const struct cli *cli, const char *name);
const char *args_get(const struct cli *cli, const char *name);              /* the last one given, or NULL */
const char *args_next(const struct cli *cli, const char *name, size_t *at); /* each one, *at starts at 0 */
const char *args_word(const struct cli *cli, int i);                        /* or NULL */
/* Values with a meaning. A bad one prints a usage error and returns false; an absent one leaves *out. */
bool args_duration(const struct cli *cli, const char *name, i64 *ms);
bool args_number(const struct cli *cli, const char *name, i64 least, i64 most, i64 *out);
/* "hapax VERB: ...", and how to get help. Returns EXIT_USAGE. */
int args_wrong(const struct cli *cli, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- connect.c */

/* Which broker, and as whom: the flags, else the environment. Borrowed from the run. */
const hx_options *cli_connect(struct cli *cli);
void cli_blank(const char *argument); /* a secret that was given on the command line, which others can see */

/* ---- talk.c */

hx_client *cli_client(struct cli *cli, int64_t timeout_ms); /* NULL: a usage error was printed */
/* A descriptor that becomes readable on SIGINT or SIGTERM, which then no longer end the process. */
int cli_stop_fd(void);
/* Prints the error (with --json the problem, to stdout) and returns the exit code it stands for. */
int cli_failed(struct cli *cli, const hx_error *err, hx_bytes problem_json);
int cli_exit_code(const hx_error *err);
/* A request, and its answer printed: raw with --json, else by `show` (NULL: as a page). */
int cli_request(struct cli *cli, const char *method, const char *target, slice body, void (*show)(slice json));
/* A page of a list, from --cursor on. Pages in which filters let nothing through are gone over: "none" means none. */
int cli_list(struct cli *cli, const char *target, void (*show)(slice json));
/* The same for the caller to read: hx_reply_free ends it. false: it failed, *rc says how, and the user was told. */
bool cli_is_answer(const hx_reply *reply); /* a broker's: JSON, or nothing */
bool cli_ask(struct cli *cli, const hx_request *request, hx_reply *reply, int *rc);
void cli_show(const struct cli *cli, const hx_reply *reply, void (*show)(slice json));

/* What an operator decides goes into the broker's audit trail with who and why: --by (default $USER) and --note. A verb
 * that decides has FLAGS_SIGNED among its flags. A lost answer is reported as unknown instead of repeated: not every
 * decision may be made twice. */
#define FLAGS_SIGNED                                                                                                   \
    {"by", "NAME", "who decides this, for the audit; default $USER"}, {                                                \
        "note", "TEXT", "and why"                                                                                      \
    }
struct cli_decision {
    const char *method, *target;
    slice body;               /* JSON, or nothing */
    const char *etag;         /* If-Match; NULL: whatever is there */
    const char *note;         /* why; NULL: what --note says */
    void (*show)(slice json); /* NULL: as a page... */
    const char *done;         /* ...or this sentence instead */
};
bool cli_ask_signed(struct cli *cli, const struct cli_decision *d, hx_reply *reply, int *rc); /* as cli_ask */
int cli_decide(struct cli *cli, const struct cli_decision *d);                                /* and its answer shown */
/* Before what destroys: true with --yes, or when whoever sits at the terminal says so. Where there is nobody to ask it is
 * refused. false: nothing is to be done, *rc is the exit code, and it was said why. The text is a sentence: what will be gone. */
bool cli_confirm(const struct cli *cli, int *rc, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* /v1/queues/<queue><middle><last><tail>, encoded and NUL-terminated. last may be NULL. */
void cli_queue_target(struct buf *b, const char *queue, const char *middle, const char *last, const char *tail);
/* A message's id, the second word. NULL: it is none, and it was said how to find it. */
const char *cli_message_id(struct cli *cli);
/* ?name=value for each of these flags that was given (a NULL-ended list), and a NUL. */
void cli_query(struct cli *cli, struct buf *b, const char *const *names);
/* Payloads: from a word, --file FILE ("-": stdin), or stdin when neither is given. false: said why. */
bool cli_read_file(const char *path, struct buf *out);
bool cli_payload(struct cli *cli, int word, bool or_stdin, struct buf *out, bool *given);

/* ---- database.c: the user's PostgreSQL, for gate and relay */

/* --dsn (blanked on the command line), else HAPAX_DSN, else NULL: PGHOST and its kin decide. */
const char *cli_dsn(struct cli *cli);
/* Connects. NULL: said why, *rc is the exit code. */
struct pg *cli_database(struct cli *cli, int stop_fd, int *rc);
/* Says it (with --json as a problem, to stdout) and returns the exit code. `connected`: it may have been applied. */
int cli_database_failed(struct cli *cli, hx_st st, const struct errbuf *err, bool connected);

/* Something done in the database every so often, until stopped. The database may be away for a while: that is said, and
 * the next round tries again on a new connection. What cannot mend itself ends it. */
struct cli_rounds {
    struct cli *cli;
    i64 every_ms; /* 0: one round, and any trouble ends it */
    int stop_fd;
    hx_st (*round)(void *ctx, struct pg *pg); /* failures as pg.h has them, with *err set */
    bool (*enough)(void *ctx);                /* after a round; NULL: never */
    void *ctx;
    struct errbuf *err;
};
int cli_database_rounds(const struct cli_rounds *r); /* the exit code; what went wrong was said */
bool cli_stopped(int stop_fd, i64 wait_ms);

/* ---- accepted.c */

/* Each message the queue accepted since, as the broker lists it, settled ones too. false: it failed, *rc says how, and the
 * user was told. */
bool accepted_each(struct cli *cli, const char *queue, const char *since, void (*each)(void *ctx, slice item),
                   void *ctx, int *rc);
/* An item's payload, content type and attributes as members of a batch line. false: its payload is not kept. */
bool accepted_payload(struct buf *line, slice item);
void accepted_copy(struct buf *line, slice item, const char *name); /* one more member, if it has it */

/* ---- text.c: what goes to people */

void text_setup(const struct cli *cli); /* --wide */
/* Appends text with control characters, broken UTF-8 and what reorders or hides text made visible (\x1b, \u202e). Line feeds
 * and tabs stay if `lines`. */
void print_clean(struct buf *b, slice text, bool lines);
/* Appends text as it may go to this descriptor: cleaned for a terminal, byte for byte for a file or a pipe. */
void print_for(struct buf *b, slice text, int fd);
/* To standard output, and emptied. At a terminal whatever could drive it is escaped; JSON stays JSON. */
void print_buf(struct buf *b);
void print_json(hx_bytes json);      /* as it came, with a line feed; at a terminal as print_buf does */
void print_clean_buf(struct buf *b); /* the same for text that is clean already, and may be coloured */
void print_body(hx_bytes body);      /* a payload for people: clean, and ended by a line feed */
void print_bytes(hx_bytes body);     /* byte for byte; at a terminal as print_body does */
/* What was printed is out. false: some of it could not be written, now or earlier; that is said once. */
bool print_flush(void);
/* "hapax: ..." on stderr, clean; say_wrong for what failed. */
void say(const char *fmt, ...) PRINTF_LIKE(1, 2);
void say_wrong(const char *fmt, ...) PRINTF_LIKE(1, 2);

enum tone { TONE_PLAIN, TONE_HEAD, TONE_GOOD, TONE_BAD, TONE_DOUBT };
/* Appends clean text, coloured if a terminal is at this descriptor and NO_COLOR does not forbid it. */
void text_tone(struct buf *b, enum tone tone, slice clean, int fd);
enum tone text_tone_of(slice word); /* done is good, dead is bad, held is doubtful */
size_t text_columns(int fd);        /* of the terminal there; SIZE_MAX: there is none, or --wide */
bool text_is_wide(void);
const char *text_plural(u64 n); /* what a noun has behind so many: nothing behind 1, else "s" */
size_t text_width(slice clean); /* in columns */
size_t text_cut(struct buf *b, slice clean,
                size_t columns); /* to at most so many, with an ellipsis; returns the width */
/* Appends words, breaking lines before `columns`; `at` columns of the first line are taken, further ones begin at `indent`. */
void text_wrap(struct buf *b, slice text, size_t at, size_t indent, size_t columns);

/* ---- table.c */

struct table;
struct table *table_new(void);
void table_cell(struct table *t, slice clean);    /* copied */
void table_tone(struct table *t, enum tone tone); /* of the last cell */
void table_row(struct table *t);                  /* ends the row */
/* Its first row is the head. Columns in the order of importance; the bits of `flexible` name those that may be cut. */
void table_head(struct table *t, u32 flexible);
void table_wraps(struct table *t); /* its last column is text, wrapped under itself */
void table_print(struct table *t, struct buf *out, const char *indent); /* and frees it */
void table_say_left_out(void);                                          /* which columns found no room, if any */

/* ---- print.c: JSON for people */

/* A JSON object as a page: scalars aligned, arrays of objects as tables. */
void print_page(slice json);
void print_key(slice json);   /* key_page.c: why, what happened, and the rest of it; a list where keys repeat */
void print_queue(slice json); /* a queue's page: its rules, which the broker tells in three forms, once */

struct column {
    const char *name;                       /* the member, and the title; NULL ends a list */
    void (*put)(struct buf *b, slice item); /* instead of the member's value */
    bool flexible;                          /* may be cut */
};
/* The "items" of a list as a table of these columns, as far as there is anything in them, and how to see the rest. */
void print_list(slice json, const struct column *columns);
void column_key(struct buf *b, slice item); /* or the id of what has none */
/* As it is named to the broker: with its sender in front where keys are their senders'. */
void column_key_alone(struct buf *b, slice item);
void column_age(struct buf *b, slice item);
void column_at(struct buf *b, slice item);
void column_consumer(struct buf *b, slice item);   /* who has the last attempt */
void column_leased_for(struct buf *b, slice item); /* since when */
void print_time(struct buf *b, slice object,
                const char *name); /* appends a time, in whole seconds; nothing if it has none */
/* Appends an array of names, "amount, currency". false: there is none. */
bool print_names(struct buf *b, slice object, const char *name);

/* ---- child.c */

enum { CHILD_OUTPUT_MAX = 1 << 20 };
/* Exit codes with a meaning to more than one verb. */
enum { CHILD_ABSENT = 101, CHILD_NOT_EXECUTABLE = 126, CHILD_NO_COMMAND = 127, CHILD_SIGNALLED = 128 };

struct child_var {
    const char *name, *value; /* NULL: not set, even if hapax itself has it */
};

struct child {
    const char *command;          /* for sh */
    const struct child_var *vars; /* on top of our own environment */
    size_t var_count;
    hx_bytes input;
    i64 timeout_ms; /* 0: no limit */
    int stop_fd;    /* when it becomes readable the command is ended as if its time were up; -1: none */
    /* out, freed by child_free */
    struct buf output;     /* its standard output; beyond CHILD_OUTPUT_MAX it is dropped, and `cut` set */
    struct buf last_words; /* the last line of its standard error, clean; empty: it said nothing */
    bool cut;
    bool ended; /* by us, with all it started: its exit code says nothing... */
    bool late;  /* ...because its time was up */
};

/* Runs it to its end. Returns its exit code as a shell tells it: 126 when it could not be started, 128 + N after signal
 * N. Its standard error goes on to ours line by line. */
int child_run(struct child *c);
void child_free(struct child *c);

/* ---- member.c: single members of a JSON object. What is absent or of another type reads as nothing. */

slice member_raw(slice object, const char *name);                  /* its exact text; empty: not there */
bool member_text(slice object, const char *name, struct buf *out); /* a string, unescaped, appended */
bool member_is(slice object, const char *name, slice text);        /* is it this string? */
i64 member_number(slice object, const char *name);

/* ---- help.c */

bool help_has_family(const char *first);             /* is it the first word of verbs of two? */
void help_family(const char *first);                 /* those verbs, on stderr */
int help_words(const char *const *words, int count); /* `hapax help WORDS`: the exit code */

/* ---- receive.c */

void cli_say_nothing_received(struct cli *cli); /* and why, as far as the queue tells */

/* ---- exec.c: receive --exec */

struct exec_commands {
    const char *work;   /* does it */
    const char *lookup; /* finds out whether it was done; NULL: nobody can */
    i64 timeout_ms;     /* for either; 0: no limit */
};

int cli_receive_exec(struct cli *cli, const struct exec_commands *commands, hx_consume_options *options);

#define VERB(ident, name, words, fewest, most, summary)                                                                \
    int cmd_##ident(struct cli *cli);                                                                                  \
    extern const struct flag flags_##ident[];                                                                          \
    extern const char about_##ident[];
#include "cli/verbs.def"
#undef VERB

#endif
