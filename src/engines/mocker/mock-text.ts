/** What mock answers say, again and again. */
const text = Buffer.from(
  "A simulated engine has no model, so this is what it always says; only the time that it takes is worth a look. ",
);

/** A number that depends on every token and its place; 32 bits. FNV-1a over the tokens' bytes. */
export function hashOf(tokens: Uint32Array): number {
  let hash = 0x811c9dc5;
  for (const token of tokens) hash = Math.imul(hash ^ token, 0x01000193);
  return hash >>> 0;
}

/** The answer's token at `index`: the same for the same prompt, on whatever worker. */
export function mockToken(promptHash: number, index: number): number {
  return text[(promptHash + index) % text.length]!;
}

/** Where an answer ends by itself: 32 to 287 tokens. */
export function naturalLength(promptHash: number): number {
  return 32 + (promptHash % 256);
}

/**
 * Keys of the full blocks of prompt and answer, chained: equal keys mean an equal beginning. 53 bits of two chained
 * hashes, so that they stay safe integers; a collision costs a wrong cache hit in a simulation.
 */
export function blockKeysOf(
  prompt: Uint32Array,
  promptHash: number,
  outputTokens: number,
  blockTokens: number,
): number[] {
  const keys = new Array<number>(Math.floor((prompt.length + outputTokens) / blockTokens));
  let low = 0x811c9dc5;
  let high = 0x9747b28c;
  for (let block = 0, at = 0; block < keys.length; block++) {
    for (const end = at + blockTokens; at < end; at++) {
      const token = at < prompt.length ? prompt[at]! : mockToken(promptHash, at - prompt.length);
      low = Math.imul(low ^ token, 0x01000193);
      high = Math.imul(high ^ (token + 0x9e37), 0x85ebca6b);
      high ^= high >>> 13;
    }
    keys[block] = (high >>> 11) * 2 ** 32 + (low >>> 0);
  }
  return keys;
}
