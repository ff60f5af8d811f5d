// Four floats at a time: the few operations every other file needs.
#pragma once
#include <wasm_simd128.h>

typedef v128_t V;

static inline V splat(float x) { return wasm_f32x4_splat(x); }
static inline V load(const float *p) { return wasm_v128_load(p); }
static inline void store(float *p, V v) { wasm_v128_store(p, v); }
static inline V add(V a, V b) { return wasm_f32x4_add(a, b); }
static inline V mul(V a, V b) { return wasm_f32x4_mul(a, b); }
static inline V multiply_add(V sum, V a, V b) { return add(sum, mul(a, b)); }
static inline V choose(V mask, V yes, V no) { return wasm_v128_bitselect(yes, no, mask); }

// [sum(a), sum(b), sum(c), sum(d)]
static inline V sums(V a, V b, V c, V d) {
  V ab0 = wasm_i32x4_shuffle(a, b, 0, 4, 1, 5), ab1 = wasm_i32x4_shuffle(a, b, 2, 6, 3, 7);
  V cd0 = wasm_i32x4_shuffle(c, d, 0, 4, 1, 5), cd1 = wasm_i32x4_shuffle(c, d, 2, 6, 3, 7);
  V ab = add(ab0, ab1), cd = add(cd0, cd1);  // a0+a2 b0+b2 a1+a3 b1+b3
  return add(wasm_i64x2_shuffle(ab, cd, 0, 2), wasm_i64x2_shuffle(ab, cd, 1, 3));
}

// exp(x) to 1e-7 of itself between -87 and 88; 0 is reached through subnormals. Keeps NaN out: call before masking.
static inline V exp4(V x) {
  x = wasm_f32x4_max(wasm_f32x4_min(x, splat(88.0f)), splat(-104.0f));
  V n = wasm_f32x4_nearest(mul(x, splat(1.44269504f)));
  V r = wasm_f32x4_sub(x, mul(n, splat(0.693359375f)));  // ln 2 in two parts
  r = wasm_f32x4_sub(r, mul(n, splat(-2.12194440e-4f)));
  V p = splat(1.98756915e-4f);
  p = multiply_add(splat(1.39819995e-3f), p, r);
  p = multiply_add(splat(8.33345191e-3f), p, r);
  p = multiply_add(splat(4.16657959e-2f), p, r);
  p = multiply_add(splat(1.66666655e-1f), p, r);
  p = multiply_add(splat(5.00000012e-1f), p, r);
  p = add(multiply_add(r, p, mul(r, r)), splat(1.0f));
  V power = wasm_i32x4_trunc_sat_f32x4(n), half = wasm_i32x4_shr(power, 1);
  V low = wasm_i32x4_shl(wasm_i32x4_add(half, wasm_i32x4_splat(127)), 23);
  V high = wasm_i32x4_shl(wasm_i32x4_add(wasm_i32x4_sub(power, half), wasm_i32x4_splat(127)), 23);
  return mul(mul(p, low), high);  // 2^power in two factors, so that subnormals are reached
}
