// Keys: those of the page, those of the view that is shown, and the list of all of them.

import { button, el } from "./dom.js";

const KEYS = [
  ["1 2 3 4", "Frames, connections, rules, captures"],
  ["↑ ↓", "The frame before, the next one"],
  ["Page ↑ Page ↓", "A page of frames"],
  ["End", "To the newest frame; the list follows again"],
  ["/", "Into the filter"],
  ["Escape", "Out of a field, out of a frame"],
  ["Space", "Pause, go on"],
  ["f", "New fault, for the chosen frame if there is one"],
  ["t", "Light, dark, as the system has it"],
  ["?", "These keys"],
];

/** Show the list of keys. */
export function showKeys() {
  if (document.querySelector("dialog[open]")) return;
  const dialog = el(
    "dialog",
    { class: "keys", "aria-label": "Keys" },
    el("header", {}, el("h2", {}, "Keys"), button("✕", () => dialog.close(), { class: "quiet close", "aria-label": "Close" })),
    el("dl", { class: "facts" }, KEYS.flatMap(([keys, text]) => [el("dt", {}, keys.split(" ").map((key) => [el("kbd", {}, key), " "]).flat()), el("dd", {}, text)])),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Hand keys to the page (`own`, functions by keys) and to the view (`view().key`). */
export function watchKeys(own, view) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const { target } = event;
    if (target.closest("input, select, textarea")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    // A button takes the space bar and Enter itself.
    if ((event.key === " " || event.key === "Enter") && target.closest("button, a, summary")) return;
    const run = own[event.key];
    if (run) run();
    else if (!view()?.key?.(event)) return;
    event.preventDefault();
  });
}
