/* What hapaxd was told: flags, environment, config file, defaults, in that order. */
#ifndef HAPAX_DAEMON_SETTINGS_H
#define HAPAX_DAEMON_SETTINGS_H

#include "config/address.h"
#include "config/config.h"

/* What flags and environment say; NULL where they say nothing, and the file or the defaults decide. */
struct settings {
    const char *config, *listen, *data, *memory, *downtime, *log, *log_level;
    bool insecure_listen, check_config, allow_dumps;
    i64 downtime_ms;
    char *file_listen, *file_data; /* as they were at start */
};

/* Where it is going to serve, and from which directory. */
struct place {
    const char *data;
    struct listener_place {
        const char *text; /* HOST:PORT as it was said */
        struct address address;
        const struct listener_config *config; /* NULL: a flag or the environment said it */
    } at[LISTENERS_MAX];
    u32 count;
};

/* Ends the process where they make no sense, or ask for no more than a word. Sets up the log. */
void settings_parse(int argc, char **argv, struct settings *s);
void settings_free(struct settings *s);
struct config_use settings_use(const struct settings *s);
/* The file's, or the defaults. Ends the process if the file is not valid. */
struct config *settings_config(const struct settings *s);
/* 0: go on. Else the exit status. Borrows from s and the config. */
int settings_place(struct settings *s, const struct config *config, struct place *p);
/* As the flag says, else as the control group does; 0: no bound. */
u64 settings_memory_max(const struct settings *s);

#endif
