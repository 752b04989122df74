/* A consumer with two steps: charge, then tell. If it dies between them, the next attempt does not charge again.
 *
 *   cc worker.c -o worker $(pkg-config --cflags --libs hapax)
 *   ./worker payments */
#include <hapax/hapax.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* Stands for a call to a payment provider, which is handed the effect key as its own idempotency key. */
static hx_status charge(void *ctx, hx_message *m, hx_value *result) {
    (void)ctx;
    char id[320];
    int n = snprintf(id, sizeof(id), "charge-for-%s", m->effect_key);
    hx_value_set(result, hx_bytes_of(id, (size_t)n));
    return HX_OK;
}

static hx_verdict handle(void *ctx, hx_message *m) {
    (void)ctx;
    hx_bytes charged;
    hx_error err;
    if (m->payload.size == 0) return HX_FAIL_POISON;
    /* A reconcile delivery would first ask the provider, by effect key, whether an earlier attempt went through. */
    hx_status st = hx_step_once(m, "charge", charge, NULL, &charged, &err);
    if (st == HX_FENCED) return HX_FAIL_UNKNOWN; /* somebody else has it now; the broker will say so */
    if (st != HX_OK) {
        hx_message_set_reason(m, err.detail);
        return err.applied == HX_APPLIED_UNKNOWN ? HX_FAIL_UNKNOWN : HX_FAIL_TRANSIENT;
    }
    hx_message_set_result(m, charged, "text/plain");
    hx_message_set_effect_id(m, charged.data);
    return HX_DONE;
}

static void trouble(void *ctx, hx_message *m, const hx_error *err) {
    (void)ctx;
    fprintf(stderr, "%s: %s\n", m ? m->key : "poll", err->detail);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: worker QUEUE\n");
        return 2;
    }
    /* Blocked before any thread is started, so that only sigwait below sees them. */
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGINT);
    sigaddset(&stop, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stop, NULL);

    hx_error err;
    hx_client *client;
    hx_consumer *consumer;
    /* NULL: the default broker, no token, and whom the system trusts if it is https://. */
    hx_options options = {.url = getenv("HAPAX_URL"),
                          .api_token_file = getenv("HAPAX_API_TOKEN_FILE"),
                          .ca_file = getenv("HAPAX_CACERT")};
    hx_consume_options consume = {.queue = argv[1], .handler = handle, .on_trouble = trouble, .workers = 4};
    if (hx_open(&options, &client, &err) != HX_OK || hx_consume(client, &consume, &consumer, &err) != HX_OK) {
        fprintf(stderr, "%s\n", err.detail);
        return 1;
    }
    int received;
    sigwait(&stop, &received);
    hx_consumer_close(consumer); /* running handlers finish, reserved messages are given back */
    hx_close(client);
    return 0;
}
