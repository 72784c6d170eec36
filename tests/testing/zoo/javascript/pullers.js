// Two workers of one pull consumer, of unlike speed: one job at a time, a result, an ack.
const { connect } = require("@nats-io/transport-node");
const { AckPolicy, jetstream, jetstreamManager } = require("@nats-io/jetstream");

const JOBS = 10;

// A server that is late with a heartbeat has no message either.
function late(error) {
  if (error.message !== "heartbeats missed") throw error;
  return null;
}

async function work(url, pace, done) {
  const nc = await connect({ servers: url });
  const consumer = await jetstream(nc).consumers.get("PULLERS", "crew");
  while (done.length < JOBS) {
    const m = await consumer.next({ expires: 1000 }).catch(late);
    if (m === null) continue;
    const job = m.json();
    await new Promise((resolve) => setTimeout(resolve, pace * Math.random()));
    nc.publish("pullers.done", JSON.stringify({ job: job.n, cube: job.n ** 3 }));
    m.ack();
    done.push(job.n);
  }
  await nc.drain();
}

module.exports = async (url) => {
  const nc = await connect({ servers: url });
  const jsm = await jetstreamManager(nc);
  await jsm.streams.add({ name: "PULLERS", subjects: ["pullers.jobs"] });
  await jsm.consumers.add("PULLERS", { durable_name: "crew", ack_policy: AckPolicy.Explicit });
  const js = jetstream(nc);
  for (let n = 0; n < JOBS; n++) await js.publish("pullers.jobs", JSON.stringify({ n }));
  const done = [];
  await Promise.all([work(url, 10, done), work(url, 60, done)]);
  console.log(done.sort((a, b) => a - b).join(" "));
  await nc.drain();
};

if (require.main === module) module.exports(process.env.NATS_URL);
