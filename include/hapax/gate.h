/* The gate: a key takes effect once, in the user's own database. The row that says "done" and the business write it
 * speaks of commit in one transaction. docs/GATE.md is the guide; this header is the reference.
 *
 *     hx_gate *gate = hx_gate_pq(conn);                    or hx_gate_sqlite(db)
 *     hx_gate_key key = {.scope = "payments", .key = "capture:pi_42"};
 *     hx_gate_reply told;
 *     hx_gate_begin(gate, &err);
 *     hx_gate_claim(gate, &key, &told, &err);
 *     if (told.answer == HX_GATE_NEW) {
 *         PQexec(conn, "UPDATE account SET cents = cents + 500 WHERE id = 1");
 *         hx_gate_commit_outcome(gate, &key, &(hx_gate_outcome){.result = hx_str("captured")}, NULL, &err);
 *     }
 *     hx_gate_commit(gate, &err);                          a duplicate is committed too: that counts it
 *
 * (every call returns an hx_status, left out here; hx_gate_run does all of this and checks it.)
 *
 * A gate is a thin cover over the caller's connection: it opens none, starts no thread, keeps nothing of a key in
 * memory. Whose transaction it is does not matter: hx_gate_begin's, or one the caller began by other means. Drivers are
 * libraries of their own, so that nobody links a database he does not use:
 *
 *     libhapax_pq      hx_gate_pq, on libpq; needs sql/postgres/hapax_gate.sql in the database      pkg-config hapax-pq
 *     libhapax_sqlite  hx_gate_sqlite, on SQLite 3.35 or later; hx_gate_sqlite_install              pkg-config hapax-sqlite
 * (libpq of PostgreSQL 14 or later; the server may be 13.)
 *
 * Both answer alike: one suite of tests runs on both. They differ where the databases do:
 *
 *                     PostgreSQL                                   SQLite
 *   a rival at work   claim waits for its end (lock_timeout)       begin waits for any writer (busy_timeout)
 *   after an error    the transaction is aborted: only rollback    HX_FENCED, HX_NOT_FOUND, HX_SETTLED: the gate has
 *   of the database   is left                                      rolled it back, so that it cannot be committed;
 *                                                                  else: the call left no trace, the transaction is open
 *   clock             the server's clock_timestamp()               this machine's wall clock, taken under the write lock
 *   who is "this      the transaction's number                     the gate: use one gate per connection
 *    transaction"
 *   windows           hapax.scope(scope, keep)                     hapax_scope(scope, keep_ms)
 *   to look at        views hapax.keys, hapax.signals              views hapax_keys, hapax_signals
 *
 * Threads: a gate belongs to its connection; whatever may use that at a time may use the gate. hx_gate_expect and the
 * ..._free functions may be called from anywhere.
 *
 * Status. HX_OK: the database answered, see `answer`. Otherwise err->applied is what counts, and err->code is the
 * SQLSTATE ("40001"), SQLite's code ("sqlite_busy") or the gate's own word ("no_transaction"):
 *
 *   status          applied  meaning, and what to do
 *   HX_INVALID      no       an argument is missing, empty, too long or out of range. The database was not asked, the
 *                            transaction is as it was
 *   HX_FENCED       no       a higher fence or a later attempt was seen for this key: another consumer has the work. Roll
 *                            back, stop
 *   HX_NOT_FOUND    no       no such claim: never made, rolled back, released, past its window. Roll back
 *   HX_SETTLED      no       a step of a key that is settled. Roll back
 *   HX_CONFLICT     no       hx_gate_expect: more rows than one. Roll back
 *   HX_BUSY         no       lost a race, a deadlock, or waited too long (40001, 40P01, 55P03, SQLITE_BUSY). Roll back
 *                            and run the transaction again
 *   HX_UNAVAILABLE  no       this database cannot serve: gate not installed, another version, rights missing
 *   HX_REFUSED      no       anything else the database says; "no_transaction" and "in_transaction" for a call outside
 *                            or inside one, "25P02" for one that was aborted before
 *   HX_UNREACHABLE  no       the connection is gone, and the open transaction with it
 *   HX_UNKNOWN      unknown  the connection (or SQLite's disk) failed during COMMIT, or during a call that is a
 *                            transaction of its own. Nobody can say. Reconnect, claim again: the answer tells
 *
 * After HX_UNREACHABLE or HX_UNKNOWN reconnect (PQreset keeps the gate valid; a new connection needs a new gate).
 */
#ifndef HAPAX_GATE_H
#define HAPAX_GATE_H

#include <hapax/hapax.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hx_gate hx_gate;

struct pg_conn; /* libpq's PGconn */
struct sqlite3;

/* A gate over the caller's connection, which must outlive it. Nothing is sent; the first call asks for the schema's
 * version. Never NULL. hx_gate_free it before the connection is closed. PostgreSQL: client_encoding must be UTF8. */
HX_API hx_gate *hx_gate_pq(struct pg_conn *conn);
/* The same with named prepared statements, which spares the server parsing and planning at each call. Not behind a pooler
 * in transaction mode, unless it carries prepared statements along. They live until the connection ends. */
HX_API hx_gate *hx_gate_pq_named(struct pg_conn *conn);
HX_API hx_gate *hx_gate_sqlite(struct sqlite3 *db);
HX_API void hx_gate_free(hx_gate *gate); /* leaves connection and transaction alone. NULL is fine */

/* Make the tables and views hapax_* in the main database if they are not there, or bring those of an older version to this
 * one, keys and all; user_version is not touched. In the caller's transaction if one is open, else in its own. Also
 * HX_UNAVAILABLE: a newer version is there. */
HX_API hx_status hx_gate_sqlite_install(struct sqlite3 *db, hx_error *err);

/* ---- answers */

#define HX_GATE_ANSWER_MAP(X)                                                                                          \
    X(NONE, "")                                                                                                        \
    X(CONFLICT, "conflict")   /* the key was used with another fingerprint: not a duplicate, show it to somebody */    \
    X(DUPLICATE, "duplicate") /* settled: the reply has the stored result */                                           \
    X(STALE, "stale")         /* a higher fence was seen: another consumer has the work */                             \
    X(IN_FLIGHT, "in_flight") /* somebody's reservation, within its lease: come back later */                          \
    X(UNKNOWN, "unknown")     /* an abandoned reservation, yours now: look the effect up before doing anything */      \
    X(NEW, "new")             /* the work is yours */                                                                  \
    X(COMMITTED, "committed") /* hx_gate_commit_outcome: stored */                                                     \
    X(RELEASED, "released")   /* hx_gate_release: the next claimant gets NEW */                                        \
    X(APPLIED, "applied")     /* hx_gate_expect: the conditional update hit its row */                                 \
    X(ALREADY, "already")     /* hx_gate_expect: it had been done before */

#define HX_GATE_ANSWER_ENUM(name, text) HX_GATE_##name,
typedef enum hx_gate_answer { HX_GATE_ANSWER_MAP(HX_GATE_ANSWER_ENUM) } hx_gate_answer;
#undef HX_GATE_ANSWER_ENUM

HX_API const char *hx_gate_answer_text(hx_gate_answer answer); /* "duplicate"; never NULL */

/* ---- the four steps, one call each. Zero-initialise what you pass; it is only used during the call. */

/* Whose effect, and who asks. */
typedef struct hx_gate_key {
    const char *scope;    /* required, 1-255 characters */
    const char *key;      /* required, 1-255 characters: the business intent, never a message id */
    hx_bytes fingerprint; /* of what must not differ between copies; data == NULL: not compared */
    int64_t fence;        /* grows with each delivery (hx_message.fence); 0: none. Give it to every call or to none */
    const char *owner; /* this attempt's name; NULL: none. Same owner and fence again within the lease: itself again */
    int64_t lease_ms;  /* of a reservation; 0: two minutes, ten years at most */
    int attempt; /* for commit_outcome, release and step: the reply's, 0: any. Where there is no fence it is what keeps one
                  * who was slow from settling or releasing what another has taken over since. hx_gate_run sees to it */
} hx_gate_key;

/* What claim and reserve say. Everything in it lives until hx_gate_reply_free. */
typedef struct hx_gate_reply {
    hx_gate_answer answer;
    bool rejected; /* a duplicate that was settled as a business refusal */
    hx_bytes result;
    const char *content_type; /* NULL: none */
    int64_t first_seen_ms;
    int attempt;
    void *memory; /* private */
} hx_gate_reply;

HX_API void hx_gate_reply_free(hx_gate_reply *reply);

/* The one-transaction form: needs an open transaction, whose COMMIT makes the key done and whose rollback leaves no
 * trace. NEW again if asked again in it, until hx_gate_commit_outcome. UNKNOWN: an abandoned reservation was there. */
HX_API hx_status hx_gate_claim(hx_gate *gate, const hx_gate_key *key, hx_gate_reply *out, hx_error *err);

/* The two-phase form, for effects outside the database: must be committed before the effect begins. Outside a
 * transaction the call is one of its own (then HX_UNKNOWN is possible; the same owner and fence may ask again). */
HX_API hx_status hx_gate_reserve(hx_gate *gate, const hx_gate_key *key, hx_gate_reply *out, hx_error *err);

typedef struct hx_gate_outcome {
    hx_bytes result;          /* data == NULL: none */
    const char *content_type; /* NULL: none */
    const char *effect_id;    /* its name downstream, or NULL. Two for one key are how doubled effects are seen */
    bool rejected;            /* a business refusal, settled as such */
} hx_gate_outcome;

/* Store the outcome, in the transaction of the business write. COMMITTED; or DUPLICATE: it was settled before, so roll
 * the business write back. outcome NULL: done, without a result. HX_FENCED, HX_NOT_FOUND: nothing may be committed. */
HX_API hx_status hx_gate_commit_outcome(hx_gate *gate, const hx_gate_key *key, const hx_gate_outcome *outcome,
                                        hx_gate_answer *out, hx_error *err);

/* The effect certainly did not happen. RELEASED, or DUPLICATE: it is settled and stays so. The highest fence stays. */
HX_API hx_status hx_gate_release(hx_gate *gate, const hx_gate_key *key, hx_gate_answer *out, hx_error *err);

/* Record a finished step (1-128 characters) of a claimed key, in the transaction of its write, which must be open:
 * NEW; or DUPLICATE with the result recorded before. */
HX_API hx_status hx_gate_step(hx_gate *gate, const hx_gate_key *key, const char *name, hx_bytes result,
                              hx_gate_reply *out, hx_error *err);

/* Has it been recorded? As hx_gate_step, but nothing is written: NEW, it has not; or DUPLICATE with what was. Ask, do the
 * step, record it, in one transaction: no rival's step comes between. */
HX_API hx_status hx_gate_step_ask(hx_gate *gate, const hx_gate_key *key, const char *name, hx_gate_reply *out,
                                  hx_error *err);

/* After a conditional update: 1 row APPLIED, 0 ALREADY, more HX_CONFLICT. Asks no database. */
HX_API hx_status hx_gate_expect(int64_t rows, hx_gate_answer *out, hx_error *err);

/* BEGIN (SQLite: BEGIN IMMEDIATE), at the connection's isolation level. */
HX_API hx_status hx_gate_begin(hx_gate *gate, hx_error *err);
/* HX_OK: committed. HX_UNKNOWN: see above. HX_REFUSED with code 25P02: it had been aborted, nothing was applied.
 * SQLite's HX_BUSY (a reader in the way, without WAL) leaves it open: commit again or roll back. */
HX_API hx_status hx_gate_commit(hx_gate *gate, hx_error *err);
HX_API void hx_gate_rollback(hx_gate *gate); /* what is not open, or lost, needs none */

/* ---- the common case in one call */

/* What the functions below made of it. */
typedef enum hx_gate_verdict {
    HX_GATE_DO,     /* it is done (lookup: it was found): settle it */
    HX_GATE_REJECT, /* a business refusal: settle it as rejected */
    HX_GATE_UNDO,   /* it certainly did not happen (lookup: it is not there): roll back, or release */
    HX_GATE_AGAIN,  /* record only: a statement failed with 40001 or the like: roll back and run it again */
    HX_GATE_LEAVE   /* effect and lookup only: not known. The reservation stays */
} hx_gate_verdict;

/* What a function is told. Read-only, lives during the call. */
typedef struct hx_gate_turn {
    hx_gate *gate;
    const hx_gate_key *key;
    int attempt;
    hx_gate_outcome outcome; /* as far as it is known: record sees what effect or lookup has set */
    struct hx_gate_turn_private *priv;
} hx_gate_turn;

typedef hx_gate_verdict (*hx_gate_fn)(void *ctx, hx_gate_turn *turn);

/* For those functions. Copied; the last call wins. */
HX_API void hx_gate_set_result(hx_gate_turn *turn, hx_bytes result, const char *content_type);
HX_API void hx_gate_set_effect_id(hx_gate_turn *turn, const char *effect_id);

typedef struct hx_gate_work {
    hx_gate_fn
        record; /* the business write, in the transaction. It neither commits, rolls back nor settles (if it does:
                        * HX_REFUSED, applied unknown). May be NULL in the two-phase form */
    hx_gate_fn effect; /* NULL: the one-transaction form. Else called outside any transaction, after the reservation
                        * was committed and before record: the call to the world. What it refuses (HX_GATE_REJECT) is
                        * settled without record */
    hx_gate_fn lookup; /* asks the world for the effect of an abandoned attempt, outside any transaction. NULL: as if it
                        * said HX_GATE_LEAVE */
    void *ctx;         /* for all three */
    int tries_max;     /* runs of one transaction that meet HX_BUSY or say HX_GATE_AGAIN, default 10 */
} hx_gate_work;

/* One-transaction form: begin, claim, record, store the outcome if one was set, commit. Two-phase form: begin, reserve,
 * commit, effect, then begin, record, store the outcome, commit. An UNKNOWN reservation, in either form, is looked up
 * first: found, it is recorded and settled; absent, it is released and the work done.
 *
 * Needs a connection without an open transaction (HX_REFUSED "in_transaction" otherwise, and it is left as it is) and
 * leaves it so. HX_OK with out->answer:
 *   NEW         done now and committed; out has the result that was set
 *   DUPLICATE   done before; out has the stored result
 *   RELEASED    a function said HX_GATE_UNDO: nothing happened, the next claimant gets NEW
 *   UNKNOWN     not known: HX_GATE_LEAVE, or HX_GATE_UNDO by record after the effect had happened. The reservation stays
 *   CONFLICT, STALE, IN_FLIGHT   as above; nothing happened
 * Otherwise err->applied: NO, nothing happened; UNKNOWN, the commit may have been done, or the effect has happened and
 * is not settled. One-transaction form: call it again. Two-phase form: call it again with a higher fence, or later with
 * another owner, so that it is looked up: the same owner and fence within the lease is taken for itself before its call.
 * HX_FENCED: another has taken the reservation over meanwhile, and does what is left. HX_BUSY only after tries_max. */
HX_API hx_status hx_gate_run(hx_gate *gate, const hx_gate_key *key, const hx_gate_work *work, hx_gate_reply *out,
                             hx_error *err);

/* ---- reservations nobody came back for */

typedef struct hx_gate_orphan {
    const char *scope, *key;
    const char *owner; /* NULL: none */
    int attempt;
    int64_t fence;    /* the highest seen; 0: none */
    int64_t since_ms; /* when it was reserved, or last taken over */
} hx_gate_orphan;

typedef struct hx_gate_orphans {
    size_t count;
    const hx_gate_orphan *list; /* oldest first */
    void *memory;               /* private */
} hx_gate_orphans;

/* Unfinished reservations at least this old, 10,000 at most. HX_OK, also with none. */
HX_API hx_status hx_gate_stranded(hx_gate *gate, int64_t older_than_ms, hx_gate_orphans *out, hx_error *err);
HX_API void hx_gate_orphans_free(hx_gate_orphans *orphans);

typedef struct hx_gate_reconcile_options {
    hx_gate_fn lookup;     /* required. HX_GATE_DO: found, UNDO: absent, LEAVE: ask again next time */
    hx_gate_fn record;     /* the business write of what was found, in the settling transaction; NULL: none */
    void *ctx;             /* for both */
    const char *owner;     /* this reconciler's name, default "reconcile" */
    int64_t older_than_ms; /* default two minutes */
    int64_t every_ms;      /* hx_gate_reconcile_loop: from one round to the next, default one minute */
    int stop_fd;           /* hx_gate_reconcile_loop: readable means stop (an eventfd, a pipe); -1: none */
} hx_gate_reconcile_options;

typedef struct hx_gate_reconciled {
    int64_t found, absent, left; /* left: by the lookup, or another has it */
} hx_gate_reconciled;

/* One round: each stranded reservation whose lease has ended is taken over, looked up, and settled or released.
 * A reservation's lease must outlast the longest call it stands for: what is looked up while the call is still on its
 * way is absent, and then it is not. An error ends the round; what was settled stays. *out is added to. */
HX_API hx_status hx_gate_reconcile(hx_gate *gate, const hx_gate_reconcile_options *options, hx_gate_reconciled *out,
                                   hx_error *err);
/* Rounds until stop_fd is readable (HX_OK) or a round fails (reconnect, call it again). Blocks the calling thread. */
HX_API hx_status hx_gate_reconcile_loop(hx_gate *gate, const hx_gate_reconcile_options *options,
                                        hx_gate_reconciled *out, hx_error *err);

/* Drop settled keys past their scope's window, at most `batch` (0: 10000), in the open transaction or one of its own.
 * *dropped == batch: there may be more. */
HX_API hx_status hx_gate_sweep(hx_gate *gate, int batch, int64_t *dropped, hx_error *err);

/* ---- joined with the queue: hx_consume_options.gate */

/* The gate of this worker (0 to workers - 1), asked for before each message and again after a lost connection: the place
 * to connect, or to PQreset. A gate is used by its worker alone while a message is at work. NULL: not now. */
typedef hx_gate *(*hx_consume_gate_fn)(void *ctx, int worker, hx_error *err);

/* With a gate, hx_consume puts each message through hx_gate_run (so a handler may run more than once for one delivery,
 * each time in a transaction of which the last did not come to be): its effect_key and fence are the gate's key and fence,
 * the handler is `record` and runs in the transaction (in the connection of that gate), and the ack carries the stored
 * outcome, which is the result set by hx_message_set_result. So a message delivered again after its COMMIT is acked at
 * once with the first answer, and one whose COMMIT's reply was lost is claimed again before anything else.
 *
 *   the gate, or the handler, says                  the message is
 *   NEW, handler HX_DONE                            acked with its result, after COMMIT
 *   NEW, handler HX_FAIL_REJECTED                   settled in the gate as rejected, writes included; nack rejected
 *   NEW, handler any other verdict                  rolled back (two-phase, by effect: released); settled as it says
 *   DUPLICATE                                       acked with the stored result; nack rejected if it was that
 *   UNKNOWN, lookup finds it                        recorded, settled, acked
 *   UNKNOWN, lookup says absent                     released and done now
 *   UNKNOWN, no lookup, or it cannot tell; effect   nack unknown: the queue's on_unknown decides
 *     said HX_FAIL_UNKNOWN
 *   IN_FLIGHT, STALE                                nack transient (a lease that is lost is refused by the broker)
 *   CONFLICT; an effect_key the gate cannot take    nack poison
 *   HX_BUSY after all tries; a lost connection,     nack transient: the next delivery's claim tells what became of it
 *     again after gate() was asked twice more       (two-phase after the effect began: nack unknown)
 *   HX_UNAVAILABLE                                  given back, and the consumer stops: this process cannot do it
 *
 * A `reconcile` delivery is no special case: the gate knows. In the one-transaction form NEW proves that the lost attempt
 * left nothing; in the two-phase form the reservation is UNKNOWN and looked up. What went wrong goes to on_trouble. */
typedef struct hx_consume_gate {
    hx_consume_gate_fn gate; /* required */
    const char *scope;       /* NULL: the queue's name */
    hx_handler_fn effect;    /* as hx_gate_work.effect, NULL: the one-transaction form. HX_DONE, HX_FAIL_REJECTED;
                              * HX_FAIL_UNKNOWN: may have happened; any other: certainly did not */
    hx_handler_fn
        lookup;       /* as hx_gate_work.lookup. HX_DONE: found; HX_FAIL_REJECTED; HX_FAIL_ABSENT; else: not known */
    int64_t lease_ms; /* of a reservation; 0: two minutes */
} hx_consume_gate;

#ifdef __cplusplus
}
#endif
#endif
