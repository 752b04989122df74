#include <stdio.h>

#include "cli/cli.h"

#define VERB(ident, name, words, fewest, most, summary)                                                                \
    {name, words, fewest, most, summary, flags_##ident, about_##ident, cmd_##ident},
const struct verb cli_verbs[] = {
#include "cli/verbs.def"
};
#undef VERB
const size_t cli_verb_count = sizeof(cli_verbs) / sizeof(cli_verbs[0]);

static const char *verb_name_at(const void *ctx, size_t i) {
    (void)ctx;
    return i < cli_verb_count ? cli_verbs[i].name : NULL;
}

/* The first words, for who typed one of a family alone. */
static const char *family_at(const void *ctx, size_t i) {
    static char words[sizeof cli_verbs / sizeof cli_verbs[0]][16];
    (void)ctx;
    if (i >= cli_verb_count) return NULL;
    snprintf(words[i], sizeof words[i], "%.*s", (int)strcspn(cli_verbs[i].name, " "), cli_verbs[i].name);
    return words[i];
}

static int unknown_verb(int argc, char **argv) {
    if (argv[1][0] == '-') {
        say_wrong("flags come after the verb: hapax VERB ... %s", argv[1]);
        return EXIT_USAGE;
    }
    struct buf typed = {0};
    buf_printf(&typed, "%s%s%s", argv[1], argc > 2 ? " " : "", argc > 2 ? argv[2] : "");
    buf_char(&typed, '\0');
    const char *wrong = typed.p, *near = nearest_name(slice_str(typed.p), verb_name_at, NULL);
    bool family = help_has_family(argv[1]);
    if (!near && !family) near = nearest_name(slice_str(wrong = argv[1]), verb_name_at, NULL);
    if (!near && !family) near = nearest_name(slice_str(argv[1]), family_at, NULL);
    if (near && (argc > 2 || !family))
        say_wrong("no verb \"%s\". Did you mean \"%s\"?", wrong, near);
    else if (family)
        help_family(argv[1]);
    else
        say_wrong("no verb \"%s\". `hapax help` lists them.", argv[1]);
    buf_free(&typed);
    return EXIT_USAGE;
}

static bool is(const char *text, const char *a, const char *b) {
    return strcmp(text, a) == 0 || strcmp(text, b) == 0;
}

/* `hapax --help`, `hapax --version`, and nothing at all. */
static const struct verb *bare_verb(int argc, char **argv) {
    static char help[] = "help", version[] = "version";
    if (argc > 1 && !is(argv[1], "--help", "-h") && !is(argv[1], "--version", "-V")) return NULL;
    char *words[2] = {NULL, argc > 1 && is(argv[1], "--version", "-V") ? version : help};
    int used;
    return args_find_verb(2, words, &used);
}

static int run(struct cli *cli, int argc, char **argv) {
    int used = 0;
    cli->verb = bare_verb(argc, argv);
    if (cli->verb) {
        int rc = cli->verb->run(cli);
        return argc > 1 ? rc : EXIT_USAGE;
    }
    if (argc > 2 && is(argv[2], "--help", "-h") && help_has_family(argv[1]))
        return help_words((const char *[]){argv[1]}, 1);
    cli->verb = args_find_verb(argc, argv, &used);
    if (!cli->verb) return unknown_verb(argc, argv);
    bool ok = args_parse(cli, argc - used, argv + used);
    text_setup(cli);
    int rc = ok ? cli->verb->run(cli) : EXIT_USAGE;
    table_say_left_out();
    return rc;
}

int main(int argc, char **argv) {
    struct cli cli = {0};
    streams_hold();
    int rc = run(&cli, argc, argv);
    if (!print_flush() && rc == EXIT_DONE) {
        say("what was asked for is done; only what there was to print is lost");
        rc = EXIT_UNREACHABLE; /* as after any answer that did not come through: whoever asked does not know */
    }
    hx_close(cli.client);
    mem_free(cli.words);
    mem_free(cli.values);
    mem_free(cli.dsn);
    return rc;
}
