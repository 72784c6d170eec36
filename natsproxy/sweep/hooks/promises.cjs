// Tells where the promises of a program in Node wait, when it gets SIGUSR2, and what keeps its loop alive.
//
// Node has no list of its promises: each is noted with its stack when it is made, until it is settled.
"use strict";

const { createHook } = require("node:async_hooks");
const { writeSync } = require("node:fs");
const { isMainThread } = require("node:worker_threads");

const MOST = 20_000; // promises that are noted; the oldest are forgotten
const WINDOW = 100; // ms
const NOTED = 1_000; // promises in a window: a stack takes 15 us, and a busy program should not be slow
const SHOWN = 8;
const places = new Map(); // from the number of a promise to an object with its stack
let windowEnds = 0;
let left = 0;

function note(id, type) {
  if (type !== "PROMISE") return;
  const now = performance.now();
  if (now >= windowEnds) [windowEnds, left] = [now + WINDOW, NOTED];
  if (left-- <= 0) return;
  const place = {};
  Error.captureStackTrace(place, note);
  places.set(id, place);
  if (places.size > MOST) places.delete(places.keys().next().value);
}

// Frames of the program and its libraries, each as `at CALL (FILE:LINE:COLUMN)`.
function frames({ stack }) {
  return String(stack)
    .split("\n")
    .slice(1)
    .filter((line) => !/node:|<anonymous>\)|^\s*at Promise\./.test(line))
    .map((line) => line.trimEnd().replace(/^(\s*at )(async )?([^()]+)$/, "$1$2<anonymous> ($3)"));
}

const isLibrary = (line) => line.includes("/node_modules/");

// Stacks of promises, each once: first those whose innermost call is the program's own, the newest first.
function stacks() {
  const all = [...places.values()].reverse().map(frames).filter((lines) => !lines.every(isLibrary));
  all.sort((one, other) => isLibrary(one[0]) - isLibrary(other[0]));
  return [...new Set(all.map((lines) => lines.join("\n")))].slice(0, SHOWN);
}

function tell() {
  const handles = process.report
    .getReport()
    .libuv.filter((handle) => handle.is_active && handle.is_referenced)
    .map((handle) => `waits for: ${[handle.type, handle.filename].filter(Boolean).join(" ")}\n`);
  const tasks = stacks().map((text) => `Task promise (most recent call first):\n${text}\n\n`);
  writeSync(2, `\n${tasks.join("")}${handles.join("")}`);
}

if (isMainThread) {
  createHook({ init: note, promiseResolve: (id) => places.delete(id) }).enable();
  process.on("SIGUSR2", tell);
}
