import { type ChildProcess, spawn } from "node:child_process";
import type { Logger } from "pino";
import { Backoff } from "./backoff.ts";

/** Exit code of a child whose configuration is wrong: starting it again would not help. */
export const EXIT_CONFIGURATION = 78;

/** What a child tells its parent over the IPC channel. */
export type ChildMessage = { readonly kind: "alive" } | { readonly kind: "ready" };

/** How often a child says that it is alive. */
export const HEARTBEAT_MS = 2_000;

export interface SupervisedProcessOptions {
  readonly name: string;
  /** A script for this Node, and its arguments. */
  readonly script: string;
  readonly args: readonly string[];
  readonly env: NodeJS.ProcessEnv;
  readonly logger: Logger;
  /** A child that is silent for so long, or up to a third longer, is killed (a native hang, a stopped process). Default 20 s. */
  readonly silenceTimeoutMs?: number;
  /** Uptime after which earlier crashes are forgotten. Default 60 s. */
  readonly stableAfterMs?: number;
  readonly backoff?: Backoff;
  readonly onState?: (state: SupervisedState) => void;
}

/** `failed`: it ended with {@link EXIT_CONFIGURATION} before it was ever ready, and is not started again. */
export type SupervisedState = "starting" | "ready" | "waiting" | "failed" | "stopped";

/** Looks of the parent, spread over the silence timeout, that may find no message of the child. */
const SILENT_LOOKS = 3;
/** How long `stop` waits for a process that even SIGKILL does not end (it hangs in the kernel). */
const LAST_WAIT_MS = 5_000;

/*
 *           spawn          "ready"
 *   waiting -----> starting -----> ready
 *      ^              |              |
 *      +--- back-off -+--------------+     the process ended, hung, or could not be started
 *                     |
 *                     +--> failed          it says that its configuration is wrong
 *
 *   stop(), kill(): from everywhere to stopped
 */

/**
 * Keeps one child process running: starts it, starts it again with growing delays when it ends, kills it when it hangs,
 * stops it gracefully. The child gets an IPC channel; it must end when that closes, so no child outlives its parent.
 */
export class SupervisedProcess {
  readonly name: string;
  readonly #options: SupervisedProcessOptions;
  readonly #backoff: Backoff;
  readonly #onGone: (() => void)[] = [];
  #state: SupervisedState = "waiting";
  #child: ChildProcess | undefined;
  #startedAt = 0;
  #restartTimer: NodeJS.Timeout | undefined;
  #silenceTimer: NodeJS.Timeout | undefined;
  #silentLooks = 0;
  #wasReady = false;
  #stopping = false;
  #restarts = 0;

  constructor(options: SupervisedProcessOptions) {
    this.name = options.name;
    this.#options = options;
    this.#backoff = options.backoff ?? new Backoff({ initialMs: 500, maxMs: 30_000 });
  }

  get state(): SupervisedState {
    return this.#state;
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  /** Starts after the first one. */
  get restarts(): number {
    return this.#restarts;
  }

  /** Never throws: a start that fails is tried again. */
  start(): void {
    if (this.#stopping || this.#child !== undefined) return;
    const { script, args, env, logger } = this.#options;
    this.#startedAt = performance.now();
    this.#enter("starting");
    let child: ChildProcess;
    try {
      child = spawn(process.execPath, [script, ...args], { stdio: ["ignore", "inherit", "inherit", "ipc"], env });
    } catch (err) {
      logger.error({ err, process: this.name }, `${this.name} could not be started`);
      this.#ended(null, null);
      return;
    }
    this.#child = child;
    child.on("message", (message: ChildMessage) => {
      if (this.#child !== child) return;
      this.#silentLooks = 0;
      if (message?.kind === "ready") {
        this.#wasReady = true;
        this.#enter("ready");
      }
    });
    child.on("error", (err) => {
      // Without a pid there is no process, and no `exit` will come. Other errors are of a signal or of the channel.
      const wasStarted = child.pid !== undefined;
      logger.error({ err, process: this.name }, `${this.name} ${wasStarted ? "has an error" : "could not be started"}`);
      if (wasStarted) return;
      if (child.connected) child.disconnect();
      this.#left(child, null, null);
    });
    // `exit`, not `close`: standard output may be held open by others.
    child.on("exit", (code, signal) => this.#left(child, code, signal));
    if (child.pid !== undefined) this.#watchSilence(child);
  }

  /** SIGTERM, then SIGKILL after `graceMs`. Resolves when the process is gone, at the latest a few seconds after that. */
  async stop(graceMs: number): Promise<void> {
    this.#stopping = true;
    this.#clearTimers();
    const child = this.#child;
    if (child === undefined) {
      this.#enter("stopped");
      return;
    }
    const timers: NodeJS.Timeout[] = [];
    try {
      await new Promise<void>((resolve) => {
        this.#onGone.push(resolve);
        timers.push(
          setTimeout(() => child.kill("SIGKILL"), graceMs),
          setTimeout(() => {
            const { logger } = this.#options;
            logger.error({ process: this.name, pid: child.pid }, `${this.name} does not end; it is left behind`);
            this.#left(child, null, null);
          }, graceMs + LAST_WAIT_MS),
        );
        child.kill("SIGTERM");
      });
    } finally {
      for (const timer of timers) clearTimeout(timer);
    }
  }

  /** SIGKILL, no second start. */
  kill(): void {
    this.#stopping = true;
    this.#clearTimers();
    this.#child?.kill("SIGKILL");
  }

  /** The process is gone, or never was. */
  #left(child: ChildProcess, code: number | null, signal: string | null): void {
    if (this.#child !== child) return;
    this.#child = undefined;
    this.#clearTimers();
    this.#ended(code, signal);
    for (const resolve of this.#onGone.splice(0)) resolve();
  }

  #ended(code: number | null, signal: string | null): void {
    const { logger, stableAfterMs = 60_000 } = this.#options;
    if (this.#stopping) {
      this.#enter("stopped");
      return;
    }
    // A child that was ready before has a configuration that works; what is wrong now (a file that is away) may pass.
    if (code === EXIT_CONFIGURATION && !this.#wasReady) {
      logger.error({ process: this.name, code }, `${this.name} cannot run as configured; it is not started again`);
      this.#enter("failed");
      return;
    }
    if (performance.now() - this.#startedAt >= stableAfterMs) this.#backoff.reset();
    const delayMs = Math.round(this.#backoff.nextDelayMs());
    logger.warn({ process: this.name, code, signal, delayMs }, `${this.name} ended unexpectedly; it is started again`);
    this.#enter("waiting");
    this.#restartTimer = setTimeout(() => {
      this.#restarts += 1;
      this.start();
    }, delayMs);
  }

  /**
   * Counts looks without a message and does not compare times: when this process is suspended and goes on (Ctrl-Z, fg),
   * much time has passed, but only one look, and what the child sent meanwhile arrives before the next.
   */
  #watchSilence(child: ChildProcess): void {
    const { silenceTimeoutMs = 20_000, logger } = this.#options;
    this.#silentLooks = 0;
    this.#silenceTimer = setInterval(() => {
      if (this.#silentLooks < SILENT_LOOKS) {
        this.#silentLooks++;
        return;
      }
      clearInterval(this.#silenceTimer);
      logger.error({ process: this.name, silenceTimeoutMs }, `${this.name} does not answer; it is killed`);
      child.kill("SIGKILL");
    }, silenceTimeoutMs / SILENT_LOOKS);
  }

  #clearTimers(): void {
    clearTimeout(this.#restartTimer);
    clearInterval(this.#silenceTimer);
  }

  #enter(state: SupervisedState): void {
    this.#state = state;
    this.#options.onState?.(state);
  }
}

/**
 * Whether this process was started by a {@link SupervisedProcess}: `none` = by nobody with a channel, `gone` = the parent
 * has ended already, perhaps before this process got to run.
 */
export function parentState(self: Pick<NodeJS.Process, "send" | "connected"> = process): "none" | "connected" | "gone" {
  if (self.send === undefined) return "none";
  return self.connected ? "connected" : "gone";
}

/**
 * The child's side: heartbeats, and an end when the parent is gone, also when it is gone already. Call once, as early as
 * possible, unless {@link parentState} is `none`.
 */
export function reportToParent(onParentGone: () => void): { ready(): void; stop(): void } {
  const send = (message: ChildMessage): void => {
    if (process.connected) process.send?.(message, undefined, undefined, () => {});
  };
  const timer = setInterval(() => send({ kind: "alive" }), HEARTBEAT_MS);
  timer.unref();
  send({ kind: "alive" });
  process.once("disconnect", onParentGone);
  // Then the event has come and gone.
  if (parentState() === "gone") process.nextTick(onParentGone);
  // An IPC channel alone must not keep a finished child running.
  process.channel?.unref();
  return {
    ready: () => send({ kind: "ready" }),
    stop: () => {
      clearInterval(timer);
      process.removeListener("disconnect", onParentGone);
    },
  };
}
