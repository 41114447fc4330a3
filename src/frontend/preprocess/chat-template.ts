import { Environment, Interpreter, Template } from "@huggingface/jinja";
import { StatorError } from "../../protocol/errors.ts";

/** A template asks for a handful; a hostile one would fill the memory. */
const MAX_RANGE = 100_000;
const strftime = new Template("{{ strftime_now(format) }}");

/** What every template can use, made once: `Template.render` makes it anew for each prompt. */
const globals = new Environment();
for (const [name, value] of Object.entries({
  true: true,
  True: true,
  false: false,
  False: false,
  none: null,
  None: null,
  raise_exception: (message: unknown): never => {
    throw new Error(String(message));
  },
  range,
  strftime_now: (format: string): string => strftime.render({ format }),
})) {
  globals.set(name, value);
}

export interface ChatMessage {
  readonly role: string;
  readonly content: string;
  readonly name?: string;
}

/**
 * A model's chat template (Jinja), compiled once. `tools` stays undefined in the template, not an empty list: templates
 * take an empty list as a request for tool syntax.
 */
export class ChatTemplate {
  readonly #template: Template;
  readonly #tokens: { readonly bosToken: string; readonly eosToken: string };

  /** Throws `not_ready` when the template does not compile: the model is at fault, not a request. */
  constructor(source: string, tokens: { bosToken: string; eosToken: string }) {
    try {
      this.#template = new Template(source);
    } catch (cause) {
      throw new StatorError("not_ready", `The model's chat template does not compile: ${messageOf(cause)}`, { cause });
    }
    this.#tokens = tokens;
  }

  /** The prompt text, ready for the assistant's turn. Throws `invalid_template_input` when the template refuses. */
  render(messages: readonly ChatMessage[]): string {
    try {
      const variables = new Environment(globals);
      variables.set("bos_token", this.#tokens.bosToken);
      variables.set("eos_token", this.#tokens.eosToken);
      variables.set("messages", messages);
      variables.set("add_generation_prompt", true);
      return String(new Interpreter(variables).run(this.#template.parsed).value);
    } catch (cause) {
      throw new StatorError(
        "invalid_template_input",
        `The model's chat template does not accept these messages: ${messageOf(cause)}`,
        { param: "messages", cause },
      );
    }
  }
}

function messageOf(thrown: unknown): string {
  return (thrown instanceof Error ? thrown.message : String(thrown)).slice(0, 300);
}

/** `range(stop)`, `range(start, stop)`, `range(start, stop, step)`, as in Python. */
function range(first: number, second?: number, step: number = 1): number[] {
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (!(length <= MAX_RANGE)) throw new Error(`range() may give up to ${MAX_RANGE} numbers, not ${length}`);
  return Array.from({ length }, (_, i) => start + i * step);
}
