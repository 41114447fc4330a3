/** `work`'s result, or `late` after `limitMs`. Rejects only when `signal` aborts or `work` does. */
export async function within<T>(
  limitMs: number,
  work: Promise<T>,
  signal: AbortSignal | undefined,
  late: T,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  let onAbort: (() => void) | undefined;
  try {
    return await new Promise<T>((resolve, reject) => {
      timer = setTimeout(() => resolve(late), limitMs);
      onAbort = () => reject(signal?.reason as Error);
      signal?.addEventListener("abort", onAbort);
      work.then(resolve, reject);
    });
  } finally {
    clearTimeout(timer);
    if (onAbort !== undefined) signal?.removeEventListener("abort", onAbort);
  }
}
