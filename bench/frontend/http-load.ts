import { connect, type Socket } from "node:net";

/** One answer as the load generator saw it; times in milliseconds of `performance.now()`. */
export interface Answer {
  readonly startedAt: number;
  readonly firstByteAt: number;
  readonly endedAt: number;
  readonly status: number;
  /** The last bytes of the body, enough for a usage object. */
  readonly tail: string;
}

const TAIL_CHARACTERS = 2048;
const TIMEOUT_MS = 120_000;

/**
 * A keep-alive connection that costs as little as possible: it sends prepared bytes and looks only for the end of the
 * answer. One request at a time.
 */
export class LoadConnection {
  readonly #socket: Socket;
  #current:
    | {
        startedAt: number;
        firstByteAt: number;
        status: number;
        tail: string;
        length: number;
        total: number;
        resolve(a: Answer): void;
        reject(e: Error): void;
      }
    | undefined;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setEncoding("latin1");
    socket.setTimeout(TIMEOUT_MS, () => socket.destroy(new Error("no bytes for two minutes")));
    socket.on("data", (data) => this.#onData(data as unknown as string));
    socket.on("error", (error) => this.#fail(error));
    socket.on("close", () => this.#fail(new Error("the server closed the connection")));
  }

  static open(port: number): Promise<LoadConnection> {
    return new Promise((resolve, reject) => {
      const socket = connect(port, "127.0.0.1");
      socket.once("error", reject);
      socket.once("connect", () => {
        socket.removeListener("error", reject);
        resolve(new LoadConnection(socket));
      });
    });
  }

  send(request: Buffer): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#current = {
        startedAt: performance.now(),
        firstByteAt: 0,
        status: 0,
        tail: "",
        length: -1,
        total: 0,
        resolve,
        reject,
      };
      this.#socket.write(request);
    });
  }

  close(): void {
    this.#current = undefined;
    this.#socket.destroy();
  }

  #onData(data: string): void {
    const current = this.#current;
    if (current === undefined) return;
    if (current.firstByteAt === 0) {
      current.firstByteAt = performance.now();
      current.status = Number(data.slice(9, 12));
      const length = /\r\ncontent-length: (\d+)/i.exec(data);
      current.length = length ? Number(length[1]) + data.indexOf("\r\n\r\n") + 4 : -1;
    }
    current.total += data.length;
    current.tail = (data.length >= TAIL_CHARACTERS ? data : current.tail + data).slice(-TAIL_CHARACTERS);
    const ended = current.length >= 0 ? current.total >= current.length : current.tail.endsWith("\r\n0\r\n\r\n");
    if (!ended) return;
    this.#current = undefined;
    const { startedAt, firstByteAt, status, tail, resolve } = current;
    resolve({ startedAt, firstByteAt, endedAt: performance.now(), status, tail });
  }

  #fail(error: Error): void {
    this.#current?.reject(error);
    this.#current = undefined;
  }
}

/** The bytes of a POST with a JSON body. */
export function postBytes(path: string, body: unknown): Buffer {
  const text = JSON.stringify(body);
  return Buffer.from(
    `POST ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`,
  );
}
