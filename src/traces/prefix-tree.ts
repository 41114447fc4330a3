import type { Random } from "../protocol/random.ts";
import type { TraceRequest } from "./trace-request.ts";

export interface SynthesisOptions {
  readonly requests: number;
  /** Divides the time between arrivals. Default 1. */
  readonly speedup?: number;
  /** Scales the shared parts of prompts. Default 1. */
  readonly prefixLengthMultiplier?: number;
  /** Scales the part of a prompt that no other has. Default 1. */
  readonly promptLengthMultiplier?: number;
  /** This many disjoint copies of the tree, so that sharing thins out. Default 1. */
  readonly rootMultiplier?: number;
  /** Longer prompts are drawn again (100 times at most, then cut). */
  readonly maxInputTokens?: number;
}

/**
 * What the prompts of a trace have in common, as a radix tree of blocks, and new workloads with the same structure.
 *
 *     root -- [system prompt: 12 blocks, 900 visits] -+- [document A: 40 blocks, 30 visits]   stops: 30
 *                                                     +- [document B: 7 blocks, 20 visits]    stops: 20
 *                                                     +- stops: 850
 *
 * Blocks that were visited once belong to no tree: they are the user's own prompt, and only their lengths are kept. A
 * synthesis walks from the root by the observed frequencies, appends a prompt of fresh ids whose length is drawn from
 * the observed ones, and draws gap and answer length likewise. Means survive; the correlation between a prefix and the
 * length of what follows does not.
 */
export class PrefixTree {
  readonly #root: Node;
  readonly #blockTokens: number;
  readonly #promptTokens: number[];
  readonly #outputTokens: number[];
  readonly #gapsMs: number[];

  /** Throws away nothing: O(blocks) memory. All requests must have one block size; needs at least one request. */
  constructor(requests: readonly TraceRequest[]) {
    const visits = new Map<number, number>();
    for (const request of requests) {
      for (const id of promptIds(request)) visits.set(id, (visits.get(id) ?? 0) + 1);
    }
    this.#blockTokens = requests[0]?.blockTokens ?? 1;
    this.#outputTokens = requests.map((request) => request.outputTokens);
    this.#promptTokens = [];
    const arrivals = requests.map((request) => request.arrivalMs).sort((a, b) => a - b);
    this.#gapsMs = arrivals.slice(1).map((at, index) => at - (arrivals[index] ?? at));
    const root = newBuildNode();
    for (const request of requests) {
      const shared = promptIds(request).filter((id) => (visits.get(id) ?? 0) > 1);
      let node = root;
      for (const id of shared) {
        let child = node.children.get(id);
        if (child === undefined) {
          child = newBuildNode();
          node.children.set(id, child);
        }
        node = child;
        node.visits += 1;
      }
      node.stops += 1;
      this.#promptTokens.push(Math.max(0, request.inputTokens - shared.length * this.#blockTokens));
    }
    root.visits = requests.length;
    this.#root = contract(root, 0);
  }

  /** Nodes of the tree, the root included. */
  get nodes(): number {
    return countNodes(this.#root);
  }

  *synthesize(options: SynthesisOptions, random: Random): Generator<TraceRequest> {
    const ids = new NodeIds(options.rootMultiplier ?? 1, options.prefixLengthMultiplier ?? 1);
    const most = options.maxInputTokens ?? Number.MAX_SAFE_INTEGER;
    let arrivalMs = 0;
    for (let index = 0; index < options.requests; index++) {
      if (index > 0) arrivalMs += draw(this.#gapsMs, random) / (options.speedup ?? 1);
      let blockIds: number[] = [];
      let inputTokens = 0;
      for (let attempt = 0; attempt < 100; attempt++) {
        blockIds = this.#walk(ids, random);
        const own = Math.round(draw(this.#promptTokens, random) * (options.promptLengthMultiplier ?? 1));
        inputTokens = Math.max(1, blockIds.length * this.#blockTokens + own);
        if (inputTokens <= most) break;
      }
      inputTokens = Math.min(inputTokens, most);
      const blocks = Math.ceil(inputTokens / this.#blockTokens);
      blockIds = blockIds.slice(0, blocks);
      while (blockIds.length < blocks) blockIds.push(ids.fresh());
      const outputTokens = draw(this.#outputTokens, random);
      yield { arrivalMs, inputTokens, outputTokens, blockIds, blockTokens: this.#blockTokens };
    }
  }

  /** The ids of one way from the root to where some request of the trace stopped. */
  #walk(ids: NodeIds, random: Random): number[] {
    const copy = random.below(ids.copies);
    const path: number[] = [];
    for (let node: Node | undefined = this.#root; node !== undefined; ) {
      ids.append(path, node, copy);
      node = nextOnTheWay(node, random.below(node.visits));
    }
    return path;
  }
}

interface Node {
  readonly blocks: number;
  readonly visits: number;
  readonly stops: number;
  readonly children: readonly Node[];
}

/** The child that visit number `visit` of the node went to; undefined when it stopped there. */
function nextOnTheWay(node: Node, visit: number): Node | undefined {
  let passed = node.stops;
  if (visit < passed) return undefined;
  for (const child of node.children) {
    passed += child.visits;
    if (visit < passed) return child;
  }
  return undefined;
}

interface BuildNode {
  visits: number;
  stops: number;
  readonly children: Map<number, BuildNode>;
}

function newBuildNode(): BuildNode {
  return { visits: 0, stops: 0, children: new Map() };
}

/** One radix node for a run of blocks in which nobody stops or branches off. */
function contract(start: BuildNode, ownBlocks: number): Node {
  let node = start;
  let blocks = ownBlocks;
  while (ownBlocks > 0 && node.stops === 0 && node.children.size === 1) {
    for (const child of node.children.values()) node = child;
    blocks += 1;
  }
  return {
    blocks,
    visits: node.visits,
    stops: node.stops,
    children: [...node.children.values()].map((child) => contract(child, 1)),
  };
}

function countNodes(node: Node): number {
  return node.children.reduce((sum, child) => sum + countNodes(child), 1);
}

/** Gives every node of every copy of the tree its run of ids when it is first walked. */
class NodeIds {
  readonly copies: number;
  readonly #lengthMultiplier: number;
  readonly #firstId = new Map<Node, number>();
  #next = 0;

  constructor(copies: number, lengthMultiplier: number) {
    this.copies = copies;
    this.#lengthMultiplier = lengthMultiplier;
  }

  append(path: number[], node: Node, copy: number): void {
    const length = Math.round(node.blocks * this.#lengthMultiplier);
    let first = this.#firstId.get(node);
    if (first === undefined) {
      first = this.#next;
      this.#firstId.set(node, first);
      this.#next += length * this.copies;
    }
    for (let index = 0; index < length; index++) path.push(first + copy * length + index);
  }

  fresh(): number {
    return this.#next++;
  }
}

function promptIds(request: TraceRequest): readonly number[] {
  return request.blockIds.slice(0, Math.ceil(request.inputTokens / request.blockTokens));
}

function draw(values: readonly number[], random: Random): number {
  return values.length === 0 ? 0 : (values[random.below(values.length)] ?? 0);
}
