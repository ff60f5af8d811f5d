// A pack: the header and the arrays of one capture, read from bytes without copying.

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

export interface Header {
  format: number;
  title?: string;
  encoding: string;
  conventions?: Record<string, unknown>;
  causal: boolean;
  length: number;
  layers: number[];
  heads: number[];
  factors: LayerKind[];
  train_length?: number;
  pieces?: string[];
  /** What the sequence is made of. */
  unit?: "token" | "frame";
  /** What a title says of each layer, such as its encoding in a schedule and its window. */
  notes?: string[];
  positions?: number[];
  precision?: "float16" | "float32";
  step?: number | null;
  measures?: Record<string, number[][]>;
  source?: string;
  model?: Record<string, unknown>;
  provenance?: Record<string, unknown>;
}

export type Numbers = Uint16Array | Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array;

/** An array of a pack; float16 stays as bits. */
export interface Stored {
  dtype: string;
  shape: number[];
  data: Numbers;
}

const TYPES: Record<
  string,
  { new (buffer: ArrayBuffer, offset: number, length: number): Numbers; BYTES_PER_ELEMENT: number }
> = {
  float16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
};

const MAGIC = "HSPACK01";
export const FORMAT = 1;

/** Bytes in whatever form a host hands them over, as a Uint8Array that starts at a multiple of 16. */
export function asBytes(given: ArrayBuffer | ArrayBufferView): Uint8Array<ArrayBuffer> {
  if (given instanceof ArrayBuffer) return new Uint8Array(given);
  const bytes = new Uint8Array(given.buffer as ArrayBuffer, given.byteOffset, given.byteLength);
  return bytes.byteOffset % 16 ? bytes.slice() : bytes;
}

/** Return the header and arrays in a pack's bytes. */
export function readPack(given: ArrayBuffer | ArrayBufferView): { header: Header; arrays: Map<string, Stored> } {
  const bytes = asBytes(given);
  const magic = new TextDecoder().decode(bytes.subarray(0, 8));
  if (magic !== MAGIC)
    throw new Error(`these bytes start with ${JSON.stringify(magic)}, so they are not a headscape pack`);
  const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(8, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(12, 12 + size)));
  const arrays = new Map<string, Stored>();
  for (const { name, dtype, shape, offset, bytes: count } of header.arrays) {
    const Type = TYPES[dtype];
    if (!Type) throw new Error(`array ${name} has dtype ${dtype}, which this viewer does not read`);
    if (offset + count > bytes.byteLength) throw new Error(`the pack ends inside array ${name}: it is not complete`);
    arrays.set(name, {
      dtype,
      shape,
      data: new Type(bytes.buffer, bytes.byteOffset + offset, count / Type.BYTES_PER_ELEMENT),
    });
  }
  delete header.arrays;
  return { header: checkHeader(header), arrays };
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
