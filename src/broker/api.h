/* The handlers of all routes, each in the file named for its routes (api_*.c). */
#ifndef HAPAX_BROKER_API_H
#define HAPAX_BROKER_API_H

struct call;

#define ROUTE(method, path, handler, right, params, body_max) void handler(struct call *c);
#include "broker/route.def"
#undef ROUTE

#endif
