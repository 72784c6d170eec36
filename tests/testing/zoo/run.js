// Runs programs of the zoo side by side in one process: `run.js orders=nats://... watch=nats://...`.
// It prints one line of JSON, the output of each program and the error that ended it, by name.
const { AsyncLocalStorage } = require("node:async_hooks");

const lines = new AsyncLocalStorage();
const show = console.log;
console.log = (...values) => lines.getStore().push(values.join(" "));

async function run(name, url) {
  const printed = [];
  let error = "";
  try {
    await lines.run(printed, () => require(`./javascript/${name}.js`)(url));
  } catch (wrong) {
    error = wrong.stack;
  }
  return [name, [printed.join("\n"), error]];
}

(async () => {
  const programs = process.argv.slice(2).map((one) => run(...one.split(/=(.*)/s)));
  show(JSON.stringify(Object.fromEntries(await Promise.all(programs))));
  process.exit(0);
})();
