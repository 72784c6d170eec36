// Rules with their switches, faults with the time left, and firings as they happen.

import { ask, poll, Stream } from "./api.js";
import { BY } from "./connections_view.js";
import { button, copy, el, fill, line, put, say, shown } from "./dom.js";
import { clock, count, duration, whole } from "./format.js";
import { faultForm, toml } from "./fault_form.js";
import { VirtualList } from "./virtual_list.js";
import { framesView } from "./frames_view.js";

const FIRINGS = 1000; // that are kept here
const HEIGHT = 26;
const ORIGINS = { file: "from the file", changed: "from the file, changed", added: "added" };
const ARROWS = { c2s: "→", s2c: "←" };
const FIRING = ["at", "rule", "action", "way", "conn", "subject", "more"];

function makeFiring() {
  const cells = FIRING.map((name) => el("span", { class: name }));
  const node = el("div", { class: "row firing" }, cells);
  node.cells = cells;
  return node;
}

function showFiring(node, one) {
  const [at, rule, action, way, conn, subject, more] = node.cells;
  put(at, clock(one.time_ns));
  put(rule, line(one.rule, 80));
  put(action, line(one.action, 40));
  put(way, ARROWS[one.direction] ?? "");
  put(conn, [`#${one.conn}`, line(one.user || one.name || "", 40)].filter(Boolean).join(" "));
  conn.title = [one.name && `name ${one.name}`, one.user && `user ${one.user}${BY[one.user_by] || ""}`, one.account && `account ${one.account}`, one.client].filter(Boolean).join("\n");
  put(subject, line(one.subject, 200));
  put(more, [one.count > 1 && `×${count(one.count)}`, one.delay_ns && duration(one.delay_ns), line(one.detail, 200)].filter(Boolean).join("  "));
}

/** Return the settings of a rule in few words. */
function summary(rule) {
  const { name: _, kind: __, ...rest } = rule;
  return Object.entries(rest).map(([key, value]) => `${key} = ${toml(value)}`).join("   ");
}

class RulesView {
  constructor() {
    this.rows = new Map();
    this.firings = [];
    this.table = el("div", { class: "rules" });
    this.empty = el("p", { class: "empty" }, "No rules: all traffic passes unchanged. A fault adds one, for as long as you like.");
    this.note = el("span", { class: "state" });
    this.list = new VirtualList({ make: makeFiring, show: showFiring, height: HEIGHT, label: "Firings", moved: () => this.showFirings() });
    this.quiet = el("p", { class: "empty" }, "No rule has acted yet.");
    this.lost = 0;
    this.root = el(
      "section",
      { class: "view rules-view" },
      el(
        "div",
        { class: "tools" },
        button("New fault…", () => this.add(), { class: "primary", title: "f", "data-changes": true }),
        button("Reset to the file", () => this.reset(), { class: "quiet", title: "Restores the rules of the file and ends all faults", "data-changes": true }),
        el("span", { class: "grow" }),
        this.note,
      ),
      el(
        "div",
        { class: "halves" },
        el("div", { class: "stage scroll" }, this.table, this.empty),
        el("div", { class: "stage" }, el("header", {}, el("h3", {}, "Firings"), (this.total = el("span", { class: "note" }))), this.list.root, this.quiet),
      ),
    );
  }

  open() {
    this.end = poll(1, () => this.load());
    const filled = ask("GET", "firings?limit=200").then((answer) => {
      if (!this.firings.length) this.take(answer.firings);
    });
    filled.catch(() => {});
    this.stream = new Stream("firings/stream", {}, {
      firing: (one) => this.take([one]),
      lost: ({ events }) => (this.lost += events),
    });
  }

  leave() {
    this.end?.();
    this.stream?.close();
  }

  async load() {
    const { rules, removed } = await ask("GET", "rules");
    const names = new Set(rules.map((one) => one.rule.name));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) {
        row.root.remove();
        this.rows.delete(name);
      }
    }
    for (const one of rules) {
      const row = this.rows.get(one.rule.name) ?? this.make(one);
      this.update(row, one);
    }
    rules.forEach((one, at) => {
      const { root } = this.rows.get(one.rule.name);
      if (this.table.children[at] !== root) this.table.insertBefore(root, this.table.children[at] ?? null);
    });
    this.empty.hidden = rules.length > 0;
    const on = rules.filter((one) => one.enabled).length;
    put(this.note, `${count(on)} of ${count(rules.length)} in force${removed.length ? `, ${count(removed.length)} from the file removed` : ""}`);
  }

  make(one) {
    const { name } = one.rule;
    const row = {};
    row.box = el("input", { type: "checkbox", role: "switch", "aria-label": `${line(name)} acts`, on: { change: () => this.turn(name, row.box.checked) } });
    row.title = el("b", {}, line(name, 100));
    row.kind = el("span", { class: "kind" });
    row.text = el("p", { class: "mono small" });
    row.state = el("span", { class: "note" });
    row.left = el("progress", { max: 1, hidden: true });
    row.fired = el("span", { class: "fired" });
    row.root = el(
      "article",
      { class: "rule" },
      el("label", { class: "switch", "data-changes": true }, row.box),
      el("div", { class: "rule-words" }, el("p", {}, row.title, " ", row.kind, " ", row.state), row.text, row.left),
      row.fired,
      el(
        "div",
        { class: "rule-acts" },
        button("Copy", () => copy(`[[rules]]\n${Object.entries(row.rule).map(([key, value]) => `${key} = ${toml(value)}`).join("\n")}\n`), { class: "quiet", title: "As in a rules file" }),
        button("Remove", () => this.act(() => ask("DELETE", `rules/${encodeURIComponent(name)}`)), { class: "quiet", "data-changes": true }),
      ),
    );
    this.rows.set(name, row);
    return row;
  }

  update(row, one) {
    const left = one.ends_in_ns;
    if (left !== null) row.whole = Math.max(row.whole ?? 0, left);
    row.rule = one.rule;
    if (document.activeElement !== row.box || !row.busy) row.box.checked = one.enabled;
    row.root.classList.toggle("off", !one.enabled);
    put(row.kind, line(one.rule.kind));
    put(row.text, shown(summary(one.rule)).slice(0, 2000));
    put(row.state, left === null ? ORIGINS[one.origin] : `ends in ${whole(left)}`);
    row.left.hidden = left === null;
    if (left !== null) row.left.value = left / row.whole;
    if (row.count !== undefined && one.firings > row.count) {
      row.fired.classList.remove("now");
      void row.fired.offsetWidth; // restarts the animation
      row.fired.classList.add("now");
    }
    row.count = one.firings;
    const acted = one.firings - one.would_fire;
    const told = [acted && `fired ${count(acted)}×`, one.would_fire && `would have fired ${count(one.would_fire)}×`];
    put(row.fired, told.filter(Boolean).join(", ") || "not fired");
  }

  turn(name, enabled) {
    this.act(() => ask("PATCH", `rules/${encodeURIComponent(name)}`, { enabled }));
  }

  async act(run) {
    try {
      await run();
    } catch (error) {
      say(error.message, true);
    }
    await this.load().catch(() => {});
  }

  async add() {
    const made = await faultForm({}, () => framesView.store.frames);
    if (made) await this.act(async () => say(`The fault ${line(made, 80)} is active.`));
  }

  reset() {
    this.act(async () => {
      await ask("POST", "reset");
      say("The rules of the file were restored.");
    });
  }

  take(found) {
    this.firings.push(...found);
    const most = this.list.following ? FIRINGS : 2 * FIRINGS;
    if (this.firings.length > most) {
      if (this.list.following) this.firings.splice(0, this.firings.length - FIRINGS);
      else this.firings.length = most;
    }
    this.soon ??= requestAnimationFrame(() => this.showFirings());
  }

  showFirings() {
    this.soon = undefined;
    this.list.set(this.firings);
    this.quiet.hidden = this.firings.length > 0;
    const newest = this.firings.at(-1);
    put(this.total, newest ? `${count(newest.number)} so far${this.lost ? `, ${count(this.lost)} not shown` : ""}` : "");
  }

  key(event) {
    if (event.key !== "f") return false;
    this.add();
    return true;
  }
}

export const rulesView = new RulesView();
