// What the rules and a key's history say, in sentences.
import { clock, count, duration, plural } from './format.js';

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

// ---- a key

function stands(k) {
    const last = k.attempts[k.attempts.length - 1];
    const by = last?.consumer ? ` by ${last.consumer}` : '';
    switch (k.state) {
    case 'done': return `it was done once, at ${clock(k.settled_at)}${by}`;
    case 'rejected': return `it was rejected at ${clock(k.settled_at)}${by}${k.reason ? ` (${k.reason})` : ''}, which is its outcome`;
    case 'cancelled': return `it was cancelled at ${clock(k.settled_at)}${k.reason ? ` (${k.reason})` : ''} and will not be done`;
    case 'dead': return `it was given up after ${plural(k.attempt, 'attempt')}${k.reason ? `: ${k.reason}` : ''}`;
    case 'held': return k.held_because === 'conflict' ? 'it waits for a person to say whether it is new work or a repeat' : 'nobody knows whether it happened, and it waits for a person';
    case 'leased': return `it is being worked on${by}, until ${clock(k.lease_expires_at)} at least`;
    case 'expired': return 'it was settled, and its window has passed';
    default:
        if (k.not_before) return `it is not due before ${clock(k.not_before)}`;
        if (k.behind_group) return 'it waits behind others of its group';
        return 'it waits to be handed out';
    }
}

const told = (k) => (['done', 'rejected'].includes(k.state) ? 'every repeat was told its result' : 'every repeat was told so');

// The answer to "why was this event ignored?", in one sentence or two.
export function why(k) {
    if (k.why) return k.why;
    if (k.effect_ids.length > 1)
        return `A harmful duplicate: one key has ${count(k.effect_ids.length)} effects (${k.effect_ids.join(', ')}). Something was done more than once.`;
    if (k.refused) return 'It was not admitted: it failed the queue’s schema, and this is a copy of it.';
    if (k.conflict_with)
        return `Held: the key ${k.conflict_with.key} was used before with another payload${k.changed?.length ? ` (${k.changed.join(', ')} changed)` : ''}; ${stands(k)}.`;
    const repeats = k.arrivals.filter((a) => a.kind === 'replay' || a.kind === 'late');
    const last = repeats[repeats.length - 1];
    const conflicts = k.conflicts ? ` ${count(k.conflicts)} came with another payload under this key; the original stands.` : '';
    if (!k.duplicates && k.conflicts)
        return `Not a repeat: the key came again with another payload. That one was refused or kept apart, as the queue’s rules say, and the original stands: ${stands(k)}.`;
    if (!k.duplicates) return `Nothing was ignored: the key came once, and ${stands(k)}.`;
    const late = last?.kind === 'late' ? ' Late: more than half of the window had passed, and a window half as long would have done the work again.' : '';
    const when = last ? `, the last time ${duration(last.age_ms)} after the first` : '';
    return `Ignored as a repeat: the key came ${plural(k.duplicates, 'more time', 'more times')} with the same payload${when}; ${stands(k)}, and ${told(k)}.${late}${conflicts}`;
}

const ARRIVALS = {
    new: ['arrived', 'new: the first with this key', 'ok'],
    replay: ['arrived again', 'an expected repeat: told what became of the original', 'none'],
    late: ['arrived again, late', 'a repeat in the second half of the window: told what became of the original', 'person'],
    conflict: ['arrived with another payload', 'a conflict: the original stands', 'person'],
};
const ENDS = { acked: ['settled', 'ok'], nacked: ['failed', 'failed'], expired: ['lease ran out', 'failed'], cancelled: ['cancelled', 'none'] };

function endOf(a, k) {
    if (a.delivery === 'reconcile') {
        if (a.ended === 'acked') return ['looked up: found', 'ok'];
        if (a.class === 'absent') return ['looked up: it did not happen', 'none'];
    }
    if (a.ended === 'nacked') return [`failed: ${a.class}`, a.class === 'rejected' ? 'ok' : 'failed'];
    if (a.ended === 'acked' && k.state === 'rejected') return ['settled: rejected', 'ok'];
    return ENDS[a.ended] ?? [a.ended, 'none'];
}

// One line an event, oldest first: {at, what, detail, kind}.
export function timeline(k) {
    const lines = [];
    for (const a of k.arrivals) {
        const [what, detail, kind] = ARRIVALS[a.kind] ?? [a.kind, '', 'none'];
        const changed = a.changed?.length ? ` · changed: ${a.changed.join(', ')}` : '';
        lines.push({ at: a.at, what, detail: `${detail}${changed}${a.age_ms ? ` · ${duration(a.age_ms)} after the first` : ''}`, kind, request: a.request_id });
    }
    for (const a of k.attempts) {
        const who = a.consumer || 'a consumer without a name';
        lines.push({ at: a.at, what: a.delivery === 'reconcile' ? `handed to ${who} to look it up` : `handed to ${who}`, detail: `attempt ${a.attempt}`, kind: 'waiting' });
        if (a.ended) lines.push({ at: a.ended_at, what: endOf(a, k)[0], detail: a.reason ?? '', kind: endOf(a, k)[1] });
    }
    for (const d of k.decisions ?? []) lines.push({ at: d.at, what: `${d.by || 'somebody'} decided: ${d.what}`, detail: d.why ?? '', kind: 'person' });
    if (k.settled_at && !k.attempts.some((a) => a.ended === 'acked')) lines.push({ at: k.settled_at, what: k.state, detail: k.reason ?? '', kind: k.state === 'done' ? 'ok' : 'none' });
    return lines.map((line, i) => ({ ...line, i })).sort((a, b) => Date.parse(a.at) - Date.parse(b.at) || a.i - b.i);
}
