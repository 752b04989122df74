/* Load client for PostgreSQL, speaking its protocol (version 3) itself so that it shares the engine of the others.
 * Two tables are the queue: one remembers keys, one holds work. INSERT ... ON CONFLICT DO NOTHING admits --batch keys
 * in one transaction; a consumer takes --batch jobs with FOR UPDATE SKIP LOCKED and deletes them in one. (One table
 * whose rows are marked done was measured too: about the same when sending, half as fast for duplicates and consuming.)
 * Mode send inserts one row a transaction. */
#include "bench/client.h"

#define USER "bench"

static const char schema_sql[] =
    "SET client_min_messages = error;"
    "CREATE TABLE IF NOT EXISTS seen (key text PRIMARY KEY);"
    "CREATE TABLE IF NOT EXISTS jobs (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL,"
    " payload text NOT NULL)";
static const char insert_sql[] =
    "WITH new AS (INSERT INTO seen SELECT unnest($1::text[]) ON CONFLICT DO NOTHING RETURNING key) "
    "INSERT INTO jobs (key, payload) SELECT u.key, u.payload FROM unnest($1::text[], $2::text[]) AS u (key, payload) "
    "JOIN new USING (key)";
static const char take_sql[] =
    "DELETE FROM jobs WHERE id = ANY (ARRAY (SELECT id FROM jobs ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED)) "
    "RETURNING key, payload";

/* ---- messages of the protocol: a type byte, a big-endian length that counts itself, a body */

static u32 big32(const char *p) {
    u32 v;
    memcpy(&v, p, 4);
    return ntohl(v);
}

static void put_big16(struct buf *out, u16 v) {
    u16 big = htons(v);
    buf_add(out, &big, 2);
}

static void put_big32(struct buf *out, u32 v) {
    u32 big = htonl(v);
    buf_add(out, &big, 4);
}

static void put_text(struct buf *out, const char *s) {
    buf_add(out, s, strlen(s) + 1);
}

static size_t message_begin(struct buf *out, char type) {
    if (type) buf_char(out, type);
    put_big32(out, 0);
    return out->len - 4;
}

static void length_patch(struct buf *out, size_t at, size_t counted_from) {
    u32 big = htonl((u32)(out->len - counted_from));
    memcpy(out->p + at, &big, 4);
}

static void message_end(struct buf *out, size_t at) {
    length_patch(out, at, at);
}

struct message {
    char type;
    slice body;
    size_t bytes; /* 0: not whole yet */
};

static struct message message_at(const struct load *l, slice in, size_t at) {
    if (in.n < at + 5) return (struct message){0};
    u32 length = big32(in.p + at + 1);
    if (in.n < at + 1 + length) return (struct message){0};
    struct message m = {in.p[at], slice_of(in.p + at + 5, length - 4), 1 + (size_t)length};
    if (m.type == 'E') fail(l, "%.*s", (int)m.body.n, m.body.p);
    return m;
}

/* ---- greeting */

static void ready_wait(struct load *l, struct load_conn *c) {
    for (;;) {
        struct message m = message_at(l, unread(c), 0);
        if (m.bytes == 0) {
            read_wait(l, c);
            continue;
        }
        c->in_at += m.bytes;
        if (m.type == 'R' && big32(m.body.p) != 0) fail(l, "the server wants a password");
        if (m.type == 'Z') return;
    }
}

static void hello(struct load *l, struct load_conn *c) {
    size_t at = message_begin(&c->out, 0);
    put_big32(&c->out, 3 << 16);
    put_text(&c->out, "user");
    put_text(&c->out, USER);
    put_text(&c->out, "database");
    put_text(&c->out, "postgres");
    put_text(&c->out, "");
    message_end(&c->out, at);
    flush_wait(l, c);
    ready_wait(l, c);
    if (c->id == 0) {
        at = message_begin(&c->out, 'Q');
        put_text(&c->out, schema_sql);
        message_end(&c->out, at);
        flush_wait(l, c);
        ready_wait(l, c);
    }
    at = message_begin(&c->out, 'P');
    put_text(&c->out, "work");
    put_text(&c->out, l->o.mode == LOAD_CONSUME ? take_sql : insert_sql);
    put_big16(&c->out, 0);
    message_end(&c->out, at);
    at = message_begin(&c->out, 'S');
    message_end(&c->out, at);
    flush_wait(l, c);
    ready_wait(l, c);
}

/* ---- requests */

static void bind_begin(struct buf *out, u16 parameters) {
    put_text(out, "");
    put_text(out, "work");
    put_big16(out, 0); /* all parameters are text */
    put_big16(out, parameters);
}

static void bind_end(struct buf *out, size_t at) {
    put_big16(out, 0); /* all results are text */
    message_end(out, at);
    at = message_begin(out, 'E');
    put_text(out, "");
    put_big32(out, 0);
    message_end(out, at);
    at = message_begin(out, 'S');
    message_end(out, at);
}

static void insert(struct load *l, struct load_conn *c, u32 rows) {
    static struct buf payloads;
    char key[LOAD_KEY_BYTES], payload[PAYLOAD_BYTES];
    u64 first = load_take(l, rows);
    size_t at = message_begin(&c->out, 'B');
    bind_begin(&c->out, 2);
    size_t keys_at = c->out.len;
    put_big32(&c->out, 0);
    buf_reset(&payloads);
    for (u32 i = 0; i < rows; i++) {
        load_key(l, first + i, key);
        load_payload(l, key, payload);
        buf_char(&c->out, i ? ',' : '{');
        buf_add(&c->out, key, sizeof key);
        buf_slice_add(&payloads, i ? SL("\",\"") : SL("{\""));
        buf_add(&payloads, payload, sizeof payload);
    }
    buf_char(&c->out, '}');
    length_patch(&c->out, keys_at, keys_at + 4);
    buf_lit(&payloads, "\"}");
    put_big32(&c->out, (u32)payloads.len);
    buf_slice_add(&c->out, buf_slice(&payloads));
    bind_end(&c->out, at);
    load_sent(l, c, 0, first, rows);
}

static void take(struct load *l, struct load_conn *c) {
    size_t at = message_begin(&c->out, 'B');
    bind_begin(&c->out, 1);
    size_t limit_at = c->out.len;
    put_big32(&c->out, 0);
    buf_dec(&c->out, l->o.batch);
    length_patch(&c->out, limit_at, limit_at + 4);
    bind_end(&c->out, at);
    load_sent(l, c, 0, 0, 0);
}

static void issue(struct load *l, struct load_conn *c) {
    if (l->o.mode == LOAD_CONSUME)
        take(l, c);
    else
        insert(l, c, l->o.mode == LOAD_SEND ? 1 : l->o.batch);
}

/* ---- replies */

/* A row of two text columns. */
static void row_received(struct load *l, slice row) {
    slice column[2];
    size_t at = 2;
    for (int i = 0; i < 2; i++) {
        u32 n = big32(row.p + at);
        column[i] = slice_of(row.p + at + 4, n);
        at += 4 + n;
    }
    load_received(l, column[0], column[1]);
}

/* "INSERT 0 100" or "UPDATE 100": the rows touched. */
static u32 tag_rows(slice tag) {
    u64 rows = 0;
    slice word = tag, rest = slice_of(tag.p, tag.n - 1);
    while (slice_cut(rest, ' ', &word, &rest)) {
    }
    slice_u64(word, &rows);
    return (u32)rows;
}

/* The offset past ReadyForQuery, which ends a transaction's reply; 0 if it has not come. */
static size_t transaction_end(const struct load *l, slice in) {
    size_t at = 0;
    for (;;) {
        struct message m = message_at(l, in, at);
        if (m.bytes == 0) return 0;
        at += m.bytes;
        if (m.type == 'Z') return at;
    }
}

static size_t reply(struct load *l, struct load_conn *c, slice in) {
    size_t end = transaction_end(l, in);
    if (end == 0) return 0;
    const struct load_op *op = next_op(l, c);
    u32 rows = 0;
    for (size_t at = 0; at < end;) {
        struct message m = message_at(l, in, at);
        if (m.type == 'D') row_received(l, m.body);
        if (m.type == 'C') rows = tag_rows(m.body);
        at += m.bytes;
    }
    u32 expected = l->o.mode == LOAD_DUPLICATE ? 0 : op->n;
    if (l->o.mode != LOAD_CONSUME && rows != expected) fail(l, "%u rows inserted, expected %u", rows, expected);
    if (l->o.mode == LOAD_CONSUME && rows == 0) load_idle(l, c);
    load_done(l, c, l->o.mode == LOAD_CONSUME ? rows : op->n);
    load_slot_free(c);
    return end;
}

int main(int argc, char **argv) {
    static const struct load_protocol postgres = {"postgres", hello, issue, reply};
    return bench_main(&postgres, argc, argv);
}
