export * from "./discovery.ts";
export { EtcdDiscovery, type EtcdDiscoveryOptions } from "./etcd/etcd.ts";
export { FileDiscovery, type FileDiscoveryOptions } from "./file.ts";
export { MemoryDiscovery, MemoryStore } from "./memory.ts";
export { type OpenDiscoveryOptions, openDiscovery } from "./open-discovery.ts";
