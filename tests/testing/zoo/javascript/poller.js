// A polling worker on nats.js: fetches with an expiry, of which many find nothing, and a monitor beside them.
const { connect } = require("@nats-io/transport-node");
const { jetstream, jetstreamManager } = require("@nats-io/jetstream");
const { randomUUID } = require("node:crypto");

// A server that is late with a heartbeat has no message either.
function late(error) {
  if (error.message !== "heartbeats missed") throw error;
  return null;
}

module.exports = async (url) => {
  const nc = await connect({ servers: url, name: "js-poller" });
  const jsm = await jetstreamManager(nc);
  await jsm.streams.add({ name: "WORK", subjects: ["work.new"] });
  await jsm.consumers.add("WORK", { durable_name: "pollers", ack_policy: "explicit" });
  const consumer = await jetstream(nc).consumers.get("WORK", "pollers");
  const monitor = setInterval(() => jsm.consumers.info("WORK", "pollers").catch(() => {}), 50);
  const worker = randomUUID();
  let done = 0;
  while (done < 5) {
    const m = await consumer.next({ expires: 1000 }).catch(late);
    if (m === null) continue;
    const job = m.json();
    nc.publish("work.done", JSON.stringify({ job: job.id, worker, cube: job.n ** 3, at: new Date() }));
    m.ack();
    done += 1;
    console.log(job.n, job.n ** 3);
  }
  clearInterval(monitor);
  await nc.drain();
};

if (require.main === module) module.exports(process.env.NATS_URL);
