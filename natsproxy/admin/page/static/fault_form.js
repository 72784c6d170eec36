// The form for a fault, a temporary rule, generated from the keywords of rules.
//
// It shows how many of the frames in the page would have matched, and the same rule for a rules file.

import { RequestFailed, ask } from "./api.js";
import { button, copy, el, fill, labelled, line, put, select, shown } from "./dom.js";
import { glob, matches, validPattern } from "./format.js";
import { DELIVERIES, PUBLISHES } from "./ops.js";
import { words } from "./words.js";

const LASTS = [["10s", "10 s"], ["30s", "30 s"], ["1m", "1 min"], ["5m", "5 min"], ["1h", "1 h"], ["", "until it is removed"]];
const FIRST = ["latency", "drop", "duplicate", "reorder", "corrupt", "truncate", "answer", "error", "deny", "pause", "bandwidth", "close", "reset"];
const START = { latency: { delay: "500ms" }, bandwidth: { rate: "10KiB" }, answer: { status_code: 503 }, headers: { direction: "c2s" } };
// Settings shown at once; the others are under “More”.
const MATCHERS = ["subject", "direction", "client", "probability"];
const MORE = ["op", "role", "queue", "header", "min_size", "unless", "every", "first", "after", "limit", "between"];
const IDENTITY = ["name", "kind"];

/** Return the value of a text: a number, true or false, JSON, or the text itself. */
export function valueOf(text) {
  const given = text.trim();
  if (/^(true|false|null|-?\d+(\.\d+)?)$/.test(given) || /^[[{"]/.test(given)) {
    try {
      return JSON.parse(given);
    } catch {
      return given;
    }
  }
  return given;
}

const textOf = (value) => (typeof value === "string" ? (valueOf(value) === value ? value : JSON.stringify(value)) : JSON.stringify(value));

/** Return a value in TOML. */
export function toml(value) {
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (value !== null && typeof value === "object") {
    return `{ ${Object.entries(value).map(([key, one]) => `${/^[\w-]+$/.test(key) ? key : JSON.stringify(key)} = ${toml(one)}`).join(", ")} }`;
  }
  return JSON.stringify(value).replace(/\u007f/g, "\\u007f");
}

class FaultForm {
  constructor(all, given, frames) {
    this.all = all;
    this.frames = frames;
    this.texts = { ...given };
    const rest = all.kinds.map((kind) => kind.name).filter((name) => !FIRST.includes(name));
    const names = [...FIRST.filter((name) => all.kinds.some((kind) => kind.name === name)), ...rest];
    this.kind = select(names.map((name) => [name, `${name}: ${this.word(name).text}`]), names[0], { autofocus: true, on: { change: () => this.build() } });
    this.lasts = select(LASTS, "30s");
    this.name = el("input", { type: "text", placeholder: "generated", autocomplete: "off", maxlength: 100 });
    this.settings = el("fieldset", {}, el("legend", {}, "What happens"));
    this.matchers = el("fieldset", {}, el("legend", {}, "For which frames"));
    this.more = el("details", {}, el("summary", {}, "More conditions"), el("div", { class: "grid" }));
    this.met = el("p", { class: "note", role: "status" });
    this.error = el("p", { class: "note bad", role: "alert" });
    this.text = el("pre", { class: "payload" });
    this.dialog = el(
      "dialog",
      { class: "fault", "aria-label": "New fault" },
      el(
        "form",
        { on: { submit: (event) => (event.preventDefault(), this.send()), input: () => this.look() } },
        el("header", {}, el("h2", {}, "New fault"), button("✕", () => this.dialog.close(), { class: "quiet close", "aria-label": "Close" })),
        labelled("Kind", this.kind),
        this.settings,
        this.matchers,
        this.more,
        el("div", { class: "grid" }, labelled("Duration", this.lasts), labelled("Name", this.name)),
        this.met,
        el("details", {}, el("summary", {}, "As a rule in a file"), this.text, button("Copy", () => copy(this.text.textContent), { class: "quiet" })),
        this.error,
        el("footer", {}, button("Cancel", () => this.dialog.close(), { class: "quiet" }), el("button", { type: "submit", class: "primary" }, "Start the fault")),
      ),
    );
    this.build();
  }

  word(name) {
    return this.all.kinds.find((kind) => kind.name === name);
  }

  /** Make the controls of the kind; typed texts are kept. */
  build() {
    const kind = this.word(this.kind.value);
    const start = { ...Object.fromEntries(kind.settings.filter((one) => one.required).map((one) => [one.name, kind.rule[one.name]])), ...START[kind.name] };
    const own = kind.settings.map((setting) => setting.name);
    this.controls = {};
    const make = (word, text) => this.control(word, text);
    const first = kind.settings.filter((one) => one.required || one.name in start);
    const rest = kind.settings.filter((one) => !first.includes(one));
    fill(this.settings, el("legend", {}, "What happens"), el("p", {}, line(kind.text)), first.concat(rest).map((one) => make(one, start[one.name])));
    const known = (names) => names.filter((name) => kind.also.includes(name) && !own.includes(name)).map((name) => this.key(name));
    const matchers = known(MATCHERS);
    fill(this.matchers, el("legend", {}, "For which frames"), el("div", { class: "grid" }, matchers.map((one) => make(one))));
    this.matchers.hidden = !matchers.length;
    const more = kind.also.filter((name) => !MATCHERS.includes(name) && !IDENTITY.includes(name) && !own.includes(name));
    more.sort((a, b) => (MORE.indexOf(a) + 99) % 99 - (MORE.indexOf(b) + 99) % 99);
    fill(this.more.lastChild, more.map((name) => make(this.key(name))));
    this.more.hidden = !more.length;
    this.error.textContent = "";
    this.look();
  }

  key(name) {
    return [...this.all.selectors, ...this.all.gates].find((word) => word.name === name) ?? { name, text: "" };
  }

  control(word, value) {
    const { name } = word;
    const given = { title: line(word.text), data: { key: name } };
    const text = this.texts[name] ?? (value === undefined ? "" : textOf(value));
    let control;
    if (name === "direction") control = select([["", "both, where possible"], ["c2s", "→ from clients"], ["s2c", "← to clients"]], text, given);
    else if (name === "role") control = select([["", "any"], ...this.all.roles.map((role) => [role.name, `${role.name}: ${role.text}`])], text, given);
    else {
      const hints = { subject: "orders.>", client: "its name: app-*", probability: "1 (always)" };
      const example = (word.example ?? "").split(" = ").slice(1).join(" = ").replace(/^"(.*)"$/, "$1");
      control = el("input", { type: "text", autocomplete: "off", spellcheck: "false", placeholder: hints[name] ?? example, maxlength: 4000, value: text, ...given });
    }
    control.addEventListener("input", () => (this.texts[name] = control.value));
    this.controls[name] = control;
    const field = labelled(word.required ? `${name} *` : name, control, { class: "field", title: line(word.text) });
    if (!MATCHERS.includes(name)) field.append(el("small", { class: "hint" }, line(word.text)));
    return field;
  }

  /** Return the rule as a table. */
  rule() {
    const rule = { kind: this.kind.value };
    if (this.name.value.trim()) rule.name = this.name.value.trim();
    for (const [name, control] of Object.entries(this.controls)) {
      const text = control.value.trim();
      if (text === "") continue;
      const value = ["subject", "unless", "queue"].includes(name) && !text.startsWith("[") ? text : valueOf(text);
      rule[name] = name === "client" && typeof value !== "object" ? { name: String(value) } : value;
    }
    return rule;
  }

  look() {
    const rule = this.rule();
    const { kind, name, ...rest } = rule;
    const lines = Object.entries({ name: name ?? kind, kind, ...rest }).map(([key, value]) => `${key} = ${toml(value)}`);
    this.text.textContent = shown(`[[rules]]\n${lines.join("\n")}`);
    put(this.met, this.meets(rule));
  }

  /** Return a sentence about the frames in the page that the rule would have matched. */
  meets(rule) {
    const frames = this.frames();
    if (!frames.length || !("subject" in this.controls)) return "";
    const patterns = [rule.subject ?? ">"].flat().map(String);
    if (!patterns.every(validPattern)) return "The subject is not a valid pattern yet.";
    const ops = rule.op ? [rule.op].flat() : [...PUBLISHES, ...DELIVERIES];
    const client = typeof rule.client?.name === "string" ? glob(rule.client.name) : null;
    const met = frames.filter(
      (row) =>
        ops.includes(row.op) &&
        (!rule.direction || row.direction === rule.direction) &&
        (!rule.role || row.meaning?.kind === rule.role) &&
        (!client || client.test(row.client ?? "")) &&
        patterns.some((pattern) => matches(pattern, row.subject ?? "")),
    );
    return `It would have matched ${met.length} of the last ${frames.length} frames.`;
  }

  async send() {
    this.error.textContent = "";
    const body = { rule: this.rule() };
    if (this.lasts.value) body.for = this.lasts.value;
    try {
      this.made = (await ask("POST", "rules", body)).rule.name;
      this.dialog.close();
    } catch (error) {
      if (!(error instanceof RequestFailed)) throw error;
      put(this.error, shown(error.message));
    }
  }
}

/**
 * Show the form; return the name of the new fault, null for none.
 *
 * given: initial texts of settings.  frames(): those in the page.
 */
export async function faultForm(given, frames = () => []) {
  if (document.querySelector("dialog[open]")) return null;
  const form = new FaultForm(await words(), given, frames);
  document.body.append(form.dialog);
  form.dialog.showModal();
  await new Promise((done) => form.dialog.addEventListener("close", done, { once: true }));
  form.dialog.remove();
  return form.made ?? null;
}
