#include "broker/browsers.h"

#include "broker/access.h"
#include "broker/broker_priv.h"
#include "broker/queue_rules.h"
#include "config/address.h"

#define HOST_KEPT 264u /* the longest name and its port */

struct browsers {
    u8 (*addresses)[ADDRESS_BYTES]; /* of the listeners */
    u32 address_count;
    bool everywhere;       /* one of them is every address of the machine */
    char known[HOST_KEPT]; /* the last Host that was known, as it was written: clients go on as they began */
    size_t known_bytes;
};

struct browsers *browsers_new(const char *const *addresses, u32 count) {
    static const u8 any_six[ADDRESS_BYTES], any_four[ADDRESS_BYTES] = {[10] = 0xFF, [11] = 0xFF};
    struct browsers *w = mem_zalloc(sizeof *w);
    w->addresses = mem_alloc((count + 1) * sizeof *w->addresses);
    w->address_count = count;
    for (u32 i = 0; i < count; i++) {
        u8 *a = w->addresses[i];
        CHECK(address_bytes(slice_str(addresses[i]), a));
        w->everywhere |= memcmp(a, any_six, ADDRESS_BYTES) == 0 || memcmp(a, any_four, ADDRESS_BYTES) == 0;
    }
    return w;
}

void browsers_free(struct browsers *w) {
    if (w) mem_free(w->addresses);
    mem_free(w);
}

void browsers_forget(struct browsers *w) {
    w->known_bytes = 0;
}

/* ---- the host */

/* NAME, NAME:PORT, [ADDRESS] or [ADDRESS]:PORT: the name or address alone. */
static slice without_port(slice host) {
    slice name, port;
    if (host.n && host.p[0] == '[') {
        slice_cut(slice_of(host.p + 1, host.n - 1), ']', &name, &port);
        return name;
    }
    slice_cut(host, ':', &name, &port);
    return name;
}

static bool is_listed(const struct host_names *hosts, slice name) {
    u8 address[ADDRESS_BYTES], listed[ADDRESS_BYTES];
    bool numeric = address_bytes(name, address);
    for (u32 i = 0; i < hosts->count; i++) {
        if (slice_eq_nocase(hosts->at[i], name)) return true;
        if (numeric && address_bytes(hosts->at[i], listed) && memcmp(address, listed, ADDRESS_BYTES) == 0) return true;
    }
    return hosts->any;
}

static bool is_own(const struct browsers *w, slice name) {
    u8 address[ADDRESS_BYTES];
    if (!address_bytes(name, address)) return slice_eq_nocase(name, SL("localhost"));
    if (w->everywhere || address_bytes_local(address)) return true;
    for (u32 i = 0; i < w->address_count; i++)
        if (memcmp(address, w->addresses[i], ADDRESS_BYTES) == 0) return true;
    return false;
}

/* Apart from host_known, which is asked for every request and mostly needs no room for addresses. */
static __attribute__((noinline)) bool host_found(struct broker *b, slice host) {
    struct browsers *w = b->browsers;
    slice name = without_port(host);
    if (!is_own(w, name) && !is_listed(&config_in_force(b)->hosts, name)) return false;
    if (host.n > HOST_KEPT) return true;
    memcpy(w->known, host.p, host.n);
    w->known_bytes = host.n;
    return true;
}

static bool host_known(struct broker *b, slice host) {
    const struct browsers *w = b->browsers;
    return host.n == 0 || slice_eq(host, slice_of(w->known, w->known_bytes)) || host_found(b, host);
}

/* ---- the page */

static slice without_suffix(slice s, slice suffix) {
    bool ends = s.n >= suffix.n && memcmp(s.p + s.n - suffix.n, suffix.p, suffix.n) == 0;
    return slice_of(s.p, ends ? s.n - suffix.n : s.n);
}

static bool same_place(slice a, slice b, slice default_port) {
    return slice_eq_nocase(without_suffix(a, default_port), without_suffix(b, default_port));
}

/* A listed name may be that of a proxy, which speaks https to browsers and passes their Host on. A page that came in the clear
 * may be anybody's: over TLS it is not ours. */
static __attribute__((noinline)) bool origin_own(struct broker *b, const struct http_request *req) {
    slice scheme = SL("http://"), secure = SL("https://"), host = req->host, origin = req->origin;
    if (host.n == 0) return false;
    if (slice_starts(origin, scheme))
        return !req->secure && same_place(slice_of(origin.p + scheme.n, origin.n - scheme.n), host, SL(":80"));
    return slice_starts(origin, secure) && (req->secure || is_listed(&config_in_force(b)->hosts, without_port(host))) &&
           same_place(slice_of(origin.p + secure.n, origin.n - secure.n), host, SL(":443"));
}

static bool opens_page(const struct http_request *req) {
    bool reads = req->method == HTTP_GET || req->method == HTTP_HEAD;
    return reads && slice_eq(req->fetch_mode, SL("navigate")) &&
           (slice_eq(req->path, SL("/")) || slice_starts(req->path, SL("/ui/")));
}

/* Once its Origin was found to be ours, or there is none. */
static bool site_own(const struct http_request *req) {
    slice site = req->fetch_site;
    if (site.n == 0 || slice_eq(site, SL("same-origin")) || slice_eq(site, SL("none"))) return true;
    return (req->origin.n && slice_eq(site, SL("same-site"))) || opens_page(req);
}

/* Where nobody may do anything without a token, a page that takes this machine's address for its own name has nothing to gain. */
static bool host_matters(const struct broker *b) {
    return access_anonymous(b) || config_in_force(b)->said[TOP_KEY_hosts].line != 0;
}

enum browser_verdict browser_verdict(struct broker *b, const struct http_request *req) {
    if (host_matters(b) && !host_known(b, req->host)) return BROWSER_MISDIRECTED;
    if (req->origin.n && !origin_own(b, req)) return BROWSER_FOREIGN;
    return site_own(req) ? BROWSER_WELCOME : BROWSER_FOREIGN;
}
