/* Rules: as seeds draw them, as PUT says them, as GET shows them. */
#include "sim.h"

#include "base/json.h"

static const char *const semantics[] = {"exactly_once", "at_least_once", "at_most_once"};
static const char *const on_unknown[] = {"retry", "reconcile", "hold"};
static const char *const on_conflict[] = {"reject", "hold", "new"};
static const char *const on_dead[] = {"block", "skip", "dead_letter_group"};

#define HOUR ((i64)3600 * 1000)

const struct policy policy_default = {
    .window_min = 24 * HOUR,
    .window_max = 24 * HOUR,
    .lease_ms = 30000,
    .backoff_ms = 1000,
    .backoff_max_ms = 300000,
    .transient = 6,
    .unknown = 3,
    .crashes = 3,
};

static void draw_window(struct world *w, struct policy *p) {
    static const i64 fixed[] = {10000, 60000, 600000, 24 * HOUR, FOREVER};
    p->window_min = p->window_max = fixed[rng_below(&w->rng, 5)];
    if (chance(w, 2500)) {
        p->window_min = 1000 * between(w, 5, 60);
        p->window_max = p->window_min + 1000 * between(w, 1, 600);
    }
}

static void draw_retries(struct world *w, struct policy *p) {
    p->transient = (u32)between(w, 1, 6);
    p->unknown = (u32)between(w, 1, 4);
    p->crashes = (u32)between(w, 1, 4);
    p->backoff_ms = between(w, 0, 2000);
    p->backoff_max_ms = p->backoff_ms + between(w, 0, 20000);
}

/* What an at_least_once queue admitted twice stays two, whatever the rules become: the last queue is that for good, and the
 * others never are. The first one knows no derived keys, so that senders may wait there. */
struct policy *policy_random(struct world *w, u32 queue) {
    struct policy *p = arena_alloc(&w->arena, sizeof *p);
    *p = policy_default;
    p->number = ++w->policies;
    p->semantics = chance(w, 2000) ? AT_MOST_ONCE : EXACTLY_ONCE;
    if (queue == 2) p->semantics = chance(w, 8000) ? AT_MOST_ONCE : EXACTLY_ONCE;
    if (queue == 3) p->semantics = AT_LEAST_ONCE;
    if (p->semantics != AT_MOST_ONCE) p->on_unknown = (u32)rng_below(&w->rng, 3);
    if (p->semantics != AT_LEAST_ONCE && queue != 0) p->on_conflict = (u32)rng_below(&w->rng, 3);
    p->on_dead = (u32)rng_below(&w->rng, 3);
    draw_window(w, p);
    if (chance(w, 6000)) p->keep_ms = 1000 * between(w, 5, 900);
    p->lease_ms = 1000 * between(w, 1, 40);
    if (p->semantics != AT_MOST_ONCE) draw_retries(w, p);
    if (chance(w, 3000)) p->limit = (u32)between(w, 2, 20);
    return p;
}

static void put_duration(struct buf *b, const char *name, i64 ms) {
    json_put_name(b, name);
    if (ms == FOREVER)
        buf_lit(b, "\"forever\"");
    else
        buf_printf(b, "\"%lldms\"", (long long)ms);
}

static void put_window(struct buf *b, const struct policy *p) {
    if (p->window_min == p->window_max) {
        put_duration(b, "window", p->window_min);
        return;
    }
    buf_lit(b, ",\"window\":{");
    put_duration(b, "min", p->window_min);
    put_duration(b, "max", p->window_max);
    buf_char(b, '}');
}

static void put_retries(struct buf *b, const struct policy *p) {
    buf_lit(b, ",\"retry\":{\"transient\":{");
    json_put_member_i64(b, "attempts", p->transient);
    put_duration(b, "backoff", p->backoff_ms);
    put_duration(b, "max", p->backoff_max_ms);
    buf_printf(b, "},\"unknown\":{\"attempts\":%u},\"crashes\":{\"attempts\":%u}}", p->unknown, p->crashes);
}

void policy_text(const struct policy *p, struct buf *b) {
    buf_char(b, '{');
    json_put_member(b, "semantics", slice_str(semantics[p->semantics]));
    if (p->on_unknown) json_put_member(b, "on_unknown", slice_str(on_unknown[p->on_unknown]));
    if (p->on_conflict) json_put_member(b, "on_conflict", slice_str(on_conflict[p->on_conflict]));
    json_put_member(b, "on_dead", slice_str(on_dead[p->on_dead]));
    put_window(b, p);
    put_duration(b, "keep_payload", p->keep_ms);
    put_duration(b, "lease", p->lease_ms);
    if (p->semantics != AT_MOST_ONCE) put_retries(b, p);
    if (p->limit) buf_printf(b, ",\"limits\":{\"pending\":%u}", p->limit);
    buf_printf(b, ",\"dead\":{\"owner\":\"p%u\"}}", p->number);
}

static bool figure_is(const struct view *v, const char *name, i64 wanted) {
    i64 n = 0;
    return view_i64(v, name, &n) && n == wanted;
}

/* The rules in force, in figures; an adaptive window is somewhere within its bounds. */
static bool rules_shown(const struct policy *p, const struct view *rules, struct arena *scratch) {
    struct view retry = view_of(scratch, view_text(rules, "retry"));
    struct view transient = view_of(scratch, view_text(&retry, "transient"));
    struct view unknown = view_of(scratch, view_text(&retry, "unknown"));
    struct view crashes = view_of(scratch, view_text(&retry, "crashes"));
    const struct member *window = view_get(rules, "window_ms");
    i64 ms = 0;
    if (!window || (p->window_min == FOREVER) != window->is_null) return false;
    if (!window->is_null && (!view_i64(rules, "window_ms", &ms) || ms < p->window_min || ms > p->window_max))
        return false;
    return view_is(rules, "semantics", semantics[p->semantics]) &&
           view_is(rules, "on_unknown", on_unknown[p->on_unknown]) &&
           view_is(rules, "on_conflict", on_conflict[p->on_conflict]) &&
           view_is(rules, "on_dead", on_dead[p->on_dead]) && figure_is(rules, "keep_payload_ms", p->keep_ms) &&
           figure_is(rules, "lease_ms", p->lease_ms) && figure_is(&transient, "attempts", p->transient) &&
           figure_is(&transient, "backoff_ms", p->backoff_ms) && figure_is(&transient, "max_ms", p->backoff_max_ms) &&
           figure_is(&unknown, "attempts", p->unknown) && figure_is(&crashes, "attempts", p->crashes);
}

bool policy_shown(const struct policy *p, slice queue_json, struct arena *scratch) {
    struct view v = view_of(scratch, queue_json);
    struct view rules = view_of(scratch, view_text(&v, "rules"));
    slice owner = p->number ? arena_printf(scratch, "p%u", p->number) : SL("");
    return slice_eq(view_text(&v, "owner"), owner) && rules_shown(p, &rules, scratch);
}
