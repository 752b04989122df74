#include "broker/tenants.h"

#include "base/bucket.h"
#include "base/json.h"
#include "broker/broker_priv.h"
#include "broker/problem.h"
#include "broker/queue_rules.h"

#define QUEUE_RETRY_MS 60000 /* until somebody deletes one: not soon */

struct tenant {
    struct bucket sends; /* holds a second's worth */
    u64 refused[QUOTA_COUNT];
};

struct tenants {
    struct tenant *at; /* as the config has them */
};

const char *quota_text(enum quota q) {
    static const char *const texts[] = {
#define QUOTA_TEXT(name, text) text,
        QUOTA_LIST(QUOTA_TEXT)
#undef QUOTA_TEXT
    };
    return texts[q];
}

struct tenants *tenants_new(void) {
    return mem_zalloc(sizeof(struct tenants));
}

void tenants_free(struct tenants *t) {
    if (t) mem_free(t->at);
    mem_free(t);
}

void tenants_configure(struct broker *b, const struct config *before, const struct config *after) {
    u32 count = after->tenants.count;
    struct tenant *now = mem_zalloc((count + 1) * sizeof *now);
    struct account_limits *limits = mem_zalloc((count + 1) * sizeof *limits);
    for (u32 i = 0; i < count; i++) {
        const struct tenant_config *t = &after->tenants.at[i], *known = config_tenant(before, t->name);
        if (known && b->tenants->at) now[i] = b->tenants->at[known - before->tenants.at];
        limits[i] = (struct account_limits){.pending = t->pending, .bytes = t->bytes};
    }
    core_accounts_set(b->core, limits, (u16)count);
    mem_free(limits);
    mem_free(b->tenants->at);
    b->tenants->at = now;
}

u16 tenant_of_queue(const struct config *c, slice name) {
    const struct tenant_config *t = config_tenant_of(c, name);
    return t ? (u16)(t - c->tenants.at + 1) : TENANT_NONE;
}

static const struct tenant_config *rules_of(const struct broker *b, u16 tenant) {
    const struct config *c = config_in_force(b);
    CHECK(tenant && tenant <= c->tenants.count);
    return &c->tenants.at[tenant - 1];
}

bool tenants_refuse(struct broker *b, u16 tenant, enum quota q, struct failure *f) {
    static const char *const why[QUOTA_COUNT] = {
        [QUOTA_QUEUES] = "it has as many queues as it may have",
        [QUOTA_PENDING] = "it has as many unsettled messages as it may have",
        [QUOTA_BYTES] = "what its messages and keys take is as much as it may take",
        [QUOTA_RATE] = "as much as it may send in a second was sent",
    };
    const struct tenant_config *t = rules_of(b, tenant);
    b->tenants->at[tenant - 1].refused[q]++;
    failure_set(f, PROBLEM_quota, "tenant %s is at its limit, limits.%s: %s", t->name.p, quota_text(q), why[q]);
    buf_reset(&f->more);
    json_put_member(&f->more, "limit", slice_str(quota_text(q)));
    f->retry_ms = q == QUOTA_QUEUES ? QUEUE_RETRY_MS : 0;
    return false;
}

static bool refuse_for(struct broker *b, u16 tenant, i64 wait_ms, struct failure *f) {
    if (wait_ms == 0) return true;
    tenants_refuse(b, tenant, QUOTA_RATE, f);
    f->retry_ms = wait_ms;
    return false;
}

bool tenants_take_send(struct broker *b, u16 tenant, struct failure *f) {
    u32 rate = rules_of(b, tenant)->rate_per_s;
    if (!rate) return true;
    struct bucket_rule rule = {.per_s = rate, .at_once = rate};
    return refuse_for(b, tenant, bucket_take(&b->tenants->at[tenant - 1].sends, rule, 1, b->time.mono_ms), f);
}

bool tenants_take_first(struct broker *b, slice name, size_t payload, struct failure *f) {
    u16 tenant = tenant_of_queue(config_in_force(b), name);
    if (!tenant) return true;
    const struct tenant_config *t = rules_of(b, tenant);
    struct account_sums sums = core_account_sums(b->core, tenant);
    if (t->pending && sums.pending >= t->pending) return tenants_refuse(b, tenant, QUOTA_PENDING, f);
    if (t->bytes && sums.bytes + payload >= t->bytes) return tenants_refuse(b, tenant, QUOTA_BYTES, f);
    if (!t->rate_per_s) return true;
    struct bucket_rule rule = {.per_s = t->rate_per_s, .at_once = t->rate_per_s};
    return refuse_for(b, tenant, bucket_wait_ms(&b->tenants->at[tenant - 1].sends, rule, 1, b->time.mono_ms), f);
}

bool tenants_take_queue(struct broker *b, slice name, struct failure *f) {
    u16 tenant = tenant_of_queue(config_in_force(b), name);
    u64 limit = tenant ? rules_of(b, tenant)->queues : 0;
    if (!limit || core_account_sums(b->core, tenant).queues < limit) return true;
    return tenants_refuse(b, tenant, QUOTA_QUEUES, f);
}

void tenant_use(const struct broker *b, u16 tenant, struct quota_use out[QUOTA_COUNT]) {
    const struct tenant_config *t = rules_of(b, tenant);
    struct account_sums sums = core_account_sums(b->core, tenant);
    const u64 *refused = b->tenants->at[tenant - 1].refused;
    out[QUOTA_QUEUES] = (struct quota_use){sums.queues, t->queues, refused[QUOTA_QUEUES]};
    out[QUOTA_PENDING] = (struct quota_use){sums.pending, t->pending, refused[QUOTA_PENDING]};
    out[QUOTA_BYTES] = (struct quota_use){sums.bytes, t->bytes, refused[QUOTA_BYTES]};
    out[QUOTA_RATE] = (struct quota_use){0, t->rate_per_s, refused[QUOTA_RATE]};
}

static void put_tenant(const struct broker *b, u16 tenant, struct buf *body) {
    const struct tenant_config *t = rules_of(b, tenant);
    struct quota_use use[QUOTA_COUNT];
    tenant_use(b, tenant, use);
    buf_char(body, '{');
    json_put_member(body, "name", t->name);
    json_put_member(body, "prefix", t->prefix);
    for (u32 q = 0; q < QUOTA_COUNT; q++) {
        json_put_name(body, quota_text((enum quota)q));
        buf_char(body, '{');
        if (q != QUOTA_RATE) json_put_member_i64(body, "used", (i64)use[q].used);
        if (use[q].limit)
            json_put_member_i64(body, "limit", (i64)use[q].limit);
        else
            json_put_member_raw(body, "limit", SL("null"));
        json_put_member_i64(body, "refused", (i64)use[q].refused);
        buf_char(body, '}');
    }
    buf_char(body, '}');
}

void put_tenants(const struct broker *b, slice own, struct buf *body) {
    const struct config *c = config_in_force(b);
    if (!c->tenants.count) return;
    json_put_name(body, "tenants");
    buf_char(body, '[');
    for (u32 i = 0; i < c->tenants.count; i++) {
        if (own.n && !slice_eq(own, c->tenants.at[i].name)) continue;
        if (body->p[body->len - 1] != '[') buf_char(body, ',');
        put_tenant(b, (u16)(i + 1), body);
    }
    buf_char(body, ']');
}
