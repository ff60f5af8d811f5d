// Scores of one or two queries with consecutive keys: q.k and the additive bias.
#pragma once
#include "layer.h"

// o[c] = scale q_a.k_(from+c), p[c] the same for query b, c < n rounded up to 4 (keys are padded by 4 rows).
static void dots(const float *q, const float *k, int head, int a, int b, int from, int n, float *o, float *p) {
  const int E = layer.dim;
  const float *x = q + ((long)head * layer.length + a) * E, *y = q + ((long)head * layer.length + b) * E;
  const float *key = k + ((long)(head / layer.group) * layer.length + from) * E;
  const V scale = splat((float)layer.scale);
  for (int c = 0; c < n; c += 4, key += 4 * E) {
    V s0 = splat(0), s1 = s0, s2 = s0, s3 = s0, t0 = s0, t1 = s0, t2 = s0, t3 = s0;
    for (int e = 0; e < E; e += 4) {
      V u = load(x + e), v = load(y + e), z;
      z = load(key + e);         s0 = multiply_add(s0, u, z); t0 = multiply_add(t0, v, z);
      z = load(key + E + e);     s1 = multiply_add(s1, u, z); t1 = multiply_add(t1, v, z);
      z = load(key + 2 * E + e); s2 = multiply_add(s2, u, z); t2 = multiply_add(t2, v, z);
      z = load(key + 3 * E + e); s3 = multiply_add(s3, u, z); t3 = multiply_add(t3, v, z);
    }
    store(o + c, mul(scale, sums(s0, s1, s2, s3)));
    store(p + c, mul(scale, sums(t0, t1, t2, t3)));
  }
}

static int column(int i, int j) {
  int at = layer.position[i] - layer.position[j] + bias.zero;
  return at < 0 ? 0 : at >= bias.columns ? bias.columns - 1 : at;
}

static float perceptron(int head, float u) {
  const float *out = bias.out_weight + head * bias.hidden;
  float sum = bias.out_bias[head];
  for (int m = 0; m < bias.hidden; m++) {
    float z = u * bias.in_weight[m] + bias.in_bias[m];
    sum += out[m] * (z > 0 ? z : bias.leak * z);
  }
  return sum;
}

// o[c] += B_i(from+c) + offset. Sums that may be large are taken in double, rounded once.
static void add_bias(int head, int i, int from, int n, double offset, float *o) {
  const long row = (long)head * layer.length;
  if (bias.kind == TOEPLITZ) {
    const float *table = bias.table + (long)head * bias.columns;
    for (int c = 0; c < n; c++) o[c] += (float)(table[column(i, from + c)] + offset);
  } else if (bias.kind == SLOPE) {
    const double weight = bias.weight ? bias.weight[row + i] : 1, here = bias.row[row + i];
    const double *col = bias.col + row + from;
    for (int c = 0; c < n; c++) o[c] += (float)(weight * (here - col[c]) + offset);
  } else if (bias.kind == PERCEPTRON) {
    const double far = bias.far[i];
    for (int c = 0; c < n; c++) o[c] += (float)(perceptron(head, (float)(bias.near[column(i, from + c)] / far)) + offset);
  } else if (bias.kind == DENSE) {
    const float *map = bias.table + (row + i) * layer.length + from;
    for (int c = 0; c < n; c++) o[c] += (float)(map[c] + offset);
  } else if (offset) {
    for (int c = 0; c < n; c++) o[c] += (float)offset;
  }
}

static void exponential(float *o, int n) {
  for (int c = 0; c < n; c += 4) store(o + c, exp4(load(o + c)));
}

// exp(x) for x <= 0, to 1e-14 of itself.
static double exponent(double x) {
  if (x < -700) return 0;
  const double n = __builtin_floor(x * 1.4426950408889634 + 0.5);
  const double r = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;  // ln 2 in two parts
  double p = 1;
  for (int k = 12; k > 0; k--) p = 1 + p * r / k;
  union { long long i; double d; } power = { (long long)(n + 1023) << 52 };
  return p * power.d;
}

// What acts on scores after the bias: o = cap tanh(temperature o / cap).
static void transform(int head, int i, int n, float *o) {
  const double factor = layer.temperature ? layer.temperature[(long)head * layer.length + i] : 1, cap = layer.softcap;
  for (int c = 0; c < n; c++) {
    double x = factor * o[c];
    if (cap) {
      const double e = exponent(-2 * __builtin_fabs(x / cap)), y = cap * (1 - e) / (1 + e);
      x = x < 0 ? -y : y;
    }
    o[c] = (float)x;
  }
}
