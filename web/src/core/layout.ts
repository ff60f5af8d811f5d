// How large heads are drawn so that all of them fit on one screen: cards when there are few, a dense sheet when many.

/** Pixels around what is drawn of a head. */
export const CARD = { gap: 8, text: 50, title: 26, between: 16, least: 104, most: 340 };
export const SHEET = { gap: 2, label: 26, heading: 18, between: 14, least: 10, most: 96 };

/** How much larger heads must be for a layout that is harder to read than a layer a row. */
const WORTH = 1.3;

export interface Fit {
  kind: "cards" | "sheet";
  /** Width of a card, or side of a sheet's cell. */
  size: number;
  /** Columns of a layer's cards or cells, or of a group's. */
  columns: number;
  /** Layers side by side; of a sheet the blocks of layers. */
  blocks: number;
  /** Whether the cells of a section go on in further rows; otherwise a layer of a sheet is one row. */
  wrapped: boolean;
}

/** The largest cards in columns of a section, with sections side by side; null where they do not fit. */
function fitCards(sections: number[], width: number, height: number, blocks: number): Fit | null {
  const across = Math.floor((width - (blocks - 1) * CARD.between) / blocks),
    /** Sections beside each other are as high as the highest of them. */
    rows = (columns: number) =>
      Array.from({ length: Math.ceil(sections.length / blocks) }, (_, row) =>
        Math.ceil(Math.max(...sections.slice(row * blocks, (row + 1) * blocks)) / columns),
      );
  let best: Fit | null = null;
  for (let columns = 1; columns <= Math.max(...sections); columns++) {
    const widest = Math.floor((across + CARD.gap) / columns) - CARD.gap,
      lines = rows(columns),
      count = lines.reduce((sum, each) => sum + each, 0),
      highest = Math.floor((height - lines.length * CARD.title) / count) - CARD.text - CARD.gap,
      size = Math.min(widest, highest, CARD.most);
    if (size >= CARD.least && size > (best?.size ?? 0)) best = { kind: "cards", size, columns, blocks, wrapped: true };
  }
  return best;
}

/** Cards in rows of layers, or with layers side by side where they are then much larger. */
function fitSections(sections: number[], width: number, height: number): Fit | null {
  let best = fitCards(sections, width, height, 1);
  for (let blocks = 2; blocks <= sections.length; blocks++) {
    const found = fitCards(sections, width, height, blocks);
    if (found && found.size > (best?.blocks === 1 ? WORTH : 1) * (best?.size ?? 0)) best = found;
  }
  return best;
}

function fitBlocks(layers: number, heads: number, width: number, height: number): Fit {
  let best: Fit = { kind: "sheet", size: 0, columns: heads, blocks: 1, wrapped: false };
  for (let blocks = 1; blocks <= Math.min(6, layers); blocks++) {
    const across = (width - (blocks - 1) * SHEET.between) / blocks - SHEET.label,
      down = height - SHEET.heading,
      size = Math.floor(Math.min(across / heads, down / Math.ceil(layers / blocks)) - SHEET.gap);
    // One block is easier to read than several, unless these are drawn much larger.
    if (size > (blocks > 1 ? WORTH : 1) * best.size) best = { ...best, size, blocks };
  }
  return { ...best, size: Math.min(SHEET.most, Math.max(SHEET.least, best.size)) };
}

function fitFlow(sections: number[], width: number, height: number): Fit {
  let size = SHEET.most;
  const columns = () => Math.max(1, Math.floor((width + SHEET.gap) / (size + SHEET.gap)));
  const high = () =>
    sections.reduce((sum, count) => sum + CARD.title + Math.ceil(count / columns()) * (size + SHEET.gap), 0);
  while (size > SHEET.least && high() > height) size--;
  return { kind: "sheet", size, columns: columns(), blocks: 1, wrapped: true };
}

/** The largest drawing of all heads on one screen. `sections` are the numbers of heads of layers, or of groups. */
export function fit(
  sections: number[],
  width: number,
  height: number,
  options: { byLayer: boolean; cards: boolean },
): Fit {
  const cards = options.cards && sections.length ? fitSections(sections, width, height) : null;
  if (cards) return cards;
  const flow = fitFlow(sections, width, height);
  if (!options.byLayer) return flow;
  const blocks = fitBlocks(sections.length, Math.max(1, ...sections), width, height);
  return flow.size > WORTH * blocks.size ? flow : blocks;
}
