// A film of the view over training steps: every step's picture, as GIF or WebM.

import type { App } from "../ui/app.ts";
import { stepsOf } from "../ui/topbar.ts";
import { toGif } from "./gif.ts";
import { makeScene } from "./picture.ts";
import { type Scene, toCanvas } from "./scene.ts";

/** Milliseconds that each step is shown. */
export const SHOWN = 700;

/** Pictures of every step, in training order; the view is the one before when they are done. */
async function pictures(app: App, tell: (done: number, of: number) => void): Promise<HTMLCanvasElement[]> {
  const steps = stepsOf(app),
    before = app.store.state.capture,
    scenes: Scene[] = [];
  try {
    for (const step of steps) {
      app.store.set({ capture: step.id });
      scenes.push(await makeScene(app));
      tell(scenes.length, steps.length);
    }
  } finally {
    app.store.set({ capture: before });
  }
  // Captions may differ in lines, but frames are equally large.
  const height = Math.max(...scenes.map((scene) => scene.height));
  return scenes.map((scene) => toCanvas({ ...scene, height }, 1));
}

export async function toFilm(app: App, kind: "gif" | "webm", tell: (done: number, of: number) => void): Promise<Blob> {
  const frames = await pictures(app, tell),
    { width, height } = frames[0];
  if (kind === "gif") {
    const pixels = frames.map((frame) => frame.getContext("2d")!.getImageData(0, 0, width, height).data);
    return toGif(pixels, width, height, SHOWN);
  }
  return record(frames, width, height);
}

/** Play the frames on a canvas and record it, in the time that they take. */
async function record(frames: HTMLCanvasElement[], width: number, height: number): Promise<Blob> {
  if (typeof MediaRecorder === "undefined" || !MediaRecorder.isTypeSupported("video/webm"))
    throw new Error("this browser records no WebM; the GIF shows the same");
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d")!,
    recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: "video/webm", videoBitsPerSecond: 8e6 }),
    parts: Blob[] = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((done) => (recorder.onstop = done));
  recorder.start();
  for (const frame of frames)
    for (const start = performance.now(); performance.now() - start < SHOWN; ) {
      context.drawImage(frame, 0, 0); // drawn again and again: a still canvas gives no frames
      await new Promise((done) => setTimeout(done, 33));
    }
  recorder.stop();
  await ended;
  return new Blob(parts, { type: "video/webm" });
}
