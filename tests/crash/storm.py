"""A storm: one broker, the witness on it, faults in between, and at the end the judge.

    storm = Storm(directory, seed)
    storm.begin()            broker and witness run
    ...                      kill, cut the power, restart with storm.restart()
    storm.end()              the faults are over: drain, verify, stop, judge; what broke is in storm.problems"""
import os
import re
import signal
import subprocess

import kit
import rules

LOAD_BOUND_S = 240

SERVES = "every_restart_serves_again"
DRAINS = "the_load_drains_and_every_answer_is_in_the_contract"
SOUND = "the_history_shows_no_violation"
LOADED = "the_load_was_a_load"
RULED = "every_queue_keeps_its_own_rules_over_reloads_and_operators_verbs"
STOPS = "sigterm_ends_the_broker_with_exit_code_0"
PROMISES = [SERVES, DRAINS, SOUND, LOADED, RULED, STOPS]


class Storm:
    def __init__(self, directory, seed, data=None, pending_max=30000, load_options=(), ruled=False):
        """ruled: with a config file, and workers and an operator on queues with rules of their own."""
        self.seed, self.pending_max, self.load_options = seed, pending_max, list(load_options)
        self.broker = kit.new_broker(data or os.path.join(directory, "data"), log=os.path.join(directory, "log"))
        self.rules = rules.Rules(self.broker, seed) if ruled else None
        self.history = os.path.join(directory, "history")
        self.load, self.load_said, self.judged = None, "", ""
        self.admitted = self.acked = 0
        self.problems = []

    def begin(self):
        self.broker.start()
        self.load = subprocess.Popen(
            [kit.WITNESS, "--port", str(self.broker.port), "--history", self.history, "--seed", str(self.seed),
             "--time-ms", "86400000", "--pending-max", str(self.pending_max), *self.load_options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        kit.UNDO.append(self.load.kill)
        if self.rules:
            self.rules.begin()

    def restart(self):
        """False, and a problem noted, if it does not come back."""
        try:
            self.broker.start()
            return True
        except kit.NotReady as e:
            self.problems.append((SERVES, str(e)))
            return False

    def give_up(self):
        if self.rules:
            self.rules.stop()
        self.load.kill()
        self.load_said, _ = self.load.communicate()
        self.broker.kill()

    def end(self, least_admitted=1):
        self.load.send_signal(signal.SIGUSR1)
        try:
            self.load_said, _ = self.load.communicate(timeout=LOAD_BOUND_S)
        except subprocess.TimeoutExpired:
            self.problems.append((DRAINS, f"the load client did not end within {LOAD_BOUND_S} s"))
            self.give_up()
            return
        if self.load.returncode != 0:
            self.problems.append((DRAINS, self.load_said))
        broken = self.rules.end() if self.rules else []
        if broken:
            self.problems.append((RULED, "\n".join(broken)))
        stopped = self.broker.stop()
        if stopped != 0:
            self.problems.append((STOPS, f"exit code {stopped}\n{self.broker.last_words()}"))
        self.judge(least_admitted)

    def judge(self, least_admitted):
        done = subprocess.run([kit.CHECK_HISTORY, self.history], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.judged = done.stdout
        if done.returncode != 0:
            self.problems.append((SOUND, self.judged))
        counts = re.search(r"(\d+) admitted, .* (\d+) acks", self.load_said)
        if counts:
            self.admitted, self.acked = int(counts.group(1)), int(counts.group(2))
        if self.admitted < least_admitted:
            self.problems.append((LOADED, f"only {self.admitted} messages admitted"))

    def summary(self):
        said = self.load_said.splitlines()[-1:] + ([self.rules.summary()] if self.rules else [])
        return "\n".join(said + [line for line in self.judged.splitlines() if not line.startswith("VIOLATION")])

    def assert_clear(self):
        kit.check(not self.problems, "\n".join(f"{name}: {text}" for name, text in self.problems))
