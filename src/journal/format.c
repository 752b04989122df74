#include "journal/format.h"

static const u8 meta_magic[8] = "HAPAXDIR";
static const u8 mark_magic[8] = "HAPAXMRK";
static const u8 segment_magic[8] = "HAPAXSEG";
#define BATCH_MAGIC 0x6863746162786168u /* "haxbatch" */

/* Meta and segment heads are recognised across versions by magic, version and checksum, whose places never change:
 * magic at 0, version at 8, checksum in the last four bytes. */
static void seal_block(u8 *out, size_t bytes) {
    put_u32(out + bytes - 4, crc32c(0, out, bytes - 4));
}

static bool block_ok(const u8 *in, size_t bytes, const u8 magic[8]) {
    return memcmp(in, magic, 8) == 0 && get_u32(in + bytes - 4) == crc32c(0, in, bytes - 4);
}

void format_meta_put(u8 out[META_BYTES], const struct meta *m) {
    memset(out, 0, META_BYTES);
    memcpy(out, meta_magic, 8);
    put_u32(out + 8, m->version);
    put_u64(out + 16, m->segment_bytes);
    put_u64(out + 24, m->owner);
    memcpy(out + 32, m->secret, sizeof m->secret);
    put_u64(out + 64, (u64)m->created_ms);
    seal_block(out, META_BYTES);
}

bool format_meta_get(const u8 in[META_BYTES], struct meta *m) {
    if (!block_ok(in, META_BYTES, meta_magic)) return false;
    m->version = get_u32(in + 8);
    m->segment_bytes = get_u64(in + 16);
    m->owner = get_u64(in + 24);
    memcpy(m->secret, in + 32, sizeof m->secret);
    m->created_ms = (i64)get_u64(in + 64);
    return true;
}

void format_mark_put(u8 out[MARK_BYTES], const struct mark *m, u64 owner) {
    memset(out, 0, MARK_BYTES);
    memcpy(out, mark_magic, 8);
    put_u64(out + 8, owner);
    put_u64(out + 16, m->sequence);
    put_u64(out + 24, m->durable);
    put_u64(out + 32, m->first);
    put_u64(out + 40, m->prepared);
    put_u32(out + 48, m->clean);
    seal_block(out, MARK_BYTES);
}

bool format_mark_get(const u8 in[MARK_BYTES], struct mark *m, u64 owner) {
    if (!block_ok(in, MARK_BYTES, mark_magic) || get_u64(in + 8) != owner) return false;
    m->sequence = get_u64(in + 16);
    m->durable = get_u64(in + 24);
    m->first = get_u64(in + 32);
    m->prepared = get_u64(in + 40);
    m->clean = get_u32(in + 48) != 0;
    return true;
}

void format_segment_put(u8 out[SEGMENT_HEAD], const struct segment_head *h) {
    memset(out, 0, SEGMENT_HEAD);
    memcpy(out, segment_magic, 8);
    put_u32(out + 8, h->version);
    put_u64(out + 16, h->number);
    put_u64(out + 24, h->segment_bytes);
    put_u64(out + 32, h->owner);
    put_u64(out + 40, h->salt);
    seal_block(out, SEGMENT_HEAD);
}

bool format_segment_get(const u8 in[SEGMENT_HEAD], struct segment_head *h) {
    if (!block_ok(in, SEGMENT_HEAD, segment_magic)) return false;
    h->version = get_u32(in + 8);
    h->number = get_u64(in + 16);
    h->segment_bytes = get_u64(in + 24);
    h->owner = get_u64(in + 32);
    h->salt = get_u64(in + 40);
    return true;
}

static u32 place_seed(u64 salt, u64 pos) {
    u64 place[2] = {salt, pos};
    return crc32c(0, place, sizeof place);
}

u64 format_batch_magic(u64 salt) {
    return salt ^ BATCH_MAGIC;
}

void format_batch_put(u8 out[BATCH_HEAD], const struct batch_head *h, u64 salt) {
    put_u64(out, format_batch_magic(salt));
    put_u32(out + 12, h->records);
    put_u64(out + 16, h->number);
    put_u64(out + 24, h->pos);
    put_u64(out + 32, h->length);
    put_u64(out + 40, h->durable);
    put_u64(out + 48, h->prev_end);
    put_u64(out + 56, 0);
    put_u32(out + 8, crc32c(place_seed(salt, h->pos), out + 12, BATCH_HEAD - 12));
}

bool format_batch_get(const u8 in[BATCH_HEAD], struct batch_head *h, u64 salt, u64 pos) {
    if (get_u64(in) != format_batch_magic(salt)) return false;
    if (get_u32(in + 8) != crc32c(place_seed(salt, pos), in + 12, BATCH_HEAD - 12)) return false;
    h->records = get_u32(in + 12);
    h->number = get_u64(in + 16);
    h->pos = get_u64(in + 24);
    h->length = get_u64(in + 32);
    h->durable = get_u64(in + 40);
    h->prev_end = get_u64(in + 48);
    return h->pos == pos && h->length >= BATCH_HEAD && h->length % 8 == 0 && h->prev_end <= pos && h->durable <= pos;
}

void format_record_put(u8 *record, u8 type, u8 version, size_t body, u64 pos) {
    put_u32(record, 0);
    put_u32(record + 4, (u32)body);
    record[8] = type;
    record[9] = version;
    put_u16(record + 10, 0);
    put_u32(record + 12, (u32)pos);
    memset(record + RECORD_HEAD + body, 0, format_record_bytes(body) - RECORD_HEAD - body);
}

static u32 record_sum(const u8 *record, size_t bytes, u64 salt, u64 pos) {
    return crc32c(place_seed(salt, pos), record + 4, bytes - 4);
}

void format_record_seal(u8 *record, u64 salt, u64 pos) {
    put_u32(record, record_sum(record, format_record_bytes(format_record_body(record)), salt, pos));
}

size_t format_record_check(const u8 *record, size_t room, u64 salt, u64 pos) {
    if (room < RECORD_HEAD || get_u32(record + 12) != (u32)pos) return 0;
    size_t bytes = format_record_bytes(format_record_body(record));
    if (bytes > room || get_u32(record) != record_sum(record, bytes, salt, pos)) return 0;
    return bytes;
}

void format_record_view(const u8 *record, u64 pos, struct journal_record *out) {
    *out = (struct journal_record){
        .pos = pos,
        .type = record[8],
        .version = record[9],
        .body = slice_of(record + RECORD_HEAD, format_record_body(record)),
    };
}

bool format_batch_check(const u8 *bytes, const struct batch_head *h, u64 salt) {
    size_t at = BATCH_HEAD;
    u32 records = 0;
    while (at < h->length) {
        size_t n = format_record_check(bytes + at, (size_t)h->length - at, salt, h->pos + at);
        if (n == 0) return false;
        at += n;
        records++;
    }
    return records == h->records;
}

void format_batch_move(u8 *bytes, const struct batch_head *h, u64 to) {
    for (size_t at = BATCH_HEAD; at < h->length;) {
        put_u32(bytes + at + 12, (u32)(to + at));
        at += format_record_bytes(format_record_body(bytes + at));
    }
}
