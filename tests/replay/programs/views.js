const { connect } = require("@nats-io/transport-node");
const { jetstream } = require("@nats-io/jetstream");
const { Kvm } = require("@nats-io/kv");
const { Objm } = require("@nats-io/obj");

async function take(source, count) {
  const found = [];
  for await (const entry of source) {
    found.push(entry);
    if (found.length === count) return found;
  }
}

(async () => {
  const nc = await connect({ servers: process.env.NATS_URL, name: "js-views" });
  const kv = await new Kvm(nc).create("conf", { history: 5 });
  await kv.put("a", "1");
  await kv.put("b", "2");
  const watch = await kv.watch();
  const two = await take(watch, 2);
  console.log(two.map((entry) => `${entry.key}=${entry.string()}@${entry.revision}`).join(" "));
  const other = await kv.watch({ key: "c.*" });
  const later = take(other, 1);
  await kv.put("c.1", "3");
  console.log((await later).map((entry) => `${entry.key}=${entry.string()}`).join(" "));
  await kv.delete("b");
  const keys = [];
  for await (const key of await kv.keys()) keys.push(key);
  console.log(keys.sort().join(" "));
  const history = [];
  for await (const entry of await kv.history({ key: "b" })) history.push(`${entry.operation}@${entry.revision}`);
  console.log(history.join(" "));

  const store = await new Objm(nc).create("files");
  const info = await store.putBlob({ name: "big" }, new Uint8Array(300_000).fill(7));
  console.log(info.size, info.chunks, info.digest);
  const blob = await store.getBlob("big");
  console.log(blob.length, blob[299_999]);
  console.log((await store.list()).map((entry) => entry.name).join(" "));
  await store.delete("big");

  const js = jetstream(nc);
  const ordered = await js.consumers.get("KV_conf");
  const messages = await take(await ordered.consume(), 3);
  console.log(messages.map((m) => m.subject).join(" "));
  await nc.close();
})();
