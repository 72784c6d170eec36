// Drawing: elements, numbers as people read them, and charts over the one time axis.
// Texts of the data only ever become text nodes and attributes of ours; nothing is parsed as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const { t0, step, count } = data.axis;
const span = step * count;

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// -- numbers

const plain = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const digits = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1).replace(/\.0$/, "") : x >= 1 ? x.toFixed(2).replace(/\.?0+$/, "") : String(+x.toPrecision(2)));
const num = (x) => (x === null || x === undefined ? "–" : plain.format(x));
const short = (x, plainly = 1e4) => (x < 10 ? digits(x) : x < plainly ? plain.format(Math.round(x * 10) / 10) : compact.format(x));
function unit(x, units) {
  const found = units.find(([below]) => x < below) ?? units[units.length - 1];
  return `${digits(x / found[1])} ${found[2]}`;
}
const bytes = (x) =>
  x === null || x === undefined ? "–" : x < 1000 ? `${Math.round(x)} B`
    : unit(x, [[1e6, 1e3, "kB"], [1e9, 1e6, "MB"], [1e12, 1e9, "GB"], [Infinity, 1e12, "TB"]]);
const dur = (ms) =>
  ms === null || ms === undefined ? "–" : ms === 0 ? "0"
    : unit(ms, [[1, 1e-3, "µs"], [1e3, 1, "ms"], [12e4, 1e3, "s"], [72e5, 6e4, "min"], [1728e5, 36e5, "h"], [Infinity, 864e5, "d"]]);
const many = (x, noun) => `${num(x)} ${noun}${x === 1 ? "" : "s"}`;
const percent = (part, whole) => (whole ? `${digits((100 * part) / whole)} %` : "–");

function clock(ms, fine = step < 1000) {
  const iso = new Date(t0 + ms).toISOString();
  return (span > 1728e5 ? iso.slice(5, 16) : iso.slice(11, fine ? 23 : 19)).replace("T", " ");
}
// When, to a given width: below a millisecond as the time since the beginning.
const moment = (ms, wide = step) => (wide < 1 ? `+${dur(ms)}` : clock(ms, wide < 1000));
const TICKS = [1e-3, 1e-2, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5,
  6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 2592e6, 7776e6];
function nice(most, parts) {
  const rough = most / parts, power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
}

// -- charts over time: they share the axis, the time in view and one cursor

const LEFT = 52, RIGHT = 8, BOTTOM = 23;
const LETTER = 6.3;  // px of a letter in a chart, on average
const textWidth = (text) => text.length * LETTER;
const clip = (text, room) => (textWidth(text) > room ? `${text.slice(0, Math.max(3, Math.floor(room / LETTER) - 1))}…` : text);
const charts = [];
let place = null, marked = null;  // the step that is pointed at, and the one at which Enter began a choice
function point(at) {
  place = at === null ? null : Math.max(0, Math.min(count - 1, at));
  charts.forEach((chart) => chart.follow());
}

const waiting = new Map();
const watcher = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach(({ target }) => waiting.get(target)())));
function fitted(host, draw) {
  let drawn = 0;
  const again = (width = Math.round(host.clientWidth)) => {
    if (width && width !== drawn) host.replaceChildren(draw((drawn = width)));
  };
  waiting.set(host, () => again());
  followers.add(() => ((drawn = 0), again()));
  watcher.observe(host);
  return host;
}

// title: of the chart; summary(): the text of the read-out while no step is pointed at; height(): its pixels;
// paint(root, x, width): draws; read(bucket): the read-out of a step.  What is dragged over is shown alone.
function overTime({ title, summary, height, paint, read, left = LEFT }) {
  const readout = el("output", { "aria-live": "polite" });
  const chart = { follow: () => {} };
  charts.push(chart);
  const host = fitted(el("div", { class: "plot" }), (width) => {
    const inner = width - left - RIGHT, high = height(), long = view.to - view.from;
    const x = (ms) => left + ((Math.max(view.from, Math.min(view.to, ms)) - view.from) / long) * inner;
    const root = svg("svg", { viewBox: `0 0 ${width} ${high}`, role: "img", tabindex: 0, "aria-label": `${title}: ${summary()}` });
    // A label at the right edge ends there, so it reaches half its width nearer to the one before.
    const every = TICKS.find((tick) => (tick / long) * inner >= 1.5 * textWidth(moment(view.to, tick)) + 8) ?? long;
    for (let t = Math.ceil((t0 + view.from) / every) * every - t0; t <= view.to; t += every) {
      const anchor = x(t) + textWidth(moment(t, every)) / 2 > width ? "end" : "middle";
      root.append(svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: high - BOTTOM }),
        svg("text", { x: x(t), y: high - 5, "text-anchor": anchor }, moment(t, every)));
    }
    paint(root, x, width, high - BOTTOM);
    for (const gap of (data.gaps?.listed ?? []).filter((row) => row.t >= view.from && row.t <= view.to)) {
      root.append(svg("path", { class: "bad", d: `M${(x(gap.t) - 5).toFixed(1)} 0h10l-5 7z` }, svg("title", {}, `gap: ${gap.reason ?? "not recorded"}`)));
    }
    const line = svg("line", { class: "cursor", y1: 0, y2: high - BOTTOM, visibility: "hidden" });
    const brush = svg("rect", { class: "brush", y: 0, height: high - BOTTOM, visibility: "hidden" });
    root.append(brush, line);
    chart.follow = () => {
      line.setAttribute("visibility", place === null ? "hidden" : "visible");
      readout.textContent = place === null ? summary() : `${moment(place * step)} · ${read(place)}`;
      if (place === null) return;
      line.setAttribute("x1", x((place + 0.5) * step));
      line.setAttribute("x2", x((place + 0.5) * step));
    };
    chart.follow();
    let begun = null;
    const under = (event) => {
      const box = root.getBoundingClientRect();
      return view.from + Math.max(0, Math.min(1, (((event.clientX - box.left) * width) / box.width - left) / inner)) * long;
    };
    const touch = (event) => {
      const now = under(event);
      point(Math.floor(now / step));
      if (begun === null) return;
      brush.setAttribute("visibility", "visible");
      brush.setAttribute("x", Math.min(x(begun), x(now)));
      brush.setAttribute("width", Math.abs(x(now) - x(begun)));
    };
    const show = (one, other) => {
      const [from, to] = [Math.floor(Math.min(one, other) / step) * step, Math.min(span, Math.ceil(Math.max(one, other) / step) * step)];
      if (to - from >= 2 * step) change({ from, to });
    };
    const drop = (event) => {
      const from = begun;
      begun = null;
      brush.setAttribute("visibility", "hidden");
      if (from !== null && Math.abs(x(under(event)) - x(from)) > 6) show(from, under(event));
    };
    const keys = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    return make(root, {
      pointermove: touch, pointerup: drop, blur: () => point(null), dblclick: () => change({ from: 0, to: span }),
      pointerdown: (event) => { begun = under(event); touch(event); }, pointercancel: () => (begun = null),
      pointerleave: () => { begun = null; brush.setAttribute("visibility", "hidden"); point(null); },
      keydown: (event) => {
        if (event.key === "Escape") zoomed() ? change({ from: 0, to: span }) : point(null);
        if (event.key === "Enter" && place !== null) marked === null ? (marked = place) : (show(marked * step, (place + 1) * step), (marked = null));
        if (!(event.key in keys)) return;
        event.preventDefault();
        point((place ?? (keys[event.key] > 0 ? Math.floor(view.from / step) - 1 : Math.ceil(view.to / step))) + keys[event.key]);
      },
    }, []);
  });
  return el("figure", {}, el("figcaption", {}, el("b", {}, title), readout), host);
}

// A filled outline in steps: value[i] holds over step i; up: +1 from base upwards, -1 downwards.
function stairs(values, x, base, scale, up, coarse = 1) {
  let path = `M${x(0).toFixed(1)} ${base}`;
  values.forEach((value, at) => {
    path += `V${(base - up * value * scale).toFixed(1)}H${x((at + 1) * step * coarse).toFixed(1)}`;
  });
  return `${path}V${base}Z`;
}

// Two directions about one line: client to server above it, server to client below.
// Per second, or per step where that is shorter: a rate must not say more than was seen.
function mirror(title, { c2s, s2c }, format, unit) {
  const each = Math.max(1, step / 1000), per = step < 1000 ? ` in ${dur(step)}` : "/s";
  const up = c2s.map((v) => v / each), down = s2c.map((v) => v / each);
  const peak = (values) => Math.max(...inView(values), 1e-9);
  return overTime({
    title: `${title} per ${step < 1000 ? dur(step) : "second"}`, height: () => 190,
    summary: () => `peak ${format(peak(up))}${per} to the server, ${format(peak(down))}${per} to clients`,
    read: (at) => `${format(up[at])}${per} to the server · ${format(down[at])}${per} to clients`,
    paint(root, x, width, floor) {
      const high = peak(up), low = peak(down), scale = (floor - 14) / (high + low), base = 7 + high * scale, every = Math.max(nice(high + low, 5), step < 1000 ? 1 : 0);
      for (let v = -Math.floor(low / every) * every; v <= high; v += every) {
        const y = base - v * scale;
        root.append(svg("line", { class: v ? "grid" : "base", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }),
          svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, v ? format(Math.abs(v)) : unit));
      }
      root.append(svg("path", { class: "c2s", d: stairs(up, x, base, scale, 1) }),
        svg("path", { class: "s2c", d: stairs(down, x, base, scale, -1) }));
    },
  });
}

const shown = (at, coarse = 1) => (at + 1) * step * coarse > view.from && at * step * coarse < view.to;

// Marks of a track: one bar per step, as high as its count asks (square root, so that one is seen beside many).
function marks(root, x, top, height, values, kind, coarse = 1) {
  const most = Math.sqrt(Math.max(...inView(values, coarse), 1)), wide = Math.max(1.5, x(view.from + step * coarse) - x(view.from));
  let path = "";
  values.forEach((value, at) => {
    if (!value || !shown(at, coarse)) return;
    const tall = Math.max(3, (Math.sqrt(value) / most) * height);
    path += `M${x(at * step * coarse).toFixed(1)} ${(top + height - tall).toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}h-${wide.toFixed(1)}z`;
  });
  root.append(svg("rect", { class: "track", x: x(0), y: top, width: x(span) - x(0), height }), svg("path", { class: kind, d: path }));
}

// A line through the steps that have a value.
function trace(root, values, x, y, kind, coarse = 1) {
  let path = "", pen = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined || !shown(at, coarse)) return void (pen = false);
    const here = `${x((at + 0.5) * step * coarse).toFixed(1)} ${y(value).toFixed(1)}`;
    path += pen ? `L${here}` : `M${here}h.01`;
    pen = true;
  });
  root.append(svg("path", { class: "under", d: path }), svg("path", { class: kind, d: path }));
}

// Lines over time on one scale from zero.  lines: [[name, kind, values]], each value of `coarse` steps.
function lines(title, series, format, coarse, summary) {
  const most = () => Math.max(...series.flatMap(([, , values]) => inView(values, coarse).map((value) => value ?? 0)), 1e-9);
  return overTime({
    title, summary, height: () => 150,
    read: (at) => series.map(([name, , values]) => [name, values[Math.floor(at / coarse)]]).filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => `${name} ${format(value)}`).join(" · ") || "nothing",
    paint(root, x, width, floor) {
      const top = most(), y = (value) => floor - (value / top) * (floor - 10), every = nice(top, 4);
      for (let value = 0; value <= top; value += every) {
        root.append(svg("line", { class: value ? "grid" : "base", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
          svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
      }
      for (const [, kind, values] of series) trace(root, values, x, y, `line ${kind}`, coarse);
    },
  });
}
