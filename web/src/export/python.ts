// The Python that makes the same array.
import type { Capture } from "../core/capture.ts";
import { lengthOf, type Source } from "../core/source.ts";
import type { Frame } from "../ui/draw.ts";

/** A Python string literal in ASCII: JSON's escapes are Python's, and characters past U+FFFF have one escape. */
export const literal = (text: string) =>
  JSON.stringify(text).replace(/[^ -~]/gu, (letter) => {
    const code = letter.codePointAt(0)!,
      digits = code > 0xffff ? 8 : 4;
    return `\\${code > 0xffff ? "U" : "u"}${code.toString(16).padStart(digits, "0")}`;
  });

/** A Python int. */
const whole = (value: number) => String(Math.trunc(Number(value)));

/** Lines that compute the pairs a panel shows, in float64. */
export function pythonLine(source: Source, frame: Frame): string {
  const length = lengthOf(source),
    first = (at: number) => Math.max(0, Math.floor(at)),
    last = (at: number, extent: number) => Math.min(length, Math.ceil(at + extent / frame.pixels - 1e-6));
  const range = (at: number, extent: number) => `slice(${whole(first(at))}, ${whole(last(at, extent))})`;
  const call = (capture: Capture) =>
    `Tiles(open_pack(${literal(capture.header.source ?? `${capture.title}.safetensors`)})).values(${whole(source.layer)}, ${whole(source.head)}, ${literal(source.quantity)}, ${literal(source.minus)}, ${range(frame.query, frame.height)}, ${range(frame.key, frame.width)})`;
  const imports = "from headscape.captures.capture_file import open_pack\nfrom headscape.viewer.tiles import Tiles\n";
  return `${imports}values = ${call(source.capture)}${source.less ? ` - ${call(source.less)}` : ""}`;
}
