import { createServer } from "node:net";
import { ca, server as certificate } from "../security/test-certificates.contract.ts";
import { LinkCut } from "./connection/link-cut.ts";
import { largeMessageContract } from "./large-messages.contract.ts";
import type { RequestPlaneLimits } from "./limits.ts";
import { MemoryNetwork, MemoryRequestPlaneClient, MemoryRequestPlaneServer } from "./memory.ts";
import { type PlaneUnderTest, planeContract } from "./plane.contract.ts";
import { formatTcpAddress } from "./tcp/address.ts";
import { TcpRequestPlaneClient } from "./tcp/client.ts";
import { TcpRequestPlaneServer } from "./tcp/server.ts";

const network = new MemoryNetwork();
let servers = 0;
const withLimits = (limits: Partial<RequestPlaneLimits> | undefined) => (limits ? { limits } : {});

planeContract("the memory plane", {
  makeClient: (limits) => new MemoryRequestPlaneClient({ network, ...withLimits(limits) }),
  makeServer: (limits) => new MemoryRequestPlaneServer(`s${servers++}`, { network, ...withLimits(limits) }),
  deadAddress: async () => "memory://nobody",
});

/** A port that was free a moment ago. */
async function deadAddress(): Promise<string> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return formatTcpAddress("127.0.0.1", port);
}

const tcp: PlaneUnderTest = {
  makeClient: (limits) => new TcpRequestPlaneClient(withLimits(limits)),
  makeServer: (limits) => new TcpRequestPlaneServer(withLimits(limits)),
  deadAddress,
};

const sharedSecret = "a secret of the contract";
const guarded: PlaneUnderTest = {
  makeClient: (limits) => new TcpRequestPlaneClient({ sharedSecret, tls: { ca }, ...withLimits(limits) }),
  makeServer: (limits) => new TcpRequestPlaneServer({ sharedSecret, tls: certificate, ...withLimits(limits) }),
  deadAddress,
};

planeContract("the tcp plane", tcp);
planeContract("the tcp plane over a cable that could be cut", {
  ...tcp,
  makeServer: (limits) => new TcpRequestPlaneServer({ ...withLimits(limits), wrapLink: new LinkCut().wrap }),
});
largeMessageContract("the tcp plane", tcp);
planeContract("the tcp plane with TLS and a secret", guarded);
largeMessageContract("the tcp plane with TLS and a secret", guarded);
