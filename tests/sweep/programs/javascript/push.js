// A push consumer with flow control.  The package of its client is an argument.
const { connect } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager } = require(process.argv[2] ?? "@nats-io/jetstream");

const MESSAGES = 24;

(async () => {
  const nc = await connect({ servers: process.env.NATS_URL, name: "reader" });
  const jsm = await jetstreamManager(nc);
  await jsm.consumers.add("PHOTOS", {
    name: "reader",
    deliver_subject: "photos.for.reader",
    ack_policy: "none",
    flow_control: true,
    idle_heartbeat: 500_000_000,
  });
  const consumer = await jetstream(nc).consumers.getPushConsumer("PHOTOS", "reader");
  let read = 0;
  for await (const m of await consumer.consume()) {
    read += 1;
    if (read === MESSAGES) break;
  }
  console.log("read", read);
  await nc.close();
})();
