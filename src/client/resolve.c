/* Names to addresses, within a deadline. getaddrinfo knows none and cannot be interrupted, so it runs on a thread of its
 * own, and whoever waits may leave. However many wait and leave, a client has one look-up under way: those who come later
 * join it. The last to let go frees it, which may be the thread, long after the client is closed. */
#include <errno.h>
#include <netdb.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/client_priv.h"

struct lookup {
    pthread_mutex_t lock; /* refs, over and the answer */
    int refs;
    bool over;
    int over_fd; /* readable from then on */
    char *host, *port;
    int rc, error;
    struct addrinfo *list;
};

static const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};

static char *copy(const char *text) {
    size_t n = strlen(text) + 1;
    return memcpy(mem_alloc(n), text, n);
}

static void lookup_unref(struct lookup *l) {
    pthread_mutex_lock(&l->lock);
    int refs = --l->refs;
    pthread_mutex_unlock(&l->lock);
    if (refs) return;
    if (l->list) freeaddrinfo(l->list);
    pthread_mutex_destroy(&l->lock);
    close(l->over_fd);
    mem_free(l->host);
    mem_free(l->port);
    mem_free(l);
}

static void *lookup_run(void *arg) {
    struct lookup *l = arg;
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(l->host, l->port, &hints, &list), error = errno;
    pthread_mutex_lock(&l->lock);
    l->rc = rc;
    l->error = error;
    l->list = rc == 0 ? list : NULL;
    l->over = true;
    pthread_mutex_unlock(&l->lock);
    eventfd_write(l->over_fd, 1);
    lookup_unref(l);
    return NULL;
}

/* One reference is the thread's, one the resolver's. NULL: it could not be started. */
static struct lookup *lookup_start(const struct url *url) {
    pthread_t thread;
    pthread_attr_t detached;
    int over_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (over_fd < 0) return NULL;
    struct lookup *l = mem_zalloc(sizeof(*l));
    *l = (struct lookup){.refs = 2, .over_fd = over_fd, .host = copy(url->host), .port = copy(url->port)};
    pthread_mutex_init(&l->lock, NULL);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &detached, lookup_run, l) == 0;
    pthread_attr_destroy(&detached);
    if (started) return l;
    l->refs = 1;
    lookup_unref(l);
    return NULL;
}

static bool is_over(struct lookup *l) {
    pthread_mutex_lock(&l->lock);
    bool over = l->over;
    pthread_mutex_unlock(&l->lock);
    return over;
}

/* The look-up under way, or a new one; with a reference for the caller. An answer is used by those who waited for it, and not
 * kept: the next connection asks again. */
static struct lookup *lookup_join(struct resolver *r, const struct url *url) {
    pthread_mutex_lock(&r->lock);
    if (r->under_way && is_over(r->under_way)) {
        lookup_unref(r->under_way);
        r->under_way = NULL;
    }
    if (!r->under_way) r->under_way = lookup_start(url);
    struct lookup *l = r->under_way;
    if (l) {
        pthread_mutex_lock(&l->lock);
        l->refs++;
        pthread_mutex_unlock(&l->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return l;
}

static void say_why(int rc, int error, struct errbuf *err) {
    err_set(err, ST_NOT_FOUND, "%s", rc == EAI_SYSTEM ? strerrordesc_np(error) : gai_strerror(rc));
}

/* An address is none to look up. */
static bool resolve_address(const struct url *url, struct addresses *out) {
    struct addrinfo numeric = hints;
    numeric.ai_flags |= AI_NUMERICHOST;
    return getaddrinfo(url->host, url->port, &numeric, &out->own) == 0 && (out->list = out->own);
}

bool resolve(struct resolver *r, const struct url *url, i64 deadline, int cancel_fd, struct addresses *out,
             struct errbuf *err) {
    *out = (struct addresses){0};
    if (resolve_address(url, out)) return true;
    struct lookup *l = lookup_join(r, url);
    if (!l) return err_set(err, ST_IO, "cannot start looking up %s: out of threads or descriptors", url->host), false;
    bool over = conn_await(l->over_fd, deadline, cancel_fd) && is_over(l);
    if (!over) {
        err_set(err, ST_TIMEOUT, "no address for %s in time", url->host);
    } else if (l->rc != 0) {
        say_why(l->rc, l->error, err);
    } else {
        out->shared = l;
        out->list = l->list;
        return true;
    }
    lookup_unref(l);
    return false;
}

void addresses_free(struct addresses *a) {
    if (a->own) freeaddrinfo(a->own);
    if (a->shared) lookup_unref(a->shared);
    *a = (struct addresses){0};
}

void resolver_init(struct resolver *r) {
    pthread_mutex_init(&r->lock, NULL);
    r->under_way = NULL;
}

void resolver_free(struct resolver *r) {
    if (r->under_way) lookup_unref(r->under_way);
    pthread_mutex_destroy(&r->lock);
}
