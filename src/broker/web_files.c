/* The pages' bytes, put into the binary by the assembler: a broker needs no file beside it. Built from the top of the tree. */
#include "broker/web.h"

#define WEB_FILE(ident, dir, name, type)                                                                               \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".global web_" #ident ", web_" #ident "_end\n"                                                             \
            ".hidden web_" #ident ", web_" #ident "_end\n"                                                             \
            "web_" #ident ": .incbin \"" dir name "\"\n"                                                               \
            "web_" #ident "_end: .byte 0\n"                                                                            \
            ".popsection\n");                                                                                          \
    extern __attribute__((visibility("hidden"))) const char web_##ident[], web_##ident##_end[];
#include "broker/web.def"
#undef WEB_FILE

const struct web_file web_files[] = {
#define WEB_FILE(ident, dir, name, type) {name, type, web_##ident, web_##ident##_end},
#include "broker/web.def"
#undef WEB_FILE
    {0},
};
