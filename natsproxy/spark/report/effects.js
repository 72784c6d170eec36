// What came of it: JetStream, what went wrong, errors, faults, connections, gaps.

const names = new Map((data.connections?.listed ?? []).map((c) => [c.conn, c.name]));
const who = (conn) => (conn === null ? "–" : `${names.get(conn) ?? ""} #${conn.split("#")[1]}`.trim());
const part = (id, heading, found, draw) => [
  el("h3", { id }, heading), ...(found ? draw(found) : [el("p", { class: "empty" }, data.empty[id])]),
];

const ANSWERS = [["ack", "good", "ack"], ["wpi", "c2s", "in progress"], ["next", "s2c", "next"], ["not asked", "track", "not asked for"], ["unknown", "track", "unknown"], ["nak", "fault", "nak"], ["term", "bad", "term"], ["other", "busy", "other"], ["none", "mute", "no answer"]];

const LINES = ["c2s", "fault", "s2c", "busy", "bad", "good"];

function pendingOverTime(listed) {
  const shown = listed.filter((row) => row.pending > 0).sort((a, b) => b.pending - a.pending).slice(0, LINES.length);
  if (!shown.length) return [];
  return [
    el("p", { class: "keys" }, shown.map((row, at) => stroke(`line ${LINES[at]}`, `${row.stream} · ${row.consumer}`))),
    lines("Messages pending", shown.map((row, at) => [row.consumer, LINES[at], row.over]), short, POINTS, () => `at most ${num(shown[0].pending)}, for ${shown[0].consumer}`),
  ];
}

function deliveries({ listed, whole }) {
  const most = Math.max(...listed.map((row) => row.deliveries)), used = ANSWERS.filter(([name]) => whole[name]);
  return [
    ...pendingOverTime(listed),
    el("p", { class: "keys" }, used.map(([, kind, label]) => key(kind, label))),
    table([
      { ...subject("stream", "stream"), kind: "name" }, subject("consumer", "consumer"), tally("deliveries", "deliveries"),
      { label: "answers", kind: "wide", show: (row) => stack(used.map(([name, kind]) => [row[name], kind]), most, used.map(([name, , label]) => `${num(row[name])} ${label}`).join(", ")) },
      warning("redelivered", "redelivered", "Deliveries of a message that was delivered before"),
      tally("pending", "pending", "The most messages that waited for the consumer"),
      { label: "most", note: "How often one message was delivered at most", value: (row) => row.most, show: (row) => `${num(row.most)} ×` },
      ...used.map(([name, , label]) => tally(label, name)),
      { label: "answer p50", value: (row) => row.latency?.[0], show: (row) => dur(row.latency?.[0]) },
      { label: "p99", value: (row) => row.latency?.[2], show: (row) => dur(row.latency?.[2]) },
    ], listed),
  ];
}

const publishes = (rows) => [table([
  subject(), { ...subject("stream", "stream"), kind: "name" }, tally("publishes", "publishes"), tally("acknowledged", "ack"),
  tally("duplicate", "duplicate"), warning("error", "error"), warning("no ack", "no_ack"), warning("no responders", "no_responders"),
  ...quantiles().filter(({ label }) => label !== "p90"),
  { label: "error", kind: "text", value: (row) => row.error_text, show: (row) => row.error_text ?? "–" },
].filter(({ label }) => label !== "error" || rows.some((row) => row.error_text)), rows)];

const api = ({ listed, errors: failed }) => [
  table([
    subject("call", "verb"), tally("calls", "calls"), warning("errors", "errors"), warning("no answer", "unanswered"), ...quantiles(),
  ], listed),
  failed.length ? table([
    subject("failed call", "verb"), { label: "code", value: (row) => row.err_code, show: (row) => row.err_code ?? "–" },
    { label: "error", kind: "text", value: (row) => row.text, show: (row) => row.text }, tally("times", "count"),
  ], failed) : null,
];

const jetstream = () => [
  ...part("deliveries", "Deliveries and the answers of consumers", data.deliveries, deliveries),
  ...part("publishes", "Publishes", data.publishes, publishes),
  ...part("js_api", "API calls", data.js_api, api),
];

// Statements of checks: how many, and each with its proof.
function checks({ by, listed }) {
  const frames = (row) => table([
    { label: "at", value: (frame) => frame.t, show: (frame) => clock(frame.t, true) },
    { label: "connection", kind: "name", value: (frame) => frame.conn, show: (frame) => `${who(frame.conn)} ${frame.dir ? "←" : "→"}` },
    { label: "ordinal", note: "Its number in that direction of the connection", value: (frame) => frame.ordinal },
    { label: "frame", kind: "text", value: (frame) => frame.text, show: (frame) => code(frame.text) },
    { label: "rule", kind: "name", note: "The one that dropped, made or changed it", value: (frame) => frame.rule, show: (frame) => (frame.rule ? tag(frame.rule, "fault") : "–") },
  ], row.frames, row.more ? `And ${many(row.more, "more frame")}, in the table findings.` : null);
  return [
    table([
      { label: "check", kind: "text", value: (row) => row.check, show: (row) => code(row.check) },
      warning("found", "found"), tally("cannot say", "cannot_say", "The recording is too partial"),
    ], by),
    ...listed.map((row) => kept(row, () => el("details", { class: "slow stated" },
      el("summary", {}, el("b", {}, tag(row.found ? "found" : "cannot say", row.found ? "bad" : "")), row.sentence, code(row.check)),
      el("div", { class: "inside" },
        row.rules.length ? el("p", {}, "Rules that took part: ", row.rules.map((rule) => tag(rule, "fault"))) : null,
        row.frames.length ? frames(row) : el("p", { class: "empty" }, "It names no frame."))))),
  ];
}

const sender = (row) => (row.from_proxy === row.count ? tag("proxy", "fault") : row.from_proxy ? tag("both", "fault") : tag("server", "bad"));
const errorColumns = [
  { label: "sent by", kind: "name", value: (row) => row.from_proxy / row.count, show: sender },
  tally("conns", "connections"), at("first", "first"), at("last", "last"),
];

// Errors and failed requests over time: first how many, then the share.
function errorRates({ over, count: total }) {
  const rate = data.latency?.rate, coarse = data.latency?.coarse, each = Math.max(1, step / 1000);
  const per = step < 1000 ? ` in ${dur(step)}` : "/s", failed = rate && sum(rate.map(([, no]) => no));
  return [
    lines(`Errors per ${step < 1000 ? dur(step) : "second"}`, [["errors", "bad", over.map((n) => n / each)]], (n) => short(n), 1,
      () => `${many(sum(inView(over)), "error")} of ${num(total)}, at most ${short(Math.max(...inView(over)) / each)}${per}`),
    failed ? lines("Requests without a useful answer, in %", [["failed", "fault", rate.map(([all, no]) => (all ? (100 * no) / all : null))]],
      (part) => `${digits(part)} %`, coarse, () => `${percent(sum(inView(rate, coarse).map(([, no]) => no)), sum(inView(rate, coarse).map(([all]) => all)))} of requests: no answer, or no responders`) : null,
  ];
}

function errors(found) {
  const { count: total, listed, denied } = found;
  return [
    ...errorRates(found),
    table([
      { label: "kind", kind: "text", value: (row) => row.kind, show: (row) => code(row.kind) }, tally("times", "count"),
      { label: "share", kind: "wide", show: (row) => stack([[row.from_proxy, "fault"], [row.count - row.from_proxy, "bad"]], total, `${percent(row.count, total)} of all errors`) },
      ...errorColumns,
    ], listed),
    ...(denied.length ? [el("h3", { id: "denied" }, "Denied permissions"), table([
      subject(),
      { label: "denied", kind: "name", value: (row) => row.kind, show: (row) => row.kind.replace(/^Permissions Violation for (\w+).*$/, "$1").toLowerCase() },
      tally("times", "count"), ...errorColumns,
    ], denied)] : [el("p", { class: "empty" }, "No permission was denied.")]),
  ];
}

function unansweredOver({ cells, coarse }) {
  const values = new Array(Math.ceil(count / coarse)).fill(0);
  for (const [at, row, n] of cells) if (row === null) values[at] += n;
  return values;
}

function ruleStrips({ count: total, strips: fired }) {
  const asked = data.latency, tall = 38, band = 92, answered = asked?.over.some((o) => o);
  const strips = [
    ...fired.map((strip) => ({ name: strip.rule, values: strip.over, kind: "fault", coarse: 1 })),
    data.errors && { name: "errors sent to clients", values: data.errors.over, kind: "bad", coarse: 1 },
    asked?.whole.unanswered && { name: "requests without an answer", values: unansweredOver(asked), kind: "bad", coarse: asked.coarse },
  ].filter(Boolean);
  const read = (at) => {
    const o = asked?.over[Math.floor(at / asked.coarse)];
    const hits = strips.map((s) => [s.name, s.values[Math.floor(at / s.coarse)]]).filter(([, n]) => n).map(([name, n]) => `${name} ${num(n)}`);
    return [...hits, o && `p50 ${dur(o[1])}, p99 ${dur(o[3])}`].filter(Boolean).join(" · ") || "nothing";
  };
  return overTime({
    title: "Rules, and the events meanwhile", left: 58, height: () => strips.length * tall + (answered ? band : 0) + BOTTOM + 4,
    summary: () => `${many(total, "firing")} of ${many(fired.length, "rule")}`, read,
    paint(root, x, width, floor) {
      strips.forEach((strip, place) => {
        const top = place * tall, sum = strip.values.reduce((a, b) => a + b, 0);
        marks(root, x, top + 16, tall - 20, strip.values, strip.kind, strip.coarse);
        root.append(svg("text", { class: "name halo", x: x(0), y: top + 12 }, clip(strip.name, width - x(0) - RIGHT)),
          svg("text", { x: x(0) - 6, y: top + 30, "text-anchor": "end" }, short(sum)));
      });
      if (!answered) return;
      const values = inView(asked.over, asked.coarse).flatMap((o) => (o ? [o[1], o[3]].map(scaled) : [])), low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values));
      const y = (ms) => floor - 6 - ((Math.log10(ms) - low) / (high - low || 1)) * (band - 34);
      root.append(svg("text", { class: "name halo", x: x(0), y: floor - band + 16 }, "request latency, p50 and p99"));
      const apart = Math.max(1, Math.ceil((14 * (high - low)) / (band - 34)));
      for (let power = Math.ceil(low); power <= high; power += apart) {
        root.append(svg("line", { class: "grid", x1: x(view.from), x2: x(view.to), y1: y(10 ** power), y2: y(10 ** power) }),
          svg("text", { x: x(0) - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, dur(10 ** power)));
      }
      quantileLines(root, x, y);
    },
  });
}

function faults(found) {
  const base = data.latency?.whole.latency, p99 = (row) => row.during?.latency?.[2];
  return [ruleStrips(found), table([
    { ...subject("rule", "rule"), show: (row) => el("span", { title: `${clock(row.first)} to ${clock(row.last)}${row.example ? `, for example on ${row.example}` : ""}` }, code(row.rule)) },
    { label: "did", kind: "name", value: (row) => row.action, show: (row) => tag(row.action === row.kind ? row.kind : `${row.kind}: ${row.action}`, "fault") },
    tally("firings", "count"), tally("conns", "connections"),
    { label: "held p50", value: (row) => row.delay?.[0], show: (row) => dur(row.delay?.[0]) },
    tally("-ERR in 5 s", "error", "Firings after which the client got an error within 5 s that their action can cause"),
    warning("closed in 5 s", "closed", "Firings of actions that can end a connection, after which it did within 5 s, not by the client's wish"),
    warning("no reply", "unanswered", "Firings on a request that was never answered"),
    { label: "reply p50", note: "From the firing to the reply of its request", value: (row) => row.reply?.[0], show: (row) => dur(row.reply?.[0]) },
    { label: "meanwhile p99", note: `Of all requests that began in the steps (${dur(step)}) in which the rule fired`, value: p99, show: (row) => dur(p99(row)), hot: (row) => base && p99(row) > 1.5 * base[2] },
  ], found.listed, base ? `Over the whole capture requests took p50 ${dur(base[0])}, p99 ${dur(base[2])}.` : null)];
}

// -- connections

const ending = (c) => (c.clean ? (c.closed === null ? "c2s" : "s2c") : "bad");
const from = (c) => c.opened ?? 0, until = (c) => c.closed ?? span;

function lifelines(listed, total) {
  const row = listed.length > 30 ? 16 : 20, left = () => listed.filter(fits), text = (c) => `${c.name || c.client || ""}${c.clean ? "" : ` · ${c.detail || c.cause}`}`;
  const inside = (c, at) => from(c) < (at + 1) * step && until(c) >= at * step;
  return overTime({
    title: "From first to last", height: () => left().length * row + BOTTOM + 4, left: 40,
    summary: () => total > listed.length ? `${num(listed.length)} of ${many(total, "connection")}: ends that were not clean first, then the busiest` : many(total, "connection"),
    read: (at) => `${num(listed.filter((c) => inside(c, at)).length)} of these open`,
    paint(root, x, width) {
      left().forEach((c, place) => {
        const top = place * row + 3, start = x(from(c)), wide = Math.max(3, x(until(c)) - start), late = start > width * 0.7;
        root.append(svg("rect", { class: ending(c), x: start, y: top + row - 9, width: wide, height: 4, rx: 2 }),
          svg("text", { x: 34, y: top + row - 5, "text-anchor": "end" }, `#${c.id}`),
          svg("text", { class: "name halo", x: late ? start + wide : start, y: top + row - 11, "text-anchor": late ? "end" : "start" }, clip(text(c), late ? start + wide - 40 : width - start)));
      });
    },
  });
}

function connections({ count: total, ends, listed }) {
  return [
    el("p", { class: "keys" }, key("s2c", "closed by the client, or drained"), key("c2s", "still open at the end"), key("bad", "ended otherwise")),
    el("div", { class: "chips" }, ends.map((end) => tag(`${num(end.count)} ${end.cause ?? "still open"}`, end.clean ? "" : "bad"))),
    lifelines(listed, total),
    table([
      { label: "#", note: "The recorder's number for it", value: (c) => c.id, show: (c) => el("span", { title: c.conn }, num(c.id)) },
      { label: "name", kind: "text", value: (c) => c.name || null, show: (c) => el("span", { title: c.client }, c.name || c.client || "–") },
      { label: "library", kind: "name", value: (c) => c.lang || null, show: (c) => c.lang || "–" },
      { label: "opened", value: (c) => c.opened, show: (c) => (c.opened === null ? "before" : clock(c.opened)) },
      { label: "lasted", value: (c) => until(c) - from(c), show: (c) => dur(until(c) - from(c)) },
      { label: "ended", kind: "text", value: (c) => c.cause, show: (c) => el("span", { title: c.detail }, tag(c.cause ?? "open", c.clean ? "" : "bad"), c.detail ? ` ${c.detail}` : "") },
      { label: "worst PING", note: "The longest round trip of a PING", value: (c) => c.rtt, show: (c) => dur(c.rtt) },
      { label: "silence", note: "The longest time without a frame, from a second on", value: (c) => c.silence, show: (c) => dur(c.silence) },
      tally("frames ↑", "c2s_frames", "From the client to the server"), tally("frames ↓", "s2c_frames", "From the server to the client"),
      { label: "bytes ↑", value: (c) => c.c2s_bytes, show: (c) => bytes(c.c2s_bytes) },
      { label: "bytes ↓", value: (c) => c.s2c_bytes, show: (c) => bytes(c.s2c_bytes) },
    ], listed),
    ...part("subscriptions", "Subscriptions", data.subscriptions, (rows) => [table([
      subject(), { label: "queue", kind: "name", value: (row) => row.queue, show: (row) => (row.queue ? code(row.queue) : "–") },
      tally("times", "count"), warning("refused", "refused", "A rule or the server refused it"), tally("open", "open", "When the capture ended"),
      tally("unsubscribed", "unsub"), tally("reached max", "max"), tally("closed", "close", "Ended with its connection"), warning("revoked", "revoked", "New permissions took it away"),
      tally("delivered", "delivered"), { label: "bytes", value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
    ], rows)]),
    ...(data.hops ? hops(data.hops) : []),
  ];
}

// Two proxies in a row that both recorded.
const hops = (rows) => [
  el("h3", { id: "hops" }, "Between two proxies"),
  table([
    { label: "from", kind: "name", value: (row) => row.sent_by, show: (row) => code(row.sent_by) },
    { label: "to", kind: "name", value: (row) => row.got_by, show: (row) => code(row.got_by) },
    tally("frames", "frames"), ...quantiles(),
  ], rows, "From the way out of the one to the arrival at the other, without the estimated difference of their clocks."),
];

// The lines of each client, and its block as nats-server takes it.
const permissions = ({ clients, listed, blocks }) => [
  clients > blocks.length ? el("p", { class: "note" }, `${num(blocks.length)} of ${many(clients, "client")}: those with most frames, as far as they fit here. natsproxy permissions --tables writes the blocks of all.`) : null,
  listed.length ? table([
    { label: "client", kind: "name", value: (row) => row.name, show: (row) => row.name }, { label: "may", kind: "name", value: (row) => row.allowed, show: (row) => row.allowed },
    { ...subject(), show: (row) => (row.allowed === "respond" ? "to the messages it got" : code(row.template)) },
    { label: "queue", kind: "name", value: (row) => row.queue || null, show: (row) => (row.queue ? code(row.queue) : "–") },
    tally("frames", "frames"), warning("denied", "denied", "The server's -ERRs about these frames"),
    { label: "values", note: "Different values of each *", value: (row) => parseInt(row.values, 10) || null, show: (row) => row.values || "–" },
    at("first", "first"), at("last", "last"),
  ], listed) : null,
  ...blocks.map((row) => el("details", { class: "more" }, el("summary", {}, `The block of ${row.name}: ${many(row.lines, "line")} of ${many(row.frames, "frame")}`),
    row.text === null ? el("p", { class: "empty" }, "It is too long for this page: natsproxy permissions --tables writes it.") : el("pre", { tabindex: "0" }, row.text))),
];

const gaps = ({ listed }) => [table([
  { label: "at", value: (row) => row.t, show: (row) => clock(row.t, true) },
  { label: "reason", kind: "text", value: (row) => row.reason, show: (row) => row.reason ?? "–" },
  { label: "connection", kind: "name", value: (row) => row.conn, show: (row) => (row.conn === null ? "all" : who(row.conn)) },
  tally("frames", "frames"), { label: "bytes", value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
], listed)];
