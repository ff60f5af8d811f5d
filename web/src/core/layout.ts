// How large heads are drawn so that all of them fit on one screen: cards when there are few, a dense sheet when many.

/** Pixels around what is drawn of a head. */
export const CARD = { gap: 8, text: 50, title: 26, least: 104, most: 340 };
export const SHEET = { gap: 2, label: 26, heading: 18, between: 14, least: 10, most: 96 };

export interface Fit {
  kind: "cards" | "sheet";
  /** Width of a card, or side of a sheet's cell. */
  size: number;
  /** Columns of cards in a row, or of a sheet's cells where rows are no layers. */
  columns: number;
  /** Blocks of layers side by side in a sheet. */
  blocks: number;
}

/** Height of sections of some cards each. */
function cardsHeight(sections: number[], size: number, columns: number): number {
  return sections.reduce(
    (sum, count) => sum + CARD.title + Math.ceil(count / columns) * (size + CARD.text + CARD.gap),
    0,
  );
}

function fitCards(sections: number[], width: number, height: number): Fit | null {
  for (let columns = 1; ; columns++) {
    const across = Math.floor((width + CARD.gap) / columns) - CARD.gap;
    if (across < CARD.least) return null;
    // As wide as the columns allow, or less where that would be too high.
    for (let size = Math.min(across, CARD.most); size >= CARD.least; size -= 4) {
      if (size <= Math.floor((width + CARD.gap) / (columns + 1)) - CARD.gap) break;
      if (cardsHeight(sections, size, columns) <= height) return { kind: "cards", size, columns, blocks: 1 };
    }
  }
}

function fitBlocks(layers: number, heads: number, width: number, height: number): Fit {
  let best: Fit = { kind: "sheet", size: 0, columns: heads, blocks: 1 };
  for (let blocks = 1; blocks <= Math.min(6, layers); blocks++) {
    const across = (width - (blocks - 1) * SHEET.between) / blocks - SHEET.label,
      down = height - SHEET.heading,
      size = Math.floor(Math.min(across / heads, down / Math.ceil(layers / blocks)) - SHEET.gap);
    // One block is easier to read than several, unless these are drawn much larger.
    if (size > (blocks > 1 ? 1.3 : 1) * best.size) best = { ...best, size, blocks };
  }
  return { ...best, size: clamp(best.size) };
}

function fitFlow(sections: number[], width: number, height: number): Fit {
  let size = SHEET.most;
  const columns = () => Math.max(1, Math.floor((width + SHEET.gap) / (size + SHEET.gap)));
  const high = () =>
    sections.reduce((sum, count) => sum + CARD.title + Math.ceil(count / columns()) * (size + SHEET.gap), 0);
  while (size > SHEET.least && high() > height) size--;
  return { kind: "sheet", size, columns: columns(), blocks: 1 };
}

const clamp = (size: number) => Math.min(SHEET.most, Math.max(SHEET.least, size));

/** The largest drawing of all heads on one screen. `sections` are the numbers of heads of layers, or of groups. */
export function fit(
  sections: number[],
  width: number,
  height: number,
  options: { byLayer: boolean; cards: boolean },
): Fit {
  const cards = options.cards ? fitCards(sections, width, height) : null;
  if (cards) return cards;
  if (!options.byLayer) return fitFlow(sections, width, height);
  return fitBlocks(sections.length, Math.max(1, ...sections), width, height);
}
