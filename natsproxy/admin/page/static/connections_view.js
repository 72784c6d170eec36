// Connections: the list with rates, and one with its subscriptions; suspend, pause, close.

import { RequestFailed, ask, poll } from "./api.js";
import { button, el, fill, labelled, line, put, say, shown } from "./dom.js";
import { bytes, count, duration, glob, moment, short } from "./format.js";
import { VirtualList } from "./virtual_list.js";

const MOST = 1000; // connections in one answer
const SUBS = 500; // subscriptions in one answer
const HEIGHT = 30;
const PERIOD = 1; // seconds
/** What stands behind a user, by whose word it is. */
export const BY = { client: " (claimed)", server: " (accepted by the server)", natsproxy: " (checked by natsproxy)", certificate: " (by its certificate)" };
// Name, text, sort order of the API (null: sorted here), sort key for that, and whether it is descending.
const COLUMNS = [
  ["conn", "#", "cid", (one) => one.conn, false],
  ["name", "Client", null, (one) => one.name || one.client, false],
  ["user", "User", null, (one) => one.user, false],
  ["lang", "Library", null, (one) => `${one.lang} ${one.version}`, false],
  ["subs", "Subs", "subs", (one) => one.subscriptions, true],
  ["inrate", "→ msgs/s", null, (one) => one.in_rate, true],
  ["outrate", "← msgs/s", null, (one) => one.out_rate, true],
  ["inbytes", "→ bytes", "bytes_from", (one) => one.in_bytes, true],
  ["outbytes", "← bytes", "bytes_to", (one) => one.out_bytes, true],
  ["waiting", "Waiting", "pending", (one) => one.waiting, true],
  ["rtt", "RTT", "rtt", (one) => one.rtt_ns, true],
  ["since", "Since", "uptime", (one) => one.since_ns, true],
];

function makeRow() {
  const cells = COLUMNS.map(([name]) => el("span", { class: name }));
  const node = el("div", { class: "row peer" }, cells);
  node.cells = cells;
  return node;
}

function showRow(node, one) {
  const texts = [
    `#${one.conn}`,
    line(one.name || one.client, 200),
    line(one.user, 100),
    line([one.lang, one.version].filter(Boolean).join(" "), 60),
    count(one.subscriptions),
    short(one.in_rate),
    short(one.out_rate),
    bytes(one.in_bytes),
    bytes(one.out_bytes),
    one.waiting ? bytes(one.waiting) : "",
    one.rtt_ns ? duration(one.rtt_ns) : "",
    duration(Math.max(0, one.now - one.since_ns)),
  ];
  node.cells.forEach((cell, at) => put(cell, texts[at]));
  node.className = one.waiting > 1e6 ? "row peer wrong" : "row peer";
}

class ConnectionsView {
  constructor() {
    this.order = { name: "conn", down: false };
    this.byConn = new Map();
    this.list = new VirtualList({ make: makeRow, show: showRow, height: HEIGHT, label: "Connections", follows: false, selected: (one) => this.select(one) });
    this.find = el("input", { type: "search", placeholder: "name, user, address, library", autocomplete: "off", on: { input: () => this.show() } });
    this.note = el("span", { class: "state" });
    this.head = el("div", { class: "row peer columns" });
    this.detail = el("article", { class: "detail", "aria-label": "Connection" });
    this.side = el("aside", { class: "side", hidden: true }, this.detail);
    this.empty = el("p", { class: "empty" }, "No connections.");
    this.heads();
    this.root = el(
      "section",
      { class: "view connections" },
      el("div", { class: "tools" }, labelled("Find", this.find, { class: "field beside" }), el("span", { class: "grow" }), this.note),
      el("div", { class: "split" }, el("div", { class: "stage" }, this.head, this.list.root, this.empty), this.side),
    );
  }

  heads() {
    fill(
      this.head,
      COLUMNS.map(([name, text]) => {
        const mine = this.order.name === name;
        const sorted = mine ? (this.order.down ? "descending" : "ascending") : "none";
        return el("button", { type: "button", class: name, "aria-sort": sorted, on: { click: () => this.sort(name) } }, text, mine ? (this.order.down ? " ▾" : " ▴") : "");
      }),
    );
  }

  sort(name) {
    const large = COLUMNS.find((column) => column[0] === name)[4];
    this.order = this.order.name === name ? { name, down: !this.order.down } : { name, down: large };
    this.heads();
    this.load();
  }

  open() {
    this.end = poll(PERIOD, () => this.load());
  }

  leave() {
    this.end?.();
  }

  async load() {
    const order = COLUMNS.find((column) => column[0] === this.order.name)[2] ?? "cid";
    const answer = await ask("GET", `traffic?limit=${MOST}&sort=${order}`);
    const seconds = this.last ? (answer.clock_ns - this.last) / 1e9 : 0;
    const before = this.byConn;
    this.last = answer.clock_ns;
    this.total = answer.total;
    this.byConn = new Map();
    for (const one of answer.connections) {
      const old = before.get(one.conn);
      const rate = (key) => (old && seconds > 0 ? Math.max(0, one[key] - old[key]) / seconds : 0);
      const news = { ...one, now: answer.time_ns, in_rate: rate("in_msgs"), out_rate: rate("out_msgs") };
      this.byConn.set(one.conn, old ? Object.assign(old, news) : news);
    }
    this.show();
    if (this.list.chosen) await this.details(this.list.chosen.conn);
  }

  show() {
    const [, , , value] = COLUMNS.find((column) => column[0] === this.order.name);
    const text = this.find.value.trim().toLowerCase();
    const wanted = /[*?]/.test(text) ? glob(`*${text}*`) : null;
    const found = [...this.byConn.values()].filter((one) => {
      const words = `${one.name} ${one.user} ${one.account} ${one.client} ${one.lang} ${one.version} #${one.conn}`.toLowerCase();
      return text === "" || (wanted ? wanted.test(words) : words.includes(text));
    });
    const sign = this.order.down ? -1 : 1;
    found.sort((a, b) => sign * compare(value(a), value(b)) || a.conn - b.conn);
    this.list.set(found);
    this.empty.hidden = found.length > 0;
    const more = this.total > this.byConn.size ? `, showing the first ${count(this.byConn.size)} in this order` : "";
    put(this.note, `${count(this.total ?? 0)} open${found.length < this.byConn.size ? `, ${count(found.length)} shown` : ""}${more}`);
  }

  // -- one connection

  select(one) {
    this.side.hidden = !one;
    this.root.classList.toggle("with-side", Boolean(one));
    if (one) this.details(one.conn);
  }

  async details(conn) {
    let one;
    try {
      one = await ask("GET", `connections/${conn}?limit=${SUBS}`);
    } catch (error) {
      if (error instanceof RequestFailed && error.status === 404) fill(this.detail, el("p", { class: "empty" }, `Connection #${conn} is closed.`));
      return;
    }
    if (this.list.chosen?.conn !== conn) return;
    const text = JSON.stringify([conn, one.subs, one.suspended, one.paused, one.phase, one.connect]);
    if (this.detailed !== text) this.build(one);
    this.detailed = text;
    put(this.counts, counted(one));
  }

  build(one) {
    this.counts = el("p", { class: "note" });
    const change = (body) => () => this.act(() => ask("PATCH", `connections/${one.conn}`, body));
    const end = (query, words) => () => this.act(() => ask("DELETE", `connections/${one.conn}${query}`), words);
    const facts = { Client: one.client, Server: one.upstream, User: one.user && `${one.user}${BY[one.user_by] || ""}`, Account: one.account, "TLS subject": one.tls_subject, Key: one.key, Phase: one.phase, Since: moment(one.since_ns) };
    const hidden = one.subscriptions - one.subs.length;
    fill(
      this.detail,
      el("header", { class: "head" }, el("span", { class: "op" }, `#${one.conn}`), el("h2", {}, el("bdi", {}, line(one.name || one.client))), button("✕", () => this.close(), { class: "quiet close", "aria-label": "Close the pane (Escape)" })),
      (one.suspended || one.paused) && el("p", { class: "changed" }, one.suspended ? "Suspended: its messages are dropped, it stays open." : "Paused: nothing is read from it."),
      el(
        "div",
        { class: "actions" },
        button("Its frames", () => (location.hash = `#frames?conn=${one.conn}`), { class: "primary" }),
        button(one.suspended ? "Resume" : "Suspend", change({ suspended: !one.suspended }), { title: "Drop its messages; it stays open", "data-changes": true }),
        button(one.paused ? "Resume reading" : "Pause 10 s", change({ paused: one.paused ? false : "10s" }), { title: "Stop reading from it; nothing is lost", "data-changes": true }),
        button("Close", end("", "closed"), { title: "The client reconnects", "data-changes": true }),
        button("Reset", end("?reset=true", "reset"), { title: "Close with RST", "data-changes": true }),
      ),
      this.counts,
      el("dl", { class: "facts" }, Object.entries(facts).filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, el("bdi", {}, line(value, 1000)))])),
      el("section", {}, el("header", {}, el("h3", {}, `Subscriptions (${count(one.subscriptions)})`)), subscriptions(one.subs), hidden > 0 && el("p", { class: "note" }, `and ${count(hidden)} more`)),
      one.connect && el("section", {}, el("header", {}, el("h3", {}, "CONNECT, without secrets")), el("pre", { class: "payload" }, shown(JSON.stringify(one.connect, null, 2)))),
    );
  }

  async act(run, words) {
    try {
      await run();
      if (words) say(`The connection is ${words}.`);
      await this.load();
    } catch (error) {
      say(error.message, true);
    }
  }

  close() {
    this.list.choose(null);
    this.detailed = null;
    this.list.root.focus();
  }

  key(event) {
    if (event.key === "/") this.find.focus();
    else if (event.key === "Escape" && this.list.chosen) this.close();
    else if (["ArrowDown", "ArrowUp"].includes(event.key) && document.activeElement !== this.list.root) this.list.key(event);
    else return false;
    return true;
  }
}

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);

function counted({ counts }) {
  const waiting = counts.to_client_waiting + counts.to_server_waiting;
  return `→ ${count(counts.c2s_frames)} frames, ${bytes(counts.c2s_bytes)}   ← ${count(counts.s2c_frames)} frames, ${bytes(counts.s2c_bytes)}${waiting ? `   ${bytes(waiting)} waiting` : ""}`;
}

function subscriptions(subs) {
  if (!subs.length) return el("p", { class: "note" }, "None.");
  const rows = subs.map((one) =>
    el("tr", {}, el("td", { class: "mono" }, el("bdi", {}, line(one.subject, 1000))), el("td", {}, el("bdi", {}, line(one.queue))), el("td", { class: "right" }, count(one.delivered) + (one.max ? ` of ${count(one.max)}` : "")), el("td", { class: "right" }, line(one.sid))),
  );
  return el("table", { class: "plain" }, el("thead", {}, el("tr", {}, ["Subject", "Queue", "Delivered", "Sid"].map((text, at) => el("th", { class: at > 1 ? "right" : "" }, text)))), el("tbody", {}, rows));
}

export const connectionsView = new ConnectionsView();
