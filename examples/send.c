/* Sends the lines of standard input, each under its own key, and says what became of them.
 *
 *   cc send.c -o send $(pkg-config --cflags --libs hapax)
 *   seq 100000 | ./send numbers */
#include <hapax/hapax.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tally {
    atomic_long accepted, duplicate, failed;
};

static void sent(void *ctx, hx_status status, const hx_receipt *receipt, const hx_error *error) {
    struct tally *tally = ctx;
    if (status == HX_OK) {
        atomic_fetch_add(receipt->outcome == HX_ACCEPTED ? &tally->accepted : &tally->duplicate, 1);
        return;
    }
    atomic_fetch_add(&tally->failed, 1);
    fprintf(stderr, "%s: %s%s\n", error->code, error->detail,
            error->applied == HX_APPLIED_UNKNOWN ? " (may have been applied: send it again)" : "");
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: send QUEUE <lines\n");
        return 2;
    }
    hx_error err;
    hx_client *client;
    hx_sender *sender;
    /* NULL: the default broker, no token, and whom the system trusts if it is https://. */
    hx_options options = {.url = getenv("HAPAX_URL"),
                          .api_token_file = getenv("HAPAX_API_TOKEN_FILE"),
                          .ca_file = getenv("HAPAX_CACERT")};
    hx_sender_options sender_options = {.queue = argv[1]};
    if (hx_open(&options, &client, &err) != HX_OK || hx_sender_open(client, &sender_options, &sender, &err) != HX_OK) {
        fprintf(stderr, "%s\n", err.detail);
        return 1;
    }
    struct tally tally = {0};
    char line[256];
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        /* The key says what is intended, not how often it was tried: run this twice and all are duplicates. */
        hx_draft draft = {.key = line, .payload = hx_str(line), .content_type = "text/plain"};
        if (hx_send_async(sender, &draft, sent, &tally, &err) != HX_OK) fprintf(stderr, "%s: %s\n", line, err.detail);
    }
    hx_sender_close(sender);
    hx_close(client);
    printf("accepted %ld, duplicate %ld, failed %ld\n", tally.accepted, tally.duplicate, tally.failed);
    return tally.failed ? 1 : 0;
}
