/* Rights: what a token, or a call without one, may do. A grant is a right on every queue (`observe`), or on those whose names fit
 * a pattern (`send:payments`, `operate:shop.*`), in which `*` stands for any characters, none too. */
#ifndef HAPAX_CONFIG_RIGHTS_H
#define HAPAX_CONFIG_RIGHTS_H

#include "base/base.h"

#define RIGHT_LIST(X)                                                                                                  \
    X(SEND, "send")                                                                                                    \
    X(RECEIVE, "receive")                                                                                              \
    X(RESULT, "result")                                                                                                \
    X(OPERATE, "operate")                                                                                              \
    X(OBSERVE, "observe")                                                                                              \
    X(ADMIN, "admin")
#define RIGHT_ENUM(name, text) RIGHT_##name,
enum right { RIGHT_OPEN, /* nobody is asked for one */ RIGHT_LIST(RIGHT_ENUM) RIGHT_COUNT };
#undef RIGHT_ENUM

const char *right_text(enum right r);
static inline u8 right_bit(enum right r) {
    return (u8)(1u << r);
}
#define RIGHTS_ALL ((u8)((1u << RIGHT_COUNT) - 1))
/* What comes with a right: who decides about messages must see them, and an administrator may do everything. */
u8 right_implies(enum right r); /* bits, its own among them */

/* In time proportional to the product of both lengths at worst, and to their sum as patterns are written. */
bool grant_fits(slice pattern, slice queue);

#endif
