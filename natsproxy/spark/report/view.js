// The view: the time that charts show, and the rows that filters leave.

const view = { from: 0, to: span, subject: "", connection: "", recorder: "" };
const followers = new Set();  // each draws or fills something again
function change(part) {
  Object.assign(view, part);
  followers.forEach((follow) => follow());
}
const zoomed = () => view.from > 0 || view.to < span;
// The values of steps that are in view; each holds over `coarse` steps of the axis.
const inView = (values, coarse = 1) => {
  const wide = step * coarse;
  return values.slice(Math.floor(view.from / wide + 1e-6), Math.max(1, Math.ceil(view.to / wide - 1e-6)));
};
const sum = (values) => values.reduce((all, value) => all + value, 0);
const seconds = () => Math.max(Math.min(view.to, data.axis.length) - view.from, 1e-3) / 1000;
const POINTS = Math.ceil(count / 60);  // steps of the axis in a point of a small line

// A subject filter: a pattern as NATS has it, or any part of the text.
function subjectFits(text, wanted) {
  if (!/(^|\.)[*>](\.|$)/.test(wanted)) return text.toLowerCase().includes(wanted.toLowerCase());
  const tokens = text.split("."), asked = wanted.split(".");
  return asked.every((token, at) => (token === ">" ? tokens.length > at : at < tokens.length && (token === "*" || token === tokens[at])))
    && (asked[asked.length - 1] === ">" || tokens.length === asked.length);
}
const texts = (...values) => values.flat().filter((value) => typeof value === "string" && value);
const conns = (row) => texts(row.conn, row.requester, row.responder);
const ASPECTS = {
  subject: [(row) => texts(row.template, row.subject, row.stream, row.consumer, row.verb), subjectFits],
  connection: [(row) => texts(row.name, conns(row).map(who), (row.from ?? []).map(([name]) => name), (row.to ?? []).map(([name]) => name)),
    (text, wanted) => text.toLowerCase().includes(wanted.toLowerCase())],
  recorder: [(row) => (row.by_recorder ? Object.keys(row.by_recorder) : texts(row.sent_by, row.got_by, conns(row).map((conn) => conn.split("#")[0]))), (text, wanted) => text === wanted],
};
function time(row) {
  if ("t1" in row) return [row.t1, row.t4];
  if ("opened" in row) return [row.opened ?? 0, row.closed ?? span];
  if ("t" in row) return [row.t, row.t];
  return row.first === undefined ? null : [row.first, row.last];
}
// Rows without an aspect (a table of calls has no clients) are not filtered by it.
function fits(whole) {
  const row = own(whole) ?? whole, when = time(row);
  if (zoomed() && when && (when[1] < view.from || when[0] > view.to)) return false;
  if (zoomed() && !when && row.over && !inView(row.over, POINTS).some(Boolean)) return false;
  return Object.entries(ASPECTS).every(([name, [find, same]]) => {
    const found = view[name] ? find(row) : [];
    return !found.length || found.some((text) => same(text, view[name]));
  });
}
// A row with the counts of the chosen recorder alone, where it has them; undefined where that one saw nothing of it.
const own = (row) => (view.recorder && row?.by_recorder ? row.by_recorder[view.recorder] && { ...row, ...row.by_recorder[view.recorder] } : row);
const unfiltered = (rows) => Object.keys(ASPECTS).filter((name) => view[name] && rows.length && !rows.some((row) => ASPECTS[name][0](row).length));

function tools() {
  const field = (name, label) => el("label", {}, el("span", {}, label),
    el("input", { type: "search", placeholder: `${label}…`, input: (event) => change({ [name]: event.target.value.trim() }), autocomplete: "off", spellcheck: "false" }));
  const chosen = el("select", { change: (event) => change({ recorder: event.target.value }) },
    el("option", { value: "" }, "all recorders"), data.recorder_choices.map((name) => el("option", { value: name }, name)));
  const all = el("button", { type: "button", class: "all", click: () => change({ from: 0, to: span }) });
  followers.add(() => {
    all.textContent = `${moment(view.from)} – ${moment(view.to)} · ${dur(view.to - view.from)}  ✕`;
    all.hidden = !zoomed();
    all.setAttribute("aria-label", "Show the whole time again");
  });
  all.hidden = true;
  return [field("subject", "Subject"), field("connection", "Connection"),
    data.recorder_choices.length ? el("label", {}, el("span", {}, "Recorder"), chosen) : null, all].filter(Boolean);
}
