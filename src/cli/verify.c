#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"
#include "journal/file.h"

const struct flag flags_verify[] = {{0}};
const char about_verify[] =
    "Reads every record and explains what a start would find. Run it while no hapaxd has the directory open: nothing\n"
    "is locked or changed. Exit code 1: damaged, or not a data directory.";

static void print_report(struct cli *cli, slice report, bool ok) {
    struct buf b = {0};
    if (cli->json) {
        buf_char(&b, '{');
        json_put_member_bool(&b, "ok", ok);
        json_put_member(&b, "report", utf8_valid(report) ? report : SL(""));
        buf_lit(&b, "}\n");
    } else {
        print_clean(&b, report, true);
    }
    print_buf(&b);
}

int cmd_verify(struct cli *cli) {
    struct disk *disk = NULL;
    struct errbuf err = {0};
    hx_st st = disk_posix_open(args_word(cli, 0), false, &disk, &err);
    if (st != ST_OK) {
        say("%s", err.text);
        return EXIT_REFUSED;
    }
    struct buf report = {0};
    st = journal_file_verify(disk, &report, &err);
    print_report(cli, buf_slice(&report), st == ST_OK);
    if (st != ST_OK) say("%s", err.text);
    buf_free(&report);
    disk_close(disk);
    return st == ST_OK ? EXIT_DONE : EXIT_REFUSED;
}
