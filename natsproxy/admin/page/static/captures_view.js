// Captures: start and stop one, write a note into it, download its segments.

import { ask, path, poll } from "./api.js";
import { button, el, fill, labelled, line, put, say } from "./dom.js";
import { bytes, count, moment } from "./format.js";

const MOST = 200; // segments in one answer
const two = (n) => String(n).padStart(2, "0");

function freshName() {
  const now = new Date();
  return `page-${now.getFullYear()}${two(now.getMonth() + 1)}${two(now.getDate())}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}.ncap`;
}

class CapturesView {
  constructor() {
    this.name = el("input", { type: "text", value: freshName(), spellcheck: "false", autocomplete: "off", maxlength: 100 });
    this.subject = el("input", { type: "text", placeholder: "all", spellcheck: "false", autocomplete: "off", maxlength: 256 });
    this.mark = el("input", { type: "text", placeholder: "what is happening now", autocomplete: "off", maxlength: 1000 });
    this.dot = el("span", { class: "dot" });
    this.words = el("p", { class: "recording", role: "status" });
    this.start = el(
      "form",
      { class: "line", "data-changes": true, on: { submit: (event) => this.sent(event, () => this.begin()) } },
      labelled("File, or a folder for segments", this.name),
      labelled("Only subjects", this.subject),
      el("button", { type: "submit", class: "primary" }, "Record"),
    );
    this.during = el(
      "form",
      { class: "line", hidden: true, "data-changes": true, on: { submit: (event) => this.sent(event, () => this.note()) } },
      labelled("Mark", this.mark),
      el("button", { type: "submit" }, "Mark this moment"),
      button("New segment", () => this.act(() => ask("POST", "capture/rotate"), "A new segment was started."), { title: "Continue in another file" }),
      button("Stop", () => this.act(() => ask("DELETE", "capture"), "The capture was closed."), { class: "primary" }),
    );
    this.rows = el("tbody");
    this.total = el("span", { class: "note" });
    this.empty = el("p", { class: "empty" }, "No captures yet.");
    this.root = el(
      "section",
      { class: "view captures" },
      el("section", { class: "card" }, el("header", {}, this.dot, this.words), this.start, this.during),
      el(
        "section",
        { class: "card scroll" },
        el("header", {}, el("h3", {}, "Segments"), this.total),
        el("table", { class: "plain" }, el("thead", {}, el("tr", {}, el("th", {}, "Name"), el("th", { class: "right" }, "Size"), el("th", {}, "Written"), el("th", {}))), this.rows),
        this.empty,
      ),
    );
  }

  open() {
    this.end = poll(1.5, () => this.load());
  }

  leave() {
    this.end?.();
  }

  async load() {
    const [state, { total, segments }] = await Promise.all([ask("GET", "capture"), ask("GET", `capture/segments?limit=${MOST}`)]);
    this.dot.classList.toggle("on", state.recording);
    this.start.hidden = state.recording;
    this.during.hidden = !state.recording;
    const waiting = state.waiting ? `, ${bytes(state.waiting)} not written yet` : "";
    if (state.recording) put(this.words, `Recording to ${line(state.file, 400)}: ${bytes(state.size)}${waiting}`);
    else put(this.words, state.unwritten ? `The last capture is incomplete: ${line(state.unwritten)}` : "Nothing is being recorded.");
    this.words.classList.toggle("bad", !state.recording && Boolean(state.unwritten));
    const text = JSON.stringify(segments);
    if (text !== this.listed) this.list(segments);
    this.listed = text;
    put(this.total, total > segments.length ? `the first ${count(segments.length)} of ${count(total)}` : total ? count(total) : "");
    this.empty.hidden = total > 0;
  }

  list(segments) {
    fill(
      this.rows,
      segments.toReversed().map((one) =>
        el(
          "tr",
          {},
          el("td", { class: "mono" }, el("bdi", {}, line(one.name, 300)), one.writing && el("em", { class: "cause" }, " being written")),
          el("td", { class: "right" }, bytes(one.size)),
          el("td", {}, moment(one.modified_ns)),
          el("td", { class: "right" }, el("a", { href: path(`capture/segments/${one.name.split("/").map(encodeURIComponent).join("/")}`), download: true }, "Download")),
        ),
      ),
    );
  }

  sent(event, run) {
    event.preventDefault();
    run();
  }

  begin() {
    const body = { name: this.name.value.trim() };
    const subjects = this.subject.value.split(/[\s,]+/).filter(Boolean);
    if (subjects.length) body.settings = { subject: subjects };
    this.act(async () => {
      await ask("POST", "capture", body);
      this.name.value = freshName();
    }, "Recording.");
  }

  note() {
    const text = this.mark.value.trim();
    if (!text) return this.mark.focus();
    return this.act(async () => {
      await ask("POST", "capture/mark", { text });
      this.mark.value = "";
    }, "Marked.");
  }

  async act(run, words) {
    try {
      await run();
      say(words);
    } catch (error) {
      say(error.message, true);
    }
    await this.load().catch(() => {});
  }
}

export const capturesView = new CapturesView();
