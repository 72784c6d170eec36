// Keys: those of the page, those of the view that is shown, and the list of all of them.

import { button, el } from "./dom.js";

const KEYS = [
  ["↑ ↓", "Previous frame, next frame"],
  ["Page ↑ Page ↓", "Page through the frames"],
  ["End", "Go to the newest frame and follow the list"],
  ["/", "Go to the filter"],
  ["Escape", "Leave a field, close a frame"],
  ["Space", "Pause, resume"],
  ["f", "New fault, for the selected frame if there is one"],
  ["t", "Theme: light, dark, system"],
  ["?", "Show these keys"],
];

/** Show the list of keys.  views: the titles of the views, which the digits from 1 on open. */
export function showKeys(views) {
  if (document.querySelector("dialog[open]")) return;
  const all = [[views.map((_, at) => at + 1).join(" "), views.join(", ")], ...KEYS];
  const dialog = el(
    "dialog",
    { class: "keys", "aria-label": "Keys" },
    el("header", {}, el("h2", {}, "Keys"), button("✕", () => dialog.close(), { class: "quiet close", "aria-label": "Close" })),
    el("dl", { class: "facts" }, all.flatMap(([keys, text]) => [el("dt", {}, keys.split(" ").map((key) => [el("kbd", {}, key), " "]).flat()), el("dd", {}, text)])),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** Pass keys to the page (`own`, functions by keys) and to the view (`view().key`). */
export function watchKeys(own, view) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const { target } = event;
    if (target.closest("input, select, textarea")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    // A button handles space and Enter itself.
    if ((event.key === " " || event.key === "Enter") && target.closest("button, a, summary")) return;
    const run = own[event.key];
    if (run) run();
    else if (!view()?.key?.(event)) return;
    event.preventDefault();
  });
}
