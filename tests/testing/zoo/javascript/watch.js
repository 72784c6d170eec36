// Views on nats.js: settings that somebody else changes, files, and an ordered consumer after a reconnect.
const { connect } = require("@nats-io/transport-node");
const { jetstream } = require("@nats-io/jetstream");
const { Kvm } = require("@nats-io/kv");
const { Objm } = require("@nats-io/obj");
const { randomUUID } = require("node:crypto");

module.exports = async (url) => {
  const nc = await connect({ servers: url, name: "js-watch", reconnectTimeWait: 20 });
  const kv = await new Kvm(nc).create("flags", { history: 3 });
  await kv.put("instance", randomUUID());
  await kv.put("region", "eu");
  const seen = [];
  for await (const entry of await kv.watch()) {
    if (entry.key === "region" && !seen.length) await kv.put("ready", "yes");
    if (entry.key === "instance") continue;
    seen.push(entry.key);
    console.log(entry.key, entry.string(), entry.operation);
    if (entry.key === "stop") break;
  }
  const store = await new Objm(nc).create("photos");
  const run = randomUUID();
  const info = await store.putBlob({ name: "cat", metadata: { run } }, new Uint8Array(200_000).fill(7));
  console.log(info.size, info.chunks, info.digest);
  const found = await store.info("cat");
  if (found.metadata.run !== run) throw new Error("another run's photo");
  console.log((await store.getBlob("cat")).length);
  const ordered = await jetstream(nc).consumers.get("KV_flags");
  const messages = await ordered.consume();
  let count = 0;
  for await (const m of messages) {
    count += 1;
    console.log(m.subject.split(".").pop(), m.seq);
    if (count === 2) await nc.reconnect();
    if (count === 4) break;
  }
  await nc.close();
};

if (require.main === module) module.exports(process.env.NATS_URL);
