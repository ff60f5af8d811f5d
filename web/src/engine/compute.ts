// Jobs of a worker: tiles, profiles, values and distances between maps, from the instances it has loaded.
import type { Instance } from "./instance.ts";
import {
  type DistanceJob,
  type Job,
  type Part,
  type ProfileJob,
  TILE,
  type TileJob,
  type ValuesJob,
} from "./messages.ts";

const CHUNK = 256;

/** Carry out a job; `find` gives the instance with some factors. */
export function compute(job: Job, find: (factors: string) => Instance): Float32Array[] | Float64Array[] {
  if (job.type === "tile") return tile(job, find);
  if (job.type === "profile") return profile(job, find);
  if (job.type === "distance") return distance(job, find);
  return values(job, find);
}

function block(
  part: Part,
  other: Part | null,
  find: (factors: string) => Instance,
  query: number,
  count: number,
  key: number,
  columns: number,
): number {
  const instance = find(part.factors);
  if (!other) return instance.block(part, query, count, key, columns);
  const second = find(other.factors),
    length = count * columns;
  const taken = second.floats(second.block(other, query, count, key, columns), length).slice();
  const at = instance.block(part, query, count, key, columns);
  instance.less(taken);
  return at;
}

/** mean, least and greatest [heads][3] of `rows` rows of cells; at level 0 one array a head. */
function tile(job: TileJob, find: (factors: string) => Instance): Float32Array[] {
  const { part, level, rows } = job,
    instance = find(part.factors),
    cell = 2 ** level;
  const heads = part.head < 0 ? instance.factors.heads : 1,
    size = rows * TILE;
  if (level === 0) {
    const at = block(part, job.other, find, job.query, rows, job.key, TILE);
    return Array.from({ length: heads }, (_, h) => instance.floats(at + 4 * h * size, size).slice());
  }
  const out = Array.from({ length: 3 * heads }, () => new Float32Array(size).fill(NaN));
  const chunk = Math.min(Math.max(cell, CHUNK), cell * TILE),
    { length, causal, kind } = instance.factors;
  for (let row = 0; row < rows; row++) {
    const query = job.query + row * cell,
      last = Math.min(length, query + cell) - 1;
    for (let start = 0; start < cell * TILE; start += chunk) {
      const key = job.key + start;
      if (query >= length || key >= length || (causal && key > last)) break;
      if (kind.window && key + chunk <= query - kind.window + 1) continue;
      block(part, job.other, find, query, cell, key, chunk);
      for (let h = 0; h < heads; h++)
        instance.pool(h, cell, chunk / cell, out.slice(3 * h, 3 * h + 3), row * TILE + start / cell);
    }
  }
  return out;
}

function profile(job: ProfileJob, find: (factors: string) => Instance): Float64Array[] {
  return find(job.part.factors).profile(job.part, job.query, job.rows);
}

/** float32 values [rows, keys] of pairs. */
function values(job: ValuesJob, find: (factors: string) => Instance): Float32Array[] {
  const { part, rows, keys } = job,
    instance = find(part.factors),
    out = new Float32Array(rows * keys);
  for (let row = 0; row < rows; row += 16)
    for (let start = 0; start < keys; start += CHUNK) {
      const count = Math.min(16, rows - row),
        wide = Math.min(CHUNK, keys - start),
        columns = (wide + 3) & ~3;
      const at = block(part, job.other, find, job.query + row, count, job.key + start, columns);
      const floats = instance.floats(at, count * columns);
      for (let r = 0; r < count; r++)
        out.set(floats.subarray(r * columns, r * columns + wide), (row + r) * keys + start);
    }
  return [out];
}

/** Number of visible pairs, and sum and greatest of |difference| over them. */
function distance(job: DistanceJob, find: (factors: string) => Instance): Float64Array[] {
  const { part, other, rows, keys } = job,
    instance = find(part.factors);
  let count = 0,
    sum = 0,
    greatest = 0;
  for (let row = 0; row < rows; row += 16)
    for (let start = 0; start < keys; start += CHUNK) {
      const high = Math.min(16, rows - row),
        wide = Math.min(CHUNK, keys - start),
        columns = (wide + 3) & ~3;
      if (instance.factors.causal && start > job.query + row + high - 1) break;
      const at = block(part, other, find, job.query + row, high, start, columns),
        floats = instance.floats(at, high * columns);
      for (let r = 0; r < high; r++)
        for (let c = 0; c < wide; c++) {
          const size = Math.abs(floats[r * columns + c]);
          if (size !== size) continue; // hidden
          count++;
          sum += size;
          if (size > greatest) greatest = size;
        }
    }
  return [Float64Array.of(count, sum, greatest)];
}
