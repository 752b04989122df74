// What the rules and a key's history say, in words.
import { count, duration, plural } from './format.js';

// ---- a queue's rules

const SEMANTICS = {
    exactly_once: 'Exactly once: a key is admitted once, and its outcome is told to whoever asks again.',
    at_least_once: 'At least once: every arrival is a message of its own; nothing is deduplicated, nothing dropped.',
    at_most_once: 'At most once: handing a message out settles it. What a worker drops is lost.',
};
const UNKNOWN = {
    retry: 'is done again', reconcile: 'is looked up first: the next delivery asks what became of it', hold: 'waits for a person',
};
const CONFLICT = {
    reject: 'is refused (422) with the fields that changed', hold: 'is held until a person decides', new: 'is admitted as work of its own',
};
const DEAD = { block: 'blocks those behind it', skip: 'is passed over', dead_letter_group: 'takes its group along' };

function sameWords(rule) {
    if (rule === 'none') return 'Payloads are not compared: a known key is a repeat whatever it carries.';
    if (rule === 'json') return 'Two payloads are the same if they say the same as JSON.';
    if (rule?.only) return `Two payloads are the same if they agree in ${rule.only.join(', ')}.`;
    if (rule?.ignore) return `Two payloads are the same if they agree in all but ${rule.ignore.join(', ')}.`;
    return 'Two payloads are the same if their bytes are.';
}

function windowWords(q) {
    if (q.rules.window_max_ms) return `A settled key is remembered for ${duration(q.window_ms)} now: twice the oldest repeat seen, from ${duration(q.rules.window_min_ms)} to ${duration(q.rules.window_max_ms)}.`;
    if (q.window_ms === null) return 'A settled key is remembered for ever.';
    return `A settled key is remembered for ${duration(q.window_ms)}; a repeat after that is new work.`;
}

function limitWords({ pending, bytes, lag_ms }) {
    const parts = [];
    if (pending) parts.push(plural(pending, 'message'));
    if (bytes) parts.push(`${count(bytes)} bytes`);
    if (lag_ms) parts.push(`a wait of ${duration(lag_ms)}`);
    return parts.length ? `At ${parts.join(' or ')} new messages are refused (429) until there is room.` : '';
}

export function ruleWords(q) {
    const c = q.config ?? {}, r = q.rules, t = r.retry;
    const once = r.semantics === 'exactly_once', given = c.key ? `The key is made from the message: ${c.key}` : 'The key is what the sender gives in Idempotency-Key.';
    return [
        SEMANTICS[r.semantics],
        r.semantics !== 'at_least_once' && given,
        r.semantics !== 'at_least_once' && sameWords(c.fingerprint),
        r.semantics !== 'at_least_once' && c.fingerprint !== 'none' && `A known key with another payload ${CONFLICT[r.on_conflict]}.`,
        r.semantics !== 'at_least_once' && windowWords(q),
        `A worker has ${duration(r.lease_ms)}, and may ask for more.`,
        once && `When nobody knows what became of it, it ${UNKNOWN[r.on_unknown]}.`,
        `A passing failure is tried ${plural(t.transient.attempts, 'time')} in all, first after ${duration(t.transient.backoff_ms)}, then less and less often, every ${duration(t.transient.max_ms)} at most; then it is dead.`,
        (c.order_by || r.on_dead !== 'block') && `In a group one goes after the other${c.order_by ? ` (by ${c.order_by})` : ''}; a dead head ${DEAD[r.on_dead]}.`,
        r.keep_payload_ms ? `Payloads are kept for ${duration(r.keep_payload_ms)} after settlement, to be replayed.` : 'Payloads go with the settlement; settled work cannot be replayed.',
        limitWords(r.limits),
        q.owner && `Its dead belong to ${q.owner}.`,
    ].filter(Boolean);
}

// ---- a key's story, as the broker tells it

const ARRIVALS = { 'new intent': 'ok', 'late replay': 'person', conflict: 'person' };
const KINDS = {
    arrived: (e) => ARRIVALS[e.kind] ?? 'none', 'handed out': () => 'waiting', settled: (e) => (e.state === 'cancelled' ? 'none' : 'ok'),
    'attempt ended': (e) => (e.class === 'rejected' ? 'ok' : 'failed'), 'lease ran out': () => 'failed', 'harmful duplicate': () => 'failed', 'looked up': (e) => ({ found: 'ok', none: 'failed' }[e.answer] ?? 'none'),
    step: () => 'none', effect: () => 'none',
};

// {what, kind: which of the four states, rest: its words without those of `what`}; what operators did needs a person.
export function eventWords(e) {
    const kind = (KINDS[e.what] ?? (() => 'person'))(e);
    return { what: e.what, kind, rest: e.text.startsWith(e.what) ? e.text.slice(e.what.length).replace(/^[:,]? /, '') : e.text };
}
