// A worker: loads factors, carries out one job at a time, answers with arrays.
import { compute } from "./compute.ts";
import { Instance } from "./instance.ts";
import { type FromWorker, type ToWorker } from "./messages.ts";

const scope = self as unknown as {
  onmessage: (event: MessageEvent<ToWorker>) => void;
  postMessage(message: FromWorker, transfer?: Transferable[]): void;
};
let module: WebAssembly.Module;
const instances = new Map<string, Instance>();
const failures = new Map<string, string>();

function find(name: string): Instance {
  const instance = instances.get(name);
  if (!instance) throw new Error(failures.get(name) ?? `factors ${name} were not loaded`);
  return instance;
}

scope.onmessage = ({ data }) => {
  if (data.type === "start") module = data.module;
  else if (data.type === "drop") instances.delete(data.name);
  else if (data.type === "load") {
    try {
      instances.set(data.name, new Instance(module, data.factors));
    } catch (error) {
      failures.set(data.name, String((error as Error).message));
    }
  } else if (data.type === "constants") instances.get(data.factors)?.keep(data.name, data.values);
  else {
    const start = performance.now();
    try {
      const result = compute(data.job, find);
      scope.postMessage(
        { id: data.id, result, milliseconds: performance.now() - start },
        result.map((array) => array.buffer as ArrayBuffer),
      );
    } catch (error) {
      scope.postMessage({ id: data.id, error: String((error as Error).message) });
    }
  }
};
