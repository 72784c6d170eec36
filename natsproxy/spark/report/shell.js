// The page: its sections in the order in which a person reads them, below the heading and the findings.

const SECTIONS = [
  ["traffic", "Traffic", "Frames between clients and the server, over time.", traffic],
  ["templates", "Subjects", "The busiest subject templates: numbers, identifiers and inbox tokens are turned into *. Where more than 50 names take a position, they are folded into **.", templates],
  ["senders", "Senders and receivers", "Clients that publish, the busiest subjects, clients that get their messages. Point at one to see its part.", senders],
  ["latency", "Latency", "Requests, and the time until their answers.", latency],
  ["slowest", "Slowest requests", "Open one to see its frames as they passed the proxy.", slowest],
  ["jetstream", "JetStream", "Deliveries to consumers and their answers, publish acks, and calls of the API.", jetstream],
  ["checks", "Checks", "What went wrong, as natsproxy check states it: lost and repeated messages, requests without answer, clients that take nothing. Open a statement to see the frames that prove it.", checks],
  ["errors", "Errors", "Every -ERR that a client got: denied permissions and all others.", errors],
  ["faults", "Faults", "Firings of rules, aligned with what clients met at that time.", faults],
  ["connections", "Connections", "When they came and went, how they ended, what they carried.", connections],
  ["permissions", "Who needs what", "The subjects that each client used, as permissions: the smallest block that allows all of it. Numbers, ids and many words are *.", permissions],
  ["gaps", "Gaps", "Frames that the recorder could not keep.", gaps],
];
const JETSTREAM = ["deliveries", "publishes", "js_api"];
const hasData = (name) => (name === "jetstream" ? JETSTREAM.some((part) => data[part]) : data[name]);
const emptyText = (name) => (name === "jetstream" ? [...new Set(JETSTREAM.map((part) => data.empty[part]))].join(" ") : data.empty[name]);

function tiles() {
  const { totals, latency: asked, deliveries: made, errors: errs, checks: stated, faults: fired, connections: conns, gaps: lost } = data;
  const tile = (value, label, href, kind = "") => el("a", { class: `tile ${kind}`, href: `#${href}` }, el("b", {}, value), el("span", {}, label));
  const whole = (x) => short(x, 1e6);
  return el("div", { class: "tiles" }, [
    tile(`${short(totals.messages / Math.max(data.axis.length / 1000, 1e-3))}/s`, "messages, on average", "traffic"),
    tile(whole(totals.frames), `frames, ${whole(totals.messages)} of them messages`, "traffic"),
    tile(bytes(totals.bytes), "in messages", "traffic"),
    tile(conns ? whole(conns.count) : `≈ ${whole(totals.connections)}`, "connections", "connections"),
    asked && tile(whole(asked.whole.requests), `requests, ${whole(asked.whole.unanswered)} without an answer`, "latency"),
    asked?.whole.latency && tile(dur(asked.whole.latency[2]), `p99 latency, p50 ${dur(asked.whole.latency[0])}`, "latency"),
    made && tile(whole(made.whole.deliveries), "JetStream deliveries", "deliveries"),
    made && tile(whole(made.whole.redelivered), "redelivered", "deliveries", made.whole.redelivered && "fault"),
    stated?.found && tile(whole(stated.found), "things went wrong", "checks", "bad"),
    tile(whole(errs?.count ?? 0), "errors", "errors", errs && "bad"),
    tile(whole(fired?.count ?? 0), "firings of rules", "faults", fired && "fault"),
    lost && tile(whole(lost.count), "gaps", "gaps", "bad"),
  ].filter(Boolean));
}

// The sentence on a chosen recorder: its share of what.
function scope() {
  const said = el("p", { class: "note", role: "status" });
  followers.add(() => (said.textContent = view.recorder
    ? `Only recorder ${view.recorder}: rows and their counts are its own. Charts over time and the figures above are of all recorders.` : ""));
  return said;
}

// A sentence in which names stand in `backticks`.
const sentence = (text) => text.split("`").map((piece, place) => (place % 2 ? code(piece) : piece));
const listing = (items, most) => items.slice(0, most).join(", ") + (items.length > most ? ` and ${items.length - most} more` : "");

function heading() {
  const { totals, recorders, axis } = data, end = axis.length;
  const [from, until] = [0, end].map((ms) => new Date(t0 + ms).toISOString().slice(0, end < 6e5 ? 23 : 19).split("T"));
  const last = from[0] === until[0] ? until[1] : until.join(" ");
  const when = totals.frames ? `${from.join(" ")} – ${last} UTC · ${dur(end)}` : "no frames";
  const by = recorders.map((r) => `${r.recorder.slice(0, 8)} (${many(r.segments, "segment")}, ${many(r.frames, "frame")})`);
  return [
    el("h1", {}, listing(data.captures, 3) || "NATS traffic"),
    el("p", { class: "sub" }, [when, by.length && `recorded by ${listing(by, 3)}`].filter(Boolean).join(" · ")),
  ];
}

function page() {
  const lost = data.findings.filter((finding) => finding.section === "gaps");
  const others = data.findings.filter((finding) => finding.section !== "gaps");
  document.querySelector("main").replaceChildren(
    ...heading(),
    ...(lost.length ? [el("div", { class: "alarm", role: "alert" }, el("b", {}, "This capture is not complete. "), lost.map((finding) => `${finding.text} `))] : []),
    tiles(),
    scope(),
    el("ul", { class: "short", "aria-label": "In short" }, others.map((finding) => el("li", { class: finding.level }, el("a", { href: `#${finding.section}` }, sentence(finding.text))))),
    el("div", { class: "sections" }, SECTIONS.map(([name, title, lead, draw]) => el("section", { id: name, "aria-labelledby": `${name}-title` },
      el("header", {}, el("h2", { id: `${name}-title` }, title), hasData(name) ? el("p", { class: "lead" }, lead) : null),
      hasData(name) ? draw(data[name]) : el("p", { class: "empty" }, emptyText(name))))),
    el("footer", {}, `Times are UTC. Everything is seen from the clients' side of the proxy: what rules dropped or made counts as clients saw it. Latency is from the request's arrival at the proxy to its answer's way out; pull requests of consumers are left out, since waiting is what they are for. Tables hold the first ${data.top} rows of each question. Charts have steps of ${dur(step)}: point at one, or focus it and use the arrow keys, to read its values. Drag over a time, or press Enter at its two ends, to see it alone: charts and “messages” are then of that time, other counts of the whole capture. ≈ marks estimates. Percentiles are values that were measured; of more than 5,000 they may be one whose rank is wrong by 1 in 10,000.`),
  );
  document.getElementById("tools").replaceChildren(...tools());
  document.getElementById("nav").append(...SECTIONS.map(([name, title]) => el("a", { href: `#${name}`, class: hasData(name) ? "" : "none" }, title)));
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
