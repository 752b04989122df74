/* hapax key try: a template on past payloads, before it goes live. */
#include <stdio.h>

#include "base/arena.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/trial.h"

#define EVER "36500d"

const struct flag flags_key_try[] = {
    {"template", "TEMPLATE", "the key template, as in a queue's `key:` (required)"},
    {"fingerprint", "RULE", "bytes (default), json, none, '{only: [a]}' or '{ignore: [sent_at]}'"},
    {"schema", "RULES", "a schema as in the config, e.g. '{required: [id]}'"},
    {"queue", "QUEUE", "instead of a file: what this queue accepted, as far as its payloads are kept (keep_payload)"},
    {"since", "WHEN", "with --queue: only of the last 24h, 7d, ..., or since a time like 2026-01-31T12:00:00Z"},
    {"batch", NULL, "lines are those of a batch: {\"payload\",\"content_type\"?,\"attrs\"?,...}"},
    {0},
};

const char about_key_try[] =
    "FILE has one payload on each line, - is standard input; empty lines are skipped. Each gets its key, as a queue "
    "with\n"
    "this template would give it. Repeats have the key and the fingerprint of an earlier line, conflicts its key and\n"
    "another fingerprint, failures no key at all. Many conflicts: the key is too broad, or a volatile field needs\n"
    "--fingerprint '{ignore: [...]}'. No repeats where there should be: it is too narrow. With --batch, attributes "
    "are\n"
    "the headers hapax-attr-NAME; so they are with --queue, where line N is the Nth message that was accepted.\n"
    "Exit code 1: there were conflicts or failures, or nothing to try.";

/* ---- what was asked */

struct rules {
    struct template *key;
    struct fingerprint *fingerprint;
    struct schema *schema;
};

static void rules_free(struct rules *r) {
    template_free(r->key);
    fingerprint_free(r->fingerprint);
    schema_free(r->schema);
}

static bool read_template(struct cli *cli, struct template **out) {
    const char *text = args_get(cli, "template");
    struct errbuf err = {0};
    u32 column;
    if (!text) return args_wrong(cli, "--template is missing, e.g. --template 'order:${order_id}'"), false;
    if (template_compile(slice_str(text), out, &column, &err) == ST_OK) return true;
    return args_wrong(cli, "--template, character %u: %s", column, err.text), false;
}

/* The flag's text as YAML; `flag` names the document in messages. */
static bool read_tree(struct cli *cli, const char *flag, struct tree *tree) {
    struct errbuf err = {0};
    if (tree_from_yaml(slice_str(args_get(cli, flag)), flag, tree, &err) == ST_OK) return true;
    return args_wrong(cli, "--%s", err.text), false;
}

static bool read_fingerprint(struct cli *cli, struct fingerprint **out) {
    struct tree tree;
    struct errbuf err = {0};
    if (!args_has(cli, "fingerprint")) return true;
    if (!read_tree(cli, "fingerprint", &tree)) return false;
    hx_st st = fingerprint_from_tree(tree.root, out, &err);
    tree_free(&tree);
    return st == ST_OK || (args_wrong(cli, "--%s", err.text), false);
}

static bool read_schema(struct cli *cli, struct schema **out) {
    struct tree tree;
    struct errbuf err = {0};
    if (!args_has(cli, "schema")) return true;
    if (!read_tree(cli, "schema", &tree)) return false;
    hx_st st = schema_from_tree(tree.root, out, &err);
    tree_free(&tree);
    return st == ST_OK || (args_wrong(cli, "--%s", err.text), false);
}

/* ---- where messages come from */

/* The lines of a file. Payloads a line does not contain as they are live in the arena. */
struct lines {
    slice rest;
    u64 number;
    bool batch;
    struct arena arena;
};

/* A batch line's attributes: an object, kept as its text. */
struct batch_line {
    struct lines *from;
    slice attrs;
};

/* hapax-attr-NAME */
static slice attr_lookup(void *ctx, slice header) {
    struct batch_line *line = ctx;
    const slice prefix = SL("hapax-attr-");
    slice name, value, found = {0};
    if (!line->attrs.n || !slice_starts(header, prefix)) return found;
    slice wanted = slice_of(header.p + prefix.n, header.n - prefix.n);
    struct json j;
    json_init(&j, line->attrs);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (json_peek(&j) != JSON_STRING)
                json_skip(&j);
            else if (json_string(&j, &value) && slice_eq_nocase(name, wanted))
                found = arena_copy(&line->from->arena, value);
        }
    }
    json_free(&j);
    return found;
}

/* A string payload is its bytes; anything else is its text. */
static void take_payload(struct lines *l, struct json *j, struct trial_message *m) {
    enum json_type type;
    slice text;
    if (json_peek(j) != JSON_STRING) {
        json_value(j, &type, &m->payload);
    } else if (json_string(j, &text)) {
        m->payload = arena_copy(&l->arena, text);
    }
}

static void take_base64(struct lines *l, struct json *j, struct trial_message *m) {
    slice text;
    struct buf bytes = {0};
    if (!json_string(j, &text)) return;
    if (buf_base64_decode(&bytes, text))
        m->payload = arena_adopt(&l->arena, &bytes);
    else
        json_fail(j, "payload_base64 is not base64");
    buf_free(&bytes);
}

/* False: said which line is wrong and how. */
static bool take_batch_line(slice text, struct batch_line *line, struct trial_message *m) {
    struct lines *l = line->from;
    struct json j;
    slice name, s;
    enum json_type type;
    json_init(&j, text);
    if (json_object(&j)) {
        while (json_member(&j, &name)) {
            if (slice_eq(name, SL("payload")))
                take_payload(l, &j, m);
            else if (slice_eq(name, SL("payload_base64")))
                take_base64(l, &j, m);
            else if (slice_eq(name, SL("content_type")) && json_string(&j, &s))
                m->content_type = arena_copy(&l->arena, s);
            else if (slice_eq(name, SL("attrs")))
                json_value(&j, &type, &line->attrs);
            else
                json_skip(&j);
        }
    }
    bool ok = json_end(&j);
    if (!ok) say("line %llu is no batch line: %s", (unsigned long long)l->number, j.error);
    json_free(&j);
    return ok;
}

/* The next line that is not empty; false at the end. */
static bool next_line(struct lines *l, slice *line) {
    while (l->rest.n) {
        slice_cut(l->rest, '\n', line, &l->rest);
        l->number++;
        if (line->n && line->p[line->n - 1] == '\r') line->n--;
        if (slice_trim(*line).n) return true;
    }
    return false;
}

static bool try_lines(struct lines *l, struct trial *trial) {
    slice text;
    while (next_line(l, &text)) {
        struct batch_line line = {l, {0}};
        struct trial_message m = {.number = l->number, .payload = text};
        if (l->batch) {
            m.payload = (slice){0};
            m.header = attr_lookup;
            m.header_ctx = &line;
            if (!take_batch_line(text, &line, &m)) return false;
        }
        trial_add(trial, &m);
    }
    return true;
}

/* ---- what came out */

static void put_narrow_hint(const struct trial *t, struct buf *out) {
    const struct trial_field *field = trial_narrowing(t);
    struct trial_counts n = trial_counts(t);
    if (field) {
        buf_lit(out, "too narrow? No key repeats, and ");
        print_clean(out, field->name, false);
        buf_lit(out, " is different in every message: copies of one intent would get different keys.");
    } else if (n.keys > 1 && !n.repeats && !n.conflicts) {
        buf_lit(out, "No key repeats. Right if no intent is in here twice; else the template is too narrow.");
    }
}

static void put_broad_hint(const struct trial *t, struct buf *out) {
    u32 count;
    const struct trial_field *changed = trial_changed(t, &count);
    if (!trial_counts(t).conflicts) return;
    buf_lit(out, "too broad? Messages that differ share a key.");
    if (!count) return;
    buf_lit(out, " They differ in ");
    for (u32 i = 0; i < count; i++) {
        if (i) buf_lit(out, ", ");
        print_clean(out, changed[i].name, false);
        buf_printf(out, " (%llu)", (unsigned long long)changed[i].count);
    }
    buf_lit(out, ": what belongs to the intent goes into the template, what is volatile into "
                 "--fingerprint '{ignore: [...]}'.");
}

static void put_changed(const struct trial_conflict *c, struct buf *out) {
    if (!c->compared) buf_lit(out, ": not JSON, the bytes differ");
    for (u32 i = 0; i < c->changed_count; i++) {
        buf_slice_add(out, i ? SL(", ") : SL(": "));
        print_clean(out, c->changed[i], false);
    }
}

static void put_conflicts(const struct trial *t, struct buf *out) {
    u32 count;
    const struct trial_conflict *c = trial_conflicts(t, &count);
    if (count) buf_lit(out, "\nconflicts\n");
    for (u32 i = 0; i < count; i++) {
        buf_lit(out, "  ");
        print_clean(out, c[i].key, false);
        buf_printf(out, "  lines %llu and %llu", (unsigned long long)c[i].first, (unsigned long long)c[i].second);
        put_changed(&c[i], out);
        buf_char(out, '\n');
    }
    u64 all = trial_counts(t).conflicts;
    if (all > count) buf_printf(out, "  and %llu more\n", (unsigned long long)(all - count));
}

static void put_failures(const struct trial *t, struct buf *out) {
    u32 count;
    u64 listed = 0, all = trial_counts(t).failures;
    const struct trial_reason *r = trial_reasons(t, &count);
    if (count) buf_lit(out, "\nfailures\n");
    for (u32 i = 0; i < count; i++) {
        buf_printf(out, "  %llu, first in line %llu: ", (unsigned long long)r[i].count, (unsigned long long)r[i].first);
        print_clean(out, r[i].text, false);
        buf_char(out, '\n');
        listed += r[i].count;
    }
    if (all > listed) buf_printf(out, "  and %llu of other kinds\n", (unsigned long long)(all - listed));
}

static void put_hint(void (*put)(const struct trial *t, struct buf *out), const struct trial *t, struct buf *out) {
    struct buf hint = {0};
    put(t, &hint);
    if (hint.len) {
        buf_char(out, '\n');
        buf_slice_add(out, buf_slice(&hint));
        buf_char(out, '\n');
    }
    buf_free(&hint);
}

static void show_text(const struct trial *t) {
    struct trial_counts n = trial_counts(t);
    struct buf out = {0};
    buf_printf(&out, "%llu message%s, %llu key%s, %llu repeat%s, %llu conflict%s, %llu failure%s\n",
               (unsigned long long)n.messages, text_plural(n.messages), (unsigned long long)n.keys, text_plural(n.keys),
               (unsigned long long)n.repeats, text_plural(n.repeats), (unsigned long long)n.conflicts,
               text_plural(n.conflicts), (unsigned long long)n.failures, text_plural(n.failures));
    put_conflicts(t, &out);
    put_failures(t, &out);
    put_hint(put_broad_hint, t, &out);
    put_hint(put_narrow_hint, t, &out);
    print_buf(&out);
}

static void json_put_conflicts(const struct trial *t, struct buf *out) {
    u32 count;
    const struct trial_conflict *c = trial_conflicts(t, &count);
    for (u32 i = 0; i < count; i++) {
        buf_slice_add(out, i ? SL(",{") : SL("{"));
        json_put_member(out, "key", c[i].key);
        json_put_member_i64(out, "first_line", (i64)c[i].first);
        json_put_member_i64(out, "line", (i64)c[i].second);
        json_put_name(out, "changed");
        buf_char(out, '[');
        for (u32 k = 0; k < c[i].changed_count; k++) {
            if (k) buf_char(out, ',');
            json_put_string(out, c[i].changed[k]);
        }
        buf_lit(out, "]}");
    }
}

static void json_put_reasons(const struct trial *t, struct buf *out) {
    u32 count;
    const struct trial_reason *r = trial_reasons(t, &count);
    for (u32 i = 0; i < count; i++) {
        buf_slice_add(out, i ? SL(",{") : SL("{"));
        json_put_member(out, "reason", r[i].text);
        json_put_member_i64(out, "count", (i64)r[i].count);
        json_put_member_i64(out, "first_line", (i64)r[i].first);
        buf_char(out, '}');
    }
}

static void json_put_hint(const char *name, void (*put)(const struct trial *t, struct buf *out), const struct trial *t,
                          struct buf *out) {
    struct buf hint = {0};
    put(t, &hint);
    if (hint.len)
        json_put_member(out, name, buf_slice(&hint));
    else
        json_put_member_raw(out, name, SL("null"));
    buf_free(&hint);
}

static void show_json(const struct trial *t) {
    struct trial_counts n = trial_counts(t);
    struct buf out = {0};
    buf_char(&out, '{');
    json_put_member_i64(&out, "messages", (i64)n.messages);
    json_put_member_i64(&out, "keys", (i64)n.keys);
    json_put_member_i64(&out, "repeats", (i64)n.repeats);
    json_put_member_i64(&out, "conflicts", (i64)n.conflicts);
    json_put_member_i64(&out, "failures", (i64)n.failures);
    json_put_hint("too_broad", put_broad_hint, t, &out);
    json_put_hint("too_narrow", put_narrow_hint, t, &out);
    json_put_name(&out, "conflict_examples");
    buf_char(&out, '[');
    json_put_conflicts(t, &out);
    buf_lit(&out, "]");
    json_put_name(&out, "failure_reasons");
    buf_char(&out, '[');
    json_put_reasons(t, &out);
    buf_lit(&out, "]}\n");
    print_buf(&out);
}

/* ---- the verb */

static int try_text(struct cli *cli, const struct rules *r, slice text, bool batch) {
    struct lines lines = {.rest = text, .batch = batch};
    struct trial *trial = trial_new(r->key, r->fingerprint, r->schema);
    bool ok = try_lines(&lines, trial);
    struct trial_counts n = trial_counts(trial);
    if (ok && n.messages == 0) say("nothing to try: no line has a payload");
    if (ok && cli->json)
        show_json(trial);
    else if (ok && n.messages)
        show_text(trial);
    trial_free(trial);
    arena_clear(&lines.arena);
    return ok && n.messages && !n.conflicts && !n.failures ? EXIT_DONE : EXIT_REFUSED;
}

/* What a queue accepted, as batch lines. */
struct kept {
    struct buf lines;
    u64 gone;
};

static void keep_item(void *ctx, slice item) {
    struct kept *k = ctx;
    size_t start = k->lines.len;
    buf_char(&k->lines, '{');
    if (accepted_payload(&k->lines, item)) {
        buf_lit(&k->lines, "}\n");
    } else {
        k->lines.len = start;
        k->gone++;
    }
}

static int try_queue(struct cli *cli, const struct rules *r) {
    const char *since = args_get(cli, "since");
    struct kept k = {0};
    int rc;
    if (accepted_each(cli, args_get(cli, "queue"), since ? since : EVER, keep_item, &k, &rc)) {
        if (k.gone) say("%llu more have no payload any longer (keep_payload)", (unsigned long long)k.gone);
        rc = try_text(cli, r, buf_slice(&k.lines), true);
    }
    buf_free(&k.lines);
    return rc;
}

static int try_file(struct cli *cli, const struct rules *r) {
    struct buf text = {0};
    int rc = EXIT_REFUSED;
    if (cli_read_file(args_word(cli, 0), &text)) rc = try_text(cli, r, buf_slice(&text), args_has(cli, "batch"));
    buf_free(&text);
    return rc;
}

int cmd_key_try(struct cli *cli) {
    struct rules r = {0};
    int rc = EXIT_USAGE;
    bool queue = args_has(cli, "queue");
    if (queue == (args_word(cli, 0) != NULL)) return args_wrong(cli, "expected either FILE or --queue QUEUE");
    if (!queue && args_has(cli, "since")) return args_wrong(cli, "--since goes with --queue");
    if (read_template(cli, &r.key) && read_fingerprint(cli, &r.fingerprint) && read_schema(cli, &r.schema))
        rc = queue ? try_queue(cli, &r) : try_file(cli, &r);
    rules_free(&r);
    return rc;
}
