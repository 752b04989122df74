/* Which fields of a JSON payload changed: for the person who has to tell a duplicate from a new intent. */
#include "broker/broker_priv.h"

#define CHANGES_MAX 32u
#define BYTES_MAX   16384u /* comparing is quadratic in the number of members: larger payloads are not looked into */

static bool find_member(slice object, slice name, slice *raw) {
    struct json j;
    slice n;
    bool found = false;
    json_init(&j, object);
    if (json_object(&j))
        while (!found && json_member(&j, &n)) {
            enum json_type type;
            bool same = slice_eq(n, name);
            if (!json_value(&j, &type, raw)) break;
            found = same;
        }
    json_free(&j);
    return found;
}

static void put_name(struct buf *out, u32 *count, slice name) {
    if (*count >= CHANGES_MAX) return;
    if ((*count)++) buf_char(out, ',');
    json_put_string(out, name);
}

/* Members of `a` that `b` lacks or, if differing, has otherwise. */
static bool compare(slice a, slice b, bool differing, struct buf *out, u32 *count) {
    struct json j;
    slice name, raw, other;
    enum json_type type;
    json_init(&j, a);
    if (json_object(&j))
        while (json_member(&j, &name) && json_value(&j, &type, &raw)) {
            bool there = find_member(b, name, &other);
            if (!there || (differing && !slice_eq(raw, other))) put_name(out, count, name);
        }
    bool ok = json_end(&j);
    json_free(&j);
    return ok;
}

bool json_changed_fields(slice before, slice after, struct buf *out) {
    u32 count = 0;
    if (before.n > BYTES_MAX || after.n > BYTES_MAX) return false;
    buf_char(out, '[');
    bool ok = compare(before, after, true, out, &count) && compare(after, before, false, out, &count);
    buf_char(out, ']');
    return ok;
}
