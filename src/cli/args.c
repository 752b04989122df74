#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

const struct flag cli_common_flags[] = {
    {"url", "URL", "the broker, default $HAPAX_URL or " HX_DEFAULT_URL},
    {"api-token-file", "FILE", "has the token this broker knows you by, default $HAPAX_API_TOKEN_FILE"},
    {"api-token", "TOKEN", "the token itself, default $HAPAX_API_TOKEN. Others can see it in `ps`: use a file"},
    {"insecure-token", NULL, "send it to another machine over http:// too, where it can be read on the way"},
    {"cacert", "FILE", "https: trust these certificates and no others (PEM), default $HAPAX_CACERT, then the system's"},
    {"cert", "FILE", "https: a certificate to show to a broker that asks for one, default $HAPAX_CERT"},
    {"cert-key", "FILE", "and its key, default $HAPAX_CERT_KEY, then the certificate's file"},
    {"json", NULL, "print JSON instead of text for people"},
    {"wide", NULL, "do not fit tables to the terminal: all columns"},
    {"help", NULL, "explain this verb"},
    {0},
};

/* `key show` is two words on the command line; flags may not come between. */
const struct verb *args_find_verb(int argc, char **argv, int *used) {
    for (size_t i = 0; i < cli_verb_count && argc > 1; i++) {
        slice first, second, name = slice_str(cli_verbs[i].name);
        bool two = slice_cut(name, ' ', &first, &second);
        if (!slice_eq(first, slice_str(argv[1]))) continue;
        if (two && (argc < 3 || !slice_eq(second, slice_str(argv[2])))) continue;
        *used = two ? 3 : 2;
        return &cli_verbs[i];
    }
    return NULL;
}

int args_wrong(const struct cli *cli, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    size_t n = strlen(text);
    say_wrong("%s: %s%s See `hapax help %s`.", cli->verb->name, text, n && text[n - 1] == '?' ? "" : ".",
              cli->verb->name);
    return EXIT_USAGE;
}

/* ---- likely typing errors */

enum { TYPED_MAX = 63, FLAG_MAX = 32 };

static size_t flag_count(const struct flag *flags) {
    size_t n = 0;
    while (flags[n].name) n++;
    return n;
}

static const char *flag_name_at(const void *ctx, size_t i) {
    const struct verb *verb = ctx;
    size_t own = flag_count(verb->flags), common = flag_count(cli_common_flags);
    if (i < own) return verb->flags[i].name;
    return i - own < common ? cli_common_flags[i - own].name : NULL;
}

/* ---- parsing */

static const struct flag *find_flag(const struct flag *flags, slice name) {
    for (; flags->name; flags++)
        if (slice_eq(slice_str(flags->name), name)) return flags;
    return NULL;
}

static bool unknown_flag(const struct cli *cli, slice name) {
    char typed[TYPED_MAX + 1];
    snprintf(typed, sizeof(typed), "%.*s", (int)name.n, name.p);
    const char *near = nearest_name(slice_str(typed), flag_name_at, cli->verb);
    if (near)
        args_wrong(cli, "no flag --%s; did you mean --%s?", typed, near);
    else
        args_wrong(cli, "no flag --%s", typed);
    return false;
}

/* --name, --name=value or --name value. *used: how many arguments it was. */
static bool parse_flag(struct cli *cli, int argc, char **argv, int *used) {
    slice name, value;
    bool attached = slice_cut(slice_str(argv[0] + 2), '=', &name, &value);
    const struct flag *flag = find_flag(cli->verb->flags, name);
    if (!flag) flag = find_flag(cli_common_flags, name);
    if (!flag) return unknown_flag(cli, name);
    *used = 1;
    struct cli_value *v = &cli->values[cli->value_count++];
    *v = (struct cli_value){flag, ""};
    if (!flag->arg) return !attached || (args_wrong(cli, "--%s takes no value", flag->name), false);
    if (attached) {
        v->value = value.p;
        return true;
    }
    if (argc < 2) return args_wrong(cli, "--%s needs a value: %s", flag->name, flag->arg), false;
    v->value = argv[1];
    *used = 2;
    return true;
}

static bool check_words(const struct cli *cli) {
    const struct verb *v = cli->verb;
    if (args_has(cli, "help")) return true;
    if (cli->word_count < v->fewest) return args_wrong(cli, "expected %s", v->words), false;
    if (cli->word_count <= v->most) return true;
    return args_wrong(cli, "too many arguments: \"%s\"", cli->words[v->most]), false;
}

/* Tokens are opaque and may begin with dashes; no flag is as long as a token. */
static bool is_token(const char *arg) {
    return strlen(arg) > FLAG_MAX && !strchr(arg, '=');
}

/* One argument, or a flag with its value: *used says which. */
static bool parse_argument(struct cli *cli, int argc, char **argv, bool *flags, int *used) {
    static char help[] = "--help";
    char *instead[] = {help};
    *used = 1;
    bool dashed = *flags && argv[0][0] == '-' && argv[0][1] && !is_token(argv[0]);
    if (!dashed) {
        cli->words[cli->word_count++] = argv[0];
        return true;
    }
    if (strcmp(argv[0], "--") == 0) {
        *flags = false;
        return true;
    }
    if (strcmp(argv[0], "-h") == 0) return parse_flag(cli, 1, instead, used); /* the one letter that everybody tries */
    if (argv[0][1] == '-') return parse_flag(cli, argc, argv, used);
    args_wrong(cli, "no flag %s: flags have two dashes, and -- ends them", argv[0]);
    return false;
}

/* --help turns any verb into `help VERB`. */
static void become_help(struct cli *cli) {
    static char help[] = "help";
    char *words[2] = {NULL, help};
    int used;
    cli->words[0] = cli->verb->name;
    cli->word_count = 1;
    cli->verb = args_find_verb(2, words, &used);
}

bool args_parse(struct cli *cli, int argc, char **argv) {
    cli->words = mem_zalloc(((size_t)argc + 1) * sizeof(char *));
    cli->values = mem_zalloc(((size_t)argc + 1) * sizeof(struct cli_value));
    bool flags = true;
    for (int i = 0, used; i < argc; i += used)
        if (!parse_argument(cli, argc - i, argv + i, &flags, &used)) return false;
    if (!check_words(cli)) return false;
    cli->url = args_get(cli, "url");
    if (cli->url && !*cli->url) return args_wrong(cli, "--url is empty: is a variable not set?"), false;
    if (!cli->url) cli->url = getenv("HAPAX_URL");
    if (!cli->url || !*cli->url) cli->url = HX_DEFAULT_URL;
    cli->json = args_has(cli, "json");
    if (args_has(cli, "help")) become_help(cli);
    return true;
}

/* ---- looking at what was given */

const char *args_next(const struct cli *cli, const char *name, size_t *at) {
    for (; *at < cli->value_count; ++*at)
        if (strcmp(cli->values[*at].flag->name, name) == 0) return cli->values[(*at)++].value;
    return NULL;
}

const char *args_get(const struct cli *cli, const char *name) {
    const char *last = NULL, *value;
    for (size_t at = 0; (value = args_next(cli, name, &at));) last = value;
    return last;
}

bool args_has(const struct cli *cli, const char *name) {
    return args_get(cli, name) != NULL;
}

const char *args_word(const struct cli *cli, int i) {
    return i < cli->word_count ? cli->words[i] : NULL;
}

bool args_duration(const struct cli *cli, const char *name, i64 *ms) {
    const char *text = args_get(cli, name);
    if (!text || duration_parse(slice_str(text), ms)) return true;
    args_wrong(cli, "--%s \"%s\" is not a duration like 500ms, 30s, 5m or 14d", name, text);
    return false;
}

bool args_number(const struct cli *cli, const char *name, i64 least, i64 most, i64 *out) {
    const char *text = args_get(cli, name);
    u64 n;
    if (!text) return true;
    if (slice_u64(slice_str(text), &n) && n <= INT64_MAX && (i64)n >= least && (i64)n <= most) {
        *out = (i64)n;
        return true;
    }
    args_wrong(cli, "--%s \"%s\" is not a number from %lld to %lld", name, text, (long long)least, (long long)most);
    return false;
}
