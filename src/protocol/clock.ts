/** Time as the pure parts see it. Production uses {@link systemClock}; tests and the simulator use a virtual one. */
export interface Clock {
  /** Milliseconds on a monotonic scale of unknown origin. Only differences have a meaning. */
  now(): number;
  /** Milliseconds since the Unix epoch. May jump; never use it for durations. */
  wallNow(): number;
}

/** The machine's own clocks. */
export const systemClock: Clock = {
  now: () => performance.now(),
  wallNow: () => Date.now(),
};
