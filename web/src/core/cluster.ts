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

/** The visible values less their mean, of length 1; null for a map of one value. */
function standard(map: Float32Array): Float32Array | null {
  const seen = map.filter((value) => value === value),
    mean = seen.reduce((sum, value) => sum + value, 0) / seen.length,
    size = Math.sqrt(seen.reduce((sum, value) => sum + (value - mean) ** 2, 0));
  return size > 0 ? seen.map((value) => (value - mean) / size) : null;
}

/** Correlations of all maps with one another, row by row. */
function correlations(maps: Float32Array[]): Float32Array {
  const n = maps.length,
    out = new Float32Array(n * n).fill(1),
    hidden = (map: Float32Array) => map.reduce((sum, value, at) => (value === value ? sum : sum + at + 1), 0);
  // Maps that hide the same cells are standardised once, which makes a correlation one dot product.
  const alike = maps.every((map) => hidden(map) === hidden(maps[0])),
    standards = alike ? maps.map(standard) : [];
  for (let i = 0; i < n; i++)
    for (let j = 0; j < i; j++) {
      let value = 0;
      if (alike) {
        const a = standards[i],
          b = standards[j];
        if (a && b) for (let c = 0; c < a.length; c++) value += a[c] * b[c];
      } else value = correlation(maps[i], maps[j]);
      out[i * n + j] = out[j * n + i] = value;
    }
  return out;
}

/** Groups of maps whose mean correlation is at least `least`, similar groups next to each other. */
export function groups(maps: Float32Array[], least = 0.6): number[][] {
  const n = maps.length,
    // Mean correlation of clusters; a cluster is kept under the number of one of its members.
    between = correlations(maps),
    clusters = new Map(maps.map((_, at): [number, number[][]] => [at, [[at]]])),
    sizes = new Float64Array(n).fill(1),
    nearest = new Int32Array(n);
  const findNearest = (i: number) => {
    nearest[i] = -1;
    for (const j of clusters.keys())
      if (j !== i && (nearest[i] < 0 || between[i * n + j] > between[i * n + nearest[i]])) nearest[i] = j;
  };
  for (const i of clusters.keys()) findNearest(i);
  while (clusters.size > 1) {
    let left = -1;
    for (const i of clusters.keys())
      if (left < 0 || between[i * n + nearest[i]] > between[left * n + nearest[left]]) left = i;
    const right = nearest[left],
      best = between[left * n + right],
      a = clusters.get(left)!,
      b = clusters.get(right)!;
    // Above the threshold two clusters become one group; below it they only stand side by side.
    clusters.set(left, best >= least ? [[...a.flat(), ...b.flat()]] : [...a, ...b]);
    clusters.delete(right);
    for (const j of clusters.keys()) {
      const mean = sizes[left] * between[left * n + j] + sizes[right] * between[right * n + j];
      between[left * n + j] = between[j * n + left] = mean / (sizes[left] + sizes[right]);
    }
    sizes[left] += sizes[right];
    for (const j of clusters.keys()) if (j === left || nearest[j] === left || nearest[j] === right) findNearest(j);
  }
  return clusters.values().next().value ?? [];
}
