// The pool of workers: a queue by priority, and which worker has which factors.
import { type Capture, type Factors } from "../capture.ts";
import { type FromWorker, type Job, type Part, type ToWorker } from "./messages.ts";

/** Memory of factors a worker may use. */
const BUDGET = 400e6;

export interface Task {
  job: Job;
  /** Least first. Asked anew each time a worker is free; Infinity drops the task. */
  priority: () => number;
}

interface Waiting extends Task {
  resolve: (result: Float32Array[] | Float64Array[]) => void;
  reject: (error: Error) => void;
}

interface Member {
  worker: Worker;
  running: Waiting | null;
  held: Map<string, number>;
  constants: Set<string>;
}

export class Dropped extends Error {}

/** Name of the factors of a head; one name for all heads that are computed together. */
export function factorsName(capture: Capture, layer: number, head: number): string {
  return `${capture.id}/${layer}/${capture.together(layer) ? "all" : head}`;
}

export class Engine {
  private readonly members: Member[] = [];
  private readonly waiting: Waiting[] = [];
  private readonly sources = new Map<string, () => Factors>();
  private readonly constants = new Map<string, Float64Array>();
  private ready = false;
  /** Time the workers spent on jobs, for measurements. */
  milliseconds = 0;
  jobs = 0;

  constructor(
    script: string,
    wasm: Uint8Array<ArrayBuffer>,
    size: number,
    private readonly fail: (message: string) => void,
  ) {
    const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    for (let n = 0; n < size; n++) {
      const member: Member = { worker: new Worker(url), running: null, held: new Map(), constants: new Set() };
      member.worker.onmessage = (event: MessageEvent<FromWorker>) => this.done(member, event.data);
      member.worker.onerror = (event) => this.fail(`A worker stopped: ${event.message}`);
      this.members.push(member);
    }
    WebAssembly.compile(wasm).then(
      (module) => {
        for (const { worker } of this.members) worker.postMessage({ type: "start", module } satisfies ToWorker);
        this.ready = true;
        this.pump();
      },
      (error) => this.fail(`This browser cannot run the kernel (WebAssembly SIMD): ${error}`),
    );
  }

  /** Make a head's factors known by name; they are sent to a worker when it first needs them. */
  know(capture: Capture, layer: number, head: number): string {
    const name = factorsName(capture, layer, head);
    if (!this.sources.has(name)) this.sources.set(name, () => capture.factors(layer, head));
    return name;
  }

  /** Make constants known by name: subtracted where a part names them. */
  keep(name: string, values: Float64Array): void {
    this.constants.set(name, values);
  }

  hasConstants(name: string): boolean {
    return this.constants.has(name);
  }

  run(task: Task): Promise<Float32Array[] | Float64Array[]> {
    return new Promise((resolve, reject) => {
      this.waiting.push({ ...task, resolve, reject });
      this.pump();
    });
  }

  /** Number of jobs that wait or run. */
  get pending(): number {
    return this.waiting.length + this.members.filter((member) => member.running).length;
  }

  close(): void {
    for (const { worker } of this.members) worker.terminate();
    this.waiting.length = 0;
  }

  private pump(): void {
    if (!this.ready) return;
    for (const member of this.members) {
      while (!member.running) {
        const next = this.take();
        if (!next) return;
        try {
          this.prepare(member, next.job.part);
          if ("other" in next.job && next.job.other) this.prepare(member, next.job.other, next.job.part.factors);
        } catch (error) {
          next.reject(error as Error);
          continue;
        }
        member.running = next;
        member.worker.postMessage({ type: "job", id: 0, job: next.job } satisfies ToWorker);
      }
    }
  }

  private take(): Waiting | null {
    let best = -1,
      least = Infinity;
    for (let n = 0; n < this.waiting.length; n++) {
      const priority = this.waiting[n].priority();
      if (priority === Infinity) {
        this.waiting[n].reject(new Dropped());
        this.waiting.splice(n--, 1);
      } else if (priority < least) {
        least = priority;
        best = n;
      }
    }
    return best < 0 ? null : this.waiting.splice(best, 1)[0];
  }

  private prepare(member: Member, part: Part, spare?: string): void {
    const name = part.factors;
    if (!member.held.has(name)) {
      const factors = this.sources.get(name)!();
      const arrays = Object.fromEntries(Object.entries(factors.arrays).map(([key, array]) => [key, array.slice()]));
      const bytes = 3 * Object.values(arrays).reduce((sum, array) => sum + array.byteLength, 0);
      for (const [old, size] of member.held) {
        if (total(member.held) + bytes <= BUDGET) break;
        if (old !== spare) this.drop(member, old, size);
      }
      member.worker.postMessage(
        { type: "load", name, factors: { ...factors, arrays } } satisfies ToWorker,
        Object.values(arrays).map((array) => array.buffer),
      );
      member.held.set(name, bytes);
    } else {
      // most recently used last
      const size = member.held.get(name)!;
      member.held.delete(name);
      member.held.set(name, size);
    }
    if (part.minus && !member.constants.has(`${name}|${part.minus.name}`)) {
      const values = this.constants.get(part.minus.name);
      if (!values) throw new Error(`constants ${part.minus.name} are not computed yet`);
      member.worker.postMessage({ type: "constants", factors: name, name: part.minus.name, values } satisfies ToWorker);
      member.constants.add(`${name}|${part.minus.name}`);
    }
  }

  private drop(member: Member, name: string, _size: number): void {
    member.held.delete(name);
    for (const key of member.constants) if (key.startsWith(`${name}|`)) member.constants.delete(key);
    member.worker.postMessage({ type: "drop", name } satisfies ToWorker);
  }

  private done(member: Member, answer: FromWorker): void {
    const task = member.running!;
    member.running = null;
    if ("error" in answer) task.reject(new Error(answer.error));
    else {
      this.milliseconds += answer.milliseconds;
      this.jobs++;
      task.resolve(answer.result);
    }
    this.pump();
  }
}

function total(sizes: Map<string, number>): number {
  let sum = 0;
  for (const size of sizes.values()) sum += size;
  return sum;
}
