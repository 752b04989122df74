#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"

enum { COLUMNS_USUAL = 80, COLUMNS_MOST = 100 };

const struct flag flags_help[] = {{0}};
const char about_help[] = "Without a verb: the list of verbs.";

const struct flag flags_version[] = {{0}};
const char about_version[] = "Prints the version of this command and its library.";

int cmd_version(struct cli *cli) {
    if (cli->json)
        printf("{\"version\":\"%s\"}\n", hx_version());
    else
        printf("hapax %s\n", hx_version());
    return EXIT_DONE;
}

static void put_flags(struct table *t, const struct flag *flags) {
    for (; flags->name; flags++) {
        struct buf b = {0};
        buf_printf(&b, "--%s%s%s", flags->name, flags->arg ? " " : "", flags->arg ? flags->arg : "");
        table_cell(t, buf_slice(&b));
        table_cell(t, slice_str(flags->help));
        table_row(t);
        buf_free(&b);
    }
}

/* Paragraphs, parted by empty lines; where a line ends inside one means nothing. */
static void put_about(struct buf *out, const char *about, size_t columns) {
    slice rest = slice_str(about);
    while (rest.n) {
        const char *end = memmem(rest.p, rest.n, "\n\n", 2);
        size_t n = end ? (size_t)(end - rest.p) : rest.n;
        struct buf paragraph = {0};
        buf_add(&paragraph, rest.p, n);
        for (size_t i = 0; i < paragraph.len; i++)
            if (paragraph.p[i] == '\n') paragraph.p[i] = ' ';
        buf_char(out, '\n');
        text_wrap(out, slice_trim(buf_slice(&paragraph)), 0, 0, columns);
        buf_char(out, '\n');
        buf_free(&paragraph);
        size_t skip = end ? n + 2 : n;
        rest = slice_of(rest.p + skip, rest.n - skip);
    }
}

static void help_verb(const struct verb *v) {
    struct buf out = {0};
    size_t columns = text_columns(STDOUT_FILENO);
    buf_printf(&out, "hapax %s%s%s [flags]\n\n  %s\n\n", v->name, *v->words ? " " : "", v->words, v->summary);
    struct table *t = table_new();
    table_wraps(t);
    put_flags(t, v->flags);
    put_flags(t, cli_common_flags);
    table_print(t, &out, "  ");
    put_about(&out, v->about, columns < COLUMNS_MOST ? columns : COLUMNS_USUAL);
    print_clean_buf(&out);
}

/* The second word of a verb of this family; NULL: it is none. */
static const char *member_of(const struct verb *v, slice family) {
    slice first, second;
    return slice_cut(slice_str(v->name), ' ', &first, &second) && slice_eq(first, family) ? second.p : NULL;
}

static slice first_word(const struct verb *v) {
    slice first, second;
    slice_cut(slice_str(v->name), ' ', &first, &second);
    return first;
}

bool help_has_family(const char *first) {
    for (size_t i = 0; i < cli_verb_count; i++)
        if (member_of(&cli_verbs[i], slice_str(first))) return true;
    return false;
}

static void put_members(struct buf *out, slice family) {
    struct table *t = table_new();
    table_wraps(t);
    for (size_t i = 0; i < cli_verb_count; i++) {
        if (!slice_eq(first_word(&cli_verbs[i]), family)) continue;
        struct buf name = {0};
        buf_printf(&name, "hapax %s %s", cli_verbs[i].name, cli_verbs[i].words);
        table_cell(t, buf_slice(&name));
        table_cell(t, slice_str(cli_verbs[i].summary));
        table_row(t);
        buf_free(&name);
    }
    table_print(t, out, "  ");
}

void help_family(const char *first) {
    struct buf out = {0};
    say("%s needs one more word:", first);
    put_members(&out, slice_str(first));
    fwrite(out.p, 1, out.len, stderr);
    buf_free(&out);
}

/* A family takes one line: its second words, and what the word alone does if it does anything. */
static void put_family(struct table *t, slice family) {
    struct buf words = {0};
    const char *alone = NULL, *second;
    for (size_t i = 0; i < cli_verb_count; i++) {
        if (slice_eq(slice_str(cli_verbs[i].name), family)) alone = cli_verbs[i].summary;
        if (!(second = member_of(&cli_verbs[i], family))) continue;
        buf_printf(&words, "%s%s", words.len ? ", " : "", second);
    }
    if (alone && words.len) buf_lit(&words, "; alone: ");
    if (alone) buf_slice_add(&words, slice_str(alone));
    table_cell(t, family);
    table_cell(t, buf_slice(&words));
    table_row(t);
    buf_free(&words);
}

static void help_all(void) {
    struct buf out = {0};
    buf_lit(&out, "hapax VERB ... talks to a Hapax broker, an exactly-once queue.\n\n");
    struct table *t = table_new();
    table_wraps(t);
    for (size_t i = 0; i < cli_verb_count; i++)
        if (i == 0 || !slice_eq(first_word(&cli_verbs[i]), first_word(&cli_verbs[i - 1])))
            put_family(t, first_word(&cli_verbs[i]));
    table_print(t, &out, "  ");
    buf_lit(&out, "\nBegin with send, receive, key show, queues list; `hapax help VERB` explains one.\n"
                  "--url or HAPAX_URL names the broker, else " HX_DEFAULT_URL "; --json is JSON.\n"
                  "Exit codes: 0 done; 1 refused, nothing there; 2 usage; 3 no answer, or unknown.\n");
    print_clean_buf(&out);
}

int help_words(const char *const *words, int count) {
    if (count == 0) {
        help_all();
        return EXIT_DONE;
    }
    struct buf wanted = {0};
    for (int i = 0; i < count; i++) buf_printf(&wanted, "%s%s", i ? " " : "", words[i]);
    bool shown = false;
    for (size_t i = 0; i < cli_verb_count; i++) {
        if (!slice_eq(slice_str(cli_verbs[i].name), buf_slice(&wanted))) continue;
        help_verb(&cli_verbs[i]);
        shown = true;
    }
    if (count == 1 && help_has_family(words[0])) { /* a list: all their pages are ten screens */
        struct buf out = {0};
        if (shown) buf_char(&out, '\n');
        put_members(&out, buf_slice(&wanted));
        buf_printf(&out, "\n`hapax help %s VERB` explains one.\n", words[0]);
        print_clean_buf(&out);
        shown = true;
    }
    if (!shown) say_wrong("no verb \"%.*s\". `hapax help` lists them.", (int)wanted.len, wanted.p);
    buf_free(&wanted);
    return shown ? EXIT_DONE : EXIT_USAGE;
}

int cmd_help(struct cli *cli) {
    return help_words(cli->words, cli->word_count);
}
