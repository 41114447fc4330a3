// A service of your own in the fleet, and a client that finds it. In two terminals:
//
//   npm run example -- custom-service file:/tmp/fleet serve
//   npm run example -- custom-service file:/tmp/fleet call Ada
import { openRuntime } from "stator/runtime";

const [discovery = "file:/tmp/fleet", what = "serve", name = "world"] = process.argv.slice(2);
const runtime = openRuntime({ discovery });
const greet = runtime.namespace("demo").component("greeter").endpoint<{ name: string }, { text: string }>("greet");

if (what === "serve") {
  const served = await greet.serve(async function* (request) {
    for (const word of ["Hello,", `${request.name}!`]) yield { text: word };
  });
  console.log(`serving as ${served.instanceId} at ${served.address}`);
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => void runtime.shutdown());
} else {
  const client = greet.client();
  for await (const { text } of client.call({ name }, { timeoutMs: 5_000 })) console.log(text);
  client.close();
  await runtime.shutdown();
}
