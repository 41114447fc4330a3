import { describe, expect, it } from "vitest";
import { StatorError } from "../../protocol/errors.ts";
import { ChatTemplate } from "./chat-template.ts";

const tokens = { bosToken: "<s>", eosToken: "</s>" };

describe("ChatTemplate", () => {
  it("renders messages, tokens and the generation prompt", () => {
    const template = new ChatTemplate(
      "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
      tokens,
    );
    expect(template.render([{ role: "user", content: "hi {{ 1 }}" }])).toBe("<s>[user]hi {{ 1 }}</s>[assistant]");
  });

  it("leaves tools undefined", () => {
    const template = new ChatTemplate("{% if tools is defined and tools %}TOOLS{% else %}none{% endif %}", tokens);
    expect(template.render([{ role: "user", content: "x" }])).toBe("none");
  });

  it("maps a refusal of the template to a client error with its cause", () => {
    const template = new ChatTemplate("{{ raise_exception('Only user turns') }}", tokens);
    const refusal = catchError(() => template.render([{ role: "tool", content: "x" }]));
    expect(refusal).toMatchObject({ code: "invalid_template_input", param: "messages" });
    expect(refusal.message).toContain("Only user turns");
  });

  it("has the usual globals, in every render", () => {
    const template = new ChatTemplate(
      "{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(7, 1, -3) %}{{ i }}{% endfor %} {% for i in range(4, 2) %}x{% endfor %}" +
        "{{ true }}{{ None }}{{ strftime_now('%Y') | length }}{% set range = 1 %}{{ range }}",
      tokens,
    );
    for (let i = 0; i < 2; i++) {
      expect(template.render([{ role: "user", content: "x" }])).toBe("012 74 true41");
    }
  });

  it.each(["range(1000000000)", "range(100001)", "range(1, 9, 0)"])(
    "refuses %s instead of filling the memory",
    (endless) => {
      const template = new ChatTemplate(`{% for i in ${endless} %}{% endfor %}`, tokens);
      expect(catchError(() => template.render([{ role: "user", content: "x" }])).message).toContain("range()");
    },
  );

  it("says that the model is at fault when the template does not compile", () => {
    expect(catchError(() => new ChatTemplate("{% for %}", tokens)).code).toBe("not_ready");
  });
});

function catchError(action: () => unknown): StatorError {
  try {
    action();
  } catch (error) {
    expect(error).toBeInstanceOf(StatorError);
    return error as StatorError;
  }
  throw new Error("nothing was thrown");
}
