// A conversation: the frames that belong together, as one sequence between clients and the server.
//
// Frames belong together
// 1. by a reply subject: the request, its deliveries, and the answers to it;
// 2. by a message of a stream: its publish ack, its deliveries and their acks;
// 3. as copies: a publish without a reply subject and the deliveries of the same subject and payload after it.
//
// Only the frames in the page are searched, which may be a sample of the traffic.

import { el, fill, line, put } from "./dom.js";
import { clock, duration } from "./format.js";
import { fate, preview } from "./frame_detail.js";
import { DELIVERIES, PUBLISHES } from "./ops.js";

const MOST = 200; // frames in one conversation
const COPIES_NS = 5e9; // the time within which copies are delivered
const MOST_LANES = 4; // connections with a lane of their own
const MESSAGES = [...PUBLISHES, ...DELIVERIES];

/** Return the keys that a message shares with related ones. */
function keys(row) {
  const found = [];
  if (row.reply && !row.reply.startsWith("$JS.ACK.")) found.push(`to ${row.reply}`);
  if (row.subject && !row.subject.startsWith("$JS.ACK.")) found.push(`to ${row.subject}`);
  const { stream, stream_seq: seq } = row.meaning ?? {};
  if (stream && seq) found.push(`at ${stream} ${seq}`);
  return found;
}

/** Return the keys to start a search with: a subject counts only if it is the reply subject of some frame. */
function opening(row, replies) {
  return keys(row).filter((key) => key.startsWith("at ") || replies.has(key.slice(3)));
}

const same = (a, b) => a.subject === b.subject && a.payload === b.payload && a.payload_hex === b.payload_hex && a.reply === b.reply;

function copies(row, frames) {
  const isCopy = (other) => MESSAGES.includes(other.op) && same(row, other) && Math.abs(other.t_ns - row.t_ns) <= COPIES_NS;
  const alike = frames.filter(isCopy);
  const sent = alike.filter((one) => PUBLISHES.includes(one.op) && one.t_ns <= row.t_ns).at(-1);
  if (!sent) return [row];
  const next = alike.find((one) => PUBLISHES.includes(one.op) && one.t_ns > sent.t_ns && one !== row);
  return alike.filter((one) => one === sent || (!PUBLISHES.includes(one.op) && one.t_ns >= sent.t_ns && (!next || one.t_ns < next.t_ns)));
}

/** Return the frames of a frame's conversation, in order. */
export function conversation(row, frames) {
  if (!MESSAGES.includes(row.op)) return [row];
  const replies = new Set(frames.map((one) => one.reply).filter(Boolean));
  const found = new Set([row]);
  const known = new Set();
  let wanted = new Set(opening(row, replies));
  while (wanted.size && found.size < MOST) {
    const next = new Set();
    for (const key of wanted) known.add(key);
    for (const one of frames) {
      if (!MESSAGES.includes(one.op) || !keys(one).some((key) => wanted.has(key))) continue;
      found.add(one);
      for (const key of opening(one, replies)) if (!known.has(key)) next.add(key);
      if (found.size >= MOST) break;
    }
    wanted = next;
  }
  if (found.size === 1) for (const one of copies(row, frames)) found.add(one);
  return [...found].sort((a, b) => a.t_ns - b.t_ns || a.n - b.n).slice(0, MOST);
}

/** The pane with a conversation. */
export class Conversation {
  /** choose(row): called when a frame of it is selected. */
  constructor(choose) {
    this.choose = choose;
    this.note = el("p", { class: "note" });
    this.body = el("div", { class: "sequence" });
    this.root = el("section", { class: "conversation", "aria-label": "Conversation" }, el("header", {}, el("h3", {}, "Conversation")), this.note, this.body);
  }

  show(row, frames) {
    const found = conversation(row, frames);
    this.root.hidden = found.length < 2;
    this.count = found.length;
    if (this.root.hidden) return;
    const lanes = [...new Set(found.map((one) => one.conn))];
    const wide = lanes.length <= MOST_LANES;
    // The server's lane follows the first client: requester, server, responders.
    const at = new Map(lanes.map((conn, index) => [conn, index === 0 ? 1 : index + 2]));
    const columns = wide ? Math.max(2, lanes.length + 1) : 2;
    this.body.style.setProperty("--lanes", columns);
    const names = lanes.map((conn) => this.lane(found.find((one) => one.conn === conn), wide ? at.get(conn) : 1));
    const server = el("div", { class: "lane server" }, "server");
    server.style.gridColumn = "2";
    const first = found[0];
    put(this.note, this.sentence(found));
    fill(
      this.body,
      el("div", { class: "lanes" }, wide ? [names[0], server, ...names.slice(1)] : [server]),
      found.map((one) => this.step(one, one.t_ns - first.t_ns, wide ? at.get(one.conn) : 1, one === row)),
    );
  }

  lane(row, column) {
    const node = el("div", { class: "lane" }, el("bdi", {}, `#${row.conn} ${line(row.client ?? "", 40)}`));
    node.style.gridColumn = String(column);
    return node;
  }

  sentence(found) {
    const answer = found.find((one) => one.request && one.direction === "s2c");
    const held = found.reduce((sum, one) => sum + (one.delay_ns || 0), 0);
    const parts = [`${found.length} frames in ${duration(found.at(-1).t_ns - found[0].t_ns)}`];
    if (answer) parts.push(`answered after ${duration(answer.request.after_ns)}`);
    if (held) parts.push(`held for ${duration(held)} by rules`);
    const lost = found.filter((one) => one.out === null).length;
    if (lost) parts.push(`${lost} not passed`);
    return parts.join(", ");
  }

  step(row, after, column, chosen) {
    const toServer = row.direction === "c2s";
    const arrow = el(
      "span",
      { class: `arrow ${row.direction} ${column > 2 === toServer ? "left" : "right"} ${row.out === null ? "lost" : ""}` },
      el("span", { class: "words" }, el("b", {}, line(row.op)), " ", el("bdi", { class: "mono" }, line(row.subject ?? "", 120))),
    );
    arrow.style.gridColumn = column < 2 ? "1 / span 2" : `2 / span ${column - 1}`;
    const said = fate(row);
    return el(
      "button",
      { type: "button", class: chosen ? "step chosen" : "step", "aria-pressed": chosen, title: clock(row.t_ns), on: { click: () => this.choose(row) } },
      el("span", { class: "after" }, after ? `+${duration(after)}` : "0"),
      el("span", { class: "tracks" }, arrow),
      el("span", { class: "what" }, el("bdi", {}, preview(row)), (said || row.cause) && el("em", { class: "cause" }, [row.cause && line(row.cause), said].filter(Boolean).join(": "))),
    );
  }
}
