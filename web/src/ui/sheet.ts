// All heads on one screen, as cards or as a dense sheet: laid out, and walked through with the arrow keys.

import { CARD, type Fit, fit, SHEET } from "../core/layout.ts";
import { type Card, section } from "./cards.ts";
import { h } from "./dom.ts";

/** Titled cards; `layer` is the number that a sheet writes beside them, null where they are of different layers. */
export interface Row {
  title: string;
  layer: number | null;
  cards: Card[];
}

/** Pixels of a cell's digits; a digit is as wide as this part of its height. */
const DIGITS = { least: 9, most: 12, width: 0.62 };

export class Sheet {
  readonly element = h("div", { class: "grid" });
  /** The pictures of all heads of a sheet: one canvas is drawn much faster than one a head. */
  private readonly picture = h("canvas", { class: "picture", "aria-hidden": "true" });
  private readonly places = new Map<Card, { x: number; y: number }>();
  private pixels = 0;
  private readonly shown: Card[] = [];
  private arranged = "";
  private found: Fit = { kind: "cards", size: 0, columns: 0, blocks: 1, wrapped: true };
  private current: Card | null = null;

  constructor(private readonly point: (card: Card | null) => void) {
    this.element.addEventListener("keydown", (event) => this.key(event));
    const find = (event: Event) => {
      const button = (event.target as Element).closest(".card");
      return this.shown.find(({ element }) => element === button) ?? null;
    };
    this.element.addEventListener("focusin", (event) => {
      const card = find(event);
      if (card) this.choose(card);
      this.point(card);
    });
    this.element.addEventListener("pointerover", (event) => this.point(find(event)));
    this.element.addEventListener("pointerleave", () => this.point(null));
  }

  /** Lay rows out in the room that there is; the elements move only when something changed. */
  show(rows: Row[], room: { width: number; height: number }, cards: boolean): Fit {
    const byLayer = rows.every(({ layer }) => layer !== null),
      sizes = rows.map((row) => row.cards.length),
      found = fit(sizes, room.width, room.height, { byLayer, cards });
    const name = JSON.stringify([
      found,
      rows.map(({ title, cards: each }) => [title, each.map(({ layer, head }) => `${layer}.${head}`)]),
    ]);
    if (name !== this.arranged) {
      this.arranged = name;
      this.arrange(rows, found);
    }
    this.writeNumbers(!cards);
    return found;
  }

  private arrange(rows: Row[], found: Fit): void {
    this.found = found;
    this.element.className = `grid ${found.kind}-layout`;
    this.element.dataset.layout = found.kind;
    this.element.style.setProperty("--size", `${found.size}px`);
    this.element.style.setProperty("--columns", String(found.columns));
    this.element.style.setProperty("--blocks", String(found.blocks));
    const focused = document.activeElement;
    this.element.replaceChildren(...this.parts(rows, found));
    this.shown.splice(0, this.shown.length, ...rows.flatMap((row) => row.cards));
    if (!this.current || !this.shown.includes(this.current)) this.current = this.shown[0] ?? null;
    for (const card of this.shown) card.element.tabIndex = card === this.current ? 0 : -1;
    if (focused instanceof HTMLElement && this.element.contains(focused)) focused.focus();
    this.spread(found);
  }

  /** Write the cards' numbers in a sheet's cells, as large as fits; none where they could not be read. */
  private writeNumbers(wanted: boolean): void {
    const longest = Math.max(1, ...this.shown.map(({ value }) => value.textContent?.length ?? 0)),
      size = Math.min(DIGITS.most, Math.floor((this.found.size - 2) / (DIGITS.width * longest)));
    this.element.classList.toggle("numbered", wanted && size >= DIGITS.least);
    this.element.style.setProperty("--digits", `${size}px`);
  }

  /** Where every card of a sheet is, and all pictures there. */
  private spread(found: Fit): void {
    this.places.clear();
    if (found.kind === "cards") return;
    this.element.append(this.picture);
    const box = this.element.getBoundingClientRect(),
      ratio = devicePixelRatio || 1;
    for (const card of this.shown) {
      const { left, top } = card.element.getBoundingClientRect();
      this.places.set(card, { x: Math.round(ratio * (left - box.left)), y: Math.round(ratio * (top - box.top)) });
    }
    this.pixels = Math.round(ratio * found.size);
    this.picture.width = Math.max(0, ...[...this.places.values()].map(({ x }) => x)) + this.pixels;
    this.picture.height = Math.max(0, ...[...this.places.values()].map(({ y }) => y)) + this.pixels;
    this.picture.style.width = `${this.picture.width / ratio}px`;
    this.picture.style.height = `${this.picture.height / ratio}px`;
    for (const card of this.shown) this.put(card);
  }

  /** Draw a card's picture on the sheet; cards show their own. */
  put(card: Card): void {
    const at = this.places.get(card),
      context = at && this.picture.getContext("2d");
    if (!context || !card.painted) return;
    // Cells that are smaller than a pixel are averaged, larger ones stay sharp.
    context.imageSmoothingEnabled = card.canvas.width > this.pixels;
    context.imageSmoothingQuality = "medium";
    context.clearRect(at.x, at.y, this.pixels, this.pixels);
    context.drawImage(card.canvas, at.x, at.y, this.pixels, this.pixels);
  }

  /** Pixels left free at the right, and the size of what stands beside them. */
  roomBeside(): { free: number; size: number } {
    const { size, kind, columns, blocks } = this.found,
      most = Math.max(0, ...[...this.element.querySelectorAll(".cards")].map((e) => e.children.length)),
      across = blocks > 1 ? columns : Math.min(columns, most),
      cards = blocks * across * (size + CARD.gap) + (blocks - 1) * (CARD.between - CARD.gap),
      wide = kind === "cards" ? cards : this.picture.width / (devicePixelRatio || 1);
    return { free: this.element.clientWidth - wide, size };
  }

  /** The card that Tab reaches. */
  get chosen(): Card | null {
    return this.current;
  }

  private parts(rows: Row[], found: Fit): HTMLElement[] {
    if (found.wrapped) return rows.map(({ title, cards }) => section(title, cards));
    const each = Math.ceil(rows.length / found.blocks),
      blocks: HTMLElement[] = [];
    for (let first = 0; first < rows.length; first += each) {
      const some = rows.slice(first, first + each),
        heads = rows[0].cards.map(({ head }) => head),
        every = found.size < 18 ? 4 : 1;
      const top = h(
        "div",
        { class: "heads", "aria-hidden": "true" },
        h("span", { class: "corner" }, "head"),
        ...heads.map((head, n) => h("span", {}, n % every === 0 || every === 1 ? String(head + 1) : "")),
      );
      blocks.push(
        h(
          "div",
          { class: "block" },
          top,
          ...some.map(({ title, layer, cards }) => section(title, cards, String(layer! + 1))),
        ),
      );
    }
    return blocks;
  }

  /** Make a card the one that Tab reaches. */
  choose(card: Card): void {
    if (card === this.current) return;
    if (this.current) this.current.element.tabIndex = -1;
    this.current = card;
    card.element.tabIndex = 0;
  }

  focus(): void {
    this.current?.element.focus();
  }

  private key(event: KeyboardEvent): void {
    const at = this.shown.findIndex(({ element }) => element === event.target);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves: Record<string, () => number> = {
      ArrowLeft: () => at - 1,
      ArrowRight: () => at + 1,
      ArrowUp: () => this.beside(at, -1),
      ArrowDown: () => this.beside(at, 1),
      Home: () => 0,
      End: () => this.shown.length - 1,
    };
    const to = moves[event.key]?.();
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.shown[Math.min(this.shown.length - 1, Math.max(0, to))]?.element.focus();
  }

  /** The card that is nearest above (-1) or below (1). */
  private beside(at: number, way: 1 | -1): number {
    const middles = this.shown.map(({ element }) => {
      const box = element.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    });
    const [x, y] = middles[at];
    let best = at,
      least = Infinity;
    middles.forEach(([x1, y1], n) => {
      const down = way * (y1 - y),
        far = Math.hypot(x1 - x, 1.001 * down);
      if (down > SHEET.least / 2 && far < least) {
        least = far;
        best = n;
      }
    });
    return best;
  }
}
