#include "broker/queue_rules.h"

#include "base/json.h"
#include "broker/access.h"
#include "broker/ahead.h"
#include "broker/broker_priv.h"
#include "broker/browsers.h"
#include "broker/ingest.h"
#include "broker/limits.h"
#include "broker/operator.h"
#include "broker/parse.h"
#include "broker/proxy.h"
#include "broker/push.h"
#include "broker/rations.h"
#include "broker/report.h"
#include "broker/room.h"
#include "broker/scope.h"
#include "broker/target.h"
#include "broker/tenants.h"
#include "broker/waits.h"
#include "config/call_template.h"

#define QUEUE_RECORD_BYTES 4096u   /* of a QUEUE record beside its text: more than enough */
#define RELOAD_BYTES       131072u /* the audit trail's word on it, and the headroom the core insists on */
#define CHANGES_BYTES      512u    /* of what changed in one queue, in the trail and in the log */
#define CHANGE_BYTES       (4096u + 6 * CHANGES_BYTES) /* its entry in the trail, however it is escaped */
#define CHANGES_TOLD       20u                         /* lines of the log at start; a reload's are the daemon's */

struct rulebook {
    struct config *config;  /* the file's, or what stands for one */
    struct queue_rules *of; /* [queue] */
    u32 cap;
    u32 made_on_use;
    u32 version; /* rules_version */
};

struct rulebook *rulebook_new(void) {
    struct rulebook *r = mem_zalloc(sizeof *r);
    r->config = config_default();
    return r;
}

const struct config *config_in_force(const struct broker *b) {
    return b->rulebook->config;
}

u32 rules_version(const struct broker *b) {
    return b->rulebook->version + 1;
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

/* Where it delivers to, or looks up. Another address is another target, of which nothing is known. */
static void bind_target(struct broker *b, const struct queue_info *q, const struct queue_config *config) {
    const struct deliver_config *d = config ? config->deliver : NULL;
    if (q->deleted || !config || (!d && !config->reconcile)) return targets_bind(b, q->queue, NULL, 0);
    struct target_rules r = target_rules_default();
    if (d)
        r = (struct target_rules){.circuit = {.ratio_ppm = d->circuit.ratio_ppm,
                                              .of = d->circuit.of,
                                              .within_ms = d->circuit.within_ms,
                                              .open_ms = d->circuit.open_ms},
                                  .concurrency = d->concurrency,
                                  .rate_per_min = d->rate_per_min};
    slice url = call_template_text(d ? d->url : config->reconcile->url);
    targets_bind(b, q->queue, &r, siphash(&(struct siphash_key){0}, url.p, url.n));
    if (q->push_paused) targets_stay_paused(b, q->queue, q->push_gone);
}

static void bind_queue(struct broker *b, u16 queue, struct queue_config *config, bool owned) {
    struct queue_info q;
    struct queue_rules *at = slot_of(b->rulebook, queue);
    ahead_forget(b);
    core_queue_info(b->core, b->now, queue, &q);
    if (at->owned && at->config != config) config_queue_free(at->config);
    b->rulebook->made_on_use -= at->made_on_use;
    *at = (struct queue_rules){.config = config, .owned = owned};
    at->made_on_use = q.origin == ORIGIN_AUTO && !q.deleted;
    b->rulebook->made_on_use += at->made_on_use;
    at->tenant = q.deleted ? TENANT_NONE : tenant_of_queue(b->rulebook->config, q.name);
    core_queue_account(b->core, queue, at->tenant);
    at->scoped = config ? config->key_scope == KEY_SCOPE_CREDENTIAL : scope_said(q.config);
    at->undeclared = q.origin == ORIGIN_AUTO && !b->rulebook->config->auto_create;
    at->special = at->undeclared || (config && is_special(config));
    b->rulebook->version++;
    bind_target(b, &q, config);
    push_rules_changed(b, queue);
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
    if (queue >= b->rulebook->cap) return;
    ahead_forget(b);
    targets_bind(b, queue, NULL, 0);
    push_rules_changed(b, queue);
    drop(b->rulebook, queue);
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
    bool readable =
        q.config.n == 0 || config_queue_from_json(q.name, q.config, SECRETS_AS_WRITTEN, &config, &errors) == ST_OK;
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

/* One file that comes into force. */
struct coming {
    const struct config *config;
    const char *by; /* NULL: the start */
    u64 bytes;      /* of the rules to write down */
    u32 made;       /* queues there were not */
    u32 changed;    /* queues there were, with a word in the trail: at most */
    bool trail;     /* there is room for all of those words */
    u32 told;       /* in the log */
};

/* Would the core write the queue down? Then `bytes` grows by what that takes. */
static void weigh(struct broker *b, const struct queue_config *q, struct coming *to) {
    u16 queue;
    struct queue_info info;
    _Static_assert(CONFIG_QUEUE_BYTES_MAX <= CONFIG_BYTES_MAX, "what is valid can be written down");
    bool known = core_queue_find(b->core, q->name, &queue);
    if (known) core_queue_info(b->core, b->now, queue, &info);
    bool same = known && slice_eq(info.config, q->json);
    if (same && info.origin == ORIGIN_FILE) return;
    to->bytes += journal_cost(QUEUE_RECORD_BYTES + q->json.n);
    to->made += known ? 0 : 1;
    to->changed += known && !same ? 1 : 0;
}

/* In force by a file, and not by this one. */
static bool is_let_go(const struct broker *b, const struct config *config, u16 queue) {
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    return !q.deleted && q.origin == ORIGIN_FILE && !config_find(config, q.name);
}

static bool keys_stay(const struct broker *b, const struct queue_config *q, struct errbuf *err) {
    u16 queue;
    return !core_queue_find(b->core, q->name, &queue) || scope_may_change(b, queue, q, err);
}

/* All of it or nothing: is there room for all of it? The trail's words on single queues are not worth a refusal: on a full
 * disk the log has them alone. */
static hx_st can_be_had(struct broker *b, struct coming *to, struct errbuf *err) {
    const struct config *config = to->config;
    for (u32 i = 0; i < config->queues.count; i++) {
        if (!keys_stay(b, config->queues.at[i], err)) return ST_INVALID;
        weigh(b, config->queues.at[i], to);
    }
    if (to->made > core_queues_left(b->core))
        return err_set(err, ST_NO_SPACE, "%u queues are the most one broker has", QUEUES_MAX);
    if (to->bytes && !room_beside_promises(b, to->bytes + RELOAD_BYTES))
        return err_set(err, ST_NO_SPACE, "the disk has no room to write the queues' rules down");
    for (u32 queue = 1; queue <= core_queue_count(b->core); queue++) to->changed += is_let_go(b, config, (u16)queue);
    u64 trail = to->changed * journal_cost(CHANGE_BYTES);
    to->trail = trail && room_to_spare(b, to->bytes + RELOAD_BYTES + trail);
    return ST_OK;
}

/* ---- what a file changes in a queue there was */

static void put_changes(const struct broker *b, const struct queue_info *was, const struct queue_config *q,
                        struct buf *out) {
    const struct queue_rules *bound = queue_rules_of(b, was->queue);
    if (slice_eq(was->config, q->json)) return;
    if (bound->unreadable || (was->config.n && !bound->config)) {
        buf_lit(out, "all: the rules before could not be read\n");
        return;
    }
    if (bound->config && bound->config == q->former) return buf_slice_add(out, q->differences);
    struct queue_config *none_said = bound->config ? NULL : config_queue_default(q->name);
    config_queue_diff(bound->config ? bound->config : none_said, q, out);
    config_queue_free(none_said);
}

static void tell_change(struct broker *b, struct coming *to, slice queue, slice changes) {
    if (to->by || to->told++ >= CHANGES_TOLD) return;
    report(b, LOG_INFO, "rules_changed", "the file changed a queue's rules since the broker last ran",
           log_text("queue", queue), log_text("changes", changes));
}

static void tell_rest(struct broker *b, const struct coming *to) {
    if (to->told <= CHANGES_TOLD) return;
    report(b, LOG_INFO, "rules_changed", "the file changed further queues' rules; the audit trail names them",
           log_number("queues", to->told - CHANGES_TOLD));
}

/* Sets the rules, with a word in the trail under the queue's name if anything changes for it. */
static bool set_rules(struct broker *b, struct coming *to, slice name, const struct queue_spec *spec, slice changes) {
    u16 queue;
    struct buf detail = {0};
    changes = cut_text(changes, CHANGES_BYTES);
    if (changes.n && changes.p[changes.n - 1] == '\n') changes.n--;
    if (changes.n) tell_change(b, to, name, changes);
    buf_char(&detail, '{');
    json_put_member(&detail, "changes", changes);
    buf_char(&detail, '}');
    struct audit_in in = {.who = to->by ? slice_str(to->by) : SL("start"),
                          .what = deed_text(DEED_QUEUE_PUT),
                          .detail = buf_slice(&detail)};
    bool named = changes.n && to->trail;
    bool set = (named && core_queue_set(b->core, b->now, name, spec, &in, &queue)) ||
               core_queue_set(b->core, b->now, name, spec, NULL, &queue);
    buf_free(&detail);
    return set;
}

static void declare(struct broker *b, struct coming *to, const struct queue_config *q) {
    u16 queue;
    struct queue_info was;
    struct buf changes = {0};
    struct queue_spec spec = {.rules = q->rules, .origin = ORIGIN_FILE, .config = q->json};
    if (core_queue_find(b->core, q->name, &queue)) {
        core_queue_info(b->core, b->now, queue, &was);
        put_changes(b, &was, q, &changes);
    }
    if (!set_rules(b, to, q->name, &spec, buf_slice(&changes)))
        report(b, LOG_ERROR, "rules_no_room", "no room to write a queue's rules down; it keeps the old ones",
               log_text("queue", q->name));
    buf_free(&changes);
}

/* Declared once, and not any more: what the core has of it is all there is. */
static void let_go(struct broker *b, struct coming *to, u16 queue) {
    struct queue_info q;
    if (!is_let_go(b, to->config, queue)) return;
    core_queue_info(b->core, b->now, queue, &q);
    struct buf name = {0}, text = {0}; /* the core's own may move while it writes */
    buf_slice_add(&name, q.name);
    buf_slice_add(&text, q.config);
    struct queue_spec spec = {.rules = q.rules, .origin = ORIGIN_AUTO, .config = buf_slice(&text)};
    if (!set_rules(b, to, buf_slice(&name), &spec, SL("removed from the file; its last rules stay")))
        report(b, LOG_WARN, "rules_no_room", "no room to write down that a queue is not declared any more",
               log_text("queue", buf_slice(&name)));
    buf_free(&name);
    buf_free(&text);
}

/* Do the old file's rules say all that the core has of the queue? Not so where they have secrets, which it has only the names of. */
static bool says_what_is_stored(struct broker *b, u16 queue, const struct queue_config *config) {
    struct queue_info q;
    core_queue_info(b->core, b->now, queue, &q);
    return !config->proxy && !config_queue_has_secrets(config) && slice_eq(config->json, q.config);
}

/* The old file goes. The rules it leaves behind are taken out of it: to read those of thousands of queues anew, nobody should wait
 * for. */
static void bind_undeclared(struct broker *b, struct coming *to, u16 queue) {
    let_go(b, to, queue);
    struct queue_config *config = queue_rules_of(b, queue)->config;
    bool unreadable = queue_rules_of(b, queue)->unreadable, owned = queue_rules_of(b, queue)->owned;
    if (unreadable || (config && !owned && !says_what_is_stored(b, queue, config))) return bind_stored(b, queue);
    if (config && !owned) config->file = SL("");
    bind_queue(b, queue, config, config != NULL);
}

static void leave_out_taken(const struct broker *b, struct config *before) {
    u16 queue;
    for (u32 i = 0; i < before->queues.count; i++) {
        if (!core_queue_find(b->core, before->queues.at[i]->name, &queue)) continue;
        const struct queue_rules *now = queue_rules_of(b, queue);
        if (now->owned && now->config == before->queues.at[i]) before->queues.at[i] = NULL;
    }
}

/* Who was made through the API or on first use may have become the file's; the others are looked at again, for the file
 * says whether undeclared queues take messages. */
static void bind_all(struct broker *b, struct coming *to) {
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
        if (!declared[queue]) bind_undeclared(b, to, (u16)queue);
    mem_free(declared);
}

static void audit_reload(struct broker *b, const char *by, const struct config *config, slice changes) {
    struct buf detail = {0};
    buf_char(&detail, '{');
    json_put_member(&detail, "file", config->file);
    json_put_member(&detail, "changes", cut_text(changes, 8192));
    if (changes.n > 8192) json_put_member_bool(&detail, "cut", true);
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
    struct coming to = {.config = config, .by = by};
    hx_st st = can_be_had(b, &to, err);
    if (st != ST_OK) return st;
    if (by && changes.n) audit_reload(b, by, config, changes);
    for (u32 i = 0; i < config->queues.count; i++) declare(b, &to, config->queues.at[i]);
    core_audit_keep(b->core, config->audit_keep_ms);
    struct config *before = b->rulebook->config;
    b->rulebook->config = config;
    browsers_forget(b->browsers);
    tenants_configure(b, before, config);
    access_configure(b, config);
    ingest_configure(b, config);
    rations_configure(b, config);
    bind_all(b, &to);
    gates_configure(b, config);
    pushes_begin(b);
    tell_rest(b, &to);
    leave_out_taken(b, before);
    config_free(before);
    return ST_OK;
}
