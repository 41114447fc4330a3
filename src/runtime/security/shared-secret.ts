import { createHmac, timingSafeEqual } from "node:crypto";
import { StatorError } from "../../protocol/errors.ts";

const MIN_SECRET_BYTES = 16;

/** Throws `invalid_value` for a secret that could be guessed; `param` names the setting. */
export function checkSharedSecret(secret: string, param = "sharedSecret"): void {
  if (Buffer.byteLength(secret) >= MIN_SECRET_BYTES) return;
  throw new StatorError("invalid_value", `${param} must have at least ${MIN_SECRET_BYTES} bytes.`, { param });
}

/**
 * Proves that its sender has the secret: HMAC-SHA-256 over a purpose and what both sides said, each with a fresh nonce in
 * it. The purpose differs between the two directions, so that a proof cannot be sent back to its maker.
 */
export function proofOf(secret: string, purpose: string, transcript: readonly Uint8Array[]): Uint8Array {
  const hmac = createHmac("sha256", secret).update(purpose).update("\0");
  for (const part of transcript) hmac.update(part);
  return hmac.digest();
}

/** In constant time. */
export function proofMatches(proof: Uint8Array, expected: Uint8Array): boolean {
  return proof.length === expected.length && timingSafeEqual(proof, expected);
}
