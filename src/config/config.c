#include "config/config_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the file's own keys */

hx_st queues_read(const struct binding *b, const struct node *n) {
    struct config *c = b->base;
    if (n->kind != NODE_MAP) return node_error(n, b->err, "expected a map of queues, not %s", node_kind_text(n));
    c->queues.at = arena_alloc(c->arena, n->count * sizeof(*c->queues.at));
    for (const struct node *q = n->first; q; q = q->next) {
        struct errbuf why;
        if (!config_queue_name_ok(q->name->text, &why)) return node_error(q->name, b->err, "%s", why.text);
        if (q->kind == NODE_NULL) return node_error(q, b->err, "nothing is given; write {} for the default rules");
        hx_st st = config_queue_from_node(q->name->text, q, &c->queues.at[c->queues.count], b->err);
        if (st != ST_OK) return st;
        c->queues.count++;
    }
    return ST_OK;
}

static hx_st read_relay(const struct binding *b, const struct node *n, struct relay_config *r) {
    struct binding inner = {
        .keys = &config_keys[SCOPE_RELAY], .base = r, .arena = b->arena, .secrets = b->secrets, .err = b->err};
    hx_st st = bind_map(&inner, n);
    if (st != ST_OK) return st;
    r->at = (struct said_at){n->line, n->column};
    if (!r->dsn.n) return node_error(n, b->err, "dsn is missing");
    if (!r->queue.n) return node_error(n, b->err, "queue is missing");
    r->dsn_plain = !strstr(node_get(n, SL("dsn"))->text.p, "${");
    struct errbuf why;
    if (!config_queue_name_ok(r->queue, &why)) return node_error(node_get(n, SL("queue")), b->err, "%s", why.text);
    return ST_OK;
}

hx_st relays_read(const struct binding *b, const struct node *n) {
    struct config *c = b->base;
    if (n->kind != NODE_SEQ) return node_error(n, b->err, "expected a list of maps, not %s", node_kind_text(n));
    c->relays.at = arena_alloc(c->arena, n->count * sizeof(*c->relays.at));
    for (const struct node *r = n->first; r; r = r->next) {
        struct relay_config *relay = &c->relays.at[c->relays.count++];
        *relay = (struct relay_config){
            .table = SL("outbox"), .workers = 2, .batch = 1000, .poll_ms = 100, .timeout_ms = 5000};
        hx_st st = read_relay(b, r, relay);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

static struct config *config_new(void) {
    struct arena *arena = arena_new();
    struct config *c = arena_alloc(arena, sizeof(*c));
    c->arena = arena;
    c->listen = SL("127.0.0.1:4279");
    c->data = SL("./hapax-data");
    c->audit_keep_ms = (i64)90 * 24 * 3600 * 1000;
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
    arena_free(c->arena);
}

/* ---- reading */

static hx_st read_root(struct config *c, const struct node *root, enum config_secrets secrets, struct errbuf *err) {
    struct binding b = {
        .keys = &config_keys[SCOPE_TOP], .base = c, .said = c->said, .arena = c->arena, .secrets = secrets, .err = err};
    if (root->kind != NODE_MAP)
        return node_error(root, err, "expected keys like listen, data and queues, not %s", node_kind_text(root));
    return bind_map(&b, root);
}

hx_st config_parse(slice yaml, const char *file, enum config_secrets secrets, struct config **out, struct errbuf *err) {
    struct tree tree;
    *out = NULL;
    hx_st st = tree_from_yaml(yaml, file, &tree, err);
    if (st != ST_OK) return st;
    struct config *c = config_new();
    c->file = arena_copy(c->arena, slice_str(file));
    st = read_root(c, tree.root, secrets, err);
    tree_free(&tree);
    if (st == ST_OK)
        *out = c;
    else
        config_free(c);
    return st;
}

/* One byte more than allowed is enough to refuse it: a device that never ends must not fill the memory. */
static hx_st read_file(const char *path, struct buf *out, struct errbuf *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_IO, "%s: %s", path, strerrordesc_np(errno));
    struct stat info;
    ssize_t n = 1;
    bool too_large = fstat(fd, &info) == 0 && info.st_size > TREE_BYTES_MAX;
    while (!too_large && n > 0) {
        buf_grow(out, 65536);
        n = read(fd, out->p + out->len, 65536);
        if (n > 0) out->len += (size_t)n;
        too_large = out->len > TREE_BYTES_MAX;
    }
    int failed = errno;
    close(fd);
    if (too_large) return err_set(err, ST_INVALID, "%s:1:1: larger than %d bytes", path, TREE_BYTES_MAX);
    return n < 0 ? err_set(err, ST_IO, "%s: %s", path, strerrordesc_np(failed)) : ST_OK;
}

hx_st config_load(const char *path, enum config_secrets secrets, struct config **out, struct errbuf *err) {
    struct buf text = {0};
    *out = NULL;
    hx_st st = read_file(path, &text, err);
    if (st == ST_OK) st = config_parse(buf_slice(&text), path, secrets, out, err);
    buf_free(&text);
    return st;
}

/* ---- looking */

const struct queue_config *config_find(const struct config *c, slice queue) {
    for (u32 i = 0; i < c->queues.count; i++)
        if (c->queues.at[i] && slice_eq(c->queues.at[i]->name, queue)) return c->queues.at[i];
    return NULL;
}

static void diff_queue(const struct queue_config *before, const struct queue_config *after, struct buf *out) {
    struct buf prefix = {0};
    buf_printf(&prefix, "queue %s: ", (before ? before : after)->name.p);
    buf_char(&prefix, '\0');
    if (before && after)
        bind_diff(&config_keys[SCOPE_QUEUE], before, after, prefix.p, out);
    else
        buf_printf(out, "%s%s\n", prefix.p,
                   after ? "added" : "removed; its messages and keys stay, under its last rules");
    buf_free(&prefix);
}

void config_diff(const struct config *before, const struct config *after, struct buf *out) {
    bind_diff(&config_keys[SCOPE_TOP], before, after, "", out);
    for (u32 i = 0; i < before->queues.count; i++) {
        const struct queue_config *q = before->queues.at[i];
        if (q) diff_queue(q, config_find(after, q->name), out);
    }
    for (u32 i = 0; i < after->queues.count; i++) {
        const struct queue_config *q = after->queues.at[i];
        if (q && !config_find(before, q->name)) diff_queue(NULL, q, out);
    }
}
