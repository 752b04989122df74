/* Open files of segments, on demand. A journal may have any number of segments; a process has only so many descriptors.
 *
 * A segment's file is opened when it is read, written or mapped, and stays open for the next time; once there are
 * files_max of them, the one longest out of use is closed. What is mapped needs no file any more.
 *
 * A batch is written and synced through one opening. A write-back that fails in the meantime is reported to those who have
 * the file open; through a file closed and opened again in between, the sync might not hear of it (P7). */
#include "journal/file_priv.h"

#include <errno.h>

/* Under the lock; the caller closes it after. NULL: all are in use. */
static struct disk_file *take_idle(struct journal_file *j) {
    u32 oldest = j->open_count;
    for (u32 i = 0; i < j->open_count; i++) {
        const struct segment *s = j->open_segments[i];
        if (s->file_users == 0 && (oldest == j->open_count || s->file_used < j->open_segments[oldest]->file_used))
            oldest = i;
    }
    if (oldest == j->open_count) return NULL;
    struct segment *s = j->open_segments[oldest];
    struct disk_file *f = s->file;
    s->file = NULL;
    j->open_segments[oldest] = j->open_segments[--j->open_count];
    return f;
}

static bool close_idle(struct journal_file *j) {
    pthread_mutex_lock(&j->lock);
    struct disk_file *f = take_idle(j);
    pthread_mutex_unlock(&j->lock);
    if (f) j->disk->ops->close(j->disk, f);
    return f != NULL;
}

static int open_file(struct journal_file *j, const struct segment *s, struct disk_file **out) {
    int rc;
    do rc = j->disk->ops->open(j->disk, s->name, j->read_only ? 0 : DISK_WRITE, out);
    while ((rc == -EMFILE || rc == -ENFILE) && close_idle(j));
    return rc;
}

/* Under the lock. Returns what is to be closed: the one that has to make room; or `f`, if another thread was quicker. */
static struct disk_file *keep(struct journal_file *j, struct segment *s, struct disk_file *f) {
    if (s->file) return f;
    struct disk_file *idle = j->open_count < j->files_max ? NULL : take_idle(j);
    CHECK(j->open_count < j->files_max); /* fewer are in use at a time */
    s->file = f;
    j->open_segments[j->open_count++] = s;
    return idle;
}

int file_take(struct journal_file *j, struct segment *s, struct disk_file **out) {
    struct disk_file *f, *surplus = NULL;
    pthread_mutex_lock(&j->lock);
    if (!s->file) {
        pthread_mutex_unlock(&j->lock);
        int rc = open_file(j, s, &f);
        if (rc) return rc;
        pthread_mutex_lock(&j->lock);
        surplus = keep(j, s, f);
    }
    s->file_users++;
    s->file_used = ++j->file_uses;
    *out = s->file;
    pthread_mutex_unlock(&j->lock);
    if (surplus) j->disk->ops->close(j->disk, surplus);
    return 0;
}

void file_give(struct journal_file *j, struct segment *s) {
    pthread_mutex_lock(&j->lock);
    CHECK(s->file_users > 0);
    s->file_users--;
    pthread_mutex_unlock(&j->lock);
}

void file_forget(struct journal_file *j, struct segment *s) {
    pthread_mutex_lock(&j->lock);
    struct disk_file *f = s->file;
    s->file = NULL;
    for (u32 i = 0; f && i < j->open_count; i++)
        if (j->open_segments[i] == s) j->open_segments[i] = j->open_segments[--j->open_count];
    pthread_mutex_unlock(&j->lock);
    if (f) j->disk->ops->close(j->disk, f);
}
