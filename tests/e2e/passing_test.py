#!/usr/bin/env python3
"""Queues that come and go: a directory is not worn out by them, and a queue that is given the number of a deleted one has nothing
of it."""
import hx
from hx import members, same, test, until

TOGETHER = 500  # pairs that are pipelined


def come_and_go(broker, first, count):
    """Makes and deletes as many queues, all over one connection. Some are used."""
    with broker.connect() as conn:
        for at in range(first, first + count, TOGETHER):
            names = [f"passing-{i}" for i in range(at, min(at + TOGETHER, first + count))]
            for name in names:
                conn.start("PUT", f"/v1/queues/{name}", b'{"window":"forever"}')
                conn.start("DELETE", f"/v1/queues/{name}")
            for name in names:
                same(conn.reply().status, 201, name)
                same(conn.reply().status, 204, name)
            use_one(broker, f"used-{at}")


def use_one(broker, name):
    """Its number was that of many others that had this key."""
    broker.put(name, "k", payload=name)
    message = broker.one(name)
    same(message["payload"], name)
    broker.ok("ack", message, result=name)
    members(broker.send(name, "k", payload=name).json(), outcome="duplicate")
    same(broker.key(name, "k")["result"]["body"], name)
    same(broker.call("DELETE", f"/v1/queues/{name}").status, 204)


def figures(broker):
    stats = broker.get("/v1/stats").json()
    return stats["queues"], stats["memory"]["settled_keys"], stats["counters"]["accepted"]


@test
def more_queues_come_and_go_than_there_are_numbers_and_a_restart_finds_none_of_them(_):
    with hx.Broker() as broker:
        broker.put("kept", "k")
        come_and_go(broker, 0, 70000)
        same(broker.get("/v1/queues?limit=1000").json()["items"][0]["name"], "kept")
        until(lambda: figures(broker) == (1, 0, 1), "nothing is left of them")
        broker.restart()
        same(figures(broker), (1, 0, 1))
        come_and_go(broker, 70000, 500)
        same(broker.one("kept")["key"], "k")


hx.main()
