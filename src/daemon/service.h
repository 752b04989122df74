/* What a service manager is told (systemd's Type=notify and WatchdogSec=): one datagram a change to the socket that NOTIFY_SOCKET
 * names. Nobody asked: nothing is told, and nothing here can fail a broker. */
#ifndef HAPAX_DAEMON_SERVICE_H
#define HAPAX_DAEMON_SERVICE_H

#include "net/loop.h"

struct service;

/* Takes the variables out of the environment: they are meant for this process alone. NULL: nobody wants to hear. */
struct service *service_new(struct loop *loop);
void service_free(struct service *s); /* before the loop. NULL is fine, here and below */

/* It serves, from now on or again. Then the watchdog, if there is one, hears of it for as long as the loop turns. */
void service_ready(struct service *s);
void service_reloading(struct service *s);
void service_stopping(struct service *s);

#endif
