/* Values that are nobody's business: read with ${NAME} from the environment, and never quoted in a message. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/config_priv.h"

enum { SECRET_BYTES_MAX = 4096, NAME_BYTES_MAX = 255, KEY_BYTES_MIN = 24, KEY_BYTES_MAX = 64 };

/* What a service manager has put into a file of its own for this process alone, so that it is not in the environment, which whoever
 * sees the process may see. Appends it without the line break at its end; false: there is none. */
static bool put_credential(const char *name, struct buf *out) {
    const char *folder = getenv("CREDENTIALS_DIRECTORY");
    char path[PATH_MAX];
    if (!folder || snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path)) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    buf_grow(out, SECRET_BYTES_MAX);
    ssize_t n = read(fd, out->p + out->len, SECRET_BYTES_MAX);
    close(fd);
    if (n > 0 && out->p[out->len + (size_t)n - 1] == '\n') n--;
    out->len += n > 0 ? (size_t)n : 0;
    return n > 0;
}

/* For all of a secret: the text as it is written, and what one variable in it stands for. */
static struct buf secret_room(void) {
    struct buf b = {0};
    buf_grow(&b, (size_t)2 * SECRET_BYTES_MAX);
    return b;
}

static hx_st put_variable(const struct binding *b, const struct node *n, slice name, struct buf *out) {
    char text[NAME_BYTES_MAX + 1];
    bool good = name.n > 0 && name.n < sizeof(text);
    for (size_t i = 0; good && i < name.n; i++) {
        char c = name.p[i];
        good = c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (i > 0 && c >= '0' && c <= '9');
    }
    if (!good) return node_error(n, b->err, "${%.*s} names no environment variable", (int)name.n, name.p);
    snprintf(text, sizeof(text), "%.*s", (int)name.n, name.p);
    if (b->secrets != SECRETS_FROM_ENVIRONMENT) {
        buf_printf(out, "${%s}", text);
        return ST_OK;
    }
    slice value = slice_str(getenv(text));
    if (value.n > SECRET_BYTES_MAX)
        return node_error(n, b->err, "the environment variable %s is longer than %d bytes", text, SECRET_BYTES_MAX);
    buf_slice_add(out, value);
    if (value.n || put_credential(text, out)) return ST_OK;
    return node_error(n, b->err, "the environment variable %s is %s", text, getenv(text) ? "empty" : "not set");
}

static hx_st check_text(const struct binding *b, const struct key *k, const struct node *n) {
    if (n->kind != NODE_SCALAR)
        return node_error(n, b->err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
    if (n->text.n == 0) return node_error(n, b->err, "empty");
    if (n->text.n > SECRET_BYTES_MAX) return node_error(n, b->err, "longer than %d bytes", SECRET_BYTES_MAX);
    return has_control(n->text) ? node_error(n, b->err, "a control character") : ST_OK;
}

static bool names_variable(const struct node *n) {
    return memmem(n->text.p, n->text.n, "${", 2) != NULL;
}

/* What is shown and journaled in a secret's place is no secret. */
static bool is_withheld(const struct node *n) {
    return n->kind == NODE_SCALAR && slice_eq(n->text, SL(NODE_WITHHELD));
}

/* Is all of it known, or is a ${NAME} left that only the daemon's environment has? */
static bool is_whole(const struct binding *b, const struct node *n) {
    return b->secrets == SECRETS_FROM_ENVIRONMENT || (n->kind == NODE_SCALAR && !names_variable(n) && !is_withheld(n));
}

static hx_st put_text(const struct binding *b, const struct key *k, const struct node *n, struct buf *out) {
    hx_st st = check_text(b, k, n);
    slice left = n->text;
    while (st == ST_OK && left.n) {
        const char *from = memmem(left.p, left.n, "${", 2);
        buf_slice_add(out, slice_of(left.p, from ? (size_t)(from - left.p) : left.n));
        if (!from) break;
        const char *name = from + 2, *end = memchr(name, '}', left.n - (size_t)(name - left.p));
        if (!end) return node_error(n, b->err, "${ without its }");
        st = put_variable(b, n, slice_of(name, (size_t)(end - name)), out);
        left = slice_of(end + 1, left.n - (size_t)(end + 1 - left.p));
    }
    return st;
}

/* An address for libcurl. Who asks is told by the signature, so a name and password in it are a mistake, which logs would show. */
static hx_st check_url(const struct binding *b, const struct node *n, slice url) {
    slice scheme = slice_starts(url, SL("https://")) ? SL("https://") : SL("http://");
    if (!slice_starts(url, scheme)) return node_error(n, b->err, "does not begin with https:// or http://");
    slice host = slice_of(url.p + scheme.n, url.n - scheme.n);
    host.n = strcspn(host.p, "/?#");
    for (size_t i = 0; i < url.n; i++)
        if (url.p[i] <= ' ' || url.p[i] == 0x7F) return node_error(n, b->err, "a blank or control character");
    if (memchr(host.p, '@', host.n)) return node_error(n, b->err, "has a user name or password before the host");
    if (host.n == 0 || host.p[0] == ':') return node_error(n, b->err, "has no host");
    return url.n > SECRET_BYTES_MAX ? node_error(n, b->err, "longer than %d bytes", SECRET_BYTES_MAX) : ST_OK;
}

/* {secret_file: PATH}: what is in that file, without the line's end. */
static const struct node *file_named(const struct node *n) {
    return n->kind == NODE_MAP && n->count == 1 ? node_get(n, SL("secret_file")) : NULL;
}

static hx_st put_file(const struct binding *b, const struct node *n, struct buf *out) {
    char text[SECRET_BYTES_MAX + 2];
    if (n->kind != NODE_SCALAR || n->text.n == 0) return node_error(n, b->err, "expected the path of a file");
    if (b->secrets != SECRETS_FROM_ENVIRONMENT) return buf_lit(out, "${secret_file}"), ST_OK;
    int fd = open(n->text.p, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text);
    int failed = errno;
    if (fd >= 0) close(fd);
    if (got < 0) return node_error(n, b->err, "%s: %s", n->text.p, strerrordesc_np(failed));
    while (got > 0 && (text[got - 1] == '\n' || text[got - 1] == '\r')) got--;
    if (got <= SECRET_BYTES_MAX) buf_add(out, text, (size_t)got);
    explicit_bzero(text, sizeof text);
    if (got > SECRET_BYTES_MAX) return node_error(n, b->err, "%s has more than %d bytes", n->text.p, SECRET_BYTES_MAX);
    return has_control(buf_slice(out)) ? node_error(n, b->err, "%s has a control character", n->text.p) : ST_OK;
}

hx_st secret_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct buf text = secret_room();
    slice *field = value_field(k, b->base);
    CHECK(k->size == sizeof(*field));
    const struct node *file = k->type == TYPE_SECRET ? file_named(n) : NULL;
    hx_st st = file ? put_file(b, file, &text) : put_text(b, k, n, &text);
    if (st == ST_OK && text.len == 0) st = node_error(n, b->err, "empty");
    if (st == ST_OK) *field = arena_copy(b->arena, buf_slice(&text));
    if (st == ST_OK && k->type == TYPE_URL && is_whole(b, n)) st = check_url(b, n, *field);
    buf_free_wiped(&text);
    return st;
}

/* whsec_ and the bytes in base64, as Standard Webhooks has it. */
static bool decode_key(slice text, struct buf *out) {
    slice prefix = SL("whsec_");
    return slice_starts(text, prefix) && buf_base64_decode(out, slice_of(text.p + prefix.n, text.n - prefix.n)) &&
           out->len >= KEY_BYTES_MIN && out->len <= KEY_BYTES_MAX;
}

static hx_st read_one(const struct binding *b, const struct key *k, const struct node *n, slice *out) {
    if (b->secrets == SECRETS_FROM_ENVIRONMENT && is_withheld(n))
        return node_error(n, b->err, NODE_WITHHELD " is what is shown in the place of a secret: write ${NAME}");
    struct buf text = secret_room();
    const struct node *file = file_named(n);
    hx_st st = n->kind == NODE_NULL ? bind_no_value(n, b->err)
               : file               ? put_file(b, file, &text)
                                    : put_text(b, k, n, &text);
    if (st == ST_OK && text.len == 0) st = node_error(n, b->err, "empty");
    if (st == ST_OK) *out = arena_copy(b->arena, buf_slice(&text));
    buf_free_wiped(&text);
    return st;
}

/* Whatever it is, only its ${NAME} or its file's name may be told. */
static void withhold(struct node *n) {
    n->withheld = n->kind == NODE_SCALAR && !names_variable(n);
}

hx_st secrets_refused(const struct binding *b, const struct node *n) {
    return node_error(
        n, b->err,
        "rules that come through the API take no secrets: they are journaled and shown as they are. Declare "
        "the queue in the file");
}

hx_st secret_value_read(const struct binding *b, const struct key *k, struct node *n, slice *out, bool *lacking) {
    hx_st st = read_one(b, k, n, out);
    withhold(n);
    *lacking |= !is_whole(b, n);
    return st;
}

hx_st secrets_decode(const struct binding *b, const struct node *n, struct secrets *s) {
    hx_st st = ST_OK;
    u32 i = 0;
    for (const struct node *c = n->first; c && i < s->count; c = c->next, i++) {
        if (!is_whole(b, c)) continue;
        struct buf bytes = secret_room();
        if (decode_key(s->at[i], &bytes))
            s->at[i] = arena_copy(b->arena, buf_slice(&bytes));
        else
            st = node_error(
                c, b->err,
                "is not whsec_ and %d to %d bytes in base64; echo whsec_$(openssl rand -base64 32) makes one",
                KEY_BYTES_MIN, KEY_BYTES_MAX);
        buf_free_wiped(&bytes);
    }
    return st;
}

hx_st secrets_read(const struct binding *b, const struct key *k, const struct node *n) {
    struct secrets *s = value_field(k, b->base);
    struct key each = *k;
    hx_st st = ST_OK;
    CHECK(k->size == sizeof(*s));
    each.type = TYPE_SECRET;
    if (b->secrets == SECRETS_REFUSED) return secrets_refused(b, n);
    if (n->kind != NODE_SEQ)
        return node_error(n, b->err, "expected %s, not %s", key_type_text(k->type), node_kind_text(n));
    if (n->count == 0 || n->count > SECRETS_MAX)
        return node_error(n, b->err, "there must be 1 to %u, not %u", SECRETS_MAX, n->count);
    *s = (struct secrets){.at = arena_alloc(b->arena, n->count * sizeof(*s->at))};
    for (struct node *c = n->first; c; c = c->next) {
        st = both(st, secret_value_read(b, &each, c, &s->at[s->count++], &s->lacking));
        s->plain |= c->withheld;
    }
    s->written = node_json(b->arena, n);
    return st == ST_OK && k->type == TYPE_SECRETS ? secrets_decode(b, n, s) : st;
}
