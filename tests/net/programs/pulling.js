// Consumes messages by pulls until its input ends, and never reconnects: node pulling.js URL STREAM CONSUMER
// Prints "ready", then of each message the number in the stream and how often it was delivered.
const { connect } = require("@nats-io/transport-node");
const { jetstream } = require("@nats-io/jetstream");

async function main([servers, stream, name]) {
  const nc = await connect({ servers, reconnect: false });
  let over = false;
  nc.closed().then(() => { if (!over) { console.log("closed"); process.exit(1); } });
  const consumer = await jetstream(nc, { timeout: 20000 }).consumers.get(stream, name);
  const messages = await consumer.consume({ max_messages: 20, expires: 5000 });
  console.log("ready");
  process.stdin.resume();
  process.stdin.on("end", () => messages.stop());
  for await (const message of messages) {
    console.log(`${message.info.streamSequence} ${message.info.deliveryCount}`);
    message.ack();
  }
  over = true;
  await nc.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
