// The Python that makes the same array.
import { type Capture } from "../capture.ts";
import { lengthOf, type Source } from "../source.ts";
import { type Frame } from "../ui/draw.ts";

/** A Python string literal. */
export const literal = (text: string) => `"${text.replace(/[\\"]/g, "\\$&").replace(/\n/g, "\\n")}"`;

/** Lines that compute the pairs a panel shows, in float64. */
export function pythonLine(source: Source, frame: Frame): string {
  const length = lengthOf(source),
    first = (at: number) => Math.max(0, Math.floor(at)),
    last = (at: number, extent: number) => Math.min(length, Math.ceil(at + extent / frame.pixels - 1e-6));
  const range = (at: number, extent: number) => `slice(${first(at)}, ${last(at, extent)})`;
  const call = (capture: Capture) =>
    `Tiles(open_pack(${literal(capture.header.source ?? `${capture.title}.safetensors`)})).values(${source.layer}, ${source.head}, "${source.quantity}", "${source.minus}", ${range(frame.query, frame.height)}, ${range(frame.key, frame.width)})`;
  const imports = "from headscape.arrays.pack import open_pack\nfrom headscape.page.tiles import Tiles\n";
  return `${imports}values = ${call(source.capture)}${source.less ? ` - ${call(source.less)}` : ""}`;
}
