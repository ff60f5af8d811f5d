// A pack: a header and arrays as safetensors bytes, read without copying.

export const QUANTITIES = ["content", "bias", "final", "weights"] as const;
export type Quantity = (typeof QUANTITIES)[number];

export type BiasKind =
  | { kind: "toeplitz"; zero: number }
  | { kind: "slope"; weighted: boolean }
  | { kind: "perceptron"; zero: number; leak: number }
  | { kind: "dense" };

export type MixKind =
  | { kind: "dape"; added: boolean }
  | { kind: "dapev2"; kernel: number; boundary: "masked" | "released" }
  | { kind: "cope"; divide: "scores" | "sum" };

/** How one layer's factors are put together. */
export interface LayerKind {
  scale: number;
  group?: number;
  pairing?: "halves" | "interleaved";
  bias: BiasKind | null;
  mix: MixKind | null;
  /** Keys a query sees, its own included; absent: all before it. */
  window?: number | null;
  softcap?: number | null;
}

/** A measure of every head, as Python defines it: numbers by layer and head, null where it does not apply. */
export interface MeasureValues {
  name: string;
  label: string;
  /** What it is, in one sentence. */
  text: string;
  /** How Python prints it: .2f, .3g or +.4f. */
  form: string;
  values: (number | null)[][];
}

export interface Header {
  format: number;
  title?: string;
  encoding: string;
  conventions?: Record<string, unknown>;
  causal: boolean;
  length: number;
  layers: number[];
  heads: number[];
  /** What can be shown: weights alone where nothing else was given; absent: all. */
  quantities?: Quantity[];
  /** By layer; null where only the host can compute it. */
  factors: (LayerKind | null)[];
  train_length?: number;
  pieces?: string[];
  /** What the sequence is made of. */
  unit?: "token" | "frame";
  /** What a title says of each layer, such as its encoding in a schedule and its window. */
  notes?: string[];
  /** By layer, why its positional part cannot be scaled; null where it can. */
  fixed_position?: (string | null)[];
  positions?: number[];
  precision?: "float16" | "float32";
  step?: number | null;
  measures?: MeasureValues[];
  source?: string;
  /** What `load` takes to open the model, null where it was in memory, and the text it read, null for its own. */
  origin?: { model: string | null; text: string | null };
  /** The name of the capture, or of its model where there is an origin, in the session that opened the page. */
  variable?: string;
  model?: Record<string, unknown>;
  provenance?: Record<string, unknown>;
}

export type Numbers = Uint16Array | Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array;

/** An array of a pack; float16 stays as bits. */
export interface Stored {
  shape: number[];
  data: Numbers;
}

const TYPES: Record<
  string,
  { new (buffer: ArrayBuffer, offset: number, length: number): Numbers; BYTES_PER_ELEMENT: number }
> = {
  F16: Uint16Array,
  F32: Float32Array,
  F64: Float64Array,
  I32: Int32Array,
  I64: BigInt64Array,
  U8: Uint8Array,
};

export const FORMAT = 1;

/** Bytes in whatever form a host hands them over, as a Uint8Array that starts at a multiple of 16. */
export function asBytes(given: ArrayBuffer | ArrayBufferView): Uint8Array<ArrayBuffer> {
  if (given instanceof ArrayBuffer) return new Uint8Array(given);
  const bytes = new Uint8Array(given.buffer as ArrayBuffer, given.byteOffset, given.byteLength);
  return bytes.byteOffset % 16 ? bytes.slice() : bytes;
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

function directory(bytes: Uint8Array<ArrayBuffer>): { start: number; text: string; entries: [string, Entry][] } {
  try {
    const size = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
    const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
    if (typeof metadata?.headscape !== "string") throw new Error("no description");
    return { start: 8 + size, text: metadata.headscape, entries: Object.entries(entries as Record<string, Entry>) };
  } catch {
    throw new Error("these bytes are not a headscape pack: they do not start with a safetensors header of ours");
  }
}

/** Return the header and arrays of one capture. */
export function readPack(given: ArrayBuffer | ArrayBufferView): { header: Header; arrays: Map<string, Stored> } {
  const { header, arrays } = readArrays(given);
  return { header: checkHeader(header as Header), arrays };
}

/** Return the header and arrays in a pack's bytes. */
export function readArrays(given: ArrayBuffer | ArrayBufferView): { header: unknown; arrays: Map<string, Stored> } {
  const bytes = asBytes(given),
    { start, text, entries } = directory(bytes);
  const arrays = new Map<string, Stored>();
  for (const [name, { dtype, shape, data_offsets: at }] of entries) {
    const Type = TYPES[dtype];
    if (!Type) throw new Error(`array ${name} has dtype ${dtype}, which this viewer does not read`);
    if (start + at[1] > bytes.byteLength) throw new Error(`the pack ends inside array ${name}: it is not complete`);
    const data = new Type(bytes.buffer, bytes.byteOffset + start + at[0], (at[1] - at[0]) / Type.BYTES_PER_ELEMENT);
    arrays.set(name, { shape, data });
  }
  // Arrays that have the bytes of another: name to name.
  const { same = {}, ...header } = JSON.parse(text) as { same?: Record<string, string> };
  for (const [name, twin] of Object.entries(same)) {
    const stored = arrays.get(twin);
    if (stored) arrays.set(name, stored);
  }
  return { header, arrays };
}

/** Return the header, or say why this viewer cannot read it. */
export function checkHeader(header: Header): Header {
  if (header.format > FORMAT)
    throw new Error(`the capture has format ${header.format} and this viewer reads up to ${FORMAT}: upgrade headscape`);
  for (const name of ["layers", "heads", "length", "factors", "causal"] as const) {
    if (header[name] === undefined) throw new Error(`the capture's header has no field ${name}`);
  }
  return header;
}

let table: Float32Array | null = null;

/** float16 bits as float32. */
export function widen(bits: Uint16Array): Float32Array {
  if (!table) {
    table = new Float32Array(65536);
    for (let b = 0; b < 65536; b++) {
      const sign = b & 0x8000 ? -1 : 1,
        power = (b >> 10) & 31,
        part = b & 1023;
      table[b] =
        power === 31
          ? part
            ? NaN
            : sign * Infinity
          : power
            ? sign * 2 ** (power - 15) * (1 + part / 1024)
            : (sign * part) / 2 ** 24;
    }
  }
  const out = new Float32Array(bits.length);
  for (let n = 0; n < bits.length; n++) out[n] = table[bits[n]];
  return out;
}
