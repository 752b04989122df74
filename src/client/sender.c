/* The sender: messages from many threads, gathered into batches without a timer.
 *
 * Each lane is a thread with one request under way at a time. While it waits for the answer, new messages queue up; the
 * next request takes them all. So the first message leaves at once and a busy sender's batches are as large as the
 * broker is slow, which is the broker's own way of committing. A group always uses the same lane, hence keeps its
 * order.
 *
 * A batch whose answer was lost is sent again as it is: every line's key makes that safe. A line's outcome is final
 * when the broker says so, or when the message's own time is up; then it is "unknown" if any try may have been applied.
 */
#include "client/client_priv.h"

enum { BATCH_LINES_MAX = 10000, BATCH_BYTES_MAX = 7 << 20, BACKOFF_MS = 20, BACKOFF_MS_MAX = 1000 };

struct item {
    struct item *next;
    u64 seq; /* order of taking, over all lanes */
    i64 deadline;
    bool sent, unknown; /* a try went out before; one may have been applied */
    hx_sent_fn fn;
    void *ctx;
    hx_future *future; /* instead of fn */
    size_t size;
    char line[];
};

struct list {
    struct item *head, **tail;
    size_t count;
};

struct lane {
    struct hx_sender *sender;
    pthread_t thread;
    pthread_cond_t work;
    struct list queue;
    u64 oldest; /* seq of the first message of the batch under way; 0: none. For flushing */
    size_t lines_max;
};

struct hx_sender {
    hx_client *client;
    struct buf target;
    size_t batch_lines, batch_bytes, memory_max;
    bool never_block;
    i64 timeout_ms;
    pthread_mutex_t lock; /* everything below, and the lanes' queues */
    pthread_cond_t room, answered;
    size_t memory;
    u64 taken;
    bool closing;
    int lane_count;
    u64 next_lane;
    struct lane lanes[];
};

struct hx_future {
    pthread_mutex_t lock;
    pthread_cond_t done;
    int refs;
    bool ready;
    hx_status status;
    hx_receipt receipt;
    hx_error error;
};

static void list_init(struct list *l) {
    *l = (struct list){.tail = &l->head};
}

static void list_push(struct list *l, struct item *it) {
    it->next = NULL;
    *l->tail = it;
    l->tail = &it->next;
    l->count++;
}

static void list_append(struct list *l, struct list *take) {
    if (!take->head) return;
    *l->tail = take->head;
    l->tail = take->tail;
    l->count += take->count;
    list_init(take);
}

static struct item *list_pop(struct list *l) {
    struct item *it = l->head;
    CHECK(it);
    l->head = it->next;
    if (!l->head) l->tail = &l->head;
    l->count--;
    return it;
}

static size_t item_memory(const struct item *it) {
    return sizeof(*it) + it->size;
}

/* ---- futures */

static void future_unref(hx_future *f) {
    pthread_mutex_lock(&f->lock);
    int refs = --f->refs;
    pthread_mutex_unlock(&f->lock);
    if (refs) return;
    hx_receipt_free(&f->receipt);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->done);
    mem_free(f);
}

static void future_set(hx_future *f, hx_status status, hx_receipt *take_receipt, const hx_error *err) {
    pthread_mutex_lock(&f->lock);
    f->status = status;
    f->receipt = *take_receipt;
    f->error = *err;
    f->ready = true;
    pthread_cond_broadcast(&f->done);
    pthread_mutex_unlock(&f->lock);
    *take_receipt = (hx_receipt){.id = ""};
    future_unref(f);
}

bool hx_future_wait(hx_future *f, i64 wait_ms, hx_status *status, hx_receipt *out, hx_error *err) {
    i64 until = clock_mono_ms() + wait_ms;
    pthread_mutex_lock(&f->lock);
    while (!f->ready) {
        if (wait_ms < 0)
            pthread_cond_wait(&f->done, &f->lock);
        else if (!cond_wait_until(&f->done, &f->lock, until))
            break;
    }
    bool ready = f->ready;
    if (ready) {
        if (status) *status = f->status;
        if (err) *err = f->error;
        if (out) {
            *out = f->receipt;
            f->receipt = (hx_receipt){.id = ""};
        }
    }
    pthread_mutex_unlock(&f->lock);
    return ready;
}

void hx_future_free(hx_future *f) {
    if (f) future_unref(f);
}

/* ---- one batch */

/* Tell the message's owner. The item is gone afterwards; its memory is counted until the caller says otherwise. */
static void complete(struct item *it, hx_status status, hx_receipt *receipt, hx_error *err) {
    if (it->future)
        future_set(it->future, status, receipt, err);
    else if (it->fn)
        it->fn(it->ctx, status, receipt, err);
    hx_receipt_free(receipt);
    mem_free(it);
}

static void complete_failed(struct item *it, const hx_error *why) {
    hx_receipt none = {.id = "", .retried = it->sent};
    hx_error err = *why;
    if (it->unknown && err.applied != HX_APPLIED_UNKNOWN)
        error_set(&err, HX_UNKNOWN, HX_APPLIED_UNKNOWN, "unknown", "no answer in time; last: %s", why->detail);
    complete(it, err.status, &none, &err);
}

/* One line of the reply. true: the outcome is final and `it` is completed. */
static bool line_answered(struct item *it, slice line, hx_error *last) {
    struct arena *a = arena_new();
    hx_receipt receipt = {.memory = a, .retried = it->sent};
    hx_error err;
    i64 status = 0;
    if (!receipt_read(line, a, &receipt, &status) || status < 200 || status > 599)
        error_protocol(&err, 200, "a line of the batch's answer makes no sense");
    else if (status < 300)
        error_ok(&err);
    else
        problem_read((int)status, line, &err);
    err.http_status = (int)status;
    if (problem_passes(&err) && err.status != HX_PROTOCOL) {
        it->unknown = it->unknown || err.applied == HX_APPLIED_UNKNOWN;
        *last = err;
        arena_free(a);
        return false;
    }
    receipt.json = it->future ? arena_bytes(a, line) : hx_bytes_of(line.p, line.n);
    complete(it, err.status, &receipt, &err);
    return true;
}

static size_t count_lines(slice body) {
    size_t n = 0;
    for (size_t i = 0; i < body.n; i++) n += body.p[i] == '\n';
    return n + (body.n && body.p[body.n - 1] != '\n');
}

/* Lines that were refused for a while stay in `hand`. false: the reply is not one for this batch. */
static bool batch_answered(struct list *hand, slice body, hx_error *last) {
    if (count_lines(body) != hand->count) return false;
    struct list left;
    list_init(&left);
    while (hand->head) {
        struct item *it = list_pop(hand);
        slice line, rest;
        slice_cut(body, '\n', &line, &rest);
        body = rest;
        if (line_answered(it, line, last)) continue;
        it->sent = true;
        list_push(&left, it);
    }
    list_append(hand, &left);
    return true;
}

static void fail_all(struct list *hand, const hx_error *err) {
    while (hand->head) complete_failed(list_pop(hand), err);
}

/* Those whose time is up, or that must not be tried again. */
static void fail_expired(struct list *hand, const hx_error *err) {
    struct list left;
    list_init(&left);
    i64 now = clock_mono_ms();
    while (hand->head) {
        struct item *it = list_pop(hand);
        it->unknown = it->unknown || err->applied == HX_APPLIED_UNKNOWN;
        it->sent = true;
        if (it->deadline <= now)
            complete_failed(it, err);
        else
            list_push(&left, it);
    }
    list_append(hand, &left);
}

static i64 earliest_deadline(const struct list *hand) {
    i64 earliest = INT64_MAX;
    for (const struct item *it = hand->head; it; it = it->next)
        if (it->deadline < earliest) earliest = it->deadline;
    return earliest;
}

/* One request for what is in the hand; what is still there afterwards is to be tried again. */
static hx_error batch_try(struct lane *lane, struct list *hand) {
    struct buf body = {0};
    for (struct item *it = hand->head; it; it = it->next) buf_add(&body, it->line, it->size);
    i64 left = earliest_deadline(hand) - clock_mono_ms();
    struct call call =
        CALL(.method = "POST", .target = buf_slice(&lane->sender->target), .content_type = SL("application/x-ndjson"),
             .body = buf_slice(&body), .timeout_ms = left > 1 ? left : 1, .patient = true);
    struct reply reply = {0};
    hx_error err, last = {0};
    hx_status st = client_call(lane->sender->client, &call, &reply, &err);
    if (call.retried)
        for (struct item *it = hand->head; it; it = it->next) it->sent = true;
    if (st == HX_OK && !batch_answered(hand, buf_slice(&reply.body), &last)) {
        error_protocol(&err, reply.status, "a batch was answered with another number of lines");
        fail_all(hand, &err);
    } else if (st == HX_OK && hand->head) {
        err = last;
        fail_expired(hand, &err);
    } else if (st == HX_TOO_LARGE && hand->count > 1) {
        lane->lines_max = hand->count / 2;
    } else if (st != HX_OK && (problem_passes(&err) || st == HX_UNREACHABLE) && st != HX_PROTOCOL) {
        fail_expired(hand, &err);
    } else if (st != HX_OK) {
        fail_all(hand, &err);
    }
    reply_free(&reply);
    buf_free(&body);
    return err;
}

/* ---- a lane */

static size_t list_memory(const struct list *l) {
    size_t n = 0;
    for (const struct item *it = l->head; it; it = it->next) n += item_memory(it);
    return n;
}

/* Wait for messages and take a batch. false: closing, and nothing is left. */
static bool lane_take(struct lane *lane, struct list *hand) {
    struct hx_sender *s = lane->sender;
    size_t bytes = 0;
    pthread_mutex_lock(&s->lock);
    while (!lane->queue.head && !s->closing) pthread_cond_wait(&lane->work, &s->lock);
    while (lane->queue.head && hand->count < lane->lines_max) {
        bytes += lane->queue.head->size;
        if (hand->count && bytes > s->batch_bytes) break;
        list_push(hand, list_pop(&lane->queue));
    }
    lane->oldest = hand->head ? hand->head->seq : 0;
    pthread_mutex_unlock(&s->lock);
    return hand->head != NULL;
}

/* A batch was answered, wholly or in part. What no longer fits into one goes back to the front of the queue. */
static void lane_answered(struct lane *lane, struct list *hand, size_t memory_before) {
    struct hx_sender *s = lane->sender;
    pthread_mutex_lock(&s->lock);
    s->memory -= memory_before - list_memory(hand);
    if (hand->count > lane->lines_max) {
        struct list kept;
        list_init(&kept);
        while (kept.count < lane->lines_max) list_push(&kept, list_pop(hand));
        list_append(hand, &lane->queue);
        list_append(&lane->queue, hand);
        list_append(hand, &kept);
    }
    lane->oldest = hand->head ? hand->head->seq : 0;
    pthread_cond_broadcast(&s->room);
    pthread_cond_broadcast(&s->answered);
    pthread_mutex_unlock(&s->lock);
}

static void *lane_run(void *arg) {
    struct lane *lane = arg;
    struct list hand;
    list_init(&hand);
    i64 backoff = BACKOFF_MS;
    hx_error err = {0};
    while (hand.head || lane_take(lane, &hand)) {
        size_t before = list_memory(&hand);
        if (err.status != HX_OK) fail_expired(&hand, &err);
        if (hand.head) err = batch_try(lane, &hand);
        bool again = hand.head != NULL;
        lane_answered(lane, &hand, before);
        if (again && err.status != HX_TOO_LARGE) {
            conn_pause(err.retry_after_ms > backoff ? err.retry_after_ms : backoff, -1);
            backoff = backoff * 2 < BACKOFF_MS_MAX ? backoff * 2 : BACKOFF_MS_MAX;
        } else {
            backoff = BACKOFF_MS;
            err = (hx_error){0};
        }
    }
    return NULL;
}

/* ---- the public calls */

static size_t or_default(size_t value, size_t otherwise, size_t max) {
    if (value == 0) value = otherwise;
    return value < max ? value : max;
}

hx_status hx_sender_open(hx_client *client, const hx_sender_options *o, hx_sender **out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    *out = NULL;
    if (!queue_ok(o->queue, err)) return HX_INVALID;
    int lanes = o->connections > 0 ? o->connections : 1;
    hx_sender *s = mem_zalloc(sizeof(*s) + (size_t)lanes * sizeof(struct lane));
    s->client = client;
    target_queue(&s->target, o->queue, "/batch");
    s->batch_lines = or_default(o->batch_lines, 1000, BATCH_LINES_MAX);
    s->batch_bytes = or_default(o->batch_bytes, 1 << 20, BATCH_BYTES_MAX);
    s->memory_max = or_default(o->memory_max, 64 << 20, SIZE_MAX);
    s->never_block = o->never_block;
    s->timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : 30000;
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->room);
    cond_init(&s->answered);
    for (int i = 0; i < lanes; i++) {
        struct lane *lane = &s->lanes[i];
        lane->sender = s;
        lane->lines_max = s->batch_lines;
        list_init(&lane->queue);
        cond_init(&lane->work);
        if (pthread_create(&lane->thread, NULL, lane_run, lane) != 0) {
            pthread_cond_destroy(&lane->work);
            hx_sender_close(s);
            return error_set(err, HX_BUSY, HX_APPLIED_NO, "no_thread", "cannot start a thread");
        }
        s->lane_count = i + 1;
    }
    *out = s;
    return error_ok(err);
}

static struct lane *lane_for(hx_sender *s, const char *group) {
    static const struct siphash_key key = {0x68617061782d6c61, 0x6e652d6b65790000};
    u64 n = group ? siphash(&key, group, strlen(group)) : s->next_lane++;
    return &s->lanes[n % (u64)s->lane_count];
}

static struct item *item_new(const hx_draft *draft, i64 timeout_ms) {
    struct buf line = {0};
    draft_line(&line, draft);
    struct item *it = mem_alloc(sizeof(*it) + line.len);
    *it = (struct item){.size = line.len, .deadline = clock_mono_ms() + timeout_ms};
    memcpy(it->line, line.p, line.len);
    buf_free(&line);
    return it;
}

/* Takes `it` when it returns HX_OK. */
static hx_status enqueue(hx_sender *s, struct item *it, const char *group, hx_error *err) {
    size_t need = item_memory(it);
    hx_status st = HX_OK;
    pthread_mutex_lock(&s->lock);
    while (!s->closing && !s->never_block && s->memory && s->memory + need > s->memory_max)
        pthread_cond_wait(&s->room, &s->lock);
    if (s->closing)
        st = error_set(err, HX_CLOSED, HX_APPLIED_NO, "closed", "the sender is being closed");
    else if (s->memory && s->memory + need > s->memory_max)
        st = error_set(err, HX_BUSY, HX_APPLIED_NO, "sender_full", "%zu bytes wait for an answer already", s->memory);
    if (st == HX_OK) {
        struct lane *lane = lane_for(s, group);
        it->seq = ++s->taken;
        s->memory += need;
        list_push(&lane->queue, it);
        pthread_cond_signal(&lane->work);
        error_ok(err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

hx_status hx_send_async(hx_sender *s, const hx_draft *draft, hx_sent_fn fn, void *ctx, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    hx_status st = draft_check(draft, true, err);
    if (st != HX_OK) return st;
    struct item *it = item_new(draft, s->timeout_ms);
    it->fn = fn;
    it->ctx = ctx;
    st = enqueue(s, it, draft->group, err);
    if (st != HX_OK) mem_free(it);
    return st;
}

hx_status hx_send_future(hx_sender *s, const hx_draft *draft, hx_future **out, hx_error *err) {
    hx_error spare;
    if (!err) err = &spare;
    *out = NULL;
    hx_status st = draft_check(draft, true, err);
    if (st != HX_OK) return st;
    struct item *it = item_new(draft, s->timeout_ms);
    hx_future *f = mem_zalloc(sizeof(*f));
    f->refs = 2;
    f->receipt.id = "";
    pthread_mutex_init(&f->lock, NULL);
    cond_init(&f->done);
    it->future = f;
    st = enqueue(s, it, draft->group, err);
    if (st == HX_OK) {
        *out = f;
        return st;
    }
    mem_free(it);
    f->refs = 1;
    future_unref(f);
    return st;
}

static bool answered_up_to(const hx_sender *s, u64 seq) {
    for (int i = 0; i < s->lane_count; i++) {
        const struct lane *lane = &s->lanes[i];
        if (lane->oldest && lane->oldest <= seq) return false;
        if (lane->queue.head && lane->queue.head->seq <= seq) return false;
    }
    return true;
}

hx_status hx_sender_flush(hx_sender *s, i64 wait_ms) {
    i64 until = clock_mono_ms() + wait_ms;
    pthread_mutex_lock(&s->lock);
    u64 seq = s->taken;
    bool done = answered_up_to(s, seq);
    for (bool time = true; !done && time; done = answered_up_to(s, seq)) {
        if (wait_ms < 0)
            pthread_cond_wait(&s->answered, &s->lock);
        else
            time = cond_wait_until(&s->answered, &s->lock, until);
    }
    pthread_mutex_unlock(&s->lock);
    return done ? HX_OK : HX_BUSY;
}

void hx_sender_close(hx_sender *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->room);
    for (int i = 0; i < s->lane_count; i++) pthread_cond_broadcast(&s->lanes[i].work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->lane_count; i++) {
        pthread_join(s->lanes[i].thread, NULL);
        pthread_cond_destroy(&s->lanes[i].work);
    }
    pthread_cond_destroy(&s->room);
    pthread_cond_destroy(&s->answered);
    pthread_mutex_destroy(&s->lock);
    buf_free(&s->target);
    mem_free(s);
}
