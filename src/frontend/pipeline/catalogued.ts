import { type StatorError, toStatorError } from "../../protocol/errors.ts";
import { uniqueId } from "../../runtime/lifecycle/unique-id.ts";

/** Whatever was thrown, as an error of the catalogue. */
export function catalogued(thrown: unknown): StatorError {
  return toStatorError(thrown, () => uniqueId("err_"));
}
