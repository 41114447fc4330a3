export * from "./gguf.ts";
export { type DownloadProgress, downloadFile, type HfDownloadOptions, type HfFile, listFiles } from "./hf-download.ts";
export { byteLevelBytes, byteOfCharacter, sentencePieceBytes } from "./piece-bytes.ts";
export * from "./resolve-model.ts";
export * from "./token-table-from-gguf.ts";
export * from "./weights-digest.ts";
