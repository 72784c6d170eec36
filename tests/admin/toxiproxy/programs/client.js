// Every call of toxiproxy-node-client, and those that @testcontainers/toxiproxy makes with it:
// client.js URL UPSTREAM
const assert = require("node:assert");
const net = require("node:net");
const { Toxiproxy } = require("toxiproxy-node-client");

const [url, upstream] = process.argv.slice(2);
const portOf = (listen) => Number(listen.substring(listen.lastIndexOf(":") + 1));

function connects(listen) {
  return new Promise((resolve) => {
    const socket = net.connect(portOf(listen), "127.0.0.1");
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
    socket.on("connect", () => socket.destroy());
  });
}

async function calls(server) {
  assert.strictEqual(await server.getVersion(), '{"version": "2.12.0"}\n');
  assert.deepStrictEqual(await server.getAll(), {});
  assert.deepStrictEqual(await server.populate([]), {});
  const proxy = await server.createProxy({ name: "nats", listen: "127.0.0.1:0", upstream });
  assert.strictEqual(proxy.enabled, true);
  assert.ok(await connects(proxy.listen));
  await assert.rejects(server.createProxy({ name: "nats", listen: "127.0.0.1:0", upstream }), /409/);
  await assert.rejects(server.createProxy({ name: "", listen: "127.0.0.1:0", upstream }), /400/);
  await assert.rejects(server.createProxy({ name: "b", listen: proxy.listen, upstream }), /500/);
  await assert.rejects(server.get("other"), /404/);
  assert.deepStrictEqual((await server.get("nats")).toJson(), proxy.toJson());
  assert.deepStrictEqual(Object.keys(await server.getAll()), ["nats"]);

  const off = await proxy.update({ enabled: false, listen: proxy.listen, upstream });
  assert.deepStrictEqual(off.toJson(), { ...proxy.toJson(), enabled: false });
  assert.ok(!(await connects(proxy.listen)));
  const on = await proxy.update({ enabled: true, listen: proxy.listen, upstream });
  assert.deepStrictEqual(on.toJson(), proxy.toJson());
  assert.ok(await connects(proxy.listen));

  const body = { name: "slow", type: "latency", stream: "upstream", toxicity: 1, attributes: { latency: 10, jitter: 2 } };
  const toxic = await proxy.addToxic(body);
  assert.deepStrictEqual(toxic.toJson(), body);
  assert.deepStrictEqual((await proxy.getToxic("slow")).toJson(), body);
  await assert.rejects(proxy.addToxic(body), /409/);
  await assert.rejects(proxy.getToxic("other"), /404/);
  toxic.attributes.latency = 20;
  const changed = await toxic.update(toxic.toJson());
  assert.deepStrictEqual(changed.attributes, { latency: 20, jitter: 2 });
  const drop = { type: "nats_drop", name: "lost", stream: "upstream", toxicity: 1, attributes: { subject: "orders.>" } };
  assert.deepStrictEqual((await proxy.addToxic(drop)).toJson(), drop);
  await toxic.remove();
  await assert.rejects(proxy.getToxic("slow"), /404/);
  await server.reset();
  await assert.rejects(proxy.getToxic("lost"), /404/);

  const made = await server.populate([
    { name: "nats", listen: proxy.listen, upstream },
    { name: "more", listen: "127.0.0.1:0", upstream, enabled: false },
  ]);
  assert.deepStrictEqual(Object.keys(made), ["nats", "more"]);
  assert.strictEqual(made.more.enabled, false);
  await made.more.remove();
  await assert.rejects(made.more.remove(), /404/);
  await proxy.remove();
  assert.deepStrictEqual(await server.getAll(), {});
}

// The container module: the first free port of a range, and updates that send all three fields.
async function container(server, ports) {
  const create = async (name) => {
    const used = Object.values(await server.getAll()).map((proxy) => portOf(proxy.listen));
    const port = ports.find((one) => !used.includes(one));
    if (port === undefined) throw new Error("No available ports left");
    const listen = `0.0.0.0:${port}`;
    const proxy = await server.createProxy({ name, upstream, listen });
    return { listen, setEnabled: (enabled) => proxy.update({ enabled, listen, upstream }) };
  };
  for (const [number, port] of ports.entries()) {
    const { listen, setEnabled } = await create(`proxy${number}`);
    assert.strictEqual(portOf(listen), port);
    assert.strictEqual((await setEnabled(false)).enabled, false);
    assert.ok(!(await connects(listen)));
    assert.strictEqual((await setEnabled(true)).enabled, true);
    assert.ok(await connects(listen));
  }
  await assert.rejects(create("one too many"), /No available ports left/);
}

async function main() {
  const server = new Toxiproxy(url);
  await calls(server);
  await container(server, process.argv.slice(4).map(Number));
  console.log("all calls made");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
