/* The API token: what the broker knows this program by. Copied when the client is opened, wiped when it is closed, and on its
 * way only in the heads of requests, which are wiped as well: no error and no log ever has it. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "client/client_priv.h"

enum { TOKEN_MAX = 4096 };

void buf_wipe(struct buf *b) {
    if (b->p) explicit_bzero(b->p, b->cap);
    buf_free(b);
}

/* One word of visible ASCII: anything else would end the field, or begin another. */
static bool is_word(slice s) {
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] >= 0x7f) return false;
    return s.n > 0;
}

static slice without_end(slice s) {
    while (s.n && strchr(" \t\r\n", s.p[s.n - 1])) s.n--;
    return s;
}

static bool accept(slice token, const char *source, struct buf *field, struct errbuf *err) {
    if (token.n > TOKEN_MAX || !is_word(token))
        return err_set(err, ST_INVALID, "%s: a token is one word of visible ASCII, at most %d bytes", source,
                       TOKEN_MAX),
               false;
    buf_grow(field, token.n + 32); /* now: growing later would leave a copy behind */
    buf_lit(field, "Authorization: Bearer ");
    buf_slice_add(field, token);
    buf_lit(field, "\r\n");
    return true;
}

static bool accept_file(const char *path, struct buf *field, struct errbuf *err) {
    char text[TOKEN_MAX + 64];
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : 0;
    while (fd >= 0 && n < sizeof text) {
        got = read(fd, text + n, sizeof text - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
    }
    int error = errno;
    if (fd >= 0) close(fd);
    bool ok = got < 0 ? (err_set(err, ST_IO, "%s: %s", path, strerrordesc_np(error)), false)
                      : accept(without_end(slice_of(text, n)), path, field, err);
    explicit_bzero(text, sizeof text);
    return ok;
}

bool token_field(const char *token, const char *file, struct buf *out, struct errbuf *err) {
    if (token) return accept(slice_str(token), "the API token", out, err);
    return !file || accept_file(file, out, err);
}
