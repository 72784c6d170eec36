// A customer asks a service for prices, and tries again where no answer comes in time.
const { connect } = require("@nats-io/transport-node");

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function price(nc, number) {
  for (let n = 0; n < 10; n++) {
    try {
      return Number((await nc.request("prices.get", String(number), { timeout: 500 })).string());
    } catch {
      await sleep(400);
    }
  }
  throw new Error(`no price for ${number}`);
}

async function main() {
  const service = await connect({ servers: process.env.NATS_URL, name: "js-service", timeout: 2000 });
  const customer = await connect({ servers: process.env.NATS_URL, name: "js-customer", timeout: 2000 });
  service.subscribe("prices.get", {
    callback: (error, msg) => {
      if (error) throw error;
      msg.respond(String(Number(msg.string()) ** 2));
    },
  });
  for (let number = 1; number <= 5; number++) {
    const found = await price(customer, number);
    if (found !== number ** 2) throw new Error(`${number}: ${found}`);
  }
  await customer.close();
  await service.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
