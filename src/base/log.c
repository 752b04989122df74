#include "base/base_priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* Longer messages are cut: a line stays small enough that one write puts it out undivided. */
enum { MESSAGE_MAX = 2048 };

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static _Atomic int current_level = LOG_INFO;

void log_set_level(enum log_level level) {
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

/* C1 control characters are two bytes in UTF-8, and terminals obey them as they obey ESC. */
static size_t printable(const char *p, size_t left) {
    u8 c = (u8)p[0];
    if (c < 0x20 || c == 0x7f) return 0;
    if (c == 0xC2 && left > 1 && (u8)p[1] < 0xA0) return 0;
    return utf8_sequence(p, left);
}

static void add_escaped(struct buf *line, slice message) {
    for (size_t i = 0; i < message.n;) {
        size_t n = printable(message.p + i, message.n - i);
        if (n) {
            buf_add(line, message.p + i, n);
            i += n;
            continue;
        }
        if (message.p[i] == '\n')
            buf_lit(line, "\\n");
        else
            buf_printf(line, "\\x%02x", (u8)message.p[i]);
        i++;
    }
}

void log_line(enum log_level level, const char *fmt, ...) {
    if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed)) return;
    int saved_errno = errno;
    char message[MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);

    struct buf line = {0};
    buf_rfc3339(&line, clock_wall_ms());
    buf_printf(&line, " %s ", level_names[level]);
    add_escaped(&line, slice_str(n < 0 ? fmt : message));
    if (n >= MESSAGE_MAX) buf_lit(&line, " [cut]");
    buf_char(&line, '\n');
    /* A log that cannot be written must not stop the work it tells of. */
    while (write(STDERR_FILENO, line.p, line.len) < 0 && errno == EINTR) {
    }
    buf_free(&line);
    errno = saved_errno;
}
