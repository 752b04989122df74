#include "base/json.h"
#include "cli/cli.h"

slice member_raw(slice object, const char *name) {
    struct json j;
    slice have, raw, found = SL("");
    enum json_type type;
    json_init(&j, object);
    if (json_object(&j))
        while (json_member(&j, &have) && json_value(&j, &type, &raw))
            if (slice_eq(have, slice_str(name))) found = raw;
    json_free(&j);
    return found;
}

bool member_text(slice object, const char *name, struct buf *out) {
    struct json j;
    slice text;
    slice raw = member_raw(object, name);
    json_init(&j, raw);
    bool ok = raw.n && json_peek(&j) == JSON_STRING && json_string(&j, &text);
    if (ok) buf_slice_add(out, text);
    json_free(&j);
    return ok;
}

bool member_is(slice object, const char *name, slice text) {
    struct buf have = {0};
    bool same = member_text(object, name, &have) && slice_eq(buf_slice(&have), text);
    buf_free(&have);
    return same;
}

i64 member_number(slice object, const char *name) {
    struct json j;
    i64 n = 0;
    slice raw = member_raw(object, name);
    json_init(&j, raw);
    if (!raw.n || json_peek(&j) != JSON_NUMBER || !json_i64(&j, &n)) n = 0;
    json_free(&j);
    return n;
}
