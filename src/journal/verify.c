#include "journal/file_priv.h"

struct tally {
    u64 records, bytes;
    u64 last;
};

static hx_st count(void *ctx, const struct journal_record *rec, struct errbuf *err) {
    (void)err;
    struct tally *t = ctx;
    t->records++;
    t->bytes += rec->body.n;
    t->last = rec->pos;
    return ST_OK;
}

static void place(struct buf *b, const struct journal_file *j, u64 pos) {
    char name[NAME_BYTES];
    segment_name(name, segment_of(j, pos));
    buf_printf(b, "%s offset %llu", name, (unsigned long long)offset_of(j, pos));
}

static void report_files(struct buf *b, const struct journal_file *j) {
    buf_printf(b, "directory   %s\n", j->disk->where);
    buf_lit(b, "created     ");
    buf_rfc3339(b, j->meta.created_ms);
    buf_printf(b, ", format %u\n", j->meta.version);
    buf_printf(b, "segments    %zu of %llu bytes, numbers %llu to %llu; %zu spare\n", j->segments.count,
               (unsigned long long)j->segment_bytes, (unsigned long long)j->segments.at[0]->number,
               (unsigned long long)j->segments.at[j->segments.count - 1]->number, j->spare_count);
    buf_lit(b, "mark        durable up to ");
    place(b, j, j->mark.durable);
    buf_printf(b, ", segments %llu to %llu, %s\n", (unsigned long long)j->mark.first,
               (unsigned long long)j->mark.prepared, j->mark.clean ? "closed cleanly" : "running or ended by a crash");
}

static void report_segments(struct buf *b, const struct journal_file *j) {
    for (size_t i = 0; i < j->segments.count; i++) {
        const struct segment *s = j->segments.at[i];
        u64 used = s->end - segment_start(j, s->number);
        buf_printf(b, "  %s  ", s->name);
        if (s->linked)
            buf_printf(b, "batches from %llu on, %llu bytes\n", (unsigned long long)s->first.number,
                       (unsigned long long)used);
        else if (j->found.last && s->number < j->found.last->number)
            buf_lit(b, "superseded: rewritten by a later start\n");
        else
            buf_lit(b, "prepared, empty\n");
    }
}

static void report_end(struct buf *b, const struct journal_file *j) {
    buf_lit(b, "end         ");
    place(b, j, j->found.end);
    buf_printf(b, ", last batch %llu\n", (unsigned long long)(j->found.next_number - 1));
    if (j->found.torn_bytes)
        buf_printf(b,
                   "torn tail   %llu bytes of an unfinished batch behind the end; the next start cuts them. They were "
                   "never acknowledged.\n",
                   (unsigned long long)j->found.torn_bytes);
    if (!j->found.clean)
        buf_lit(
            b,
            "note        not closed cleanly: the next start goes on in a fresh segment if the disk has room for one\n");
}

static hx_st explain(struct buf *b, hx_st st, const struct errbuf *err) {
    const char *meaning = "";
    if (st == ST_DAMAGED)
        meaning =
            "Bytes that were once durable are missing or altered: a failing disk, a copy or restore of part of the "
            "directory, or a hand in it.\nNothing was changed. Restore the directory as a whole from a backup, or "
            "take a copy before any repair.\n";
    if (st == ST_VERSION) meaning = "Use the version that wrote this directory, or a later one.\n";
    if (st == ST_IO) meaning = "The disk did not hand out its bytes; see the kernel's log.\n";
    buf_printf(b, "%s     %s\n%s", st == ST_DAMAGED ? "DAMAGE " : "REFUSED", err->text, meaning);
    return st;
}

hx_st journal_file_verify(struct disk *disk, struct buf *report, struct errbuf *err) {
    struct errbuf local = {0};
    struct errbuf *e = err ? err : &local;
    struct journal *port;
    struct journal_file_options options = {.disk = disk, .manual = true, .read_only = true};
    hx_st st = journal_file_open(&options, &port, e);
    if (st != ST_OK) return explain(report, st, e);
    struct journal_file *j = jf(port);
    struct tally t = {0};
    report_files(report, j);
    report_segments(report, j);
    st = journal_replay(port, count, &t, e);
    buf_printf(report, "records     %llu in %llu batches, %llu bytes of bodies\n", (unsigned long long)t.records,
               (unsigned long long)j->found.replayed_batches, (unsigned long long)t.bytes);
    if (st == ST_OK) {
        report_end(report, j);
        buf_lit(report, "ok          nothing is damaged\n");
    } else {
        explain(report, st, e);
    }
    journal_close(port);
    return st;
}
