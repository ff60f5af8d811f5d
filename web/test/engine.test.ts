// The pool of workers with workers that fail: jobs are given to new ones, and nothing waits for ever.

import kernel from "embed:kernel";
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Capture } from "../src/core/capture.ts";
import { Engine } from "../src/engine/engine.ts";
import type { FromWorker, ToWorker } from "../src/engine/messages.ts";
import { makeFactors } from "./factors.ts";

const wasm = Uint8Array.from(Buffer.from(kernel, "base64"));
const capture = { id: "p0", together: () => false, factors: () => makeFactors() } as unknown as Capture;

/** Workers that answer as `behave` says; their number, counted from 0, and that of the job are told. */
function engineOf(size: number, behave: (worker: number, job: number) => FromWorker | "stop"): Engine {
  let made = 0,
    jobs = 0;
  class FakeWorker {
    readonly number = made++;
    onmessage: (event: { data: FromWorker }) => void = () => {};
    onerror: (event: { message: string; preventDefault(): void }) => void = () => {};
    postMessage(message: ToWorker): void {
      if (message.type !== "start" && message.type !== "job") return;
      const answer = behave(this.number, message.type === "start" ? -1 : jobs++);
      queueMicrotask(() =>
        answer === "stop"
          ? this.onerror({ message: "Uncaught RangeError", preventDefault() {} })
          : this.onmessage({ data: answer }),
      );
    }
    terminate(): void {}
  }
  Object.assign(globalThis, { Worker: FakeWorker });
  return new Engine("", wasm, size, assert.fail);
}

const failed = (final: boolean): FromWorker => ({ type: "failed", error: "Out of memory", final });
const done: FromWorker = { type: "done", result: [], milliseconds: 1 };
const run = (engine: Engine) => {
  const part = { factors: engine.know(capture, 0, 0), head: 0, quantity: "final" as const, minus: null };
  return engine.run({ job: { type: "profile", part, query: 0, rows: 1 }, priority: () => 1 });
};

test("a job that fails is done by a new worker, also when the worker stops", async () => {
  for (const first of [failed(false), "stop" as const]) {
    const engine = engineOf(1, (worker, job) => (job < 0 ? { type: "started" } : worker === 0 ? first : done));
    await Promise.all(Array.from({ length: 5 }, () => run(engine)));
    assert.equal(engine.pending, 0);
  }
});

test("a job that fails three times, or cannot be done, is given up in words", async () => {
  let tries = 0;
  const tried = (job: number, final: boolean): FromWorker => {
    if (job < 0) return { type: "started" };
    tries++;
    return failed(final);
  };
  const engine = engineOf(2, (_, job) => tried(job, false));
  await assert.rejects(run(engine), /Out of memory/);
  assert.equal(tries, 3);
  const refusing = engineOf(2, (_, job) => tried(job, true));
  await assert.rejects(run(refusing), /Out of memory/);
  assert.equal(tries, 4);
});

test("workers that cannot start are done without; with none left every job is refused", async () => {
  const error = { type: "not started", error: "Out of memory" } as const;
  const some = engineOf(4, (worker, job) => (job >= 0 ? done : worker === 2 ? { type: "started" } : error));
  await Promise.all(Array.from({ length: 5 }, () => run(some)));
  const none = engineOf(4, () => error);
  await assert.rejects(run(none), /no worker can start .Out of memory./);
  await assert.rejects(run(none), /reload this page/);
  assert.equal(none.pending, 0);
});
