/* The dashboard's files (src/web), as they lie in the binary. */
#ifndef HAPAX_BROKER_WEB_H
#define HAPAX_BROKER_WEB_H

struct web_file {
    const char *name, *type; /* NULL ends the list */
    const char *bytes, *end;
};

extern const struct web_file web_files[]; /* the first is the page itself */

#endif
