// Attention maps from their factors, in WebAssembly SIMD without a C library.
//
//   content_ij = scale q_i.k_j    final = mix(scale R q_i.R k_j, B_ij)    bias = final - content
//   weights_ij = exp(final_ij - lse_i)    a temperature and a softcap act on what `mix` gives
//
// The globals are one layer, or one head of a layer that does not mix heads; the loader keeps a copy of them for each
// and puts it back (src/engine/kernel.ts). `rows` writes values, NaN where a
// key is hidden or does not exist; `shift` and `subtract` change them in place; `pool` and `profile` reduce them.
#include "mix.h"

extern unsigned char __heap_base;
static unsigned long heap;

// 16-byte aligned space at the end of the heap. The viewer asks once, where the heap starts, and shares it out itself.
EXPORT(allocate) void *allocate(unsigned long bytes) {
  if (!heap) heap = ((unsigned long)&__heap_base + 15) & ~15ul;
  const unsigned long at = heap, end = (at + bytes + 15) & ~15ul, have = __builtin_wasm_memory_size(0) << 16;
  if (end > have && __builtin_wasm_memory_grow(0, (end - have + 65535) >> 16) == (unsigned long)-1) return 0;
  heap = end;
  return (void *)at;
}

// float16 bits to float32.
EXPORT(widen) void widen(const unsigned short *bits, float *out, int n) {
  for (int c = 0; c < n; c++) {
    union { unsigned u; float f; } x = { (unsigned)(bits[c] & 0x7fff) << 13 };
    x.f *= 0x1p112f;  // moves the exponent's offset; subnormals come out right
    if ((bits[c] & 0x7c00) == 0x7c00) x.u |= 0x7f800000;
    x.u |= (unsigned)(bits[c] & 0x8000) << 16;
    out[c] = x.f;
  }
}

// Turn the first 2p of dim numbers of every token; angles are cos [t p], then sin [t p].
EXPORT(turn) void turn(const float *x, float *out, int heads, int length, int dim, const float *angles, int p, int interleaved) {
  for (int h = 0; h < heads; h++) for (int t = 0; t < length; t++) {
    const long at = ((long)h * length + t) * dim;
    const float *cos = angles + (long)t * p, *sin = cos + (long)length * p;
    for (int e = 2 * p; e < dim; e++) out[at + e] = x[at + e];
    for (int m = 0; m < p; m++) {
      const long a = at + (interleaved ? 2 * m : m), b = a + (interleaved ? 1 : p);
      const double u = x[a], v = x[b];
      out[a] = (float)(u * cos[m] - v * sin[m]);
      out[b] = (float)(v * cos[m] + u * sin[m]);
    }
  }
}

// From final scores to what is shown, for one query.
static void finish(int head, int what, int i, int from, int n, float *o, float *other) {
  if (what == WEIGHTS) {
    const double lse = layer.lse[(long)head * layer.length + i];
    for (int c = 0; c < n; c++) o[c] = (float)(o[c] - lse);
    exponential(o, n);
  } else if (what == BIAS) {
    dots(layer.q0, layer.k0, head, i, i, from, n, other, other);
    for (int c = 0; c < n; c++) o[c] -= other[c];
  }
}

static void clear(float *o, int n) { for (int c = 0; c < n; c++) o[c] = 0; }

// Values of two queries of one head (the same one twice is fine) where no head is mixed; other's space: n + 4.
static void plain(int head, int what, int a, int b, int from, int n, float *o, float *p, float *other) {
  const int turned = layer.q != layer.q0, transforms = layer.softcap || layer.temperature;
  if (what == CONTENT) { dots(layer.q0, layer.k0, head, a, b, from, n, o, p); return; }
  if (what == BIAS && !turned && !transforms) { clear(o, n); clear(p, n); }
  else dots(layer.q, layer.k, head, a, b, from, n, o, p);
  for (int r = 0; r < (a == b ? 1 : 2); r++) {
    const int i = r ? b : a;
    float *out = r ? p : o;
    if (transforms) {
      add_bias(head, i, from, n, 0, out);
      transform(head, i, n, out);
      finish(head, what, i, from, n, out, other);
      continue;
    }
    add_bias(head, i, from, n, what == WEIGHTS ? -layer.lse[(long)head * layer.length + i] : 0, out);
    if (what == WEIGHTS) exponential(out, n);
    if (what == BIAS && turned) {
      dots(layer.q0, layer.k0, head, i, i, from, n, other, other);
      for (int c = 0; c < n; c++) out[c] -= other[c];
    }
  }
}

static int smaller(int a, int b) { return a < b ? a : b; }
static void hide(float *o, int from, int to) { for (int c = from; c < to; c++) o[c] = __builtin_nanf(""); }

// out [heads rows columns] for queries i0.. and keys j0..; head -1 is all heads of the layer. `columns` is a
// multiple of 4; `scratch` has room for 2 (columns + 4) numbers.
EXPORT(rows) void rows(int head, int what, int i0, int count, int j0, int columns, float *out, float *scratch) {
  const int low = head < 0 ? 0 : head, high = head < 0 ? layer.heads : head + 1, size = count * columns;
  float *spare = scratch + columns + 4;
  if (mix.kind == NO_MIX || what == CONTENT) {
    for (int h = low; h < high; h++) for (int r = 0; r < count; r += 2) {
      const int a = i0 + r, pair = r + 1 < count && a + 1 < layer.length;
      float *o = out + (h - low) * size + r * columns, *p = pair ? o + columns : spare;
      const int n = a < layer.length ? visible(pair ? a + 1 : a, j0, j0 + columns) : 0;
      if (n) plain(h, what, a, pair ? a + 1 : a, j0, n, o, p, scratch);
      hide(o, n ? visible(a, j0, j0 + columns) : 0, columns);
      hide(o, 0, smaller(before(a, j0), columns));
      if (r + 1 < count) {
        hide(o + columns, pair && n ? n : 0, columns);
        hide(o + columns, 0, smaller(before(a + 1, j0), columns));
      }
    }
    return;
  }
  for (int r = 0; r < count; r++) {
    const int i = i0 + r, n = i < layer.length ? visible(i, j0, j0 + columns) : 0;
    const int stride = mix.kind == DAPE && n ? dape_row(i, j0, n) : 0;
    for (int h = low; h < high; h++) {
      float *o = out + (h - low) * size + r * columns;
      if (n && mix.kind == DAPE) for (int c = 0; c < n; c++) o[c] = mix.sum[h * stride + c];
      if (n && mix.kind == COPE) cope_row(h, i, j0, n, o);
      if (n) finish(h, what, i, j0, n, o, scratch);
      hide(o, n, columns);
    }
  }
}

EXPORT(subtract) void subtract(float *a, const float *b, int n) {
  for (int c = 0; c < n; c++) a[c] -= b[c];
}

// Subtract a constant per row and a value per distance (either may be absent); distance[0] is that of (0, columns - 1).
EXPORT(shift) void shift(float *x, int count, int columns, const double *row, const double *distance) {
  for (int r = 0; r < count; r++) for (int c = 0; c < columns; c++) {
    const double away = (row ? row[r] : 0) + (distance ? distance[r - c + columns - 1] : 0);
    x[r * columns + c] = (float)(x[r * columns + c] - away);
  }
}

// One row of cells: x [cell, cells * cell] to mean, least and greatest of the visible, NaN where there is none.
// scratch has room for 4 * cells * cell numbers.
EXPORT(pool) void pool(const float *x, int cell, int cells, float *mean, float *least, float *greatest, float *scratch) {
  const int n = cell * cells;
  float *sum = scratch, *low = sum + n, *high = low + n, *count = high + n;
  const V zero = splat(0), top = splat(__builtin_inff()), bottom = splat(-__builtin_inff()), one = splat(1);
  for (int c = 0; c < n; c += 4) { store(sum + c, zero); store(count + c, zero); store(low + c, top); store(high + c, bottom); }
  for (int r = 0; r < cell; r++) for (int c = 0; c < n; c += 4) {
    const V v = load(x + r * n + c), seen = wasm_f32x4_eq(v, v);
    store(sum + c, add(load(sum + c), wasm_v128_and(v, seen)));
    store(count + c, add(load(count + c), wasm_v128_and(one, seen)));
    store(low + c, wasm_f32x4_pmin(load(low + c), choose(seen, v, top)));
    store(high + c, wasm_f32x4_pmax(load(high + c), choose(seen, v, bottom)));
  }
  for (int a = 0; a < cells; a++) {
    double total = 0, seen = 0;
    float l = __builtin_inff(), g = -__builtin_inff();
    for (int c = a * cell; c < (a + 1) * cell; c++) {
      total += sum[c]; seen += count[c];
      if (low[c] < l) l = low[c];
      if (high[c] > g) g = high[c];
    }
    mean[a] = seen ? (float)(total / seen) : __builtin_nanf("");
    least[a] = seen ? l : __builtin_nanf("");
    greatest[a] = seen ? g : __builtin_nanf("");
  }
}

// Add x [rows columns] to sums by distance (count, sum, square, least, greatest: entry 0 is the distance of
// (0, columns - 1)), by row and by column.
EXPORT(profile) void profile(const float *x, int count, int columns, double *number, double *sum, double *square,
    double *least, double *greatest, double *row, double *column_sum) {
  for (int r = 0; r < count; r++) for (int c = 0; c < columns; c++) {
    const double v = x[r * columns + c];
    if (v != v) continue;
    const int d = r - c + columns - 1;
    number[d] += 1; sum[d] += v; square[d] += v * v;
    if (v < least[d]) least[d] = v;
    if (v > greatest[d]) greatest[d] = v;
    row[r] += v; column_sum[c] += v;
  }
}
