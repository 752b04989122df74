/* Every test of the server under load, with TLS between it and its clients. */
#define OVER_TLS
#include "unit/http_load_test.c"
