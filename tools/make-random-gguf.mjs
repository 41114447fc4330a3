// Writes a small llama-architecture GGUF with seeded random weights: real plumbing, meaningless text.
//
//   node tools/make-random-gguf.mjs [--type q8_0|f32] [--seed N] [--out FILE]
//
// Without --out it rewrites models/builtin.gguf. The same arguments give the same bytes on every machine: only
// additions, multiplications and square roots are used (all exact in IEEE 754), no logarithms or cosines.
//
// GGUF version 3, little endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):
//
//   "GGUF" | u32 3 | u64 tensors | u64 pairs | pairs | tensor infos | padding to 32 | tensor data, each padded to 32
import { mkdirSync, realpathSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const shape = { layers: 4, width: 64, heads: 4, kvHeads: 2, feedForward: 960, contextLength: 4096 };
const alignment = 32;
const valueType = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 };
const tensorType = { f32: 0, q8_0: 8 };
const tokenType = { normal: 1, unknown: 2, control: 3, byte: 6 };

// Append-only: a conversation's text is a prefix of the same conversation with one more turn, and the generation prompt
// is the beginning of the assistant's turn. So the KV cache of a conversation stays valid from turn to turn.
const chatTemplate =
  "{{ bos_token }}{% for message in messages %}" +
  "{% if message.role not in ['system', 'user', 'assistant'] %}" +
  "{{ raise_exception('This model knows the roles system, user and assistant, not ' + message.role + '.') }}{% endif %}" +
  "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}" +
  "{% if add_generation_prompt %}<|assistant|>{% endif %}";

// Pieces become reachable by merging from the left, so every prefix of a word is a piece too.
const words =
  "the of and to in is that it for was on are as with his they at be this from have or by one had not but what all " +
  "were when we there can an your which their said if do will each about how up out them then she many some so these " +
  "would other into has more her two like him see time could no make than first been its who now people my made over " +
  "did down only way find use may water long little very after words called just where most know";

/** The whole model file as bytes. */
export function makeRandomGguf({ type = "q8_0", seed = 20261129 } = {}) {
  if (!(type in tensorType)) throw new Error(`Unknown --type ${type}; use q8_0 or f32.`);
  const vocabulary = makeVocabulary(512);
  const tensors = makeTensors(vocabulary, seed);
  const pairs = [
    ["general.architecture", "llama"],
    ["general.name", "Stator random"],
    ["general.license", "apache-2.0"],
    ["general.file_type", u32(type === "f32" ? 0 : 7)],
    ["general.alignment", u32(alignment)],
    ["llama.vocab_size", u32(vocabulary.length)],
    ["llama.context_length", u32(shape.contextLength)],
    ["llama.embedding_length", u32(shape.width)],
    ["llama.block_count", u32(shape.layers)],
    ["llama.feed_forward_length", u32(shape.feedForward)],
    ["llama.rope.dimension_count", u32(shape.width / shape.heads)],
    ["llama.rope.freq_base", f32(10000)],
    ["llama.attention.head_count", u32(shape.heads)],
    ["llama.attention.head_count_kv", u32(shape.kvHeads)],
    ["llama.attention.layer_norm_rms_epsilon", f32(1e-5)],
    ["tokenizer.ggml.model", "llama"],
    ["tokenizer.ggml.tokens", vocabulary.map((entry) => entry.text)],
    ["tokenizer.ggml.scores", { array: valueType.f32, items: vocabulary.map((entry) => entry.score) }],
    ["tokenizer.ggml.token_type", { array: valueType.i32, items: vocabulary.map((entry) => entry.type) }],
    ["tokenizer.ggml.unknown_token_id", u32(0)],
    ["tokenizer.ggml.bos_token_id", u32(1)],
    ["tokenizer.ggml.eos_token_id", u32(2)],
    ["tokenizer.ggml.eot_token_id", u32(6)],
    ["tokenizer.ggml.add_bos_token", { type: valueType.bool, value: true }],
    ["tokenizer.ggml.add_eos_token", { type: valueType.bool, value: false }],
    ["tokenizer.ggml.add_space_prefix", { type: valueType.bool, value: false }],
    ["tokenizer.chat_template", chatTemplate],
  ];
  return writeGguf(pairs, tensors, type);
}

function makeVocabulary(size) {
  const entries = [
    { text: "<unk>", type: tokenType.unknown, score: 0 },
    { text: "<s>", type: tokenType.control, score: 0 },
    { text: "</s>", type: tokenType.control, score: 0 },
    { text: "<|system|>", type: tokenType.control, score: 0 },
    { text: "<|user|>", type: tokenType.control, score: 0 },
    { text: "<|assistant|>", type: tokenType.control, score: 0 },
    { text: "<|end|>", type: tokenType.control, score: 0 },
  ];
  for (let byte = 0; byte < 256; byte++) {
    const hex = byte.toString(16).toUpperCase().padStart(2, "0");
    entries.push({ text: `<0x${hex}>`, type: tokenType.byte, score: 0 });
  }
  const pieces = new Set(["\u2581", ..."etaoinshrdlcumwfgypbvkjxqz.,'\"?!-:;()\n0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"]);
  for (const word of words.split(" ")) {
    for (let end = 1; end <= word.length; end++) pieces.add(`\u2581${word.slice(0, end)}`);
  }
  const free = size - entries.length;
  if (pieces.size < free) throw new Error(`Only ${pieces.size} pieces for ${free} places.`);
  let rank = 0;
  for (const text of pieces) {
    if (rank === free) break;
    entries.push({ text, type: tokenType.normal, score: -(rank + 1) });
    rank++;
  }
  return entries;
}

// Dimension 0 of the residual stream is a constant that no layer writes to. So column 0 of the output matrix is a bias
// per token: it keeps control tokens out of the text, makes stray bytes rare, prefers whole words, and lets answers end after about a
// hundred tokens at temperature 1.
const outputBias = { word: 0.5, fragment: -0.5, byte: -3, control: -12, endOfTurn: 2.1 };

function makeTensors(vocabulary, seed) {
  const { layers, width, heads, kvHeads, feedForward } = shape;
  const kvWidth = (width / heads) * kvHeads;
  const random = gaussians(seed);
  const matrix = (name, rows, columns, deviation) => {
    const data = new Float32Array(rows * columns);
    for (let i = 0; i < data.length; i++) data[i] = random() * deviation;
    return { name, dimensions: [columns, rows], data };
  };
  const ones = (name) => ({ name, dimensions: [width], data: new Float32Array(width).fill(1) });
  const keepConstant = (tensor) => {
    tensor.data.fill(0, 0, tensor.dimensions[0]); // row 0 writes dimension 0
    return tensor;
  };

  const embedding = matrix("token_embd.weight", vocabulary.length, width, 1);
  for (let id = 0; id < vocabulary.length; id++) embedding.data[id * width] = 3;
  const tensors = [embedding];
  for (let layer = 0; layer < layers; layer++) {
    const name = (part) => `blk.${layer}.${part}.weight`;
    tensors.push(
      ones(name("attn_norm")),
      matrix(name("attn_q"), width, width, 0.25),
      matrix(name("attn_k"), kvWidth, width, 0.25),
      matrix(name("attn_v"), kvWidth, width, 0.2),
      keepConstant(matrix(name("attn_output"), width, width, 0.2)),
      ones(name("ffn_norm")),
      matrix(name("ffn_gate"), feedForward, width, 0.12),
      matrix(name("ffn_up"), feedForward, width, 0.12),
      keepConstant(matrix(name("ffn_down"), width, feedForward, 0.06)),
    );
  }
  tensors.push(ones("output_norm.weight"));
  const wholeWords = new Set([...words.split(" ").map((word) => `\u2581${word}`), ".", ",", "\n"]);
  const output = matrix("output.weight", vocabulary.length, width, 0.2);
  for (let id = 0; id < vocabulary.length; id++) {
    const entry = vocabulary[id];
    if (entry.text === "<|end|>") {
      output.data.fill(0, id * width, (id + 1) * width);
      output.data[id * width] = outputBias.endOfTurn;
    } else if (entry.type === tokenType.byte) output.data[id * width] = outputBias.byte;
    else if (entry.type !== tokenType.normal) output.data[id * width] = outputBias.control;
    else output.data[id * width] = wholeWords.has(entry.text) ? outputBias.word : outputBias.fragment;
  }
  tensors.push(output);
  return tensors;
}

/** Nearly normal numbers of mean 0 and deviation 1: the sum of four uniform ones (mulberry32). */
function gaussians(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const scale = Math.sqrt(3);
  return () => (uniform() + uniform() + uniform() + uniform() - 2) * scale;
}

function u32(value) {
  return { type: valueType.u32, value };
}
function f32(value) {
  return { type: valueType.f32, value };
}

function writeGguf(pairs, tensors, type) {
  const encoded = tensors.map((tensor) => {
    // One-dimensional tensors stay F32, as llama.cpp's own quantiser leaves them.
    const kind = tensor.dimensions.length === 1 ? "f32" : type;
    return { ...tensor, kind, bytes: kind === "f32" ? encodeF32(tensor.data) : encodeQ8(tensor.data) };
  });
  const head = [Buffer.from("GGUF"), numbers("u32", 3), numbers("u64", tensors.length), numbers("u64", pairs.length)];
  for (const [key, value] of pairs) head.push(encodeString(key), ...encodeValue(value));
  let offset = 0;
  for (const { name, dimensions, kind, bytes } of encoded) {
    head.push(encodeString(name), numbers("u32", dimensions.length));
    for (const dimension of dimensions) head.push(numbers("u64", dimension));
    head.push(numbers("u32", tensorType[kind]), numbers("u64", offset));
    offset += padded(bytes.length);
  }
  const header = Buffer.concat(head);
  const parts = [header, Buffer.alloc(padded(header.length) - header.length)];
  for (const { bytes } of encoded) parts.push(bytes, Buffer.alloc(padded(bytes.length) - bytes.length));
  return Buffer.concat(parts);
}

function padded(length) {
  return Math.ceil(length / alignment) * alignment;
}

function encodeValue(value) {
  if (typeof value === "string") return [numbers("u32", valueType.string), encodeString(value)];
  if (Array.isArray(value)) {
    const head = [numbers("u32", valueType.array), numbers("u32", valueType.string), numbers("u64", value.length)];
    return [...head, ...value.map(encodeString)];
  }
  if ("array" in value) {
    const head = [numbers("u32", valueType.array), numbers("u32", value.array), numbers("u64", value.items.length)];
    return [...head, ...value.items.map((item) => encodeScalar(value.array, item))];
  }
  return [numbers("u32", value.type), encodeScalar(value.type, value.value)];
}

function encodeScalar(type, value) {
  if (type === valueType.bool) return Buffer.from([value ? 1 : 0]);
  return numbers(type === valueType.f32 ? "f32" : type === valueType.i32 ? "i32" : "u32", value);
}

function encodeString(text) {
  const bytes = Buffer.from(text, "utf8");
  return Buffer.concat([numbers("u64", bytes.length), bytes]);
}

function numbers(kind, value) {
  const bytes = Buffer.alloc(kind === "u64" ? 8 : 4);
  if (kind === "u64") bytes.writeBigUInt64LE(BigInt(value));
  else if (kind === "f32") bytes.writeFloatLE(value);
  else if (kind === "i32") bytes.writeInt32LE(value);
  else bytes.writeUInt32LE(value);
  return bytes;
}

function encodeF32(data) {
  const bytes = Buffer.alloc(data.length * 4);
  for (let i = 0; i < data.length; i++) bytes.writeFloatLE(data[i], i * 4);
  return bytes;
}

/** q8_0: blocks of 32 weights, each `f16 scale | 32 x i8`. */
function encodeQ8(data) {
  const blocks = data.length / 32;
  const bytes = Buffer.alloc(blocks * 34);
  for (let block = 0; block < blocks; block++) {
    let largest = 0;
    for (let i = 0; i < 32; i++) largest = Math.max(largest, Math.abs(data[block * 32 + i]));
    const scale = Math.fround(largest / 127);
    bytes.writeUInt16LE(halfBits(scale), block * 34);
    const inverse = scale === 0 ? 0 : Math.fround(1 / scale);
    for (let i = 0; i < 32; i++) {
      const product = Math.fround(data[block * 32 + i] * inverse);
      const rounded = product < 0 ? -Math.floor(0.5 - product) : Math.floor(product + 0.5);
      bytes.writeInt8(Math.max(-127, Math.min(127, rounded)), block * 34 + 2 + i);
    }
  }
  return bytes;
}

/** The bits of the nearest half-precision float, for positive numbers in its normal range and zero. */
function halfBits(value) {
  if (value === 0) return 0;
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0];
  const exponent = (bits >>> 23) - 127 + 15;
  if (exponent <= 0 || exponent >= 31) throw new Error(`Scale ${value} is outside the range of a half float.`);
  const mantissa = bits & 0x7fffff;
  let half = (exponent << 10) | (mantissa >>> 13);
  const rest = mantissa & 0x1fff;
  if (rest > 0x1000 || (rest === 0x1000 && half & 1)) half++;
  return half;
}

const isMain = process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url);
if (isMain) {
  const { values } = parseArgs({
    options: { type: { type: "string" }, seed: { type: "string" }, out: { type: "string" } },
  });
  const builtin = join(dirname(fileURLToPath(import.meta.url)), "..", "models", "builtin.gguf");
  const out = resolve(values.out ?? builtin);
  if (values.out === undefined && (values.type ?? "q8_0") !== "q8_0") {
    console.error("models/builtin.gguf is q8_0; name another file with --out.");
    process.exit(2);
  }
  const bytes = makeRandomGguf({
    ...(values.type === undefined ? {} : { type: values.type }),
    ...(values.seed === undefined ? {} : { seed: Number(values.seed) }),
  });
  mkdirSync(dirname(out), { recursive: true });
  writeFileSync(out, bytes);
  console.log(`${out} (${bytes.length} bytes)`);
}
