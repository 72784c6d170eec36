// Payloads: as text, as JSON by member, as hex; and for the clipboard.

import { button, copy, el, fill, shown } from "./dom.js";
import { bytes } from "./format.js";

const HEX_MOST = 16384; // bytes in one view of hex

/** Return the payload of a row: its bytes, its text (null if it is not UTF-8), and whether it is complete. */
export function payloadOf(row) {
  const text = row.payload ?? null;
  const raw = text === null ? unhex(row.payload_hex ?? "") : new TextEncoder().encode(text);
  return { raw, text, cut: row.payload_cut === true };
}

function unhex(hex) {
  const raw = new Uint8Array(hex.length / 2);
  for (let at = 0; at < raw.length; at++) raw[at] = Number.parseInt(hex.slice(2 * at, 2 * at + 2), 16);
  return raw;
}

/** Return bytes as lines of hex. */
export function hex(raw) {
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, HEX_MOST); at += 16) {
    const row = raw.subarray(at, at + 16);
    const pairs = Array.from(row, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(row, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${pairs.padEnd(47)}  ${text}`);
  }
  if (raw.length > HEX_MOST) lines.push("…");
  return lines.join("\n");
}

/** Tell whether a text is JSON, or the beginning of some. */
export function isJson(text, cut) {
  if (text === null || !/^\s*[{[]/.test(text)) return false;
  if (cut) return true;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Return JSON with a line per member.  Only space outside of strings changes: numbers keep all digits, and
 * duplicate members stay.
 */
export function prettyJson(text) {
  let out = "";
  let depth = 0;
  const tokens = text.match(/"(?:[^"\\]|\\.)*"?|[{}[\],:]|[^\s{}[\],:"]+/gs) ?? [];
  tokens.forEach((token, at) => {
    if (token === "}" || token === "]") {
      depth = Math.max(0, depth - 1);
      if (!/[{[]/.test(tokens[at - 1] ?? "") || tokens[at - 1].length > 1) out += "\n" + "  ".repeat(Math.min(depth, 40));
      out += token;
    } else if (token === ",") out += ",\n" + "  ".repeat(Math.min(depth, 40));
    else if (token === ":") out += ": ";
    else {
      out += token;
      if (token === "{" || token === "[") {
        depth += 1;
        if (!/^[}\]]$/.test(tokens[at + 1] ?? "")) out += "\n" + "  ".repeat(Math.min(depth, 40));
      }
    }
  });
  return out;
}

let preferred = "";

/** Return the view of a row's payload, with tabs for its forms. */
export function payloadView(row) {
  if (row.payload === undefined && row.payload_hex === undefined) {
    return row.size ? el("p", { class: "note" }, "The payload was not kept.") : null;
  }
  const { raw, text, cut } = payloadOf(row);
  if (!raw.length) return el("p", { class: "note" }, "The payload is empty.");
  const forms = { JSON: isJson(text, cut), Text: text !== null, Hex: true };
  const body = el("pre", { class: "payload", tabindex: 0 });
  const tabs = el("div", { class: "tabs", role: "tablist" });
  const show = (form) => {
    if (form === "JSON") body.textContent = shown(prettyJson(text));
    else body.textContent = form === "Text" ? shown(text) : hex(raw);
    for (const tab of tabs.children) tab.setAttribute("aria-selected", tab.textContent === form);
  };
  const names = Object.keys(forms).filter((name) => forms[name]);
  const choose = (name) => {
    preferred = name;
    show(name);
  };
  fill(tabs, names.map((name) => button(name, () => choose(name), { role: "tab" })));
  show(names.includes(preferred) ? preferred : names[0]);
  return el(
    "section",
    { class: "payload-view" },
    el(
      "header",
      {},
      el("h3", {}, "Payload"),
      tabs,
      button("Copy", () => copy(text ?? row.payload_hex), { class: "quiet", title: text === null ? "As hex" : "As text" }),
    ),
    body,
    cut && el("p", { class: "note" }, `The first ${bytes(raw.length)}: raise “Payload” above the list for more.`),
  );
}
