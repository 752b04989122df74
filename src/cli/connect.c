/* How every verb reaches its broker. A flag is the same as its environment variable and beats it, and what a command started
 * by this one (receive --exec) inherits is what this one was told. */
#include <stdlib.h>
#include <sys/stat.h>

#include "cli/cli.h"

static const struct {
    const char *flag, *variable;
} settings[] = {
    {"api-token", "HAPAX_API_TOKEN"},
    {"api-token-file", "HAPAX_API_TOKEN_FILE"},
    {"insecure-token", "HAPAX_INSECURE_TOKEN"},
    {"cacert", "HAPAX_CACERT"},
    {"cert", "HAPAX_CERT"},
    {"cert-key", "HAPAX_CERT_KEY"},
};

void cli_blank(const char *argument) {
    char *given = (char *)(uintptr_t)argument;
    memset(given, 'x', strlen(given));
}

static const char *from_environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* A token on the command line can be seen by everybody on this machine, at least until now. */
static void take_flags(struct cli *cli) {
    if (args_has(cli, "api-token-file")) unsetenv("HAPAX_API_TOKEN");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const char *value = args_get(cli, settings[i].flag);
        if (value) CHECK(setenv(settings[i].variable, *value ? value : "1", 1) == 0);
    }
    const char *token;
    for (size_t at = 0; (token = args_next(cli, "api-token", &at));) cli_blank(token);
}

static void warn_of_readers(const char *path, const char *what) {
    struct stat s;
    if (path && stat(path, &s) == 0 && S_ISREG(s.st_mode) && s.st_mode & S_IROTH)
        say("everybody on this machine can read %s, and with it %s: chmod 600 it", path, what);
}

const hx_options *cli_connect(struct cli *cli) {
    hx_options *o = &cli->connect;
    if (o->url) return o;
    take_flags(cli);
    o->url = cli->url;
    o->api_token = from_environment("HAPAX_API_TOKEN");
    if (!o->api_token) o->api_token_file = from_environment("HAPAX_API_TOKEN_FILE");
    o->insecure_token = from_environment("HAPAX_INSECURE_TOKEN") != NULL;
    o->ca_file = from_environment("HAPAX_CACERT");
    o->cert_file = from_environment("HAPAX_CERT");
    o->key_file = from_environment("HAPAX_CERT_KEY");
    warn_of_readers(o->api_token_file, "the token");
    warn_of_readers(o->key_file ? o->key_file : o->cert_file, "the key");
    return o;
}
