import type { AdminAction } from "../../protocol/engine.ts";
import { StatorError } from "../../protocol/errors.ts";
import type { InstanceRecord } from "../../protocol/instance.ts";

/** What serves beside the components on this process's plane, under a record of its own: the host of an engine. */
export interface Hosted {
  /** Undefined before it is registered. */
  readonly record: InstanceRecord | undefined;
  /** By path below `/engine/`. */
  readonly adminActions: ReadonlyMap<string, AdminAction>;
}

/** One host; or several by worker id, a map that its owner may change at any time. */
export type Shown = Hosted | ReadonlyMap<string, Hosted>;

const ENGINE_PREFIX = "/engine/";
/** Of the workers of a process, an error names so many. */
const NAMED = 5;

/**
 * The engines' pages at the system port:
 *
 *   /engine/loads             of a process with one engine
 *   /engine/worker-7/loads    of a process with several
 */
export class EnginePages {
  #shown: Shown | undefined;

  show(shown: Shown): void {
    this.#shown = shown;
  }

  get records(): readonly InstanceRecord[] {
    const shown = this.#shown;
    const all = shown === undefined ? [] : isOne(shown) ? [shown] : [...shown.values()];
    return all.flatMap(({ record }) => record ?? []);
  }

  /** Undefined when the path is not below `/engine/`. Throws `route_not_found` with the paths that there are. */
  find(path: string): AdminAction | undefined {
    if (!path.startsWith(ENGINE_PREFIX)) return undefined;
    const name = path.slice(ENGINE_PREFIX.length);
    const shown = this.#shown;
    if (shown === undefined) throw unknown(path, []);
    if (isOne(shown)) return actionOf(shown, name, path, ENGINE_PREFIX);
    const slash = name.indexOf("/");
    const workerId = slash < 0 ? name : name.slice(0, slash);
    const hosted = shown.get(workerId);
    if (hosted !== undefined)
      return actionOf(hosted, name.slice(workerId.length + 1), path, `${ENGINE_PREFIX}${workerId}/`);
    const ids = [...shown.keys()].slice(0, NAMED).map((id) => `${ENGINE_PREFIX}${id}/loads`);
    throw unknown(path, shown.size > NAMED ? [...ids, `... (${shown.size} workers)`] : ids);
  }
}

function isOne(shown: Shown): shown is Hosted {
  return "adminActions" in shown;
}

function actionOf({ adminActions }: Hosted, name: string, path: string, prefix: string): AdminAction {
  const action = adminActions.get(name);
  if (action !== undefined) return action;
  throw unknown(
    path,
    [...adminActions.keys()].map((it) => prefix + it),
  );
}

function unknown(path: string, known: readonly string[]): StatorError {
  return new StatorError(
    "route_not_found",
    `This engine has no ${path.slice(0, 200)}; there are: ${known.join(", ") || "none"}.`,
  );
}
