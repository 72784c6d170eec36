// Live frames: the filter, the list, and beside it one frame with its conversation.

import { Stream } from "./api.js";
import { button, el, labelled, line, put, say, select } from "./dom.js";
import { bytes, clock, count, duration, short } from "./format.js";
import { Conversation } from "./conversation.js";
import { faultForm } from "./fault_form.js";
import { fate, FrameDetail, preview } from "./frame_detail.js";
import { FilterBar } from "./filter_bar.js";
import { FrameStore } from "./frame_store.js";
import { VirtualList } from "./virtual_list.js";
import { words } from "./words.js";

const NARROW = matchMedia("(max-width: 720px)");
const HEIGHTS = { narrow: 50, wide: 25 }; // of a row, as in views.css
const LIMIT = 200; // frames in one event
const PAYLOADS = [["256", "256 B"], ["2048", "2 kB"], ["16384", "16 kB"], ["65536", "64 kB"]];
const GROWS_NS = 15e9; // the age of a frame up to which its conversation may grow
const ARROWS = { c2s: "→", s2c: "←" };
const CELLS = ["at", "conn", "way", "op", "subject", "about", "size", "took"];

function makeRow() {
  const cells = CELLS.map((name) => el("span", { class: name }));
  const node = el("div", { class: "row frame" }, cells);
  node.cells = cells;
  return node;
}

function showRow(node, row) {
  if (node.row === row) return;
  node.row = row;
  const [at, conn, way, op, subject, about, size, took] = node.cells;
  const said = fate(row);
  put(at, clock(row.t_ns));
  put(conn, `#${row.conn} ${line(row.client ?? "", 60)}`);
  put(way, ARROWS[row.direction]);
  put(op, row.op ?? "?");
  put(subject, line(row.subject ?? "", 300));
  put(about, [row.cause && line(row.cause, 80), said].filter(Boolean).join(": ") + (row.cause || said ? "  " : "") + preview(row));
  put(size, row.size === undefined ? "" : bytes(row.size));
  put(took, row.request ? duration(row.request.after_ns) : "");
  const classes = ["row", "frame", row.direction];
  if (row.op === "-ERR" || row.meaning?.bad) classes.push("wrong");
  if ((row.cause || said) && !row.routine) classes.push(row.out === null ? "lost" : "bent");
  node.className = classes.join(" ");
}

class FramesView {
  constructor() {
    this.store = new FrameStore();
    this.paused = false;
    this.unread = 0;
    this.older = []; // streams that end when the newest has started
    this.filter = new FilterBar(() => this.refilter());
    this.list = new VirtualList({
      make: makeRow,
      show: showRow,
      height: this.height(),
      label: "Frames",
      selected: (row) => this.select(row),
      moved: (following) => this.follow(following),
    });
    NARROW.addEventListener("change", () => this.list.setHeight(this.height()));
    this.detail = new FrameDetail({
      fault: (row) => this.fault(row),
      filter: (values) => this.filter.set(values),
      close: () => this.close(),
    });
    this.talk = new Conversation((row) => this.goTo(row));
    this.payload = select(PAYLOADS, "2048", { on: { change: () => this.reopen() } });
    this.pauseButton = button("Pause", () => this.pause(), { title: "Space" });
    this.newer = button("", () => this.newest(), { class: "newer", hidden: true });
    this.state = el("span", { class: "state" });
    this.share = el("span", { class: "share" });
    this.empty = el("p", { class: "empty" });
    this.bar = el(
      "div",
      { class: "tools" },
      this.pauseButton,
      button("Fault…", () => this.fault(null), { title: "f", "data-changes": true }),
      button("Clear list", () => this.clear(), { class: "quiet" }),
      labelled("Payload", this.payload, { class: "field beside", title: "Bytes of each payload sent to the page" }),
      el("span", { class: "grow" }),
      this.state,
      this.share,
    );
    this.side = el("aside", { class: "side", hidden: true }, this.talk.root, this.detail.root);
    this.root = el(
      "section",
      { class: "view frames" },
      this.filter.root,
      this.bar,
      el("div", { class: "split" }, el("div", { class: "stage" }, this.list.root, this.empty, this.newer), this.side),
    );
    words().then((all) => this.filter.setRoles(all.roles), () => {});
  }

  height() {
    return NARROW.matches ? HEIGHTS.narrow : HEIGHTS.wide;
  }

  open(values) {
    if (values) this.filter.set({ ...Object.fromEntries(Object.keys(this.filter.value).map((key) => [key, key === "op" ? "calm" : ""])), ...values });
    this.reopen();
  }

  /** Open a stream with other parameters; the old one runs until it has started, so that no frame is missed. */
  reopen() {
    this.older.push(this.stream);
    this.opened = JSON.stringify([this.filter.params, this.payload.value]);
    let begun = false;
    const stream = new Stream("frames/stream", { ...this.filter.params, payload: this.payload.value, limit: LIMIT }, {
      frames: (data) => {
        if (!begun) data.frames = this.store.unknown(data.frames);
        begun = true;
        if (stream === this.stream) this.closeOlder();
        this.take(data);
      },
      state: (state) => stream === this.stream && this.root.setAttribute("data-stream", state),
    });
    this.stream = stream;
  }

  closeOlder() {
    for (const stream of this.older.splice(0)) stream?.close();
  }

  leave() {
    this.closeOlder();
    this.stream?.close();
    this.stream = null;
  }

  refilter() {
    if (this.stream && this.opened !== JSON.stringify([this.filter.params, this.payload.value])) this.reopen();
    this.show(true);
  }

  take(data) {
    this.root.setAttribute("data-stream", "open");
    if (this.paused) this.unread += data.frames.length;
    else {
      this.store.add(data);
      if (!this.list.following) this.unread += data.frames.filter(this.filter.test()).length;
      this.show(data.frames.length > 0);
      this.goOn();
    }
    this.tell();
  }

  show(changed) {
    if (changed) {
      this.shown = this.store.frames.filter(this.filter.test());
      this.list.set(this.shown);
      this.filter.setClients([...this.store.clients.keys()]);
    }
    this.empty.hidden = this.shown?.length > 0;
    if (!this.empty.hidden) put(this.empty, this.emptyWords());
    put(this.newer, this.unread ? `${count(this.unread)} new ↓` : "To the newest ↓");
    this.newer.hidden = this.list.following || this.paused;
  }

  emptyWords() {
    if (this.store.frames.length) return "No frame here matches the filter. New ones that match will appear.";
    return "No frames yet. They appear as soon as a client sends something through the proxy.";
  }

  tell() {
    const { frames, bytes: size, share } = this.store.rates;
    put(this.state, `${short(frames)} frames/s, ${bytes(size)}/s`);
    const n = Math.round(share);
    put(this.share, this.paused ? `paused, ${count(this.unread)} missed` : n > 1 ? `1 in ${count(n)} shown` : "all shown");
    this.share.title = "Busy traffic is sampled; rates and counters are exact.";
    this.share.classList.toggle("sampled", n > 1);
  }

  follow(on) {
    this.store.hold(!on);
    this.unread = 0;
    this.show(on);
  }

  newest() {
    this.list.follow(true);
    this.list.root.focus();
  }

  pause() {
    this.paused = !this.paused;
    this.unread = 0;
    put(this.pauseButton, this.paused ? "Resume" : "Pause");
    this.root.classList.toggle("paused", this.paused);
    this.show(false);
    this.tell();
  }

  clear() {
    this.store.clear();
    this.unread = 0;
    this.list.choose(null);
    this.list.follow(true);
    this.show(true);
  }

  // -- one frame

  select(row) {
    this.side.hidden = !row;
    this.root.classList.toggle("with-side", Boolean(row));
    if (!row) return;
    this.detail.show(row);
    this.talk.show(row, this.store.frames);
    this.side.classList.toggle("two", !this.talk.root.hidden);
  }

  /** Extend a conversation that is still going on. */
  goOn() {
    const row = this.list.chosen;
    const newest = this.store.frames.at(-1);
    if (!row || !newest || newest.t_ns - row.t_ns > GROWS_NS) return;
    this.talk.show(row, this.store.frames);
    this.side.classList.toggle("two", !this.talk.root.hidden);
  }

  goTo(row) {
    const index = this.shown.indexOf(row);
    this.list.choose(row);
    if (index >= 0) this.list.reveal(index);
  }

  close() {
    this.list.choose(null);
    this.list.root.focus();
  }

  async fault(row) {
    const given = row === null ? { subject: this.filter.value.subject } : { subject: row.request && row.direction === "s2c" ? row.request.subject : row.subject, direction: row.direction };
    if (row?.request && row.direction === "s2c") given.direction = "c2s";
    const made = await faultForm(given, () => this.store.frames);
    if (made) say(`The fault ${line(made, 80)} is active.`);
  }

  key(event) {
    const { key } = event;
    if (key === " ") this.pause();
    else if (key === "/") this.filter.controls.subject.focus();
    else if (key === "f") this.fault(this.list.chosen);
    else if (key === "Escape" && this.list.chosen) this.close();
    else if (["ArrowDown", "ArrowUp", "End", "Home", "PageDown", "PageUp"].includes(key) && document.activeElement !== this.list.root) this.list.key(event);
    else return false;
    return true;
  }
}

export const framesView = new FramesView();
