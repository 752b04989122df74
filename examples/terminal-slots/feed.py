#!/usr/bin/env python3
"""The freight forwarder's side: sends what `hapax inject --dry-run` planned to a URL, as a webhook sender does: feed.py URL [SPEED] < plan

Every line is one webhook. It is signed (FEED_SECRET, Standard Webhooks), has an id of its own, and is tried again at once, up to five times,
whenever the answer is not a 2xx or does not come. SPEED is how many times faster than planned; 0 sends one after the other."""
import base64
import hashlib
import hmac
import http.client
import os
import re
import sys
import time
import urllib.parse

URL = urllib.parse.urlsplit(sys.argv[1])
SPEED = float(sys.argv[2]) if len(sys.argv) > 2 else 1
SECRET = base64.b64decode(os.environ["FEED_SECRET"].removeprefix("whsec_"))
TRIES = 5
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(duration):
    return sum(int(n) * UNITS[unit] for n, unit in re.findall(r"(\d+)(ms|s|m|h|d)", duration))


def push(id, body):
    """One try; whether it was taken."""
    at = str(int(time.time()))
    sign = base64.b64encode(hmac.new(SECRET, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()).decode()
    connection = http.client.HTTPConnection(URL.hostname, URL.port, timeout=30)
    try:
        connection.request("POST", URL.path, body, {"Content-Type": "application/json", "webhook-id": id, "webhook-timestamp": at,
                                                    "webhook-signature": f"v1,{sign}"})
        answer = connection.getresponse()
        answer.read()
        return 200 <= answer.status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


began, tries, lost = time.monotonic(), 0, 0
for number, line in enumerate(sys.stdin, 1):
    at, _, _, payload = line.rstrip("\n").split("\t")
    if SPEED:
        time.sleep(max(0.0, began + seconds(at) / SPEED - time.monotonic()))
    for _ in range(TRIES):
        tries += 1
        if push(f"msg_{number}", payload.encode()):
            break
    else:
        lost += 1
print(f"{number} webhooks in {tries} tries, {lost} given up")
sys.exit(1 if lost else 0)
