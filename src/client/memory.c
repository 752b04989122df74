#include "client/client_priv.h"

hx_bytes arena_bytes(struct arena *a, slice s) {
    return hx_bytes_of(arena_string(a, s), s.n);
}
