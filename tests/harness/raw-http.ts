import { connect, type Socket } from "node:net";

export interface RawAnswer {
  readonly status: number;
  readonly head: string;
  readonly body: string;
  /** The server closed the connection (its FIN or a reset arrived). */
  readonly closed: boolean;
}

/** A bare TCP client for what an HTTP client refuses to send. */
export class RawHttp {
  readonly socket: Socket;
  #received = "";
  #closed = false;
  readonly #port: number;

  private constructor(port: number) {
    this.#port = port;
    this.socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    this.socket.setEncoding("latin1");
    this.socket.on("data", (data) => {
      this.#received += data;
    });
    const close = (): void => {
      this.#closed = true;
    };
    this.socket.on("end", close).on("close", close).on("error", close);
  }

  static open(url: string): RawHttp {
    return new RawHttp(Number(new URL(url).port));
  }

  /** A whole POST; `head` lines replace or add to the usual ones. */
  post(path: string, body: string | Buffer, head: readonly string[] = ["content-type: application/json"]): this {
    const bytes = Buffer.from(body);
    const length = head.some((line) => /^(content-length|transfer-encoding):/i.test(line))
      ? []
      : [`content-length: ${bytes.length}`];
    this.write([`POST ${path} HTTP/1.1`, `host: 127.0.0.1:${this.#port}`, ...head, ...length, "", ""].join("\r\n"));
    this.socket.write(bytes);
    return this;
  }

  write(text: string): this {
    this.socket.write(text, "latin1");
    return this;
  }

  get received(): string {
    return this.#received;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** The first answer, once it is complete or the server has closed. Rejects after `timeoutMs`. */
  async answer(timeoutMs = 10_000): Promise<RawAnswer> {
    const deadline = performance.now() + timeoutMs;
    while (!this.#complete() && !this.#closed) {
      if (performance.now() > deadline)
        throw new Error(`no answer within ${timeoutMs} ms, only: ${this.#received.slice(0, 500)}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const [head = "", ...rest] = this.#received.split("\r\n\r\n");
    return {
      status: Number(/^HTTP\/1\.1 (\d+)/.exec(head)?.[1] ?? 0),
      head,
      body: rest.join("\r\n\r\n"),
      closed: this.#closed,
    };
  }

  close(): void {
    this.socket.destroy();
  }

  #complete(): boolean {
    const end = this.#received.indexOf("\r\n\r\n");
    if (end < 0) return false;
    const length = /\r\ncontent-length: (\d+)/i.exec(this.#received.slice(0, end));
    if (length) return this.#received.length >= end + 4 + Number(length[1]);
    return this.#received.endsWith("\r\n0\r\n\r\n");
  }
}
