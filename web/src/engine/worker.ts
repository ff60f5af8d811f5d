// A worker: loads factors, carries out one job at a time, answers with arrays.
import { compute } from "./compute.ts";
import { Instance, Refused } from "./instance.ts";
import { Kernel } from "./kernel.ts";
import type { FromWorker, Job, ToWorker } from "./messages.ts";

const scope = self as unknown as {
  onmessage: (event: MessageEvent<ToWorker>) => void;
  postMessage(message: FromWorker, transfer?: Transferable[]): void;
};
let kernel: Kernel;
const instances = new Map<string, Instance>();
/** Why some factors could not be loaded. */
const failures = new Map<string, Error>();

function find(name: string): Instance {
  const failure = failures.get(name),
    instance = instances.get(name);
  if (failure) throw failure;
  if (!instance) throw new Error(`factors ${name} were not loaded`);
  return instance;
}

/** Run what may lack memory; a failure is reported with the next job that needs these factors. */
function attempt(factors: string, action: () => void): void {
  try {
    action();
  } catch (error) {
    failures.set(factors, error as Error);
  }
}

function drop(name: string): void {
  instances.get(name)?.free();
  instances.delete(name);
  failures.delete(name);
}

function start(module: WebAssembly.Module): void {
  try {
    kernel = new Kernel(module);
    scope.postMessage({ type: "started" });
  } catch (error) {
    scope.postMessage({ type: "not started", error: (error as Error).message });
  }
}

function work(job: Job): void {
  const began = performance.now();
  try {
    const result = compute(job, find);
    scope.postMessage(
      { type: "done", result, milliseconds: performance.now() - began },
      result.map((array) => array.buffer as ArrayBuffer),
    );
  } catch (error) {
    scope.postMessage({ type: "failed", error: (error as Error).message, final: error instanceof Refused });
  }
}

scope.onmessage = ({ data }) => {
  if (data.type === "start") start(data.module);
  else if (data.type === "drop") drop(data.name);
  else if (data.type === "load") attempt(data.name, () => instances.set(data.name, new Instance(kernel, data.factors)));
  else if (data.type === "constants")
    attempt(data.factors, () => instances.get(data.factors)?.keep(data.name, data.values));
  else work(data.job);
};
