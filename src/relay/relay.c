/* The relay: each row of the outbox becomes one message, whatever crashes.
 *
 * WHAT IS PENDING is what is there. A row is pending because it is in the table, neither refused nor marked as sent: a
 * state, read under the row's lock. The tempting alternative, "remember the highest sequence number sent and go on from
 * there", loses rows. Numbers are drawn when a row is inserted, rows appear when their transaction commits, and these
 * orders differ: transaction A draws 41, B draws 42 and commits, a relay reads 42 and moves its mark past 41, then A
 * commits and nobody ever looks at 41 again. No waiting time mends it, only hides it. Here 41 is simply found at the next
 * look. The sequence is used to send in about the right order, and for nothing else.
 *
 * A BATCH is one short transaction:
 *
 *   DELETE (or mark) some rows that nobody has locked, RETURNING them     rows are claimed, by their locks
 *   send them in one request, each with its id as the key                 the broker answers after its fdatasync
 *   COMMIT if it took them all                                            only now are they gone
 *
 * If it took only some, the transaction is rolled back and a second one deletes those it took and notes the reason in
 * those it will never take; the rest stays. So a row leaves only after its durable acceptance, and whatever dies in
 * between (this process, its connection, the server, the broker, the machine) leaves rows in the table that may have been
 * accepted already. They are sent again under the same key, and the broker says `duplicate`. That is all there is to
 * recovery.
 *
 * Hence the transactions do not wait for the disk (synchronous_commit off): a deletion that a crash undoes is one more
 * duplicate. The user's own transactions should wait: a row seen before it was durable could be sent and then never
 * have been.
 *
 * ANY NUMBER of workers and relays run beside each other: SKIP LOCKED gives each other rows. With groups the order of
 * requests matters, so a transaction-long advisory lock lets one batch at a time go, over all relays of the table.
 *
 * HOW LONG a transaction may last, with its locks and the snapshot horizon it holds back: while the broker answers, some
 * milliseconds; `timeout` at most if it does not; three times that by the server's own decision
 * (idle_in_transaction_session_timeout) if this process is frozen or cut off. While the broker is known to be away no
 * transaction is begun: it is asked with a request that costs nothing until it answers. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "relay/relay_priv.h"

enum { BACKOFF_MS = 100, BACKOFF_MS_MAX = 5000, BATCH_BYTES = 4 << 20, SAY_AGAIN_MS = 60000 };

struct relay {
    const struct relay_options *options;
    struct relay_layout layout;
    struct relay_sender sender;
    int batch_rows, workers;
    i64 poll_ms;
    char begin[256];
    int done_fd; /* counts workers that ended */
    atomic_llong sent, duplicates, refused;
    pthread_mutex_t lock; /* for what was said last */
    char said[512];
    i64 said_at;
};

struct worker {
    struct relay *relay;
    pthread_t thread;
    struct pg *pg;
    struct batch batch;
    i64 backoff_ms;   /* 0: all is well */
    bool broker_away; /* ask it before beginning a transaction */
    bool gave_up;     /* with `once` there is no waiting for better times */
};

/* ---- telling */

static void trouble(struct relay *r, const char *text) {
    pthread_mutex_lock(&r->lock);
    i64 now = clock_mono_ms();
    bool again = strcmp(text, r->said) == 0 && now - r->said_at < SAY_AGAIN_MS;
    if (!again) {
        snprintf(r->said, sizeof(r->said), "%s", text);
        r->said_at = now;
        if (r->options->trouble) r->options->trouble(r->options->ctx, text);
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- waiting */

static bool stopped(const struct relay *r, i64 wait_ms) {
    struct pollfd p = {.fd = r->options->stop_fd, .events = POLLIN};
    return poll(&p, 1, (int)wait_ms) > 0;
}

/* Longer each time, until a batch gets through. Not all workers at the same instant. */
static void back_off(struct worker *w, i64 at_least_ms) {
    w->gave_up = w->relay->options->once;
    if (w->gave_up) return;
    i64 ms = w->backoff_ms ? w->backoff_ms * 2 : BACKOFF_MS;
    w->backoff_ms = ms > BACKOFF_MS_MAX ? BACKOFF_MS_MAX : ms;
    ms = w->backoff_ms > at_least_ms ? w->backoff_ms : at_least_ms;
    stopped(w->relay, ms + clock_mono_us() % (ms / 4 + 1));
}

static void database_trouble(struct worker *w, const struct errbuf *err) {
    if (stopped(w->relay, 0)) return;
    trouble(w->relay, err->text);
    if (!pg_usable(w->pg)) {
        pg_close(w->pg);
        w->pg = NULL;
    }
    back_off(w, 0);
}

static void broker_trouble(struct worker *w, const hx_error *e) {
    char text[640];
    snprintf(text, sizeof(text), "broker: %s: %s", e->code[0] ? e->code : "unclear",
             e->detail[0] ? e->detail : "an odd answer");
    trouble(w->relay, text);
    w->broker_away = true;
    back_off(w, e->retry_after_ms);
}

/* ---- one batch */

/* *rows is NULL when another relay has the turn. */
static hx_st claim(struct worker *w, struct pg_rows **rows, struct errbuf *err) {
    struct relay *r = w->relay;
    char most[24], bytes[24];
    snprintf(most, sizeof(most), "%d", r->batch_rows);
    snprintf(bytes, sizeof(bytes), "%d", BATCH_BYTES);
    slice args[] = {slice_str(most), slice_str(bytes)};
    *rows = NULL;
    hx_st st = pg_run(w->pg, r->begin, err);
    if (!st && r->options->grouped) {
        struct pg_rows *mine;
        st = pg_query(w->pg, r->layout.lock.p, NULL, 0, &mine, err);
        if (st) return st;
        bool turn = pg_cell(mine, 0, 0).p[0] == 't';
        pg_rows_free(mine);
        if (!turn) return pg_run(w->pg, "ROLLBACK", err);
    }
    return st ? st : pg_query(w->pg, r->layout.claim.p, args, 2, rows, err);
}

/* The ids (and reasons) of rows that met this verdict, as array texts. */
static void gather(const struct batch *b, enum row_verdict verdict, struct buf *ids, struct buf *reasons) {
    buf_char(ids, '{');
    buf_char(reasons, '{');
    for (size_t i = 0; i < b->count; i++) {
        const struct outcome *o = &b->outcomes[i];
        if (o->verdict != verdict) continue;
        if (ids->len > 1) buf_char(ids, ','), buf_char(reasons, ',');
        pg_put_element(ids, pg_cell(b->rows, i, ROW_ID));
        pg_put_element(reasons, slice_of(b->reasons.p + o->reason_at, o->reason_n));
    }
    buf_char(ids, '}');
    buf_char(reasons, '}');
}

static hx_st apply_verdict(struct worker *w, enum row_verdict verdict, struct errbuf *err) {
    struct buf ids = {0}, reasons = {0};
    gather(&w->batch, verdict, &ids, &reasons);
    slice args[] = {buf_slice(&ids), buf_slice(&reasons)};
    const struct relay_layout *l = &w->relay->layout;
    hx_st st = verdict == ROW_VERDICT_SENT ? pg_query(w->pg, l->settle.p, args, 1, NULL, err)
                                           : pg_query(w->pg, l->park.p, args, 2, NULL, err);
    buf_free(&ids);
    buf_free(&reasons);
    return st;
}

static void say_refused(struct worker *w) {
    const struct batch *b = &w->batch;
    size_t first = 0;
    while (b->outcomes[first].verdict != ROW_VERDICT_REFUSED) first++;
    const struct outcome *o = &b->outcomes[first];
    slice id = pg_cell(b->rows, first, ROW_ID);
    char text[512];
    snprintf(text, sizeof(text), "%zu rows refused for good, first %.*s: %.*s", b->refused, (int)id.n, id.p,
             (int)o->reason_n, b->reasons.p + o->reason_at);
    trouble(w->relay, text);
}

/* Ends the batch's transaction by what became of its rows. */
static hx_st settle(struct worker *w, struct errbuf *err) {
    struct batch *b = &w->batch;
    if (b->sent == b->count) return pg_run(w->pg, "COMMIT", err);
    hx_st st = pg_run(w->pg, "ROLLBACK", err);
    if (st || b->sent + b->refused == 0) return st;
    st = pg_run(w->pg, w->relay->begin, err);
    if (!st && b->sent) st = apply_verdict(w, ROW_VERDICT_SENT, err);
    if (!st && b->refused) st = apply_verdict(w, ROW_VERDICT_REFUSED, err);
    return st ? st : pg_run(w->pg, "COMMIT", err);
}

static void count(struct relay *r, const struct batch *b) {
    atomic_fetch_add(&r->sent, (long long)b->sent);
    atomic_fetch_add(&r->duplicates, (long long)b->duplicates);
    atomic_fetch_add(&r->refused, (long long)b->refused);
}

/* Claimed rows on their way. */
static void carry(struct worker *w, struct pg_rows *take_rows) {
    struct batch *b = &w->batch;
    struct errbuf err;
    relay_batch_begin(b, take_rows);
    relay_send(&w->relay->sender, b);
    hx_st st = settle(w, &err);
    count(w->relay, b);
    if (b->refused) say_refused(w);
    if (st) {
        database_trouble(w, &err);
    } else if (b->sent + b->refused < b->count) {
        broker_trouble(w, &b->trouble);
    } else {
        w->backoff_ms = 0;
    }
}

/* ---- a worker */

/* Whatever is needed before rows can be claimed. false: not now; the waiting is done. */
static bool ready(struct worker *w) {
    struct errbuf err;
    hx_error e;
    if (w->broker_away && !relay_probe(&w->relay->sender, &e)) {
        broker_trouble(w, &e);
        return false;
    }
    w->broker_away = false;
    if (w->pg || pg_open(w->relay->options->dsn, w->relay->options->stop_fd, &w->pg, &err) == ST_OK) return true;
    database_trouble(w, &err);
    return false;
}

/* false: there was nothing to do. */
static bool turn(struct worker *w) {
    struct errbuf err;
    struct pg_rows *rows;
    if (!ready(w)) return true;
    hx_st st = claim(w, &rows, &err);
    if (!st && rows && pg_row_count(rows)) {
        carry(w, rows);
        return true;
    }
    if (!st && rows) st = pg_run(w->pg, "COMMIT", &err);
    pg_rows_free(rows);
    if (st) {
        database_trouble(w, &err);
        return true;
    }
    w->backoff_ms = 0;
    return false;
}

static void *worker_run(void *arg) {
    struct worker *w = arg;
    struct relay *r = w->relay;
    while (!w->gave_up && !stopped(r, 0)) {
        if (turn(w)) continue;
        if (r->options->once || stopped(r, r->poll_ms)) break;
    }
    pg_close(w->pg);
    relay_batch_free(&w->batch);
    u64 one = 1;
    if (write(r->done_fd, &one, sizeof(one)) != sizeof(one)) trouble(r, "cannot tell that a worker ended");
    return NULL;
}

/* ---- reports, from the caller's thread */

static void report(struct relay *r, struct pg **pg, i64 *last_sent, i64 passed_ms) {
    struct relay_report out = {
        .sent = atomic_load(&r->sent), .duplicates = atomic_load(&r->duplicates), .refused = atomic_load(&r->refused)};
    struct errbuf err;
    out.per_s = passed_ms ? (out.sent - *last_sent) * 1000 / passed_ms : 0;
    *last_sent = out.sent;
    bool open = *pg || pg_open(r->options->dsn, r->options->stop_fd, pg, &err) == ST_OK;
    out.lag_known = open && relay_lag_read(*pg, &r->options->table, &out.lag, &err) == ST_OK;
    if (open && !pg_usable(*pg)) {
        pg_close(*pg);
        *pg = NULL;
    }
    r->options->report(r->options->ctx, &out);
}

/* Until all workers have ended. */
static void watch(struct relay *r, int running) {
    struct pg *pg = NULL;
    struct pollfd p = {.fd = r->done_fd, .events = POLLIN};
    bool reports = r->options->report && r->options->report_ms;
    i64 last_sent = 0, last = clock_mono_ms();
    while (running > 0) {
        i64 wait = reports ? r->options->report_ms - (clock_mono_ms() - last) : -1;
        int ready = poll(&p, 1, reports && wait < 0 ? 0 : (int)wait);
        u64 ended = 0;
        if (ready > 0 && read(r->done_fd, &ended, sizeof(ended)) == sizeof(ended)) running -= (int)ended;
        i64 passed = clock_mono_ms() - last;
        if (!reports || (running > 0 && passed < r->options->report_ms)) continue;
        report(r, &pg, &last_sent, passed);
        last += passed;
    }
    pg_close(pg);
}

/* ---- setting up */

static hx_st open_sender(struct relay *r, struct errbuf *err) {
    const struct relay_options *o = r->options;
    struct relay_sender *s = &r->sender;
    i64 timeout = o->timeout_ms > 0 ? o->timeout_ms : 5000;
    hx_options options = {.url = o->url, .timeout_ms = timeout, .connections = r->workers};
    hx_error e;
    if (hx_open(&options, &s->client, &e) != HX_OK) return err_set(err, ST_INVALID, "%s", e.detail);
    buf_lit(&s->target, "/v1/queues/");
    buf_percent_encode(&s->target, slice_str(o->queue));
    buf_add(&s->target, "/batch", sizeof("/batch"));
    s->timeout_ms = timeout;
    s->grouped = o->grouped;
    /* SET LOCAL ends with the transaction: a pooled connection goes back as it came. */
    snprintf(r->begin, sizeof(r->begin),
             "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off;"
             " SET LOCAL idle_in_transaction_session_timeout = %lld; SET LOCAL lock_timeout = %lld",
             (long long)timeout * 3, (long long)timeout);
    return ST_OK;
}

/* What must be there before threads are started. */
static hx_st first_look(struct relay *r, struct errbuf *err) {
    struct pg *pg;
    hx_st st = pg_open(r->options->dsn, r->options->stop_fd, &pg, err);
    if (!st) st = relay_layout_read(pg, &r->options->table, &r->layout, err);
    pg_close(pg);
    if (st) return st;
    const char *by_type = r->layout.json     ? "application/json"
                          : r->layout.base64 ? "application/octet-stream"
                                             : "text/plain";
    r->sender.base64 = r->layout.base64;
    r->sender.content_type = r->options->content_type ? r->options->content_type : by_type;
    return open_sender(r, err);
}

/* false: a worker gave up. */
static bool run_workers(struct relay *r) {
    struct worker *workers = mem_zalloc((size_t)r->workers * sizeof(*workers));
    int running = 0;
    for (; running < r->workers; running++) {
        workers[running].relay = r;
        if (pthread_create(&workers[running].thread, NULL, worker_run, &workers[running]) != 0) break;
    }
    watch(r, running);
    bool well = running > 0;
    for (int i = 0; i < running; i++) {
        pthread_join(workers[i].thread, NULL);
        well = well && !workers[i].gave_up;
    }
    mem_free(workers);
    return well;
}

hx_st relay_run(const struct relay_options *options, struct errbuf *err) {
    struct relay r = {.options = options,
                      .batch_rows = options->batch > 0 ? options->batch : 1000,
                      .workers = options->grouped       ? 1
                                 : options->workers > 0 ? options->workers
                                                        : 2,
                      .poll_ms = options->poll_ms > 0 ? options->poll_ms : 100,
                      .done_fd = eventfd(0, EFD_CLOEXEC)};
    if (r.done_fd < 0) return err_set(err, ST_IO, "cannot make an event descriptor");
    pthread_mutex_init(&r.lock, NULL);
    hx_st st = first_look(&r, err);
    if (!st && !run_workers(&r)) st = err_set(err, ST_IO, "%s", r.said);
    relay_layout_free(&r.layout);
    hx_close(r.sender.client);
    buf_free(&r.sender.target);
    pthread_mutex_destroy(&r.lock);
    close(r.done_fd);
    return st;
}
