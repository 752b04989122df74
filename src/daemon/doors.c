#include "daemon/doors.h"

#include <stdio.h>

#include "base/json.h"
#include "net/tls.h"

static struct tls_files files_of(const struct listener_config *l, const struct tls *in_force) {
    return (struct tls_files){.cert = l->tls_cert.p,
                              .key = l->tls_key.p,
                              .client_ca = l->tls_client_ca.n ? l->tls_client_ca.p : NULL,
                              .in_force = in_force};
}

static hx_st load(const struct listener_config *l, const struct tls *in_force, struct tls **out, struct errbuf *err) {
    struct tls_files files = files_of(l, in_force);
    hx_st st = tls_load(&files, out, err);
    return st == ST_OK ? st : err_wrap(err, st, "listen on %s: tls", l->address.p);
}

hx_st doors_prepare(struct doors *d, const struct place *p, struct errbuf *err) {
    hx_st st = ST_OK;
    for (u32 i = 0; i < p->count && st == ST_OK; i++) {
        const struct listener_place *l = &p->at[i];
        struct door *door = &d->at[d->count++];
        size_t n = strlen(l->text) + 1;
        door->address = l->address;
        door->text = mem_alloc(n);
        memcpy(door->text, l->text, n);
        if (l->config && l->config->tls_cert.n) st = load(l->config, NULL, &door->tls, err);
    }
    return st;
}

static u32 first_plain(const struct doors *d) {
    u32 i = 0;
    while (i < d->count && d->at[i].tls) i++;
    return i;
}

hx_st doors_bind(struct doors *d, struct http_server *server, bool relays, struct errbuf *err) {
    for (u32 i = 0; i < d->count; i++) {
        const struct door *door = &d->at[i];
        hx_st st = http_server_bind(server, door->address.host, door->address.port, door->tls, err);
        const char *way_out = st == ST_BUSY ? " (--listen or HAPAX_LISTEN names another)" : "";
        if (st != ST_OK) return err_wrap(err, st, "listen on %s%s", door->text, way_out);
    }
    if (!relays || first_plain(d) < d->count) return ST_OK;
    hx_st st = http_server_bind(server, "127.0.0.1", 0, NULL, err);
    if (st != ST_OK) return err_wrap(err, st, "listen on 127.0.0.1 for the relays");
    http_server_inside(server, d->count);
    d->inside = true;
    return ST_OK;
}

void doors_free(struct doors *d) {
    for (u32 i = 0; i < d->count; i++) {
        mem_free(d->at[i].text);
        tls_release(d->at[i].tls);
    }
    d->count = 0;
}

void door_url(const struct doors *d, u32 i, const struct http_server *server, char out[DOOR_URL_BYTES]) {
    const char *host = d->at[i].address.host;
    bool six = strchr(host, ':') != NULL;
    snprintf(out, DOOR_URL_BYTES, "http%s://%s%s%s:%u", d->at[i].tls ? "s" : "", six ? "[" : "", host, six ? "]" : "",
             http_server_port(server, i));
}

void doors_relay_url(const struct doors *d, const struct http_server *server, char out[DOOR_URL_BYTES]) {
    if (d->inside)
        snprintf(out, DOOR_URL_BYTES, "http://127.0.0.1:%u", http_server_port(server, d->count));
    else
        door_url(d, first_plain(d) < d->count ? first_plain(d) : 0, server, out);
}

void doors_stats(const struct doors *d, struct buf *b) {
    json_put_name(b, "certificates");
    buf_char(b, '[');
    for (u32 i = 0; i < d->count; i++) {
        if (!d->at[i].tls) continue;
        buf_slice_add(b, b->p[b->len - 1] == '[' ? SL("{") : SL(",{"));
        json_put_member(b, "address", slice_str(d->at[i].text));
        json_put_member_time(b, "expires_at", tls_expires_ms(d->at[i].tls));
        buf_char(b, '}');
    }
    buf_char(b, ']');
}

/* ---- another config */

hx_st doors_stay_guarded(const struct doors *d, const struct config *before, const struct config *after,
                         struct errbuf *err) {
    for (u32 i = 0; i < d->count && !after->insecure_listen; i++) {
        const struct door *door = &d->at[i];
        const char *lacks = config_listener_lacks(after, &door->address, door->tls != NULL);
        if (lacks && !config_listener_lacks(before, &door->address, door->tls != NULL))
            return err_set(err, ST_INVALID,
                           "%s is served until a restart, is not a loopback address, and would be left without %s. "
                           "Restart instead, or keep them until then",
                           door->text, lacks);
    }
    return ST_OK;
}

/* Of one with a certificate. Port 0, which is any, may be said of a plain one beside it. */
static const struct listener_config *said_of(const struct door *door, const struct config *config) {
    for (u32 i = 0; i < config->listen.count; i++) {
        const struct listener_config *l = &config->listen.at[i];
        if (l->tls_cert.n && slice_eq(l->address, slice_str(door->text))) return l;
    }
    return NULL;
}

static void put_change(struct buf *changes, const struct door *door, const struct tls *tls) {
    buf_printf(changes, "listen %s: another certificate, valid until ", door->text);
    buf_rfc3339(changes, tls_expires_ms(tls));
    buf_char(changes, '\n');
}

hx_st doors_read_again(const struct doors *d, const struct config *config, struct new_certificates *out,
                       struct buf *changes, struct errbuf *err) {
    hx_st st = ST_OK;
    for (u32 i = 0; i < d->count && st == ST_OK; i++) {
        const struct listener_config *l = said_of(&d->at[i], config);
        if (!d->at[i].tls || !l) continue;
        st = load(l, d->at[i].tls, &out->at[i], err);
        if (st == ST_OK && tls_same(out->at[i], d->at[i].tls)) {
            tls_release(out->at[i]);
            out->at[i] = NULL;
        }
        if (out->at[i]) put_change(changes, &d->at[i], out->at[i]);
    }
    return st;
}

void doors_renew(struct doors *d, struct http_server *server, struct new_certificates *new) {
    for (u32 i = 0; i < d->count; i++) {
        if (!new->at[i]) continue;
        http_server_secure(server, i, new->at[i]);
        tls_release(d->at[i].tls);
        d->at[i].tls = new->at[i];
        new->at[i] = NULL;
    }
}

void new_certificates_free(struct new_certificates *new) {
    for (u32 i = 0; i < LISTENERS_MAX; i++) tls_release(new->at[i]);
    *new = (struct new_certificates){0};
}

bool doors_check(const struct config *config) {
    bool good = true;
    for (u32 i = 0; i < config->listen.count; i++) {
        struct tls *tls = NULL;
        struct errbuf err = {{0}};
        if (!config->listen.at[i].tls_cert.n) continue;
        hx_st st = load(&config->listen.at[i], NULL, &tls, &err);
        if (st != ST_OK) fprintf(stderr, "hapaxd: %s%s\n", err.text, st == ST_NOT_FOUND ? ": not looked at" : "");
        good &= st == ST_OK || st == ST_NOT_FOUND;
        tls_release(tls);
    }
    return good;
}
