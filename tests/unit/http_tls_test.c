/* Every test of the server, with TLS between it and its clients. */
#define OVER_TLS
#include "unit/http_server_test.c"
