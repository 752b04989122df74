#!/usr/bin/env python3
"""A wallet behind the gate, from Python: five transactions, two of seven deliveries are duplicates, and they race.

    pip install psycopg && ./wallet.py       with PGHOST, PGDATABASE, ... set and sql/postgres/hapax_gate.sql installed

Ends with "wallet: ok", or exit status 1.
"""

import concurrent.futures
import hashlib
import json
import os
import sys
import time

import psycopg

SCOPE = f"wallet python {time.time_ns()} {os.getpid()}"  # of this run, so that it can be repeated


def once(key, fingerprint, work):
    """Claim, do, commit. A duplicate gets the first delivery's answer."""
    with psycopg.connect() as db, db.transaction():  # commits at the end, duplicates too: that counts them
        status, result = db.execute("SELECT status, result FROM hapax.claim(%s, %s, %s)",
                                    (SCOPE, key, hashlib.sha256(fingerprint.encode()).digest())).fetchone()
        if status != "new":
            return status, result and json.loads(result)  # bytes: the answer as it was stored
        answer = work(db)
        db.execute("SELECT hapax.commit_outcome(%s, %s, %s, 'application/json')", (SCOPE, key, json.dumps(answer)))
        return status, answer


def deliver(message):
    key, cents = message

    def book(db):
        balance, bookings = db.execute("UPDATE wallet_python SET cents = cents + %s, bookings = bookings + 1"
                                       " RETURNING cents, bookings", (cents,)).fetchone()
        return {"booked": cents, "balance": balance, "note": f"№ {bookings}\n"}

    return once(key, str(cents), book)


def main():
    wire = [(f"wallet:1:{n}", cents) for n, cents in  # the key is the business intent, not the delivery
            ((1, 10000), (2, -3000), (1, 10000), (3, 5000), (4, -2500), (2, -3000), (5, 725))]
    with psycopg.connect(autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS wallet_python")
        db.execute("CREATE TABLE wallet_python (cents int NOT NULL, bookings int NOT NULL)")
        db.execute("INSERT INTO wallet_python VALUES (0, 0)")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            told = list(pool.map(deliver, wire))
        forged, _ = deliver(("wallet:1:1", 999999))  # the same key with another amount is no duplicate
        cents, bookings = db.execute("SELECT cents, bookings FROM wallet_python").fetchone()
        db.execute("DROP TABLE wallet_python")
    for (key, amount), (status, answer) in zip(wire, told):
        print(f"  {key} {amount} {status}, {answer}")
    answers = {}
    for (key, _), (_, answer) in zip(wire, told):
        answers.setdefault(key, []).append(answer)
    ok = ((cents, bookings, forged) == (10225, 5, "conflict") and [s for s, _ in told].count("duplicate") == 2
          and all(a == same[0] for same in answers.values() for a in same))
    print(f"wallet: {'ok' if ok else 'WRONG'} ({cents} cents, {bookings} bookings)")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
