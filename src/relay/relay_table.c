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
    bool built_in; /* the type is PostgreSQL's own, and so are its operators */
};

struct found {
    struct buf table; /* quoted */
    struct buf oid;
    bool plain; /* a table or a partitioned one: its rows have a place */
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
    "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attrelid::pg_catalog.int8,"
    " a.atttypid OPERATOR(pg_catalog.<) 16384::pg_catalog.oid, c.relkind"
    " FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) a.attrelid"
    " WHERE a.attrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1)"
    " AND a.attnum OPERATOR(pg_catalog.>) 0::pg_catalog.int2 AND NOT a.attisdropped";

static bool find_column(const struct pg_rows *rows, slice name, size_t *row) {
    for (*row = 0; *row < pg_row_count(rows); ++*row)
        if (slice_eq(pg_cell(rows, *row, 0), name)) return true;
    return false;
}

/* The configured columns that are there. *missing: the first needed one that is not, RELAY_COLUMN_COUNT if none. */
static void match_columns(const struct relay_table *t, const struct pg_rows *rows, struct found *f, int *missing) {
    *missing = RELAY_COLUMN_COUNT;
    for (int i = RELAY_COLUMN_COUNT - 1; i >= 0; i--) {
        slice name = column_name(t, i);
        size_t row;
        if (!name.n) continue;
        if (!find_column(rows, name, &row)) {
            if (defaults[i].needed || t->columns[i]) *missing = i;
            continue;
        }
        f->columns[i].name = name;
        pg_put_name(&f->columns[i].quoted, name);
        buf_slice_add(&f->columns[i].type, pg_cell(rows, row, 1));
        f->columns[i].built_in = pg_cell(rows, row, 3).p[0] == 't';
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
    if (*exists) {
        buf_slice_add(&f->oid, pg_cell(rows, 0, 2));
        char kind = pg_cell(rows, 0, 4).p[0];
        f->plain = kind == 'r' || kind == 'p';
    }
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
    if (!f->plain)
        return err_set(err, ST_INVALID, "%.*s is no table: rows are settled by their place in one", (int)f->table.len,
                       f->table.p);
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
 * Templates with one-letter holes: $T the table, $I id, $O order (or id), $K order's type, $P payload, $R refused, $C created,
 * $S sent, $W the condition that makes a row pending. Functions and operators have their schema: what somebody plants in
 * the user's search_path is not run with the relay's rights.
 *
 * A row is settled by its place (tableoid, ctid), which stays while its lock is held: an id need not be unique, in a table
 * partitioned by time it cannot be. */

static slice hole(const struct found *f, char letter) {
    const struct column *c = f->columns, *order = c[RELAY_order].name.n ? &c[RELAY_order] : &c[RELAY_id];
    switch (letter) {
    case 'T':
        return buf_slice(&f->table);
    case 'I':
        return buf_slice(&c[RELAY_id].quoted);
    case 'O':
        return buf_slice(&order->quoted);
    case 'K':
        return buf_slice(&order->type);
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

static void put_column(struct buf *out, const struct column *c, const char *as) {
    buf_lit(out, ", ");
    if (c->name.n)
        buf_slice_add(out, buf_slice(&c->quoted));
    else
        buf_lit(out, "NULL");
    buf_printf(out, " AS %s", as);
}

/* Text and bytes say how long they are without being unpacked. */
static bool size_is_known(const struct found *f) {
    slice type = buf_slice(&f->columns[RELAY_payload].type);
    return slice_eq(type, SL("bytea")) || slice_eq(type, SL("text")) || slice_starts(type, SL("character varying"));
}

/* Locks the first pending rows, up to $1 of them and about $2 bytes, and reads them. First it is cut by what the database
 * stores, which costs nothing to know, then by what that becomes as text, which may be a hundred times as much: what is
 * fetched is bounded, whatever compresses well. A row that is too large by itself is only named. */
static void make_claim(const struct relay_layout *l, const struct found *f, const char *from, const char *lock,
                       struct buf *out) {
    buf_lit(out, "SELECT e.relid, e.tid, e.ord, e.fits");
    static const char *const names[] = {"id", "a", "b", "c"};
    for (int i = 0; i < 4; i++) buf_printf(out, ", CASE WHEN e.fits THEN e.%s END", names[i]);
    buf_lit(out, ", CASE WHEN e.fits THEN e.payload END FROM (SELECT d.*,"
                 " pg_catalog.sum(d.size) OVER (ORDER BY d.n ROWS UNBOUNDED PRECEDING) OPERATOR(pg_catalog.-)"
                 " d.size AS ahead, NOT d.huge AND d.size OPERATOR(pg_catalog.<=) $2::pg_catalog.int8 AS fits"
                 " FROM (SELECT x.*, (pg_catalog.octet_length(coalesce(x.id, ''))::pg_catalog.int8");
    for (int i = 1; i < 4; i++)
        buf_printf(out, " OPERATOR(pg_catalog.+) pg_catalog.octet_length(coalesce(x.%s, ''))", names[i]);
    buf_lit(out, " OPERATOR(pg_catalog.+) pg_catalog.octet_length(coalesce(x.payload, ''))) AS size FROM ("
                 "SELECT c.relid, c.tid, c.ord::pg_catalog.text AS ord, c.id::pg_catalog.text AS id,"
                 " c.a::pg_catalog.text AS a, c.b::pg_catalog.text AS b, c.c::pg_catalog.text AS c, c.huge,"
                 " pg_catalog.row_number() OVER (ORDER BY c.ord) AS n, CASE WHEN c.huge THEN NULL ELSE ");
    buf_slice_add(out, slice_str(l->base64 ? "pg_catalog.translate(pg_catalog.encode(c.p, 'base64'), E'\\n', '')"
                                           : "c.p::pg_catalog.text"));
    buf_lit(out, " END AS payload FROM (SELECT r.*, r.stored OPERATOR(pg_catalog.>) $2::pg_catalog.int8 AS huge,"
                 " pg_catalog.sum(r.stored) OVER (ORDER BY r.ord ROWS UNBOUNDED PRECEDING) OPERATOR(pg_catalog.-)"
                 " r.stored AS before FROM (SELECT tableoid::pg_catalog.int8 AS relid, ctid AS tid");
    fill(out, f, ", $O AS ord, $P AS p, coalesce(pg_catalog.");
    fill(out, f, size_is_known(f) ? "octet_length($P)" : "pg_column_size($P)");
    buf_lit(out, ", 0)::pg_catalog.int8 AS stored");
    for (int i = 0; i < 4; i++) put_column(out, &f->columns[RELAY_id + i], names[i]);
    fill(out, f, " FROM $T WHERE $W");
    fill(out, f, from);
    fill(out, f, " ORDER BY $O LIMIT $1::pg_catalog.int8");
    buf_slice_add(out, slice_str(lock));
    buf_lit(out, ") r) c WHERE c.before OPERATOR(pg_catalog.<) $2::pg_catalog.int8 OFFSET 0) x OFFSET 0) d) e"
                 " WHERE e.ahead OPERATOR(pg_catalog.<) $2::pg_catalog.int8 ORDER BY e.n");
    buf_char(out, '\0');
}

/* They say how many rows they have settled: a trigger, or a policy, may keep rows as they are. */
static void make_settle(struct relay_layout *l, const struct found *f) {
    static const char counted[] = " RETURNING 1) SELECT pg_catalog.count(*) FROM done";
    bool marked = f->columns[RELAY_sent].name.n > 0;
    buf_lit(&l->settle, "WITH done AS (");
    fill(&l->settle, f, marked ? "UPDATE $T SET $S = pg_catalog.clock_timestamp()" : "DELETE FROM $T");
    buf_lit(&l->settle, " WHERE ctid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.tid[])"
                        " AND tableoid OPERATOR(pg_catalog.=) $2::pg_catalog.oid");
    buf_add(&l->settle, counted, sizeof(counted));
    buf_lit(&l->park, "WITH done AS (");
    fill(&l->park, f,
         "UPDATE $T o SET $R = r.reason FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.tid[]),"
         " pg_catalog.unnest($3::pg_catalog.text[])) AS r(place, reason) WHERE o.ctid OPERATOR(pg_catalog.=) r.place"
         " AND o.tableoid OPERATOR(pg_catalog.=) $2::pg_catalog.oid");
    buf_add(&l->park, counted, sizeof(counted));
}

/* How rows are found. */
static void make_claims(struct relay_layout *l, const struct found *f, bool keep_order) {
    const char *lock = keep_order ? " FOR UPDATE" : " FOR UPDATE SKIP LOCKED";
    const char *from[FROM_COUNT] = {
        [FROM_START] = "",
        [FROM_MARK] = keep_order ? " AND $O OPERATOR(pg_catalog.>=) $3::$K AND $O OPERATOR(pg_catalog.<=) $4::$K"
                                 : " AND $O OPERATOR(pg_catalog.>=) $3::$K",
        [FROM_PLACE] = " AND ctid OPERATOR(pg_catalog.=) $3::pg_catalog.tid"
                       " AND tableoid OPERATOR(pg_catalog.=) $4::pg_catalog.oid"};
    for (int i = 0; i < FROM_COUNT; i++) make_claim(l, f, from[i], lock, &l->claim[i]);
    fill(&l->end, f, "SELECT $O FROM $T WHERE $W AND $O IS NOT NULL ORDER BY $O DESC LIMIT 1");
    fill(&l->head, f, "SELECT tableoid::pg_catalog.int8, ctid FROM $T WHERE $W ORDER BY $O LIMIT 1");
    buf_slice_add(&l->head, slice_str(lock));
    buf_char(&l->end, '\0');
    buf_char(&l->head, '\0');
}

static void make_others(struct relay_layout *l, const struct found *f) {
    bool ordered = f->columns[RELAY_order].name.n > 0;
    buf_lit(&l->lag, "SELECT (SELECT pg_catalog.count(*) FROM (");
    fill(&l->lag, f, "SELECT 1 FROM $T WHERE $W");
    buf_printf(&l->lag, " LIMIT %d) p), (", RELAY_PENDING_MAX);
    fill(&l->lag, f, "SELECT pg_catalog.count(*) FROM $T WHERE $R IS NOT NULL), (");
    const char *age = "SELECT greatest(0, extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) $C)"
                      " OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8 FROM $T WHERE $W ORDER BY $O LIMIT 1)";
    const char *age_by_scan =
        "SELECT greatest(0, extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.min($C))"
        " OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8 FROM $T WHERE $W)";
    fill(&l->lag, f, !f->columns[RELAY_created].name.n ? "-1)" : ordered ? age : age_by_scan);
    buf_printf(&l->lock,
               "SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended('hapax relay', %.*s))",
               (int)f->oid.len, f->oid.p);
    buf_char(&l->lag, '\0');
    buf_char(&l->lock, '\0');
}

hx_st relay_layout_read(struct pg *pg, const struct relay_table *t, bool keep_order, struct relay_layout *out,
                        struct errbuf *err) {
    struct found f;
    *out = (struct relay_layout){0};
    hx_st st = look_whole(pg, t, &f, err);
    if (!st) {
        slice type = buf_slice(&f.columns[RELAY_payload].type);
        out->base64 = slice_eq(type, SL("bytea"));
        out->json = slice_starts(type, SL("json"));
        out->ordered = f.columns[RELAY_order].name.n > 0;
        out->grouped = f.columns[RELAY_aggregateid].name.n > 0;
        out->markable = f.columns[out->ordered ? RELAY_order : RELAY_id].built_in;
        make_claims(out, &f, keep_order);
        make_settle(out, &f);
        make_others(out, &f);
    }
    found_free(&f);
    return st;
}

void relay_layout_free(struct relay_layout *l) {
    struct buf *all[] = {&l->end, &l->head, &l->settle, &l->park, &l->lag, &l->lock};
    for (int i = 0; i < FROM_COUNT; i++) buf_free(&l->claim[i]);
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
    hx_st st = relay_layout_read(pg, table, false, &l, err);
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
