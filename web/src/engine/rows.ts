// Exact rows and columns of a head: float64 from the stored factors, or asked of the host that serves tiles.
import type { Capture } from "../core/capture.ts";
import { Exact, type Row } from "../core/exact.ts";
import { asBytes, QUANTITIES, type Quantity } from "../core/pack.ts";
import type { Host } from "../hosts/host.ts";
import { type Engine, factorsName } from "./engine.ts";

const KEPT = { exacts: 12, rows: 64, columns: 64 };
/** Rows a host is asked for are cut to this many keys around the pair, to a multiple of STEP. */
const SERVED = 4096,
  STEP = 1024;
/** Rows and columns a host is asked for at a time: the pointer moves faster than answers come. */
const AT_ONCE = 3;

/** Values from `first` on. */
export interface Part {
  first: number;
  values: ArrayLike<number>;
}

/** First and last token of the part that a host is asked for. */
function around(token: number, length: number): [number, number] {
  const first = Math.max(0, Math.min(Math.floor(token / STEP) * STEP - SERVED / 2, length - SERVED));
  return [first, Math.min(length, first + SERVED)];
}

export class Rows {
  private readonly exacts = new Map<string, Exact>();
  private readonly rows = new Map<string, Row>();
  private readonly columns = new Map<string, Part>();
  private readonly asked = new Set<string>();
  private readonly failed = new Set<string>();

  constructor(
    private readonly engine: Engine,
    private readonly host: Host,
    private readonly changed: () => void,
    private readonly fail: (message: string, again: boolean) => void,
  ) {}

  /** All quantities of a query with every key, or with those around `near`; null while the host is asked. */
  row(capture: Capture, layer: number, head: number, query: number, near = 0, position = 1): Row | null {
    const part = capture.arrays ? [0, capture.length] : around(near, capture.length);
    const name = `${capture.id}|${layer}|${head}|${query}|${part[0]}|${position}`,
      found = this.rows.get(name);
    if (found) return found;
    if (!capture.arrays) {
      void this.askRow(capture, layer, head, query, part, position, name);
      return null;
    }
    const index = capture.together(layer) ? capture.header.heads.indexOf(head) : 0;
    const row = this.exact(capture, layer, head).row(index, query, position);
    keep(this.rows, name, row, KEPT.rows);
    return row;
  }

  /** Ask again for what failed. */
  retry(): void {
    this.failed.clear();
  }

  private exact(capture: Capture, layer: number, head: number): Exact {
    const name = factorsName(capture, layer, head);
    const exact = this.exacts.get(name) ?? new Exact(capture.factors(layer, head));
    if (!this.exacts.has(name)) keep(this.exacts, name, exact, KEPT.exacts);
    return exact;
  }

  private async askRow(
    capture: Capture,
    layer: number,
    head: number,
    query: number,
    keys: number[],
    position: number,
    name: string,
  ): Promise<void> {
    if (this.failed.has(name) || this.asked.has(name) || this.asked.size >= AT_ONCE) return;
    this.asked.add(name);
    try {
      const row: Partial<Row> = { first: keys[0] };
      await Promise.all(
        QUANTITIES.filter((each) => capture.knows(each)).map(async (quantity) => {
          const { buffers } = await this.host.ask({
            type: "values",
            id: capture.id,
            layer,
            head,
            quantity,
            minus: "nothing",
            position,
            queries: [query, query + 1],
            keys,
          });
          row[quantity] = new Float64Array(asBytes(buffers[0]).slice().buffer);
        }),
      );
      keep(this.rows, name, row as Row, KEPT.rows);
    } catch (error) {
      this.failed.add(name);
      this.fail(`The values of query ${query} could not be read: ${(error as Error).message}`, true);
    } finally {
      this.asked.delete(name);
      this.changed();
    }
  }

  /** One quantity of a key with every query, or with those around `near`; null until it is there.
   *  Where heads or keys are mixed, and weights with the positional part scaled, the kernel computes, in float32. */
  column(
    capture: Capture,
    layer: number,
    head: number,
    quantity: Quantity,
    key: number,
    near: number,
    position = 1,
  ): Part | null {
    const [first, last] = capture.arrays ? [0, capture.length] : around(near, capture.length);
    const name = `${capture.id}|${layer}|${head}|${quantity}|${key}|${first}|${position}`,
      found = this.columns.get(name);
    if (found) return found;
    if (capture.arrays) {
      const index = capture.together(layer) ? capture.header.heads.indexOf(head) : 0;
      const values = this.exact(capture, layer, head).column(index, quantity, key, position);
      if (values) {
        keep(this.columns, name, { first, values }, KEPT.columns);
        return { first, values };
      }
    }
    if (this.failed.has(name) || this.asked.has(name) || this.asked.size >= AT_ONCE) return null;
    this.asked.add(name);
    const done = (values: ArrayLike<number>) => keep(this.columns, name, { first, values }, KEPT.columns),
      not = (error: Error) => {
        this.failed.add(name);
        this.fail(`The values of key ${key} could not be computed: ${error.message}`, true);
      },
      end = () => {
        this.asked.delete(name);
        this.changed();
      };
    if (capture.arrays) {
      const index = capture.together(layer) ? capture.header.heads.indexOf(head) : 0;
      const part = { factors: this.engine.know(capture, layer, head), head: index, quantity, minus: null, position };
      this.engine
        .run({
          job: { type: "values", part, other: null, query: 0, rows: capture.length, key, keys: 1 },
          priority: () => 3,
        })
        .then((result) => done(result[0]), not)
        .finally(end);
    } else {
      this.host
        .ask({
          type: "values",
          id: capture.id,
          layer,
          head,
          quantity,
          minus: "nothing",
          position,
          queries: [first, last],
          keys: [key, key + 1],
        })
        .then(({ buffers }) => done(new Float64Array(asBytes(buffers[0]).slice().buffer)), not)
        .finally(end);
    }
    return null;
  }
}

function keep<T>(map: Map<string, T>, name: string, value: T, most: number): void {
  map.set(name, value);
  for (const old of map.keys()) {
    if (map.size <= most) break;
    map.delete(old);
  }
}

/** Place of a value in its row: 1 is the greatest. */
export function rank(values: Float64Array, at: number): { place: number; of: number } {
  let place = 1,
    of = 0;
  for (const value of values) {
    if (!Number.isNaN(value)) of++;
    if (value > values[at]) place++;
  }
  return { place, of };
}
