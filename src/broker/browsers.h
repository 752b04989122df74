/* Browsers. A page of any site may make its visitor's browser send requests to this machine: a form, an image, a fetch. So
 * what a browser says of the page that asks is looked at before anything else, on every path:
 *
 *   Host            the name the browser believes to talk to. A page can give its own name this machine's address (DNS rebinding),
 *                   and is then of the same origin; but it cannot make a browser call that name localhost. A name that is not
 *                   known is turned away. A numeric address cannot be given to anybody else's machine by a page.
 *   Origin          of the page, with everything but plain reads. It is scheme and Host, or the request is turned away.
 *   Sec-Fetch-Site  with reads too, to this machine and over TLS: cross-site and same-site are other origins. Following a link to
 *                   the dashboard is let through: its pages are the same for everybody, and the page with the link sees nothing.
 *
 * Whoever is no browser says none of it but a Host. */
#ifndef HAPAX_BROKER_BROWSERS_H
#define HAPAX_BROKER_BROWSERS_H

#include "net/http.h"

struct broker;
struct browsers;

enum browser_verdict {
    BROWSER_WELCOME,
    BROWSER_MISDIRECTED, /* for a host that is not known here */
    BROWSER_FOREIGN,     /* from a page of another origin */
};

struct browsers *browsers_new(const char *const *addresses, u32 count); /* numeric, where the broker is served */
void browsers_free(struct browsers *w);
void browsers_forget(struct browsers *w); /* another config is in force */
enum browser_verdict browser_verdict(struct broker *b, const struct http_request *req);

#endif
