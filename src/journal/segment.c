#include "journal/file_priv.h"

#include <errno.h>
#include <stdio.h>

#define ZERO_CHUNK (1u << 20)

void segment_name(char out[NAME_BYTES], u64 number) {
    snprintf(out, NAME_BYTES, "journal-%016llx.seg", (unsigned long long)number);
}

bool segment_name_parse(const char *name, u64 *number) {
    slice s = slice_str(name);
    u8 bytes[8];
    if (s.n != 28 || !slice_starts(s, SL("journal-")) || memcmp(s.p + 24, ".seg", 4) != 0) return false;
    if (!hex_decode(slice_of(s.p + 8, 16), bytes, sizeof bytes)) return false;
    u64 n = 0;
    for (size_t i = 0; i < sizeof bytes; i++) n = n << 8 | bytes[i];
    *number = n;
    return true;
}

void spare_name(char out[NAME_BYTES], u32 id) {
    snprintf(out, NAME_BYTES, "spare-%u.seg", id);
}

bool spare_name_parse(const char *name, u32 *id) {
    slice s = slice_str(name);
    u64 n;
    if (s.n < 11 || !slice_starts(s, SL("spare-")) || memcmp(s.p + s.n - 4, ".seg", 4) != 0) return false;
    if (!slice_u64(slice_of(s.p + 6, s.n - 10), &n) || n >= UINT32_MAX) return false;
    *id = (u32)n;
    return true;
}

void segment_add(struct segment_list *list, struct segment *s) {
    if (list->count == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 16;
        list->at = mem_realloc(list->at, list->cap * sizeof(struct segment *));
    }
    CHECK(list->count == 0 || list->at[list->count - 1]->number + 1 == s->number);
    list->at[list->count++] = s;
}

struct segment *segment_find(const struct journal_file *j, u64 number) {
    const struct segment_list *list = &j->segments;
    if (list->count == 0 || number < list->at[0]->number) return NULL;
    u64 index = number - list->at[0]->number;
    return index < list->count ? list->at[index] : NULL;
}

void segment_free(struct journal_file *j, struct segment *s) {
    if (s->map) j->disk->ops->unmap(j->disk, s->map, j->segment_bytes);
    file_forget(j, s);
    mem_free(s->areas);
    mem_free(s);
}

static int write_head(struct journal_file *j, struct disk_file *f, u64 number, u64 salt) {
    u8 head[SEGMENT_HEAD];
    format_segment_put(head, &(struct segment_head){.version = FORMAT_VERSION,
                                                    .number = number,
                                                    .segment_bytes = j->segment_bytes,
                                                    .owner = j->meta.owner,
                                                    .salt = salt});
    int rc = disk_write_all(j->disk, f, head, sizeof head, 0);
    return rc ? rc : j->disk->ops->sync(j->disk, f);
}

int segment_make(struct journal_file *j, const char *from, u64 number, struct segment **out, const char **what) {
    struct disk *d = j->disk;
    struct segment *s = mem_zalloc(sizeof *s);
    struct disk_file *f;
    s->number = number;
    s->end = segment_start(j, number);
    segment_name(s->name, number);
    d->ops->random(d, &s->salt, sizeof s->salt);
    *what = "open";
    int rc = d->ops->open(d, from, DISK_WRITE, &f);
    if (rc == 0) {
        *what = "write and sync the head of";
        rc = write_head(j, f, number, s->salt);
        d->ops->close(d, f);
    }
    if (rc == 0) {
        *what = "rename";
        rc = d->ops->rename(d, from, s->name);
    }
    if (rc == 0) {
        *what = "sync the directory after renaming";
        rc = d->ops->sync_dir(d);
    }
    if (rc) {
        segment_free(j, s);
        return rc;
    }
    *out = s;
    return 0;
}

static int allocate_file(struct journal_file *j, const char *name, struct disk_file **out) {
    struct disk *d = j->disk;
    int rc = d->ops->open(d, name, DISK_CREATE | DISK_WRITE, out);
    if (rc) return rc;
    rc = d->ops->allocate(d, *out, j->segment_bytes);
    if (rc == 0) return 0;
    d->ops->close(d, *out);
    d->ops->unlink(d, name);
    return rc;
}

/* All are allocated before the first is synced: a file system with a journal then writes that once for all of them,
 * and the other syncs have little left to do. */
int spares_make(struct journal_file *j, char (*names)[NAME_BYTES], size_t count, size_t *made) {
    struct disk *d = j->disk;
    struct disk_file *files[SPARES_AT_ONCE];
    size_t n = 0;
    int full = 0, rc = 0;
    CHECK(count <= SPARES_AT_ONCE);
    while (n < count && (full = allocate_file(j, names[n], &files[n])) == 0) n++;
    for (size_t i = 0; i < n; i++) {
        if (rc == 0) rc = d->ops->sync(d, files[i]);
        d->ops->close(d, files[i]);
    }
    if (rc == 0 && n > 0) rc = d->ops->sync_dir(d);
    *made = rc ? 0 : n;
    for (size_t i = *made; i < n; i++) d->ops->unlink(d, names[i]);
    return rc ? rc : full;
}

int spare_confirm(struct journal_file *j, u32 id) {
    struct disk *d = j->disk;
    struct disk_file *f;
    char name[NAME_BYTES];
    spare_name(name, id);
    int rc = d->ops->open(d, name, DISK_WRITE, &f);
    if (rc) return rc;
    rc = d->ops->allocate(d, f, j->segment_bytes);
    if (rc == 0) rc = d->ops->sync(d, f);
    d->ops->close(d, f);
    return rc;
}

int segment_zero(struct journal_file *j, struct disk_file *f, u64 from, u64 to) {
    u8 *zeros = mem_zalloc(ZERO_CHUNK);
    int rc = 0;
    for (; rc == 0 && from < to; from += ZERO_CHUNK)
        rc = disk_write_all(j->disk, f, zeros, to - from < ZERO_CHUNK ? (size_t)(to - from) : ZERO_CHUNK, from);
    mem_free(zeros);
    return rc ? rc : j->disk->ops->sync(j->disk, f);
}

int spare_zero(struct journal_file *j, u32 id, u64 from, u64 to) {
    struct disk *d = j->disk;
    struct disk_file *f;
    char name[NAME_BYTES];
    spare_name(name, id);
    int rc = d->ops->open(d, name, DISK_WRITE, &f);
    if (rc) return rc;
    rc = segment_zero(j, f, from, to);
    d->ops->close(d, f);
    return rc;
}

void spare_add(struct journal_file *j, u32 id, u64 zeroed) {
    if (j->spare_count == j->spare_cap) {
        j->spare_cap = j->spare_cap ? j->spare_cap * 2 : 8;
        j->spares = mem_realloc(j->spares, j->spare_cap * sizeof(struct spare));
    }
    j->spares[j->spare_count++] = (struct spare){.id = id, .zeroed = zeroed};
    if (id >= j->spare_next) j->spare_next = id + 1;
}
