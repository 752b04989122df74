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
static bool is_used(struct disk *disk, struct errbuf *err) {
    i64 holder = 0;
    if (!disk_posix_in_use(disk, &holder)) return false;
    char who[40] = "another process";
    if (holder) snprintf(who, sizeof who, "process %lld", (long long)holder);
    err_set(err, ST_BUSY,
            "%s is in use by %s: what it writes meanwhile would look like damage. Nothing can be said of it while that "
            "runs; stop it first, or look at a copy",
            disk->where, who);
    return true;
}

/* error: why it is not ok, or cannot be told. */
static void print_report(const struct cli *cli, slice report, hx_st st, slice error) {
    struct buf b = {0};
    if (cli->json) {
        buf_char(&b, '{');
        json_put_member_bool(&b, "ok", st == ST_OK);
        json_put_member(&b, "report", utf8_valid(report) ? report : SL(""));
        if (st != ST_OK) json_put_member(&b, "error", utf8_valid(error) ? error : SL(""));
        buf_lit(&b, "}\n");
    } else {
        print_clean(&b, report, true);
    }
    print_buf(&b);
    if (st != ST_OK) say("%.*s", (int)error.n, error.p);
}

static hx_st verify(const char *dir, struct buf *report, struct errbuf *err) {
    struct disk *disk = NULL;
    hx_st st = disk_posix_open(dir, false, &disk, err);
    if (st != ST_OK) return st;
    st = is_used(disk, err) ? ST_BUSY : journal_file_verify(disk, report, err);
    if (st != ST_OK && st != ST_BUSY && is_used(disk, err)) st = ST_BUSY; /* it was started meanwhile */
    if (st == ST_BUSY) buf_reset(report);
    disk_close(disk);
    return st;
}

int cmd_verify(struct cli *cli) {
    struct errbuf err = {0};
    struct buf report = {0};
    hx_st st = verify(args_word(cli, 0), &report, &err);
    print_report(cli, buf_slice(&report), st, slice_str(err.text));
    buf_free(&report);
    return st == ST_OK ? EXIT_DONE : EXIT_REFUSED;
}
