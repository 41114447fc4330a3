import { randomFillSync } from "node:crypto";

const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"; // Crockford's base 32, lower case: no i, l, o, u
const POOL_BYTES = 4096;
const pool = new Uint8Array(POOL_BYTES);
let poolAt = POOL_BYTES;

/**
 * A random id of `length` characters from `0-9a-z` (5 bits each; the default 16 make collisions out of the question
 * within a fleet), with `prefix` in front. Safe in file names, headers and metric labels.
 */
export function uniqueId(prefix = "", length = 16): string {
  let id = prefix;
  for (let i = 0; i < length; i++) {
    if (poolAt === POOL_BYTES) {
      randomFillSync(pool);
      poolAt = 0;
    }
    id += ALPHABET[pool[poolAt++]! & 31]!;
  }
  return id;
}
