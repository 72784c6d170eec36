const { connect, StringCodec, headers } = require("nats");
(async () => {
  const sc = StringCodec();
  const nc = await connect({ servers: process.env.NATS_URL, name: "js-core" });
  const sub = nc.subscribe("greet.*");
  (async () => { for await (const m of sub) m.respond(sc.encode("hello " + sc.decode(m.data))); })();
  for (let n = 0; n < 5; n++) {
    const r = await nc.request("greet." + n, sc.encode("w" + n), { timeout: 3000 });
    console.log(sc.decode(r.data));
  }
  try { await nc.request("nobody", sc.encode(""), { timeout: 1000 }); } catch (e) { console.log(e.code); }
  await nc.drain();
})();
