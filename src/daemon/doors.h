/* Where the broker is reached: its addresses, and the certificates shown there. The addresses stay until a restart, the
 * certificates may change with every reload. */
#ifndef HAPAX_DAEMON_DOORS_H
#define HAPAX_DAEMON_DOORS_H

#include "daemon/settings.h"
#include "net/http.h"

struct doors {
    struct door {
        struct address address;
        char *text;      /* HOST:PORT as it was said */
        struct tls *tls; /* NULL: plain */
    } at[LISTENERS_MAX];
    u32 count;
    bool inside; /* behind them is one more, plain, on loopback, for the relays of this process and nobody else */
};

/* Certificates that are to replace those in force; NULL: the one there is stays. */
struct new_certificates {
    struct tls *at[LISTENERS_MAX];
};

/* Reads every certificate. After a failure, too, doors_free ends it. */
hx_st doors_prepare(struct doors *d, const struct place *p, struct errbuf *err);
/* relays: there are some, which speak plain HTTP. */
hx_st doors_bind(struct doors *d, struct http_server *server, bool relays, struct errbuf *err);
void doors_free(struct doors *d);
#define DOOR_URL_BYTES 96u
void door_url(const struct doors *d, u32 i, const struct http_server *server, char out[DOOR_URL_BYTES]);
/* Where the broker's own relays come in: by the first plain one, else by the one that is there for them. */
void doors_relay_url(const struct doors *d, const struct http_server *server, char out[DOOR_URL_BYTES]);

/* Appends ,"certificates":[...] to the stats: until when each that is shown is valid. */
void doors_stats(const struct doors *d, struct buf *b);

/* Is what guarded each address before still enough after it? They stay, whatever the new config says of `listen`. */
hx_st doors_stay_guarded(const struct doors *d, const struct config *before, const struct config *after,
                         struct errbuf *err);

/* What the files say now, by the config that names them; a line in `changes` for each that is another one. Another thread may
 * do it while the doors are in use. */
hx_st doors_read_again(const struct doors *d, const struct config *config, struct new_certificates *out,
                       struct buf *changes, struct errbuf *err);
/* Takes them; who is connected goes on with the old ones. */
void doors_renew(struct doors *d, struct http_server *server, struct new_certificates *new);
void new_certificates_free(struct new_certificates *new);

/* For --check-config: are the files the config names as they should be? What is not on this machine is not judged. Says on
 * stderr what it finds. */
bool doors_check(const struct config *config);

#endif
