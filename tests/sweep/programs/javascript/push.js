// A push consumer with flow control; each photo is acked.  The package of its client is an argument.
const { connect } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager } = require(process.argv[2] ?? "@nats-io/jetstream");

const PHOTOS = 24;

async function main() {
  const nc = await connect({
    servers: process.env.NATS_URL,
    name: "reader",
    timeout: 2000,
    reconnectTimeWait: 200,
  });
  const jsm = await jetstreamManager(nc);
  await jsm.consumers.add("PHOTOS", {
    name: "reader",
    deliver_subject: "photos.for.reader",
    ack_policy: "explicit",
    ack_wait: 1_000_000_000,
    flow_control: true,
    idle_heartbeat: 500_000_000,
  });
  const consumer = await jetstream(nc).consumers.getPushConsumer("PHOTOS", "reader");
  const seen = new Set();
  for await (const photo of await consumer.consume()) {
    seen.add(photo.seq);
    photo.ack();
    if (seen.size === PHOTOS) break;
  }
  console.log("read", seen.size);
  await nc.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
