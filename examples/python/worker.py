#!/usr/bin/env python3
"""A consumer in Python, with nothing but the standard library: it takes one message at a time, renews its lease while the work
goes on, and tells the broker what came of it. Run as many as you like.

    python3 worker.py payments          HAPAX_URL names the broker, LEASE how long a lease is (30s)

A broker that asks who you are: HAPAX_API_TOKEN_FILE names a file with the token. Over https:// the certificate is checked, by what the
system trusts or by the file that HAPAX_CACERT names. A token is for https://, or for a broker on this machine.

The work here is a line in a ledger, ledger.jsonl: it stands for the payment provider. What matters is the order of things:

 - A message whose delivery is "reconcile" was begun by somebody who never said how it ended. It is looked up by its effect key
   before anything is done: found, it is acked with what was found; not found, the broker is told "absent" and delivers it again.
 - The effect key is what the provider is handed as its own idempotency key.
 - Every settling call may be repeated with the same token: the first answer stands.
 - A worker that stops lets its poll end by itself. An answer thrown away is a message nobody works at until its lease ends.
"""
import http.client
import itertools
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

URL = os.environ.get("HAPAX_URL") or "http://127.0.0.1:4279"
LEASE = os.environ.get("LEASE") or "30s"
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}  # as the broker reads it: a bare number is seconds
LEASE_S = int(LEASE.rstrip("msh")) * UNITS[LEASE.lstrip("0123456789")]
WAIT = "5s"
TRUST = ssl.create_default_context(cafile=os.environ.get("HAPAX_CACERT"))
FIELDS = {}
if os.environ.get("HAPAX_API_TOKEN_FILE"):
    with open(os.environ["HAPAX_API_TOKEN_FILE"], encoding="ascii") as token:
        FIELDS["Authorization"] = "Bearer " + token.read().strip()
stopping = threading.Event()


class Transient(Exception):
    """It was certainly not done; try again later."""


class Poison(Exception):
    """It can never work."""


# ---- your part

def do(message):
    """Does the work. What it returns is the result, kept for whoever asks again."""
    try:
        order = json.loads(message["payload"])
        amount = order["amount"]
    except (ValueError, KeyError, TypeError) as error:
        raise Poison(f"not an order: {error!r}") from error
    charge = {"effect_key": message["effect_key"], "amount": amount, "fence": message["fence"]}
    with open("ledger.jsonl", "a", encoding="utf-8") as ledger:
        ledger.write(json.dumps(charge) + "\n")
    time.sleep(order.get("seconds", 0))  # a provider that takes its time
    return charge


def look_up(message):
    """Was it done? The result if so, else None."""
    try:
        with open("ledger.jsonl", encoding="utf-8") as ledger:
            charges = [json.loads(line) for line in ledger]
    except FileNotFoundError:
        return None
    return next((c for c in charges if c["effect_key"] == message["effect_key"]), None)


# ---- the rest is the same for every consumer

def post(path, body=None, timeout=15):
    """The status and the answer. A connection that fails raises OSError or HTTPException: nobody knows whether it was applied."""
    request = urllib.request.Request(URL + path, json.dumps(body).encode() if body is not None else b"", FIELDS, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=TRUST) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def say(message, text):
    print(f"{message['key'] or message['id']}: {text}", file=sys.stderr, flush=True)


def settle(verb, message, **members):
    """The same call with the same token, until the broker has it or refuses it for good: the work is done, and whoever lets go of it
    here has it done again. After a stop, for one lease more."""
    begun = time.monotonic()
    for pause in itertools.chain((0, 0.1, 0.2, 0.5, 1, 2), itertools.repeat(5)):
        time.sleep(min(pause, LEASE_S / 3))
        if stopping.is_set() and time.monotonic() - begun > LEASE_S:
            return say(message, f"{verb}: no answer; the lease decides")
        try:
            status, answer = post(f"/v1/{verb}", {"token": message["token"], **members})
        except (OSError, http.client.HTTPException) as error:
            say(message, f"{verb}: {error}: again")
            continue
        if status < 500 and status != 429:
            return say(message, answer["state"] if status == 200 else f"{answer.get('code')}: {answer.get('detail')}")
        say(message, f"{verb}: {answer.get('code')}: again")


def renew(message, done):
    """At a third of the lease, so that two renewals may fail. Gone for good: say so, the work may be somebody else's now."""
    while not done.wait(LEASE_S / 3):
        try:
            status, answer = post("/v1/extend", {"token": message["token"], "lease": LEASE}, timeout=LEASE_S / 3)
        except (OSError, http.client.HTTPException) as error:
            say(message, f"extend: {error}")
            continue
        if status in (404, 409):
            return message.get("settling") or say(message, f"the lease is lost: {answer.get('code')}")


def verdict(message):
    """The settling call that tells what came of it."""
    if message["delivery"] == "reconcile":
        found = look_up(message)
        return ("nack", {"class": "absent"}) if found is None else ("ack", {"result": found})
    return "ack", {"result": do(message)}


def handle(message):
    done = threading.Event()
    renewing = threading.Thread(target=renew, args=(message, done), daemon=True)
    renewing.start()
    try:
        verb, members = verdict(message)
    except Transient as error:
        verb, members = "nack", {"class": "transient", "reason": str(error)}
    except Poison as error:
        verb, members = "nack", {"class": "poison", "reason": str(error)}
    except Exception as error:  # it may have been done: only a look-up can tell
        verb, members = "nack", {"class": "unknown", "reason": repr(error)}
    message["settling"] = True  # and renewed until that is through
    settle(verb, message, **members)
    done.set()


def consume(queue):
    query = urllib.parse.urlencode({"wait": WAIT, "lease": LEASE, "consumer": f"python:{os.getpid()}"})
    path = f"/v1/queues/{urllib.parse.quote(queue, safe='')}/receive?{query}"
    while not stopping.is_set():
        try:
            status, answer = post(path)
        except (OSError, http.client.HTTPException) as error:
            print(f"the broker is away: {error}", file=sys.stderr, flush=True)
            stopping.wait(1)
            continue
        if status == 429 or status >= 500:
            stopping.wait(1)
        elif status != 200:
            sys.exit(f"{answer.get('code')}: {answer.get('detail')}")
        else:
            for message in answer["messages"]:
                handle(message)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: worker.py QUEUE")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    consume(sys.argv[1])
