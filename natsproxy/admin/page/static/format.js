// Numbers and times for people.

const COUNT = new Intl.NumberFormat("en");

/** Return a whole number with thousands separators. */
export const count = (n) => COUNT.format(Math.round(n));

/** Return a number of bytes. */
export function bytes(n) {
  if (n < 1000) return `${Math.round(n)} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let at = -1;
  do {
    n /= 1000;
    at += 1;
  } while (n >= 999.5 && at < units.length - 1);
  return `${n < 10 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

/** Return a number in short form: 12.3 k. */
export function short(n) {
  if (n < 1000) return n < 10 && n % 1 ? n.toFixed(1) : String(Math.round(n));
  return n < 999_500 ? `${(n / 1000).toPrecision(3)} k` : `${(n / 1e6).toPrecision(3)} M`;
}

/** Return a duration in ns as text. */
export function duration(ns) {
  const size = Math.abs(ns);
  if (size < 1e3) return `${Math.round(ns)} ns`;
  if (size < 1e6) return `${trim(ns / 1e3)} µs`;
  if (size < 1e9) return `${trim(ns / 1e6)} ms`;
  if (size < 120e9) return `${trim(ns / 1e9)} s`;
  const minutes = Math.floor(ns / 60e9);
  if (minutes < 120) return `${minutes} min ${Math.floor((ns / 1e9) % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Return a duration in whole seconds, or more for long ones. */
export const whole = (ns) => (ns < 120e9 ? `${Math.ceil(ns / 1e9)} s` : duration(ns));

const trim = (n) => (Math.abs(n) < 10 ? n.toFixed(2) : Math.abs(n) < 100 ? n.toFixed(1) : n.toFixed(0));
const two = (n) => String(n).padStart(2, "0");

/** Return the local time of a Unix time in ns: 12:34:56.789. */
export function clock(ns, digits = 3) {
  const at = new Date(ns / 1e6);
  const whole = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return digits ? `${whole}.${String(Math.floor((ns / 1e6) % 1000)).padStart(3, "0").slice(0, digits)}` : whole;
}

/** Return the date and the time of a Unix time in ns. */
export function moment(ns) {
  const at = new Date(ns / 1e6);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ns, 0)}`;
}

/** Return a regular expression for a shell pattern with * and ?. */
export function glob(pattern) {
  const parts = Array.from(pattern, (c) => (c === "*" ? "[^]*" : c === "?" ? "[^]" : c.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")));
  return new RegExp(`^${parts.join("")}$`, "u");
}

/** Tell whether a subject pattern is valid. */
export function validPattern(pattern) {
  const tokens = pattern.split(".");
  return tokens.every((token, at) => token !== "" && !/\s/.test(token) && (token !== ">" || at === tokens.length - 1));
}

/** Tell whether a subject matches a pattern with * and >. */
export function matches(pattern, subject) {
  const wanted = pattern.split(".");
  const tokens = subject.split(".");
  for (let at = 0; at < wanted.length; at++) {
    if (wanted[at] === ">") return tokens.length > at;
    if (at >= tokens.length || (wanted[at] !== "*" && wanted[at] !== tokens[at])) return false;
  }
  return tokens.length === wanted.length;
}
