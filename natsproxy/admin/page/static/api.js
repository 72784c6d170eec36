// The admin API: requests, and streams of events.

/** A failed request.  status: of HTTP; 0 without an answer. */
export class RequestFailed extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

/** The proxy that the page shows. */
export const proxy = { name: "main" };

/** Return the full path of a path below the proxy; one that begins with a slash is absolute. */
export function path(below) {
  return below.startsWith("/") ? below : `/v1/proxies/${encodeURIComponent(proxy.name)}/${below}`;
}

let refused = () => {};

/** Call a function whenever the API asks for a login. */
export function onRefused(run) {
  refused = run;
}

/** Return the value of an answer and its headers.  Throws RequestFailed. */
export async function call(method, below, body, headers = {}) {
  const sent = body === undefined ? headers : { "Content-Type": "application/json", ...headers };
  let answer;
  try {
    answer = await fetch(path(below), {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(20_000),
    });
  } catch {
    throw new RequestFailed("The proxy does not answer.", 0);
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    throw new RequestFailed(`The answer is not JSON (${answer.status}).`, answer.status);
  }
  if (!answer.ok) {
    if (answer.status === 401 && !headers.Authorization) refused();
    throw new RequestFailed(value?.error ?? `The answer is ${answer.status}.`, answer.status);
  }
  return { value, headers: answer.headers };
}

/** Return the value of an answer.  Throws RequestFailed. */
export async function ask(method, below, body, headers) {
  return (await call(method, below, body, headers)).value;
}

/**
 * A stream of server-sent events.  handlers: by event name; `state` gets "open", "lost" or "closed".
 *
 * It is closed while the page is hidden: a browser has six connections per host, for all pages.
 */
export class Stream {
  constructor(below, params, handlers) {
    const query = new URLSearchParams(params).toString();
    this.url = path(below) + (query ? `?${query}` : "");
    this.handlers = handlers;
    this.seen = () => (document.hidden ? this.stop() : this.start());
    document.addEventListener("visibilitychange", this.seen);
    if (!document.hidden) this.start();
  }

  start() {
    if (this.source) return;
    this.source = new EventSource(this.url);
    this.source.onopen = () => this.handlers.state?.("open");
    this.source.onerror = () => this.failed();
    for (const [name, run] of Object.entries(this.handlers)) {
      if (name !== "state") this.source.addEventListener(name, (event) => run(JSON.parse(event.data)));
    }
  }

  /** The browser retries after transport errors, but not after HTTP errors. */
  failed() {
    this.handlers.state?.("lost");
    if (this.source?.readyState !== EventSource.CLOSED) return;
    this.stop();
    ask("GET", "").catch(() => {}); // shows the login, if that is the reason
    this.timer = setTimeout(() => document.hidden || this.start(), 2000);
  }

  stop() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  close() {
    document.removeEventListener("visibilitychange", this.seen);
    this.stop();
    this.handlers.state?.("closed");
  }
}

/** Poll while the page is visible; returns a function that stops it. */
export function poll(seconds, run) {
  let ended = false;
  let timer = 0;
  const turn = async () => {
    clearTimeout(timer);
    if (!document.hidden) await run().catch(() => {});
    if (!ended) timer = setTimeout(turn, seconds * 1000);
  };
  const seen = () => !document.hidden && turn();
  document.addEventListener("visibilitychange", seen);
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}
