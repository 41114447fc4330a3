import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { parseAzure } from "./azure.ts";
import { parseMooncake } from "./mooncake.ts";
import type { TraceRequest } from "./trace-request.ts";

async function all(requests: AsyncIterable<TraceRequest>): Promise<TraceRequest[]> {
  const list: TraceRequest[] = [];
  for await (const request of requests) list.push(request);
  return list;
}

const row = (fields: object) => `${JSON.stringify(fields)}\n`;
const first = { timestamp: 100, input_length: 600, output_length: 5, hash_ids: [7, 8] };

describe("the Mooncake parser", () => {
  it("counts time from the first row and keeps ids, lengths and block size", async () => {
    const text = row(first) + row({ ...first, timestamp: 130, hash_ids: [] });
    expect(await all(parseMooncake([text]))).toEqual([
      { arrivalMs: 0, inputTokens: 600, outputTokens: 5, blockIds: [7, 8], blockTokens: 512 },
      { arrivalMs: 30, inputTokens: 600, outputTokens: 5, blockIds: [], blockTokens: 512 },
    ]);
  });

  it("knows the other names of the fields", async () => {
    const text = row({ created_time: 5, input_tokens: 3, output_tokens: 2, hash_ids: [1] });
    expect((await all(parseMooncake([text])))[0]).toMatchObject({ arrivalMs: 0, inputTokens: 3, outputTokens: 2 });
  });

  it("clamps an input that its ids do not cover, and drops ids behind the input", async () => {
    const text = row({ ...first, input_length: 2000 }) + row({ ...first, input_length: 512 });
    const [clamped, cut] = await all(parseMooncake([text]));
    expect(clamped?.inputTokens).toBe(1024);
    expect(cut?.blockIds).toEqual([7]);
  });

  it("gives follow-ups of a session their delay, from the field or from the timestamps", async () => {
    const text =
      row({ ...first, session_id: "a" }) +
      row({ ...first, timestamp: undefined, session_id: "a", delay: 40 }) +
      row({ ...first, timestamp: 200, session_id: "a" });
    const [opening, second, third] = await all(parseMooncake([text]));
    expect(opening).toMatchObject({ arrivalMs: 0, session: "a" });
    expect(opening).not.toHaveProperty("delayMs");
    expect(second).toMatchObject({ arrivalMs: 40, session: "a", delayMs: 40 });
    expect(third).toMatchObject({ arrivalMs: 100, session: "a", delayMs: 60 });
  });

  it.each([
    ["is not JSON", "{", undefined],
    ["is not a JSON object", "[1]", undefined],
    ["is missing", row({ ...first, timestamp: undefined }), "timestamp"],
    ["is missing", row({ ...first, input_length: undefined }), "input_length"],
    ["at least 1", row({ ...first, output_length: 0 }), "output_length"],
    ["whole number", row({ ...first, output_length: 1.5 }), "output_length"],
    ["must be a number", row({ ...first, input_length: "9" }), "input_length"],
    ["must be a list", row({ ...first, hash_ids: 3 }), "hash_ids"],
    ["whole numbers from 0", row({ ...first, hash_ids: [1, -1] }), "hash_ids"],
    ["does not continue a session", row({ ...first, delay: 4 }), "delay"],
    ["earlier than the first", row({ ...first, timestamp: 1 }), "timestamp"],
  ])("names line and field: %s", async (problem, line, param) => {
    const error = await all(parseMooncake([row(first), line])).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "invalid_value", param });
    expect((error as Error).message).toContain("Line 2");
    expect((error as Error).message).toContain(problem);
  });

  it("takes a byte order mark at the start for none of the text", async () => {
    expect(await all(parseMooncake([`\ufeff${row(first)}`]))).toEqual(await all(parseMooncake([row(first)])));
    expect(await all(parseMooncake([`\ufeff${row(first)}`.trimEnd()]))).toHaveLength(1);
  });

  it("reads the same from chunks cut anywhere", async () => {
    const text = Array.from({ length: 20 }, (_, at) => row({ ...first, timestamp: 100 + at })).join("\r\n");
    const whole = await all(parseMooncake([text]));
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1 }), async (sizes) => {
        const chunks: string[] = [];
        for (let from = 0, at = 0; from < text.length; at++) {
          const size = sizes[at % sizes.length] ?? 1;
          chunks.push(text.slice(from, from + size));
          from += size;
        }
        expect(await all(parseMooncake(chunks))).toEqual(whole);
      }),
    );
  });
});

describe("the Azure parser", () => {
  const header = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

  it("reads both years' timestamps, to the tenth of a microsecond", async () => {
    const text = `${header}2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690+00:00,0,109`;
    const requests = await all(parseAzure([text]));
    expect(requests.map(({ inputTokens, outputTokens }) => [inputTokens, outputTokens])).toEqual([
      [374, 44],
      [1, 109],
    ]);
    expect(requests[1]?.arrivalMs).toBeCloseTo(4314.579, 3);
  });

  it.each([
    ["ContextTokens", "TIMESTAMP,Tokens,GeneratedTokens\n", 1],
    ["TIMESTAMP", `${header}yesterday,1,1\n`, 2],
    ["TIMESTAMP", `${header}2023-13-16 18:15:46,1,1\n`, 2],
    ["TIMESTAMP", `${header}2023-02-30 18:15:46,1,1\n`, 2],
    ["TIMESTAMP", `${header}2023-11-16 24:00:00,1,1\n`, 2],
    ["ContextTokens", `${header}2023-11-16 18:15:46,1.5,1\n`, 2],
    ["GeneratedTokens", `${header}2023-11-16 18:15:46,1\n`, 2],
    ["TIMESTAMP", `${header}2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n`, 3],
  ])("names line and field: %s", async (param, text, line) => {
    const error = await all(parseAzure([text])).catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({ code: "invalid_value", param });
    expect((error as Error).message).toContain(`Line ${line}`);
  });
});
