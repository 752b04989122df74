#include <arpa/inet.h>

#include "client/client_priv.h"

static char *copy(slice s) {
    char *p = mem_alloc(s.n + 1);
    if (s.n) memcpy(p, s.p, s.n);
    p[s.n] = '\0';
    return p;
}

static bool host_ok(slice host) {
    if (host.n == 0 || host.n > 255) return false;
    for (size_t i = 0; i < host.n; i++) {
        char c = host.p[i];
        bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!word && !strchr(".-_:%", c)) return false;
    }
    return true;
}

/* HOST, HOST:PORT, [V6] or [V6]:PORT */
static bool authority_cut(slice authority, slice *host, slice *port) {
    if (slice_starts(authority, SL("["))) {
        slice rest;
        if (!slice_cut(slice_of(authority.p + 1, authority.n - 1), ']', host, &rest)) return false;
        if (rest.n == 0) return true;
        if (rest.p[0] != ':') return false;
        *port = slice_of(rest.p + 1, rest.n - 1);
        return true;
    }
    slice tail;
    if (!slice_cut(authority, ':', host, &tail)) return true;
    *port = tail;
    return memchr(tail.p, ':', tail.n) == NULL;
}

bool url_parse(const char *text, struct url *out, struct errbuf *err) {
    slice s = slice_str(text);
    bool https = slice_starts(s, SL("https://"));
    const slice scheme = https ? SL("https://") : SL("http://");
    if (!slice_starts(s, scheme)) return err_set(err, ST_INVALID, "not an http:// or https:// URL: %s", text), false;
    slice authority, path, host, port = https ? SL("443") : SL("80");
    slice_cut(slice_of(s.p + scheme.n, s.n - scheme.n), '/', &authority, &path);
    u64 number;
    if (!authority_cut(authority, &host, &port) || !host_ok(host))
        return err_set(err, ST_INVALID, "no usable host in URL %s", text), false;
    if (!slice_u64(port, &number) || number == 0 || number > 65535)
        return err_set(err, ST_INVALID, "no usable port in URL %s", text), false;
    for (size_t i = 0; i < path.n; i++)
        if ((u8)path.p[i] <= ' ' || (u8)path.p[i] >= 0x7f || strchr("?#", path.p[i]))
            return err_set(err, ST_INVALID, "a broker's URL has no query, fragment or blank: %s", text), false;
    while (path.n && path.p[path.n - 1] == '/') path.n--;
    out->https = https;
    out->host = copy(host);
    out->port = copy(port);
    out->authority = copy(authority);
    out->prefix = copy(path.n ? slice_of(path.p - 1, path.n + 1) : SL(""));
    out->text = copy(s);
    return true;
}

bool url_is_here(const struct url *u) {
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, u->host, &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, u->host, &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
    return slice_eq_nocase(slice_str(u->host), SL("localhost"));
}

void url_free(struct url *u) {
    mem_free(u->host);
    mem_free(u->port);
    mem_free(u->authority);
    mem_free(u->prefix);
    mem_free(u->text);
    *u = (struct url){0};
}
