// The reading view: the running text; the tokens shade by what heads give them from the token pointed at.

import type { Capture } from "../core/capture.ts";
import type { Quantity } from "../core/pack.ts";
import { describe } from "../core/source.ts";
import { number, percent, quotedWord, visible, wordAt } from "../core/text.ts";
import { type App, captureOf, positionFor } from "./app.ts";
import { button, type Choice, check, choice, fresh, h, say, svg } from "./dom.ts";

/** Tokens in the document at once; a longer text is turned over like pages. */
const SHOWN = 4096;
/** Steps of a shade: tokens whose step stays the same are not touched. */
const STEPS = 40;
/** Opacity of the strongest shade on a light page. */
const OPAQUE = 0.6;
const LISTED = 8,
  ARCS = 12;
/** Colours of Okabe and Ito, which colour-blind readers tell apart. */
const HUES = ["0,114,178", "213,94,0", "0,158,115", "204,121,167", "230,159,0", "86,180,233"];
/** Opacity of the strongest shade of each on a dark page, as much as the light text on it allows. */
const DARK = [0.9, 0.75, 0.7, 0.65, 0.55, 0.55];
/** Pixels between arcs of different heads, at their ends and at their tops. */
const APART = 5;
/** Pixels that an arc keeps from the edge of its box: half of the widest line. */
const EDGE = 3;
export const MOST_HEADS = HUES.length;

interface Head {
  layer: number;
  head: number;
}

/** What one head gives the tokens of a text; null while it is computed. */
interface Given {
  first: number;
  values: ArrayLike<number>;
}

/** Where shades start and end, the same on all pages. */
interface Range {
  low: number;
  high: number;
}

/** How strong a value's shade is, 0 to 1: weights by the square root, so that small ones are seen; scores evenly. */
export function shade(quantity: Quantity, value: number, { low, high }: Range): number {
  if (Number.isNaN(value) || !(high > low)) return 0;
  const part = Math.min(1, Math.max(0, (value - low) / (high - low)));
  return quantity === "weights" ? Math.sqrt(part) : part;
}

const shown = (quantity: Quantity, value: number) => (quantity === "weights" ? percent(value) : number(value, 3));

/** One copy of the text: with the dial as it stands, or with position off. */
class Page {
  readonly element: HTMLElement;
  readonly text: HTMLElement;
  private readonly title = h("h3", {});
  private readonly lists = h("div", { class: "lists" });
  private readonly arcs = svg("svg", { class: "arcs", "aria-hidden": "true" });
  private tokens: HTMLElement[] = [];
  private drawn = "";
  private listed = "";
  private shades = new Float64Array(0);
  private marked = -1;

  constructor(label: string) {
    this.text = h("div", {
      class: "text",
      role: "listbox",
      tabindex: 0,
      "aria-label": label,
    });
    this.element = h("div", { class: "page" }, this.title, this.text, this.lists);
  }

  /** Put the tokens of a part of the text into the document. */
  build(capture: Capture, first: number): void {
    const name = `${capture.id}|${first}`;
    if (name === this.drawn) return;
    this.drawn = name;
    const pieces = capture.header.pieces!.slice(first, first + SHOWN),
      stem = fresh("token");
    this.tokens = pieces.map((piece, n) => {
      const broken = piece.replace(/\r?\n/g, "⏎\n").replace(/\t/g, "⇥\t");
      return h(
        "span",
        { role: "option", id: `${stem}-${n}`, "data-token": first + n, "aria-selected": "false" },
        broken,
      );
    });
    this.shades = new Float64Array(pieces.length);
    this.marked = -1;
    this.text.replaceChildren(...this.tokens, this.arcs as unknown as Node);
  }

  /** Shade tokens and draw arcs. */
  paint(
    title: string,
    first: number,
    token: number,
    locked: boolean,
    heads: (Given | null)[],
    ranges: Range[],
    quantity: Quantity,
    marks: "shading" | "arcs",
  ): void {
    say(this.title, title);
    const here = token - first;
    if (this.marked !== here) {
      this.tokens[this.marked]?.classList.remove("at");
      this.tokens[this.marked]?.setAttribute("aria-selected", "false");
      this.tokens[here]?.classList.add("at");
      this.tokens[here]?.setAttribute("aria-selected", "true");
      this.marked = here;
    }
    if (this.tokens[here]) this.text.setAttribute("aria-activedescendant", this.tokens[here].id);
    else this.text.removeAttribute("aria-activedescendant");
    this.text.classList.toggle("locked", locked);
    const shading = marks === "shading";
    for (let n = 0; n < this.tokens.length; n++) {
      let key = 0;
      if (shading)
        for (let k = heads.length - 1; k >= 0; k--) {
          const given = heads[k],
            value = given ? (given.values[first + n - given.first] ?? NaN) : NaN;
          key = key * (STEPS + 1) + Math.round(STEPS * shade(quantity, value, ranges[k]));
        }
      if (key === this.shades[n]) continue;
      this.shades[n] = key;
      this.tokens[n].style.background = background(key, heads.length);
    }
    this.drawArcs(first, token, heads, ranges, quantity, marks === "arcs");
  }

  private drawArcs(
    first: number,
    token: number,
    heads: (Given | null)[],
    ranges: Range[],
    quantity: Quantity,
    on: boolean,
  ): void {
    const from = this.tokens[token - first];
    this.arcs.replaceChildren();
    // Arcs of the first line have room above it.
    this.text.classList.toggle("arched", on);
    // The picture must not keep the text as tall as it was.
    this.arcs.setAttribute("height", "0");
    if (!on || !from) return;
    this.arcs.setAttribute("width", String(this.text.scrollWidth));
    this.arcs.setAttribute("height", String(this.text.scrollHeight));
    const box = this.text.getBoundingClientRect(),
      left = box.left + this.text.clientLeft - this.text.scrollLeft,
      top = box.top + this.text.clientTop - this.text.scrollTop;
    // A token whose space ends the line before has two rectangles; the word is in the wider one.
    const middle = (each: HTMLElement) => {
      const word = [...each.getClientRects()].reduce((a, b) => (b.width > a.width ? b : a));
      return [word.left + word.width / 2 - left, word.top + 2 - top];
    };
    const start = middle(from);
    heads.forEach((given, k) => {
      if (!given) return;
      const aside = APART * (k - (heads.length - 1) / 2),
        x0 = start[0] + aside,
        y0 = start[1];
      for (const at of greatest(given, ARCS)) {
        const to = this.tokens[at - first],
          part = shade(quantity, given.values[at - given.first], ranges[k]);
        if (!to || to === from || part < 0.1) continue;
        const [middle1, y1] = middle(to),
          x1 = middle1 + aside,
          rise = Math.min(60, Math.hypot(x1 - x0, y1 - y0) / 4) + APART * k,
          high = Math.max(EDGE + APART * k, Math.min(y0, y1) - 8 - rise);
        const arc = { d: `M${x0},${y0}Q${(x0 + x1) / 2},${high} ${x1},${y1}`, class: "arc", stroke: `rgb(${HUES[k]})` };
        this.arcs.append(svg("path", { ...arc, "stroke-width": (0.5 + 4 * part).toFixed(1) }));
      }
    });
  }

  /** The tokens that get most, as words with their numbers. */
  list(capture: Capture, token: number, names: string[], heads: (Given | null)[], quantity: Quantity): void {
    const rows = heads.map((given) => (given ? greatest(given, LISTED) : []));
    const text = JSON.stringify([
      names,
      rows,
      quantity,
      heads.map((given, k) => rows[k].map((at) => given!.values[at - given!.first])),
    ]);
    if (text === this.listed) return;
    this.listed = text;
    const pieces = capture.header.pieces ?? [];
    this.lists.replaceChildren(
      ...heads.flatMap((given, k) =>
        rows[k].length === 0 || !given
          ? []
          : [
              h(
                "table",
                { class: "top-keys" },
                h("caption", {}, swatch(k), ` ${names[k]}`),
                h(
                  "tbody",
                  {},
                  ...rows[k].map((at) => line(pieces, at, token, quantity, given.values[at - given.first])),
                ),
              ),
            ],
      ),
    );
  }
}

/** A row of the list: the token, the word it is a part of, how far it is and its value. */
function line(pieces: string[], at: number, token: number, quantity: Quantity, value: number): HTMLElement {
  const word = wordAt(pieces, at),
    piece = pieces[at] ?? "";
  const part =
    word !== piece.trim() && /[\p{L}\p{N}]/u.test(piece)
      ? h("span", { class: "small" }, ` in “${visible(word)}”`)
      : null;
  const away = token - at,
    place = away === 0 ? "itself" : away > 0 ? `${away} before` : `${-away} after`;
  return h(
    "tr",
    { "data-token": at },
    h("th", { scope: "row" }, quotedWord(piece) || String(at), part),
    h("td", { class: "small" }, place),
    h("td", {}, shown(quantity, value)),
  );
}

function swatch(k: number): HTMLElement {
  const mark = h("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = `rgb(${HUES[k]})`;
  return mark;
}

/** The shades in `key`, one band for each head, from top to bottom. */
function background(key: number, heads: number): string {
  if (key === 0) return "";
  const bands: string[] = [];
  for (let k = 0, rest = key; k < heads; k++, rest = Math.floor(rest / (STEPS + 1))) {
    const part = (rest % (STEPS + 1)) / STEPS,
      dark = (part * (DARK[k] - OPAQUE)).toFixed(3),
      colour = `rgba(${HUES[k]},calc(${(part * OPAQUE).toFixed(3)} + var(--dark) * ${dark}))`;
    if (heads === 1) return colour;
    bands.push(`${colour} ${(100 * k) / heads}% ${(100 * (k + 1)) / heads}%`);
  }
  return `linear-gradient(${bands.join(",")})`;
}

/** The tokens with the greatest values, greatest first. */
export function greatest({ first, values }: Given, count: number): number[] {
  const found: number[] = [];
  for (let n = 0; n < values.length; n++) {
    const value = values[n];
    if (Number.isNaN(value) || (found.length === count && !(value > values[found[count - 1]]))) continue;
    let at = found.length;
    while (at > 0 && values[found[at - 1]] < value) at--;
    found.splice(at, 0, n);
    if (found.length > count) found.pop();
  }
  return found.map((n) => n + first);
}

export class Reading {
  readonly element: HTMLElement;
  private readonly pages = [new Page("Text"), new Page("Text beside it")];
  private readonly texts = h("div", { class: "texts" });
  private readonly none = h("p", {});
  private readonly side: Choice<"to" | "from">;
  private readonly marks: Choice<"shading" | "arcs">;
  private readonly beside: { element: HTMLElement; box: HTMLInputElement };
  private readonly add: Choice<string>;
  private readonly chips = h("ul", { class: "chips", "aria-label": "Heads shown" });
  private readonly hint = h("p", { class: "small" });
  private readonly spoken = h("p", { class: "unseen", role: "status" });
  private readonly turn: HTMLElement;
  private readonly where = h("span", { class: "small" });
  private chipped = "";
  private hovered: number | null = null;
  private first = 0;
  /** Whether the next drawing is told to screen readers: what the keyboard does is, hovering is not. */
  private tell = false;

  constructor(private readonly app: App) {
    const set = (patch: Partial<App["store"]["state"]["reading"]>) => app.store.reading(patch);
    this.side = choice(
      "A token",
      [
        ["to", "looks at"],
        ["from", "is looked at by"],
      ],
      (side) => set({ side }),
    );
    this.marks = choice(
      "Marks",
      [
        ["shading", "shading"],
        ["arcs", "arcs"],
      ],
      (marks) => set({ marks }),
    );
    this.beside = check("", (beside) => set({ beside }));
    this.add = choice<string>("Add a head", [], (name) => {
      const [layer, head] = name.split(".").map(Number);
      if (name) set({ heads: [...app.store.state.reading.heads, { layer, head }] });
    });
    this.turn = h(
      "div",
      { class: "controls" },
      button("Earlier", () => this.page(-1)),
      button("Later", () => this.page(1)),
      this.where,
    );
    this.texts.append(...this.pages.map(({ element }) => element));
    for (const { text } of this.pages) this.listen(text);
    this.element = h(
      "section",
      { class: "reading", "aria-label": "The text" },
      h("h2", { class: "unseen" }, "The text"),
      h("div", { class: "controls" }, this.side.element, this.marks.element, this.beside.element, this.add.element),
      this.chips,
      this.none,
      this.hint,
      this.turn,
      this.texts,
      this.spoken,
    );
  }

  focus(): void {
    this.pages[0].text.focus();
  }

  private listen(text: HTMLElement): void {
    const at = (event: Event) => {
      const token = (event.target as HTMLElement).dataset.token;
      return token === undefined ? null : Number(token);
    };
    text.addEventListener("pointerover", (event) => this.hover(at(event) ?? this.hovered));
    text.addEventListener("focus", () => this.hover(this.hovered ?? this.first));
    text.addEventListener("click", (event) => {
      const token = at(event);
      if (token !== null) this.lock(token);
    });
    text.addEventListener("keydown", (event) => this.key(event));
  }

  private hover(token: number | null): void {
    if (this.hovered === token) return;
    this.hovered = token;
    this.app.draw();
  }

  /** Lock a token; locking the locked one unlocks it. */
  private lock(token: number): void {
    const { reading } = this.app.store.state;
    this.tell = true;
    this.hovered = token;
    this.app.store.reading({ token: reading.token === token ? null : token });
  }

  private key(event: KeyboardEvent): void {
    const last = (captureOf(this.app)?.length ?? 1) - 1,
      token = this.token(last + 1);
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -10,
      ArrowDown: 10,
      Home: -last,
      End: last,
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) {
      const next = Math.min(last, Math.max(0, token + steps[event.key]));
      this.tell = true;
      this.hovered = next;
      if (this.app.store.state.reading.token !== null) this.app.store.reading({ token: next });
      this.app.draw();
    } else if (event.key === "Enter" || event.key === " ") this.lock(token);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private page(by: number): void {
    const last = (captureOf(this.app)?.length ?? 1) - 1;
    this.first = Math.min(Math.floor(last / SHOWN) * SHOWN, Math.max(0, this.first + by * SHOWN));
    this.hovered = null;
    this.app.draw();
  }

  /** The token looked at: the locked one, otherwise the one pointed at last, at first that of the locked pair or the end of the text. */
  private token(length: number): number {
    const { reading, locked } = this.app.store.state,
      { token, side } = reading,
      chosen = token ?? this.hovered ?? (side === "to" ? locked?.query : locked?.key) ?? null;
    if (chosen !== null && chosen < length) return chosen;
    return side === "to" ? Math.min(length, this.first + SHOWN) - 1 : this.first;
  }

  /** What a head gives all tokens from the one looked at, or takes from. */
  private given(capture: Capture, { layer, head }: Head, token: number, position: number): Given | null {
    const { quantity, reading } = this.app.store.state,
      { rows } = this.app;
    if (reading.side === "from") return rows.column(capture, layer, head, quantity, token, token, position);
    const row = rows.row(capture, layer, head, token, token, position);
    return row && { first: row.first, values: row[quantity] };
  }

  private drawControls(capture: Capture, heads: Head[]): void {
    const { reading } = this.app.store.state,
      { layers, heads: ids } = capture.header;
    this.side.show(reading.side);
    this.marks.show(reading.marks);
    this.beside.box.checked = reading.beside;
    // Where position cannot be scaled there is nothing to show beside the text.
    this.beside.element.hidden = capture.fixedPosition(this.app.store.state.layer) !== null;
    const free = layers.flatMap((layer) =>
      ids.flatMap((head): [string, string][] =>
        heads.some((each) => each.layer === layer && each.head === head)
          ? []
          : [[`${layer}.${head}`, `layer ${layer + 1}, head ${head + 1}`]],
      ),
    );
    this.add.options([["", "choose"], ...free]);
    this.add.show("");
    this.add.element.hidden = heads.length >= MOST_HEADS || free.length === 0;
    const name = JSON.stringify(heads);
    if (name === this.chipped) return;
    this.chipped = name;
    this.chips.replaceChildren(
      ...heads.map(({ layer, head }, k) => {
        const title = `layer ${layer + 1}, head ${head + 1}`,
          remove = () => this.app.store.reading({ heads: reading.heads.filter((_, n) => n !== k - 1) });
        return h(
          "li",
          {},
          swatch(k),
          ` ${title} `,
          k ? button("×", remove, { "aria-label": `Remove ${title}` }) : null,
        );
      }),
    );
  }

  draw(): void {
    const { app } = this,
      { state } = app.store,
      { reading, quantity } = state,
      capture = captureOf(app);
    if (!capture) return;
    const known = (capture.header.pieces?.length ?? 0) > 0;
    this.none.hidden = known;
    this.texts.hidden = this.chips.hidden = this.hint.hidden = !known;
    this.element.dataset.complete = "true";
    say(
      this.hint,
      reading.token === null
        ? "Point at a token, or move to it with the arrow keys. A click or Enter locks it."
        : "Locked. Esc, or a click on the token, releases it.",
    );
    say(
      this.none,
      known
        ? ""
        : `This capture has no text: it was made from ${capture.unit}s without a tokenizer. Its maps show them by number.`,
    );
    const heads = [state, ...reading.heads].map(({ layer, head }) => ({ layer, head }));
    this.drawControls(capture, heads);
    this.turn.hidden = !known || capture.length <= SHOWN;
    if (!known) return;
    const token = this.token(capture.length),
      off = reading.beside && !capture.fixedPosition(state.layer);
    if (token < this.first || token >= this.first + SHOWN) this.first = Math.floor(token / SHOWN) * SHOWN;
    const last = Math.min(capture.length, this.first + SHOWN);
    say(this.where, `Tokens ${this.first} to ${last - 1} of ${capture.length}`);
    this.texts.classList.toggle("two", off);
    this.pages[1].element.hidden = !off;
    const pages = off ? this.pages : [this.pages[0]];
    const beside = besideOf(positionFor(app, state.layer, state.head)) ? "position on" : "position off";
    say(this.beside.element.lastElementChild!, `Beside it with ${beside}`);
    this.pages[1].text.ariaLabel = `Text with ${beside}`;
    const given = pages.map((_, n) =>
      heads.map((each) => {
        const dial = positionFor(app, each.layer, each.head),
          position = n ? besideOf(dial) : dial;
        return this.given(capture, each, token, capture.fixedPosition(each.layer) ? 1 : position);
      }),
    );
    const ranges = heads.map((_, k) =>
      rangeOf(
        quantity,
        given.map((page) => page[k]),
      ),
    );
    const complete = given.flat().every((each) => each !== null);
    this.element.dataset.complete = String(complete);
    this.element.dataset.token = String(token);
    const verb = reading.side === "to" ? "looks at" : "is looked at by",
      said = `${quotedWord(capture.piece(token))} (${token})`,
      strongest = reading.marks === "arcs" ? "thickest arc" : "strongest shade";
    const names = heads.map(
      ({ layer, head }, k) =>
        `${said} ${verb}, layer ${layer + 1}, head ${head + 1}; ${strongest} ${shown(quantity, ranges[k].high)}`,
    );
    pages.forEach((page, n) => {
      page.build(capture, this.first);
      const dial = positionFor(app, state.layer, state.head),
        position = n ? besideOf(dial) : dial,
        on = n && position === 1 && quantity !== "content" ? ", position on" : "",
        title = describe(quantity, "nothing", quantity === "content" ? 1 : position) + on;
      page.paint(title, this.first, token, reading.token !== null, given[n], ranges, quantity, reading.marks);
      page.list(capture, token, names, given[n], quantity);
    });
    if (this.tell && given[0][0]) {
      this.tell = false;
      const best = greatest(given[0][0], 3).map(
        (at) => `${quotedWord(capture.piece(at))} ${shown(quantity, given[0][0]!.values[at - given[0][0]!.first])}`,
      );
      say(this.spoken, `${said} ${verb} ${best.join(", ")}${reading.token !== null ? ". Locked." : ""}`);
    }
  }
}

/** What the text beside shows: position off, or on where the dial has it off. */
const besideOf = (dial: number): number => (dial === 0 ? 1 : 0);

/** From 0 to the greatest weight, or from the least to the greatest score, on all pages. */
function rangeOf(quantity: Quantity, pages: (Given | null)[]): Range {
  let low = quantity === "weights" ? 0 : Infinity,
    high = -Infinity;
  for (const given of pages)
    for (let n = 0; given && n < given.values.length; n++) {
      const value = given.values[n];
      if (value < low) low = value;
      if (value > high) high = value;
    }
  return { low, high };
}
