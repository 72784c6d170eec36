const { connect, StringCodec, AckPolicy } = require("nats");
(async () => {
  const sc = StringCodec();
  const nc = await connect({ servers: process.env.NATS_URL, name: "js-js" });
  const jsm = await nc.jetstreamManager();
  await jsm.streams.add({ name: "A", subjects: ["a.>"] });
  const js = nc.jetstream();
  for (let n = 0; n < 5; n++) { const pa = await js.publish("a." + n, sc.encode("m" + n)); console.log(pa.seq); }
  await jsm.consumers.add("A", { durable_name: "d", ack_policy: AckPolicy.Explicit });
  const c = await js.consumers.get("A", "d");
  const iter = await c.fetch({ max_messages: 5, expires: 2000 });
  for await (const m of iter) { console.log(m.subject, sc.decode(m.data)); m.ack(); }
  const kv = await js.views.kv("k");
  await kv.put("x", sc.encode("1"));
  console.log((await kv.get("x")).string());
  for await (const e of await kv.watch()) { console.log(e.key, e.revision); break; }
  const os = await js.views.os("o");
  await os.putBlob({ name: "n" }, new Uint8Array(200_000).fill(7));
  console.log((await os.getBlob("n")).length, (await os.list()).map((e) => e.name).join());
  await nc.drain();
})();
