/* What a queue accepted, as far as its payloads are kept: to be sent again, or tried with a template. */
#include "base/json.h"
#include "cli/cli.h"

enum { PAGE_ITEMS = 500 };

struct walk {
    void (*each)(void *ctx, slice item);
    void *ctx;
};

static void walk_items(const struct walk *w, slice items) {
    struct json j;
    slice raw;
    enum json_type type;
    json_init(&j, items);
    if (json_array(&j))
        while (json_element(&j) && json_value(&j, &type, &raw)) w->each(w->ctx, raw);
    json_free(&j);
}

static void page_target(const char *queue, const char *since, slice cursor, struct buf *target) {
    cli_queue_target(target, queue, "/messages?accepted_since=", since, "");
    target->len--; /* its NUL */
    buf_printf(target, "&limit=%d", PAGE_ITEMS);
    if (cursor.n) {
        buf_lit(target, "&cursor=");
        buf_percent_encode(target, cursor);
    }
    buf_char(target, '\0');
}

/* One page. *cursor is where it goes on; empty: nowhere. */
static bool walk_page(struct cli *cli, const struct walk *w, const char *target, struct buf *cursor, int *rc) {
    hx_reply reply;
    hx_request request = {.method = "GET", .target = target};
    bool ok = cli_ask(cli, &request, &reply, rc);
    buf_reset(cursor);
    if (ok) {
        slice page = slice_of(reply.body.data, reply.body.size);
        walk_items(w, member_raw(page, "items"));
        member_text(page, "next_cursor", cursor);
    }
    hx_reply_free(&reply);
    return ok;
}

/* A list whose cursors come round again would be walked for ever. One cursor is kept to compare with, and replaced after 1,
 * 2, 4, ... pages: a circle of any length is found, and no list that ends is taken for one. */
struct circle {
    struct buf kept;
    u64 pages, next;
};

static bool comes_round(struct circle *c, slice cursor) {
    if (cursor.n && slice_eq(buf_slice(&c->kept), cursor)) return true;
    if (++c->pages > c->next) {
        c->next = c->pages * 2;
        buf_reset(&c->kept);
        buf_slice_add(&c->kept, cursor);
    }
    return false;
}

bool accepted_each(struct cli *cli, const char *queue, const char *since, void (*each)(void *ctx, slice item),
                   void *ctx, int *rc) {
    const struct walk w = {each, ctx};
    struct buf cursor = {0}, target = {0};
    struct circle circle = {0};
    bool ok;
    do {
        buf_reset(&target);
        page_target(queue, since, buf_slice(&cursor), &target);
        ok = walk_page(cli, &w, target.p, &cursor, rc);
        if (ok && comes_round(&circle, buf_slice(&cursor))) {
            say("the broker's list of messages does not end: it goes round at cursor %.*s", (int)cursor.len, cursor.p);
            *rc = EXIT_UNREACHABLE;
            ok = false;
        }
    } while (ok && cursor.len);
    buf_free(&circle.kept);
    buf_free(&cursor);
    buf_free(&target);
    return ok;
}

static bool copy_as(struct buf *line, slice item, const char *from, const char *to) {
    slice raw = member_raw(item, from);
    if (!raw.n || slice_eq(raw, SL("null"))) return false;
    json_put_member_raw(line, to, raw);
    return true;
}

void accepted_copy(struct buf *line, slice item, const char *name) {
    copy_as(line, item, name, name);
}

bool accepted_payload(struct buf *line, slice item) {
    bool base64 = member_is(item, "encoding", SL("base64"));
    if (!copy_as(line, item, "payload", base64 ? "payload_base64" : "payload")) return false;
    accepted_copy(line, item, "content_type");
    accepted_copy(line, item, "attrs");
    return true;
}
