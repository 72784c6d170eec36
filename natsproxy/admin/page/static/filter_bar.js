// The filter of frames: its controls, the parameters for the stream, and the same test for frames in the page.
//
// A control keeps its text in any case; a pattern that is not valid (yet) is ignored.

import { el, labelled, line, select } from "./dom.js";
import { glob, matches, validPattern } from "./format.js";
import { DELIVERIES, KEEP_ALIVES, OPS, PUBLISHES } from "./ops.js";

const GROUPS = {
  calm: ["All but keep-alives", OPS.filter((op) => !KEEP_ALIVES.includes(op))],
  all: ["All operations", []],
  messages: ["Messages", [...PUBLISHES, ...DELIVERIES]],
  publishes: ["Publishes", PUBLISHES],
  deliveries: ["Deliveries", DELIVERIES],
  subscriptions: ["Subscriptions", ["SUB", "UNSUB"]],
  logins: ["Logins", ["INFO", "CONNECT"]],
};
const WIDER = { api: ["api", "pull"], delivery: ["delivery", "redelivery"] };
const EMPTY = { subject: "", op: "calm", direction: "", client: "", role: "", conn: "", text: "" };
const WAIT = 250; // ms after the last keystroke

export class FilterBar {
  /** changed(narrowed): called with each new filter that is valid. */
  constructor(changed) {
    this.changed = changed;
    this.value = { ...EMPTY };
    this.controls = {
      subject: this.text("orders.> or *.eu.*", { spellcheck: false, autocapitalize: "off" }),
      op: select([...Object.entries(GROUPS).map(([key, [text]]) => [key, text]), ...OPS], "calm"),
      direction: select([["", "Both ways"], ["c2s", "→ from clients"], ["s2c", "← to clients"]], ""),
      client: this.text("name, * and ?", { list: "clients" }),
      role: select([["", "Any role"]], ""),
      conn: this.text("#", { inputmode: "numeric", class: "number" }),
      text: this.text("text in subject, headers, payload"),
    };
    for (const control of Object.values(this.controls)) {
      control.addEventListener(control.tagName === "SELECT" ? "change" : "input", () => this.later());
    }
    this.names = el("datalist", { id: "clients" });
    this.note = el("span", { class: "note bad", role: "status" });
    const { subject, op, direction, client, role, conn, text } = this.controls;
    this.root = el(
      "form",
      { class: "filter", on: { submit: (event) => (event.preventDefault(), this.apply()) } },
      labelled("Subject", subject, { class: "field wide" }),
      labelled("Operation", op),
      labelled("Direction", direction),
      labelled("Client", client),
      labelled("Role", role),
      labelled("Connection", conn, { class: "field narrow" }),
      labelled("Contains", text),
      el("button", { type: "reset", class: "quiet", on: { click: (event) => (event.preventDefault(), this.reset()) } }, "Clear"),
      this.names,
      this.note,
    );
  }

  text(placeholder, given = {}) {
    return el("input", { type: "text", placeholder, autocomplete: "off", maxlength: 256, ...given });
  }

  /** Offer the roles of rules. */
  setRoles(words) {
    const { role } = this.controls;
    const before = role.value;
    role.replaceChildren(...select([["", "Any role"], ...words.map((word) => [word.name, word.name])], "").children);
    role.value = before;
  }

  setClients(names) {
    this.names.replaceChildren(...names.map((value) => el("option", { value: line(value, 100) })));
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.apply(), WAIT);
  }

  /** Apply the controls that are valid. */
  apply() {
    clearTimeout(this.timer);
    const given = Object.fromEntries(Object.entries(this.controls).map(([key, control]) => [key, control.value.trim()]));
    const wrong = {
      subject: given.subject !== "" && !validPattern(given.subject),
      conn: given.conn !== "" && !/^[1-9][0-9]{0,14}$/.test(given.conn.replace(/^#/, "")),
    };
    for (const [key, bad] of Object.entries(wrong)) {
      this.controls[key].setAttribute("aria-invalid", bad);
      if (bad) given[key] = this.value[key];
    }
    this.note.textContent = wrong.subject ? "not a valid subject pattern yet" : wrong.conn ? "not a connection number" : "";
    given.conn = given.conn.replace(/^#/, "");
    if (JSON.stringify(given) === JSON.stringify(this.value)) return;
    this.value = given;
    this.changed();
  }

  /** Set some controls; the others keep their values. */
  set(values) {
    for (const [key, value] of Object.entries(values)) this.controls[key].value = value;
    this.apply();
  }

  reset() {
    this.set(EMPTY);
  }

  ops() {
    const { op } = this.value;
    return GROUPS[op]?.[1] ?? [op];
  }

  /** The parameters of the stream. */
  get params() {
    const { subject, direction, client, role, conn } = this.value;
    const all = { subject, direction, client, role, conn, op: this.ops().join(",") };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== ""));
  }

  /** Return the test for frames already in the page. */
  test() {
    const { subject, direction, client, role, conn, text } = this.value;
    const ops = new Set(this.ops());
    const named = client === "" ? null : glob(client);
    const kinds = role === "" ? null : WIDER[role] ?? [role];
    const wanted = text.toLowerCase();
    return (row) =>
      (ops.size === 0 || ops.has(row.op)) &&
      !(row.routine && this.value.op === "calm") &&
      (direction === "" || row.direction === direction) &&
      (conn === "" || row.conn === Number(conn)) &&
      (subject === "" || matches(subject, (role && row.request?.subject) || row.subject || "")) &&
      (named === null || named.test(row.client ?? "")) &&
      (kinds === null || kinds.includes(row.meaning?.kind) || role === "pull-reply") &&
      (wanted === "" || holds(row, wanted));
  }
}

function holds(row, wanted) {
  const texts = [row.subject, row.reply, row.payload, row.args, row.meaning?.text, row.cause];
  if (texts.some((text) => text?.toLowerCase().includes(wanted))) return true;
  return row.headers !== undefined && JSON.stringify(row.headers).toLowerCase().includes(wanted);
}
