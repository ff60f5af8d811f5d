// Layers whose final scores depend on other heads or other keys of the same query: DAPE, DAPEv2, CoPE.
#pragma once
#include "scores.h"

#define LEAK 0.01f

// y[o][c] = b[o] + sum over channels and taps of x[channel][c + tap] w[o][channel][tap]; rows are `stride` apart.
static void convolve(const float *x, int channels, const float *w, const float *b, int outputs, int width, int n,
    int stride, int leaky, float *y) {
  const int step = channels * width;
  for (int o = 0; o < outputs; o += 4) for (int c = 0; c < n; c += 8) {
    V a[8];
    for (int r = 0; r < 4; r++) a[2 * r] = a[2 * r + 1] = splat(b[o + r]);
    for (int channel = 0; channel < channels; channel++) for (int tap = 0; tap < width; tap++) {
      const float *at = x + channel * stride + c + tap, *weight = w + o * step + channel * width + tap;
      V u = load(at), v = load(at + 4);
      for (int r = 0; r < 4; r++) {
        V s = wasm_v128_load32_splat(weight + r * step);
        a[2 * r] = multiply_add(a[2 * r], s, u);
        a[2 * r + 1] = multiply_add(a[2 * r + 1], s, v);
      }
    }
    for (int r = 0; r < 8; r++) {
      V z = a[r];
      if (leaky) z = choose(wasm_f32x4_gt(z, splat(0)), z, mul(z, splat(LEAK)));
      store(y + (o + r / 2) * stride + c + 4 * (r & 1), z);
    }
  }
}

// Final scores of query i with n keys from `from`, all heads: mix.sum[head * stride + c]. Returns the stride.
// Column c of `channel` is key from - 2r + c, of `unit` key from - r + c, with r half the kernel width.
static int dape_row(int i, int from, int n) {
  const int r = mix.width / 2, H = layer.heads, stride = (n + 4 * r + 23) & ~7;
  const int first = from - 2 * r < 0 ? 0 : from - 2 * r, seen = visible(i, first, from + n + 2 * r);
  for (int c = 0; c < mix.channels * stride; c++) mix.channel[c] = 0;
  for (int h = 0; h < H; h++) {
    float *score = mix.channel + h * stride + first - (from - 2 * r);
    dots(layer.q, layer.k, h, i, i, first, seen, score, score);
    for (int c = seen; c < ((seen + 3) & ~3); c++) score[c] = 0;
    if (mix.channels > H) add_bias(h, i, first, seen, 0, score + H * stride);
  }
  convolve(mix.channel, mix.channels, mix.in_weight, mix.in_bias, mix.hidden, mix.width, n + 2 * r, stride, 1, mix.unit);
  for (int c = 0; c < n + 2 * r; c++) {
    const int key = from - r + c;
    if (key < 0 || (mix.released && key >= layer.length)) for (int m = 0; m < mix.hidden; m++) mix.unit[m * stride + c] = 0;
  }
  convolve(mix.unit, mix.hidden, mix.out_weight, mix.out_bias, mix.outputs, mix.width, n, stride, 0, mix.sum);
  for (int h = 0; h < H; h++) {
    float *o = mix.sum + h * stride;
    const float *score = mix.channel + h * stride + 2 * r;
    for (int c = 0; c < n; c++) o[c] += score[c];
    if (mix.channels > H && mix.added) for (int c = 0; c < n; c++) o[c] += score[H * stride + c];
  }
  return stride;
}

#define RUN 256  // keys per step of CoPE's count

// Final scores of query i of one head with n visible keys from `from`. Gates are counted from the query backwards.
static void cope_row(int head, int i, int from, int n, float *o) {
  const int E = layer.dim, N = mix.positions;
  const float *q = layer.q + ((long)head * layer.length + i) * E;
  float *z = mix.sum, *score = z + ((N + 7) & ~3), *gate = score + RUN;
  for (int m = 0; m < N; m++) {
    float sum = 0;
    for (int e = 0; e < E; e++) sum += q[e] * mix.table[e * N + m];
    z[m] = sum * mix.divide;
  }
  double count = 0;
  for (int stop = i + 1; stop > from;) {
    const int start = stop - RUN < from ? from : stop - RUN, length = stop - start;
    dots(layer.q, layer.k, head, i, i, start, length, score, score);
    for (int c = 0; c < length; c += 4)
      store(gate + c, wasm_f32x4_div(splat(1), add(splat(1), exp4(wasm_f32x4_neg(load(score + c))))));
    for (int c = length - 1; c >= 0; c--) {
      count += gate[c];
      if (start + c >= from + n) continue;
      const double at = count < N - 1 ? count : N - 1;
      const int below = (int)at, above = below + 1 < N ? below + 1 : below;
      o[start + c - from] = score[c] + z[below] + (float)(at - below) * (z[above] - z[below]);
    }
    stop = start;
  }
}
