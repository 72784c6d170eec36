// A reader of a whole stream with an ordered consumer, with "--deadline" not for ever.
const { connect } = require("@nats-io/transport-node");
const { jetstream } = require("@nats-io/jetstream");

const MESSAGES = 12;

async function main() {
  const nc = await connect({
    servers: process.env.NATS_URL,
    name: "js-ordered",
    timeout: 2000,
    reconnectTimeWait: 200,
  });
  const consumer = await jetstream(nc).consumers.get("LOG");
  let due = 1;
  for await (const line of await consumer.consume({ idle_heartbeat: 500 })) {
    if (Number(line.string()) !== due) throw new Error(`line ${line.string()} came where ${due} was due`);
    due += 1;
    if (due > MESSAGES) break;
  }
  console.log("read", MESSAGES);
  await nc.close();
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

if (process.argv.includes("--deadline")) setTimeout(fail, 8_000, "no end in 8 s").unref();
main().catch(fail);
