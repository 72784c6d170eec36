// One frame in full: where it went, what it means, its headers and its payload.

import { button, copy, el, fill, line, shown } from "./dom.js";
import { bytes, clock, count, duration, moment } from "./format.js";
import { payloadView } from "./payload.js";

const ARROWS = { c2s: "→", s2c: "←" };
const WAYS = { c2s: "client to server", s2c: "server to client" };
const TIMES = /_ns$/;

/** Return what happened to a frame in a few words, "" for one that passed unchanged. */
export function fate(row) {
  const done = [];
  if (row.in === null) done.push("made here");
  else if (row.out === null) done.push("not passed");
  if (row.delay_ns) done.push(`held ${duration(row.delay_ns)}`);
  if (!done.length && row.cause) done.push("changed");
  return done.join(", ");
}

/** Return the preview of a frame on one line: its meaning, or else its content. */
export function preview(row) {
  if (row.meaning) return line(row.meaning.text, 300);
  if (row.op === "SUB") return [row.queue && `queue ${row.queue}`, `sid ${row.sid}`].filter(Boolean).map((text) => line(text)).join(", ");
  if (row.op === "UNSUB") return line(`sid ${row.sid}${row.args ? `, after ${row.args}` : ""}`);
  if (row.payload !== undefined) return line(row.payload.replace(/\s+/g, " "), 300);
  if (row.payload_hex !== undefined) return row.payload_hex.slice(0, 96).replace(/../g, "$& ");
  return line(row.args ?? "", 300);
}

function facts(pairs) {
  return el(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
      .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value instanceof Node ? value : line(value, 4000))]),
  );
}

const mono = (text) => el("bdi", { class: "mono" }, line(text, 4000));

function meaningFacts(meaning) {
  const plain = Object.entries(meaning).filter(([name]) => !["kind", "text", "bad"].includes(name));
  return plain.map(([name, value]) => {
    if (name === "stored_ns") return ["stored", `${moment(value)} (${clock(value)})`];
    if (TIMES.test(name) && typeof value === "number") return [line(name.slice(0, -3)), duration(value)];
    return [line(name), typeof value === "object" ? JSON.stringify(value) : String(value)];
  });
}

function headers(row) {
  if (!row.headers) return null;
  const pairs = Object.entries(row.headers).flatMap(([name, values]) => [values].flat().map((value) => [name, value]));
  return el(
    "section",
    {},
    el("header", {}, el("h3", {}, `Headers (${pairs.length})`)),
    el(
      "table",
      { class: "headers" },
      el("tbody", {}, pairs.slice(0, 500).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, mono(name)), el("td", {}, mono(value))))),
    ),
    row.headers_cut && el("p", { class: "note" }, "The first of its headers only: the capture and “capture cat” have all."),
    row.headers_raw && el("pre", { class: "payload", title: "Malformed headers, as received" }, shown(row.headers_raw)),
  );
}

/** The pane with one frame. */
export class FrameDetail {
  /** acts: `fault(row)`, `filter(values)`, `close()`. */
  constructor(acts) {
    this.acts = acts;
    this.root = el("article", { class: "detail", "aria-label": "Frame" });
  }

  show(row) {
    const { acts } = this;
    const said = fate(row);
    fill(
      this.root,
      el(
        "header",
        { class: "head" },
        el("span", { class: `way ${row.direction}`, title: WAYS[row.direction] }, ARROWS[row.direction]),
        el("span", { class: "op" }, line(row.op ?? "?")),
        el("h2", { class: "mono" }, el("bdi", {}, line(row.subject ?? "", 4000))),
        button("✕", () => acts.close(), { class: "quiet close", "aria-label": "Close (Escape)" }),
      ),
      el(
        "div",
        { class: "actions" },
        row.subject && button("Fault here…", () => acts.fault(row), { class: "primary", title: "Make a fault for frames like this one (f)", "data-changes": true }),
        row.subject && button("Only this subject", () => acts.filter({ subject: row.subject })),
        button("Only this connection", () => acts.filter({ conn: String(row.conn) })),
        button("Copy as JSON", () => copy(JSON.stringify(plain(row), null, 2)), { class: "quiet" }),
      ),
      row.meaning &&
        el(
          "section",
          { class: row.meaning.bad ? "meaning wrong" : "meaning" },
          el("p", {}, el("b", {}, line(row.meaning.kind)), " ", el("bdi", {}, line(row.meaning.text, 2000))),
          facts(meaningFacts(row.meaning)),
        ),
      (said || row.cause) &&
        el("p", { class: "changed" }, row.cause ? el("b", {}, line(row.cause), ": ") : null, said || "passed"),
      facts([
        ["Time", `${moment(row.t_ns)}${clock(row.t_ns).slice(8)}`],
        ["Connection", `#${row.conn}${row.client ? `, ${row.client}` : ""}`],
        ["Reply", row.reply && mono(row.reply)],
        ["Answers", row.request && el("span", {}, mono(row.request.subject), ` after ${duration(row.request.after_ns)}`)],
        ["Queue", row.queue ?? row.subscription?.queue],
        ["Subscription", row.subscription && mono(row.subscription.subject ?? "")],
        ["Sid", row.sid],
        ["Size", row.size !== undefined && `${bytes(row.size)}${row.size >= 1000 ? ` (${count(row.size)})` : ""}`],
        ["Number", row.in === null ? "none: made here" : count(row.in)],
      ]),
      row.args && el("section", {}, el("header", {}, el("h3", {}, "Arguments")), el("pre", { class: "payload" }, shown(pretty(row.args)))),
      headers(row),
      payloadView(row),
    );
    this.root.scrollTop = 0;
  }
}

function pretty(args) {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}

function plain(row) {
  const { room: _, n: __, ...rest } = row;
  return rest;
}
