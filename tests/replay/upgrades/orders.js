// Streams, consumers and publishes, with the API that nats.js 2 and 3 share.
async function main() {
  let client, jsm, js;
  if (process.argv[2] === "2") {
    const nats = require("nats");
    client = await nats.connect({ servers: process.env.NATS_URL, name: "orders" });
    jsm = await client.jetstreamManager();
    js = client.jetstream();
  } else {
    const { connect } = require("@nats-io/transport-node");
    const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
    client = await connect({ servers: process.env.NATS_URL, name: "orders" });
    jsm = await jetstreamManager(client);
    js = jetstream(client);
  }
  const info = await jsm.streams.add({ name: "ORDERS", subjects: ["orders.>"] });
  console.log(info.config.name);
  await jsm.streams.update("ORDERS", { subjects: ["orders.>", "carts.>"] });
  for (let n = 0; n < 3; n++) {
    const ack = await js.publish(`orders.${n}`, `${n}`);
    console.log(ack.seq);
  }
  await jsm.consumers.add("ORDERS", { durable_name: "puller", ack_policy: "explicit" });
  console.log((await jsm.consumers.info("ORDERS", "puller")).num_pending);
  console.log((await jsm.streams.getMessage("ORDERS", { last_by_subj: "orders.1" })).seq);
  const left = [];
  for await (const one of jsm.consumers.list("ORDERS")) left.push(one.name);
  console.log(left);
  await jsm.streams.delete("ORDERS");
  await client.close();
}
main();
