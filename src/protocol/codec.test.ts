import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  decodeFloats,
  decodeGenerateRequest,
  decodeTokenDelta,
  decodeTokens,
  decodeTokenTable,
  encodeFloats,
  encodeGenerateRequest,
  encodeTokenDelta,
  encodeTokens,
  encodeTokenTable,
  pack,
  unpack,
} from "./codec.ts";
import { StatorError } from "./errors.ts";
import type { GenerateRequest, TokenDelta } from "./generate.ts";
import { buildTokenTable } from "./token-table.ts";

const token = fc.integer({ min: 0, max: 0xffffffff });
const tokens = fc.array(token, { maxLength: 40 }).map((ids) => Uint32Array.from(ids));
const logprob = fc.double({ min: -1000, max: 0, noNaN: true }).map((value) => value + 0); // no -0: it is 0 on the wire
const entry = fc.record({ logprob, top: fc.array(fc.record({ token, logprob }), { maxLength: 4 }) });
const usage = fc.tuple(fc.nat(), fc.nat(), fc.nat()).map(([cached, more, completionTokens]) => ({
  promptTokens: cached + more,
  completionTokens,
  cachedTokens: cached,
}));
const finish = fc.record(
  { reason: fc.constantFrom("stop" as const, "length" as const, "abort" as const), stopTokenId: token, usage },
  { requiredKeys: ["reason", "usage"] },
);
const delta: fc.Arbitrary<TokenDelta> = tokens.chain((ids) =>
  fc
    .record(
      { logprobs: fc.array(entry, { minLength: ids.length, maxLength: ids.length }), finish },
      { requiredKeys: [] },
    )
    .map((rest) => ({ tokens: ids, ...rest }) as TokenDelta),
);

/** A delta of one token with any tail. */
function withTail(flags: number, tail: unknown): Uint8Array {
  return Uint8Array.of(flags, 0, 1, 0, 7, 0, 0, 0, ...pack(tail));
}

const protocolError = expect.objectContaining({ code: "protocol_error" });

/** All that may come out of a decoder but its value. */
function decodes<T>(decode: () => T): T | undefined {
  try {
    return decode();
  } catch (error) {
    expect(error).toBeInstanceOf(StatorError);
    expect((error as StatorError).code).toBe("protocol_error");
    return undefined;
  }
}

/** What msgpack can carry, wrong in every way. */
const anything = fc.anything({
  withBigInt: true,
  maxDepth: 3,
  values: [
    fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, -1, 0.5, 2 ** 53, 2n ** 63n, -(2n ** 63n), "stop", "", null),
    fc.integer(),
    fc.double(),
    fc.string(),
    fc.uint8Array(),
  ],
});

const request: GenerateRequest = {
  requestId: "r",
  model: "m",
  tokens: Uint32Array.of(1, 0xffffffff, 3),
  generated: Uint32Array.of(4, 0xffffffff),
  sampling: {
    temperature: 0.5,
    topP: 1,
    topK: 0,
    minP: 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    repetitionPenalty: 1,
    seed: 0xffffffff,
    logitBias: [[5, -100]],
  },
  stop: { maxTokens: 7, minTokens: 0, stopTokenIds: [2], ignoreEos: false },
  grammar: { kind: "json_schema", schema: '{"b":1,"2":9007199254740993}' },
  topLogprobs: 2,
  timeoutMs: 1000,
};

it.each(["msgpack", "json"] as const)("%s deltas: the logprob of what is impossible", (codec) => {
  const impossible = Number.NEGATIVE_INFINITY;
  const delta = {
    tokens: Uint32Array.of(1),
    logprobs: [{ logprob: impossible, top: [{ token: 2, logprob: impossible }] }],
  };
  expect(decodeTokenDelta(encodeTokenDelta(delta, codec))).toEqual(delta);
});

it("json deltas: wrong members and garbage are protocol errors", () => {
  const text = (value: unknown): Uint8Array => Buffer.from(JSON.stringify(value));
  for (const wrong of [{}, { tokens: [1] }, { tokens: { $base64: "AAA=" } }, { tokens: { $base64: "" }, finish: 1 }]) {
    expect(() => decodeTokenDelta(text(wrong)), JSON.stringify(wrong)).toThrow(protocolError);
  }
  fc.assert(fc.property(fc.json(), (json) => void decodes(() => decodeTokenDelta(Buffer.from(`{"tokens":${json}}`)))));
});

describe("the codec", () => {
  it("brings every delta back", () => {
    fc.assert(
      fc.property(delta, (value) => {
        expect(decodeTokenDelta(encodeTokenDelta(value))).toEqual(value);
        expect(decodeTokenDelta(encodeTokenDelta(value, "json"))).toEqual(value);
      }),
    );
  });

  it("answers cut, changed and random bytes with a delta or protocol_error, never with anything else", () => {
    const any = (bytes: Uint8Array): void => void decodes(() => decodeTokenDelta(bytes));
    fc.assert(fc.property(fc.uint8Array({ maxLength: 60 }), any));
    fc.assert(
      fc.property(delta, fc.nat(), fc.nat(255), (value, at, byte) => {
        const bytes = Uint8Array.from(encodeTokenDelta(value));
        any(bytes.subarray(0, at % bytes.length));
        bytes[at % bytes.length] = byte;
        any(bytes);
      }),
    );
  });

  it("gives nothing of a tail that is not what it should be", () => {
    const good = { reason: "stop", usage: { promptTokens: 3, completionTokens: 1, cachedTokens: 2 } };
    const used = (more: object): object => ({ finish: { ...good, usage: { ...good.usage, ...more } } });
    expect(decodeTokenDelta(withTail(2, { finish: good })).finish).toEqual(good);
    const big = { ...good, usage: { promptTokens: 2 ** 40, completionTokens: 0, cachedTokens: 0 } };
    expect(decodeTokenDelta(withTail(2, { finish: big })).finish).toEqual(big);
    expect(decodeTokenDelta(withTail(1, { logprobs: [[Number.NEGATIVE_INFINITY, 1, -2]] })).logprobs).toEqual([
      { logprob: Number.NEGATIVE_INFINITY, top: [{ token: 1, logprob: -2 }] },
    ]);
    const finishes: unknown[] = [
      {},
      { finish: null },
      { finish: [] },
      { finish: { ...good, reason: "because" } },
      { finish: { ...good, reason: "__proto__" } },
      { finish: { reason: "stop" } },
      { finish: { ...good, stopTokenId: "2" } },
      { finish: { ...good, stopTokenId: 1.5 } },
      { finish: { ...good, stopTokenId: null } },
      used({ promptTokens: -1 }),
      used({ completionTokens: Number.NaN }),
      used({ completionTokens: "1" }),
      used({ completionTokens: 2 ** 53 }),
      used({ completionTokens: 2n ** 62n }),
      used({ cachedTokens: 4 }),
      used({ cachedTokens: undefined }),
    ];
    for (const tail of finishes) expect(() => decodeTokenDelta(withTail(2, tail))).toThrow(protocolError);
    const lists: unknown[] = [
      undefined,
      null,
      {},
      "x",
      [],
      [[-1], [-1]],
      [null],
      [[]],
      [[-1, 2]],
      [["-1"]],
      [[Number.NaN]],
      [[Number.POSITIVE_INFINITY]],
      [[null]],
      [[-1, 1.5, -1]],
      [[-1, -1, -1]],
      [[-1, 2, "x"]],
      [{ length: 1, 0: -1 }],
    ];
    for (const logprobs of lists) expect(() => decodeTokenDelta(withTail(1, { logprobs }))).toThrow(protocolError);
  });

  it("gives deltas of the right types whatever the tail is", () => {
    fc.assert(
      fc.property(
        fc.constantFrom(1, 2, 3),
        fc.oneof(anything, fc.record({ logprobs: anything, finish: anything })),
        (flags, tail) => {
          const bytes = decodes(() => {
            try {
              return withTail(flags, tail);
            } catch {
              return undefined; // nothing that msgpack carries
            }
          });
          const value = bytes && decodes(() => decodeTokenDelta(bytes));
          if (value) expect(decodeTokenDelta(encodeTokenDelta(value))).toEqual(value);
        },
      ),
    );
  });

  it("never gives a BigInt", () => {
    expect(unpack(pack({ a: 2n ** 62n }))).toEqual({ a: 2 ** 62 });
    expect(unpack(Uint8Array.of(0xcf, 255, 255, 255, 255, 255, 255, 255, 255))).toBe(2 ** 64);
    expect(unpack(Uint8Array.of(0xd3, 128, 0, 0, 0, 0, 0, 0, 0))).toBe(-(2 ** 63));
  });

  it("refuses a request with a member of a wrong type", () => {
    const plain = {
      ...request,
      tokens: encodeTokens(request.tokens),
      generated: encodeTokens(request.generated ?? new Uint32Array(0)),
    };
    const paths = [
      ["requestId"],
      ["model"],
      ["tokens"],
      ["generated"],
      ["timeoutMs"],
      ["topLogprobs"],
      ["grammar"],
      ["grammar", "kind"],
      ["grammar", "schema"],
      ["sampling"],
      ...Object.keys(request.sampling).map((name) => ["sampling", name]),
      ["stop"],
      ...Object.keys(request.stop).map((name) => ["stop", name]),
    ];
    for (const [outer, inner] of paths as [keyof typeof plain, string?][]) {
      for (const wrong of [null, {}, [null], [[1]], Number.NaN]) {
        const value = inner === undefined ? wrong : { ...(plain[outer] as object), [inner]: wrong };
        const bytes = pack({ ...plain, [outer]: value });
        expect(() => decodeGenerateRequest(bytes), `${outer}.${inner} = ${JSON.stringify(wrong)}`).toThrow(
          protocolError,
        );
      }
    }
    fc.assert(
      fc.property(
        fc.constantFrom(...paths),
        fc.constantFrom(1, -1, "x", true, [], [1], [[1, 2]]),
        ([outer, inner], wrong) => {
          const old = plain[outer as keyof typeof plain];
          const value = inner === undefined ? wrong : { ...(old as object), [inner]: wrong };
          decodes(() => decodeGenerateRequest(pack({ ...plain, [outer!]: value })));
        },
      ),
    );
  });

  it.each<[string, number[], number]>([
    ["going back", [0, 2, 1], 2],
    ["beyond the bytes", [0, 1, 4], 2],
    ["too few", [0, 1], 2],
    ["too many", [0, 1, 2, 2], 2],
    ["none", [], 2],
  ])("refuses a token table with offsets %s", (_name, offsets, count) => {
    const table = { bytes: Uint8Array.of(1, 2, 3), offsets: Uint32Array.from(offsets), flags: new Uint8Array(count) };
    expect(() => decodeTokenTable(encodeTokenTable(table))).toThrow(protocolError);
  });

  it("brings a request back, its schema text untouched", () => {
    expect(decodeGenerateRequest(encodeGenerateRequest(request))).toEqual(request);
    expect(decodeGenerateRequest(encodeGenerateRequest(request, "json"))).toEqual(request);
    const { generated: _, ...fresh } = request;
    expect(decodeGenerateRequest(encodeGenerateRequest(fresh))).toEqual(fresh);
  });

  it("refuses more generated tokens than the sequence may have", () => {
    const { maxTokens } = request.stop;
    const withGenerated = (count: number): Uint8Array =>
      encodeGenerateRequest({ ...request, generated: new Uint32Array(count) });
    expect(decodeGenerateRequest(withGenerated(maxTokens)).generated).toHaveLength(maxTokens);
    expect(() => decodeGenerateRequest(withGenerated(maxTokens + 1))).toThrow(protocolError);
  });

  it.each([
    [Uint8Array.of()],
    [Uint8Array.of(0xc0)],
    [Uint8Array.of(0x2a)],
    [Uint8Array.of(0x81)],
    [Uint8Array.of(0x80)],
  ])("refuses %j as a request", (bytes) => {
    expect(() => decodeGenerateRequest(bytes)).toThrow(StatorError);
  });

  it("brings tokens, floats and tables back, at any alignment", () => {
    fc.assert(
      fc.property(tokens, fc.nat(3), (ids, shift) => {
        const bytes = new Uint8Array(ids.byteLength + shift);
        bytes.set(encodeTokens(ids), shift);
        expect(decodeTokens(bytes.subarray(shift))).toEqual(ids);
      }),
    );
    const floats = Float32Array.of(0, -1.5, 3e38);
    expect(decodeFloats(encodeFloats(floats))).toEqual(floats);
    const table = buildTokenTable([
      { bytes: Uint8Array.of(1, 2), flags: 1 },
      { bytes: Uint8Array.of(), flags: 0 },
    ]);
    const back = decodeTokenTable(encodeTokenTable(table));
    expect(Array.from(back.bytes)).toEqual([1, 2]);
    expect(back.offsets).toEqual(table.offsets);
    expect(Array.from(back.flags)).toEqual([1, 0]);
  });

  it("refuses arrays of a broken length", () => {
    expect(() => decodeTokens(new Uint8Array(5))).toThrow(StatorError);
    expect(() => decodeFloats(new Uint8Array(5))).toThrow(StatorError);
  });

  it("does not let a peer reach a prototype", () => {
    // {"__proto__": {"polluted": true}}
    const bytes = Uint8Array.of(0x81, 0xa9, ...Buffer.from("__proto__"), 0x81, 0xa8, ...Buffer.from("polluted"), 0xc3);
    unpack(bytes);
    expect(({} as Record<string, unknown>).polluted).toBeUndefined();
  });
});
