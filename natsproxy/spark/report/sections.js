// The page: one function per section, in the order in which a person reads them.

const latencyOf = (row, place) => (row.latency ? row.latency[place] : null);
const code = (text) => el("code", {}, text ?? "–");
const quantiles = (what = "latency") =>
  ["p50", "p90", "p99", "worst"].map((label, place) => ({
    label, value: (row) => (row[what] ? row[what][place] : null), show: (row) => dur(row[what]?.[place]),
  }));

function traffic({ frames, bytes: sizes }) {
  return [
    el("p", { class: "keys" }, key("c2s", "to the server"), key("s2c", "to clients")),
    mirror("Frames per second", frames, short, "frames"),
    mirror("Message bytes per second", sizes, bytes, "bytes"),
  ];
}

function templates(rows) {
  const all = (row) => row.published + row.delivered, most = Math.max(...rows.map(all));
  return [
    el("p", { class: "keys" }, key("c2s", "published"), key("s2c", "delivered")),
    table([
      { label: "subject template", kind: "text", value: (row) => row.template, show: (row) => code(row.template) },
      { label: "messages", kind: "wide", value: all, show: (row) => stack([[row.published, "c2s"], [row.delivered, "s2c"]], most, `${num(all(row))} messages`) },
      { label: "published", value: (row) => row.published },
      { label: "delivered", value: (row) => row.delivered },
      { label: "bytes", value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
      { label: "subjects ≈", value: (row) => row.subjects },
      { label: "conns ≈", value: (row) => row.connections },
      { label: "over time", kind: "wide", show: (row) => line(row.over, `messages on ${row.template} over time`) },
    ], rows),
  ];
}

function heatMap({ heat, over, whole }) {
  const known = heat.cells.map((cell) => cell[1]).filter((row) => row !== null);
  if (!known.length) return null;
  const low = Math.min(...known), high = Math.max(...known) + 1, most = Math.max(...heat.cells.map((cell) => cell[2]));
  const band = 14, rows = high - low, height = Math.max(170, Math.min(300, rows * 12)) + band + BOTTOM;
  const rowOf = (ms) => Math.log10(ms * 1e6) * heat.decade;
  return overTime({
    title: "Request latency", height, left: 58,
    summary: `p50 ${dur(latencyOf(whole, 0))}, p99 ${dur(latencyOf(whole, 2))}, worst ${dur(latencyOf(whole, 3))}`,
    read: (at) => over[at] ? `${many(over[at][0], "answer")}, p50 ${dur(over[at][1])}, p99 ${dur(over[at][3])}, worst ${dur(over[at][4])}` : "no request answered",
    paint(root, x, width, floor) {
      const tall = (floor - band - 4) / rows, y = (row) => floor - (row - low) * tall;
      const paths = {}, wide = Math.max(1, x(step * heat.coarse) - x(0));
      for (const [at, row, n] of heat.cells) {
        const kind = row === null ? "bad" : `h${Math.max(1, Math.ceil(6 * Math.sqrt(n / most)))}`;
        const top = row === null ? 0 : y(row + 1), size = row === null ? band - 4 : tall;
        paths[kind] = (paths[kind] ?? "") + `M${x(at * step * heat.coarse).toFixed(1)} ${top.toFixed(1)}h${wide.toFixed(1)}v${size.toFixed(1)}h-${wide.toFixed(1)}z`;
      }
      root.append(svg("rect", { class: "lane", x: x(0), y: 0, width: x(span) - x(0), height: band - 4 }),
        svg("text", { x: 52, y: band - 5, "text-anchor": "end" }, "none"));
      for (let power = Math.ceil(low / heat.decade); power * heat.decade <= high; power++) {
        const at = y(power * heat.decade);
        root.append(svg("line", { class: "grid", x1: x(0), x2: x(span), y1: at, y2: at }),
          svg("text", { x: 52, y: at + 4, "text-anchor": "end" }, dur(10 ** (power - 6))));
      }
      for (const [kind, d] of Object.entries(paths)) root.append(svg("path", { class: kind, d }));
      for (const [slot, kind] of [[3, "p99"], [1, "p50"]]) trace(root, over.map((o) => (o ? o[slot] : null)), x, (ms) => y(rowOf(ms)), kind);
    },
  });
}

function latency(found) {
  const listed = found.listed, times = listed.flatMap((row) => row.latency ?? []);
  const least = Math.min(...times), most = Math.max(...times);
  const stroke = (kind, text) => el("span", { class: "key" }, svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("path", { class: kind, d: "M0 6h12" })), text);
  return [
    el("p", { class: "keys" }, key("h2", "few requests"), key("h4", "more"), key("h6", "most"), stroke("p50", "p50"), stroke("p99", "p99"), key("bad", "no answer")),
    heatMap(found),
    table([
      { label: "subject template", kind: "text", value: (row) => row.template, show: (row) => code(row.template) },
      { label: "requests", value: (row) => row.requests },
      { label: "replies", value: (row) => row.replies },
      { label: "no answer", value: (row) => row.unanswered, hot: (row) => row.unanswered > 0 },
      { label: "no responders", value: (row) => row.no_responders, hot: (row) => row.no_responders > 0 },
      ...quantiles(),
      { label: "p50 – p99 – worst", kind: "wide", show: (row) => range(row.latency, least, most) },
      { label: "service p99", value: (row) => row.service?.[2], show: (row) => dur(row.service?.[2]) },
    ], listed, "From the request's arrival at the proxy to its answer's; service: the responder's part. Bars are logarithmic."),
  ];
}

const legsOf = (row) =>
  row.t2 !== null && row.t3 !== null && row.t2 >= row.t1 && row.t3 >= row.t2 && row.t4 >= row.t3
    ? [["to the responder", row.t2 - row.t1, "c2s"], ["responder", row.t3 - row.t2, "fault"], ["back", row.t4 - row.t3, "s2c"]]
    : [["answered behind the proxy", row.t4 - row.t1, "mute"]];

function slowest(rows) {
  const most = Math.max(...rows.map((row) => row.latency));
  const frames = (row) => table([
    { label: "after", value: (frame) => frame.t, show: (frame) => dur(frame.t - row.t1) },
    { label: "connection", kind: "", value: (frame) => frame.conn_id, show: (frame) => `#${frame.conn_id} ${frame.dir ? "←" : "→"}` },
    { label: "op", kind: "", value: (frame) => frame.op },
    { label: "subject", kind: "text", value: (frame) => frame.subject, show: (frame) => code(frame.subject) },
    { label: "size", value: (frame) => frame.size, show: (frame) => bytes(frame.size) },
    { label: "held", value: (frame) => frame.delay, show: (frame) => (frame.delay > 1 || frame.cause ? dur(frame.delay) : "–"), hot: (frame) => frame.delay > 1 },
    { label: "rule", kind: "", value: (frame) => frame.cause, show: (frame) => (frame.cause ? el("span", { class: "tag fault" }, frame.cause) : "–") },
  ], row.frames);
  return [
    el("p", { class: "keys" }, key("c2s", "to the responder"), key("fault", "the responder"), key("s2c", "back"), key("mute", "answered behind the proxy")),
    ...rows.map((row) => {
      const parts = legsOf(row), said = parts.map(([name, ms]) => `${name} ${dur(ms)}`).join(", ");
      return el("details", { class: "slow" },
        el("summary", {}, el("b", {}, dur(row.latency)), code(row.subject), stack(parts.map(([, ms, kind]) => [ms, kind]), most, said)),
        el("div", { class: "inside" },
          el("p", {}, `${clock(row.t1, true)} · asked by #${row.requester}${row.responder === null ? "" : `, answered by #${row.responder}`}${row.status ? ` · status ${row.status}` : ""} · ${said}`),
          row.frames.length ? frames(row) : el("p", { class: "empty" }, "Its frames are not in the tables.")));
    }),
  ];
}

function jetstream({ js_api, deliveries }) {
  const said = [["ack", "good"], ["wpi", "c2s"], ["next", "s2c"], ["nak", "fault"], ["term", "bad"], ["none", "mute"]];
  const most = deliveries && Math.max(...deliveries.listed.map((row) => row.deliveries));
  return [
    el("h3", { id: "deliveries" }, "Deliveries and what consumers said"),
    deliveries ? el("p", { class: "keys" }, ...said.map(([name, kind]) => key(kind, name === "none" ? "no answer" : name))) : null,
    deliveries ? table([
      { label: "stream", kind: "", value: (row) => row.stream, show: (row) => code(row.stream) },
      { label: "consumer", kind: "text", value: (row) => row.consumer, show: (row) => code(row.consumer) },
      { label: "deliveries", value: (row) => row.deliveries },
      { label: "answers", kind: "wide", show: (row) => stack(said.map(([name, kind]) => [row[name], kind]), most, said.map(([name]) => `${num(row[name])} ${name}`).join(", ")) },
      { label: "redelivered", value: (row) => row.redelivered, hot: (row) => row.redelivered > 0 },
      { label: "most often", value: (row) => row.most, show: (row) => `${num(row.most)} ×` },
      ...said.filter(([name]) => name !== "next").map(([name]) => ({ label: name === "none" ? "no answer" : name, value: (row) => row[name] })),
      { label: "answer p50", value: (row) => latencyOf(row, 0), show: (row) => dur(latencyOf(row, 0)) },
      { label: "p99", value: (row) => latencyOf(row, 2), show: (row) => dur(latencyOf(row, 2)) },
    ], deliveries.listed) : el("p", { class: "empty" }, data.empty.deliveries),
    el("h3", {}, "API calls"),
    js_api ? table([
      { label: "call", kind: "text", value: (row) => row.verb, show: (row) => code(row.verb) },
      { label: "calls", value: (row) => row.calls },
      { label: "errors", value: (row) => row.errors, hot: (row) => row.errors > 0 },
      { label: "no answer", value: (row) => row.unanswered, hot: (row) => row.unanswered > 0 },
      ...quantiles(),
    ], js_api.listed) : el("p", { class: "empty" }, data.empty.js_api),
  ];
}

function errors({ count: total, listed }) {
  return [table([
    { label: "text", kind: "text", value: (row) => row.text, show: (row) => code(row.text) },
    { label: "times", value: (row) => row.count },
    { label: "share", kind: "wide", show: (row) => stack([[row.from_proxy, "fault"], [row.count - row.from_proxy, "bad"]], total, `${percent(row.count, total)} of all errors`) },
    { label: "said by", kind: "", value: (row) => row.from_proxy, show: (row) => el("span", { class: `tag ${row.from_proxy ? "fault" : "bad"}` }, row.from_proxy === row.count ? "proxy" : row.from_proxy ? "both" : "server") },
    { label: "conns", value: (row) => row.connections },
    { label: "first", value: (row) => row.first, show: (row) => clock(row.first) },
    { label: "last", value: (row) => row.last, show: (row) => clock(row.last) },
  ], listed)];
}

function faults({ lanes, listed }) {
  const over = data.latency?.over, failures = data.errors?.over, tall = 38, band = 92;
  const unanswered = new Array(count).fill(0);
  for (const [at, row, n] of data.latency?.heat.cells ?? []) if (row === null) unanswered[at * data.latency.heat.coarse] += n;
  const strips = [
    ...lanes.map((lane) => ({ name: lane.rule, values: lane.over, kind: "fault", what: "firing" })),
    failures && { name: "errors told to clients", values: failures, kind: "bad", what: "error" },
    data.latency?.whole.unanswered && { name: "requests without an answer", values: unanswered, kind: "bad", what: "unanswered" },
  ].filter(Boolean);
  const answered = over?.some((o) => o), base = data.latency?.whole;
  const chart = overTime({
    title: "Rules, and what happened meanwhile", left: 58, height: strips.length * tall + (answered ? band : 0) + BOTTOM + 4,
    summary: `${many(data.faults.count, "firing")} of ${many(lanes.length, "rule")}`,
    read: (at) => [...strips.filter((s) => s.values[at]).map((s) => `${s.name}: ${num(s.values[at])}`), over?.[at] ? `p50 ${dur(over[at][1])}, p99 ${dur(over[at][3])}` : null].filter(Boolean).join(" · ") || "nothing",
    paint(root, x, width, floor) {
      strips.forEach((strip, place) => {
        const top = place * tall, sum = strip.values.reduce((a, b) => a + b, 0);
        marks(root, x, top + 16, tall - 20, strip.values, strip.kind);
        root.append(svg("text", { class: "name halo", x: x(0), y: top + 12 }, strip.name),
          svg("text", { x: x(0) - 6, y: top + 30, "text-anchor": "end" }, short(sum)));
      });
      if (!answered) return;
      const values = over.flatMap((o) => (o ? [o[1], o[3]] : [])), low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values));
      const y = (ms) => floor - 6 - ((Math.log10(ms) - low) / (high - low || 1)) * (band - 34);
      root.append(svg("text", { class: "name halo", x: x(0), y: floor - band + 16 }, "request latency: p50 and p99"));
      for (let power = Math.ceil(low); power <= high; power++) {
        root.append(svg("line", { class: "grid", x1: x(0), x2: x(span), y1: y(10 ** power), y2: y(10 ** power) }),
          svg("text", { x: x(0) - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, dur(10 ** power)));
      }
      for (const [slot, kind] of [[3, "p99"], [1, "p50"]]) trace(root, over.map((o) => (o ? o[slot] : null)), x, y, kind);
    },
  });
  const worse = (row) => row.during?.latency && base?.latency && row.during.latency[2] > 1.5 * base.latency[2];
  return [chart, table([
    { label: "rule", kind: "text", value: (row) => row.rule, show: (row) => code(row.rule) },
    { label: "did", kind: "", value: (row) => row.action, show: (row) => el("span", { class: "tag fault" }, row.action === row.kind ? row.kind : `${row.kind}: ${row.action}`) },
    { label: "firings", value: (row) => row.count },
    { label: "conns", value: (row) => row.connections },
    { label: "first", value: (row) => row.first, show: (row) => clock(row.first) },
    { label: "last", value: (row) => row.last, show: (row) => clock(row.last) },
    { label: "held p50", value: (row) => row.delay?.[0], show: (row) => dur(row.delay?.[0]) },
    { label: "for example", kind: "text", value: (row) => row.example, show: (row) => code(row.example || "–") },
    { label: "then -ERR", value: (row) => row.error, hot: (row) => row.error > 0 },
    { label: "closed", value: (row) => row.closed, hot: (row) => row.closed > 0 },
    { label: "no reply", value: (row) => row.unanswered, hot: (row) => row.unanswered > 0 },
    { label: "reply p50", value: (row) => row.reply?.[0], show: (row) => dur(row.reply?.[0]) },
    { label: "all requests p99", value: (row) => row.during?.latency?.[2], show: (row) => dur(row.during?.latency?.[2]), hot: worse },
  ], listed, base?.latency ? `Meanwhile: in the steps of ${dur(step)} in which the rule fired. Overall: p50 ${dur(base.latency[0])}, p99 ${dur(base.latency[2])}.` : null)];
}

function connections({ count: total, ends, listed }) {
  const row = listed.length > 30 ? 16 : 20;
  const title = (c) => c.name || c.client || "";
  const open = (c) => (c.opened ?? 0), closed = (c) => (c.closed ?? span);
  const inside = (c, at) => open(c) < (at + 1) * step && closed(c) >= at * step;
  const chart = overTime({
    title: "From first to last", height: listed.length * row + BOTTOM + 4, left: 40,
    summary: total > listed.length ? `${num(listed.length)} of ${many(total, "connection")}: ends that were not clean first, then the busiest` : many(total, "connection"),
    read: (at) => `${num(listed.filter((c) => inside(c, at)).length)} of these open`,
    paint(root, x, width) {
      listed.forEach((c, place) => {
        const top = place * row + 3, from = x(open(c)), wide = Math.max(3, x(closed(c)) - from);
        const left = from > width * 0.7;
        root.append(svg("rect", { class: c.clean ? (c.closed === null ? "c2s" : "s2c") : "bad", x: from, y: top + row - 9, width: wide, height: 4, rx: 2 }),
          svg("text", { x: 34, y: top + row - 5, "text-anchor": "end" }, `#${c.conn}`),
          svg("text", { class: "name halo", x: left ? from + wide : from, y: top + row - 11, "text-anchor": left ? "end" : "start" }, `${title(c)}${c.clean ? "" : ` · ${c.cause}`}`.slice(0, 60)));
      });
    },
  });
  return [
    el("div", { class: "chips" }, ends.map((end) => el("span", { class: `tag ${["client-closed", "drained", null].includes(end.cause) ? "" : "bad"}` }, `${num(end.count)} ${end.cause ?? "still open"}`))),
    el("p", { class: "keys" }, key("s2c", "closed by the client or drained"), key("c2s", "still open at the end"), key("bad", "ended otherwise")),
    chart,
    table([
      { label: "#", value: (c) => c.conn },
      { label: "name", kind: "", value: (c) => c.name ?? "", show: (c) => c.name || "–" },
      { label: "client", kind: "", value: (c) => c.client ?? "", show: (c) => c.client || "–" },
      { label: "opened", value: (c) => c.opened, show: (c) => (c.opened === null ? "before" : clock(c.opened)) },
      { label: "lasted", value: (c) => closed(c) - open(c), show: (c) => dur(closed(c) - open(c)) },
      { label: "ended", kind: "text", value: (c) => c.cause ?? "", show: (c) => el("span", { title: c.detail }, el("span", { class: `tag ${c.clean ? "" : "bad"}` }, c.cause ?? "open"), c.detail ? ` ${c.detail}` : "") },
      { label: "frames to server", value: (c) => c.c2s_frames },
      { label: "to client", value: (c) => c.s2c_frames },
      { label: "bytes to server", value: (c) => c.c2s_bytes, show: (c) => bytes(c.c2s_bytes) },
      { label: "to client", value: (c) => c.s2c_bytes, show: (c) => bytes(c.s2c_bytes) },
    ], listed),
  ];
}

function gaps({ listed }) {
  return [table([
    { label: "at", value: (row) => row.t, show: (row) => clock(row.t, true) },
    { label: "reason", kind: "text", value: (row) => row.reason, show: (row) => row.reason ?? "–" },
    { label: "connection", value: (row) => row.conn_id, show: (row) => (row.conn_id === null ? "all" : `#${row.conn_id}`) },
    { label: "frames", value: (row) => row.frames },
    { label: "bytes", value: (row) => row.bytes, show: (row) => bytes(row.bytes) },
  ], listed)];
}

// -- the page

const SECTIONS = [
  ["traffic", "Traffic", "What passed between clients and the server, over time.", traffic],
  ["templates", "Subjects", "The busiest subject templates: numbers, identifiers and inbox tokens are turned into *.", templates],
  ["latency", "Latency", "Requests and how long their answers took; darker or brighter squares are more requests.", latency],
  ["slowest", "Slowest requests", "Open one to see its frames as they passed the proxy.", slowest],
  ["jetstream", "JetStream", "Messages that want an acknowledgement, and calls of the API.", jetstream],
  ["errors", "Errors", "Every -ERR that a client was told: denied permissions and all else.", errors],
  ["faults", "Faults", "Firings of rules, aligned with what clients met at that time.", faults],
  ["connections", "Connections", "When they came and went, how they ended, what they carried.", connections],
  ["gaps", "Gaps", "What the recorder could not keep.", gaps],
];
const found = (name) => (name === "jetstream" ? (data.js_api || data.deliveries) && { js_api: data.js_api, deliveries: data.deliveries } : data[name]);
const why = (name) => data.empty[name === "jetstream" ? "deliveries" : name];

function tiles() {
  const { totals, latency: asked, deliveries, errors: told, faults: fired, connections: conns, gaps: lost } = data;
  const tile = (value, label, href, kind) => el("a", { class: `tile ${kind ?? ""}`, href: `#${href}`, title: label }, el("b", {}, value), el("span", {}, label));
  return el("div", { class: "tiles" }, [
    tile(short(totals.frames), `frames, ${short(totals.messages)} messages`, "traffic"),
    tile(bytes(totals.bytes), "in messages", "traffic"),
    tile(num(conns?.count ?? totals.connections), "connections", "connections"),
    asked && tile(short(asked.whole.requests), "requests", "latency"),
    asked?.whole.latency && tile(dur(latencyOf(asked.whole, 2)), `p99 latency, p50 ${dur(latencyOf(asked.whole, 0))}`, "latency"),
    deliveries && tile(short(deliveries.whole.deliveries), `deliveries, ${num(deliveries.whole.redelivered)} again`, "jetstream"),
    tile(num(told?.count ?? 0), "errors told", "errors", told && "bad"),
    tile(num(fired?.count ?? 0), "firings of rules", "faults", fired && "fault"),
    lost && tile(num(lost.count), "gaps", "gaps", "bad"),
  ].filter(Boolean));
}

function page() {
  const { totals, recorders } = data, day = new Date(t0).toISOString().slice(0, 10);
  const title = data.captures.slice(0, 3).join(", ") + (data.captures.length > 3 ? ` and ${data.captures.length - 3} more` : "");
  const when = totals.frames ? `${day} ${clock(0, step < 1000)} – ${span > 1728e5 ? "" : `${new Date(t0 + span).toISOString().slice(0, 10) === day ? "" : `${new Date(t0 + span).toISOString().slice(0, 10)} `}`}${clock(span, step < 1000)} UTC · ${dur(span)}` : "no frames";
  const who = recorders.map((r) => `${r.recorder.slice(0, 8)} (${many(r.segments, "segment")}, ${many(r.frames, "frame")})`);
  const lost = data.gaps || totals.corrupt;
  const main = document.querySelector("main");
  main.replaceChildren(...[
    el("h1", {}, title || "NATS traffic"),
    el("p", { class: "sub" }, `${when}${who.length ? ` · recorded by ${who.slice(0, 3).join(", ")}${who.length > 3 ? ` and ${who.length - 3} more` : ""}` : ""}`),
    lost ? el("div", { class: "alarm", role: "alert" }, el("b", {}, "This capture is not complete. "), ...data.findings.filter((f) => f.section === "gaps").map((f) => `${f.text} `)) : null,
    tiles(),
    el("ul", { class: "short", "aria-label": "In short" }, data.findings.filter((f) => f.section !== "gaps").map((f) => el("li", { class: f.level }, el("a", { href: `#${f.section}` }, f.text)))),
    ...SECTIONS.map(([name, heading, lead, draw]) => {
      const what = found(name);
      return el("section", { id: name, "aria-labelledby": `${name}-title` },
        el("header", {}, el("h2", { id: `${name}-title` }, heading), what ? el("p", { class: "lead" }, lead) : null),
        ...(what ? draw(what) : [el("p", { class: "empty" }, why(name))]));
    }),
    el("footer", {}, `Times are UTC. Everything is seen from the clients' side of the proxy; what rules dropped or made counts as clients saw it. Tables list the first ${25} rows, charts have steps of ${dur(step)}; point at a chart, or focus it and use the arrow keys, to read its values. Counts marked ≈ are estimates. Pull requests of consumers are not counted as requests: waiting is what they are for.`),
  ].filter(Boolean));
  document.getElementById("nav").append(...SECTIONS.map(([name, heading]) => el("a", { href: `#${name}`, class: found(name) ? "" : "none" }, heading)));
}

// Light or dark: the system's choice, unless the button or the address (#dark, #light) says otherwise.
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  document.getElementById("theme").textContent = now === "dark" ? "Light" : "Dark";
  return now;
}
const asked = () => theme(["#dark", "#light"].includes(location.hash) ? location.hash.slice(1) : null);
addEventListener("hashchange", asked);
dark.addEventListener("change", () => theme());
document.getElementById("theme").addEventListener("click", () => theme(theme() === "dark" ? "light" : "dark"));
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((node) => (node.open = true)));
asked();
page();
