// Senders and receivers: clients that publish on the left, subjects in the middle, receivers on the right; a band is as wide as its messages.

const OTHERS = "all others";
const GAPS = [8, 16, 8], NODE = 9;  // between the boxes of a column; the width of a box

// The nodes of a column with their places; rows: Map of name -> messages.
function column(rows, high, scale, gap) {
  const nodes = new Map(), free = high - sum([...rows.values()]) * scale - gap * (rows.size - 1);
  let top = Math.max(0, free / 2);
  for (const [name, value] of rows) {
    const tall = Math.max(2, value * scale);
    nodes.set(name, { top, tall, value, used: 0, other: 0 });
    top += tall + gap;
  }
  return nodes;
}

function flow(rows, width) {
  const totals = [new Map(), new Map(), new Map()], edges = [];
  const add = (side, name, value) => totals[side].set(name, (totals[side].get(name) ?? 0) + value);
  for (const row of rows) {
    const both = [row.from, row.to].map((side) => sum(side.map(([, n]) => n)));
    add(1, row.template, Math.max(...both));
    for (const [side, list] of [[0, row.from], [2, row.to]]) {
      for (const [name, n] of list) {
        add(side, name || OTHERS, n);
        edges.push({ side, name: name || OTHERS, template: row.template, n });
      }
    }
  }
  const sorted = totals.map((rows) => new Map([...rows].sort((a, b) => b[1] - a[1])));
  const high = Math.max(160, Math.max(...sorted.map((rows) => rows.size)) * 34);
  const scale = Math.min(...sorted.map((rows, side) => (rows.size ? (high - (GAPS[side] + 2) * rows.size) / sum([...rows.values()]) : Infinity)));
  const places = sorted.map((rows, side) => column(rows, high, scale, GAPS[side]));
  const label = Math.min(170, width * 0.24), at = [label, width / 2 - NODE / 2, width - label - NODE];
  const root = svg("svg", { viewBox: `0 0 ${width} ${high}`, role: "img", "aria-label": "Clients, the subjects that they publish on, and the clients that get the messages" });
  const bands = edges.sort((a, b) => b.n - a.n).map((edge) => band(edge, places, at, scale));
  root.append(...bands.map(([, node]) => node));
  places.forEach((nodes, side) => nodes.forEach((node, name) => root.append(box(node, name, side, at, label, width, bands))));
  return root;
}

function band({ side, name, template, n }, places, at, scale) {
  const client = places[side].get(name), subject = places[1].get(template), wide = Math.max(1, n * scale);
  const one = client.top + client.used + wide / 2, other = subject.top + (side ? subject.other : subject.used) + wide / 2;
  client.used += wide;
  side ? (subject.other += wide) : (subject.used += wide);
  const [x1, y1, x2, y2] = side ? [at[1] + NODE, other, at[2], one] : [at[0] + NODE, one, at[1], other];
  const mid = (x1 + x2) / 2;
  const label = side ? `${template} → ${name}: ${num(n)} messages` : `${name} → ${template}: ${num(n)} messages`;
  return [[side === 0 ? `0${name}` : `2${name}`, `1${template}`],
    svg("path", { class: `band ${side ? "to" : "from"}`, d: `M${x1} ${y1.toFixed(1)}C${mid} ${y1.toFixed(1)} ${mid} ${y2.toFixed(1)} ${x2} ${y2.toFixed(1)}`, "stroke-width": wide.toFixed(1) }, svg("title", {}, label))];
}

function box(node, name, side, at, label, width, bands) {
  const ends = ["end", "middle", "start"][side], room = side === 1 ? width / 2 - label - 24 : label - 12;
  const light = (on) => () => bands.forEach(([keys, path]) => path.classList.toggle("hot", on && keys.includes(`${side}${name}`)));
  const x = [at[0] - 6, at[1] + NODE / 2, at[2] + NODE + 6][side], y = side === 1 ? node.top - 1 : node.top + node.tall / 2 + 4;
  return svg("g", { tabindex: 0, pointerenter: light(true), pointerleave: light(false), focus: light(true), blur: light(false) },
    svg("title", {}, `${name}: ${num(node.value)} messages`),
    svg("rect", { class: ["c2s", "mute", "s2c"][side], x: at[side], y: node.top, width: NODE, height: node.tall, rx: 2 }),
    svg("text", { class: "name halo", x, y: side === 1 ? Math.max(10, y + node.tall / 2 + 5) : y, "text-anchor": ends }, clip(name, room)));
}

function senders(rows) {
  const host = fitted(el("div", { class: "plot flow" }), (width) => {
    const left = rows.filter(fits).map(own);
    return left.length ? flow(left, width) : el("p", { class: "empty" }, "The filters leave no subject.");
  });
  const people = (list) => list.flatMap(([name, n]) => [tag(`${name || OTHERS} ${short(n, 1e5)}`), " "]);
  return [
    el("p", { class: "keys" }, key("c2s", "publishes"), key("mute", "subject"), key("s2c", "gets messages")),
    el("figure", {}, host),
    el("details", { class: "more" }, el("summary", {}, "As a table"), table([
      subject(), { label: "published by", kind: "text", value: (row) => row.from[0]?.[1] ?? 0, show: (row) => el("span", {}, people(row.from)) },
      { label: "delivered to", kind: "text", value: (row) => row.to[0]?.[1] ?? 0, show: (row) => el("span", {}, people(row.to)) },
    ], rows)),
  ];
}
