import { createSecureContext, type SecureContextOptions } from "node:tls";
import { StatorError } from "../../protocol/errors.ts";

/** Texts in PEM. One value serves both sides: each takes what it needs and refuses what is incomplete. */
export interface TlsOptions {
  /** This side's certificate chain. A server needs it; a client when the server asks for one. */
  readonly cert?: string;
  /** The certificate's private key. */
  readonly key?: string;
  /** Who may have signed the other side's certificate. Default, for a client: the authorities that Node trusts. */
  readonly ca?: string;
  /** Client: the name that the server's certificate must have. Default: the host of its address. */
  readonly serverName?: string;
  /** Server: refuse clients without a certificate that `ca` has signed. */
  readonly requireClientCertificate?: boolean;
}

/** Throws `invalid_value` naming the field, below `param`, that is missing or holds no PEM. */
export function serverCredentials(options: TlsOptions, param = "tls"): SecureContextOptions {
  if (options.cert === undefined) throw incomplete(`${param}.cert`, "a server needs a certificate");
  if (options.requireClientCertificate && options.ca === undefined) {
    throw incomplete(`${param}.ca`, "client certificates cannot be checked without it");
  }
  return credentials(options, param);
}

/** The same for a client, which needs a certificate only when the server asks for one. */
export function clientCredentials(options: TlsOptions, param = "tls"): SecureContextOptions {
  return credentials(options, param);
}

function credentials(options: TlsOptions, param: string): SecureContextOptions {
  const { cert, key, ca } = options;
  if (cert !== undefined && key === undefined) throw incomplete(`${param}.key`, "a certificate needs its key");
  if (key !== undefined && cert === undefined) throw incomplete(`${param}.cert`, "a key needs its certificate");
  for (const [field, text] of Object.entries({ cert, key, ca })) {
    if (text !== undefined && !text.includes("-----BEGIN ")) {
      throw new StatorError("invalid_value", `${param}.${field} holds no PEM text.`, { param: `${param}.${field}` });
    }
  }
  const usable: SecureContextOptions = {
    minVersion: "TLSv1.3", // both ends are ours: nothing older is needed
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
    ...(ca === undefined ? {} : { ca }),
  };
  try {
    createSecureContext(usable); // now, not at the first connection
  } catch (cause) {
    const what = `${param} has certificates or a key that cannot be used: ${(cause as Error).message}.`;
    throw new StatorError("invalid_value", what, { param, cause });
  }
  return usable;
}

function incomplete(param: string, why: string): StatorError {
  return new StatorError("invalid_value", `${param} is missing: ${why}.`, { param });
}
