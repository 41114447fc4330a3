export { checkSharedSecret, proofMatches, proofOf } from "./shared-secret.ts";
export { clientCredentials, serverCredentials, type TlsOptions } from "./tls-options.ts";
