/* A JSON text read in one pass into a flat list of its values.
 *
 * For who looks at one text several times and cannot know beforehand at what: a queue's key template, its schema and
 * its fingerprint all ask about fields of the same payload. The cursor of json.h would walk it anew for each.
 *
 * The whole text is validated, by the same rules as the cursor's: RFC 8259, UTF-8, JSON_DEPTH_MAX, and no member name
 * twice in an object (two readers may disagree on which one counts, so a text with two has no single meaning).
 *
 * Values stand in the order of the text, a container before its contents: the first child of item i is i + 1, its next
 * sibling is at[i].next. Item 0 is the outermost value. What items point to lives in the tape until it reads the next
 * text. A tape is reused from text to text and then allocates nothing, except for objects with many members.
 *
 * Of a text that somebody cut, what came before the cut can be had: values that are whole, and those that were open, as if they
 * ended there. What is missing in one of those is not known to be absent. */
#ifndef HAPAX_BASE_JSON_TAPE_H
#define HAPAX_BASE_JSON_TAPE_H

#include "base/json.h"

struct json_item {
    const char *text; /* a string's is what stands between its quotes */
    const char *name; /* unescaped; NULL if it is no member of an object */
    u32 text_len, name_len;
    u32 name_hash; /* json_name_hash; 0 if it is no member */
    u32 next;      /* the item behind this value and all within it */
    u8 type;       /* enum json_type */
    bool escaped;  /* a string with a backslash in it */
    bool integer;  /* a number without fraction and exponent */
    bool marked;   /* for the tape's user; false after reading */
    /* private */
    u8 depth;
    u8 lead; /* bytes from its name's opening quote to the value; 0: many, or the name is escaped */
};

/* Zero-initialise to start; json_tape_free to end. */
struct json_tape {
    struct json_item *at;
    u32 count, cap;
    /* private: a copy of the text, and a bit for each of its bytes; the copy of the text before */
    char *copy, *former;
    size_t copy_cap, former_cap;
    u64 *stops;
    size_t stops_cap;
    u32 known;         /* items of the text that was read last; 0: it was no JSON */
    const char *error; /* NULL if the text was read, and all of it; else what stopped it, and where */
    size_t error_at;
    struct json_scratch *scratch;
};

bool json_tape_read(struct json_tape *t, slice text);
/* The same of the beginning of a text. True, too, if nothing but its end keeps it from being JSON; t->error then says so. */
bool json_tape_read_cut(struct json_tape *t, slice text);
void json_tape_free(struct json_tape *t);

static inline slice json_item_text(const struct json_item *item) {
    return slice_of(item->text, item->text_len);
}
static inline slice json_item_name(const struct json_item *item) {
    return slice_of(item->name, item->name_len);
}

/* The member of an object, or the element of an array; 0 if there is none. */
u32 json_tape_member(const struct json_tape *t, u32 object, slice name, u32 hash);
u32 json_tape_element(const struct json_tape *t, u32 array, u32 index);

/* Appends a string's characters. */
void json_item_string(const struct json_item *item, struct buf *out);

/* Tells most names apart by their length, their first and their last eight bytes. Not keyed: equal hashes prove
 * nothing, and whoever writes the text can make them at will, so nothing may get slow when they are. Never 0. */
u32 json_name_hash(slice name);

#endif
