// The page: its views, one of which is shown; theme, keys and login; the proxy's state at the top.
//
// A view has `root`, a node; `open(values)` and `leave()` begin and end its streams; `key(event)` takes a key.
// The address names it: #frames?subject=orders.>

import { ask, poll, proxy } from "./api.js";
import { capturesView } from "./captures_view.js";
import { connectionsView } from "./connections_view.js";
import { el, fill, line, put, select } from "./dom.js";
import { count } from "./format.js";
import { framesView } from "./frames_view.js";
import { showKeys, watchKeys } from "./keys.js";
import { watchLogin } from "./login.js";
import { rulesView } from "./rules_view.js";

const VIEWS = {
  frames: ["Frames", framesView],
  connections: ["Connections", connectionsView],
  rules: ["Rules", rulesView],
  captures: ["Captures", capturesView],
};
const THEMES = ["system", "light", "dark"];
const main = document.getElementById("main");
const tabs = {};
let shown = null;

function route() {
  const [name, query] = location.hash.slice(1).split("?");
  const wanted = name in VIEWS ? name : "frames";
  const values = query ? Object.fromEntries(new URLSearchParams(query)) : null;
  const view = VIEWS[wanted][1];
  shown?.leave();
  if (shown !== view) fill(main, view.root);
  shown = view;
  for (const [key, tab] of Object.entries(tabs)) tab.setAttribute("aria-current", key === wanted ? "page" : "false");
  document.title = `${VIEWS[wanted][0]} – natsproxy`;
  view.open(values);
}

function buildTabs() {
  const nav = document.getElementById("tabs");
  Object.entries(VIEWS).forEach(([name, [text]], at) => {
    tabs[name] = el("a", { href: `#${name}`, title: String(at + 1) }, text, el("span", { class: "badge" }));
    nav.append(tabs[name]);
  });
}

// -- theme

function theme(name) {
  if (name === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", name);
  put(document.getElementById("theme"), { system: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[name]);
  try {
    localStorage.setItem("theme", name);
  } catch {
    return; // the browser stores nothing: the theme lasts as long as the page
  }
}

function nextTheme() {
  const now = document.documentElement.getAttribute("data-theme") ?? "system";
  theme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
}

function firstTheme() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

// -- the proxy

const place = document.getElementById("proxy");
const dot = el("span", { class: "dot" });
const title = el("span", { class: "where" });
fill(place, dot, title);

async function look() {
  let one;
  try {
    one = await ask("GET", "");
  } catch (error) {
    dot.className = "dot bad";
    put(title, error.status === 0 ? "no answer" : error.message);
    return;
  }
  dot.className = one.ready ? "dot good" : "dot bad";
  put(title, one.ready ? `${one.listen.join(", ")} → ${one.upstream.join(", ")}` : one.reason);
  title.title = `seed ${one.seed}, ${count(one.accepted)} connections so far`;
  put(tabs.connections.lastChild, count(one.connections));
  put(tabs.rules.lastChild, one.rules ? `${one.rules_enabled}` : "");
  put(tabs.captures.lastChild, one.capture ? "●" : "");
}

/** Hide what changes something from those who may only read. */
async function knowCaller() {
  const { changes } = await ask("GET", "/v1/caller");
  document.body.classList.toggle("reader", !changes);
}

/** Offer a choice where there are several proxies. */
async function chooseProxy() {
  const { proxies } = await ask("GET", "/v1/proxies");
  const names = proxies.map((one) => one.name);
  proxy.name = names.includes(proxy.name) ? proxy.name : (names[0] ?? proxy.name);
  if (names.length < 2) return;
  const change = () => {
    proxy.name = choice.value;
    shown?.leave();
    framesView.clear();
    route();
    look();
  };
  const choice = select(names.map((name) => [name, line(name, 60)]), proxy.name, { "aria-label": "Proxy", on: { change } });
  place.prepend(choice);
}

buildTabs();
theme(THEMES.includes(firstTheme()) ? firstTheme() : "system");
document.getElementById("theme").addEventListener("click", nextTheme);
const help = () => showKeys(Object.values(VIEWS).map(([title]) => title));
document.getElementById("help").addEventListener("click", help);
watchLogin();
const go = Object.fromEntries(Object.keys(VIEWS).map((name, at) => [String(at + 1), () => (location.hash = `#${name}`)]));
watchKeys({ ...go, "?": help, t: nextTheme }, () => shown);
await chooseProxy().catch(() => {});
await knowCaller().catch(() => {});
window.addEventListener("hashchange", route);
route();
poll(2, look);
