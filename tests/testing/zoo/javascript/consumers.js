// Two consumers of one durable that consume with callbacks, one fast, one slow; the results are counted.
const { connect } = require("@nats-io/transport-node");
const { AckPolicy, jetstream, jetstreamManager } = require("@nats-io/jetstream");

const TASKS = 9;

module.exports = async (url) => {
  const nc = await connect({ servers: url, name: "consumers" });
  const jsm = await jetstreamManager(nc);
  await jsm.streams.add({ name: "PARCELS", subjects: ["parcels.*.new"] });
  await jsm.consumers.add("PARCELS", { durable_name: "both", ack_policy: AckPolicy.Explicit });
  const done = [];
  const all = new Promise((resolve) => {
    const work = async (name, pace) => {
      const own = await connect({ servers: url, name });
      const consumer = await jetstream(own).consumers.get("PARCELS", "both");
      const messages = await consumer.consume({ max_messages: 2 });
      (async () => {
        for await (const m of messages) {
          await new Promise((later) => setTimeout(later, pace * Math.random()));
          await own.request("parcels.weigh", m.data, { timeout: 2000 }).catch(() => {});
          m.ack();
          done.push(m.json().task);
          if (done.length === TASKS) resolve();
        }
      })();
      return async () => { await messages.close(); await own.drain(); };
    };
    module.exports.stop = Promise.all([work("consumers-fast", 5), work("consumers-slow", 40)]);
  });
  const stops = await module.exports.stop;
  const js = jetstream(nc);
  for (let task = 1; task <= TASKS; task++) await js.publish(`parcels.${task}.new`, JSON.stringify({ task }));
  await all;
  for (const stop of stops) await stop();
  console.log(done.sort().join(" "));
  await nc.drain();
};

if (require.main === module) module.exports(process.env.NATS_URL);
