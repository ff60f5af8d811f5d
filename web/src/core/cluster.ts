// Which heads are alike: correlation of their maps, joined by average linkage.

/** Pearson correlation over cells that both have; 0 with a constant map. */
export function correlation(a: Float32Array, b: Float32Array): number {
  let n = 0,
    sa = 0,
    sb = 0;
  for (let c = 0; c < a.length; c++)
    if (a[c] === a[c] && b[c] === b[c]) {
      n++;
      sa += a[c];
      sb += b[c];
    }
  if (!n) return 0;
  const ma = sa / n,
    mb = sb / n;
  let aa = 0,
    bb = 0,
    ab = 0;
  for (let c = 0; c < a.length; c++)
    if (a[c] === a[c] && b[c] === b[c]) {
      aa += (a[c] - ma) ** 2;
      bb += (b[c] - mb) ** 2;
      ab += (a[c] - ma) * (b[c] - mb);
    }
  return aa > 0 && bb > 0 ? ab / Math.sqrt(aa * bb) : 0;
}

/** Groups of maps whose mean correlation is at least `least`, similar groups next to each other. */
export function groups(maps: Float32Array[], least = 0.6): number[][] {
  const similar = maps.map((a, i) => maps.map((b, j) => (i === j ? 1 : i < j ? correlation(a, b) : 0)));
  for (let i = 0; i < maps.length; i++) for (let j = 0; j < i; j++) similar[i][j] = similar[j][i];
  const between = (a: number[], b: number[]) =>
    a.reduce((sum, i) => sum + b.reduce((part, j) => part + similar[i][j], 0), 0) / (a.length * b.length);
  let order = maps.map((_, n) => [[n]]);
  while (order.length > 1) {
    let best = -Infinity,
      left = 0,
      right = 1;
    const flat = order.map((parts) => parts.flat());
    for (let i = 0; i < order.length; i++)
      for (let j = i + 1; j < order.length; j++) {
        const value = between(flat[i], flat[j]);
        if (value > best) {
          best = value;
          left = i;
          right = j;
        }
      }
    // Above the threshold two clusters become one group; below it they only stand side by side.
    const joined = best >= least ? [[...flat[left], ...flat[right]]] : [...order[left], ...order[right]];
    order = [...order.filter((_, n) => n !== left && n !== right), joined];
  }
  return order[0] ?? [];
}
