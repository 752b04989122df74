// Figures and times as people read them.
import { h } from './dom.js';

export const count = (n) => (n === undefined || n === null ? '–' : Math.round(n).toLocaleString('en'));

export function rate(n) {
    if (n === undefined || n === null) return '–';
    if (n === 0) return '0';
    if (n < 0.1) return '< 0.1';
    return n < 10 ? n.toFixed(1) : count(n);
}

export function percent(ratio) {
    if (ratio === undefined || ratio === null) return '–';
    if (ratio === 0) return '0 %';
    return ratio < 0.001 ? '< 0.1 %' : `${(ratio * 100).toFixed(1)} %`;
}

const UNITS = [[86400000, 'd'], [3600000, 'h'], [60000, 'm'], [1000, 's']];

// 340 ms, 1.2 s, 45 s, 3 m 20 s, 5 h, 3 d 4 h
export function duration(ms) {
    if (ms === undefined || ms === null) return '–';
    if (ms < 1000) return `${Math.round(ms)} ms`;
    if (ms < 10000) return `${(ms / 1000).toFixed(1).replace('.0', '')} s`;
    const at = UNITS.findIndex(([size]) => ms >= size);
    const [size, unit] = UNITS[at];
    const whole = Math.floor(ms / size);
    const next = UNITS[at + 1];
    const rest = next && whole < 10 ? Math.floor((ms % size) / next[0]) : 0;
    return rest ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
}

// 0:12, 3:05, 1:02:03: how long something has been going on
export function stopwatch(ms) {
    if (!ms) return ms === 0 ? '0:00' : '–';
    const s = Math.floor(ms / 1000);
    if (s >= 86400) return duration(ms);
    const two = (n) => String(n).padStart(2, '0');
    return s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}` : `${Math.floor(s / 60)}:${two(s % 60)}`;
}

export const ago = (at) => `${duration(Math.max(0, Date.now() - Date.parse(at)))} ago`;

export function clock(at) {
    const t = new Date(at);
    const two = (n) => String(n).padStart(2, '0');
    const time = `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
    const today = t.toDateString() === new Date().toDateString();
    return today ? time : `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${time}`;
}

// A moment: the reader's own clock, UTC on demand.
export const moment = (at, text) => (at ? h('time', { datetime: at, title: at }, text ?? clock(at)) : '–');

export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : (many ?? one + 's')}`;

export const bytes = (n) => (n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(1)} MiB`);
