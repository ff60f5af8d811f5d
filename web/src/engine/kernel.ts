// The kernel of one worker: a single WebAssembly memory that several heads share.
//
// Browsers reserve some 10 GB of address space for each memory, so a page can have about a hundred. A worker has one,
// and heads are copied in and out of it: space is reserved and released here. The factors that the kernel computes with
// are its C globals, which lie below the heap; `snapshot` and `restore` change from one head to another.

type Call = (...numbers: number[]) => number;

/** What kernel.c exports. */
interface Exports {
  memory: WebAssembly.Memory;
  allocate: Call;
  widen: Call;
  turn: Call;
  rows: Call;
  subtract: Call;
  shift: Call;
  pool: Call;
  profile: Call;
  set_layer: Call;
  set_bend: Call;
  set_table: Call;
  set_slope: Call;
  set_perceptron: Call;
  set_dape: Call;
  set_cope: Call;
}

const PAGE = 65536;
const up16 = (bytes: number) => 16 * Math.ceil(bytes / 16);

interface Space {
  at: number;
  size: number;
}

export class Kernel {
  readonly call: Exports;
  private readonly base: number;
  private readonly pristine: Uint8Array;
  /** Unused space by address; neighbours are joined. */
  private unused: Space[] = [];
  private readonly sizes = new Map<number, number>();
  private readonly shared = new Map<string, Space>();
  private loaded: object | null = null;

  constructor(module: WebAssembly.Module) {
    this.call = new WebAssembly.Instance(module, {}).exports as unknown as Exports;
    this.base = this.call.allocate(0);
    this.pristine = this.snapshot();
    this.join({ at: this.base, size: this.bytes - this.base });
  }

  /** Bytes of the memory. */
  get bytes(): number {
    return this.call.memory.buffer.byteLength;
  }

  /** Address of zeroed space, a multiple of 16. */
  reserve(wanted: number): number {
    const size = up16(Math.max(wanted, 16));
    let space = this.unused.find((each) => each.size >= size);
    if (!space) {
      const last = this.unused.at(-1),
        atEnd = last && last.at + last.size === this.bytes ? last.size : 0,
        end = this.bytes,
        pages = Math.ceil((size - atEnd) / PAGE);
      try {
        this.call.memory.grow(pages);
      } catch {
        throw new Error(`the browser has no memory left for ${Math.ceil(size / 1e6)} MB of factors`);
      }
      this.join({ at: end, size: pages * PAGE });
      space = this.unused.at(-1)!;
    }
    const { at } = space;
    if (space.size === size) this.unused.splice(this.unused.indexOf(space), 1);
    else {
      space.at += size;
      space.size -= size;
    }
    new Uint8Array(this.call.memory.buffer, at, size).fill(0);
    this.sizes.set(at, size);
    return at;
  }

  release(at: number): void {
    const size = this.sizes.get(at);
    if (size === undefined) throw new Error(`nothing is reserved at ${at}`);
    this.sizes.delete(at);
    this.join({ at, size });
  }

  /** Space by name that all heads share, at least `bytes` long; what was in it is lost. */
  scratch(name: string, bytes: number): number {
    const known = this.shared.get(name);
    if (known && known.size >= bytes) return known.at;
    if (known) {
      this.shared.delete(name);
      this.release(known.at);
    }
    const at = this.reserve(bytes);
    this.shared.set(name, { at, size: bytes });
    return at;
  }

  /** A copy of the globals. */
  snapshot(): Uint8Array {
    return new Uint8Array(this.call.memory.buffer, 0, this.base).slice();
  }

  /** Start with globals as the module has them. */
  clear(): void {
    this.loaded = null;
    new Uint8Array(this.call.memory.buffer).set(this.pristine);
  }

  /** Compute with the globals of `owner` from now on. */
  restore(owner: object, globals: Uint8Array): void {
    if (this.loaded === owner) return;
    new Uint8Array(this.call.memory.buffer).set(globals);
    this.loaded = owner;
  }

  private join(space: Space): void {
    const list = this.unused,
      after = list.findIndex((each) => each.at > space.at),
      at = after < 0 ? list.length : after;
    list.splice(at, 0, space);
    for (const n of [at, at - 1])
      if (n >= 0 && n + 1 < list.length && list[n].at + list[n].size === list[n + 1].at) {
        list[n].size += list[n + 1].size;
        list.splice(n + 1, 1);
      }
  }
}
