/* What a database must do to carry a gate. gate.c has checked the arguments, the transaction and the schema's version
 * before it calls; a driver has libhapax_<name> to itself and shares only this header and what hides in every library. */
#ifndef HAPAX_CLIENT_GATE_PRIV_H
#define HAPAX_CLIENT_GATE_PRIV_H

#include "client/client_priv.h"
#include "hapax/gate.h"

enum { GATE_SCHEMA_VERSION = 2 };
enum { GATE_ORPHANS_MAX = 10000 }; /* of one hx_gate_stranded */

enum gate_state { GATE_IDLE, GATE_OPEN, GATE_ABORTED, GATE_IN_USE, GATE_LOST };

struct gate_driver {
    enum gate_state (*state)(hx_gate *gate); /* of the connection; asks nobody */
    hx_status (*check_version)(hx_gate *gate, hx_error *err);
    hx_status (*begin)(hx_gate *gate, hx_error *err);
    hx_status (*commit)(hx_gate *gate, hx_error *err);
    void (*rollback)(hx_gate *gate);
    /* lease_ms 0: claim. The reply is zeroed but for its memory, an arena. */
    hx_status (*admit)(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err);
    hx_status (*settle)(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_gate_answer *out,
                        hx_error *err);
    hx_status (*release)(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err);
    /* result NULL: only ask. */
    hx_status (*step)(hx_gate *gate, const hx_gate_key *key, const char *name, const hx_bytes *result,
                      hx_gate_reply *out, hx_error *err);
    /* begin and admit, settle and commit, each in one round trip. NULL: two calls are as good. What such an admit does not
     * say of a duplicate, whether it was rejected, end_duplicate adds while it commits (keep) or rolls back. */
    hx_status (*begin_admit)(hx_gate *gate, const hx_gate_key *key, i64 lease_ms, hx_gate_reply *out, hx_error *err);
    hx_status (*settle_commit)(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_error *err);
    hx_status (*end_duplicate)(hx_gate *gate, const hx_gate_key *key, bool keep, hx_gate_reply *out, hx_error *err);
    /* Appends hx_gate_orphan to `list`, GATE_ORPHANS_MAX at most; their strings go to the arena. lapsed: only those whose
     * lease has ended. */
    hx_status (*stranded)(hx_gate *gate, i64 older_than_ms, bool lapsed, struct arena *a, struct buf *list,
                          hx_error *err);
    hx_status (*sweep)(hx_gate *gate, int batch, i64 *dropped, hx_error *err);
    void (*free)(hx_gate *gate);
};

/* A driver's gate begins with this. */
struct hx_gate {
    u32 magic; /* GATE_MAGIC: whatever else comes in as a gate is a bug of the caller's, and ends here */
    bool version_checked;
    const struct gate_driver *driver;
};

enum { GATE_MAGIC = 0x48784774 };

static inline void gate_init(hx_gate *gate, const struct gate_driver *driver) {
    *gate = (hx_gate){.magic = GATE_MAGIC, .driver = driver};
}

/* ---- gate.c, for gate_run.c */

hx_status gate_idle(hx_gate *gate, hx_error *err); /* refuses an open transaction */
hx_status gate_begin_admit(hx_gate *gate, const hx_gate_key *key, bool two_phase, hx_gate_reply *out, hx_error *err);
/* The end of what gate_begin_admit began, if its answer was DUPLICATE; only then is the reply whole. keep: COMMIT. */
hx_status gate_end_duplicate(hx_gate *gate, const hx_gate_key *key, bool keep, hx_gate_reply *out, hx_error *err);
/* The outcome of a claim of this very transaction, and its COMMIT. */
hx_status gate_settle_commit(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome, hx_error *err);
hx_status gate_stranded(hx_gate *gate, i64 older_than_ms, bool lapsed, hx_gate_orphans *out, hx_error *err);

/* ---- gate_consume.c, for the consumer */

/* The message's work behind options->gate, and what to tell the broker. *err is set if something went wrong. */
hx_verdict gate_handle(const hx_consume_options *options, int worker, hx_message *m, hx_error *err);
/* What a handler has said so far; lives as long as the message. In consume.c. */
void message_outcome(const hx_message *m, hx_gate_outcome *out);

#endif
