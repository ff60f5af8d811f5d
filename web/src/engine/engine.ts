// The pool of workers: a queue by priority, and which worker has which factors.
import type { Capture, Factors } from "../core/capture.ts";
import type { FromWorker, Job, Part, ToWorker } from "./messages.ts";

/** Memory of factors a worker may use. */
const BUDGET = 400e6;
/** How often a job that failed is given to a new worker. */
const RETRIES = 2;

export interface Task {
  job: Job;
  /** Least first. Asked anew each time a worker is free; Infinity drops the task. */
  priority: () => number;
}

interface Waiting extends Task {
  retries: number;
  resolve: (result: Float32Array[] | Float64Array[]) => void;
  reject: (error: Error) => void;
}

interface Member {
  worker: Worker;
  started: boolean;
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
  private readonly url: string;
  private module: WebAssembly.Module | null = null;
  private closed = false;
  /** Why nothing can be computed any more. */
  private end: string | null = null;
  /** Time the workers spent on jobs, for measurements. */
  milliseconds = 0;
  jobs = 0;

  constructor(
    script: string,
    wasm: Uint8Array<ArrayBuffer>,
    size: number,
    private readonly fail: (message: string) => void,
  ) {
    this.url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
    WebAssembly.compile(wasm).then(
      (module) => {
        this.module = module;
        for (let n = 0; n < size && !this.closed; n++) this.members.push(this.member());
      },
      (error) => this.fail(`This browser cannot run the kernel (WebAssembly SIMD): ${error}`),
    );
  }

  private member(): Member {
    const worker = new Worker(this.url),
      member: Member = { worker, started: false, running: null, held: new Map(), constants: new Set() };
    worker.onmessage = (event: MessageEvent<FromWorker>) => this.receive(member, event.data);
    worker.onerror = (event) => {
      event.preventDefault();
      this.lost(member, event.message || "the worker stopped", false);
    };
    worker.postMessage({ type: "start", module: this.module! } satisfies ToWorker);
    return member;
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
      if (this.end !== null) return reject(new Error(this.end));
      this.waiting.push({ ...task, retries: RETRIES, resolve, reject });
      this.pump();
    });
  }

  /** Number of jobs that wait or run. */
  get pending(): number {
    return this.waiting.length + this.members.filter((member) => member.running).length;
  }

  close(): void {
    this.closed = true;
    for (const { worker } of this.members) worker.terminate();
    this.waiting.length = 0;
    URL.revokeObjectURL(this.url);
  }

  private pump(): void {
    for (const member of this.members) {
      if (!member.started) continue;
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
        member.worker.postMessage({ type: "job", job: next.job } satisfies ToWorker);
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

  private receive(member: Member, answer: FromWorker): void {
    if (answer.type === "not started") this.retire(member, answer.error);
    else if (answer.type === "failed") this.lost(member, answer.error, answer.final);
    else {
      if (answer.type === "done") {
        this.milliseconds += answer.milliseconds;
        this.jobs++;
        member.running!.resolve(answer.result);
        member.running = null;
      }
      member.started = true;
      this.pump();
    }
  }

  /** A job failed. Unless it cannot be done at all, a new worker with an empty memory takes it up. */
  private lost(member: Member, error: string, final: boolean): void {
    const task = member.running;
    member.running = null;
    if (task && (final || task.retries === 0)) task.reject(new Error(error));
    else if (task) this.waiting.push({ ...task, retries: task.retries - 1 });
    if (!final && !this.closed) {
      member.worker.terminate();
      // A worker that fails before its first job would fail for ever.
      if (member.started) this.members[this.members.indexOf(member)] = this.member();
      else this.retire(member, error);
    }
    this.pump();
  }

  /** Go on without a worker that cannot start; the others do its work. */
  private retire(member: Member, error: string): void {
    member.worker.terminate();
    this.members.splice(this.members.indexOf(member), 1);
    if (this.members.length) return;
    this.end = `no worker can start (${error}); close other viewers or tabs and reload this page.`;
    for (const task of this.waiting.splice(0)) task.reject(new Error(this.end));
  }
}

function total(sizes: Map<string, number>): number {
  let sum = 0;
  for (const size of sizes.values()) sum += size;
  return sum;
}
