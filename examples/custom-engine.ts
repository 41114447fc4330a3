// An engine of your own behind the OpenAI API. In two terminals:
//
//   npm run example -- custom-engine file:/tmp/fleet
//   npx stator frontend --discovery file:/tmp/fleet
//
//   curl -s http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \
//     -d '{"model": "shouter", "messages": [{"role": "user", "content": "hello"}]}'
import { serveEngine, TextEngine } from "stator/engines";
import { openRuntime } from "stator/runtime";

const engine = new TextEngine({
  name: "shouter",
  async *generate(prompt) {
    const question = prompt.split("\n").at(-2) ?? prompt;
    for (const word of question.replace(/^user: /, "").split(" ")) yield `${word.toUpperCase()}! `;
  },
});

const runtime = openRuntime({ discovery: process.argv[2] ?? "file:/tmp/fleet" });
const worker = await serveEngine(runtime, engine);
console.log(`${worker.record.workerId} serves ${worker.record.card.name} at ${worker.record.address}`);
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => void worker.shutdown());
