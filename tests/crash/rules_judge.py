"""Judges what clients and operators of queues with rules of their own were told. Knows the contract, not the broker.

A history is a list of calls in the order in which they were made, each a dict:

    op      send recv settle effect resolve redrive cancel forget erase replay
            effect: the worker did what the message (id) asks for
    queue, key, id, note     where they apply; note is unique and goes into the audit trail with operators' calls
    asked, told              when it was asked and when its answer came, on one clock (told: None without an answer)
    phase   ok | fail (answered: nothing happened) | info (no answer: unknown)
    send    duplicate, id
    recv    id, key, fence, delivery, generation, effect_key, payload
    settle  verb, class, fence, duplicate
    resolve as

A verdict must be certain: a call without an answer may have happened or not, and excuses whatever either would."""
from collections import defaultdict

RECONCILE, HOLD = "reconcile", "hold"


class Policy:
    def __init__(self, semantics="exactly_once", on_unknown="retry"):
        self.semantics, self.on_unknown = semantics, on_unknown


def happened(call):
    return call["phase"] != "fail"


def after(call, moment):
    """Surely asked after that was over."""
    return moment["told"] is not None and call["asked"] >= moment["told"]


class Judge:
    def __init__(self, policies, history):
        self.policies, self.history, self.violations = policies, history, []
        self.deliveries = defaultdict(list)  # (queue, id): by fence
        self.settles = defaultdict(list)  # fence
        self.verbs = defaultdict(list)  # (queue, key): operators' calls
        self.effects = defaultdict(int)  # (queue, id)
        for call in history:
            if call["op"] == "recv":
                self.deliveries[call["queue"], call["id"]].append(call)
            elif call["op"] == "settle":
                self.settles[call["fence"]].append(call)
            elif call["op"] == "effect":
                self.effects[call["queue"], call["id"]] += 1
            elif call["op"] != "send":
                self.verbs[call["queue"], call.get("key")].append(call)
        for list_ in self.deliveries.values():
            list_.sort(key=lambda d: d["fence"])

    def blame(self, what, text):
        self.violations.append((what, text))

    def verbs_on(self, queue, key, op):
        return [v for v in self.verbs[queue, key] if v["op"] == op] + [v for v in self.verbs[queue, None] if v["op"] == op]

    # ---- unknown outcomes

    def surely_unknown(self, delivery):
        """Started, and nobody said what came of it; or somebody said that it is not known."""
        calls = [c for c in self.settles[delivery["fence"]] if c["verb"] in ("ack", "nack", "release")]
        if not calls:
            return not delivery.get("reserved")
        last = calls[-1]
        return len(calls) == 1 and last["phase"] == "ok" and last.get("class") == "unknown"

    def said_since(self, delivery, later):
        """Somebody may have decided that it may be done again: a look-up found nothing, or an operator vouched."""
        queue, key = delivery["queue"], delivery["key"]
        absent = any(c.get("class") == "absent" and happened(c)
                     for d in self.deliveries[queue, delivery["id"]]
                     if delivery["fence"] < d["fence"] < later["fence"] for c in self.settles[d["fence"]])
        retry = any(happened(v) and v.get("as") == "retry" for v in self.verbs_on(queue, key, "resolve"))
        return absent or retry

    def judge_unknown(self, queue, rule, deliveries):
        for i, later in enumerate(deliveries):
            for before in deliveries[:i]:
                if not self.surely_unknown(before) or self.said_since(before, later):
                    continue
                if later["delivery"] != "reconcile":
                    self.blame("blind-retry", f"{queue} {later['key']}: fence {later['fence']} came as {later['delivery']}, "
                               f"and what fence {before['fence']} did is unknown")
                if rule == HOLD and not any(happened(v) for v in self.verbs_on(queue, later["key"], "redrive")):
                    self.blame("held-escaped", f"{queue} {later['key']}: fence {later['fence']} without a decision")

    def judge_effects(self):
        for (queue, id_), times in self.effects.items():
            policy = self.policies[queue]
            once = policy.semantics == "at_most_once" or policy.on_unknown in (RECONCILE, HOLD)
            if once and times > 1:
                self.blame("effect-twice", f"{queue} {id_}: done {times} times")

    # ---- semantics

    def judge_at_most_once(self, queue, deliveries):
        if len(deliveries) > 1:
            self.blame("delivered-twice", f"{queue} {deliveries[0]['key']}: {[d['fence'] for d in deliveries]}")

    def judge_at_least_once(self, queue, drained):
        ids = set()
        for call in self.history:
            if call["op"] != "send" or call["queue"] != queue or call["phase"] != "ok":
                continue
            if call["duplicate"] or call["id"] in ids:
                self.blame("dropped-as-duplicate", f"{queue} {call['key']}: {call['id']}")
            ids.add(call["id"])
            if drained and not self.deliveries[queue, call["id"]]:
                self.blame("lost", f"{queue} {call['key']}: {call['id']} was accepted and never delivered")

    # ---- operators

    def judge_decisions(self, queue, deliveries):
        for verb in self.verbs_on(queue, deliveries[0]["key"], "resolve"):
            if verb["phase"] != "ok" or verb["id"] != deliveries[0]["id"]:
                continue
            for delivery in deliveries:
                if verb["as"] in ("done", "rejected") and after(delivery, verb):
                    self.blame("decided-yet-delivered", f"{queue} {delivery['key']}: fence {delivery['fence']} after {verb['as']}")
                for call in self.settles[delivery["fence"]]:
                    late = delivery["told"] is not None and verb["asked"] >= delivery["told"] and after(call, verb)
                    if late and call["phase"] == "ok" and not call.get("duplicate"):
                        self.blame("decided-token-lives", f"{queue} {delivery['key']}: {call['verb']} under fence {delivery['fence']}")

    def judge_forgotten(self):
        for (queue, key), verbs in self.verbs.items():
            for verb in verbs:
                if verb["op"] != "forget" or verb["phase"] != "ok":
                    continue
                for call in self.history:
                    if call["op"] == "send" and (call["queue"], call["key"]) == (queue, key) and call["phase"] == "ok" \
                            and after(call, verb) and call["id"] == verb["id"]:
                        self.blame("not-forgotten", f"{queue} {key}: {call['id']} is known again")

    def judge_generations(self, queue, deliveries):
        for d in deliveries:
            wanted = d["key"] if d["generation"] == 0 else f"{d['key']}~g{d['generation']}"
            asked = sum(happened(v) for v in self.verbs_on(queue, d["key"], "replay"))
            if d["effect_key"] != wanted:
                self.blame("effect-key", f"{queue} {d['key']}: {d['effect_key']} in generation {d['generation']}")
            if d["generation"] > asked:
                self.blame("generation", f"{queue} {d['key']}: generation {d['generation']} after {asked} replays")

    def judge_erased(self, views):
        for (queue, key), view in views.items():
            erased = [v for v in self.verbs[queue, key] if v["op"] == "erase" and v["phase"] == "ok" and v["id"] == view.get("id")]
            if erased and (view.get("payload") or view.get("result", {}).get("body")):
                self.blame("erased-shown", f"{queue} {key}: {view}")

    def judge_trail(self, trail):
        """trail: the notes in the audit trail. Every deed is there once, and nothing that was refused."""
        for call in self.history:
            if call["op"] in ("send", "recv", "settle", "effect"):
                continue
            times = trail.count(call["note"])
            if call["phase"] == "ok" and times != 1:
                self.blame("audit", f"{call['op']} {call['note']} is {times} times in the trail")
            if call["phase"] == "fail" and times:
                self.blame("audit", f"{call['op']} {call['note']} was refused and is in the trail")
            if times > 1:
                self.blame("audit", f"{call['op']} {call['note']} is {times} times in the trail")


def judge(policies, history, trail=None, views=None, drained=True):
    """[(verdict, text)], empty if all is well. trail None: it was not read."""
    j = Judge(policies, history)
    for (queue, _), deliveries in sorted(j.deliveries.items()):
        policy = policies[queue]
        if policy.on_unknown in (RECONCILE, HOLD):
            j.judge_unknown(queue, policy.on_unknown, deliveries)
        if policy.semantics == "at_most_once":
            j.judge_at_most_once(queue, deliveries)
        j.judge_decisions(queue, deliveries)
        j.judge_generations(queue, deliveries)
    for queue, policy in policies.items():
        if policy.semantics == "at_least_once":
            j.judge_at_least_once(queue, drained)
    j.judge_effects()
    j.judge_forgotten()
    j.judge_erased(views or {})
    if trail is not None:
        j.judge_trail(trail)
    if not drained:
        j.blame("stuck", "not everything came to its end")
    return j.violations
