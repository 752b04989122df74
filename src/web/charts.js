// Two small pictures: a line of the last hour, and a histogram with marks.
import { svg } from './dom.js';
import { duration, count } from './format.js';

export function spark(values, label, width = 90, height = 20) {
    if (!values?.length) return '';
    const top = Math.max(...values, 1e-9);
    const x = (i) => (values.length > 1 ? (i * (width - 2)) / (values.length - 1) : 0) + 1;
    const y = (v) => height - 1 - (v / top) * (height - 3);
    const line = values.map((v, i) => `${i ? 'L' : 'M'}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join('');
    return svg('svg', { class: 'spark', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
        svg('path', { class: 'area', d: `${line}L${x(values.length - 1).toFixed(1)} ${height}L1 ${height}Z` }),
        svg('path', { class: 'line', d: line }));
}

const boundText = (s) => duration(s * 1000).replace(/ /g, '\u00a0');

// bounds: upper ones, in seconds; counts: one more, the last is "longer". marks: [{at: seconds, text}].
export function histogram({ bounds, counts }, marks, label) {
    const left = 8, bar = 46, height = 110, base = 84, width = left * 2 + bar * counts.length;
    const top = Math.max(...counts, 1);
    const names = bounds.map(boundText).concat(`> ${boundText(bounds[bounds.length - 1] ?? 0)}`);
    // Within a bucket a mark stands where it would on a logarithmic axis, as the bounds themselves do.
    const place = (s) => {
        const at = bounds.findIndex((b) => s <= b);
        if (at < 0) return left + bar * bounds.length + bar / 2;
        const low = at ? bounds[at - 1] : bounds[0] / 10;
        return left + bar * (at + Math.min(1, Math.max(0, Math.log(s / low) / Math.log(bounds[at] / low))));
    };
    return svg('svg', { class: 'histogram', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label },
        counts.map((n, i) => {
            const tall = n ? Math.max(2, (n / top) * (base - 24)) : 0;
            return [
                svg('rect', { class: 'bar', x: left + i * bar + 3, y: base - tall, width: bar - 6, height: tall }),
                n ? svg('text', { class: 'value', x: left + i * bar + bar / 2, y: base - tall - 3 }, count(n)) : '',
                svg('text', { class: 'name', x: left + i * bar + bar / 2, y: base + 14 }, i < bounds.length ? `≤ ${names[i]}` : names[i]),
            ];
        }),
        svg('line', { class: 'axis', x1: left, x2: width - left, y1: base, y2: base }),
        marks.map(({ at, text }) => [
            svg('line', { class: 'mark', x1: place(at), x2: place(at), y1: 12, y2: base }),
            svg('text', { class: 'mark-name', x: place(at), y: 9 }, text),
        ]));
}
