// Times and durations as people read them, in the browser's time zone.

import { make } from "./dom.js";

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** A <time>: the clock, with the day where that is not today. `ms` since the epoch; 0 gives a dash. */
export function timeElement(ms) {
  if (!ms) return make("span", { class: "faint" }, "–");
  const when = new Date(ms);
  const today = when.toDateString() === new Date().toDateString();
  const text = today ? CLOCK.format(when) : `${DAY.format(when)}, ${CLOCK.format(when)}`;
  return make("time", { datetime: when.toISOString(), title: when.toISOString() }, text);
}

/** "84 ms", "5.02 s", "3 min 4 s", "2 h 5 min". */
export function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** Remaining time of a session: "14:05", "0:42". */
export function left(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
}
