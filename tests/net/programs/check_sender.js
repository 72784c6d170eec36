// Reads messages from s.>, and prints by subject what the function of sender.js says of them.
// Arguments: URL, number of messages, the folder of sender.js, the key that counts.
const { connect } = require("@nats-io/transport-node");

async function main([servers, number, folder, key]) {
  const { sender } = require(`${folder}/sender.js`);
  const nc = await connect({ servers, reconnect: false });
  const found = {};
  const messages = nc.subscribe("s.>", { max: Number(number) });
  await nc.flush();
  console.error("ready");
  for await (const message of messages) {
    try {
      found[message.subject] = Object.fromEntries(sender(message, [key]));
    } catch (error) {
      found[message.subject] = error.message;
    }
  }
  console.log(JSON.stringify(found));
  await nc.close();
}

main(process.argv.slice(2));
