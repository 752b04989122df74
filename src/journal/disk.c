#include "journal/disk.h"

#include <errno.h>

int disk_write_all(struct disk *d, struct disk_file *f, const void *p, size_t n, u64 offset) {
    const char *from = p;
    while (n > 0) {
        i64 done = d->ops->pwrite(d, f, from, n, offset);
        if (done < 0) return (int)done;
        if (done == 0) return -EIO;
        from += done;
        offset += (u64)done;
        n -= (size_t)done;
    }
    return 0;
}

static hx_st status_of(int error) {
    switch (-error) {
    case EACCES:
    case EPERM:
    case EROFS:
        return ST_DENIED;
    case ENOSPC:
    case EDQUOT:
        return ST_NO_SPACE;
    case ENOENT:
        return ST_NOT_FOUND;
    case EWOULDBLOCK:
        return ST_BUSY;
    default:
        return ST_IO;
    }
}

hx_st disk_error(struct errbuf *err, const struct disk *d, int error, const char *what, const char *name) {
    return err_set(err, status_of(error), "cannot %s %s/%s: %s", what, d->where, name, strerror(-error));
}

bool disk_is_full(int error) {
    return error == -ENOSPC || error == -EDQUOT || error == -EMFILE || error == -ENFILE || error == -ENOMEM;
}
