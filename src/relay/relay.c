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
 *   SELECT some rows that nobody has locked FOR UPDATE                    rows are claimed, by their locks
 *   send them in one request, each with its id as the key                 the broker answers after its fdatasync
 *   DELETE (or mark) those it took, note the reason in those it will never take, by their place in the table
 *   COMMIT                                                                only now are they gone; the rest is free again
 *
 * So a row leaves only after its durable acceptance, and whatever dies in between (this process, its connection, the
 * server, the broker, the machine) leaves rows in the table that may have been accepted already. They are sent again
 * under the same key, and the broker says `duplicate`. That is all there is to recovery.
 *
 * Hence the transactions do not wait for the disk (synchronous_commit off): a deletion that a crash undoes is one more
 * duplicate. The user's own transactions should wait: a row seen before it was durable could be sent and then never
 * have been.
 *
 * ANY NUMBER of workers and relays run beside each other: SKIP LOCKED gives each other rows. With groups the order of
 * requests matters, so a transaction-long advisory lock lets one batch at a time go, over all relays of the table, a row
 * that the user has locked is waited for, and the broker is asked to put off whatever is behind a line it puts off.
 *
 * WHERE TO LOOK. While somebody holds an old snapshot, deleted rows stay in the index, and a look from the start passes over
 * all of them. So a worker remembers up to where it has settled everything and looks from there: a hint, never a truth.
 * From the start it looks again once in LOOK_EVERY looks at most, as often as costs a tenth of its time, and always before
 * it calls the table empty; what committed late, or was given back by a relay that died, is found then. A look that took
 * long because the server was held up says nothing about the next: LOOK_US_MAX.
 *
 * With groups a hint is not enough: 41 commits late, then 101 of the same group is drawn and committed, and a look from
 * mark 100 would send 101 first. So before a look from the start the last number there is is noted, and looks from the mark
 * go no further. Up to there nothing is overtaken: who has a predecessor below that number drew his own after the
 * predecessor had committed, hence before the look from the start, which saw it. What is new is above it, so once all up to
 * there is settled, looks from the start may take half the time.
 *
 * WHAT CANNOT BE READ (a value larger than PostgreSQL's own limits, one that has no UTF-8) fails the whole statement. Then
 * fewer rows are asked for, down to one; that one is locked, read by its place, and if that fails parked, unread.
 *
 * HOW LONG a transaction may last, with its locks and the snapshot horizon it holds back: while the broker answers, some
 * milliseconds; `timeout` at most if it does not; three times that by the server's own decision
 * (idle_in_transaction_session_timeout) if this process is frozen or cut off. A statement may take twice `timeout`, then
 * the server ends it; a connection that says nothing for three times as long is given up. While the broker is known to be away no
 * transaction is begun: it is asked with a request that costs nothing until it answers. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "relay/relay_priv.h"

enum {
    BACKOFF_MS = 100,
    BACKOFF_MS_MAX = 5000,
    BATCH_BYTES = 4 << 20,
    SAY_AGAIN_MS = 60000,
    REFUSALS_TOLD = 8,
    LOOK_EVERY = 10, /* from the start: one look in this many, and one part in this many of a worker's time */
    LOOK_US_MAX = 500000,
    RELAY_MAGIC = 0x72656c79,
    WORKER_MAGIC = 0x776f726b
};

struct relay {
    u32 magic;
    const struct relay_options *options;
    struct relay_layout layout;
    struct relay_sender sender;
    int batch_rows, workers;
    i64 poll_ms;
    i64 silence_ms;
    char begin[320];
    int done_fd;            /* counts workers that ended */
    atomic_bool queue_fits; /* its rules were looked at */
    atomic_llong sent, duplicates, refused;
    pthread_mutex_t lock; /* for what was said last */
    char said[512];
    i64 said_at;
};

struct worker {
    u32 magic;
    struct relay *relay;
    pthread_t thread;
    struct pg *pg;
    struct batch batch;
    struct buf mark;  /* the order value below which everything is settled; empty: not known */
    struct buf end;   /* grouped: the order value above which the mark says nothing; empty: not known */
    i64 looked_us;    /* when it last looked from the start, on the monotonic clock */
    i64 took_us;      /* how long that took */
    int looks;        /* since then */
    bool over;        /* grouped: from the mark to the end nothing is left */
    int rows;         /* to ask for: fewer while the broker takes fewer, or one of them cannot be read */
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

static struct pg_options database(const struct relay *r) {
    return (struct pg_options){
        .dsn = r->options->dsn, .stop_fd = r->options->stop_fd, .silence_ms = r->silence_ms, .writable = true};
}

/* A server that has become a standby stays one: another connection may find who took its place. */
static bool is_standby(const struct pg *pg) {
    return pg && strcmp(pg_sqlstate(pg), "25006") == 0;
}

static void database_trouble(struct worker *w, const struct errbuf *err) {
    if (stopped(w->relay, 0)) return;
    trouble(w->relay, err->text);
    buf_reset(&w->mark);
    if (!pg_usable(w->pg) || is_standby(w->pg)) {
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

/* How long until looking from the start costs no more than one part in `parts` of the time. */
static i64 rest_us(const struct worker *w, i64 parts) {
    return w->looked_us + w->took_us * (parts - 1) - clock_mono_us();
}

/* From the start, or from the mark? */
static enum relay_from where_to_look(const struct worker *w) {
    if (!w->mark.len || (w->over && rest_us(w, 2) <= 0)) return FROM_START;
    return w->looks >= LOOK_EVERY && rest_us(w, LOOK_EVERY) <= 0 ? FROM_START : FROM_MARK;
}

/* An empty table has none, and then the last one known is as good as ever. */
static hx_st note_end(struct worker *w, struct errbuf *err) {
    struct pg_rows *rows;
    hx_st st = pg_query(w->pg, w->relay->layout.end.p, NULL, 0, &rows, err);
    if (st) return st;
    if (pg_row_count(rows)) {
        buf_reset(&w->end);
        buf_slice_add(&w->end, pg_cell(rows, 0, 0));
    }
    pg_rows_free(rows);
    return ST_OK;
}

/* The rows that a claim from there finds; `third` and `fourth` are its arguments, if it has some. */
static hx_st lock_rows(struct worker *w, enum relay_from from, slice third, slice fourth, struct pg_rows **rows,
                       struct errbuf *err) {
    char most[24], bytes[24];
    snprintf(most, sizeof(most), "%d", w->rows);
    snprintf(bytes, sizeof(bytes), "%d", BATCH_BYTES);
    slice args[] = {slice_str(most), slice_str(bytes), third, fourth};
    size_t count = from == FROM_START ? 2 : from == FROM_MARK && !w->relay->options->grouped ? 3 : 4;
    return pg_query(w->pg, w->relay->layout.claim[from].p, args, count, rows, err);
}

static hx_st look_from_start(struct worker *w, struct pg_rows **rows, struct errbuf *err) {
    i64 began = clock_mono_us();
    hx_st st = w->relay->options->grouped ? note_end(w, err) : ST_OK;
    if (!st) st = lock_rows(w, FROM_START, (slice){0}, (slice){0}, rows, err);
    w->looked_us = clock_mono_us();
    w->took_us = w->looked_us - began < LOOK_US_MAX ? w->looked_us - began : LOOK_US_MAX;
    w->looks = 0;
    w->over = false;
    return st;
}

/* Begins a batch's transaction. *mine is false when another relay has the turn, and then it has ended. */
static hx_st begin(struct worker *w, bool *mine, struct errbuf *err) {
    struct relay *r = w->relay;
    struct pg_rows *locked;
    *mine = true;
    hx_st st = pg_run(w->pg, r->begin, err);
    if (st || !r->options->grouped) return st;
    st = pg_query(w->pg, r->layout.lock.p, NULL, 0, &locked, err);
    if (st) return st;
    *mine = pg_cell(locked, 0, 0).p[0] == 't';
    pg_rows_free(locked);
    return *mine ? ST_OK : pg_run(w->pg, "ROLLBACK", err);
}

/* *rows is NULL when another relay has the turn. */
static hx_st claim(struct worker *w, enum relay_from from, struct pg_rows **rows, struct errbuf *err) {
    bool mine;
    *rows = NULL;
    hx_st st = begin(w, &mine, err);
    if (st || !mine) return st;
    if (from == FROM_START) return look_from_start(w, rows, err);
    w->looks++;
    return lock_rows(w, FROM_MARK, buf_slice(&w->mark), buf_slice(&w->end), rows, err);
}

/* One statement for rows of one table at these places. *affected is added to. */
static hx_st by_place(struct worker *w, const struct buf *sql, const slice *args, size_t count, size_t *affected,
                      struct errbuf *err) {
    struct pg_rows *rows;
    hx_st st = pg_query(w->pg, sql->p, args, count, &rows, err);
    if (st) return st;
    u64 n = 0;
    slice_u64(pg_cell(rows, 0, 0), &n);
    *affected += n;
    pg_rows_free(rows);
    return ST_OK;
}

static void put_next(struct buf *list, slice text) {
    buf_char(list, list->len ? ',' : '{');
    pg_put_element(list, text);
}

/* The rows of one table that met this verdict. Which have been dealt with is noted. */
static hx_st apply_to_table(struct worker *w, enum row_verdict verdict, slice table, size_t from, size_t *affected,
                            struct errbuf *err) {
    struct batch *b = &w->batch;
    struct buf places = {0}, reasons = {0};
    for (size_t i = from; i < b->count; i++) {
        struct outcome *o = &b->outcomes[i];
        if (o->verdict != verdict || o->applied || !slice_eq(pg_cell(b->rows, i, ROW_TABLE), table)) continue;
        o->applied = true;
        put_next(&places, pg_cell(b->rows, i, ROW_PLACE));
        put_next(&reasons, slice_of(b->reasons.p + o->reason_at, o->reason_n));
    }
    buf_char(&places, '}');
    buf_char(&reasons, '}');
    slice args[] = {buf_slice(&places), table, buf_slice(&reasons)};
    const struct relay_layout *l = &w->relay->layout;
    hx_st st = verdict == ROW_VERDICT_SENT ? by_place(w, &l->settle, args, 2, affected, err)
                                           : by_place(w, &l->park, args, 3, affected, err);
    buf_free(&places);
    buf_free(&reasons);
    return st;
}

/* Table by table: a batch of a partitioned one has rows of one or two. */
static hx_st apply_verdict(struct worker *w, enum row_verdict verdict, size_t wanted, struct errbuf *err) {
    const struct batch *b = &w->batch;
    size_t affected = 0;
    hx_st st = ST_OK;
    for (size_t i = 0; i < b->count && !st; i++)
        if (b->outcomes[i].verdict == verdict && !b->outcomes[i].applied)
            st = apply_to_table(w, verdict, pg_cell(b->rows, i, ROW_TABLE), i, &affected, err);
    if (st || affected == wanted) return st;
    return err_set(err, ST_INVALID,
                   "%zu of %zu rows would not be %s (a trigger, a rule or a policy on the table?): they would be sent "
                   "again and again",
                   wanted - affected, wanted, verdict == ROW_VERDICT_SENT ? "settled" : "parked");
}

static slice reason_of(const struct batch *b, size_t row) {
    return slice_of(b->reasons.p + b->outcomes[row].reason_at, b->outcomes[row].reason_n);
}

static bool same_code(const struct batch *b, size_t row, size_t other) {
    slice code, other_code, detail;
    slice_cut(reason_of(b, row), ':', &code, &detail);
    slice_cut(reason_of(b, other), ':', &other_code, &detail);
    return slice_eq(code, other_code);
}

static void say_refusal(struct worker *w, size_t first, size_t count) {
    const struct batch *b = &w->batch;
    slice id = pg_cell(b->rows, first, ROW_ID), reason = reason_of(b, first);
    if (!id.p) id = pg_cell(b->rows, first, ROW_PLACE);
    char text[512];
    snprintf(text, sizeof(text), "%zu row%s refused for good, first %.*s: %.*s", count, count == 1 ? "" : "s",
             (int)id.n, id.p, (int)reason.n, reason.p);
    trouble(w->relay, text);
}

/* A line for each kind of refusal. Of more kinds than a broker has the last takes the rest. */
static void say_refused(struct worker *w) {
    const struct batch *b = &w->batch;
    struct {
        size_t first, count;
    } kinds[REFUSALS_TOLD];
    size_t n = 0, k;
    for (size_t i = 0; i < b->count; i++) {
        if (b->outcomes[i].verdict != ROW_VERDICT_REFUSED) continue;
        for (k = 0; k < n && !same_code(b, i, kinds[k].first);) k++;
        if (k == REFUSALS_TOLD) k--;
        if (k == n) {
            kinds[n].first = i;
            kinds[n++].count = 0;
        }
        kinds[k].count++;
    }
    for (k = 0; k < n; k++) say_refusal(w, kinds[k].first, kinds[k].count);
}

/* Ends the batch's transaction by what became of its rows. */
static hx_st settle(struct worker *w, struct errbuf *err) {
    struct batch *b = &w->batch;
    hx_st st = ST_OK;
    if (b->sent) st = apply_verdict(w, ROW_VERDICT_SENT, b->sent, err);
    if (!st && b->refused) st = apply_verdict(w, ROW_VERDICT_REFUSED, b->refused, err);
    if (!st) return pg_run(w->pg, b->sent + b->refused ? "COMMIT" : "ROLLBACK", err);
    struct errbuf spare;
    if (pg_usable(w->pg)) pg_run(w->pg, "ROLLBACK", &spare);
    return st;
}

/* Up to the first row that is still to be sent, or the last there was. Rows without an order come last. */
static void move_mark(struct worker *w) {
    const struct batch *b = &w->batch;
    size_t i = 0;
    while (i + 1 < b->count && b->outcomes[i].verdict != ROW_VERDICT_LATER) i++;
    slice order = pg_cell(b->rows, i, ROW_ORDER);
    buf_reset(&w->mark);
    bool known = w->relay->layout.markable && order.p && (!w->relay->options->grouped || w->end.len);
    if (known) buf_slice_add(&w->mark, order);
    w->over = known && slice_eq(order, buf_slice(&w->end)) && b->outcomes[i].verdict != ROW_VERDICT_LATER;
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
    if (st) {
        database_trouble(w, &err);
        return;
    }
    if (b->refused) say_refused(w);
    size_t taken = b->sent + b->refused;
    move_mark(w);
    if (taken) w->backoff_ms = 0;                                      /* it goes on, if slowly */
    if (taken) w->rows = taken == b->count ? w->rows * 2 : (int)taken; /* none at all says nothing about how many */
    if (w->rows > w->relay->batch_rows) w->rows = w->relay->batch_rows;
    if (taken < b->count) broker_trouble(w, &b->trouble);
}

/* ---- rows that cannot be read */

/* One of the rows is to blame, not the statement or the server's state. */
static bool blames_a_row(const struct pg *pg) {
    static const char *const codes[] = {"22", "54", "53200", "XX000", "XX001"};
    for (size_t i = 0; pg_usable(pg) && i < sizeof(codes) / sizeof(codes[0]); i++)
        if (strncmp(pg_sqlstate(pg), codes[i], strlen(codes[i])) == 0) return true;
    return false;
}

/* The one row at that place, in a transaction of its own. */
static hx_st park_one(struct worker *w, slice table, slice place, const char *why, struct errbuf *err) {
    struct buf places = {0}, reasons = {0}, text = {0};
    size_t parked = 0;
    buf_printf(&text, "unreadable: %s", why);
    put_next(&places, place);
    put_next(&reasons, buf_slice(&text));
    buf_char(&places, '}');
    buf_char(&reasons, '}');
    slice args[] = {buf_slice(&places), table, buf_slice(&reasons)};
    hx_st st = pg_run(w->pg, w->relay->begin, err);
    if (!st) st = by_place(w, &w->relay->layout.park, args, 3, &parked, err);
    if (!st) st = pg_run(w->pg, "COMMIT", err);
    if (!st && parked) {
        char said[512];
        snprintf(said, sizeof(said), "1 row refused for good, at %.*s: %.*s", (int)place.n, place.p, (int)text.len,
                 text.p);
        atomic_fetch_add(&w->relay->refused, 1);
        trouble(w->relay, said);
    }
    buf_free(&places);
    buf_free(&reasons);
    buf_free(&text);
    return st;
}

/* The first row is locked and read alone: only so is it certain which one is to blame. A machine short of memory is not the row's fault. */
static void try_head(struct worker *w) {
    struct errbuf err;
    struct pg_rows *head = NULL, *rows = NULL;
    bool mine;
    hx_st st = begin(w, &mine, &err);
    if (!st && mine) st = pg_query(w->pg, w->relay->layout.head.p, NULL, 0, &head, &err);
    bool found = !st && head && pg_row_count(head);
    if (found) {
        slice table = pg_cell(head, 0, ROW_TABLE), place = pg_cell(head, 0, ROW_PLACE);
        st = lock_rows(w, FROM_PLACE, place, table, &rows, &err);
        char why[sizeof(err.text)];
        if (st) memcpy(why, err.text, sizeof(why));
        if (st && blames_a_row(w->pg) && strcmp(pg_sqlstate(w->pg), "53200") != 0)
            st = park_one(w, table, place, why, &err);
    } else if (!st && mine) {
        st = pg_run(w->pg, "ROLLBACK", &err);
    }
    if (st) database_trouble(w, &err);
    if (rows) carry(w, rows);
    pg_rows_free(head);
}

/* After a claim that failed: fewer rows, from the start, until the one that cannot be read is alone. */
static void claim_failed(struct worker *w, const struct errbuf *why) {
    if (!blames_a_row(w->pg)) {
        database_trouble(w, why);
        return;
    }
    buf_reset(&w->mark);
    if (w->rows == 1) try_head(w);
    w->rows = w->rows / 8 < 1 ? 1 : w->rows / 8;
}

/* ---- a worker */

/* The queue's rules, once it can be asked. false: it is not for rows, or not now. */
static bool queue_fits(struct worker *w) {
    struct relay *r = w->relay;
    if (atomic_load(&r->queue_fits)) return true;
    hx_error e = {0};
    const char *why = relay_queue_misfit(&r->sender, r->options->queue, &e);
    if (why) {
        snprintf(e.code, sizeof(e.code), "queue %.32s", r->options->queue);
        snprintf(e.detail, sizeof(e.detail), "%s", why);
    }
    if (!why && e.status == HX_OK) {
        atomic_store(&r->queue_fits, true);
        return true;
    }
    broker_trouble(w, &e);
    return false;
}

/* Whatever is needed before rows can be claimed. false: not now; the waiting is done. */
static bool ready(struct worker *w) {
    struct errbuf err;
    hx_error e;
    if (w->broker_away && !relay_probe(&w->relay->sender, &e)) {
        broker_trouble(w, &e);
        return false;
    }
    w->broker_away = false;
    if (!queue_fits(w)) return false;
    struct pg_options o = database(w->relay);
    if (w->pg || pg_open(&o, &w->pg, &err) == ST_OK) return true;
    database_trouble(w, &err);
    return false;
}

/* Above the mark there is nothing; below it there may be what committed late. */
static bool look_once_more(struct worker *w) {
    if (w->relay->options->once) buf_reset(&w->mark);
    w->looks = LOOK_EVERY;
    w->over = w->relay->options->grouped;
    return where_to_look(w) == FROM_START;
}

/* How long to do nothing. */
static i64 idle_ms(const struct worker *w) {
    i64 rest = w->mark.len ? 0 : rest_us(w, 2) / 1000;
    return rest > w->relay->poll_ms ? rest : w->relay->poll_ms;
}

/* false: there was nothing to do. */
static bool turn(struct worker *w) {
    struct errbuf err;
    struct pg_rows *rows;
    if (!ready(w)) return true;
    enum relay_from from = where_to_look(w);
    hx_st st = claim(w, from, &rows, &err);
    if (!st && rows && pg_row_count(rows)) {
        carry(w, rows);
        return true;
    }
    bool empty = !st && rows;
    if (empty) st = pg_run(w->pg, "ROLLBACK", &err);
    pg_rows_free(rows);
    if (st && !empty) claim_failed(w, &err);
    if (st && empty) database_trouble(w, &err);
    if (st) return true;
    w->backoff_ms = 0;
    return empty && from == FROM_MARK && look_once_more(w);
}

static void *worker_run(void *arg) {
    struct worker *w = arg;
    CHECK(w->magic == WORKER_MAGIC && w->relay->magic == RELAY_MAGIC);
    struct relay *r = w->relay;
    while (!w->gave_up && !stopped(r, 0)) {
        if (turn(w)) continue;
        if (r->options->once || stopped(r, idle_ms(w))) break;
    }
    pg_close(w->pg);
    relay_batch_free(&w->batch);
    buf_free(&w->mark);
    buf_free(&w->end);
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
    struct pg_options o = database(r);
    /* In a transaction for the sake of its time limit: a count that takes too long is ended by the server, too. */
    bool open = (*pg || pg_open(&o, pg, &err) == ST_OK) && pg_run(*pg, r->begin, &err) == ST_OK;
    out.lag_known = open && relay_lag_read(*pg, &r->options->table, &out.lag, &err) == ST_OK &&
                    pg_run(*pg, "ROLLBACK", &err) == ST_OK;
    if (*pg && !pg_usable(*pg)) {
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
    hx_options options = o->broker;
    options.timeout_ms = timeout;
    options.connections = r->workers;
    hx_error e;
    if (hx_open(&options, &s->client, &e) != HX_OK) return err_set(err, ST_INVALID, "%s", e.detail);
    buf_lit(&s->target, "/v1/queues/");
    buf_percent_encode(&s->target, slice_str(o->queue));
    buf_lit(&s->target, "/batch");
    if (o->grouped) buf_lit(&s->target, "?ordered=true");
    buf_char(&s->target, '\0');
    s->timeout_ms = timeout;
    s->grouped = o->grouped;
    /* SET LOCAL ends with the transaction: a pooled connection goes back as it came. Without statistics the planner takes
     * the pending rows for a handful, reads all of them into a bitmap and sorts: for each batch the whole backlog. */
    snprintf(r->begin, sizeof(r->begin),
             "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit = off;"
             " SET LOCAL idle_in_transaction_session_timeout = %lld; SET LOCAL statement_timeout = %lld;"
             " SET LOCAL lock_timeout = %lld; SET LOCAL enable_bitmapscan = off",
             (long long)timeout * 3, (long long)timeout * 2, (long long)timeout);
    return ST_OK;
}

/* What must be there before threads are started. */
static hx_st first_look(struct relay *r, struct errbuf *err) {
    struct pg *pg;
    struct pg_options o = database(r);
    hx_st st = pg_open(&o, &pg, err);
    if (!st) st = relay_layout_read(pg, &r->options->table, r->options->grouped, &r->layout, err);
    pg_close(pg);
    if (st) return st;
    if (r->options->grouped && (!r->layout.ordered || !r->layout.grouped))
        return err_set(err, ST_INVALID,
                       "to keep the order of a group the table needs a column for %s (--column %s=NAME)%s",
                       r->layout.grouped ? "the order rows were made in" : "the group",
                       r->layout.grouped ? "order" : "aggregateid", r->layout.grouped ? ": ids do not tell it" : "");
    const char *by_type = r->layout.json     ? "application/json"
                          : r->layout.base64 ? "application/octet-stream"
                                             : "text/plain";
    r->sender.base64 = r->layout.base64;
    r->sender.content_type = r->options->content_type ? r->options->content_type : by_type;
    st = open_sender(r, err);
    if (st) return st;
    hx_error e = {0};
    const char *why = relay_queue_misfit(&r->sender, r->options->queue, &e);
    if (why) return err_set(err, ST_INVALID, "queue %s cannot take rows: %s", r->options->queue, why);
    atomic_store(&r->queue_fits, e.status == HX_OK); /* a broker that is away is asked when it is back */
    return ST_OK;
}

/* false: a worker gave up. */
static bool run_workers(struct relay *r) {
    struct worker *workers = mem_zalloc((size_t)r->workers * sizeof(*workers));
    int running = 0;
    for (; running < r->workers; running++) {
        workers[running].magic = WORKER_MAGIC;
        workers[running].relay = r;
        workers[running].rows = r->batch_rows;
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
    struct relay r = {.magic = RELAY_MAGIC,
                      .options = options,
                      .silence_ms = 3 * (options->timeout_ms > 0 ? options->timeout_ms : 5000),
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
