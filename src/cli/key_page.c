/* A key for people: the sentence that answers, what happened line by line, and what is left to say. */
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

static void put_text(struct buf *b, slice text, enum tone tone, size_t indent) {
    struct buf clean = {0}, lines = {0};
    print_clean(&clean, text, false);
    text_wrap(&lines, buf_slice(&clean), indent, indent, text_columns(STDOUT_FILENO));
    text_tone(b, tone, buf_slice(&lines), STDOUT_FILENO);
    buf_char(b, '\n');
    buf_free(&clean);
    buf_free(&lines);
}

static enum tone tone_of_event(slice event) {
    if (member_is(event, "what", SL("harmful duplicate"))) return TONE_BAD;
    if (member_is(event, "what", SL("attempt ended")) || member_is(event, "what", SL("lease ran out")) ||
        member_is(event, "kind", SL("late replay")) || member_is(event, "kind", SL("conflict")))
        return TONE_DOUBT;
    if (member_is(event, "state", SL("done"))) return TONE_GOOD;
    return TONE_PLAIN;
}

static void put_event(struct buf *b, slice event) {
    struct buf text = {0};
    size_t from = b->len;
    if (slice_eq(member_raw(event, "time_known"), SL("false"))) /* it was after that */
        buf_lit(b, "  ");
    else
        print_time(b, event, "at");
    while (b->len - from < RFC3339_BYTES - 4) buf_char(b, ' ');
    buf_lit(b, "  ");
    member_text(event, "text", &text);
    put_text(b, buf_slice(&text), tone_of_event(event), RFC3339_BYTES - 2);
    buf_free(&text);
}

static void put_array(struct buf *b, slice array, bool events) {
    struct json j;
    slice raw, text;
    enum json_type type;
    json_init(&j, array);
    bool open = array.n && json_array(&j);
    while (open && json_element(&j)) {
        if (!events && json_string(&j, &text)) {
            buf_lit(b, "(");
            print_clean(b, text, false);
            buf_lit(b, ")\n");
        } else if (events && json_value(&j, &type, &raw)) {
            put_event(b, raw);
        } else {
            break;
        }
    }
    json_free(&j);
}

/* Told above. */
static bool is_told(slice name) {
    static const char *const told[] = {"why", "timeline", "not_kept", "arrivals", "attempts", "decisions"};
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++)
        if (slice_eq(name, slice_str(told[i]))) return true;
    return false;
}

/* Nothing was counted or listed, or it is the key once more: a page that fits the screen says more. */
static bool says_nothing(slice key, slice name, slice raw) {
    if (slice_eq(raw, SL("0")) || slice_eq(raw, SL("[]"))) return true;
    return slice_eq(name, SL("effect_key")) && slice_eq(raw, member_raw(key, "key"));
}

static void print_rest(slice key) {
    struct json j;
    slice name, raw;
    enum json_type type;
    struct buf rest = {0};
    json_init(&j, key);
    buf_char(&rest, '{');
    bool open = json_object(&j);
    while (open && json_member(&j, &name) && json_value(&j, &type, &raw)) {
        if (is_told(name) || says_nothing(key, name, raw)) continue;
        if (rest.len > 1) buf_char(&rest, ',');
        json_put_string(&rest, name);
        buf_char(&rest, ':');
        buf_slice_add(&rest, raw);
    }
    json_free(&j);
    buf_char(&rest, '}');
    print_page(buf_slice(&rest));
    buf_free(&rest);
}

static void print_one(slice key) {
    struct buf b = {0}, why = {0};
    member_text(key, "why", &why);
    put_text(&b, buf_slice(&why), TONE_HEAD, 0);
    buf_char(&b, '\n');
    put_array(&b, member_raw(key, "not_kept"), false);
    put_array(&b, member_raw(key, "timeline"), true);
    buf_char(&b, '\n');
    print_clean_buf(&b);
    buf_free(&why);
    print_rest(key);
}

void print_key(slice json) {
    struct json j;
    slice raw, items = member_raw(json, "items");
    enum json_type type;
    u32 n = 0;
    if (!items.n) return print_one(json);
    json_init(&j, items);
    bool open = json_array(&j);
    while (open && json_element(&j) && json_value(&j, &type, &raw)) { /* where keys repeat */
        if (n++) printf("\n");
        print_one(raw);
    }
    json_free(&j);
    struct buf cursor = {0};
    if (member_text(json, "next_cursor", &cursor))
        say("there are more than these %u; `hapax messages list` has all", n);
    buf_free(&cursor);
}
