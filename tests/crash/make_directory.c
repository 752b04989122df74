/* make_directory DIR SEGMENT_BYTES: an empty data directory whose segments are of that size, smaller than hapaxd would
 * choose, so that a test gets many of them with little data. */
#include <stdio.h>
#include <stdlib.h>

#include "journal/file.h"

int main(int argc, char **argv) {
    struct journal_file_options o = {.manual = true};
    struct errbuf err = {{0}};
    struct journal *j;
    if (argc != 3 || !slice_u64(slice_str(argv[2]), &o.segment_bytes)) {
        fputs("usage: make_directory DIR SEGMENT_BYTES\n", stderr);
        return 2;
    }
    hx_st st = disk_posix_open(argv[1], true, &o.disk, &err);
    if (st == ST_OK) st = journal_file_open(&o, &j, &err);
    if (st == ST_OK) {
        journal_close(j);
        disk_close(o.disk);
        return 0;
    }
    fprintf(stderr, "make_directory: %s\n", err.text);
    return 1;
}
