// An order service on nats.js: publishes with UUIDs and trace headers, asks another service, consumes its stream.
const { randomUUID, randomBytes } = require("node:crypto");
const { connect, headers } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager } = require("@nats-io/jetstream");

const traced = () => {
  const h = headers();
  h.set("traceparent", `00-${randomBytes(16).toString("hex")}-${randomBytes(8).toString("hex")}-01`);
  h.set("X-Correlation-Id", randomUUID());
  return h;
};

module.exports = async (url) => {
  const nc = await connect({ servers: url, name: "js-orders" });
  const jsm = await jetstreamManager(nc);
  await jsm.streams.add({ name: "SALES", subjects: ["sales.>"] });
  await jsm.consumers.add("SALES", { durable_name: "billing", ack_policy: "explicit" });
  const js = jetstream(nc);
  const mine = [];
  for (const qty of [1, 4, 2]) {
    const id = randomUUID();
    mine.push(id);
    const order = { id, qty, lines: [{ line: randomUUID(), sku: `sku-${qty}` }], createdAt: new Date().toISOString() };
    const ack = await js.publish(`sales.${id}.created`, JSON.stringify(order), { msgID: id, headers: traced() });
    const wanted = JSON.stringify({ order_id: id, qty, ts: Date.now() });
    const stock = (await nc.request("inventory.reserve", wanted, { timeout: 3000, headers: traced() })).json();
    if (stock.order_id !== id) throw new Error("the answer belongs to another order");
    nc.publish(`audit.${stock.warehouse}`, JSON.stringify({ id, reservation: stock.reservation }));
    console.log(ack.seq, stock.warehouse, stock.left);
  }
  const consumer = await js.consumers.get("SALES", "billing");
  const messages = await consumer.consume({ max_messages: 10 });
  for await (const m of messages) {
    const order = m.json();
    if (order.id !== mine.shift() || m.headers.get("Nats-Msg-Id") !== order.id) throw new Error("another order");
    console.log("bill", order.qty);
    await m.ackAck();
    if (!mine.length) break;
  }
  await nc.close();
};

if (require.main === module) module.exports(process.env.NATS_URL);
