import { open } from "node:fs/promises";
import { StatorError } from "../protocol/index.ts";

/** A metadata value. 64-bit integers become numbers when exact, bigints otherwise. */
export type GgufValue = string | number | bigint | boolean | readonly GgufValue[];

export interface GgufTensor {
  readonly name: string;
  /** Innermost dimension first. */
  readonly dimensions: readonly number[];
  /** ggml's type number: 0 = F32, 1 = F16, 2 = Q4_0, 8 = Q8_0, ... */
  readonly type: number;
}

/** The head of a GGUF file: everything but the weights. */
export interface GgufHeader {
  readonly version: number;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly tensors: readonly GgufTensor[];
  readonly fileBytes: number;
}

export interface GgufLimits {
  /** Metadata and tensor list together. Default 256 MiB: the largest vocabularies need about 20. */
  readonly headerBytes?: number;
  /** Elements of one array. Default 4,194,304. */
  readonly arrayLength?: number;
  /** Metadata pairs, and tensors. Default 65,536 each. */
  readonly entries?: number;
}

const defaultLimits = { headerBytes: 256 << 20, arrayLength: 4 << 20, entries: 1 << 16 };
const maxNesting = 3;

/**
 * Reads metadata and tensor list of a GGUF file, version 2 or 3, little endian
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Never reads weights, never more than the limit.
 *
 * ```
 * "GGUF" | u32 version | u64 tensors | u64 pairs | pairs: string key, u32 type, value | tensor infos | weights
 * ```
 *
 * Throws `model_unavailable` when the file is missing, is something else, or is damaged.
 */
export async function readGguf(path: string, limits: GgufLimits = {}): Promise<GgufHeader> {
  const bounds = { ...defaultLimits, ...limits };
  const file = await open(path, "r").catch((cause: unknown) => {
    throw new StatorError("model_unavailable", `Cannot open the model file ${path}: ${reasonOf(cause)}.`, { cause });
  });
  try {
    const { size, isDirectory } = await file
      .stat()
      .then((stat) => ({ size: stat.size, isDirectory: stat.isDirectory() }));
    if (isDirectory) throw new StatorError("model_unavailable", `${path} is a folder, not a GGUF file.`);
    // Few heads need more than the first piece; a longer one is read again, not patched together.
    for (let wanted = 1 << 20; ; wanted *= 4) {
      const length = Math.min(wanted, size, bounds.headerBytes);
      const bytes = Buffer.alloc(length);
      let read = 0;
      while (read < length) {
        const { bytesRead } = await file.read(bytes, read, length - read, read);
        if (bytesRead === 0) break;
        read += bytesRead;
      }
      try {
        return { ...parseGguf(bytes.subarray(0, read), bounds), fileBytes: size };
      } catch (error) {
        if (!(error instanceof NeedMoreBytes)) throw named(path, error);
        if (length >= size) throw named(path, new Error("it ends in the middle of its header"));
        if (length >= bounds.headerBytes) throw named(path, new Error(`its header is longer than ${length} bytes`));
      }
    }
  } finally {
    await file.close();
  }
}

/** Parses the head of a file. Throws {@link NeedMoreBytes} when `bytes` end before it does. */
export function parseGguf(bytes: Buffer, limits: GgufLimits = {}): Omit<GgufHeader, "fileBytes"> {
  const bounds = { ...defaultLimits, ...limits };
  const reader = new Reader(bytes, bounds.arrayLength);
  // A short text file must not be mistaken for a cut GGUF.
  if (bytes.subarray(0, 4).toString("latin1") !== "GGUF".slice(0, bytes.length) || bytes.length === 0) {
    throw new Error("it is not a GGUF file (the first four bytes are not GGUF)");
  }
  reader.skip(4);
  const version = reader.u32();
  if (version !== 2 && version !== 3) throw new Error(`GGUF version ${version} is not supported (2 and 3 are)`);
  const tensorCount = reader.count("tensors", bounds.entries);
  const pairCount = reader.count("metadata pairs", bounds.entries);
  const metadata = new Map<string, GgufValue>();
  for (let i = 0; i < pairCount; i++) {
    const key = reader.string();
    metadata.set(key, reader.value(reader.u32(), 0));
  }
  const tensors: GgufTensor[] = [];
  for (let i = 0; i < tensorCount; i++) {
    const name = reader.string();
    const rank = reader.u32();
    if (rank > 8) throw new Error(`tensor ${name} has ${rank} dimensions`);
    const dimensions: number[] = [];
    for (let d = 0; d < rank; d++) dimensions.push(reader.count("elements", Number.MAX_SAFE_INTEGER));
    const type = reader.u32();
    reader.skip(8); // offset of the weights
    tensors.push({ name, dimensions, type });
  }
  return { version, metadata, tensors };
}

/** A string, or undefined when the key is missing or has another type. */
export function ggufString(header: Pick<GgufHeader, "metadata">, key: string): string | undefined {
  const value = header.metadata.get(key);
  return typeof value === "string" ? value : undefined;
}

/** A number, or undefined when the key is missing or has another type. */
export function ggufNumber(header: Pick<GgufHeader, "metadata">, key: string): number | undefined {
  const value = header.metadata.get(key);
  return typeof value === "number" ? value : undefined;
}

/** Weights in the file. */
export function parameterCount(header: Pick<GgufHeader, "tensors">): number {
  return header.tensors.reduce((sum, tensor) => sum + tensor.dimensions.reduce((a, b) => a * b, 1), 0);
}

export class NeedMoreBytes extends Error {
  override readonly name = "NeedMoreBytes";
}

class Reader {
  private position = 0;
  private readonly bytes: Buffer;
  private readonly maxArray: number;

  constructor(bytes: Buffer, maxArray: number) {
    this.bytes = bytes;
    this.maxArray = maxArray;
  }

  /** Moves on by `length` bytes and returns where they start. */
  skip(length: number): number {
    const start = this.position;
    if (length > this.bytes.length - start) throw new NeedMoreBytes();
    this.position = start + length;
    return start;
  }

  u32(): number {
    return this.bytes.readUInt32LE(this.skip(4));
  }

  count(what: string, limit: number): number {
    const value = this.bytes.readBigUInt64LE(this.skip(8));
    if (value > BigInt(limit)) throw new Error(`${value} ${what} are more than the limit of ${limit}`);
    return Number(value);
  }

  string(): string {
    const length = this.count("bytes in a string", 1 << 26);
    const start = this.skip(length);
    return this.bytes.toString("utf8", start, start + length);
  }

  value(type: number, depth: number): GgufValue {
    switch (type) {
      case 0:
        return this.bytes.readUInt8(this.skip(1));
      case 1:
        return this.bytes.readInt8(this.skip(1));
      case 2:
        return this.bytes.readUInt16LE(this.skip(2));
      case 3:
        return this.bytes.readInt16LE(this.skip(2));
      case 4:
        return this.u32();
      case 5:
        return this.bytes.readInt32LE(this.skip(4));
      case 6:
        return this.bytes.readFloatLE(this.skip(4));
      case 7:
        return this.bytes.readUInt8(this.skip(1)) !== 0;
      case 8:
        return this.string();
      case 9:
        return this.array(depth);
      case 10:
        return exact(this.bytes.readBigUInt64LE(this.skip(8)));
      case 11:
        return exact(this.bytes.readBigInt64LE(this.skip(8)));
      case 12:
        return this.bytes.readDoubleLE(this.skip(8));
      default:
        throw new Error(`metadata type ${type} is unknown`);
    }
  }

  private array(depth: number): readonly GgufValue[] {
    if (depth >= maxNesting) throw new Error("its metadata arrays are nested too deeply");
    const type = this.u32();
    const length = this.count("array elements", this.maxArray);
    const items: GgufValue[] = [];
    for (let i = 0; i < length; i++) items.push(this.value(type, depth + 1));
    return items;
  }
}

function exact(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function named(path: string, error: unknown): StatorError {
  if (error instanceof StatorError) return error;
  return new StatorError("model_unavailable", `Cannot read the model file ${path}: ${reasonOf(error)}.`, {
    cause: error,
  });
}

function reasonOf(error: unknown): string {
  if (typeof error === "object" && error !== null && (error as NodeJS.ErrnoException).code === "ENOENT") {
    return "it does not exist";
  }
  return error instanceof Error ? error.message : String(error);
}
