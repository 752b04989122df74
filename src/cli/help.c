#include <stdio.h>

#include "cli/cli.h"

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

static void help_verb(const struct verb *v) {
    struct buf out = {0};
    buf_printf(&out, "hapax %s%s%s [flags]\n\n  %s\n\n", v->name, *v->words ? " " : "", v->words, v->summary);
    struct table *t = table_new();
    put_flags(t, v->flags);
    put_flags(t, cli_common_flags);
    table_print(t, &out, "  ");
    if (*v->about) buf_printf(&out, "\n%s\n", v->about);
    print_buf(&out);
}

static void help_all(void) {
    struct buf out = {0};
    buf_lit(&out, "hapax VERB ... talks to a Hapax broker, an exactly-once queue.\n\n");
    struct table *t = table_new();
    for (size_t i = 0; i < cli_verb_count; i++) {
        struct buf name = {0};
        buf_printf(&name, "%s%s%s", cli_verbs[i].name, *cli_verbs[i].words ? " " : "", cli_verbs[i].words);
        table_cell(t, buf_slice(&name));
        table_cell(t, slice_str(cli_verbs[i].summary));
        table_row(t);
        buf_free(&name);
    }
    table_print(t, &out, "  ");
    buf_lit(&out, "\nThe broker is named by --url or HAPAX_URL, default " HX_DEFAULT_URL ".\n"
                  "Every verb that prints takes --json. `hapax help VERB` explains one.\n\n"
                  "Exit codes: 0 done; 1 refused, not found or nothing received; 2 wrong usage;\n"
                  "3 the broker could not be reached, or it is not known whether it was applied.\n");
    print_buf(&out);
}

int cmd_help(struct cli *cli) {
    if (cli->word_count == 0) {
        help_all();
        return EXIT_DONE;
    }
    struct buf wanted = {0};
    for (int i = 0; i < cli->word_count; i++) buf_printf(&wanted, "%s%s", i ? " " : "", cli->words[i]);
    int shown = 0;
    for (size_t i = 0; i < cli_verb_count; i++) {
        slice name = slice_str(cli_verbs[i].name), first, second;
        slice_cut(name, ' ', &first, &second);
        /* `help key` explains the whole family. */
        if (!slice_eq(name, buf_slice(&wanted)) && !slice_eq(first, buf_slice(&wanted))) continue;
        if (shown++) putchar('\n');
        help_verb(&cli_verbs[i]);
    }
    if (!shown) say("no verb \"%.*s\". `hapax help` lists them.", (int)wanted.len, wanted.p);
    buf_free(&wanted);
    return shown ? EXIT_DONE : EXIT_USAGE;
}
