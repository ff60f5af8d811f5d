// Times the kernel: `npm run speed`. Not a test.
import kernel from "embed:kernel";
import { compute } from "../src/engine/compute.ts";
import { Instance } from "../src/engine/instance.ts";
import { Kernel } from "../src/engine/kernel.ts";
import { makeFactors, type Options } from "./factors.ts";

declare const process: { cpuUsage(since?: object): { user: number; system: number } };
const module = new WebAssembly.Module(Uint8Array.from(atob(kernel), (letter) => letter.charCodeAt(0)));

function time(name: string, options: Options, heads: number): void {
  const factors = makeFactors({ length: 4096, dim: 64, heads, ...options });
  factors.arrays.lse = new Float64Array(heads * 4096).fill(8);
  const instance = new Instance(new Kernel(module), factors),
    all = heads > 1 ? -1 : 0;
  for (const quantity of ["content", "bias", "final", "weights"] as const)
    for (const level of [0, 2]) {
      const side = 2 ** level,
        rows = level ? 16 : 256,
        pairs = rows * side * 256 * side * heads;
      const run = () =>
        compute(
          {
            type: "tile",
            part: { factors: "", head: all, quantity, minus: null },
            other: null,
            level,
            query: 3000,
            rows,
            key: 256,
          },
          () => instance,
        );
      run();
      const start = process.cpuUsage();
      for (let n = 0; n < 4; n++) run();
      const { user, system } = process.cpuUsage(start);
      console.log(`${name} ${quantity} level ${level}: ${(((user + system) * 1000) / 4 / pairs).toFixed(1)} ns a pair`);
    }
}

time("slope", { bias: { kind: "slope", weighted: true } }, 1);
time("toeplitz", { bias: { kind: "toeplitz", zero: 0 } }, 1);
time("perceptron", { bias: { kind: "perceptron", zero: 0, leak: 0 } }, 1);
time("rope", { pairing: "halves" }, 1);
time(
  "dapev2",
  { bias: { kind: "slope", weighted: true }, mix: { kind: "dapev2", kernel: 3, boundary: "masked" }, hidden: 32 },
  12,
);
time("cope", { mix: { kind: "cope", divide: "scores" } }, 1);
