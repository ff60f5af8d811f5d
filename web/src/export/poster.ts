// A poster: the pictures of all heads on one sheet, layers down and heads across, with a title and a legend.

import type { Scale } from "../core/colour.ts";
import { labels, legendColours, ownLabels } from "../ui/legend.ts";
import { PAPERS, type Scene, type Shape } from "./scene.ts";

export interface Poster {
  title: string;
  note: string;
  legend: { title: string; scale: Scale | null; own: boolean };
  pictures: { layer: number; head: number; picture: HTMLCanvasElement; text: string }[];
  paper: "light" | "dark";
}

const LEFT = 44,
  RIGHT = 20,
  TOP = 92,
  BELOW = 74,
  GAP = 2,
  /** Least side of a picture with a number on it, and of any other. */
  NUMBERED = 44,
  LEAST = 32;

/** The poster as a scene. Pictures are as many whole pixels a cell as fit; they depend on no window. */
export function posterScene({ title, note, legend, pictures, paper }: Poster): Scene {
  const layers = [...new Set(pictures.map(({ layer }) => layer))].sort((a, b) => a - b),
    heads = [...new Set(pictures.map(({ head }) => head))].sort((a, b) => a - b),
    cells = Math.max(...pictures.map(({ picture }) => picture.width)),
    numbered = pictures.some(({ text }) => text !== ""),
    // A PNG has two pixels a unit.
    most = heads.length > 16 ? 64 : heads.length > 8 ? 128 : 256,
    side = numbered ? NUMBERED : Math.max(LEAST, (cells * Math.max(1, Math.floor(most / cells))) / 2);
  const step = side + GAP,
    across = heads.length * step,
    down = layers.length * step,
    width = Math.max(LEFT + across + RIGHT, 560),
    x = (head: number) => LEFT + heads.indexOf(head) * step,
    y = (layer: number) => TOP + layers.indexOf(layer) * step;
  const text = (at: { x: number; y: number }, words: string, size: number, anchor: "start" | "middle" | "end") =>
    ({ kind: "text", ...at, text: words, size, anchor }) as const;
  const every = side < 24 ? 2 : 1,
    shapes: Shape[] = [
      text({ x: LEFT, y: 30 }, title, 20, "start"),
      text({ x: LEFT, y: 50 }, note, 11, "start"),
      text({ x: LEFT + across / 2, y: TOP - 20 }, "head", 10, "middle"),
      { ...text({ x: 14, y: TOP + down / 2 }, "layer", 10, "middle"), turned: true },
    ];
  heads.forEach((head, n) => {
    if (n % every === 0) shapes.push(text({ x: x(head) + side / 2, y: TOP - 6 }, String(head + 1), 9, "middle"));
  });
  for (const layer of layers)
    shapes.push(text({ x: LEFT - 6, y: y(layer) + side / 2 + 3 }, String(layer + 1), 9, "end"));
  // One picture, so that an SVG of 1,024 heads stays small.
  const sheet = document.createElement("canvas"),
    context = sheet.getContext("2d")!;
  sheet.width = 2 * across;
  sheet.height = 2 * down;
  context.imageSmoothingEnabled = false;
  for (const { layer, head, picture } of pictures)
    context.drawImage(picture, 2 * (x(head) - LEFT), 2 * (y(layer) - TOP), 2 * side, 2 * side);
  shapes.push({ kind: "image", x: LEFT, y: TOP, width: across, height: down, canvas: sheet });
  for (const { layer, head, text: words } of pictures)
    if (words) {
      const at = { x: x(head) + side / 2, y: y(layer) + side / 2 + 3 };
      shapes.push({ ...text(at, words, 9, "middle"), halo: true });
    }
  if (legend.scale) shapes.push(...legendShapes(legend, TOP + down + 22));
  return { width, height: TOP + down + BELOW, ...PAPERS[paper], shapes };
}

function legendShapes({ title, scale, own }: Poster["legend"], y: number): Shape[] {
  const bar = document.createElement("canvas"),
    long = 320;
  bar.width = 256;
  bar.height = 1;
  const pixels = new Uint8ClampedArray(legendColours(scale!, own, bar.width).buffer);
  bar.getContext("2d")!.putImageData(new ImageData(pixels, bar.width), 0, 0);
  const words = own ? ownLabels(scale!) : labels(scale!);
  return [
    { kind: "image", x: LEFT, y, width: long, height: 10, canvas: bar },
    { kind: "frame", x: LEFT, y, width: long, height: 10 },
    { kind: "text", x: LEFT, y: y - 6, text: title, size: 11, anchor: "start" },
    ...words.map(
      (word): Shape => ({
        kind: "text",
        x: LEFT + long * word.at,
        y: y + 22,
        text: word.text,
        size: 9,
        anchor: word.at === 0 ? "start" : word.at === 1 ? "end" : "middle",
      }),
    ),
  ];
}
