#include "broker/queue_rules.h"

#include "base/json.h"
#include "broker/broker_priv.h"
#include "broker/browsers.h"
#include "broker/limits.h"
#include "broker/operator.h"
#include "broker/parse.h"
#include "broker/report.h"
#include "broker/room.h"
#include "broker/waits.h"

#define QUEUE_RECORD_BYTES 4096u   /* of a QUEUE record beside its text: more than enough */
#define RELOAD_BYTES       131072u /* the audit trail's word on it, and the headroom the core insists on */

struct rulebook {
    struct config *config;  /* the file's, or what stands for one */
    struct queue_rules *of; /* [queue] */
    u32 cap;
    u32 made_on_use;
};

struct rulebook *rulebook_new(void) {
    struct rulebook *r = mem_zalloc(sizeof *r);
    r->config = config_default();
    return r;
}

const struct config *config_in_force(const struct broker *b) {
    return b->rulebook->config;
}

u32 queues_made_on_use(const struct broker *b) {
    return b->rulebook->made_on_use;
}

const struct queue_rules *queue_rules_of(const struct broker *b, u16 queue) {
    static const struct queue_rules nothing_said;
    return queue < b->rulebook->cap ? &b->rulebook->of[queue] : &nothing_said;
}

/* Must a message be looked at before its key is? */
static bool is_special(const struct queue_config *q) {
    return q->key || q->order_by || q->fingerprint || q->schema || q->event_type || q->origin ||
           q->payload_max < PAYLOAD_BYTES_MAX || q->rules.semantics != SEMANTICS_EXACTLY_ONCE;
}

static struct queue_rules *slot_of(struct rulebook *r, u16 queue) {
    if (queue >= r->cap) {
        u32 cap = queue + 64u;
        r->of = mem_realloc(r->of, cap * sizeof *r->of);
        memset(r->of + r->cap, 0, (cap - r->cap) * sizeof *r->of);
        r->cap = cap;
    }
    return &r->of[queue];
}

static void bind_queue(struct broker *b, u16 queue, struct queue_config *config, bool owned) {
    struct queue_info q;
    struct queue_rules *at = slot_of(b->rulebook, queue);
    core_queue_info(b->core, b->now, queue, &q);
    if (at->owned && at->config != config) config_queue_free(at->config);
    b->rulebook->made_on_use -= at->made_on_use;
    *at = (struct queue_rules){.config = config, .owned = owned};
    at->made_on_use = q.origin == ORIGIN_AUTO && !q.deleted;
    b->rulebook->made_on_use += at->made_on_use;
    at->undeclared = q.origin == ORIGIN_AUTO && !b->rulebook->config->auto_create;
    at->special = at->undeclared || (config && is_special(config));
    if (!q.deleted) waits_queue_made(b, queue, q.name);
}

void queue_rules_take(struct broker *b, u16 queue, struct queue_config *config) {
    bind_queue(b, queue, config, config != NULL);
}

static void drop(struct rulebook *r, u16 queue) {
    struct queue_rules *at = &r->of[queue];
    r->made_on_use -= at->made_on_use;
    if (at->owned) config_queue_free(at->config);
    *at = (struct queue_rules){0};
}

void queue_rules_drop(struct broker *b, u16 queue) {
    if (queue < b->rulebook->cap) drop(b->rulebook, queue);
}

/* From the text the core has of it. What another version took and this one cannot read must not keep the broker from
 * starting: nobody could mend it then. The core knows the rules it decides by, so what is there can be received and
 * settled; but no message comes in unlooked at. */
static void bind_stored(struct broker *b, u16 queue) {
    struct queue_info q;
    struct queue_config *config = NULL;
    struct buf errors = {0};
    slice why, rest;
    core_queue_info(b->core, b->now, queue, &q);
    if (q.deleted) return;
    bool readable = q.config.n == 0 || config_queue_from_json(q.name, q.config, &config, &errors) == ST_OK;
    bind_queue(b, queue, config, config != NULL);
    if (readable) return;
    slice_cut(buf_slice(&errors), '\n', &why, &rest);
    struct queue_rules *at = slot_of(b->rulebook, queue);
    at->unreadable = at->special = true;
    report(b, LOG_ERROR, "rules_unreadable",
           "this version cannot read the rules a queue was given; it takes no messages until it is given others",
           log_text("queue", q.name), log_text("detail", why));
    buf_free(&errors);
}

void rulebook_load(struct broker *b) {
    for (u32 queue = 1; queue <= core_queue_count(b->core); queue++) bind_stored(b, (u16)queue);
}

void rulebook_free(struct rulebook *r) {
    if (!r) return;
    for (u32 queue = 0; queue < r->cap; queue++) drop(r, (u16)queue);
    config_free(r->config);
    mem_free(r->of);
    mem_free(r);
}

/* ---- a config file */

/* Would the core write the queue down? Then *bytes grows by what that takes. */
static void weigh(struct broker *b, const struct queue_config *q, u64 *bytes, u32 *made) {
    u16 queue;
    struct queue_info info;
    _Static_assert(CONFIG_QUEUE_BYTES_MAX <= CONFIG_BYTES_MAX, "what is valid can be written down");
    bool known = core_queue_find(b->core, q->name, &queue);
    if (known) core_queue_info(b->core, b->now, queue, &info);
    if (known && info.origin == ORIGIN_FILE && slice_eq(info.config, q->json)) return;
    *bytes += journal_cost(QUEUE_RECORD_BYTES + q->json.n);
    *made += known ? 0 : 1;
}

/* All of it or nothing: is there room for all of it? */
static hx_st can_be_had(struct broker *b, const struct config *config, struct errbuf *err) {
    u64 bytes = 0;
    u32 made = 0;
    for (u32 i = 0; i < config->queues.count; i++) weigh(b, config->queues.at[i], &bytes, &made);
    if (made + core_queue_count(b->core) > QUEUES_MAX)
        return err_set(err, ST_NO_SPACE, "%u queues are the most one broker has", QUEUES_MAX);
    if (bytes && !room_beside_promises(b, bytes + RELOAD_BYTES))
        return err_set(err, ST_NO_SPACE, "the disk has no room to write the queues' rules down");
    return ST_OK;
}

static void declare(struct broker *b, const struct queue_config *q) {
    u16 queue;
    struct queue_spec spec = {.rules = q->rules, .origin = ORIGIN_FILE, .config = q->json};
    if (!core_queue_set(b->core, b->now, q->name, &spec, NULL, &queue))
        report(b, LOG_ERROR, "rules_no_room", "no room to write a queue's rules down; it keeps the old ones",
               log_text("queue", q->name));
}

/* Declared once, and not any more: what the core has of it is all there is. */
static void let_go(struct broker *b, u16 queue) {
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    if (q.deleted || q.origin != ORIGIN_FILE) return;
    struct buf name = {0}, text = {0}; /* the core's own may move while it writes */
    buf_slice_add(&name, q.name);
    buf_slice_add(&text, q.config);
    struct queue_spec spec = {.rules = q.rules, .origin = ORIGIN_AUTO, .config = buf_slice(&text)};
    if (!core_queue_set(b->core, b->now, buf_slice(&name), &spec, NULL, &queue))
        report(b, LOG_WARN, "rules_no_room", "no room to write down that a queue is not declared any more",
               log_text("queue", buf_slice(&name)));
    buf_free(&name);
    buf_free(&text);
}

static void bind_undeclared(struct broker *b, u16 queue) {
    let_go(b, queue);
    const struct queue_rules *now = queue_rules_of(b, queue);
    if (now->unreadable || (now->config && !now->owned)) /* the old file's, which goes */
        bind_stored(b, queue);
    else
        bind_queue(b, queue, now->config, now->owned);
}

/* Who was made through the API or on first use may have become the file's; the others are looked at again, for the file
 * says whether undeclared queues take messages. */
static void bind_all(struct broker *b) {
    const struct config *file = b->rulebook->config;
    u32 count = core_queue_count(b->core);
    bool *declared = mem_zalloc(count + 1);
    for (u32 i = 0; i < file->queues.count; i++) {
        struct queue_config *q = file->queues.at[i];
        u16 queue;
        if (!core_queue_find(b->core, q->name, &queue)) continue;
        declared[queue] = true;
        bind_queue(b, queue, q, false);
    }
    for (u32 queue = 1; queue <= count; queue++)
        if (!declared[queue]) bind_undeclared(b, (u16)queue);
    mem_free(declared);
}

static void audit_reload(struct broker *b, const char *by, const struct config *config, slice changes) {
    struct buf detail = {0};
    buf_char(&detail, '{');
    json_put_member(&detail, "file", config->file);
    json_put_member(&detail, "changes", cut_text(changes, 8192));
    buf_char(&detail, '}');
    struct audit_in in = {.who = slice_str(by), .what = deed_text(DEED_CONFIG_RELOAD), .detail = buf_slice(&detail)};
    if (!core_audit(b->core, b->now, 0, &in))
        report(b, LOG_WARN, "audit_no_room", "no room to write the reload into the audit trail");
    buf_free(&detail);
}

const struct config *broker_config(const struct broker *b) {
    return b->rulebook->config;
}

hx_st broker_configure(struct broker *b, struct broker_time t, struct config *config, const char *by, slice changes,
                       struct errbuf *err) {
    broker_advance(b, t);
    hx_st st = can_be_had(b, config, err);
    if (st != ST_OK) return st;
    if (by && changes.n) audit_reload(b, by, config, changes);
    for (u32 i = 0; i < config->queues.count; i++) declare(b, config->queues.at[i]);
    core_audit_keep(b->core, config->audit_keep_ms);
    struct config *before = b->rulebook->config;
    b->rulebook->config = config;
    browsers_forget(b->browsers);
    bind_all(b);
    config_free(before);
    return ST_OK;
}
