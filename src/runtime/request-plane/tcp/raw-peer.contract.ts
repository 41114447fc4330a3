import { connect, createServer, type Socket } from "node:net";
import { FrameParser } from "../frames/frame-parser.ts";
import { encodeHello, FrameType, type HelloLimits, NONCE_BYTES, payloadLimits } from "../frames/frames.ts";
import { defaultLimits } from "../limits.ts";
import { formatTcpAddress, parseTcpAddress, type TcpTarget } from "./address.ts";

/*
 * Peers that speak bytes, for tests: what no correct implementation would send.
 */

/** The slow way to write a frame. */
export function frame(type: number, stream = 0, payload: Uint8Array = new Uint8Array(0)): Buffer {
  const header = Buffer.alloc(9);
  header.writeUInt32LE(payload.length, 0);
  header[4] = type;
  header.writeUInt32LE(stream, 5);
  return Buffer.concat([header, payload]);
}

export function helloPayload(limits: HelloLimits = defaultLimits, hasSecret = false): Uint8Array {
  return encodeHello(limits, new Uint8Array(NONCE_BYTES), hasSecret);
}

export const hello = frame(FrameType.hello, 0, helloPayload());

/** An open frame's payload: 65.5 s of time, no ids. */
export function openPayload(endpoint: string, body: Uint8Array = new Uint8Array(0)): Buffer {
  return Buffer.concat([Uint8Array.of(0xff, 0xff, 0, 0, endpoint.length, 0, 0, 0, 0, 0), Buffer.from(endpoint), body]);
}

export function targetOf(address: string): TcpTarget {
  const target = parseTcpAddress(address);
  if (typeof target === "string") throw new Error(target);
  return target;
}

/** All a test opened; closed with it. */
export interface Cleanup {
  push(close: () => unknown): unknown;
}

export interface RawSocket {
  readonly socket: Socket;
  /** Type, payload and stream of all that it heard. */
  readonly frames: [number, Buffer, number][];
  readonly closed: Promise<void>;
}

export async function rawSocket(address: string, toClose: Cleanup): Promise<RawSocket> {
  const socket = connect(targetOf(address));
  toClose.push(() => socket.destroy());
  const frames: [number, Buffer, number][] = [];
  const parser = new FrameParser(payloadLimits(defaultLimits), (type, stream, payload) => {
    frames.push([type, Buffer.from(payload), stream]);
  });
  socket.on("data", (chunk) => parser.push(chunk));
  socket.on("error", () => {});
  const closed = new Promise<void>((resolve) => socket.on("close", () => resolve()));
  await new Promise<void>((resolve) => socket.once("connect", resolve));
  return { socket, frames, closed };
}

/** A server that speaks raw bytes; returns its address. */
export async function rawServer(onSocket: (socket: Socket) => void, toClose: Cleanup): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    onSocket(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  toClose.push(() => {
    for (const socket of sockets) socket.destroy();
    return new Promise((resolve) => server.close(resolve));
  });
  return formatTcpAddress("127.0.0.1", (server.address() as { port: number }).port);
}
