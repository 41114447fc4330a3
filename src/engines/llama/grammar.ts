import type { LlamaGrammar } from "node-llama-cpp";
import { type Grammar, StatorError } from "../../protocol/index.ts";
import { checkGbnf } from "./gbnf-limits.ts";
import { GrammarProgress } from "./grammar-progress.ts";
import { jsonSchemaGrammar } from "./json-schema-grammar.ts";
import { type AcceptInGrammar, grammarAcceptance, type Native } from "./native.ts";

/** Compiled grammars that are kept. */
const cacheSize = 32;

/** Compiles grammars and keeps the recent ones. */
export class GrammarCache {
  private readonly native: Native;
  private readonly accept: AcceptInGrammar;
  private readonly grammars = new Map<string, LlamaGrammar>();

  constructor(native: Native) {
    this.native = native;
    this.accept = grammarAcceptance(native);
  }

  /** Throws `invalid_value` for a grammar that cannot be honoured, with the parameter that it came in. */
  async compiled(grammar: Grammar): Promise<LlamaGrammar> {
    const text = grammar.kind === "gbnf" ? grammar.grammar : grammar.kind === "json_schema" ? grammar.schema : "";
    const key = `${grammar.kind}\n${text}`;
    const found = this.grammars.get(key) ?? (await this.compile(grammar));
    this.grammars.delete(key); // to the end: the first key is the one unused for longest
    this.grammars.set(key, found);
    if (this.grammars.size > cacheSize) this.grammars.delete(this.grammars.keys().next().value ?? "");
    return found;
  }

  /** The beginning of the grammar, for one sequence. */
  begin(grammar: LlamaGrammar): GrammarProgress {
    const { module, model } = this.native;
    return new GrammarProgress(() => new module.LlamaGrammarEvaluationState({ model, grammar }), this.accept);
  }

  private async compile(grammar: Grammar): Promise<LlamaGrammar> {
    const { llama } = this.native;
    const [param, what] =
      grammar.kind === "gbnf"
        ? (["response_format.grammar", "grammar"] as const)
        : (["response_format.json_schema.schema", "JSON schema"] as const);
    try {
      const text = gbnfOf(grammar);
      checkGbnf(text);
      return await llama.createGrammar({ grammar: text });
    } catch (cause) {
      const reason = cause instanceof Error ? cause.message.replace(/\.$/, "") : String(cause);
      throw new StatorError("invalid_value", `The ${what} cannot be used: ${reason}.`, { param, cause });
    }
  }
}

function gbnfOf(grammar: Grammar): string {
  switch (grammar.kind) {
    case "json_object":
      return jsonSchemaGrammar('{"type":"object"}');
    case "json_schema":
      return jsonSchemaGrammar(grammar.schema);
    case "gbnf":
      return grammar.grammar;
  }
}
