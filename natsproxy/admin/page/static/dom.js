// Elements and texts.
//
// Subjects, headers, names and payloads are untrusted.  They reach the document only through `el`, which makes
// text nodes and never markup, and through `shown` or `line`, which escape invisible characters: control
// characters and marks that change the direction of text.

const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Cs}/gu;
const BREAKS = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function escaped(char) {
  const code = char.codePointAt(0);
  if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
  return code < 0x10000 ? "\\u" + code.toString(16).padStart(4, "0") : `\\u{${code.toString(16)}}`;
}

/** Return a text of several lines, escaped for display. */
export function shown(text) {
  return String(text).replace(/\r\n/g, "\n").replace(UNSEEN, escaped);
}

/** Return the beginning of a text on one line. */
export function line(text, most = 400) {
  const begin = String(text).slice(0, most);
  const cut = begin.length < String(text).length ? "…" : "";
  return begin.replace(/[\n\r\t]/g, (char) => BREAKS[char]).replace(UNSEEN, escaped) + cut;
}

/**
 * Return a new element.  given: `on` has listeners, `data` is its dataset, other keys are attributes (true: an
 * empty one; false or null: none).  Children are nodes or texts; null is left out.
 */
export function el(tag, given = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "data") {
      Object.assign(node.dataset, value);
    } else if (name === "value") {
      node.value = value;
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Replace the children of a node. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Set a text if it differs: setting it triggers a layout. */
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Return a button. */
export function button(text, run, given = {}) {
  return el("button", { type: "button", ...given, on: { click: run } }, text);
}

/** Return a labelled control. */
export function labelled(text, control, given = {}) {
  return el("label", { class: "field", ...given }, el("span", {}, text), control);
}

/** Return a select.  options: values, or [value, text] pairs. */
export function select(options, value, given = {}) {
  const node = el("select", given);
  for (const option of options) {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    node.append(el("option", { value: key }, line(text, 80)));
  }
  node.value = value;
  return node;
}

let timer = 0;

/** Show a message for a moment, at the edge of the page. */
export function say(text, bad = false) {
  const place = document.getElementById("said");
  fill(place, el("p", { class: bad ? "bad" : "" }, shown(String(text).slice(0, 500))));
  clearTimeout(timer);
  timer = setTimeout(() => fill(place), bad ? 8000 : 3500);
}

/** Copy a text to the clipboard. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser refused to copy: select the text instead.", true);
  }
}
