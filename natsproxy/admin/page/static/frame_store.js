// The frames in the page, in a ring bounded in frames and bytes, and their share of the traffic.
//
// While the reader is at some place in the list (`held`), the ring adds new frames and drops no old ones, up to
// twice its size; further frames are only counted.

const MOST = 5000; // frames
const MOST_BYTES = 32 << 20;
const OVERHEAD = 700; // bytes of a row without its payload
const LATELY = 25; // events, of which there are five a second

function sizeOf(row) {
  const texts = [row.payload, row.payload_hex, row.args, row.subject, row.reply, row.headers_raw];
  const letters = texts.reduce((n, text) => n + (text?.length ?? 0), row.headers ? JSON.stringify(row.headers).length : 0);
  return OVERHEAD + 2 * letters;
}

export class FrameStore {
  constructor() {
    this.held = false;
    this.next = 0; // the number of a frame in this page
    this.clear();
  }

  clear() {
    this.frames = [];
    this.size = 0;
    this.missed = 0;
    this.lately = [];
    this.clients = new Map();
  }

  /** Add the data of an event. */
  add({ frames, total, bytes, seen }) {
    for (const row of frames) {
      row.n = this.next++;
      row.room = sizeOf(row);
      if (row.client) this.named(row.client);
    }
    const room = this.held ? 2 * MOST - this.frames.length : frames.length;
    const taken = this.held && this.size > 2 * MOST_BYTES ? [] : frames.slice(0, Math.max(0, room));
    this.missed += frames.length - taken.length;
    for (const row of taken) {
      this.frames.push(row);
      this.size += row.room;
    }
    if (!this.held) this.trim();
    this.lately.push({ total, bytes, seen, at: performance.now() });
    if (this.lately.length > LATELY) this.lately.shift();
  }

  /** Return the frames of an event that are new: two streams may have the same ones. */
  unknown(frames) {
    const key = (row) => [row.conn, row.direction, row.in, row.out, row.t_ns].join(" ");
    const known = new Set(this.frames.slice(-1000).map(key));
    return frames.filter((row) => !known.has(key(row)));
  }

  /** Hold the reader's place, or release it. */
  hold(on) {
    this.held = on;
    this.missed = 0;
    if (!on) this.trim();
  }

  trim() {
    let gone = Math.max(0, this.frames.length - MOST);
    for (let at = 0; at < gone; at++) this.size -= this.frames[at].room;
    while (this.size > MOST_BYTES) this.size -= this.frames[gone++].room;
    if (gone) this.frames.splice(0, gone);
  }

  /** Remember a client's name for the filter, at most a hundred. */
  named(name) {
    this.clients.delete(name);
    this.clients.set(name, true);
    if (this.clients.size > 100) this.clients.delete(this.clients.keys().next().value);
  }

  /** The traffic of the last seconds: frames and bytes per second, and the share that was decoded: one in n. */
  get rates() {
    const [first, ...rest] = this.lately;
    if (!rest.length) return { frames: 0, bytes: 0, share: 1 };
    const seconds = Math.max(0.1, (rest.at(-1).at - first.at) / 1000);
    const sum = (key) => rest.reduce((n, one) => n + one[key], 0);
    const seen = sum("seen");
    return { frames: sum("total") / seconds, bytes: sum("bytes") / seconds, share: seen ? sum("total") / seen : 1 };
  }
}
