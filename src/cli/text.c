/* Text on its way to people: made harmless, cut to the terminal, coloured.
 *
 * What others stored may hold bytes that drive a terminal: escapes, the C1 controls, characters that reorder what is shown
 * or show nothing. They are made visible whenever a terminal is at the other end. A file or a pipe gets the bytes as they
 * are: a program reads there, and it asked for them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"

static bool wide;

void text_setup(const struct cli *cli) {
    wide = args_has(cli, "wide");
}

bool text_is_wide(void) {
    return wide;
}

/* ---- characters */

/* Bytes of the UTF-8 character at the front of `s`, 0 if it is none. *code gets its number. */
static size_t character(slice s, u32 *code) {
    u8 c = (u8)s.p[0];
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (n > s.n || !utf8_valid(slice_of(s.p, n))) return 0;
    *code = n == 1 ? c : c & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) *code = *code << 6 | ((u8)s.p[i] & 0x3f);
    return n;
}

struct range {
    u32 first, last;
};

static bool is_in(u32 code, const struct range *ranges, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (code >= ranges[i].first && code <= ranges[i].last) return true;
    return false;
}
#define IS_IN(code, ranges) is_in(code, ranges, sizeof(ranges) / sizeof((ranges)[0]))

/* Controls; what reorders text, joins it or shows nothing; line separators; annotations; tags. */
static const struct range driving[] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},     {0x34f, 0x34f},
                                       {0x61c, 0x61c},   {0x115f, 0x1160}, {0x17b4, 0x17b5}, {0x180b, 0x180f},
                                       {0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f}, {0x3164, 0x3164},
                                       {0xfeff, 0xfeff}, {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0xe0000, 0xe0fff}};
/* Two columns on most terminals, and none. Good enough to keep tables straight. */
static const struct range broad[] = {{0x1100, 0x115e},   {0x2e80, 0xa4cf},   {0xac00, 0xd7a3},  {0xf900, 0xfaff},
                                     {0xfe30, 0xfe6f},   {0xff00, 0xff60},   {0xffe0, 0xffe6},  {0x1f300, 0x1f64f},
                                     {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
static const struct range joined[] = {{0x300, 0x36f}, {0x1ab0, 0x1aff}, {0x20d0, 0x20ff}};

static void put_escape(struct buf *b, u32 code, bool json) {
    if (code > 0xffff)
        buf_printf(b, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (code >> 10)), (unsigned)(0xdc00 | (code & 0x3ff)));
    else
        buf_printf(b, code < 0x100 && !json ? "\\x%02x" : "\\u%04x", (unsigned)code);
}

/* json: what it escapes inside a JSON string stays JSON. */
static void put_harmless(struct buf *b, slice s, bool lines, bool json) {
    while (s.n) {
        u32 code = 0;
        size_t n = character(s, &code);
        if (n == 0)
            buf_printf(b, "\\x%02x", (unsigned)(u8)s.p[0]);
        else if (lines && (code == '\n' || code == '\t'))
            buf_char(b, (char)code);
        else if (code == '\n') /* most output of a command ends so: no need to look like damage */
            buf_lit(b, "↵");
        else if (IS_IN(code, driving))
            put_escape(b, code, json);
        else
            buf_add(b, s.p, n);
        size_t skip = n ? n : 1;
        s = slice_of(s.p + skip, s.n - skip);
    }
}

void print_clean(struct buf *b, slice s, bool lines) {
    put_harmless(b, s, lines, false);
}

void print_for(struct buf *b, slice text, int fd) {
    if (isatty(fd))
        put_harmless(b, text, true, false);
    else
        buf_slice_add(b, text);
}

static size_t width_of_character(u32 code) {
    return IS_IN(code, broad) ? 2 : IS_IN(code, joined) ? 0 : 1;
}

/* Bytes of clean text that take at most `columns`. */
static size_t bytes_within(slice clean, size_t columns, size_t *width) {
    size_t at = 0;
    *width = 0;
    while (at < clean.n) {
        u32 code = 0;
        size_t n = character(slice_of(clean.p + at, clean.n - at), &code), w = n ? width_of_character(code) : 1;
        if (*width + w > columns) break;
        *width += w;
        at += n ? n : 1;
    }
    return at;
}

size_t text_width(slice clean) {
    size_t width;
    bytes_within(clean, SIZE_MAX, &width);
    return width;
}

size_t text_cut(struct buf *b, slice clean, size_t columns) {
    size_t width, whole = text_width(clean);
    if (whole <= columns) {
        buf_slice_add(b, clean);
        return whole;
    }
    buf_add(b, clean.p, bytes_within(clean, columns ? columns - 1 : 0, &width));
    buf_lit(b, "…");
    return width + 1;
}

void text_wrap(struct buf *b, slice text, size_t at, size_t indent, size_t columns) {
    bool first = true;
    while (text.n) {
        slice word, rest;
        slice_cut(text, ' ', &word, &rest);
        text = rest;
        if (!word.n) continue;
        size_t width = text_width(word);
        bool fits = first || at + 1 + width <= columns;
        if (!first) buf_char(b, fits ? ' ' : '\n');
        if (!fits)
            for (at = 0; at < indent; at++) buf_char(b, ' ');
        else if (!first)
            at++;
        buf_slice_add(b, word);
        at += width;
        first = false;
    }
}

/* ---- the terminal */

const char *text_plural(u64 n) {
    return n == 1 ? "" : "s";
}

size_t text_columns(int fd) {
    struct winsize size;
    if (wide || !isatty(fd)) return SIZE_MAX;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

static bool has_colour(int fd) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && !(none && *none) && !(term && strcmp(term, "dumb") == 0);
}

void text_tone(struct buf *b, enum tone tone, slice clean, int fd) {
    static const char *const codes[] = {
        [TONE_PLAIN] = NULL, [TONE_HEAD] = "1", [TONE_GOOD] = "32", [TONE_BAD] = "31", [TONE_DOUBT] = "33"};
    bool coloured = codes[tone] && clean.n && has_colour(fd);
    if (coloured) buf_printf(b, "\033[%sm", codes[tone]);
    buf_slice_add(b, clean);
    if (coloured) buf_lit(b, "\033[0m");
}

enum tone text_tone_of(slice word) {
    static const struct {
        const char *word;
        enum tone tone;
    } tones[] = {{"done", TONE_GOOD},      {"accepted", TONE_GOOD},  {"dead", TONE_BAD},      {"poison", TONE_BAD},
                 {"failed", TONE_BAD},     {"held", TONE_DOUBT},     {"unknown", TONE_DOUBT}, {"conflict", TONE_DOUBT},
                 {"paused", TONE_DOUBT},   {"pressed", TONE_DOUBT},  {"expired", TONE_DOUBT}, {"cancelled", TONE_DOUBT},
                 {"rejected", TONE_DOUBT}, {"firing", TONE_BAD},     {"resolved", TONE_GOOD}, {"closed", TONE_GOOD},
                 {"open", TONE_BAD},       {"half_open", TONE_DOUBT}};
    for (size_t i = 0; i < sizeof(tones) / sizeof(tones[0]); i++)
        if (slice_eq(word, slice_str(tones[i].word))) return tones[i].tone;
    return TONE_PLAIN;
}

/* ---- out */

static int out_error; /* of the first write to standard output that failed */

static void put_out(slice text) {
    if (text.n && fwrite(text.p, 1, text.n, stdout) < text.n && !out_error) out_error = errno;
}

bool print_flush(void) {
    static bool said;
    if (fflush(stdout) != 0 && !out_error) out_error = errno;
    if (!ferror(stdout)) return true;
    __fpurge(stdout); /* or it might come out later, when others have heard that it did not */
    if (!said) say_wrong("cannot write to standard output: %s", strerrordesc_np(out_error ? out_error : EIO));
    said = true;
    return false;
}

/* The one way to standard output for what may hold anything. */
static void write_out(slice text) {
    struct buf harmless = {0};
    if (isatty(STDOUT_FILENO)) {
        put_harmless(&harmless, text, true, true);
        text = buf_slice(&harmless);
    }
    put_out(text);
    buf_free(&harmless);
}

void print_buf(struct buf *b) {
    write_out(buf_slice(b));
    buf_free(b);
    *b = (struct buf){0};
}

void print_clean_buf(struct buf *b) {
    put_out(buf_slice(b));
    buf_free(b);
    *b = (struct buf){0};
}

void print_json(hx_bytes json) {
    const char *p = json.data;
    write_out(slice_of(p, json.size));
    if (json.size && p[json.size - 1] != '\n') put_out(SL("\n"));
}

void print_body(hx_bytes body) {
    struct buf b = {0};
    print_clean(&b, slice_of(body.data, body.size), true);
    if (b.len && b.p[b.len - 1] != '\n') buf_char(&b, '\n');
    print_clean_buf(&b);
}

void print_bytes(hx_bytes body) {
    if (isatty(STDOUT_FILENO))
        print_body(body);
    else
        put_out(slice_of(body.data, body.size));
}

/* Lines of their own are wrapped one by one. */
static void put_wrapped(struct buf *b, slice text, size_t at, size_t columns) {
    while (text.n) {
        slice line, rest;
        bool more = slice_cut(text, '\n', &line, &rest);
        text_wrap(b, line, at, 2, columns);
        if (more) buf_char(b, '\n');
        at = 0;
        text = rest;
    }
}

static PRINTF_LIKE(2, 0) void say_as(enum tone tone, const char *fmt, va_list args) {
    char text[2048];
    vsnprintf(text, sizeof(text), fmt, args);
    struct buf clean = {0}, b = {0};
    print_clean(&clean, slice_str(text), true);
    text_tone(&b, tone, SL("hapax:"), STDERR_FILENO);
    buf_char(&b, ' ');
    put_wrapped(&b, buf_slice(&clean), sizeof("hapax:"), text_columns(STDERR_FILENO));
    buf_char(&b, '\n');
    fwrite(b.p, 1, b.len, stderr);
    buf_free(&b);
    buf_free(&clean);
}

void say(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say_as(TONE_PLAIN, fmt, args);
    va_end(args);
}

void say_wrong(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    say_as(TONE_BAD, fmt, args);
    va_end(args);
}
