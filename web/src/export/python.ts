// The Python that makes the same array, through public names.
import type { Capture } from "../core/capture.ts";
import { lengthOf, positionOf, type Source } from "../core/source.ts";
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

/** The expression that makes a capture: opened from its file, captured again from its model, or its variable. */
function opened(capture: Capture, layer: number): string {
  const { source, origin, variable } = capture.header,
    name = /^[A-Za-z_]\w*$/.test(variable ?? "") ? variable! : null;
  if (source) return `hs.Capture.load(${literal(source)})`;
  if (!origin) return name ?? "cap";
  // A model in memory has the name of its variable, or most likely `model`.
  const model = origin.model === null ? (name ?? "model") : `hs.load(${literal(String(origin.model))})`,
    text = origin.text === null ? "" : `${literal(String(origin.text))}, `;
  return `${model}.capture(${text}layers=[${whole(layer)}])`;
}

/** A comment for a capture that was in memory: what to do in another session. */
function elsewhere(capture: Capture): string {
  const { source, origin } = capture.header,
    name = opened(capture, 0);
  if (source || origin) return "";
  return `# ${name} is the capture in memory; for another session: ${name}.save("${name}.safetensors"), then hs.Capture.load\n`;
}

const MINUS = {
  nothing: "",
  row: "    values -= np.nanmean(values, axis=1, keepdims=True)\n",
  distance:
    "    for d in range(0 if cap.causal else 1 - len(values), len(values)):\n" +
    "        i = np.arange(max(0, d), min(len(values), len(values) + d))\n" +
    "        seen = i[~np.isnan(values[i, i - d])]\n" +
    "        if len(seen):\n" +
    "            values[seen, seen - d] -= values[seen, seen - d].mean()\n",
};

/** Lines that compute the pairs a panel shows; hidden ones are NaN. */
export function pythonLine(source: Source, frame: Frame): string {
  const length = lengthOf(source),
    first = (at: number) => Math.max(0, Math.floor(at)),
    last = (at: number, extent: number) => Math.min(length, Math.ceil(at + extent / frame.pixels - 1e-6));
  const range = (at: number, extent: number) => `${whole(first(at))}:${whole(last(at, extent))}`;
  const position = positionOf(source) === 1 ? "" : `, position=${Number(positionOf(source))}`,
    where = `layer=${whole(source.layer)}, head=${whole(source.head)}`;
  const shown = (of: Capture) => `shown(${opened(of, source.layer)})`;
  return `import headscape as hs
import numpy as np


def shown(cap):
    values = cap.map(${literal(source.quantity)}, ${where}${position}).astype(np.float64)
    values[np.isnan(cap.map(${literal(source.capture.knows("final") ? "final" : source.quantity)}, ${where}))] = np.nan
${MINUS[source.minus]}    return values[${range(frame.query, frame.height)}, ${range(frame.key, frame.width)}]


${elsewhere(source.capture)}values = ${shown(source.capture)}${source.less ? ` - ${shown(source.less)}` : ""}
`;
}
