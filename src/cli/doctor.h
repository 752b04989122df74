/* hapax doctor: what is wrong with a broker and its machine, and what to do. doctor.def has all it can find; doctor.c asks the
 * broker, doctor_door.c looks at the way there, doctor_machine.c at the machine. */
#ifndef HAPAX_CLI_DOCTOR_H
#define HAPAX_CLI_DOCTOR_H

#include "cli/cli.h"

#define FINDING(ident, level, runbook, remedy) FOUND_##ident,
enum finding {
#include "cli/doctor.def"
    FINDING_COUNT
};
#undef FINDING

struct doctor;
/* One finding, in words: what is the matter, with figures. */
void doctor_found(struct doctor *d, enum finding what, const char *fmt, ...) PRINTF_LIKE(3, 4);

void doctor_each(struct doctor *d, slice array, void (*look)(struct doctor *d, slice item));

/* How the broker, which has answered, is reached. */
void doctor_door(struct doctor *d, struct cli *cli, slice stats);
/* Is this why it did not answer? Then it is told. */
bool doctor_kept_out(struct doctor *d, const char *url, const hx_error *err);

/* The machine the broker runs on, if that is this one: process `pid`, whose /proc and /sys are under `root` ("": here). */
void doctor_machine(struct doctor *d, const char *root, i64 pid);

#endif
