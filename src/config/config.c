#include "config/config_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/address.h"

/* ---- the file's own keys */

hx_st gate_refuse(const struct node *n, slice queue, struct errbuf *err) {
    if (!slice_starts(queue, SL(GATE_PREFIX))) return ST_OK;
    return node_error(n, err, "queues called " GATE_PREFIX "NAME are those of `proxies`");
}

static hx_st read_queue(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    struct errbuf why;
    struct queue_config *q = NULL;
    hx_st st = ST_OK;
    if (!config_queue_name_ok(n->name->text, &why)) st = node_error(n->name, b->err, "%s", why.text);
    st = both(st, gate_refuse(n->name, n->name->text, b->err));
    if (n->kind == NODE_NULL) return node_error(n, b->err, "nothing is given; write {} for the default rules");
    st = both(st, config_queue_from_node(n->name->text, n, b->secrets, &q, b->err));
    if (q) c->queues.at[c->queues.count++] = q;
    return st;
}

hx_st queues_read(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    hx_st st = ST_OK;
    if (n->kind != NODE_MAP) return node_error(n, b->err, "expected a map of queues, not %s", node_kind_text(n));
    c->queues.at = arena_alloc(c->arena, n->count * sizeof(*c->queues.at));
    for (const struct node *q = n->first; q; q = q->next) st = both(st, read_queue(b, q));
    return st;
}

/* The short form is a list of one. */
static hx_st read_listener(const struct binding *b, const struct node *n, struct listener_config *l) {
    struct binding inner = {.keys = &config_keys[TABLE_LISTENER], .base = l, .arena = b->arena, .err = b->err};
    hx_st st = n->kind == NODE_SCALAR ? value_read(&inner, &inner.keys->at[0], n) : bind_map(&inner, n);
    if (st != ST_OK) return st;
    if (l->address.n == 0) return node_error(n, b->err, "address is missing");
    if (!l->tls_cert.n != !l->tls_key.n || (l->tls_client_ca.n && !l->tls_cert.n))
        return node_error(node_get(n, SL("tls")), b->err, "needs both cert and key");
    return ST_OK;
}

static bool is_repeated(const struct listeners *l, u32 i) {
    struct address one, other;
    if (!address_parse(l->at[i].address, &one) || one.port == 0) return false;
    for (u32 k = 0; k < i; k++)
        if (address_parse(l->at[k].address, &other) && other.port == one.port && strcmp(other.host, one.host) == 0)
            return true;
    return false;
}

hx_st listeners_read(const struct binding *b, const struct node *n) {
    struct listeners *l = &binding_config(b)->listen;
    bool list = n->kind == NODE_SEQ;
    hx_st st = ST_OK;
    if (list && n->count == 0) return node_error(n, b->err, "empty: nobody could reach the broker");
    if (list && n->count > LISTENERS_MAX) return node_error(n, b->err, "more than %u listeners", LISTENERS_MAX);
    *l = (struct listeners){.at = arena_alloc(b->arena, (list ? n->count : 1) * sizeof(*l->at))};
    for (const struct node *c = list ? n->first : n; c && st == ST_OK; c = list ? c->next : NULL) {
        l->at[l->count] = (struct listener_config){0};
        st = read_listener(b, c, &l->at[l->count++]);
        if (st == ST_OK && is_repeated(l, l->count - 1)) st = node_error(c, b->err, "the same address once more");
    }
    return st;
}

static hx_st read_relay(const struct binding *b, const struct node *n, struct relay_config *r) {
    struct binding inner = {
        .keys = &config_keys[TABLE_RELAY], .base = r, .arena = b->arena, .secrets = b->secrets, .err = b->err};
    hx_st st = bind_map(&inner, n);
    const struct node *dsn = node_get(n, SL("dsn")), *queue = node_get(n, SL("queue"));
    if (n->kind != NODE_MAP) return st;
    r->at = (struct said_at){n->line, n->column};
    if (!dsn) st = node_error(n, b->err, "dsn is missing");
    if (!queue) st = node_error(n, b->err, "queue is missing");
    if (st != ST_OK || !dsn || !queue) return st;
    r->queue_at = (struct said_at){queue->line, queue->column};
    r->dsn_plain = dsn->kind == NODE_SCALAR && !strstr(dsn->text.p, "${");
    struct errbuf why;
    if (!config_queue_name_ok(r->queue, &why)) return node_error(queue, b->err, "%s", why.text);
    return gate_refuse(queue, r->queue, b->err);
}

hx_st relays_read(const struct binding *b, const struct node *n) {
    struct config *c = binding_config(b);
    hx_st st = ST_OK;
    if (n->kind != NODE_SEQ) return node_error(n, b->err, "expected a list of maps, not %s", node_kind_text(n));
    c->relays.at = arena_alloc(c->arena, n->count * sizeof(*c->relays.at));
    for (const struct node *r = n->first; r; r = r->next) {
        struct relay_config *relay = &c->relays.at[c->relays.count++];
        *relay = (struct relay_config){
            .table = SL("outbox"), .workers = 2, .batch = 1000, .poll_ms = 100, .timeout_ms = 5000};
        st = both(st, read_relay(b, r, relay));
    }
    return st;
}

static struct config *config_new(void) {
    struct arena *arena = arena_new();
    struct config *c = arena_alloc(arena, sizeof(*c));
    c->arena = arena;
    c->listen = (struct listeners){.at = arena_alloc(arena, sizeof(*c->listen.at)), .count = 1};
    c->listen.at[0].address = SL("127.0.0.1:4279");
    c->data = SL("./hapax-data");
    c->audit_keep_ms = (i64)90 * 24 * 3600 * 1000;
    c->limits.connections = 10000;
    c->alerts =
        (struct top_alerts){.disk_low_ppm = 100000, .memory_high_ppm = 900000, .sync_slow = 10, .relay_lag_ms = 60000};
    return c;
}

struct config *config_default(void) {
    struct config *c = config_new();
    c->auto_create = true;
    return c;
}

void config_free(struct config *c) {
    if (!c) return;
    for (u32 i = 0; i < c->queues.count; i++) config_queue_free(c->queues.at[i]);
    proxies_free(c);
    arena_free_wiped(c->arena);
}

/* ---- what cannot go together */

const char *config_listener_lacks(const struct config *c, const struct address *address, bool tls) {
    bool tokens = c->tokens.count > 0;
    if (address_is_local(address) || (tls && tokens)) return NULL;
    return tls ? "tokens" : tokens ? "tls" : "tls and tokens";
}

/* Without tokens whoever reaches the address can do everything, without TLS whoever is on the way. */
static hx_st check_listen(const struct config *c, const struct node *root, const struct config_use *use) {
    const struct node *said = node_get(root, SL("listen"));
    hx_st st = ST_OK;
    if (!said || use->listen_elsewhere || use->insecure_listen || c->insecure_listen) return ST_OK;
    const struct node *n = said->kind == NODE_SEQ ? said->first : said;
    for (u32 i = 0; i < c->listen.count; i++, n = n->next) {
        struct address address;
        CHECK(address_parse(c->listen.at[i].address, &address));
        const char *lacks = config_listener_lacks(c, &address, c->listen.at[i].tls_cert.n > 0);
        if (lacks) st = node_error(n, NULL, ADDRESS_IS_OPEN, c->listen.at[i].address.p, lacks);
    }
    return st;
}

/* A relay sends each row under its id, again and again until it is taken. */
static hx_st check_relay(const struct config *c, const struct relay_config *r, const struct node *n) {
    const struct queue_config *q = config_find(c, r->queue);
    const struct node *at = node_get(n, SL("queue"));
    if (q && q->key)
        return node_error(at, NULL, "queue %s makes its own keys (key:), and a relay sends its rows' ids", r->queue.p);
    if (q && q->rules.semantics == SEMANTICS_AT_LEAST_ONCE)
        return node_error(at, NULL, "queue %s is at_least_once: what a relay sends again would be taken again",
                          r->queue.p);
    return ST_OK;
}

static hx_st check_notify(const struct config *c, const struct node *root) {
    const struct node *alerts = node_get(root, SL("alerts")), *notify = alerts ? node_get(alerts, SL("notify")) : NULL;
    if (c->alerts.notify_url.n && !c->alerts.notify_secrets.count)
        return node_error(node_get(notify, SL("url")), NULL, "needs alerts.notify.secrets beside it");
    if (!c->alerts.notify_url.n && c->alerts.notify_secrets.count)
        return node_error(node_get(notify, SL("secrets")), NULL, "needs alerts.notify.url beside it");
    return ST_OK;
}

static hx_st check_file(const struct config *c, const struct node *root, const struct config_use *use) {
    const struct node *relays = node_get(root, SL("relay"));
    hx_st st = both(check_listen(c, root, use), check_notify(c, root));
    st = both(st, tokens_check(c, node_get(root, SL("tokens"))));
    st = both(st, tenants_check(c, node_get(root, SL("tenants"))));
    u32 i = 0;
    for (const struct node *n = relays ? relays->first : NULL; n; n = n->next)
        st = both(st, check_relay(c, &c->relays.at[i++], n));
    return st;
}

/* ---- reading */

static int by_name(const void *a, const void *b) {
    slice x = (*(const struct queue_config *const *)a)->name, y = (*(const struct queue_config *const *)b)->name;
    int order = memcmp(x.p, y.p, x.n < y.n ? x.n : y.n);
    return order ? order : (x.n > y.n) - (x.n < y.n);
}

static void order_queues(struct config *c) {
    size_t bytes = c->queues.count * sizeof(*c->queues.ordered);
    c->queues.ordered = arena_alloc(c->arena, bytes);
    if (!bytes) return;
    memcpy(c->queues.ordered, c->queues.at, bytes);
    qsort(c->queues.ordered, c->queues.count, sizeof(*c->queues.ordered), by_name);
}

static hx_st read_root(struct config *c, const struct node *root, const struct config_use *use) {
    struct binding b = {
        .keys = &config_keys[TABLE_TOP], .base = c, .said = c->said, .arena = c->arena, .secrets = use->secrets};
    if (root->kind != NODE_MAP)
        return node_error(root, NULL, "expected keys like listen, data and queues, not %s", node_kind_text(root));
    hx_st st = bind_map(&b, root);
    if (st == ST_OK && c->proxies.count) st = proxies_add_queues(c, node_get(root, SL("proxies")));
    order_queues(c);
    return st == ST_OK ? check_file(c, root, use) : st;
}

hx_st config_parse(slice yaml, const char *file, const struct config_use *use, struct config **out,
                   struct buf *errors) {
    struct tree tree;
    *out = NULL;
    hx_st st = tree_read(TREE_YAML, yaml, file, &tree);
    struct config *c = config_new();
    c->file = arena_copy(c->arena, slice_str(file));
    if (tree.root) st = both(st, read_root(c, tree.root, use));
    if (st == ST_OK) {
        *out = c;
    } else {
        tree_put_mistakes(&tree, errors);
        config_free(c);
    }
    tree_free(&tree);
    return st;
}

/* Whoever may write to it can give himself a token. A pipe is nobody's. */
static hx_st refuse_if_shared(const char *path, const struct stat *info, struct errbuf *err) {
    if (!S_ISREG(info->st_mode) || !(info->st_mode & S_IWOTH)) return ST_OK;
    return err_set(err, ST_DENIED, "%s: anybody may write to it (its mode is %04o): chmod o-w %s", path,
                   (unsigned)info->st_mode & 07777u, path);
}

/* One byte more than allowed is enough to refuse it: a device that never ends must not fill the memory. */
static hx_st read_file(const char *path, struct buf *out, struct errbuf *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "%s: %s", path, strerrordesc_np(errno));
    struct stat info = {0};
    ssize_t n = 1;
    bool too_large = fstat(fd, &info) == 0 && info.st_size > TREE_BYTES_MAX;
    if (!too_large) buf_grow(out, (size_t)info.st_size + 131072);
    while (!too_large && n > 0) {
        buf_grow(out, 65536);
        n = read(fd, out->p + out->len, 65536);
        if (n > 0) out->len += (size_t)n;
        too_large = out->len > TREE_BYTES_MAX;
    }
    int failed = errno;
    close(fd);
    if (too_large) return err_set(err, ST_INVALID, "%s:1:1: larger than %d bytes", path, TREE_BYTES_MAX);
    if (n < 0) return err_set(err, ST_IO, "%s: %s", path, strerrordesc_np(failed));
    return refuse_if_shared(path, &info, err);
}

hx_st config_load(const char *path, const struct config_use *use, struct config **out, struct buf *errors) {
    struct buf text = {0};
    struct errbuf err;
    *out = NULL;
    hx_st st = read_file(path, &text, &err);
    if (st == ST_OK)
        st = config_parse(buf_slice(&text), path, use, out, errors);
    else
        buf_printf(errors, "%s\n", err.text);
    buf_free_wiped(&text);
    return st;
}

/* ---- looking */

const struct queue_config *config_find(const struct config *c, slice queue) {
    struct queue_config sought = {.name = queue}, *key = &sought;
    struct queue_config **found =
        c->queues.count ? bsearch(&key, c->queues.ordered, c->queues.count, sizeof(key), by_name) : NULL;
    return found ? *found : NULL;
}

u32 config_declared(const struct config *c) {
    return c->queues.count - c->proxies.count;
}

void config_listen_text(const struct config *c, struct buf *out) {
    for (u32 i = 0; i < c->listen.count; i++) {
        const struct listener_config *l = &c->listen.at[i];
        buf_printf(out, "%s%s%s", i ? ", " : "", l->address.p, l->tls_cert.n ? " (tls)" : "");
    }
}

void config_queue_diff(const struct queue_config *before, const struct queue_config *after, struct buf *out) {
    bind_diff(&config_keys[TABLE_QUEUE], before, after, "", out);
}

void config_queues_compare(const struct config *before, struct config *after) {
    struct buf differences = {0};
    for (u32 i = 0; i < after->queues.count; i++) {
        struct queue_config *q = after->queues.at[i];
        const struct queue_config *was = config_find(before, q->name);
        if (!was || slice_eq(was->json, q->json)) continue;
        buf_reset(&differences);
        config_queue_diff(was, q, &differences);
        q->differences = arena_copy(q->arena, buf_slice(&differences));
        q->former = was;
    }
    buf_free(&differences);
}

static void diff_queue(const struct queue_config *before, const struct queue_config *after, struct buf *out) {
    if (before && after && slice_eq(before->json, after->json) && deliver_same_secrets(before, after)) return;
    bind_diff_named(&config_keys[TABLE_QUEUE], "queue", (before ? before : after)->name, before, after,
                    "removed; its messages and keys stay, under its last rules", out);
}

void config_diff(const struct config *before, const struct config *after, struct buf *out) {
    bind_diff(&config_keys[TABLE_TOP], before, after, "", out);
    tokens_diff(before, after, out);
    sources_diff(before, after, out);
    proxies_diff(before, after, out);
    tenants_diff(before, after, out);
    for (u32 i = 0; i < before->queues.count; i++) {
        const struct queue_config *q = before->queues.at[i];
        if (!q->proxy) diff_queue(q, config_find(after, q->name), out);
    }
    for (u32 i = 0; i < after->queues.count; i++) {
        const struct queue_config *q = after->queues.at[i];
        if (!q->proxy && !config_find(before, q->name)) diff_queue(NULL, q, out);
    }
}
