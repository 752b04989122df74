#!/usr/bin/env python3
"""Nobody waits long for what somebody else asked for: long requests are worked off in parts, and so are answers that become
possible together. Each test has a broker of its own, whose longest turn is its own doing."""
import hx
from hx import problem_members, same, test


@test
def a_line_with_a_hundred_thousand_attributes_is_refused_where_the_hundredth_ends(_):
    with hx.Broker() as broker:
        line = {"key": "k", "payload": "x", "attrs": {f"a{i}": "" for i in range(100000)}}
        replies = broker.batch("q", [line, {"key": "l", "payload": "x", "attrs": {f"a{i}": "v" for i in range(100)}}]).lines()
        problem_members(replies[0], 400, "json_invalid")
        same(replies[1]["outcome"], "accepted")
        longest = broker.get("/v1/stats").json()["loop"]["turn_us_max"] / 1e6
        assert longest < 3, f"a turn of {longest:.3f} s"


hx.main()
