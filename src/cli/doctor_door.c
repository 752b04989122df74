/* How the broker is reached, as far as that can be seen from here. */
#include "cli/doctor.h"

#define EXPIRES_SOON_MS ((i64)14 * 24 * 3600 * 1000)

static void look_at_expiry(struct doctor *d, slice whose, i64 expires_ms) {
    struct buf left = {0}, date = {0};
    i64 left_ms = expires_ms - clock_wall_ms(), minute = 60000, hour = 60 * minute, day = 24 * hour;
    if (expires_ms == 0 || left_ms > EXPIRES_SOON_MS) return;
    i64 unit = left_ms > day ? day : left_ms > hour ? hour : minute;
    buf_duration(&left, left_ms / unit * unit);
    buf_rfc3339(&date, expires_ms);
    if (left_ms < minute)
        doctor_found(d, FOUND_certificate_expires, "The certificate of %.*s %s at %.16sZ.", (int)whose.n, whose.p,
                     left_ms < 0 ? "expired" : "expires", date.p);
    else
        doctor_found(d, FOUND_certificate_expires, "The certificate of %.*s expires in %.*s, on %.10s.", (int)whose.n,
                     whose.p, (int)left.len, left.p, date.p);
    buf_free(&left);
    buf_free(&date);
}

static void look_at_certificate(struct doctor *d, slice certificate) {
    struct buf address = {0}, text = {0};
    i64 expires_ms = 0;
    if (member_text(certificate, "address", &address) && member_text(certificate, "expires_at", &text) &&
        rfc3339_parse(buf_slice(&text), &expires_ms))
        look_at_expiry(d, buf_slice(&address), expires_ms);
    buf_free(&address);
    buf_free(&text);
}

/* All that the broker shows, by whichever way it was asked; else the one we met, which may be a proxy's. */
static void look_at_certificates(struct doctor *d, struct cli *cli, slice stats, i64 met_expires_ms) {
    slice all = member_raw(stats, "certificates");
    if (all.n > 2)
        doctor_each(d, all, look_at_certificate);
    else
        look_at_expiry(d, slice_str(cli->url), met_expires_ms);
}

/* Asked without a token, and with one of a lease that cannot be: whoever may settle is told that it is none, and nothing is done. */
static void look_at_anonymous(struct doctor *d, struct cli *cli) {
    hx_options nobody = *cli_connect(cli);
    hx_request ack = {.method = "POST",
                      .target = "/v1/ack",
                      .content_type = "application/json",
                      .body = hx_str("{\"token\":\"none\"}"),
                      .once = true};
    hx_client *client;
    hx_error err;
    nobody.api_token = nobody.api_token_file = NULL;
    if (hx_open(&nobody, &client, &err) != HX_OK) return;
    hx_call(client, &ack, NULL, &err);
    if (err.http_status == 400)
        doctor_found(d, FOUND_open_to_all, "Whoever reaches %s may settle messages without a token.", cli->url);
    hx_close(client);
}

void doctor_door(struct doctor *d, struct cli *cli, slice stats) {
    hx_security s;
    hx_security_get(cli->client, &s);
    if (!s.encrypted && !s.local)
        doctor_found(d, FOUND_unencrypted, "What is said to %s goes beyond this machine, and can be read on the way.",
                     cli->url);
    look_at_certificates(d, cli, stats, s.certificate_expires_at_ms);
    if (!s.local) look_at_anonymous(d, cli);
}

bool doctor_kept_out(struct doctor *d, const char *url, const hx_error *err) {
    if (err->status == HX_DENIED)
        doctor_found(d, FOUND_denied, "The broker at %s does not let you look: %s.", url, err->detail);
    else if (strcmp(err->code, "untrusted") == 0 || strcmp(err->code, "tls_failed") == 0)
        doctor_found(d, FOUND_untrusted, "%s.", err->detail);
    else
        return false;
    return true;
}
