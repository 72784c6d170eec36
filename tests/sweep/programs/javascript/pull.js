// A worker that pulls one job at a time; a pull may find nothing.  It gives up after 20 s.
const { connect } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager } = require("@nats-io/jetstream");

const JOBS = 6;

function failure(text, ms) {
  return new Promise((_, reject) => setTimeout(() => reject(new Error(text)), ms).unref());
}

async function main() {
  const nc = await connect({ servers: process.env.NATS_URL, name: "js-puller", timeout: 2000 });
  const jsm = await jetstreamManager(nc);
  await jsm.consumers.add("JOBS", { durable_name: "pullers", ack_policy: "explicit", ack_wait: 1_000_000_000 });
  const consumer = await jetstream(nc).consumers.get("JOBS", "pullers");
  const done = new Set();
  const deadline = Date.now() + 20_000;
  while (done.size < JOBS) {
    if (Date.now() > deadline) throw new Error(`only ${done.size} jobs came`);
    const job = await consumer.next({ expires: 1000 }).catch(() => null);
    if (job === null) continue;
    done.add(job.string().trim());
    job.ack();
  }
  console.log("done:", ...[...done].sort());
  await Promise.race([nc.flush(), failure("the last ack is not sent", 5000)]);
  await nc.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
