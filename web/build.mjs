// Builds the module (default), compares it with the committed one (--compare), or builds the tests (--test).
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const OUT = join(HERE, "../src/headscape/viewer/static");
const LIMIT = 250_000;
const common = {
  bundle: true,
  format: "esm",
  target: "es2022",
  write: false,
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};

function kernel() {
  const path = join(HERE, "kernel/kernel.wasm");
  if (!existsSync(path))
    throw new Error("kernel/kernel.wasm is missing: run `npm run kernel` (needs clang and wasm-ld)");
  return readFileSync(path);
}

/** `embed:worker` is the worker's script, `embed:kernel` the kernel in base64, `embed:style` the style sheet. */
function embed(worker) {
  const texts = {
    worker,
    kernel: kernel().toString("base64"),
    style: readFileSync(join(HERE, "src/ui/style.css"), "utf8").replace(/\s+/g, " "),
  };
  return {
    name: "embed",
    setup(at) {
      at.onResolve({ filter: /^embed:/ }, ({ path }) => ({ path: path.slice(6), namespace: "embed" }));
      at.onLoad({ filter: /.*/, namespace: "embed" }, ({ path }) => ({ contents: texts[path], loader: "text" }));
    },
  };
}

async function workerScript(minify) {
  const result = await build({ ...common, format: "iife", entryPoints: [join(HERE, "src/engine/worker.ts")], minify });
  return result.outputFiles[0].text;
}

async function moduleText() {
  const result = await build({
    ...common,
    entryPoints: [join(HERE, "src/index.ts")],
    minify: true,
    plugins: [embed(await workerScript(true))],
  });
  return result.outputFiles[0].text;
}

async function tests() {
  const folder = join(HERE, "build");
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder);
  const names = readdirSync(join(HERE, "test")).filter(
    (name) => name.endsWith(".test.ts") || ["speed.ts", "states.ts"].includes(name),
  );
  const plugins = [embed("")];
  for (const name of names) {
    const result = await build({ ...common, platform: "node", entryPoints: [join(HERE, "test", name)], plugins });
    writeFileSync(join(folder, name.replace(/ts$/, "mjs")), result.outputFiles[0].text);
  }
}

if (process.argv.includes("--test")) await tests();
else {
  const text = await moduleText(),
    path = join(OUT, "viewer.js");
  if (text.length > LIMIT) throw new Error(`the module has ${text.length} bytes, more than ${LIMIT}`);
  if (process.argv.includes("--compare")) {
    if (readFileSync(path, "utf8") !== text)
      throw new Error(`${path} differs from its source: run \`npm run build\` and commit it`);
    console.log("the committed module is the one its source gives");
  } else {
    mkdirSync(OUT, { recursive: true });
    writeFileSync(path, text);
    console.log(`${path}: ${text.length} bytes`);
  }
}
