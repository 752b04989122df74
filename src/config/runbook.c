/* The operators' page of a queue, as Markdown: the words of explain.c, its event types, and what to do for each alert. */
#include <stdarg.h>
#include <stdio.h>

#include "config/config_priv.h"
#include "config/explain.h"
#include "config/template.h"

/* What was said by users may hold what Markdown takes for its own. */
static void put_plain(struct buf *b, slice text) {
    for (size_t i = 0; i < text.n; i++) {
        if (memchr("|`<>*_[]\\#", text.p[i], 10)) buf_char(b, '\\');
        buf_char(b, text.p[i]);
    }
}

/* ---- the words */

/* A line of explain_queue's: a heading stands at the margin, a sentence two blanks in, what goes on with it four. */
static void put_line(struct buf *b, slice line) {
    slice text = slice_trim(line);
    size_t in = (size_t)(text.p - line.p);
    if (text.n == 0) return;
    if (in == 0)
        buf_lit(b, "\n\n## ");
    else
        buf_slice_add(b, in > 2 ? SL(" ") : slice_starts(text, SL("- ")) ? SL("\n") : SL("\n- "));
    for (size_t i = 0; i < text.n; i++) { /* <fingerprint> would be a tag */
        if (text.p[i] == '<') buf_char(b, '\\');
        buf_char(b, text.p[i]);
    }
    if (in == 0) buf_char(b, '\n');
}

/* The first line is "Queue NAME, class ...": the page's own title says that. */
static void put_words(struct buf *b, const struct queue_config *q) {
    struct buf words = {0};
    slice rest, line;
    explain_queue(q, &words);
    slice_cut(buf_slice(&words), '\n', &line, &rest);
    buf_lit(b, "\n## What it is\n");
    while (rest.n) {
        slice_cut(rest, '\n', &line, &rest);
        put_line(b, line);
    }
    buf_char(b, '\n');
    buf_free(&words);
}

static void put_head(struct buf *b, const struct queue_config *q) {
    buf_lit(b, "# Queue ");
    put_plain(b, q->name);
    buf_lit(b, "\n\nOwner: ");
    put_plain(b, q->dead_owner.n ? q->dead_owner : SL("nobody is named (dead.owner)"));
    if (q->preset) buf_printf(b, ". Class: %s", config_class_text((enum preset)q->preset));
    buf_lit(b, ". Rules: ");
    if (q->file.n) {
        put_plain(b, q->file);
        buf_printf(b, ", line %u; change them there and reload.\n", q->at.line);
    } else {
        buf_lit(b, "as the broker has them; `hapax queues show ");
        buf_slice_add(b, q->name);
        buf_lit(b, "` says whether a file defines them.\n");
    }
}

/* ---- event types */

static void put_types(struct buf *b, const struct queue_config *q, const struct type_counts *types, size_t count) {
    if (!q->event_type) return;
    slice text = template_text(q->event_type);
    buf_printf(b, "\n## Its event types\n\nThe type of a message is `%.*s`.", (int)text.n, text.p);
    if (count == 0) {
        buf_lit(b, " A running broker, once it has counted some, tells what the repeats of each look like.\n");
        return;
    }
    buf_lit(b, " Since the broker was started:\n\n| type | accepted | repeats | conflicts | its repeats |\n"
               "|---|--:|--:|--:|---|\n");
    for (size_t i = 0; i < count; i++) {
        const struct type_counts *t = &types[i];
        u64 all = t->accepted + t->duplicates;
        buf_lit(b, "| ");
        put_plain(b, t->type);
        buf_printf(b, " | %llu | %llu | %llu | ", (unsigned long long)t->accepted, (unsigned long long)t->duplicates,
                   (unsigned long long)t->conflicts);
        if (t->duplicates)
            buf_printf(b, "%.3g %% of what comes%s", (double)t->duplicates * 100 / (double)all,
                       t->conflicts ? "; some say something else under a known key" : "");
        else
            buf_slice_add(b, t->conflicts ? SL("none is the same: what changes between tries? (`fingerprint`)")
                                          : SL("none so far"));
        buf_lit(b, " |\n");
    }
}

/* ---- alerts */

static const struct {
    const char *page, *remedy;
} pages[ALERT_COUNT] = {
#define RUNBOOK(ident, page, remedy) [ALERT_##ident] = {page, remedy},
#include "config/runbook.def"
};

static bool applies(const struct queue_config *q, enum alert a) {
    u8 semantics = q->rules.semantics;
    if (!pages[a].page || q->alerts.off & 1u << a) return false;
    switch (a) {
    case ALERT_DUPLICATES_VANISHED:
    case ALERT_DUPLICATES_HIGH:
    case ALERT_LATE_REPLAYS:
        return semantics != SEMANTICS_AT_LEAST_ONCE;
    case ALERT_LAG:
        return q->lag_alert_ms || q->lag_p95_ms;
    case ALERT_LOSS_RATE:
        return semantics == SEMANTICS_AT_MOST_ONCE && q->loss_ppm;
    case ALERT_KEY_SKEW:
        return q->origin != NULL;
    case ALERT_PUSH_DOWN:
        return q->deliver != NULL;
    case ALERT_OLDEST_UNSETTLED:
    case ALERT_DOUBLED_EFFECT:
    case ALERT_HELD_WAITING:
    case ALERT_GROUP_BLOCKED:
        return semantics != SEMANTICS_AT_MOST_ONCE;
    default:
        return true;
    }
}

static void put_threshold(struct buf *b, const struct queue_config *q, enum alert a) {
    const struct queue_alerts *w = &q->alerts;
    switch (a) {
    case ALERT_DUPLICATES_HIGH:
        buf_printf(b, "%g %% repeats of at least 100 in 15m", (double)w->duplicates_high_ppm / 10000);
        break;
    case ALERT_LATE_REPLAYS:
        buf_printf(b, "%u in 1h past half the window, or one after it", w->late_replays);
        break;
    case ALERT_OLDEST_UNSETTLED:
        buf_printf(b, "begun %s ago", value_duration_text(w->oldest_unsettled_ms).p);
        break;
    case ALERT_HELD_WAITING:
        buf_printf(b, "held for %s", value_duration_text(w->held_waiting_ms).p);
        break;
    case ALERT_GROUP_BLOCKED:
        buf_printf(b, "for %s", value_duration_text(w->group_blocked_ms).p);
        break;
    case ALERT_DEAD_LETTERS:
        buf_printf(b, "%llu within %s", (unsigned long long)(q->dead_alert_count ? q->dead_alert_count : 10),
                   q->dead_alert_count ? value_duration_text(q->dead_alert_within_ms).p : "15m");
        break;
    case ALERT_LAG:
        if (q->lag_alert_ms) buf_printf(b, "oldest ready above %s", value_duration_text(q->lag_alert_ms).p);
        if (q->lag_p95_ms)
            buf_printf(b, "%sp95 above %s", q->lag_alert_ms ? ", or " : "", value_duration_text(q->lag_p95_ms).p);
        break;
    case ALERT_LOSS_RATE:
        buf_printf(b, "above %g %%", (double)q->loss_ppm / 10000);
        break;
    case ALERT_DUPLICATES_VANISHED:
        buf_lit(b, "as many as usual are missing");
        break;
    case ALERT_DOUBLED_EFFECT:
        buf_lit(b, "two effect ids for one key");
        break;
    case ALERT_PUSH_DOWN:
        buf_lit(b, "its target's circuit is open for 5m, or it is gone (410) for as long");
        break;
    case ALERT_KEY_SKEW:
        buf_lit(b, "one origin under several keys");
        break;
    default:
        buf_lit(b, "as the file's `alerts` say");
    }
}

static void put_alerts(struct buf *b, const struct queue_config *q) {
    buf_lit(b, "\n## Alerts\n\n| alert | when | what to do |\n|---|---|---|\n");
    for (u32 a = 0; a < ALERT_COUNT; a++) {
        if (!applies(q, (enum alert)a)) continue;
        buf_printf(b, "| `%s` | ", config_alert_names[a]);
        put_threshold(b, q, (enum alert)a);
        buf_printf(b, " | %s [%s](docs/runbooks/%s) |\n", pages[a].remedy, pages[a].page, pages[a].page);
    }
}

void explain_runbook(const struct queue_config *q, const struct type_counts *types, size_t count, struct buf *out) {
    put_head(out, q);
    put_words(out, q);
    put_types(out, q, types, count);
    put_alerts(out, q);
}
