export * from "./load/load-book.ts";
export * from "./select/pickers.ts";
export * from "./select/router.ts";
