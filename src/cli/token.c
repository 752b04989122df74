/* Tokens are made here, beside no broker: only the hash of one goes into a config, so whoever reads that cannot use it. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"
#include "config/config.h"

const struct flag flags_token_new[] = {
    {"allow", "RIGHT[:QUEUE]", "what it may do; repeated. Rights: send, receive, result, operate, observe, admin"},
    {"tenant", "TENANT", "whose it is: it sees that tenant's queues alone"},
    {"expires", "DATE", "from then on it is refused: 2027-01-31, or a time like 2027-01-31T12:00:00Z"},
    {"to", "FILE", "write the token into this new file, for nobody else to read, instead of showing it"},
    {0},
};
const char about_token_new[] =
    "Prints a new token (256 bits from the kernel) and the line for `tokens:` in the broker's config file, which has "
    "only\n"
    "its SHA-256. The token is shown this once and kept nowhere: give it to its owner, who puts it into a file and\n"
    "names that in HAPAX_API_TOKEN_FILE. Better, let --to write the file. SIGHUP makes hapaxd read its config again.\n"
    "\n"
    "A right stands alone, for all queues, or before a queue's name, in which * stands for any characters:\n"
    "send:payments, operate:shop.*, observe. receive covers settling; payloads are shown to receive and operate "
    "only.\n"
    "\n"
    "To replace a token without a gap: add the new one's hash to the list of the old one, reload, change over, remove\n"
    "the old hash, reload.";

const struct flag flags_token_hash[] = {{0}};
const char about_token_hash[] =
    "Prints the SHA-256 of the token in the file, or on standard input, as `tokens:` of the config has it; white space "
    "at its end does not count.";

enum { TOKEN_RANDOM_BYTES = 32, TOKEN_TEXT_MAX = 512 };

static void hex_of(slice token, struct buf *out) {
    u8 hash[SHA256_DIGEST_LENGTH];
    SHA256((const u8 *)token.p, token.n, hash);
    buf_hex(out, slice_of(hash, sizeof hash));
}

static void wipe(struct buf *b) {
    if (b->p) explicit_bzero(b->p, b->cap);
    buf_free(b);
}

/* ---- new */

static void put_text(struct buf *b, const char *name, const char *text) {
    if (!text) return;
    buf_printf(b, ", %s: ", name);
    json_put_string(b, slice_str(text));
}

/* - {name: "shop", sha256: ["..."], allow: ["send:payments"]} */
static void put_line(const struct cli *cli, struct buf *b, slice hash) {
    const char *right;
    buf_lit(b, "- {name: ");
    json_put_string(b, slice_str(args_word(cli, 0)));
    buf_printf(b, ", sha256: [\"%.*s\"], allow: [", (int)hash.n, hash.p);
    bool first = true;
    for (size_t at = 0; (right = args_next(cli, "allow", &at)); first = false) {
        if (!first) buf_lit(b, ", ");
        json_put_string(b, slice_str(right));
    }
    buf_char(b, ']');
    put_text(b, "tenant", args_get(cli, "tenant"));
    put_text(b, "expires", args_get(cli, "expires"));
    buf_char(b, '}');
}

static bool words_ok(struct cli *cli) {
    const char *right;
    bool ok = utf8_valid(slice_str(args_word(cli, 0))) && utf8_valid(slice_str(args_get(cli, "tenant"))) &&
              utf8_valid(slice_str(args_get(cli, "expires")));
    for (size_t at = 0; ok && (right = args_next(cli, "allow", &at));) ok = utf8_valid(slice_str(right));
    if (!ok) return args_wrong(cli, "its words are not UTF-8"), false;
    if (args_has(cli, "allow")) return true;
    return args_wrong(cli, "--allow is missing: what it may do, such as --allow send:payments"), false;
}

/* "token:1:2: tokens[0].allow: ...", each. */
static void say_mistakes(slice errors) {
    const slice own = SL("tokens[0].");
    for (slice line, place, rest; errors.n;) {
        slice_cut(errors, '\n', &line, &errors);
        for (int colons = 0; colons < 3; colons++)
            if (slice_cut(line, ':', &place, &rest)) line = rest;
        line = slice_trim(line);
        if (slice_starts(line, own)) line = slice_of(line.p + own.n, line.n - own.n);
        say_wrong("token new: %.*s", (int)line.n, line.p);
    }
}

/* By the code that will read the config. */
static bool line_ok(struct cli *cli, slice line) {
    struct buf text = {0}, errors = {0};
    struct config_use use = {.secrets = SECRETS_AS_WRITTEN};
    struct config *config = NULL;
    const char *tenant = args_get(cli, "tenant");
    buf_printf(&text, "tokens:\n  %.*s\n", (int)line.n, line.p);
    if (tenant) {
        buf_lit(&text, "tenants: {");
        json_put_string(&text, slice_str(tenant));
        buf_lit(&text, ": {prefix: \"t.\"}}\n");
    }
    bool ok = config_parse(buf_slice(&text), "token", &use, &config, &errors) == ST_OK;
    if (!ok) say_mistakes(buf_slice(&errors));
    config_free(config);
    buf_free(&text);
    buf_free(&errors);
    return ok;
}

static bool write_file(const char *path, slice token) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), error = errno;
    bool ok = fd >= 0 && write(fd, token.p, token.n) == (ssize_t)token.n && write(fd, "\n", 1) == 1 && fsync(fd) == 0;
    if (fd >= 0 && !ok) error = errno;
    if (fd >= 0) close(fd);
    if (!ok) say_wrong("%s: %s; no token was made", path, strerrordesc_np(error));
    if (!ok && fd >= 0) unlink(path);
    return ok;
}

static void print_new(const struct cli *cli, slice token, slice hash, slice line) {
    const char *file = args_get(cli, "to");
    struct buf b = {0};
    buf_grow(&b, 4096); /* so that no copy is left behind */
    if (cli->json) {
        buf_char(&b, '{');
        json_put_member(&b, "name", slice_str(args_word(cli, 0)));
        if (file)
            json_put_member(&b, "file", slice_str(file));
        else
            json_put_member(&b, "token", token);
        json_put_member(&b, "sha256", hash);
        json_put_member(&b, "config", line);
        buf_lit(&b, "}\n");
    } else {
        if (!file) buf_printf(&b, "%.*s\n", (int)token.n, token.p);
        buf_printf(&b, "%.*s\n", (int)line.n, line.p);
        say(file ? "the token is in that file; the line goes under `tokens:` in the broker's config"
                 : "the token, shown this once; and the line that goes under `tokens:` in the broker's config");
    }
    print_buf(&b);
    wipe(&b);
}

int cmd_token_new(struct cli *cli) {
    u8 random[TOKEN_RANDOM_BYTES];
    struct buf token = {0}, hash = {0}, line = {0};
    const char *file = args_get(cli, "to");
    if (!words_ok(cli)) return EXIT_USAGE;
    random_bytes(random, sizeof random);
    buf_grow(&token, 64);
    buf_lit(&token, "hx_");
    buf_base64url(&token, slice_of(random, sizeof random));
    explicit_bzero(random, sizeof random);
    hex_of(buf_slice(&token), &hash);
    put_line(cli, &line, buf_slice(&hash));
    int rc = EXIT_USAGE;
    if (line_ok(cli, buf_slice(&line))) rc = !file || write_file(file, buf_slice(&token)) ? EXIT_DONE : EXIT_REFUSED;
    if (rc == EXIT_DONE) print_new(cli, buf_slice(&token), buf_slice(&hash), buf_slice(&line));
    wipe(&token);
    buf_free(&hash);
    buf_free(&line);
    return rc;
}

/* ---- hash */

int cmd_token_hash(struct cli *cli) {
    struct buf text = {0}, out = {0};
    const char *file = args_word(cli, 0);
    int rc = EXIT_REFUSED;
    if (cli_read_file(file ? file : "-", &text)) {
        slice token = buf_slice(&text);
        while (token.n && strchr(" \t\r\n", token.p[token.n - 1])) token.n--;
        bool one_word = token.n > 0 && token.n <= TOKEN_TEXT_MAX;
        for (size_t i = 0; i < token.n; i++) one_word &= token.p[i] > ' ' && token.p[i] < 0x7f;
        rc = one_word ? EXIT_DONE : args_wrong(cli, "that is no token: one word of visible ASCII, at most 512 bytes");
        hex_of(token, &out);
    }
    struct buf shown = {0};
    buf_printf(&shown, cli->json ? "{\"sha256\":\"%.*s\"}\n" : "%.*s\n", (int)out.len, out.p);
    if (rc == EXIT_DONE) print_buf(&shown);
    buf_free(&shown);
    wipe(&text);
    buf_free(&out);
    return rc;
}
