// The older client of nats.js: a watch, one question to many, a service with discovery, and retries with jitter.
const { connect, JSONCodec, StringCodec, RequestStrategy, nuid } = require("nats");
const { randomUUID } = require("node:crypto");

module.exports = async (url) => {
  const jc = JSONCodec(), sc = StringCodec();
  const nc = await connect({ servers: url, name: "js-legacy" });
  const kv = await nc.jetstream().views.kv("legacy");
  await kv.put("instance", sc.encode(nuid.next()));
  await kv.put("mode", sc.encode("fast"));
  for await (const entry of await kv.watch()) {
    if (entry.key === "instance") continue;
    console.log(entry.key, sc.decode(entry.value), entry.revision);
    break;
  }
  const rfq = randomUUID(), names = [];
  const question = jc.encode({ rfq, item: "bolt" });
  for await (const m of await nc.requestMany("offers.ask", question, { strategy: RequestStrategy.Timer, maxWait: 1000 })) {
    const offer = jc.decode(m.data);
    if (offer.rfq !== rfq) throw new Error("the offer for another question");
    names.push(offer.name);
  }
  console.log(names.sort().join(" "));
  const service = await nc.services.add({ name: "adder", version: "1.0.0", description: "adds" });
  service.addEndpoint("add", { subject: "adder.add", handler: (_, m) => m.respond(jc.encode({ sum: jc.decode(m.data).reduce((a, b) => a + b), id: randomUUID() })) });
  await nc.flush();
  for await (const one of await nc.services.client({ strategy: RequestStrategy.JitterTimer, maxWait: 2000, jitter: 300 }).info("adder")) {
    console.log(one.name, one.version, one.endpoints.map((e) => e.subject).join(" "));
  }
  console.log(jc.decode((await nc.request("adder.add", jc.encode([1, 2, 3]))).data).sum);
  const id = randomUUID();
  for (let attempt = 1; attempt < 5; attempt++) {
    try {
      await nc.request("nobody.home", jc.encode({ id, attempt }), { timeout: 500 });
    } catch (error) {
      console.log(attempt, error.code);
      await new Promise((resolve) => setTimeout(resolve, 10 * Math.random()));
    }
  }
  await nc.close();
};

if (require.main === module) module.exports(process.env.NATS_URL);
