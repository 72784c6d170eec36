// A shop that stores each order once: it publishes with an id until there is an ack, then counts the stream.
const { connect } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager } = require("@nats-io/jetstream");

const ORDERS = 6;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function store(js, number) {
  for (let n = 0; n < 6; n++) {
    try {
      return await js.publish("orders.new", `order ${number}`, { msgID: `order-${number}`, timeout: 1000 });
    } catch {
      await sleep(500);
    }
  }
  throw new Error(`order ${number} is not stored`);
}

async function main() {
  const nc = await connect({ servers: process.env.NATS_URL, name: "js-shop", timeout: 2000 });
  const jsm = await jetstreamManager(nc);
  await jsm.streams.add({ name: "ORDERS", subjects: ["orders.new"] });
  for (let number = 0; number < ORDERS; number++) await store(jetstream(nc), number);
  const stored = (await jsm.streams.info("ORDERS")).state.messages;
  if (stored !== ORDERS) throw new Error(`${stored} orders are stored`);
  await nc.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
