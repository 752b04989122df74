#include "daemon/settings.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "daemon/process.h"

#define MEMORY_MIN ((u64)64 << 20)

static void usage(FILE *out) {
    fputs(
        "usage: hapaxd [--config FILE] [--listen HOST:PORT] [--data DIR] [--memory SIZE] [--downtime TIME]\n"
        "              [--log logfmt|json] [--log-level error|warn|info|debug] [--insecure-listen]\n"
        "              [--allow-dumps]\n"
        "       hapaxd --config FILE --check-config\n"
        "       hapaxd --version | --help\n"
        "\n"
        "  --config FILE       the queues and their rules; hapax.example.yaml explains every key\n"
        "                      (environment: HAPAX_CONFIG)\n"
        "  --check-config      say whether the file is valid, and exit\n"
        "  --listen HOST:PORT  where to serve HTTP, instead of what the file lists; default 127.0.0.1:4279, port 0\n"
        "                      picks a free one (environment: HAPAX_LISTEN)\n"
        "  --data DIR          where the journal lives; default ./hapax-data (environment: HAPAX_DATA)\n"
        "  --memory SIZE       refuse new work before the process takes more than that (environment:\n"
        "                      HAPAX_MEMORY); default: the limit of its control group, if it has one\n"
        "  --downtime TIME     how long it was down, where the wall clock is not to be believed: delays and\n"
        "                      times to live go on by that, 2h for example\n"
        "  --log FORMAT        of the log on stderr: logfmt (the default) or json (environment: HAPAX_LOG)\n"
        "  --log-level LEVEL   error, warn, info (the default) or debug: what matters less is not written\n"
        "                      (environment: HAPAX_LOG_LEVEL)\n"
        "  --insecure-listen   allow an address other than loopback without TLS and tokens: whoever reaches it may do\n"
        "                      everything, or read what passes\n"
        "  --allow-dumps       let a crash leave a core dump, and a debugger attach; there are secrets in both\n"
        "  --version           print the version\n"
        "\n"
        "Prints 'hapaxd ready on http://HOST:PORT' on stdout once it serves, with every address it serves on; logs "
        "go to\n"
        "stderr.\n"
        "Flags beat the environment, that beats the file, that beats the defaults.\n"
        "SIGTERM or SIGINT stop it cleanly, SIGHUP makes it read the file again. See hapaxd(1), and hapax(1) for the "
        "command-line client.\n",
        out);
}

static bool flag_value(int argc, char **argv, int *i, const char *name, const char **out) {
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0) return false;
    if (argv[*i][n] == '=') {
        *out = argv[*i] + n + 1;
        return true;
    }
    if (argv[*i][n] != 0) return false;
    if (*i + 1 >= argc) {
        fprintf(stderr, "hapaxd: %s needs a value\n", name);
        exit(2);
    }
    *out = argv[++*i];
    return true;
}

static const char *env_value(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void set_up_log(const struct settings *s) {
    enum log_format format = LOG_AS_LOGFMT;
    enum log_level level = LOG_INFO;
    if (s->log && !log_format_parse(slice_str(s->log), &format)) {
        fprintf(stderr, "hapaxd: --log wants logfmt or json, not '%s'\n", s->log);
        exit(2);
    }
    if (s->log_level && !log_level_parse(slice_str(s->log_level), &level)) {
        fprintf(stderr, "hapaxd: --log-level wants error, warn, info or debug, not '%s'\n", s->log_level);
        exit(2);
    }
    log_set_format(format);
    log_set_level(level);
}

void settings_parse(int argc, char **argv, struct settings *s) {
    s->config = env_value("HAPAX_CONFIG");
    s->listen = env_value("HAPAX_LISTEN");
    s->data = env_value("HAPAX_DATA");
    s->memory = env_value("HAPAX_MEMORY");
    s->log = env_value("HAPAX_LOG");
    s->log_level = env_value("HAPAX_LOG_LEVEL");
    for (int i = 1; i < argc; i++) {
        if (flag_value(argc, argv, &i, "--listen", &s->listen) || flag_value(argc, argv, &i, "--data", &s->data) ||
            flag_value(argc, argv, &i, "--config", &s->config) || flag_value(argc, argv, &i, "--memory", &s->memory) ||
            flag_value(argc, argv, &i, "--downtime", &s->downtime) || flag_value(argc, argv, &i, "--log", &s->log) ||
            flag_value(argc, argv, &i, "--log-level", &s->log_level))
            continue;
        if (strcmp(argv[i], "--insecure-listen") == 0) {
            s->insecure_listen = true;
        } else if (strcmp(argv[i], "--allow-dumps") == 0) {
            s->allow_dumps = true;
        } else if (strcmp(argv[i], "--check-config") == 0) {
            s->check_config = true;
        } else if (strcmp(argv[i], "--version") == 0) {
            puts("hapaxd " HAPAX_VERSION);
            exit(0);
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            exit(0);
        } else {
            fprintf(stderr, "hapaxd: unknown argument '%s'\n\n", argv[i]);
            usage(stderr);
            exit(2);
        }
    }
    set_up_log(s);
    u64 bytes;
    if (s->memory && (!size_parse(slice_str(s->memory), &bytes) || bytes < MEMORY_MIN)) {
        fprintf(stderr, "hapaxd: --memory wants a size of at least 64MiB, such as 4GiB, not '%s'\n", s->memory);
        exit(2);
    }
    if (s->downtime && !duration_parse(slice_str(s->downtime), &s->downtime_ms)) {
        fprintf(stderr, "hapaxd: --downtime wants a duration like 90s, 2h or 3d, not '%s'\n", s->downtime);
        exit(2);
    }
    if (!s->check_config || s->config) return;
    fprintf(stderr, "hapaxd: --check-config needs --config FILE\n");
    exit(2);
}

struct config_use settings_use(const struct settings *s) {
    return (struct config_use){.secrets = SECRETS_FROM_ENVIRONMENT,
                               .listen_elsewhere = s->listen != NULL,
                               .insecure_listen = s->insecure_listen};
}

struct config *settings_config(const struct settings *s) {
    struct buf errors = {0};
    struct config *config;
    struct config_use use = settings_use(s);
    if (!s->config) return config_default();
    if (s->check_config) use.secrets = SECRETS_AS_WRITTEN;
    if (config_load(s->config, &use, &config, &errors) == ST_OK) return config;
    slice rest = buf_slice(&errors), line;
    while (slice_cut(rest, '\n', &line, &rest)) fprintf(stderr, "hapaxd: %.*s\n", (int)line.n, line.p);
    exit(1);
}

static char *copy_text(slice s) {
    char *p = mem_zalloc(s.n + 1);
    memcpy(p, s.p, s.n);
    return p;
}

static void remember_file(struct settings *s, const struct config *config) {
    struct buf listen = {0};
    config_listen_text(config, &listen);
    s->file_listen = copy_text(buf_slice(&listen));
    s->file_data = copy_text(config->data);
    buf_free(&listen);
}

/* The flag stands for the whole list of the file. */
static void list_places(const struct settings *s, const struct config *config, struct place *p) {
    *p = (struct place){.data = s->data ? s->data : s->file_data, .count = s->listen ? 1 : config->listen.count};
    for (u32 i = 0; i < p->count; i++) {
        const struct listener_config *l = s->listen ? NULL : &config->listen.at[i];
        p->at[i] = (struct listener_place){.text = l ? l->address.p : s->listen, .config = l};
    }
}

int settings_place(struct settings *s, const struct config *config, struct place *p) {
    bool open = s->insecure_listen || config->insecure_listen;
    remember_file(s, config);
    list_places(s, config, p);
    for (u32 i = 0; i < p->count; i++) {
        struct listener_place *l = &p->at[i];
        if (!address_parse(slice_str(l->text), &l->address)) {
            fprintf(stderr, "hapaxd: --listen wants HOST:PORT with a numeric host, not '%s'\n", l->text);
            return 2;
        }
        const char *lacks = config_listener_lacks(config, &l->address, l->config && l->config->tls_cert.n);
        if (!lacks || open) continue;
        fprintf(stderr, "hapaxd: " ADDRESS_IS_OPEN "\n", l->text, lacks);
        return 2;
    }
    return 0;
}

void settings_free(struct settings *s) {
    mem_free(s->file_listen);
    mem_free(s->file_data);
}

u64 settings_memory_max(const struct settings *s) {
    u64 bytes = 0;
    if (!s->memory) return process_memory_max("");
    CHECK(size_parse(slice_str(s->memory), &bytes)); /* looked at when it was read */
    return bytes;
}
