/** What the frontend can be told. Defaults: {@link defaultFrontendOptions}. */
export interface FrontendOptions {
  readonly http: HttpOptions;
  readonly timeouts: TimeoutOptions;
  readonly migration: MigrationOptions;
  readonly admin: AdminOptions;
  /** `/health` is 200 only when all of this is ready. */
  readonly expected: Expectations;
}

export interface HttpOptions {
  readonly host: string;
  /** 0 = any free port. */
  readonly port: number;
  readonly maxBodyBytes: number;
  readonly maxHeaderBytes: number;
  /** Deepest nesting of arrays and objects in a body. */
  readonly maxNesting: number;
  readonly maxMessages: number;
  /** Requests in flight, streamed or not; more are refused with `overloaded`. */
  readonly maxStreams: number;
  readonly headersTimeoutMs: number;
  readonly bodyTimeoutMs: number;
  readonly keepAliveTimeoutMs: number;
  /** Bytes of one stream that wait for its reader before its generation pauses. */
  readonly slowReaderBufferBytes: number;
  /** A reader that takes nothing for so long is cut. */
  readonly slowReaderTimeoutMs: number;
}

export interface TimeoutOptions {
  /** A worker that has neither taken nor refused a request by then is passed over for another one. */
  readonly acceptMs: number;
  readonly firstTokenMs: number;
  readonly interTokenMs: number;
  /** The header x-stator-timeout-ms shortens it per request. */
  readonly totalMs: number;
}

/** Of sequences whose worker is lost or has to go. */
export interface MigrationOptions {
  /** How often one sequence goes on with another worker; 0 = never. */
  readonly limit: number;
  /** Longest sequence, prompt and generated tokens together, that does. */
  readonly maxTokens: number;
}

export interface AdminOptions {
  /** Loopback unless told otherwise: the admin port has no authentication. */
  readonly host: string;
  /** 0 = any free port; undefined = no admin port. */
  readonly port: number | undefined;
}

export interface Expectations {
  /** So many models, or these names. */
  readonly models: number | readonly string[];
  /** Ready workers, over all models. */
  readonly workers: number;
}

export const defaultFrontendOptions: FrontendOptions = {
  http: {
    host: "127.0.0.1",
    port: 8000,
    maxBodyBytes: 32 * 1024 * 1024,
    maxHeaderBytes: 16 * 1024,
    maxNesting: 64,
    maxMessages: 4096,
    maxStreams: 16384,
    headersTimeoutMs: 10_000,
    bodyTimeoutMs: 60_000,
    keepAliveTimeoutMs: 65_000,
    slowReaderBufferBytes: 1024 * 1024,
    slowReaderTimeoutMs: 60_000,
  },
  timeouts: { acceptMs: 3_000, firstTokenMs: 120_000, interTokenMs: 60_000, totalMs: 1_800_000 },
  migration: { limit: 3, maxTokens: 32_768 },
  admin: { host: "127.0.0.1", port: undefined },
  expected: { models: 1, workers: 1 },
};

/** Every member may be left out; what is left out has its default. */
export type PartialFrontendOptions = { readonly [Part in keyof FrontendOptions]?: Partial<FrontendOptions[Part]> };

export function frontendOptions(given: PartialFrontendOptions = {}): FrontendOptions {
  const defaults = defaultFrontendOptions;
  return {
    http: { ...defaults.http, ...given.http },
    timeouts: { ...defaults.timeouts, ...given.timeouts },
    migration: { ...defaults.migration, ...given.migration },
    admin: { ...defaults.admin, ...given.admin },
    expected: { ...defaults.expected, ...given.expected },
  };
}
