import { pino } from "pino";
import { Registry } from "prom-client";
import { decodeGenerateRequest, encodeFloats, encodeTokenDelta, encodeTokenTable } from "../protocol/codec.ts";
import type { GenerateRequest, TokenDelta } from "../protocol/generate.ts";
import { calledEndpoint, type WorkerRecord, workerEndpoints } from "../protocol/instance.ts";
import type { ModelCard } from "../protocol/model-card.ts";
import { seededRandom } from "../protocol/random.ts";
import { Router, type RouterMode } from "../router/select/router.ts";
import type { Lease } from "../runtime/discovery/discovery.ts";
import { MemoryDiscovery } from "../runtime/discovery/memory.ts";
import { MemoryNetwork, MemoryRequestPlaneClient, MemoryRequestPlaneServer } from "../runtime/request-plane/memory.ts";
import type { IncomingCall } from "../runtime/request-plane/plane.ts";
import { createFrontend, type Frontend } from "./frontend.ts";
import { ModelCatalog } from "./models/model-catalog.ts";
import { frontendOptions, type PartialFrontendOptions } from "./options.ts";
import { byteTokenizer } from "./preprocess/byte-tokenizer.ts";

/** A frontend over the memory plane with scripted workers, for the tests of this folder. */
export interface TestFrontend {
  readonly url: string;
  readonly port: number;
  readonly adminUrl: string;
  readonly frontend: Frontend;
  readonly router: Router;
  readonly catalog: ModelCatalog;
  /** Calls that workers run right now. */
  activeCalls(): number;
  /** Takes the worker out of discovery, and puts it back. */
  leave(workerId: string): Promise<void>;
  join(workerId: string): Promise<void>;
  post(path: string, body: unknown, headers?: Record<string, string>): Promise<Response>;
  close(): Promise<void>;
}

/** What a scripted worker does with a request. The default echoes the prompt's bytes. */
export type WorkerScript = (request: GenerateRequest, call: IncomingCall, workerId: string) => Promise<void>;

export interface TestOptions {
  readonly options?: PartialFrontendOptions;
  readonly workers?: readonly string[];
  readonly script?: WorkerScript;
  /** The model's tokenizer is its workers': what they do with a text. */
  readonly tokenize?: (call: IncomingCall, workerId: string) => Promise<void>;
  readonly card?: Partial<ModelCard>;
  readonly mode?: RouterMode;
  readonly onLog?: (line: Record<string, unknown>) => void;
}

export const testCard: ModelCard = {
  name: "test-model",
  aliases: ["test/alias"],
  revision: "r1",
  tokenizer: { kind: "bytes" },
  chatTemplate: "{% for message in messages %}{{ message.content }}{% endfor %}",
  bosToken: "",
  eosToken: "",
  vocabularySize: 256,
  contextLength: 1024,
  blockSize: 16,
  roles: ["aggregated"],
  capabilities: {
    maxTopLogprobs: 20,
    grammars: ["json_object", "json_schema", "gbnf"],
    parameters: [
      ...["temperature", "topP", "topK", "minP", "presencePenalty", "frequencyPenalty", "repetitionPenalty", "seed"],
      ...["logitBias", "minTokens", "stopTokenIds", "ignoreEos"],
    ],
  },
  embeddingLength: 4,
  kvLayout: "k1",
  defaults: {},
};

export async function startTestFrontend(test: TestOptions = {}): Promise<TestFrontend> {
  const { workers = ["w0", "w1"], script = echo, mode = "round-robin" } = test;
  const tokenizer = test.tokenize === undefined ? testCard.tokenizer : { kind: "engine" as const };
  const card = { ...testCard, tokenizer, ...test.card };
  const network = new MemoryNetwork();
  const { onLog } = test;
  const logger =
    onLog === undefined
      ? pino({ level: "silent" })
      : pino({ level: "info" }, { write: (line) => onLog(JSON.parse(line)) });
  const discovery = new MemoryDiscovery();
  const plane = new MemoryRequestPlaneClient({ network });
  const catalog = new ModelCatalog({ discovery, plane, logger });
  const servers = workers.map((workerId) => startWorker(workerId, network, script, test.tokenize));
  await Promise.all(servers.map((server) => server.listen()));
  const leases = new Map<string, Lease>();
  const join = async (workerId: string): Promise<void> => {
    const { address } = servers[workers.indexOf(workerId)]!;
    leases.set(workerId, await discovery.register(recordOf(workerId, address, card)));
  };
  for (const workerId of workers) await join(workerId);
  const router = new Router(mode, seededRandom(1));
  const given = test.options ?? {};
  const frontend = createFrontend(
    frontendOptions({
      ...given,
      http: { port: 0, ...given.http },
      admin: { port: 0, ...given.admin },
      expected: { models: workers.length > 0 ? 1 : 0, workers: workers.length, ...given.expected },
    }),
    { catalog, plane, router, logger, registry: new Registry() },
  );
  const { port, adminPort } = await frontend.listen();
  const url = `http://127.0.0.1:${port}`;
  if (workers.length > 0) await until(() => catalog.list().length > 0);
  return {
    url,
    port,
    adminUrl: `http://127.0.0.1:${adminPort}`,
    frontend,
    router,
    catalog,
    join,
    leave: async (workerId) => await leases.get(workerId)!.release(),
    activeCalls: () => servers.reduce((sum, server) => sum + server.activeCalls, 0),
    post: (path, body, headers = {}) =>
      fetch(url + path, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: typeof body === "string" ? body : JSON.stringify(body),
      }),
    close: async () => {
      await frontend.close();
      await catalog.close();
      await plane.close();
      await Promise.all(servers.map((server) => server.close()));
      await discovery.close();
    },
  };
}

/** Waits for a condition; fails after `timeoutMs`. */
export async function until(condition: () => boolean, timeoutMs = 5_000): Promise<void> {
  const deadline = performance.now() + timeoutMs;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`condition not met within ${timeoutMs} ms: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** The `data:` frames of a stream, as text. */
export function framesOf(body: string): string[] {
  return body
    .split("\n\n")
    .filter((frame) => frame !== "")
    .map((frame) => {
      if (!frame.startsWith("data: ")) throw new Error(`not a data frame: ${JSON.stringify(frame)}`);
      return frame.slice("data: ".length);
    });
}

/** Sends the delta, waiting for credit where necessary. */
export async function sendDelta(call: IncomingCall, delta: TokenDelta): Promise<void> {
  if (!call.send(encodeTokenDelta(delta))) await call.ready();
}

export function bytes(text: string): Uint32Array {
  return Uint32Array.from(Buffer.from(text));
}

export function finish(request: GenerateRequest, completionTokens: number, reason: "stop" | "length" | "abort") {
  return {
    reason,
    usage: {
      promptTokens: request.tokens.length,
      completionTokens,
      cachedTokens: Math.min(3, request.tokens.length - 1),
    },
  };
}

/** The prompt's bytes, cyclically, until maxTokens; one token per message. */
export const echo: WorkerScript = async (request, call) => {
  call.accept(0);
  const { tokens, topLogprobs } = request;
  const count = Math.min(request.stop.maxTokens, 64);
  for (let i = 0; i < count && !call.signal.aborted; i++) {
    const token = tokens[i % tokens.length]!;
    await sendDelta(call, {
      tokens: Uint32Array.of(token),
      ...(topLogprobs === undefined
        ? {}
        : {
            logprobs: [
              {
                logprob: -0.5,
                top: Array.from({ length: topLogprobs }, (_, n) => ({ token: n + 65, logprob: -n - 0.5 })),
              },
            ],
          }),
    });
  }
  await sendDelta(call, { tokens: new Uint32Array(0), finish: finish(request, count, "length") });
};

function startWorker(
  workerId: string,
  network: MemoryNetwork,
  script: WorkerScript,
  tokenize: TestOptions["tokenize"],
): MemoryRequestPlaneServer {
  const server = new MemoryRequestPlaneServer(workerId, { network });
  const place = { component: "worker", epoch: "e1" };
  server.handle(calledEndpoint(place, workerEndpoints.generate), (call) =>
    script(decodeGenerateRequest(call.body), call, workerId),
  );
  server.handle(calledEndpoint(place, workerEndpoints.embed), async (call) => {
    call.accept(0);
    call.send(encodeFloats(Float32Array.of(call.body.length / 4, 0.5, -1, 2)));
  });
  if (tokenize !== undefined) {
    server.handle(calledEndpoint(place, workerEndpoints.tokenize), (call) => tokenize(call, workerId));
    server.handle(calledEndpoint(place, workerEndpoints.tokenTable), async (call) => {
      call.send(encodeTokenTable(byteTokenizer.table));
    });
  }
  return server;
}

function recordOf(workerId: string, address: string, card: ModelCard): WorkerRecord {
  return {
    namespace: "default",
    component: "worker",
    workerId,
    endpoints: [],
    epoch: "e1",
    address,
    pid: process.pid,
    engine: { kind: "test", version: "1" },
    card,
    capacity: { maxRunning: 8, totalBlocks: 1024 },
    startedAtMs: 1_700_000_000_000,
  };
}
