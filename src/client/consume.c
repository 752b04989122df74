/* The consumer: one thread polls, one renews leases, the workers run the handler.
 *
 * A message's way here: reserved (start=explicit) by the polling thread -> in `queue` -> taken by a worker, started,
 * handled, settled -> gone. What was reserved and never started is given back at the end, and if the process dies it
 * costs no attempt either.
 *
 * Leases. From its arrival until it is settled a message is in `live`, and the renewing thread extends it when a third
 * of its lease has passed, so that two extensions may fail before it is in danger. `granted` is taken before the
 * request that granted it was sent: the broker's own count ends later, never earlier. (Except for the first one: a long
 * poll was sent long before it was answered, so there the arrival counts.) When the broker says that the lease has gone
 * to somebody else, or when its time has passed without a word from the broker, the message is marked and the handler
 * told. The renewing thread never waits for a handler, and never holds the lock while it talks to the broker. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/gate_priv.h"

enum { RESERVED_MAX = 1000, BACKOFF_MS = 100, BACKOFF_MS_MAX = 5000, EMPTY_PAUSE_MS = 50, LAST_TRY_MS = 2000 };

/* One reply to a poll; its messages live in it. */
struct haul {
    hx_received received;
    size_t refs; /* messages not yet done with; under the lock */
};

struct hx_message_private {
    hx_consumer *consumer;
    hx_message *message;
    struct haul *haul;
    int refs; /* under the lock: the list, and the renewing thread while it talks about it */
    struct hx_message_private *next_queued;
    struct hx_message_private *next_live, **prev_live;
    i64 granted, due; /* under the lock; due: when to extend next */
    bool begun;       /* a handler has it */
    bool settling;    /* "settled" is no surprise any more */
    atomic_bool lost;
    /* what the handler said; the worker's own */
    struct arena *said;
    hx_bytes result;
    const char *content_type, *reason, *effect_id;
    i64 delay_ms;
};

typedef struct hx_message_private job;

struct hx_consumer {
    hx_client *client;
    hx_consume_options options;
    hx_consume_gate gate; /* options.gate, if it is set, points here */
    char *queue_name, *consumer_name, *gate_scope;
    int stop_fd;          /* readable once a stop was asked for: ends the long poll */
    int hurry_fd;         /* readable once nobody wants to wait for a broker that does not answer */
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t work, room, renew, stopped;
    job *queue, **queue_tail;
    job *live;
    i64 live_count, handled;
    bool stop;         /* begin nothing new */
    bool polling_done; /* nothing new will come */
    bool renewing_done;
    int workers_running;
    hx_consumer_stats stats;
    pthread_t poller, renewer;
    int threads_started; /* poller, renewer, workers, in this order */
    struct worker {
        hx_consumer *consumer;
        int number;
        pthread_t thread;
    } workers[];
};

/* ---- the life of a message */

static void job_unref(job *j) {
    if (--j->refs) return;
    struct haul *h = j->haul;
    if (--h->refs == 0) {
        hx_received_free(&h->received);
        mem_free(h);
    }
    arena_free(j->said);
    mem_free(j);
}

/* The lock is held. */
static void job_add(hx_consumer *c, struct haul *h, hx_message *m, i64 arrived) {
    job *j = mem_zalloc(sizeof(*j));
    j->consumer = c;
    j->message = m;
    j->haul = h;
    j->refs = 1;
    j->granted = arrived;
    j->due = arrived + c->options.lease_ms / 3;
    m->priv = j;
    *c->queue_tail = j;
    c->queue_tail = &j->next_queued;
    j->next_live = c->live;
    j->prev_live = &c->live;
    if (c->live) c->live->prev_live = &j->next_live;
    c->live = j;
    c->live_count++;
}

/* Done with it, whatever became of it. The lock is held. */
static void job_remove(hx_consumer *c, job *j) {
    *j->prev_live = j->next_live;
    if (j->next_live) j->next_live->prev_live = j->prev_live;
    c->live_count--;
    job_unref(j);
    pthread_cond_signal(&c->room);
}

static job *queue_pop(hx_consumer *c) {
    job *j = c->queue;
    c->queue = j->next_queued;
    if (!c->queue) c->queue_tail = &c->queue;
    return j;
}

static void trouble(hx_consumer *c, hx_message *m, const hx_error *err) {
    pthread_mutex_lock(&c->lock);
    c->stats.trouble++;
    pthread_mutex_unlock(&c->lock);
    if (c->options.on_trouble) c->options.on_trouble(c->options.ctx, m, err);
}

/* ---- patience with the broker */

static bool hurried(const hx_consumer *c) {
    return conn_pause(0, c->hurry_fd);
}

/* A call under way is ended by a hurry; one that begins after it is the last, and short. */
static struct patience patience(const hx_consumer *c) {
    return hurried(c) ? (struct patience){.timeout_ms = LAST_TRY_MS, .cancel_fd = -1}
                      : (struct patience){.cancel_fd = c->hurry_fd};
}

/* ---- polling */

/* How many to ask for; waits until it is at least one. 0: polling is over. */
static i64 room_wait(hx_consumer *c) {
    pthread_mutex_lock(&c->lock);
    i64 room = 0;
    for (;;) {
        i64 in_all = c->options.workers + c->options.prefetch;
        if (in_all > RESERVED_MAX) in_all = RESERVED_MAX;
        room = in_all - c->live_count;
        i64 max = c->options.messages_max;
        if (max && room > max - c->handled - c->live_count) room = max - c->handled - c->live_count;
        bool over = c->stop || (max && c->handled >= max);
        if (over) room = 0;
        if (over || room > 0) break;
        pthread_cond_wait(&c->room, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return room;
}

static void haul_in(hx_consumer *c, hx_received *take) {
    struct haul *h = mem_zalloc(sizeof(*h));
    h->received = *take;
    h->refs = take->count;
    *take = (hx_received){0};
    i64 arrived = clock_mono_ms();
    pthread_mutex_lock(&c->lock);
    c->stats.received += (i64)h->refs;
    for (size_t i = 0, n = h->refs; i < n; i++) job_add(c, h, h->received.messages[i], arrived);
    pthread_cond_broadcast(&c->work);
    pthread_cond_signal(&c->renew);
    pthread_mutex_unlock(&c->lock);
}

static hx_status poll_once(hx_consumer *c, i64 max, hx_received *out, hx_error *err) {
    const hx_consume_options *o = &c->options;
    hx_receive_options ro = {.max = (int)max,
                             .wait_ms = o->wait_ms,
                             .lease_ms = o->lease_ms,
                             .consumer = c->consumer_name,
                             .explicit_start = true};
    *out = (hx_received){0};
    return receive_call(c->client, c->queue_name, &ro, c->stop_fd, out, err);
}

/* An empty poll. true: it has been quiet long enough to stop. */
static bool quiet(hx_consumer *c, i64 began, i64 last_arrival) {
    i64 idle = c->options.idle_ms, now = clock_mono_ms();
    if (idle < 0 || (idle > 0 && now - last_arrival >= idle)) return true;
    if (now - began < EMPTY_PAUSE_MS) conn_pause(EMPTY_PAUSE_MS, c->stop_fd);
    return false;
}

static void *poller_run(void *arg) {
    hx_consumer *c = arg;
    i64 backoff = BACKOFF_MS, last_arrival = clock_mono_ms();
    for (i64 room; (room = room_wait(c)) > 0;) {
        hx_received got;
        hx_error err;
        i64 began = clock_mono_ms();
        hx_status st = poll_once(c, room, &got, &err);
        if (st == HX_CANCELLED) break;
        if (st != HX_OK) {
            hx_received_free(&got);
            trouble(c, NULL, &err);
            if (st == HX_INVALID) break; /* asking again would not help */
            if (conn_pause(backoff, c->stop_fd)) break;
            backoff = backoff * 2 < BACKOFF_MS_MAX ? backoff * 2 : BACKOFF_MS_MAX;
            continue;
        }
        backoff = BACKOFF_MS;
        bool empty = got.count == 0;
        if (empty)
            hx_received_free(&got);
        else
            haul_in(c, &got);
        if (!empty)
            last_arrival = clock_mono_ms();
        else if (quiet(c, began, last_arrival))
            break;
    }
    pthread_mutex_lock(&c->lock);
    c->polling_done = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- renewing */

static void lose(hx_consumer *c, job *j, bool final) {
    if (final) j->due = INT64_MAX;
    if (j->settling || atomic_exchange(&j->lost, true)) return;
    c->stats.leases_lost++;
    if (!c->options.on_lease_lost || !j->begun) return;
    j->refs++;
    pthread_mutex_unlock(&c->lock);
    c->options.on_lease_lost(c->options.ctx, j->message);
    pthread_mutex_lock(&c->lock);
    job_unref(j);
}

/* One extension's answer. The lock is held (and let go of to tell the handler). */
static void renewed(hx_consumer *c, job *j, hx_status st, i64 sent) {
    i64 lease = c->options.lease_ms;
    if (st == HX_OK) {
        j->granted = sent;
        j->due = sent + lease / 3;
        return;
    }
    if (st == HX_FENCED || st == HX_SETTLED || st == HX_NOT_FOUND || st == HX_INVALID) {
        lose(c, j, true);
        return;
    }
    i64 now = clock_mono_ms();
    j->due = now + (lease / 10 < 1000 ? lease / 10 : 1000);
    if (now >= j->granted + lease) lose(c, j, false);
}

/* What is due now or soon, each pinned. */
static size_t renew_collect(hx_consumer *c, job **jobs, i64 now, i64 *first_end) {
    size_t n = 0;
    *first_end = INT64_MAX;
    for (job *j = c->live; j && n < RESERVED_MAX; j = j->next_live) {
        if (j->due > now + c->options.lease_ms / 12) continue;
        j->refs++;
        jobs[n++] = j;
        i64 end = j->granted + c->options.lease_ms;
        if (end > now && end < *first_end) *first_end = end;
    }
    return n;
}

/* Extend them in one call. The lock is held, and let go of meanwhile. */
static void renew(hx_consumer *c, i64 now) {
    job *jobs[RESERVED_MAX];
    struct settle_item *items = mem_zalloc(RESERVED_MAX * sizeof(*items));
    i64 first_end, timeout = c->options.lease_ms / 3;
    size_t n = renew_collect(c, jobs, now, &first_end);
    for (size_t i = 0; i < n; i++) items[i].token = jobs[i]->message->token;
    pthread_mutex_unlock(&c->lock);
    /* Not longer than until the first lease would end unnoticed. */
    if (first_end - now < timeout) timeout = first_end - now;
    hx_error err;
    struct patience p = patience(c);
    if (!p.timeout_ms || timeout < p.timeout_ms) p.timeout_ms = timeout > 1 ? timeout : 1;
    hx_status st = settle_many(c->client, p, "extend", items, n, c->options.lease_ms, &err);
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        renewed(c, jobs[i], st == HX_OK ? items[i].status : HX_UNKNOWN, now);
        job_unref(jobs[i]);
    }
    mem_free(items);
}

static void *renewer_run(void *arg) {
    hx_consumer *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->renewing_done) {
        i64 next = INT64_MAX, now = clock_mono_ms();
        for (job *j = c->live; j; j = j->next_live)
            if (j->due < next) next = j->due;
        if (next <= now)
            renew(c, now);
        else if (next == INT64_MAX)
            pthread_cond_wait(&c->renew, &c->lock);
        else
            cond_wait_until(&c->renew, &c->lock, next);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- working */

static hx_status settle_verdict(hx_consumer *c, job *j, hx_verdict verdict, hx_settled *out, hx_error *err) {
    const char *token = j->message->token;
    struct patience p = patience(c);
    hx_failure failure = {.reason = j->reason, .delay_ms = j->delay_ms};
    switch (verdict) {
    case HX_DONE:
        return ack_within(c->client, p, token, j->result, j->content_type, j->effect_id, out, err);
    case HX_GIVE_BACK:
    case HX_GIVE_BACK_AND_STOP:
        return plain_within(c->client, p, "release", token, out, err);
    case HX_FAIL_TRANSIENT:
        failure.failure_class = HX_TRANSIENT;
        break;
    case HX_FAIL_POISON:
        failure.failure_class = HX_POISON;
        break;
    case HX_FAIL_REJECTED:
        failure.failure_class = HX_REJECTED;
        failure.result = j->result;
        failure.content_type = j->content_type;
        break;
    case HX_FAIL_ABSENT:
        failure.failure_class = HX_ABSENT;
        break;
    case HX_FAIL_UNKNOWN:
    default:
        failure.failure_class = HX_CLASS_UNKNOWN;
        break;
    }
    return nack_within(c->client, p, token, &failure, out, err);
}

static bool stopping(hx_consumer *c) {
    pthread_mutex_lock(&c->lock);
    bool stop = c->stop;
    pthread_mutex_unlock(&c->lock);
    return stop;
}

/* The broker has not taken it, and whoever asked for the stop does not want to wait any longer. */
static void give_up(hx_consumer *c, job *j, bool maybe, const hx_error *last) {
    hx_error err;
    error_set(&err, HX_CANCELLED, maybe ? HX_APPLIED_UNKNOWN : HX_APPLIED_NO, "cancelled",
              "stopped before the broker took it: %s", last->detail);
    trouble(c, j->message, &err);
}

/* Until it is settled or refused for good: the work is done, and whoever lets go of it here has it done again. A broker
 * without room for the result gets some, one that is away comes back and gives leases their full length again. Once a
 * stop is asked for, no longer than a lease; in a hurry, one last try. false: it is not settled. */
static bool settle_call(hx_consumer *c, job *j, hx_verdict verdict, hx_settled *settled) {
    i64 until = clock_mono_ms() + c->options.lease_ms, backoff = BACKOFF_MS;
    bool maybe = false; /* some try may have been applied */
    for (;;) {
        hx_error err;
        bool last = hurried(c);
        if (settle_verdict(c, j, verdict, settled, &err) == HX_OK) return true;
        hx_settled_free(settled);
        maybe = maybe || err.applied == HX_APPLIED_UNKNOWN;
        bool passes = problem_passes(&err) || err.status == HX_UNREACHABLE;
        bool due = clock_mono_ms() + backoff >= until;
        if (passes && (last || (due && stopping(c)))) {
            give_up(c, j, maybe, &err);
            return false;
        }
        if (!passes || due) trouble(c, j->message, &err);
        if (!passes) return false;
        if (due) until = clock_mono_ms() + c->options.lease_ms;
        conn_pause(backoff, c->hurry_fd);
        backoff = backoff * 2 < BACKOFF_MS_MAX ? backoff * 2 : BACKOFF_MS_MAX;
    }
}

static void settle(hx_consumer *c, job *j, hx_verdict verdict) {
    hx_settled settled;
    pthread_mutex_lock(&c->lock);
    j->settling = true;
    pthread_mutex_unlock(&c->lock);
    if (!settle_call(c, j, verdict, &settled)) return;
    bool given_back = verdict == HX_GIVE_BACK || verdict == HX_GIVE_BACK_AND_STOP;
    pthread_mutex_lock(&c->lock);
    if (given_back)
        c->stats.given_back++;
    else
        c->stats.settled++;
    pthread_mutex_unlock(&c->lock);
    if (c->options.on_settled) c->options.on_settled(c->options.ctx, j->message, verdict, &settled);
    hx_settled_free(&settled);
}

/* true: the handler may run. Otherwise the message is somebody else's by now, or comes back when its lease ends. */
static bool start(hx_consumer *c, job *j) {
    hx_error err;
    hx_status st = atomic_load(&j->lost) ? HX_FENCED
                                         : plain_within(c->client, patience(c), "start", j->message->token, NULL, &err);
    if (st == HX_OK) return true;
    if (st == HX_FENCED || st == HX_SETTLED || st == HX_NOT_FOUND) return false;
    if (st != HX_CANCELLED) trouble(c, j->message, &err);
    /* It may count as started; nothing was done, so say so if anybody listens. */
    if (err.applied == HX_APPLIED_UNKNOWN) settle(c, j, HX_GIVE_BACK);
    return false;
}

/* The handler, behind the gate if there is one. */
static hx_verdict handle(hx_consumer *c, job *j, int worker) {
    if (!c->options.gate) return c->options.handler(c->options.ctx, j->message);
    hx_error err = {0};
    hx_verdict verdict = gate_handle(&c->options, worker, j->message, &err);
    if (err.status != HX_OK) trouble(c, j->message, &err);
    return verdict;
}

static void work(hx_consumer *c, job *j, int worker) {
    if (!start(c, j)) return;
    pthread_mutex_lock(&c->lock);
    c->stats.started++;
    j->begun = true;
    pthread_mutex_unlock(&c->lock);
    hx_verdict verdict = handle(c, j, worker);
    if (verdict == HX_GIVE_BACK_AND_STOP) hx_consumer_stop(c);
    settle(c, j, verdict);
    pthread_mutex_lock(&c->lock);
    c->handled++;
    pthread_mutex_unlock(&c->lock);
}

static void *worker_run(void *arg) {
    const struct worker *w = arg;
    hx_consumer *c = w->consumer;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->queue && !c->stop && !c->polling_done) pthread_cond_wait(&c->work, &c->lock);
        if (c->stop || !c->queue) break;
        job *j = queue_pop(c);
        pthread_mutex_unlock(&c->lock);
        work(c, j, w->number);
        pthread_mutex_lock(&c->lock);
        job_remove(c, j);
    }
    if (--c->workers_running == 0) pthread_cond_broadcast(&c->stopped);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the public calls */

static char *copy(const char *text) {
    if (!text) return NULL;
    size_t n = strlen(text) + 1;
    return memcpy(mem_alloc(n), text, n);
}

static void set_defaults(hx_consume_options *o) {
    if (o->workers <= 0) o->workers = 1;
    if (o->prefetch < 0)
        o->prefetch = 0;
    else if (o->prefetch == 0)
        o->prefetch = o->workers;
    if (o->lease_ms <= 0) o->lease_ms = 30000;
    if (o->wait_ms == 0) o->wait_ms = 20000;
    if (o->wait_ms < 0) o->wait_ms = 0;
    if (o->idle_ms > 0 && o->wait_ms > o->idle_ms) o->wait_ms = o->idle_ms;
}

/* Threads in the order of threads_started. */
static bool start_threads(hx_consumer *c) {
    if (pthread_create(&c->poller, NULL, poller_run, c) != 0) return false;
    c->threads_started = 1;
    if (pthread_create(&c->renewer, NULL, renewer_run, c) != 0) return false;
    c->threads_started = 2;
    for (int i = 0; i < c->options.workers; i++) {
        pthread_mutex_lock(&c->lock);
        c->workers_running++;
        pthread_mutex_unlock(&c->lock);
        c->workers[i] = (struct worker){.consumer = c, .number = i};
        if (pthread_create(&c->workers[i].thread, NULL, worker_run, &c->workers[i]) != 0) return false;
        c->threads_started++;
    }
    return true;
}

static void copy_gate(hx_consumer *c) {
    if (!c->options.gate) return;
    c->gate = *c->options.gate;
    c->gate_scope = copy(c->gate.scope ? c->gate.scope : c->options.queue);
    c->gate.scope = c->gate_scope;
    c->options.gate = &c->gate;
}

hx_status hx_consume(hx_client *client, const hx_consume_options *options, hx_consumer **out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    *out = NULL;
    if (!queue_ok(options->queue, err)) return HX_INVALID;
    if (!options->handler || !text_ok(options->consumer))
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "options_invalid", "no handler, or a name that is not UTF-8");
    if (options->gate && !options->gate->gate)
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "options_invalid", "a gate without its function");
    if (options->lease_ms != 0 && options->lease_ms < 1000)
        return error_set(err, HX_INVALID, HX_APPLIED_NO, "lease_invalid", "a lease is at least one second");
    hx_consume_options o = *options;
    set_defaults(&o);
    int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), hurry_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd < 0 || hurry_fd < 0) {
        if (stop_fd >= 0) close(stop_fd);
        if (hurry_fd >= 0) close(hurry_fd);
        return error_set(err, HX_BUSY, HX_APPLIED_NO, "no_descriptor", "no file descriptor left");
    }
    hx_consumer *c = mem_zalloc(sizeof(*c) + (size_t)o.workers * sizeof(c->workers[0]));
    c->client = client;
    c->options = o;
    c->queue_name = copy(o.queue);
    c->consumer_name = copy(o.consumer);
    c->options.consumer = c->consumer_name;
    copy_gate(c);
    c->stop_fd = stop_fd;
    c->hurry_fd = hurry_fd;
    c->queue_tail = &c->queue;
    pthread_mutex_init(&c->lock, NULL);
    cond_init(&c->work);
    cond_init(&c->room);
    cond_init(&c->renew);
    cond_init(&c->stopped);
    *out = c; /* before any function of the caller's runs: it may want to stop the consumer */
    if (!start_threads(c)) {
        hx_consumer_close(c);
        *out = NULL;
        return error_set(err, HX_BUSY, HX_APPLIED_NO, "no_thread", "cannot start a thread");
    }
    return error_ok(err);
}

void hx_consumer_stop(hx_consumer *c) {
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->work);
    pthread_cond_broadcast(&c->room);
    pthread_mutex_unlock(&c->lock);
    eventfd_write(c->stop_fd, 1);
}

void hx_consumer_hurry(hx_consumer *c) {
    hx_consumer_stop(c);
    eventfd_write(c->hurry_fd, 1);
}

bool hx_consumer_wait(hx_consumer *c, i64 wait_ms) {
    i64 until = clock_mono_ms() + wait_ms;
    pthread_mutex_lock(&c->lock);
    while (c->workers_running) {
        if (wait_ms < 0)
            pthread_cond_wait(&c->stopped, &c->lock);
        else if (!cond_wait_until(&c->stopped, &c->lock, until))
            break;
    }
    bool done = c->workers_running == 0;
    pthread_mutex_unlock(&c->lock);
    return done;
}

/* Reservations nobody began. All threads but the renewing one are gone. */
static void give_back(hx_consumer *c) {
    struct settle_item *items = mem_zalloc(RESERVED_MAX * sizeof(*items));
    size_t n = 0;
    for (job *j = c->queue; j && n < RESERVED_MAX; j = j->next_queued) items[n++].token = j->message->token;
    hx_error err;
    if (n && settle_many(c->client, patience(c), "release", items, n, 0, &err) != HX_OK)
        trouble(c, NULL, &err);
    else
        c->stats.given_back += (i64)n;
    while (c->queue) job_remove(c, queue_pop(c));
    mem_free(items);
}

static void renewer_end(hx_consumer *c) {
    pthread_mutex_lock(&c->lock);
    c->renewing_done = true;
    pthread_cond_signal(&c->renew);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->renewer, NULL);
}

void hx_consumer_close(hx_consumer *c) {
    if (!c) return;
    hx_consumer_stop(c);
    if (c->threads_started > 0) pthread_join(c->poller, NULL);
    for (int i = 0; i < c->threads_started - 2; i++) pthread_join(c->workers[i].thread, NULL);
    if (c->threads_started > 1) renewer_end(c);
    give_back(c);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->room);
    pthread_cond_destroy(&c->renew);
    pthread_cond_destroy(&c->stopped);
    pthread_mutex_destroy(&c->lock);
    close(c->stop_fd);
    close(c->hurry_fd);
    mem_free(c->queue_name);
    mem_free(c->consumer_name);
    mem_free(c->gate_scope);
    mem_free(c);
}

void hx_consumer_stats_get(hx_consumer *c, hx_consumer_stats *out) {
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    pthread_mutex_unlock(&c->lock);
}

/* ---- for handlers */

bool hx_message_lease_lost(const hx_message *m) {
    return m->priv && atomic_load(&m->priv->lost);
}

static struct arena *said(hx_message *m) {
    CHECK(m->priv); /* only a handler's message can be told things */
    if (!m->priv->said) m->priv->said = arena_new();
    return m->priv->said;
}

void hx_message_set_result(hx_message *m, hx_bytes result, const char *content_type) {
    struct arena *a = said(m);
    m->priv->result = result.data ? arena_bytes(a, slice_of(result.data, result.size)) : (hx_bytes){0};
    m->priv->content_type = content_type ? arena_string(a, slice_str(content_type)) : NULL;
}

void hx_message_set_reason(hx_message *m, const char *reason) {
    m->priv->reason = reason ? arena_string(said(m), slice_str(reason)) : NULL;
}

void hx_message_set_delay(hx_message *m, i64 delay_ms) {
    CHECK(m->priv);
    m->priv->delay_ms = delay_ms;
}

void hx_message_set_effect_id(hx_message *m, const char *effect_id) {
    m->priv->effect_id = effect_id ? arena_string(said(m), slice_str(effect_id)) : NULL;
}

void message_outcome(const hx_message *m, hx_gate_outcome *out) {
    const job *j = m->priv;
    *out = (hx_gate_outcome){.result = j->result, .content_type = j->content_type, .effect_id = j->effect_id};
}

struct hx_value {
    struct arena *arena;
    hx_bytes bytes;
};

void hx_value_set(hx_value *value, hx_bytes bytes) {
    value->bytes = bytes.data ? arena_bytes(value->arena, slice_of(bytes.data, bytes.size)) : (hx_bytes){0};
}

hx_status hx_step_once(hx_message *m, const char *name, hx_step_fn fn, void *ctx, hx_bytes *out, hx_error *err) {
    hx_error spare_err;
    hx_bytes spare_out;
    if (!err) err = &spare_err;
    if (!out) out = &spare_out;
    *out = (hx_bytes){0};
    for (size_t i = 0; i < m->step_count; i++) {
        if (strcmp(m->steps[i].name, name) != 0) continue;
        *out = m->steps[i].result;
        return error_ok(err);
    }
    if (hx_message_lease_lost(m))
        return error_set(err, HX_FENCED, HX_APPLIED_NO, "fenced", "the lease is lost: step %s was not begun", name);
    hx_value value = {.arena = said(m)};
    hx_status st = fn(ctx, m, &value);
    if (st != HX_OK) return error_set(err, st, HX_APPLIED_NO, "step_failed", "step %s was not done", name);
    hx_step_answer answer = {0};
    st = hx_step(m->priv->consumer->client, m->priv->message->token, name, value.bytes, &answer, err);
    if (st == HX_OK && answer.recorded_before && answer.result.data)
        *out = arena_bytes(value.arena, slice_of(answer.result.data, answer.result.size));
    else if (st == HX_OK)
        *out = value.bytes;
    hx_step_answer_free(&answer);
    return st;
}
