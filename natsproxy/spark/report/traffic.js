// Traffic over time, subjects, requests and the slowest of them.

function traffic({ frames, bytes: sizes }) {
  return [
    el("p", { class: "keys" }, key("c2s", "to the server"), key("s2c", "to clients")),
    mirror("Frames", frames, short, "frames"),
    mirror("Message bytes", sizes, bytes, "bytes"),
  ];
}

function templates(rows) {
  const all = (row) => (zoomed() ? sum(inView(row.over, POINTS)) : row.published + row.delivered), most = () => Math.max(...rows.map(all), 1);
  const far = new Map((data.fanout ?? []).map((row) => [row.template, row]));
  const sent = (row) => (row.template.startsWith("$JS.") ? undefined : own(far.get(row.template)));
  return [
    el("p", { class: "keys" }, key("c2s", "published"), key("s2c", "delivered")),
    table([
      subject(),
      { label: "messages", kind: "wide", value: all, show: (row) => stack([["published", "c2s"], ["delivered", "s2c"]].map(([name, kind]) => [(row[name] * all(row)) / (row.published + row.delivered), kind]), most(), `${num(all(row))} messages`) },
      { label: "per second", note: "Messages of the time in view, both ways", value: (row) => all(row) / seconds(), show: (row) => short(all(row) / seconds()) },
      tally("published", "published"), tally("delivered", "delivered"),
      { label: "unheard", note: "Published messages that the server took and sent to no client of this proxy, and no stream took", value: (row) => sent(row)?.unheard },
      { label: "delay p99", note: "From the server's side of the proxy to the first copy, where messages can be told apart", value: (row) => sent(row)?.delay?.[2], show: (row) => dur(sent(row)?.delay?.[2]) },
      { label: "bytes", value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
      estimate("subjects", "subjects", "Different subjects, estimated", (row) => !row.template.includes("*")), estimate("conns", "connections", "Connections, estimated"),
      { label: "over time", kind: "wide", show: (row) => line(row.over, `messages on ${row.template} over time`) },
    ], rows),
  ];
}

// -- requests

// A latency on a logarithmic scale, which begins at a microsecond.
const scaled = (ms) => Math.max(ms, 1e-3);
const strength = (n, most) => Math.max(1, Math.ceil(6 * Math.sqrt(n / most)));

function heatMap({ cells, coarse, decade, over, whole }) {
  const known = cells.map((cell) => cell[1]).filter((row) => row !== null);
  if (!known.length) return null;
  const low = Math.min(...known), high = Math.max(...known) + 1, most = Math.max(...cells.map((cell) => cell[2]));
  const none = cells.some((cell) => cell[1] === null), band = none ? 16 : 0, rows = high - low;
  const height = Math.max(150, Math.min(280, rows * 11)) + band + BOTTOM, rowOf = (ms) => Math.log10(ms * 1e6) * decade;
  const here = (at) => over[Math.floor(at / coarse)];
  const readOut = (o) => `${many(o[0], "answer")}, p50 ${dur(o[1])}, p99 ${dur(o[3])}, worst ${dur(o[4])}`;
  const left = el("p", { class: "keys" },
    el("span", { class: "key" }, svg("svg", { viewBox: "0 0 72 12", class: "scale", "aria-hidden": "true" },
      [1, 2, 3, 4, 5, 6].map((n) => svg("rect", { class: `h${n}`, x: (n - 1) * 12, width: 12, height: 12 }))), `1 to ${many(most, "request")}`),
    stroke("p50", "p50"), stroke("p99", "p99"), none ? key("bad", "no answer") : null);
  return [left, overTime({
    title: "Request latency", height: () => height, left: 58,
    summary: () => `p50 ${dur(whole.latency[0])}, p99 ${dur(whole.latency[2])}, worst ${dur(whole.latency[3])}`,
    read: (at) => (here(at) ? readOut(here(at)) : "no request answered"),
    paint(root, x, width, floor) {
      const tall = (floor - band - 4) / rows, y = (row) => floor - (row - low) * tall;
      const paths = {}, wide = Math.max(1, x(view.from + step * coarse) - x(view.from));
      if (none) root.append(svg("rect", { class: "track", x: x(0), y: 0, width: x(span) - x(0), height: 10 }), svg("text", { x: 52, y: 9, "text-anchor": "end" }, "none"));
      for (let power = Math.ceil(low / decade); power * decade <= high; power++) {
        const at = y(power * decade);
        root.append(svg("line", { class: "grid", x1: x(0), x2: x(span), y1: at, y2: at }),
          svg("text", { x: 52, y: at + 4, "text-anchor": "end" }, dur(10 ** (power - 6))));
      }
      for (const [at, row, n] of cells.filter(([at]) => shown(at, coarse))) {
        const kind = row === null ? "bad" : `h${strength(n, most)}`;
        const top = row === null ? 0 : y(row + 1), size = row === null ? 10 : tall;
        paths[kind] = (paths[kind] ?? "") + `M${x(at * step * coarse).toFixed(1)} ${top.toFixed(1)}h${wide.toFixed(1)}v${size.toFixed(1)}h-${wide.toFixed(1)}z`;
      }
      for (const [kind, d] of Object.entries(paths)) root.append(svg("path", { class: kind, d }));
      quantileLines(root, x, (ms) => y(rowOf(ms)));
    },
  })];
}
function quantileLines(root, x, y) {
  const { over, coarse } = data.latency;
  for (const [slot, kind] of [[3, "p99"], [1, "p50"]]) trace(root, over.map((o) => (o ? scaled(o[slot]) : null)), x, y, kind, coarse);
}

// The latency of one subject over time: that of the slowest first.
function subjectOverTime(listed) {
  const answered = listed.filter((row) => row.latency).sort((a, b) => b.latency[2] - a.latency[2]);
  if (!answered.length) return null;
  const host = el("div");
  const draw = (row) => host.replaceChildren(lines(row.template, [["p99", "p99", row.over.map((o) => o?.[1])], ["p50", "p50", row.over.map((o) => o?.[0])]],
    dur, POINTS, () => `${many(row.requests, "request")}, p50 ${dur(row.latency[0])}, p99 ${dur(row.latency[2])}`));
  draw(answered[0]);
  return el("div", { class: "one" }, el("label", {}, "Latency of ", el("select", { change: (event) => draw(answered[event.target.value]) },
    answered.map((row, at) => el("option", { value: at }, `${row.template} (p99 ${dur(row.latency[2])})`)))), host);
}

function latency(found) {
  const listed = found.listed, times = listed.flatMap((row) => (row.latency ?? []).map(scaled));
  const least = Math.min(...times), most = Math.max(...times);
  return [
    ...(heatMap(found) ?? [el("p", { class: "empty" }, "No answer has a known time, so there is nothing to draw.")]),
    subjectOverTime(listed),
    table([
      subject(), tally("requests", "requests"), tally("replies", "replies"),
      warning("no answer", "unanswered", "Timed out, or still open when the capture ended"),
      warning("no responders", "no_responders", "Answered with status 503: nobody listened"),
      ...quantiles().filter(({ label }) => label !== "p90"),
      { label: "p50 – p99 – worst", kind: "wide", note: "On one logarithmic scale", show: (row) => range(row.latency, least, most) },
      { label: "p99 over time", kind: "wide", show: (row) => line(row.over.map((o) => o?.[1] ?? 0), `p99 of ${row.template} over time`) },
      { label: "service p99", note: "The responder's part of it", value: (row) => row.service?.[2], show: (row) => dur(row.service?.[2]) },
    ], listed, `The ${data.top} subjects with most requests, and the ${data.top} slowest of all by p99.`),
  ];
}

const legsOf = (row) =>
  row.t2 !== null && row.t3 !== null && row.t2 >= row.t1 && row.t3 >= row.t2 && row.t4 >= row.t3
    ? [["to the responder", row.t2 - row.t1, "c2s"], ["responder", row.t3 - row.t2, "busy"], ["back", row.t4 - row.t3, "s2c"]]
    : [["answered behind the proxy", row.t4 - row.t1, "mute"]];

// A node that is there while its row fits the filters.
function kept(row, draw) {
  const node = draw();
  followers.add(() => (node.hidden = !fits(row)));
  return node;
}

function slowest(rows) {
  const most = Math.max(...rows.map((row) => row.latency));
  const frames = (row) => table([
    { label: "after", value: (frame) => frame.t, show: (frame) => dur(frame.t - row.t1) },
    { label: "connection", kind: "name", value: (frame) => frame.conn, show: (frame) => `${who(frame.conn)} ${frame.dir ? "←" : "→"}` },
    { label: "op", kind: "name", value: (frame) => frame.op },
    subject("subject", "subject"),
    { label: "size", value: (frame) => frame.size, show: (frame) => bytes(frame.size) },
    { label: "held", note: "How long the proxy kept it, by a rule or because the other side did not read", value: (frame) => frame.delay, show: (frame) => dur(frame.delay), hot: (frame) => frame.delay > 1 },
    { label: "rule", kind: "name", value: (frame) => frame.cause, show: (frame) => (frame.cause ? tag(frame.cause, "fault") : "–") },
  ].map((column) => ({ ...column, show: column.show ?? ((frame) => column.value(frame)) })), row.frames);
  return [
    el("p", { class: "keys" }, key("c2s", "to the responder"), key("busy", "the responder"), key("s2c", "back"), key("mute", "answered behind the proxy")),
    ...rows.map((row) => kept(row, () => {
      const parts = legsOf(row), times = parts.map(([name, ms]) => `${name} ${dur(ms)}`).join(", ");
      const people = `asked by ${who(row.requester)}${row.responder === null ? "" : `, answered by ${who(row.responder)}`}`;
      return el("details", { class: "slow" },
        el("summary", {}, el("b", {}, dur(row.latency)), code(row.subject), stack(parts.map(([, ms, kind]) => [ms, kind]), most, times)),
        el("div", { class: "inside" },
          el("p", {}, `${clock(row.t1, true)} · ${people}${row.status ? ` · status ${row.status}` : ""} · ${times}`),
          row.frames.length ? frames(row) : el("p", { class: "empty" }, "Its frames are not in the tables.")));
    })),
  ];
}
