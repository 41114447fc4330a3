/** The workers that `serve` started, in whatever form. */
export interface OwnWorkers {
  readonly names: readonly string[];
  start(): Promise<void> | void;
  /** What keeps them from serving now, one line each. */
  problems(): readonly string[];
  /** Why the workers can never become ready, when that is certain. */
  hopeless(): string | undefined;
  stop(graceMs: number): Promise<void>;
  kill(): void;
}
