// Tables that sort, and the small charts inside their cells.

// parts: [value, class] side by side; whole: the value of the full width.
function stack(parts, whole, label) {
  const root = svg("svg", { viewBox: "0 0 100 18", preserveAspectRatio: "none", role: "img", "aria-label": label });
  root.append(svg("title", {}, label), svg("rect", { class: "track", width: 100, height: 10, y: 4 }));
  let at = 0;
  for (const [value, kind] of parts) {
    const wide = whole ? (100 * value) / whole : 0;
    if (wide > 0) root.append(svg("rect", { class: kind, x: at, y: 4, width: Math.max(0.6, wide), height: 10 }));
    at += wide;
  }
  return root;
}
function line(all, label, kind = "c2s") {
  const values = inView(all, POINTS).map((value) => value ?? 0);
  const most = Math.max(...values, 1), wide = 100 / values.length;
  const d = values.map((v, i) => (v ? `M${(i * wide).toFixed(2)} 18v${(-17 * v / most).toFixed(2)}h${wide.toFixed(2)}V18z` : "")).join("");
  return svg("svg", { viewBox: "0 0 100 18", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "track", y: 17, width: 100, height: 1 }), svg("path", { class: kind, d }));
}
// p50 to p99 as a bar, a whisker to the largest, on a scale of powers of ten.
function range(four, least, most) {
  if (!four) return "";
  const decades = Math.log10(most / least) || 1;
  const x = (ms) => (100 * Math.log10(Math.max(ms, least) / least)) / decades;
  const [p50, , p99, top] = four.map(x);
  const label = `p50 ${dur(four[0])}, p99 ${dur(four[2])}, largest ${dur(four[3])}`;
  return svg("svg", { viewBox: "0 0 100 18", preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("title", {}, label),
    svg("rect", { class: "track", width: 100, height: 2, y: 8 }),
    svg("rect", { class: "mute", x: p50, y: 8, width: Math.max(0.5, top - p50), height: 2 }),
    svg("rect", { class: "c2s", x: p50, y: 4, width: Math.max(1.2, p99 - p50), height: 10 }));
}
const key = (kind, text) =>
  el("span", { class: "key" }, svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("rect", { class: kind, width: 12, height: 12, rx: 3 })), text);

const stroke = (kind, text) =>
  el("span", { class: "key" }, svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, svg("path", { class: kind, d: "M0 6h12" })), text);

// A name from the traffic: it may break after its dots.
const code = (text) => el("code", {}, text ? text.split(/(?<=\.)/).flatMap((token) => [token, el("wbr")]).slice(0, -1) : "–");
const tag = (text, kind = "") => el("span", { class: `tag ${kind}` }, text);

// -- tables

const ROWS = 12;  // rows that a table shows before it is asked for all
const beforeOther = (a, b) => (a === null || a === undefined ? (b === null || b === undefined ? 0 : 1) : b === null || b === undefined ? -1 : 0);

// columns: { label, note: its meaning, value(row): its sort key, show(row): text or node, hot(row),
// kind: "num" | "text" | "name" | "wide" }; without show a number is written as such, any other value as it is
function table(columns, rows, caption) {
  const body = el("tbody"), note = el("p", { class: "note" }), whole = el("div", { class: "table" }), kind = (column) => column.kind ?? "num";
  let order = null, direction = 1;
  const cell = (row) => (column) => {
    const plain = kind(column) === "num" ? num : (value) => value ?? "–";
    const shown = (column.show ?? ((r) => plain(column.value(r))))(row);
    const quiet = shown === "0" || shown === "–";
    return el("td", { class: [kind(column), quiet && "zero", column.hot?.(row) && "hot"].filter(Boolean).join(" ") }, shown);
  };
  const fill = () => {
    const kept = rows.filter(fits).map(own), not = unfiltered(rows);
    note.textContent = [
      kept.length < rows.length ? `${many(kept.length, "row")} of ${rows.length}` : "",
      not.length ? `not told apart by ${not.join(" and ")}` : "",
    ].filter(Boolean).join(", ");
    whole.classList.toggle("few", kept.length <= ROWS);
    const sorted = order === null ? kept : [...kept].sort((a, b) => {
      const p = order.value(a), q = order.value(b);
      return beforeOther(p, q) || (p < q ? -direction : p > q ? direction : 0);
    });
    body.replaceChildren(...sorted.map((row, place) => el("tr", { class: place >= ROWS && "rest" }, columns.map(cell(row)))));
  };
  const heads = columns.map((column) => {
    const head = el("th", { scope: "col", class: kind(column), title: column.note });
    if (!column.value) return make(head, {}, [column.label]);
    const sort = () => {
      direction = order === column ? -direction : kind(column) === "num" ? -1 : 1;
      order = column;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", direction < 0 ? "descending" : "ascending");
      fill();
    };
    return make(head, {}, [el("button", { type: "button", click: sort }, column.label)]);
  });
  fill();
  followers.add(fill);
  whole.append(note, ...(caption ? [el("p", { class: "note" }, caption)] : []),
    el("div", { class: "scroll" }, el("table", { class: columns.length > 12 && "many" }, el("thead", {}, el("tr", {}, heads)), body)));
  if (rows.length > ROWS) {
    const all = el("button", { type: "button", class: "all", click: () => (whole.classList.add("open"), all.remove()) }, `Show all ${rows.length}`);
    whole.append(all);
  }
  return whole;
}

const quantiles = (field = "latency") =>
  ["p50", "p90", "p99", "worst"].map((label, place) => ({
    label, value: (row) => row[field]?.[place], show: (row) => dur(row[field]?.[place]),
  }));
const subject = (label = "subject template", name = "template") => ({ label, kind: "text", value: (row) => row[name], show: (row) => code(row[name]) });
// An estimate is said to be one.
const estimate = (label, name, note, known = () => false) => ({ label, note, value: (row) => row[name], show: (row) => `${known(row) ? "" : "≈ "}${num(row[name])}` });
const tally = (label, name, note) => ({ label, note, value: (row) => row[name] });
const warning = (label, name, note) => ({ ...tally(label, name, note), hot: (row) => row[name] > 0 });
const at = (label, name) => ({ label, value: (row) => row[name], show: (row) => (row[name] === null ? "–" : clock(row[name])) });
