import { afterEach, describe, expect, it } from "vitest";
import { encodeTokens, unpack } from "../../protocol/codec.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { IncomingCall } from "../../runtime/request-plane/plane.ts";
import { bytes, startTestFrontend, type TestFrontend, type TestOptions, until } from "../test-frontend.contract.ts";

let running: TestFrontend | undefined;
const start = async (options: TestOptions): Promise<TestFrontend> => {
  await running?.close();
  running = await startTestFrontend(options);
  return running;
};
afterEach(async () => {
  await running?.close();
  running = undefined;
});

const completion = { model: "test-model", prompt: "hello", max_tokens: 5 };
const complete = (test: TestFrontend) => test.post("/v1/completions", completion);
const answered = { choices: [{ text: "hello" }] };
const errorOf = async (response: Response) => ((await response.json()) as { error: { code: string } }).error;

/** Tokenizes, but fails with `failures` first, one after another; notes who was asked. */
function tokenizer(...failures: StatorError[]) {
  const asked: string[] = [];
  const tokenize = async (call: IncomingCall, workerId: string): Promise<void> => {
    asked.push(workerId);
    const failure = failures.shift();
    if (failure !== undefined) throw failure;
    call.send(encodeTokens(bytes((unpack(call.body) as { text: string }).text)));
  };
  return { asked, tokenize };
}

const lost = () => new StatorError("worker_lost", "The connection to tcp://10.0.0.1:1 was lost.");
const full = () => new StatorError("overloaded", "full");

describe("a worker that is lost while it tokenizes a prompt", () => {
  it("is followed by another one", async () => {
    const { asked, tokenize } = tokenizer(lost());
    const test = await start({ tokenize });
    expect(await (await complete(test)).json()).toMatchObject(answered);
    expect(new Set(asked)).toEqual(new Set(["w0", "w1"]));
  });

  it("... even when nobody takes it at once", async () => {
    const { asked, tokenize } = tokenizer(lost(), full(), full());
    const test = await start({ tokenize });
    expect(await (await complete(test)).json()).toMatchObject(answered);
    expect(asked).toHaveLength(4);
  });

  it("... even when it was the last one, and the model is made anew", async () => {
    let taken!: () => void;
    const begun = new Promise<void>((resolve) => {
      taken = resolve;
    });
    const { tokenize } = tokenizer();
    let calls = 0;
    const test = await start({
      workers: ["w0"],
      tokenize: async (call, workerId) => {
        if (++calls > 1) return await tokenize(call, workerId);
        await test.leave("w0");
        taken();
        throw lost();
      },
    });
    const answer = complete(test);
    await begun;
    await until(() => test.catalog.lookup("test-model") === undefined);
    await test.join("w0");
    expect(await (await answer).json()).toMatchObject(answered);
  });

  it("... but not for ever, and not for long enough to take the whole fleet along", async () => {
    const { tokenize } = tokenizer(lost(), ...Array.from({ length: 100 }, full));
    const test = await start({ tokenize, options: { timeouts: { firstTokenMs: 300 } } });
    expect((await errorOf(await complete(test))).code).toBe("worker_lost");
    const poison = tokenizer(...Array.from({ length: 100 }, lost));
    const error = await errorOf(await complete(await start({ ...poison, options: { migration: { limit: 2 } } })));
    expect(error.code).toBe("worker_lost");
    expect(JSON.stringify(error)).not.toContain("10.0.0.1");
    expect(poison.asked).toHaveLength(3);
    await until(() => running!.frontend.inFlight === 0);
  });

  it("... and not past the request's own time", async () => {
    const { tokenize } = tokenizer(lost(), ...Array.from({ length: 100 }, full));
    const test = await start({ tokenize });
    const response = await test.post("/v1/completions", completion, { "x-stator-timeout-ms": "400" });
    expect((await errorOf(response)).code).toBe("deadline_exceeded");
  });
});

it("a worker that refuses to tokenize is not asked twice, whoever asks beside it", async () => {
  const { tokenize } = tokenizer();
  const test = await start({
    tokenize: (call, workerId) => (workerId === "w0" ? Promise.reject(full()) : tokenize(call, workerId)),
  });
  const answers = await Promise.all(Array.from({ length: 16 }, () => complete(test)));
  expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
});
