// Reads messages from f.>, and prints what nats.js makes of their headers: subject and [name, values] of each.
// Arguments: URL, number of messages, user, password.
const { connect, Match } = require("@nats-io/transport-node");

function read(message) {
  try {
    if (!message.headers) return { headers: [], any: [] };
    return { headers: [...message.headers], any: message.headers.values("nats-sender-user", Match.IgnoreCase) };
  } catch (error) {
    return { headers: [], any: [] }; // a name with a blank: the application gets no headers at all
  }
}

async function main([servers, number, user, pass]) {
  const nc = await connect({ servers, user, pass, reconnect: false });
  const found = {};
  let left = Number(number);
  const done = new Promise((resolve) => {
    nc.subscribe("f.>", {
      callback: (error, message) => {
        if (error) throw error;
        found[message.subject] = read(message);
        if (--left === 0) resolve();
      },
    });
  });
  await nc.flush();
  console.error("ready");
  await done;
  console.log(JSON.stringify(found));
  await nc.close();
}

main(process.argv.slice(2));
