// Asks a service of its own until its input ends, and never reconnects: node asking.js URL
const { connect: tcp, StringCodec } = require("nats");

const url = process.argv[2];
if (url.startsWith("ws")) globalThis.WebSocket = require("ws").WebSocket;
const connect = url.startsWith("ws") ? require("nats.ws").connect : tcp;

async function main() {
  const text = StringCodec();
  const client = await connect({ servers: url, reconnect: false, pingInterval: 200, maxPingOut: 3 });
  let answered = 0, refused = 0, over = false;
  client.closed().then(() => { if (!over) { console.log("closed"); process.exit(1); } });
  client.subscribe("js", { callback: (_, message) => message.respond(message.data) });
  await client.flush();
  process.stdin.resume();
  process.stdin.on("end", () => { over = true; });
  console.log("ready");
  while (!over) {
    try {
      await client.request("js", text.encode("hello"), { timeout: 20000 });
      answered++;
    } catch (error) {
      if (error.code !== "503") throw error;
      refused++;
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  console.log(`answered ${answered} refused ${refused}`);
  await client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
