#include <stdio.h>

#include "base/json.h"
#include "cli/cli.h"
#include "journal/file.h"

const struct flag flags_verify[] = {{0}};
const char about_verify[] =
    "Reads every record and explains what a start would find; nothing is changed. A directory that a hapaxd has open "
    "is\n"
    "not looked at: stop it, or look at a copy. Exit code 1: damaged, in use, or not a data directory.";

/* What a broker writes and drops while it is being read looks like damage, and damage is answered with an old backup. */
static bool say_if_used(struct disk *disk) {
    i64 holder = 0;
    if (!disk_posix_in_use(disk, &holder)) return false;
    char who[40] = "another process";
    if (holder) snprintf(who, sizeof who, "process %lld", (long long)holder);
    say("%s is in use by %s: what it writes meanwhile would look like damage. Nothing can be said of it while that "
        "runs; "
        "stop it first, or look at a copy",
        disk->where, who);
    return true;
}

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
    st = say_if_used(disk) ? ST_BUSY : journal_file_verify(disk, &report, &err);
    if (st != ST_OK && st != ST_BUSY && say_if_used(disk)) st = ST_BUSY; /* it was started meanwhile */
    if (st != ST_BUSY) print_report(cli, buf_slice(&report), st == ST_OK);
    if (st != ST_OK && st != ST_BUSY) say("%s", err.text);
    buf_free(&report);
    disk_close(disk);
    return st == ST_OK ? EXIT_DONE : EXIT_REFUSED;
}
