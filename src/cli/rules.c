/* hapax queues set: a queue's rules through the API. PUT replaces all of them, so changing some means reading, merging
 * and writing back; If-Match makes sure that nobody wrote in between. */
#include "base/json.h"
#include "cli/cli.h"
#include "config/tree.h"

const struct flag flags_queues_set[] = {
    {"file", "FILE", "all the rules from a YAML or JSON file, - for standard input; the rest goes to its default"},
    {"replace", NULL, "start from the defaults instead of the queue's present rules"},
    FLAGS_SIGNED,
    {0},
};
const char about_queues_set[] =
    "KEY is a key of the config file, with dots into maps: window=14d, retry.transient.attempts=8,\n"
    "fingerprint='{ignore: [sent_at]}'. KEY= alone takes the key back to its default. A new class= starts from that\n"
    "preset: name what else should differ from it. A queue that does not exist is made. Queues that a config file\n"
    "declares are changed there (409 says where). `hapax lint --explain KEY` tells what a key does.";

/* ---- one assignment */

/* Numbers, true and false as they are; maps, lists and quoted text as YAML writes them; all else is text. */
static bool value_json(const struct cli *cli, slice text, struct buf *out) {
    u64 n;
    if (slice_u64(text, &n) || slice_eq(text, SL("true")) || slice_eq(text, SL("false"))) {
        buf_slice_add(out, text);
        return true;
    }
    if (!memchr("{[\"'", text.p[0], 4)) {
        json_put_string(out, text);
        return true;
    }
    struct tree tree;
    struct errbuf err;
    if (tree_from_yaml(text, NULL, &tree, &err) != ST_OK) return args_wrong(cli, "%s", err.text), false;
    node_put_json(tree.root, out);
    tree_free(&tree);
    return true;
}

/* Writes `object` with the value at a dotted path set, or taken out when `value` is empty. */
static void with_path(struct buf *out, slice object, slice path, slice value) {
    struct json j;
    slice head, rest, name, raw, inner = SL("{}");
    enum json_type type;
    slice_cut(path, '.', &head, &rest);
    json_init(&j, object);
    buf_char(out, '{');
    bool open = json_object(&j);
    while (open && json_member(&j, &name) && json_value(&j, &type, &raw)) {
        bool here = slice_eq(name, head);
        if (here && type == JSON_OBJECT) inner = raw;
        if (here) continue;
        if (out->p[out->len - 1] != '{') buf_char(out, ',');
        json_put_string(out, name);
        buf_char(out, ':');
        buf_slice_add(out, raw);
    }
    json_free(&j);
    if (value.n || rest.n) {
        if (out->p[out->len - 1] != '{') buf_char(out, ',');
        json_put_string(out, head);
        buf_char(out, ':');
        if (rest.n)
            with_path(out, inner, rest, value);
        else
            buf_slice_add(out, value);
    }
    buf_char(out, '}');
}

/* *rules, an object, with KEY=VALUE in it. */
static bool assign(const struct cli *cli, struct buf *rules, const char *word) {
    slice key, text;
    struct buf value = {0}, changed = {0};
    if (!slice_cut(slice_str(word), '=', &key, &text) || !key.n || !utf8_valid(slice_str(word)))
        return args_wrong(cli, "\"%s\" is not KEY=VALUE", word), false;
    bool ok = !text.n || value_json(cli, text, &value);
    if (ok) {
        with_path(&changed, buf_slice(rules), key, buf_slice(&value));
        buf_free(rules);
        *rules = changed;
    }
    buf_free(&value);
    return ok;
}

/* ---- where they start from */

static bool starts_afresh(const struct cli *cli) {
    bool afresh = args_has(cli, "replace") || args_has(cli, "file");
    for (int i = 1; i < cli->word_count; i++)
        afresh = afresh || slice_starts(slice_str(args_word(cli, i)), SL("class="));
    return afresh;
}

static bool read_file(const struct cli *cli, const char *file, struct buf *rules) {
    struct buf text = {0};
    struct tree tree;
    struct errbuf err;
    bool ok = cli_read_file(file, &text);
    if (ok && tree_from_yaml(buf_slice(&text), file, &tree, &err) != ST_OK)
        ok = (args_wrong(cli, "%s", err.text), false);
    buf_free(&text);
    if (!ok) return false;
    node_put_json(tree.root, rules);
    tree_free(&tree);
    return true;
}

/* The queue's present rules and their ETag; none if there is no such queue. */
static bool read_present(struct cli *cli, const char *target, struct buf *rules, struct buf *etag, int *rc) {
    hx_request request = {.method = "GET", .target = target};
    hx_client *client = cli_client(cli, 0);
    hx_reply reply = {0};
    hx_error err;
    *rc = EXIT_USAGE;
    if (!client) return false;
    hx_status st = hx_call(client, &request, &reply, &err);
    slice config = member_raw(slice_of(reply.body.data, reply.body.size), "config");
    bool ok = st == HX_OK || err.http_status == 404;
    if (!ok) *rc = cli_failed(cli, &err, reply.body);
    if (st == HX_OK && config.n) {
        buf_slice_add(rules, config);
        buf_slice_add(etag, slice_str(reply.etag));
        buf_char(etag, '\0');
    }
    hx_reply_free(&reply);
    return ok;
}

static bool gather(struct cli *cli, const char *target, struct buf *rules, struct buf *etag, int *rc) {
    const char *file = args_get(cli, "file");
    *rc = EXIT_USAGE;
    if (file && !read_file(cli, file, rules)) return false;
    if (!starts_afresh(cli) && !read_present(cli, target, rules, etag, rc)) return false;
    if (!rules->len) buf_lit(rules, "{}");
    *rc = EXIT_USAGE;
    for (int i = 1; i < cli->word_count; i++)
        if (!assign(cli, rules, args_word(cli, i))) return false;
    return true;
}

static void show_set(slice queue) {
    struct buf name = {0}, b = {0};
    member_text(queue, "name", &name);
    print_clean(&b, buf_slice(&name), false);
    buf_lit(&b, " has its rules: `hapax queues show ");
    print_clean(&b, buf_slice(&name), false);
    buf_lit(&b, "` lists them\n");
    print_clean_buf(&b);
    buf_free(&name);
}

int cmd_queues_set(struct cli *cli) {
    struct buf target = {0}, rules = {0}, etag = {0};
    int rc;
    if (cli->word_count == 1 && !args_has(cli, "file")) return args_wrong(cli, "expected KEY=VALUE or --file FILE");
    cli_queue_target(&target, args_word(cli, 0), "", NULL, "");
    if (gather(cli, target.p, &rules, &etag, &rc))
        rc = cli_decide(
            cli, &(struct cli_decision){
                     .method = "PUT", .target = target.p, .body = buf_slice(&rules), .etag = etag.p, .show = show_set});
    buf_free(&target);
    buf_free(&rules);
    buf_free(&etag);
    return rc;
}
