// Numbers and tokens as text.

/** A number with some significant digits, without exponents where they are not needed. */
export function number(value: number, digits = 4): string {
  if (Number.isNaN(value)) return "hidden";
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4)
    return Number(value.toPrecision(digits)).toExponential().replace("e+", "e").replaceAll("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** A number in few characters, for small cells: two digits that count, and all digits before the point. */
export function brief(value: number): string {
  if (Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  return size >= 10 && size < 1e6 ? number(Math.round(value), 6) : number(value, 2);
}

/** A number as Python's format prints it: .2f, .3g or +.4f; a dash where there is none. */
export function formatted(value: number | null, form: string): string {
  if (value === null || Number.isNaN(value)) return "–";
  const [, sign = "", digits = "3", kind = "g"] = /^(\+?)\.(\d+)([fg])$/.exec(form) ?? [];
  const text = kind === "f" ? value.toFixed(Number(digits)) : String(Number(value.toPrecision(Number(digits))));
  return (sign && value >= 0 ? "+" : "") + text.replaceAll("-", "−");
}

/** A token with its white space made visible. */
export function visible(piece: string): string {
  return piece.replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·");
}

/** A share in percent, with two digits that count. */
export function percent(share: number): string {
  if (Number.isNaN(share)) return "hidden";
  return `${share !== 0 && share < 1e-5 ? "< 0.001" : String(Number((100 * share).toPrecision(share >= 0.1 ? 3 : 2)))}%`;
}

/** The word that a token is a part of: its neighbours up to the next white space, without white space. */
export function wordAt(pieces: string[], at: number): string {
  const reach = 12;
  let first = at,
    last = at;
  if (!/\S/.test(pieces[at] ?? "")) return "";
  while (at - first < reach && first > 0 && !/^\s/.test(pieces[first]) && !/\s$/.test(pieces[first - 1])) first--;
  while (last - at < reach && last < pieces.length - 1 && !/\s$/.test(pieces[last]) && !/^\s/.test(pieces[last + 1]))
    last++;
  return pieces
    .slice(first, last + 1)
    .join("")
    .trim();
}

/** A token in quotation marks, for sentences. */
export function quoted(piece: string): string {
  return piece ? `“${visible(piece)}”` : "";
}

/** A token in quotation marks without the white space around it, unless it is nothing else. */
export function quotedWord(piece: string): string {
  return quoted(piece.trim() || piece);
}

/** Round steps 1, 2, 5, 10 ... : the least that is at least `least`. */
export function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-300)));
  for (const factor of [1, 2, 5, 10]) if (factor * power >= least * 0.999) return factor * power;
  return 10 * power;
}
