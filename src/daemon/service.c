#include "daemon/service.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct service {
    struct sockaddr_un to;
    socklen_t to_bytes;
    int fd;
    u64 watchdog_ms; /* between two signs of life; 0: nobody waits for them */
    struct loop_alarm *alarm;
};

/* Never waits: a manager whose queue is full has other worries. */
static void tell(const struct service *s, const char *text) {
    ssize_t n =
        sendto(s->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&s->to, s->to_bytes);
    (void)n;
}

static void on_alarm(void *ctx) {
    const struct service *s = ctx;
    tell(s, "WATCHDOG=1");
    loop_alarm_set(s->alarm, s->watchdog_ms);
}

/* A path, or a name beside the file system, which begins with an @. */
static bool take_address(struct service *s, const char *path) {
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof s->to.sun_path || (path[0] != '/' && path[0] != '@')) return false;
    s->to.sun_family = AF_UNIX;
    memcpy(s->to.sun_path, path, n);
    if (path[0] == '@') s->to.sun_path[0] = 0;
    s->to_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] == '/'));
    return true;
}

/* Half of what is allowed: one that comes late is not yet one that is missing. */
static u64 watchdog_ms(void) {
    const char *limit = getenv("WATCHDOG_USEC"), *whose = getenv("WATCHDOG_PID");
    u64 us, pid;
    if (!limit || !slice_u64(slice_str(limit), &us)) return 0;
    if (whose && slice_u64(slice_str(whose), &pid) && pid != (u64)getpid()) return 0;
    return us / 2000;
}

struct service *service_new(struct loop *loop) {
    struct service *s = mem_zalloc(sizeof *s);
    bool wanted = take_address(s, getenv("NOTIFY_SOCKET"));
    s->fd = wanted ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    s->watchdog_ms = watchdog_ms();
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    if (s->fd >= 0) {
        s->alarm = loop_alarm_new(loop, on_alarm, s);
        return s;
    }
    mem_free(s);
    return NULL;
}

void service_free(struct service *s) {
    if (!s) return;
    loop_alarm_free(s->alarm);
    close(s->fd);
    mem_free(s);
}

void service_ready(struct service *s) {
    if (!s) return;
    tell(s, "READY=1");
    if (s->watchdog_ms) on_alarm(s);
}

/* The time tells the manager which of several reloads the next READY=1 ends. */
void service_reloading(struct service *s) {
    char text[64];
    if (!s) return;
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)clock_mono_us());
    tell(s, text);
}

void service_stopping(struct service *s) {
    if (s) tell(s, "STOPPING=1");
}
