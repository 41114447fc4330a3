import { StatorError } from "../../protocol/errors.ts";

/** What of a model decides how long a pass takes and how much memory it needs. */
export interface ModelShape {
  readonly layers: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headSize: number;
  /** Width of a dense MLP; of the layers without experts, in a mixture of experts. */
  readonly intermediate: number;
  /** The MLP has a gate: three matrices instead of two. */
  readonly gated: boolean;
  readonly vocabulary: number;
  readonly experts?: Experts;
  /** Multi-head latent attention: one compressed vector per token instead of keys and values. */
  readonly latent?: { readonly rank: number; readonly ropeSize: number };
  /** Tokens that attention looks back; all of them without. */
  readonly window?: number;
  readonly weights: WeightFormat;
  readonly kvBytes: number;
}

export interface Experts {
  readonly count: number;
  readonly perToken: number;
  readonly intermediate: number;
  /** Width of the MLP that every token passes besides. */
  readonly sharedIntermediate: number;
  /** First layers, which have a dense MLP. */
  readonly denseLayers: number;
}

/** Bytes of a weight, and in which precision it is multiplied. */
export interface WeightFormat {
  readonly bytes: number;
  readonly arithmetic: "16bit" | "8bit" | "4bit";
}

export const weightFormats = {
  bf16: { bytes: 2, arithmetic: "16bit" },
  fp8: { bytes: 1, arithmetic: "8bit" },
  int8: { bytes: 1, arithmetic: "16bit" },
  int4: { bytes: 0.5, arithmetic: "16bit" },
  w4a8: { bytes: 0.5, arithmetic: "8bit" },
  nvfp4: { bytes: 0.5625, arithmetic: "4bit" },
} as const satisfies Record<string, WeightFormat>;

const ungatedFamilies = new Set(["bloom", "gpt2", "gpt_neox", "gptj", "opt", "falcon", "phi", "mpt", "starcoder2"]);

/** The shape from a Hugging Face config.json, parsed. Throws `invalid_value` that names a missing or wrong field. */
export function modelShapeFromConfig(config: unknown): ModelShape {
  const fields = new ConfigFields(config);
  const hidden = fields.count("hidden_size", "n_embed", "n_embd", "d_model");
  const heads = fields.count("num_attention_heads", "n_head", "n_heads");
  const expertCount = fields.optional("num_local_experts", "num_experts", "n_routed_experts");
  const latentRank = fields.optional("kv_lora_rank");
  const window = fields.flag("use_sliding_window") === false ? undefined : fields.optional("sliding_window");
  const weights = fields.weightFormat();
  return {
    layers: fields.count("num_hidden_layers", "n_layer", "n_layers"),
    hidden,
    heads,
    kvHeads: fields.optional("num_key_value_heads", "num_kv_heads") ?? heads,
    headSize: fields.optional("head_dim", "v_head_dim") ?? hidden / heads,
    intermediate: fields.optional("intermediate_size", "ffn_dim", "n_inner") ?? 4 * hidden,
    gated: !ungatedFamilies.has(fields.text("model_type") ?? ""),
    vocabulary: fields.count("vocab_size"),
    weights,
    kvBytes: 2,
    ...(expertCount === undefined ? {} : { experts: expertsOf(fields, expertCount) }),
    ...(latentRank === undefined
      ? {}
      : { latent: { rank: latentRank, ropeSize: fields.optional("qk_rope_head_dim") ?? 0 } }),
    ...(window === undefined ? {} : { window }),
  };
}

function expertsOf(fields: ConfigFields, count: number): Experts {
  const intermediate = fields.count("moe_intermediate_size", "intermediate_size");
  const shared = fields.optional("n_shared_experts") ?? 0;
  return {
    count,
    perToken: fields.count("num_experts_per_tok", "num_experts_per_token"),
    intermediate,
    sharedIntermediate: fields.optional("shared_expert_intermediate_size") ?? shared * intermediate,
    denseLayers: fields.optional("first_k_dense_replace") ?? 0,
  };
}

/** Typed access to a config; models of several modalities keep the part for text apart. */
class ConfigFields {
  readonly #fields: Record<string, unknown>;

  constructor(config: unknown) {
    if (typeof config !== "object" || config === null) {
      throw new StatorError("invalid_value", "The model's config.json must be a JSON object", { param: "config" });
    }
    const fields = config as Record<string, unknown>;
    const text = fields.text_config;
    this.#fields = typeof text === "object" && text !== null ? { ...fields, ...text } : fields;
  }

  optional(...names: readonly string[]): number | undefined {
    for (const name of names) {
      const value = this.#fields[name];
      if (value === undefined || value === null) continue;
      if (typeof value !== "number" || !(value >= 0) || !Number.isFinite(value)) {
        throw new StatorError("invalid_value", `The model's config.json: ${name} must be a number`, { param: name });
      }
      return value;
    }
    return undefined;
  }

  count(first: string, ...others: readonly string[]): number {
    const value = this.optional(first, ...others);
    if (value !== undefined && value > 0) return value;
    const problem = value === undefined ? "is missing" : "must be positive";
    throw new StatorError("invalid_value", `The model's config.json: ${first} ${problem}`, { param: first });
  }

  flag(name: string): boolean | undefined {
    const value = this.#fields[name];
    return typeof value === "boolean" ? value : undefined;
  }

  text(name: string): string | undefined {
    const value = this.#fields[name];
    return typeof value === "string" ? value : undefined;
  }

  weightFormat(): WeightFormat {
    const quantization = this.#fields.quantization_config;
    if (typeof quantization !== "object" || quantization === null) return weightFormats.bf16;
    const { quant_method: method, bits } = quantization as Record<string, unknown>;
    if (method === "fp8" || method === "fbgemm_fp8") return weightFormats.fp8;
    return bits === 8 ? weightFormats.int8 : bits === 4 || method === "mxfp4" ? weightFormats.int4 : weightFormats.bf16;
  }
}
