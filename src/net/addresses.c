/* Where connections come from.
 *
 * There is an entry for each address with a connection, and those without one are kept until their entry is needed: a client
 * that reconnects is the same client. There are more entries than connections can be, so one is always to be had, and
 * everything here takes the same time however many there are: entries with equally many connections are in one list, and
 * with each connection an entry moves to the next list or the one before. */
#include "net/server_priv.h"

#include <arpa/inet.h>

#define REMEMBERED 4096u /* without a connection, at least */

struct http_addresses {
    struct siphash_key key; /* nobody can aim at one chain */
    u32 cap, used, most;
    u32 chain_mask;
    struct http_address **chains;
    struct http_link *by_count; /* [connections]; the longest in it first */
    struct http_address at[];
};

struct http_addresses *http_addresses_new(u32 connections_max) {
    u32 cap = connections_max + 1 + REMEMBERED, chains = 1; /* a newcomer is counted before another goes */
    while (chains < cap) chains *= 2;
    struct http_addresses *a = mem_zalloc(sizeof *a + cap * sizeof a->at[0]);
    random_bytes(&a->key, sizeof a->key);
    a->cap = cap;
    a->chain_mask = chains - 1;
    a->chains = mem_zalloc(chains * sizeof(struct http_address *));
    a->by_count = mem_alloc((connections_max + 2) * sizeof *a->by_count);
    for (u32 i = 0; i < connections_max + 2; i++) http_link_init(&a->by_count[i]);
    return a;
}

void http_addresses_free(struct http_addresses *a) {
    mem_free(a->chains);
    mem_free(a->by_count);
    mem_free(a);
}

static struct http_address **chain_of(struct http_addresses *a, const u8 bytes[HTTP_ADDRESS_BYTES]) {
    return &a->chains[siphash(&a->key, bytes, HTTP_ADDRESS_BYTES) & a->chain_mask];
}

static struct http_address *find(struct http_addresses *a, const u8 bytes[HTTP_ADDRESS_BYTES]) {
    struct http_address *at = *chain_of(a, bytes);
    while (at && memcmp(at->bytes, bytes, HTTP_ADDRESS_BYTES) != 0) at = at->chain;
    return at;
}

/* The address that has been without a connection for longest is forgotten. */
static struct http_address *take_entry(struct http_addresses *a) {
    if (a->used < a->cap) return &a->at[a->used++];
    CHECK(!http_link_alone(&a->by_count[0]));
    struct http_address *old = HTTP_LINK_OF(a->by_count[0].next, struct http_address, rank);
    struct http_address **from = chain_of(a, old->bytes);
    while (*from != old) from = &(*from)->chain;
    *from = old->chain;
    http_link_remove(&old->rank);
    return old;
}

static struct http_address *make(struct http_addresses *a, const u8 bytes[HTTP_ADDRESS_BYTES]) {
    struct http_address *new = take_entry(a), **chain = chain_of(a, bytes);
    *new = (struct http_address){.chain = *chain};
    memcpy(new->bytes, bytes, HTTP_ADDRESS_BYTES);
    http_link_init(&new->conns);
    http_link_init(&new->rank);
    *chain = new;
    return new;
}

static void rank(struct http_addresses *a, struct http_address *at) {
    http_link_remove(&at->rank);
    http_link_add(&a->by_count[at->count], &at->rank);
    if (at->count > a->most) a->most = at->count;
    while (a->most && http_link_alone(&a->by_count[a->most])) a->most--;
}

/* Whoever has one address of an IPv6 network has 2^64 of them. */
static void network_of(const u8 address[HTTP_ADDRESS_BYTES], u8 out[HTTP_ADDRESS_BYTES]) {
    static const u8 four[12] = {[10] = 0xFF, [11] = 0xFF};
    memcpy(out, address, HTTP_ADDRESS_BYTES);
    if (memcmp(address, four, sizeof four) != 0) memset(out + 8, 0, 8);
}

void http_address_join(struct http_conn *c, const u8 address[HTTP_ADDRESS_BYTES]) {
    struct http_addresses *a = c->server->addresses;
    u8 bytes[HTTP_ADDRESS_BYTES];
    network_of(address, bytes);
    struct http_address *at = find(a, bytes);
    if (!at) at = make(a, bytes);
    c->address = at;
    http_link_add(&at->conns, &c->mine);
    at->count++;
    rank(a, at);
}

void http_address_leave(struct http_conn *c) {
    struct http_address *at = c->address;
    if (!at) return;
    c->address = NULL;
    http_link_remove(&c->mine);
    CHECK(at->count > 0);
    at->count--;
    rank(c->server->addresses, at);
}

struct http_address *http_address_most(const struct http_addresses *a) {
    return a->most ? HTTP_LINK_OF(a->by_count[a->most].next, struct http_address, rank) : NULL;
}

void http_use_text(const struct http_use *of_an_address, char out[HTTP_ADDRESS_TEXT]) {
    http_address_text(HTTP_LINK_OF(of_an_address, struct http_address, use), out);
}

void http_address_text(const struct http_address *a, char out[HTTP_ADDRESS_TEXT]) {
    static const u8 four[12] = {[10] = 0xFF, [11] = 0xFF};
    bool is_four = memcmp(a->bytes, four, sizeof four) == 0;
    CHECK(inet_ntop(is_four ? AF_INET : AF_INET6, is_four ? a->bytes + 12 : a->bytes, out, HTTP_ADDRESS_TEXT - 3));
    if (!is_four) memcpy(out + strlen(out), "/64", 4);
}
