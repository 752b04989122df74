#!/usr/bin/env python3
"""Secrets of what the broker calls: the receiver gets them, and nobody else finds them anywhere: not in the log, the journal, an
answer, the audit trail, or a word of the command line."""
import os
import re
import subprocess
import tempfile

import hx
from hx import same, test, until
from receiver import Receiver

ENV = {"PUSH_KEY": "key-of-the-environment", "PUSH_SIGN": "whsec_" + "c2VjcmV0" * 4}
IN_FILE, PLAIN = "content-of-a-file", "written-in-the-config"
SECRETS = [ENV["PUSH_KEY"], ENV["PUSH_SIGN"], ENV["PUSH_SIGN"][6:], "secretsecretsecretsecret", IN_FILE, PLAIN]


class File:
    """A secret_file."""

    def __enter__(self):
        self.file = tempfile.NamedTemporaryFile(prefix="hapax-secret-")
        self.name = self.file.name
        self.write(IN_FILE + "\n")
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, text):
        self.file.seek(0)
        self.file.truncate()
        self.file.write(text.encode())
        self.file.flush()


def config(r, file, more="", timeout="10s"):
    return f"""\
queues:
  q:
    downstream: {{idempotency: key}}
    deliver:
      url: "{r.url}/book"
      allow_private: true
      timeout: {timeout}
      secret_headers: {{x-env: "Bearer ${{PUSH_KEY}}", x-file: {{secret_file: {file.name}}}, x-plain: {PLAIN}}}
      sign: {{secrets: ["${{PUSH_SIGN}}"]}}
    reconcile: {{url: "{r.url}/look?key=${{hapax.effect_key}}"}}
{more}"""


def assert_nowhere(where, text):
    for secret in SECRETS:
        assert secret not in text, f"{where} tells {secret}: ...{text[max(0, text.find(secret) - 200):][:500]}"


def files_of(b):
    for folder, _, names in os.walk(b.data):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                yield name, file.read().decode("latin-1")


def hapax(b, *args):
    done = subprocess.run([hx.HAPAX, "--url", b.url, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=hx.TIMEOUT)
    return done.stdout.decode(errors="replace")


def sent(request):
    return [request.header(name) for name in ("x-env", "x-file", "x-plain")]


@test
def the_receiver_gets_the_secrets_and_nobody_else():
    with Receiver() as r, File() as file, hx.Broker(config=config(r, file), env=ENV) as b:
        b.put("q", "k1")
        request = r.next()
        same(sent(request), ["Bearer " + ENV["PUSH_KEY"], IN_FILE, PLAIN])
        assert request.header("webhook-signature").startswith("v1,"), request
        until(lambda: b.state("q", "k1") == "done", "it is done")
        said = b.reload(config(r, file, timeout="11s"))
        assert "queue q: deliver.timeout: 10s -> 11s" in said, said
        for path in ("/v1/queues/q", "/v1/queues", "/v1/queues/q/keys/k1", "/v1/targets", "/v1/audit", "/v1/stats", "/v1/alerts", "/metrics",
                     "/v1/history?queue=q", "/v1/consumers"):
            reply = b.get(path)
            same(reply.status, 200, path)
            assert_nowhere(path, reply.body.decode())
        shown = b.queue("q")["config"]["deliver"]
        same(shown["secret_headers"], {"x-env": "Bearer ${PUSH_KEY}", "x-file": {"secret_file": file.name}, "x-plain": "(secret)"})
        same(shown["sign"], {"secrets": ["${PUSH_SIGN}"]})
        for verb in (["queues", "show", "q"], ["queues", "explain", "q"], ["queues", "explain", "q", "--runbook"], ["audit"], ["push", "status"],
                     ["key", "show", "q", "k1"], ["doctor"], ["lint", b.config]):
            assert_nowhere("hapax " + " ".join(verb), hapax(b, *verb))
        assert_nowhere("the log", b.stderr())
        b.stop()
        for name, text in files_of(b):
            assert_nowhere(name, text)


@test
def secrets_are_read_again_with_every_reload():
    with Receiver() as r, File() as file, hx.Broker(config=config(r, file), env=ENV) as b:
        b.put("q", "k1")
        same(sent(r.next())[1], IN_FILE)
        file.write("the-next-one")
        said = b.reload(config(r, file))
        assert "queue q: deliver.secret_headers: changed" in said, said
        assert "the-next-one" not in b.stderr()
        b.put("q", "k2")
        same(sent(r.next())[1], "the-next-one")
        file.write("")
        said = b.reload(config(r, file))
        assert re.search(r"hapax.yaml:\d+:\d+: queue q: deliver.secret_headers.x-file: empty", said) and "the old rules stay" in said, said
        b.put("q", "k3")
        same(sent(r.next())[1], "the-next-one")


@test
def what_was_taken_out_of_the_file_sends_nothing_without_its_secrets():
    with Receiver() as r, File() as file, hx.Broker(config=config(r, file), env=ENV) as b:
        b.put("q", "k1")
        r.next()
        b.call("POST", "/v1/queues/q/pause", b"")
        b.put("q", "k2")
        b.reload("auto_create: true\n")
        same(b.queue("q")["origin"], "auto")
        b.call("POST", "/v1/queues/q/resume", b"")
        b.put("q", "k3")
        assert r.quiet()
        b.restart()
        b.put("q", "k4")
        assert r.quiet()
        assert "${" not in str([sent(x) for x in r.requests]), "a name in a secret's place"
        b.reload(config(r, file))
        same(sorted(r.next().key for _ in range(3)), ["k2", "k3", "k4"])


@test
def without_its_secrets_the_broker_does_not_start_and_a_check_does_not_ask_for_them():
    with Receiver() as r, File() as file:
        text = config(r, file)
        for env, why in (({**ENV, "PUSH_KEY": ""}, "the environment variable PUSH_KEY is empty"),
                         ({"PUSH_SIGN": ENV["PUSH_SIGN"]}, "the environment variable PUSH_KEY is not set"),
                         ({**ENV, "PUSH_SIGN": PLAIN}, "deliver.sign.secrets[0]: is not whsec_"),
                         ({**ENV, "PUSH_KEY": "a\r\nevil: b"}, "deliver.secret_headers.x-env: what it stands for has a control character")):
            with hx.Broker(config=text, env=env, start=False) as b:
                b.spawn()
                same(b.process.wait(hx.TIMEOUT), 1)
                assert why in b.stderr(), b.stderr()
                assert_nowhere("the refusal", b.stderr())
        with hx.Broker(config=text, start=False) as b:
            done = subprocess.run([hx.HAPAXD, "--config", b.config, "--check-config"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=hx.TIMEOUT)
            same(done.returncode, 0, done.stdout)
            assert_nowhere("the check", done.stdout.decode())


@test
def rules_through_the_api_take_none(q):
    for rules in ({"deliver": {"url": "https://example.com/", "secret_headers": {"a": "${PATH}"}}},
                  {"deliver": {"url": "https://example.com/", "secret_headers": {"a": {"secret_file": "/etc/hostname"}}}},
                  {"deliver": {"url": "https://example.com/", "sign": {"secrets": [ENV["PUSH_SIGN"]]}}},
                  {"reconcile": {"url": "https://example.com/", "secret_headers": {"a": "b"}}}):
        detail = hx.problem(hx.broker.call("PUT", f"/v1/queues/{q}", hx.json.dumps(rules).encode()), 400, "config_invalid")["detail"]
        assert "rules that come through the API take no secrets" in detail, detail
    hx.problem(hx.broker.get(f"/v1/queues/{q}"), 404, "no_such_queue")


hx.main()
