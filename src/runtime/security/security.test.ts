import { expect, test } from "vitest";
import { checkSharedSecret, proofMatches, proofOf } from "./shared-secret.ts";
import { ca, server } from "./test-certificates.contract.ts";
import { clientCredentials, serverCredentials, type TlsOptions } from "./tls-options.ts";

test("a short secret is refused by the name of its setting", () => {
  checkSharedSecret("0123456789abcdef");
  expect(() => checkSharedSecret("0123456789abcde", "plane.secret")).toThrow(
    expect.objectContaining({ code: "invalid_value", param: "plane.secret" }),
  );
  expect(() => checkSharedSecret("")).toThrow(/at least 16/);
});

test("a proof depends on the secret, the purpose and every byte of what was said", () => {
  const said = [Buffer.from("abc"), Buffer.from("def")];
  const proof = proofOf("secret", "client", said);
  expect(proof.length).toBe(32);
  expect(proofMatches(proof, proofOf("secret", "client", said))).toBe(true);
  for (const other of [
    proofOf("Secret", "client", said),
    proofOf("secret", "server", said),
    proofOf("secret", "client", [Buffer.from("abc"), Buffer.from("deg")]),
    new Uint8Array(0),
    proof.subarray(1),
  ]) {
    expect(proofMatches(other, proof)).toBe(false);
  }
});

test("incomplete or unreadable TLS options are refused by the name of the field", () => {
  const wrong: [TlsOptions, "server" | "client", string][] = [
    [{}, "server", "tls.cert"],
    [{ cert: server.cert }, "server", "tls.key"],
    [{ ...server, requireClientCertificate: true }, "server", "tls.ca"],
    [{ ...server, ca: "not PEM" }, "server", "tls.ca"],
    [{ key: server.key }, "client", "tls.cert"],
    [{ cert: server.cert }, "client", "tls.key"],
    [{ ca: "" }, "client", "tls.ca"],
    [{ cert: server.key, key: server.cert }, "client", "tls"],
  ];
  for (const [options, side, param] of wrong) {
    const act = () => (side === "server" ? serverCredentials(options) : clientCredentials(options));
    expect(act, param).toThrow(expect.objectContaining({ code: "invalid_value", param }));
  }
  expect(serverCredentials({ ...server, ca, requireClientCertificate: true })).toMatchObject({ ...server, ca });
  expect(clientCredentials({ ca })).toMatchObject({ ca });
  expect(clientCredentials({})).toMatchObject({ minVersion: "TLSv1.3" });
});
