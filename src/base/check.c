#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* dprintf, not stdio: whatever state the process is in, the line is out before the abort. */
_Noreturn void check_failed(const char *file, int line, const char *expr, const char *what) {
    dprintf(STDERR_FILENO, "%s:%d: check failed: %s%s%s%s\n", file, line, expr, what ? " (" : "", what ? what : "",
            what ? ")" : "");
    abort();
}
