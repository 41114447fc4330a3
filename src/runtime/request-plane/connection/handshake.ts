import { randomBytes } from "node:crypto";
import { StatorError } from "../../../protocol/errors.ts";
import { proofMatches, proofOf } from "../../security/shared-secret.ts";
import {
  decodeHello,
  encodeHello,
  FrameType,
  type Hello,
  type HelloLimits,
  malformed,
  NONCE_BYTES,
} from "../frames/frames.ts";

export type Role = "client" | "server";

/*
 * What happens on a connection before the first call.
 *
 *   without a secret   hello <-> hello                                                       done
 *   with a secret      hello <-> hello, client: proof ->, <- server: proof                   done
 *
 *   proof = HMAC-SHA-256(secret, purpose of the side | client's hello | server's hello)
 *
 * Both hellos hold a fresh nonce, so a proof is good for one connection. The client proves itself first: a stranger who
 * calls a server gets nothing to try secrets on. Only one side with a secret = no connection. The secret tells who the
 * peer is; it does not hide the bytes that follow, which TLS does.
 */
export class Handshake {
  readonly #role: Role;
  readonly #secret: string | undefined;
  /** The payload of this side's hello. */
  readonly ourHello: Uint8Array;
  #theirHello: Uint8Array | undefined;
  #hello: Hello | undefined;
  #isDone = false;

  constructor(role: Role, limits: HelloLimits, secret: string | undefined) {
    this.#role = role;
    this.#secret = secret;
    this.ourHello = encodeHello(limits, randomBytes(NONCE_BYTES), secret !== undefined);
  }

  /** The peer's hello, when all is proven. */
  get result(): Hello | undefined {
    return this.#isDone ? this.#hello : undefined;
  }

  /** A frame of the peer. Returns the payload of a proof to be sent, if any. Throws what ends the connection. */
  receive(type: number, payload: Uint8Array): Uint8Array | undefined {
    if (type === FrameType.hello && !this.#theirHello) return this.#helloCame(payload);
    if (type === FrameType.proof && this.#theirHello && this.#secret !== undefined) return this.#proofCame(payload);
    throw malformed(this.#theirHello ? "it goes on before it has proven itself" : "its first frame is no hello");
  }

  #helloCame(payload: Uint8Array): Uint8Array | undefined {
    const hello = decodeHello(payload);
    this.#hello = hello;
    this.#theirHello = new Uint8Array(payload);
    const weHave = this.#secret !== undefined;
    if (weHave !== hello.hasSecret) {
      const [has, lacks] = weHave === (this.#role === "server") ? ["worker", "caller"] : ["caller", "worker"];
      throw unproven(`the ${has} has a shared secret and the ${lacks} has none`);
    }
    if (!weHave) this.#isDone = true;
    return weHave && this.#role === "client" ? this.#proof("client") : undefined;
  }

  #proofCame(payload: Uint8Array): Uint8Array | undefined {
    const peer = this.#role === "client" ? "server" : "client";
    if (!proofMatches(payload, this.#proof(peer))) throw unproven("the two have different shared secrets");
    this.#isDone = true;
    return this.#role === "server" ? this.#proof("server") : undefined;
  }

  #proof(role: Role): Uint8Array {
    const hellos = [this.ourHello, this.#theirHello!];
    if (this.#role === "server") hellos.reverse();
    return proofOf(this.#secret!, `stator request plane, ${role}`, hellos);
  }
}

export function unproven(why: string): StatorError {
  return new StatorError("peer_authentication_failed", `Caller and worker do not trust each other: ${why}.`);
}
