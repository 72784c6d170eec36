// Login: a link that `natsproxy ctl page` prints, or the token itself, which requests one here.

import { ask, onRefused } from "./api.js";
import { el, labelled, put, shown } from "./dom.js";

let open = null;

function build() {
  const token = el("input", { type: "password", autocomplete: "off", required: true });
  const error = el("p", { class: "note bad", role: "alert" });
  const enter = async (event) => {
    event.preventDefault();
    try {
      const link = await ask("POST", "/v1/page-links", undefined, { Authorization: `Bearer ${token.value.trim()}` });
      location.assign(link.path);
    } catch (failure) {
      put(error, shown(failure.status === 401 ? "Wrong token." : failure.message));
    }
  };
  const stale = location.hash === "#stale-link";
  return el(
    "dialog",
    { class: "login", "aria-label": "Login", on: { close: (event) => event.target.showModal() } },
    el("h2", {}, "This page needs a login"),
    stale && el("p", { class: "bad" }, "The link was used already, or is older than a minute."),
    el("p", {}, "On the proxy's machine, this command prints a link that opens the page:"),
    el("pre", { class: "payload" }, `natsproxy ctl page --admin ${location.origin} --token-file FILE`),
    el("form", { class: "line", on: { submit: enter } }, labelled("Or the token", token), el("button", { type: "submit", class: "primary" }, "Enter")),
    error,
  );
}

/** Show the login whenever the API asks for one. */
export function watchLogin() {
  onRefused(() => {
    if (open) return;
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    open = build();
    document.body.append(open);
    open.showModal();
  });
}
