import { StatorError } from "../../../protocol/errors.ts";
import type { ChatMessage } from "../../preprocess/chat-template.ts";
import { unknownField } from "./fields.ts";
import { invalidValue, missing, unsupported } from "./issues.ts";

/** Message fields that an answer of ours or of OpenAI's has and that clients send back, usually null or empty. */
const answerFields = new Set(["refusal", "annotations", "audio", "tool_calls", "function_call", "reasoning_content"]);
const messageFields = ["role", "content", "name"];

/** Checks `messages` and flattens them to what templates take: a role and one text. */
export function parseMessages(value: unknown, maxMessages: number): ChatMessage[] {
  if (value === undefined) throw missing("messages", "an array of messages");
  if (!Array.isArray(value)) throw invalidValue("messages", "an array of messages", value);
  if (value.length === 0) throw invalidValue("messages", "an array of at least one message", value);
  if (value.length > maxMessages) {
    throw new StatorError(
      "invalid_value",
      `messages has ${value.length} entries; at most ${maxMessages} are allowed (http.maxMessages).`,
      { param: "messages" },
    );
  }
  return value.map((message, index) => parseMessage(message, `messages[${index}]`));
}

function parseMessage(value: unknown, at: string): ChatMessage {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidValue(at, "an object with role and content", value);
  }
  // Own properties through entries: a key such as `__proto__` is then a key like any other.
  const fields = new Map<string, unknown>(Object.entries(value));
  const role = parseRole(fields.get("role"), `${at}.role`);
  for (const [name, item] of fields) {
    if (messageFields.includes(name)) continue;
    const empty = item === null || item === "" || (Array.isArray(item) && item.length === 0);
    if (answerFields.has(name)) {
      if (!empty) throw unsupported(`${at}.${name}`, `${at}.${name} is not supported by this server.`);
    } else {
      throw unknownField(`${at}.${name}`, name, messageFields);
    }
  }
  const content = parseContent(fields.get("content"), `${at}.content`);
  const name = fields.get("name");
  if (name === undefined || name === null) return { role, content };
  if (typeof name !== "string" || name === "" || name.length > 256) {
    throw invalidValue(`${at}.name`, "a string of 1 to 256 characters", name);
  }
  return { role, content, name };
}

function parseRole(value: unknown, at: string): string {
  switch (value) {
    case "system":
    case "user":
    case "assistant":
      return value;
    case "developer":
      return "system"; // the newer name of the same thing; no template knows it
    case undefined:
    case null:
      throw missing(at, `"system", "developer", "user" or "assistant"`);
    case "tool":
    case "function":
      throw unsupported(at, `${at}: messages of role "${value}" are not supported by this server.`);
    default:
      throw invalidValue(at, `"system", "developer", "user" or "assistant"`, value);
  }
}

function parseContent(value: unknown, at: string): string {
  if (typeof value === "string") return value;
  if (value === undefined || value === null) throw missing(at, "a string or an array of text parts");
  if (!Array.isArray(value)) throw invalidValue(at, "a string or an array of text parts", value);
  if (value.length === 0) throw invalidValue(at, "not empty", value);
  return value.map((part, index) => parsePart(part, `${at}[${index}]`)).join("\n");
}

function parsePart(value: unknown, at: string): string {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidValue(at, "an object with a type", value);
  }
  const fields = new Map<string, unknown>(Object.entries(value));
  const type = fields.get("type");
  if (type === undefined) throw missing(`${at}.type`, `"text"`);
  if (type !== "text") {
    if (typeof type !== "string") throw invalidValue(`${at}.type`, `"text"`, type);
    throw unsupported(`${at}.type`, `${at}: only parts of type "text" are supported by this server.`);
  }
  for (const name of fields.keys()) {
    if (name !== "type" && name !== "text") throw unknownField(`${at}.${name}`, name, ["type", "text"]);
  }
  const text = fields.get("text");
  if (text === undefined) throw missing(`${at}.text`, "a string");
  if (typeof text !== "string") throw invalidValue(`${at}.text`, "a string", text);
  return text;
}
