/* Heads of answers: whatever a server says, what is kept is lines of a name and a value, and no more than was allowed. */
#include "net/answer.h"

#define MAX 512u

int LLVMFuzzerTestOneInput(const u8 *data, size_t n);

static void check_line(slice line) {
    slice name, value;
    CHECK(slice_cut(line, ':', &name, &value) && name.n && value.n && value.p[0] == ' ');
    for (size_t i = 0; i < name.n; i++) CHECK(name.p[i] > ' ' && name.p[i] < 0x7f);
    for (size_t i = 0; i < value.n; i++) CHECK((u8)value.p[i] >= ' ' || value.p[i] == '\t');
}

static void check_kept(slice kept) {
    while (kept.n) {
        const char *end = memmem(kept.p, kept.n, "\r\n", 2);
        CHECK(end);
        check_line(slice_of(kept.p, (size_t)(end - kept.p)));
        kept = slice_of(end + 2, kept.n - (size_t)(end - kept.p) - 2);
    }
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t n) {
    struct answer_head h = {0};
    slice rest = slice_of(data, n);
    bool more = true;
    while (more && rest.n) {
        const char *end = memchr(rest.p, '\n', rest.n);
        size_t line = end ? (size_t)(end - rest.p) + 1 : rest.n;
        more = answer_head_line(&h, slice_of(rest.p, line), MAX);
        CHECK(!more || h.status >= 100);
        CHECK(!h.ended || (h.status >= 200 && h.status <= 999));
        rest = slice_of(rest.p + line, rest.n - line);
    }
    CHECK(h.bytes <= MAX && h.lines.len <= 4 * MAX);
    check_kept(buf_slice(&h.lines));
    buf_free(&h.lines);
    return 0;
}
