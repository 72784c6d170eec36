// Asks a service of its own, with headers, and prints the answer: node client.js URL [OPTIONS]
// OPTIONS: those of connect() as JSON; "nkey" and "creds" in it are a seed and the text of a .creds file.
const { credsAuthenticator, headers, nkeyAuthenticator, StringCodec } = require("nats");

const url = process.argv[2];
if (url.startsWith("ws")) globalThis.WebSocket = require("ws").WebSocket;
const { connect } = url.startsWith("ws") ? require("nats.ws") : require("nats");

async function main() {
  const text = StringCodec();
  const { nkey, creds, ...options } = JSON.parse(process.argv[3] || "{}");
  const bytes = new TextEncoder();
  if (nkey) options.authenticator = nkeyAuthenticator(bytes.encode(nkey));
  if (creds) options.authenticator = credsAuthenticator(bytes.encode(creds));
  const client = await connect({ servers: url, reconnect: false, ...options });
  client.subscribe("hello.*", {
    callback: (_, message) => message.respond(text.encode(String(message.data.length)), { headers: message.headers }),
  });
  const sent = headers();
  sent.set("Trace", "yes");
  const answer = await client.request("hello.js", text.encode("hello world"), { timeout: 10000, headers: sent });
  console.log(`hello: ${text.decode(answer.data)} headers: ${answer.headers.get("Trace")}`);
  await client.drain();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
