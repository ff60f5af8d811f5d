// A poster: the pictures of all heads on one sheet, layers down and heads across, with a title and a legend.
// Many layers go on in further blocks beside the first.

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
  /** Between two blocks: room for the numbers of layers. */
  BETWEEN = 30,
  /** Width over height that a poster comes near to. */
  SHAPE = 4 / 3,
  /** Least side of a picture with a number on it, and of any other. */
  NUMBERED = 44,
  LEAST = 32;

/** In how many blocks side by side a poster of layers and heads is laid out. */
export function posterBlocks(layers: number, heads: number, step: number): number {
  const off = (blocks: number) => {
    const width = LEFT + blocks * (heads * step + BETWEEN) - BETWEEN + RIGHT,
      height = TOP + Math.ceil(layers / blocks) * step + BELOW;
    return Math.abs(Math.log(width / height / SHAPE));
  };
  let best = 1;
  for (let blocks = 2; blocks <= layers; blocks++) if (off(blocks) < off(best)) best = blocks;
  return best;
}

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
    blocks = posterBlocks(layers.length, heads.length, step),
    each = Math.ceil(layers.length / blocks),
    wide = heads.length * step,
    block = (layer: number) => Math.floor(layers.indexOf(layer) / each),
    across = block(layers[layers.length - 1]) * (wide + BETWEEN) + wide,
    down = each * step,
    width = Math.max(LEFT + across + RIGHT, 560),
    x = (layer: number, head: number) => LEFT + block(layer) * (wide + BETWEEN) + heads.indexOf(head) * step,
    y = (layer: number) => TOP + (layers.indexOf(layer) % each) * step;
  const text = (at: { x: number; y: number }, words: string, size: number, anchor: "start" | "middle" | "end") =>
    ({ kind: "text", ...at, text: words, size, anchor }) as const;
  const every = side < 24 ? 2 : 1,
    shapes: Shape[] = [
      text({ x: LEFT, y: 30 }, title, 20, "start"),
      text({ x: LEFT, y: 50 }, note, 11, "start"),
      { ...text({ x: 14, y: TOP + down / 2 }, "layer", 10, "middle"), turned: true },
    ];
  for (const layer of layers) {
    if (y(layer) === TOP) {
      shapes.push(text({ x: x(layer, heads[0]) + wide / 2, y: TOP - 20 }, "head", 10, "middle"));
      heads.forEach((head, n) => {
        if (n % every) return;
        shapes.push(text({ x: x(layer, head) + side / 2, y: TOP - 6 }, String(head + 1), 9, "middle"));
      });
    }
    shapes.push(text({ x: x(layer, heads[0]) - 6, y: y(layer) + side / 2 + 3 }, String(layer + 1), 9, "end"));
  }
  // One picture, so that an SVG of 1,024 heads stays small.
  const sheet = document.createElement("canvas"),
    context = sheet.getContext("2d")!;
  sheet.width = 2 * across;
  sheet.height = 2 * down;
  context.imageSmoothingEnabled = false;
  for (const { layer, head, picture } of pictures)
    context.drawImage(picture, 2 * (x(layer, head) - LEFT), 2 * (y(layer) - TOP), 2 * side, 2 * side);
  shapes.push({ kind: "image", x: LEFT, y: TOP, width: across, height: down, canvas: sheet });
  for (const { layer, head, text: words } of pictures)
    if (words) {
      const at = { x: x(layer, head) + side / 2, y: y(layer) + side / 2 + 3 };
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
