#include "relay/relay_priv.h"

const char *const relay_column_names[RELAY_COLUMN_COUNT] = {
#define RELAY_COLUMN(ident, name, needed, help) #ident,
#include "relay/relay_columns.def"
#undef RELAY_COLUMN
};

static const struct {
    const char *name;
    bool needed;
} defaults[RELAY_COLUMN_COUNT] = {
#define RELAY_COLUMN(ident, name, needed, help) {name, needed},
#include "relay/relay_columns.def"
#undef RELAY_COLUMN
};

/* A column as the table has it. */
struct column {
    slice name; /* empty: there is none */
    struct buf quoted, type;
};

struct found {
    struct buf table; /* quoted */
    struct buf oid;
    struct column columns[RELAY_COLUMN_COUNT];
};

static void found_free(struct found *f) {
    buf_free(&f->table);
    buf_free(&f->oid);
    for (int i = 0; i < RELAY_COLUMN_COUNT; i++) {
        buf_free(&f->columns[i].quoted);
        buf_free(&f->columns[i].type);
    }
}

static slice table_name(const struct relay_table *t) {
    return slice_str(t->name ? t->name : "outbox");
}

static slice column_name(const struct relay_table *t, int i) {
    return slice_str(t->columns[i] ? t->columns[i] : defaults[i].name);
}

/* ---- looking at the catalogue */

static const char columns_sql[] =
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attrelid::bigint FROM pg_attribute a"
    " WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped";

static bool find_column(const struct pg_rows *rows, slice name, slice *type) {
    for (size_t i = 0; i < pg_row_count(rows); i++) {
        if (!slice_eq(pg_cell(rows, i, 0), name)) continue;
        *type = pg_cell(rows, i, 1);
        return true;
    }
    return false;
}

/* The configured columns that are there. *missing: the first needed one that is not, RELAY_COLUMN_COUNT if none. */
static void match_columns(const struct relay_table *t, const struct pg_rows *rows, struct found *f, int *missing) {
    *missing = RELAY_COLUMN_COUNT;
    for (int i = RELAY_COLUMN_COUNT - 1; i >= 0; i--) {
        slice name = column_name(t, i), type;
        if (!name.n) continue;
        if (!find_column(rows, name, &type)) {
            if (defaults[i].needed || t->columns[i]) *missing = i;
            continue;
        }
        f->columns[i].name = name;
        pg_put_name(&f->columns[i].quoted, name);
        buf_slice_add(&f->columns[i].type, type);
    }
}

/* *exists: whether there is such a table at all. */
static hx_st look(struct pg *pg, const struct relay_table *t, struct found *f, bool *exists, int *missing,
                  struct errbuf *err) {
    *f = (struct found){0};
    *exists = false;
    *missing = RELAY_COLUMN_COUNT;
    for (int i = 0; i < RELAY_COLUMN_COUNT; i++)
        if (t->columns[i] && !*t->columns[i] && (i == RELAY_id || i == RELAY_payload || i == RELAY_refused))
            return err_set(err, ST_INVALID, "the outbox must have a column for %s", relay_column_names[i]);
    pg_put_table(&f->table, table_name(t));
    slice arg = buf_slice(&f->table);
    struct pg_rows *rows;
    hx_st st = pg_query(pg, columns_sql, &arg, 1, &rows, err);
    if (st) return st;
    *exists = pg_row_count(rows) > 0;
    if (*exists) buf_slice_add(&f->oid, pg_cell(rows, 0, 2));
    match_columns(t, rows, f, missing);
    pg_rows_free(rows);
    return ST_OK;
}

static hx_st look_whole(struct pg *pg, const struct relay_table *t, struct found *f, struct errbuf *err) {
    bool exists;
    int missing;
    hx_st st = look(pg, t, f, &exists, &missing, err);
    if (st) return st;
    if (!exists)
        return err_set(err, ST_NOT_FOUND, "there is no table %.*s here: `hapax relay init` makes one",
                       (int)f->table.len, f->table.p);
    if (missing == RELAY_COLUMN_COUNT) return ST_OK;
    slice name = column_name(t, missing);
    return err_set(err, ST_NOT_FOUND,
                   "table %.*s has no column \"%.*s\": `hapax relay init` adds what only the relay needs, "
                   "--column %s=NAME names another, --column %s= says there is none",
                   (int)f->table.len, f->table.p, (int)name.n, name.p, relay_column_names[missing],
                   relay_column_names[missing]);
}

/* ---- the statements
 *
 * Templates with one-letter holes: $T the table, $I id, $K id's type, $O order (or id), $P payload, $R refused, $C
 * created, $S sent, $W the condition that makes a row pending. */

static slice hole(const struct found *f, char letter) {
    const struct column *c = f->columns;
    switch (letter) {
    case 'T':
        return buf_slice(&f->table);
    case 'I':
        return buf_slice(&c[RELAY_id].quoted);
    case 'K':
        return buf_slice(&c[RELAY_id].type);
    case 'O':
        return buf_slice(c[RELAY_order].name.n ? &c[RELAY_order].quoted : &c[RELAY_id].quoted);
    case 'P':
        return buf_slice(&c[RELAY_payload].quoted);
    case 'R':
        return buf_slice(&c[RELAY_refused].quoted);
    case 'C':
        return buf_slice(&c[RELAY_created].quoted);
    case 'S':
        return buf_slice(&c[RELAY_sent].quoted);
    default:
        return (slice){0};
    }
}

static void fill(struct buf *out, const struct found *f, const char *template) {
    for (const char *p = template; *p; p++) {
        slice s = p[0] == '$' ? hole(f, p[1]) : (slice){0};
        if (p[0] == '$' && p[1] == 'W')
            fill(out, f, f->columns[RELAY_sent].name.n ? "$R IS NULL AND $S IS NULL" : "$R IS NULL"), p++;
        else if (s.n)
            buf_slice_add(out, s), p++;
        else
            buf_char(out, *p);
    }
}

static void put_text_column(struct buf *out, const struct column *c) {
    if (c->name.n)
        buf_slice_add(out, buf_slice(&c->quoted));
    else
        buf_lit(out, "NULL");
    buf_lit(out, "::text, ");
}

/* Takes the oldest rows nobody else has in hand, up to $1 rows and about $2 bytes. The array is made once, before the
 * outer statement begins, and its rows stay locked. Rows come back in order only because they are sorted again. */
static void make_claim(struct relay_layout *l, const struct found *f) {
    struct buf *out = &l->claim;
    fill(out, f,
         f->columns[RELAY_sent].name.n ? "WITH taken AS (UPDATE $T SET $S = clock_timestamp()"
                                       : "WITH taken AS (DELETE FROM $T");
    fill(out, f,
         " WHERE $I = ANY (ARRAY("
         "SELECT c.id FROM (SELECT b.id, sum(b.size) OVER (ORDER BY b.ord ROWS UNBOUNDED PRECEDING) - b.size AS before"
         " FROM (SELECT $I AS id, $O AS ord, coalesce(pg_column_size($P), 0) AS size FROM $T WHERE $W"
         " ORDER BY $O LIMIT $1 FOR UPDATE SKIP LOCKED) b) c WHERE c.before < $2::bigint)) RETURNING ");
    for (int i = RELAY_id; i <= RELAY_type; i++) put_text_column(out, &f->columns[i]);
    fill(out, f, l->base64 ? "translate(encode($P, 'base64'), E'\\n', '')" : "$P::text");
    fill(out, f, ", $O AS hapax_order) SELECT * FROM taken ORDER BY hapax_order");
    buf_char(out, '\0');
}

static void make_others(struct relay_layout *l, const struct found *f) {
    bool marked = f->columns[RELAY_sent].name.n > 0, ordered = f->columns[RELAY_order].name.n > 0;
    fill(&l->settle, f, marked ? "UPDATE $T SET $S = clock_timestamp()" : "DELETE FROM $T");
    fill(&l->settle, f, " WHERE $I = ANY ($1::$K[])");
    fill(&l->park, f,
         "UPDATE $T SET $R = r.reason FROM unnest($1::$K[], $2::text[]) AS r(id, reason) WHERE $T.$I = r.id");
    buf_lit(&l->lag, "SELECT (SELECT count(*) FROM (");
    fill(&l->lag, f, "SELECT 1 FROM $T WHERE $W");
    buf_printf(&l->lag, " LIMIT %d) p), (", RELAY_PENDING_MAX);
    fill(&l->lag, f, "SELECT count(*) FROM $T WHERE $R IS NOT NULL), (");
    const char *age = "SELECT greatest(0, extract(epoch FROM clock_timestamp() - $C) * 1000)::bigint FROM $T WHERE $W"
                      " ORDER BY $O LIMIT 1)";
    const char *age_by_scan =
        "SELECT greatest(0, extract(epoch FROM clock_timestamp() - min($C)) * 1000)::bigint FROM $T WHERE $W)";
    fill(&l->lag, f, !f->columns[RELAY_created].name.n ? "-1)" : ordered ? age : age_by_scan);
    buf_printf(&l->lock, "SELECT pg_try_advisory_xact_lock(hashtextextended('hapax relay', %.*s))", (int)f->oid.len,
               f->oid.p);
    struct buf *all[] = {&l->settle, &l->park, &l->lag, &l->lock};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) buf_char(all[i], '\0');
}

hx_st relay_layout_read(struct pg *pg, const struct relay_table *t, struct relay_layout *out, struct errbuf *err) {
    struct found f;
    *out = (struct relay_layout){0};
    hx_st st = look_whole(pg, t, &f, err);
    if (!st) {
        slice type = buf_slice(&f.columns[RELAY_payload].type);
        out->base64 = slice_eq(type, SL("bytea"));
        out->json = slice_starts(type, SL("json"));
        make_claim(out, &f);
        make_others(out, &f);
    }
    found_free(&f);
    return st;
}

void relay_layout_free(struct relay_layout *l) {
    struct buf *all[] = {&l->claim, &l->settle, &l->park, &l->lag, &l->lock};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) buf_free(all[i]);
}

/* ---- lag */

static i64 number_of(slice s) {
    u64 n = 0;
    return slice_eq(s, SL("-1")) ? -1 : slice_u64(s, &n) ? (i64)n : 0;
}

static hx_st lag_query(struct pg *pg, const struct relay_layout *l, struct relay_lag *out, struct errbuf *err) {
    struct pg_rows *rows;
    hx_st st = pg_query(pg, l->lag.p, NULL, 0, &rows, err);
    if (st) return st;
    *out = (struct relay_lag){number_of(pg_cell(rows, 0, 0)), number_of(pg_cell(rows, 0, 1)),
                              number_of(pg_cell(rows, 0, 2))};
    pg_rows_free(rows);
    return ST_OK;
}

hx_st relay_lag_read(struct pg *pg, const struct relay_table *table, struct relay_lag *out, struct errbuf *err) {
    struct relay_layout l;
    hx_st st = relay_layout_read(pg, table, &l, err);
    if (!st) st = lag_query(pg, &l, out, err);
    relay_layout_free(&l);
    return st;
}

/* ---- making the table */

/* Rows come and go: vacuum by number, not by share, and often. The two small indexes find what is pending and what was
 * refused, however much of the other there is. */
static void create_sql(const struct found *f, slice bare, struct buf *sql) {
    bool marked = f->columns[RELAY_sent].quoted.len > 0;
    const struct column *c = f->columns;
    fill(sql, f, "CREATE TABLE $T (\n    $I uuid PRIMARY KEY DEFAULT gen_random_uuid(),\n");
    for (int i = RELAY_aggregatetype; i <= RELAY_type; i++)
        if (c[i].quoted.len) buf_printf(sql, "    %.*s text NOT NULL,\n", (int)c[i].quoted.len, c[i].quoted.p);
    fill(sql, f,
         "    $P jsonb,\n    $O bigint GENERATED ALWAYS AS IDENTITY,\n"
         "    $C timestamptz NOT NULL DEFAULT clock_timestamp(),\n");
    if (marked) fill(sql, f, "    $S timestamptz,\n");
    fill(sql, f,
         "    $R text\n) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,\n"
         "        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000);\n");
    static const char *const suffix[] = {"_pending", "_refused"}, *const where[] = {"$W", "$R IS NOT NULL"};
    for (int i = 0; i < 2; i++) {
        struct buf name = {0};
        buf_slice_add(&name, bare);
        buf_slice_add(&name, slice_str(suffix[i]));
        buf_lit(sql, "CREATE INDEX ");
        pg_put_name(sql, buf_slice(&name));
        fill(sql, f, " ON $T ($O) WHERE ");
        fill(sql, f, where[i]);
        buf_lit(sql, ";\n");
        buf_free(&name);
    }
}

/* For a table to be made, every column is there. */
static void assume_columns(const struct relay_table *t, struct found *f) {
    for (int i = 0; i < RELAY_COLUMN_COUNT; i++) {
        slice name = column_name(t, i);
        if (!name.n && (i == RELAY_order || i == RELAY_created)) name = slice_str(defaults[i].name);
        f->columns[i].name = name;
        if (name.n) pg_put_name(&f->columns[i].quoted, name);
    }
}

/* Columns of the relay's own that a table of the user's lacks. */
static void extend_sql(const struct relay_table *t, const struct found *f, struct buf *sql) {
    static const struct {
        int column;
        const char *type;
    } ours[] = {{RELAY_refused, "text"}, {RELAY_sent, "timestamptz"}};
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        slice name = column_name(t, ours[i].column);
        if (!name.n || f->columns[ours[i].column].name.n) continue;
        fill(sql, f, "ALTER TABLE $T ADD COLUMN ");
        pg_put_name(sql, name);
        buf_printf(sql, " %s;\n", ours[i].type);
    }
}

hx_st relay_init_sql(struct pg *pg, const struct relay_table *t, struct buf *sql, struct errbuf *err) {
    struct found f;
    bool exists;
    int missing;
    hx_st st = look(pg, t, &f, &exists, &missing, err);
    if (!st && exists) extend_sql(t, &f, sql);
    if (!st && !exists) {
        slice head, bare;
        assume_columns(t, &f);
        create_sql(&f, slice_cut(table_name(t), '.', &head, &bare) ? bare : head, sql);
    }
    found_free(&f);
    return st;
}
