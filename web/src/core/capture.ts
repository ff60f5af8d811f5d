// One capture: a pack's header, and its arrays where they are here. Cuts out what one head needs.
import { type Header, type LayerKind, type Numbers, QUANTITIES, type Quantity, type Stored } from "./pack.ts";

import { wordAt } from "./text.ts";

/** The factors of one head, or of all heads of a layer that mixes them: what a worker is given. */
export interface Factors {
  kind: LayerKind;
  heads: number;
  group: number;
  length: number;
  dim: number;
  causal: boolean;
  positions: Int32Array;
  arrays: Record<string, Numbers>;
  shapes: Record<string, number[]>;
}

const PER_HEAD = [
  "q",
  "lse",
  "temperature",
  "sink",
  "bias.table",
  "bias.weight",
  "bias.row",
  "bias.col",
  "bias.out_weight",
  "bias.out_bias",
  "bias.map",
];
const SHARED = [
  "turn.q",
  "turn.k",
  "bias.near",
  "bias.far",
  "bias.in_weight",
  "bias.in_bias",
  "mix.inner.weight",
  "mix.inner.bias",
  "mix.outer.weight",
  "mix.outer.bias",
  "mix.table",
];

const UNKNOWN: LayerKind = { scale: 1, bias: null, mix: null };

/** Titles that no two captures share: texts are numbered and named by a word in which they differ. */
export function distinctTitles(captures: { ownTitle: string; header: Header }[]): string[] {
  const titles = captures.map(({ ownTitle, header }) => {
    const same = captures.filter((each) => each.ownTitle === ownTitle).map((each) => each.header.pieces ?? []),
      texts = [...new Set(same.map((pieces) => JSON.stringify(pieces)))],
      pieces = header.pieces ?? [];
    if (texts.length < 2) return ownTitle;
    const at = pieces.findIndex((piece, n) => same.some((other) => other[n] !== piece)),
      word = wordAt(pieces, at).slice(0, 20),
      number = texts.indexOf(JSON.stringify(pieces)) + 1;
    return `${ownTitle}, text ${number}${word && ` (${word})`}`;
  });
  const taken = new Set<string>();
  return titles.map((title) => {
    let distinct = title;
    for (let n = 2; taken.has(distinct); n++) distinct = `${title} (${n})`;
    taken.add(distinct);
    return distinct;
  });
}

export class Capture {
  readonly positions: Int32Array;
  /** What the page calls it: its own title, or one that tells it from captures of the same title. */
  title: string;

  constructor(
    readonly id: string,
    readonly ownTitle: string,
    readonly header: Header,
    /** Absent where the host serves tiles. */
    readonly arrays: Map<string, Stored> | null,
  ) {
    this.title = ownTitle;
    const given = header.positions;
    this.positions = Int32Array.from({ length: arrays ? header.length : 0 }, (_, n) => (given ? given[n] : n));
  }

  get length(): number {
    return this.header.length;
  }

  get unit(): "token" | "frame" {
    return this.header.unit ?? "token";
  }

  /** A layer, counted from 1, with what only some layers or models have: "layer 1 (RoPE, window 64)". */
  place(layer: number): string {
    const note = this.header.notes?.[this.header.layers.indexOf(layer)];
    return note ? `layer ${layer + 1} (${note})` : `layer ${layer + 1}`;
  }

  /** How a layer is put together; of a layer that only the host can compute, its window at most. */
  kind(layer: number): LayerKind {
    return this.header.factors[this.header.layers.indexOf(layer)] ?? UNKNOWN;
  }

  /** Whether a quantity can be shown; weights that were given alone have no scores. */
  knows(quantity: Quantity): boolean {
    return (this.header.quantities ?? QUANTITIES).includes(quantity);
  }

  has(layer: number, head: number): boolean {
    return this.header.layers.includes(layer) && this.header.heads.includes(head);
  }

  /** Why the positional part of a layer cannot be scaled; null where it can. */
  fixedPosition(layer: number): string | null {
    return this.header.fixed_position?.[this.header.layers.indexOf(layer)] ?? null;
  }

  /** Whether the heads of a layer are computed together. */
  together(layer: number): boolean {
    const mix = this.kind(layer).mix ?? null;
    return mix !== null && mix.kind !== "cope";
  }

  /** Whether a layer's queries see a key. */
  visible(layer: number, query: number, key: number): boolean {
    const window = this.kind(layer).window ?? this.length;
    return (
      query >= 0 &&
      key >= 0 &&
      query < this.length &&
      key < this.length &&
      (!this.header.causal || (key <= query && query - key < window))
    );
  }

  piece(token: number): string {
    return this.header.pieces?.[token] ?? "";
  }

  stored(layer: number, name: string): Stored | undefined {
    return this.arrays?.get(`layer.${layer}.${name}`);
  }

  /** The factors of a head; all of the layer's heads where they are computed together. */
  factors(layer: number, head: number): Factors {
    const kind = this.kind(layer),
      all = this.together(layer),
      index = this.header.heads.indexOf(head);
    const arrays: Record<string, Numbers> = {},
      shapes: Record<string, number[]> = {};
    const q = this.stored(layer, "q"),
      k = this.stored(layer, "k");
    if (!q || !k) throw new Error(`the capture has no queries and keys for layer ${layer + 1}`);
    const group = q.shape[0] / k.shape[0];
    const cut = (stored: Stored, at: number): Numbers => {
      const size = stored.data.length / stored.shape[0];
      return all ? stored.data : stored.data.subarray(at * size, (at + 1) * size);
    };
    arrays.k = cut(k, Math.floor(index / group));
    for (const name of PER_HEAD) {
      const stored = this.stored(layer, name);
      if (stored) {
        arrays[name] = cut(stored, index);
        shapes[name] = stored.shape;
      }
    }
    for (const name of SHARED) {
      const stored = this.stored(layer, name);
      if (stored) {
        arrays[name] = stored.data;
        shapes[name] = stored.shape;
      }
    }
    return {
      kind,
      heads: all ? q.shape[0] : 1,
      group: all ? group : 1,
      length: q.shape[1],
      dim: q.shape[2],
      causal: this.header.causal,
      positions: this.positions,
      arrays,
      shapes,
    };
  }
}
