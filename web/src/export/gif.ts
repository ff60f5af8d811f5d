// Frames as an animated GIF: one palette of 256 colours for all, compressed by LZW.

/** Pixels of one frame as RGBA. */
export type Pixels = Uint8ClampedArray;

/** The 256 colours that occur most, at 5 bits a channel, and which of them is nearest to each of all 32,768. */
function palette(frames: Pixels[]): { colours: number[][]; nearest: Uint8Array } {
  const count = new Uint32Array(32768),
    sum = new Float64Array(3 * 32768);
  for (const frame of frames)
    for (let at = 0; at < frame.length; at += 4) {
      const name = bucket(frame, at);
      count[name]++;
      for (let n = 0; n < 3; n++) sum[3 * name + n] += frame[at + n];
    }
  const used = [...count.keys()].filter((name) => count[name]).sort((a, b) => count[b] - count[a]);
  const mean = (name: number) => [0, 1, 2].map((n) => Math.round(sum[3 * name + n] / count[name]));
  const colours = used.slice(0, 256).map(mean),
    nearest = new Uint8Array(32768);
  used.forEach((name, rank) => {
    if (rank < 256) {
      nearest[name] = rank;
      return;
    }
    const own = mean(name);
    let least = Infinity;
    colours.forEach((colour, n) => {
      const away = colour.reduce((total, value, k) => total + (value - own[k]) ** 2, 0);
      if (away < least) {
        least = away;
        nearest[name] = n;
      }
    });
  });
  return { colours, nearest };
}

const bucket = (frame: Pixels, at: number) =>
  ((frame[at] >> 3) << 10) | ((frame[at + 1] >> 3) << 5) | (frame[at + 2] >> 3);

/** LZW as GIF has it: codes of 9 to 12 bits, lowest bit first, in blocks of at most 255 bytes. */
export function compress(indices: Uint8Array): number[] {
  const CLEAR = 256,
    END = 257,
    bytes: number[] = [];
  let codes = new Map<number, number>(),
    width = 9,
    next = 258,
    bits = 0,
    held = 0;
  const put = (code: number) => {
    held |= code << bits;
    bits += width;
    while (bits >= 8) {
      bytes.push(held & 255);
      held >>>= 8;
      bits -= 8;
    }
  };
  put(CLEAR);
  let prefix = indices[0];
  for (let at = 1; at < indices.length; at++) {
    const key = (prefix << 8) | indices[at],
      known = codes.get(key);
    if (known !== undefined) {
      prefix = known;
      continue;
    }
    put(prefix);
    prefix = indices[at];
    if (next === 4096) {
      put(CLEAR);
      codes = new Map();
      width = 9;
      next = 258;
      continue;
    }
    // A code is one bit wider from the moment that the table has more entries than the width can name.
    if (next === 1 << width) width++;
    codes.set(key, next++);
  }
  put(prefix);
  put(END);
  if (bits) bytes.push(held & 255);
  const out = [8];
  for (let at = 0; at < bytes.length; at += 255) {
    const block = bytes.slice(at, at + 255);
    out.push(block.length, ...block);
  }
  return [...out, 0];
}

const word = (value: number) => [value & 255, (value >> 8) & 255];

/** An endless GIF of frames of one size, `milliseconds` each. */
export function toGif(frames: Pixels[], width: number, height: number, milliseconds: number): Blob {
  const { colours, nearest } = palette(frames),
    table = Array.from({ length: 256 }, (_, n) => colours[n] ?? [0, 0, 0]).flat();
  const parts: Uint8Array<ArrayBuffer>[] = [
    Uint8Array.from([...new TextEncoder().encode("GIF89a"), ...word(width), ...word(height), 0xf7, 0, 0, ...table]),
    Uint8Array.from([0x21, 0xff, 11, ...new TextEncoder().encode("NETSCAPE2.0"), 3, 1, 0, 0, 0]),
  ];
  for (const frame of frames) {
    const indices = new Uint8Array(width * height);
    for (let n = 0; n < indices.length; n++) indices[n] = nearest[bucket(frame, 4 * n)];
    parts.push(
      Uint8Array.from([0x21, 0xf9, 4, 0, ...word(Math.round(milliseconds / 10)), 0, 0]),
      Uint8Array.from([0x2c, 0, 0, 0, 0, ...word(width), ...word(height), 0]),
      Uint8Array.from(compress(indices)),
    );
  }
  return new Blob([...parts, Uint8Array.of(0x3b)], { type: "image/gif" });
}
