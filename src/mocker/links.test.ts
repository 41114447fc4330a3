import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Links } from "./links.ts";

/** Steps until nothing moves. Returns [id, end in ms] in order. */
function ends(links: Links): [number, number][] {
  const list: [number, number][] = [];
  for (let at = links.nextWorkAtMs; at !== Number.POSITIVE_INFINITY; at = links.nextWorkAtMs) {
    for (const id of links.step(at)) list.push([id, at]);
  }
  return list;
}

describe("links", () => {
  it("give a lone transfer the slowest link's speed, and two the half of a shared one", () => {
    const links = new Links([1000, 500, 1000]); // bytes per second: 1, 0.5 and 1 a millisecond
    links.start(1, 100, [0, 1], 0);
    expect(links.nextWorkAtMs).toBe(200);
    links.start(2, 100, [0, 2], 100); // 1 has 50 left, at 0.5; 2 gets 0.5 of link 0 as well
    expect([links.bytesPerSecond(1), links.bytesPerSecond(2)]).toEqual([500, 500]);
    expect(ends(links)).toEqual([
      [1, 200], // 50 bytes at 0.5
      [2, 250], // 50 bytes at 0.5, then 50 at 1
    ]);
  });

  it("give what one cannot use to the others", () => {
    const links = new Links([1000, 200]);
    links.start(1, 1000, [0, 1], 0);
    links.start(2, 1000, [0], 0);
    expect([links.bytesPerSecond(1), links.bytesPerSecond(2)]).toEqual([200, 800]);
  });

  it("stand still while a link is cut, and go on where they were", () => {
    const links = new Links([1000]);
    links.start(1, 100, [0], 0);
    links.setBandwidth(0, 0, 40);
    expect(links.nextWorkAtMs).toBe(Number.POSITIVE_INFINITY);
    links.setBandwidth(0, 1000, 500);
    expect(ends(links)).toEqual([[1, 560]]);
  });

  it("end at once without bytes or links; forget what is cancelled; refuse what they do not know", () => {
    const links = new Links([1000]);
    links.start(1, 0, [0], 5);
    links.start(2, 100, [], 5);
    links.start(3, 100, [0], 5);
    expect(links.cancel(3, 6)).toBe(true);
    expect(links.cancel(3, 6)).toBe(false);
    expect(links.step(6)).toEqual([1, 2]);
    expect(links.active).toBe(0);
    links.start(4, 1, [0], 7);
    expect(() => links.start(4, 1, [0], 7)).toThrow("in use");
    expect(() => links.start(5, 1, [9], 7)).toThrow("no link 9");
    expect(() => links.setBandwidth(9, 1, 7)).toThrow("no link 9");
  });

  it("share max-min fairly, and every byte arrives", () => {
    const transfer = fc.record({
      bytes: fc.integer({ min: 1, max: 10_000 }),
      links: fc.uniqueArray(fc.nat(3), { minLength: 1, maxLength: 3 }),
    });
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 1, max: 5000 }), { minLength: 4, maxLength: 4 }),
        fc.array(transfer, { minLength: 1, maxLength: 10 }),
        (speeds, transfers) => {
          const links = new Links(speeds);
          transfers.forEach((each, id) => {
            links.start(id, each.bytes, each.links, 0);
          });
          const rate = (id: number) => links.bytesPerSecond(id);
          const on = (link: number) => transfers.flatMap((each, id) => (each.links.includes(link) ? [id] : []));
          const used = (link: number) => on(link).reduce((sum, id) => sum + rate(id), 0);
          speeds.forEach((speed, link) => {
            expect(used(link)).toBeLessThanOrEqual(speed * (1 + 1e-9));
          });
          // Max-min: everyone has a full link on which nobody is faster.
          transfers.forEach((each, id) => {
            const decided = each.links.some(
              (link) =>
                used(link) >= speeds[link]! * (1 - 1e-9) &&
                on(link).every((other) => rate(other) <= rate(id) * (1 + 1e-9)),
            );
            expect(decided).toBe(true);
          });
          const over = ends(links);
          expect(over.map(([id]) => id).sort((a, b) => a - b)).toEqual(transfers.map((_, id) => id));
          expect(over.map(([, at]) => at)).toEqual(over.map(([, at]) => at).sort((a, b) => a - b));
          // The busiest link was never faster than it is.
          const lastMs = over.at(-1)?.[1] ?? 0;
          speeds.forEach((speed, link) => {
            const bytes = on(link).reduce((sum, id) => sum + (transfers[id]?.bytes ?? 0), 0);
            expect(lastMs).toBeGreaterThanOrEqual((bytes / speed) * 1000 * (1 - 1e-9));
          });
        },
      ),
    );
  });
});
