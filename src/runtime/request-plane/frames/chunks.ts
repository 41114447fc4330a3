/** Largest piece of a message in one frame; larger messages go in pieces, so that they hold up nobody else. */
export const CHUNK_BYTES = 64 * 1024;

/** Messages in pieces that are under way at once on a connection, in one direction; further ones wait at the sender. */
export const MAX_CHUNKED_MESSAGES = 8;
