// One layer's factors: plain globals that the loader sets, and copies to change from one layer to another.
#pragma once
#include "simd.h"

#define EXPORT(name) __attribute__((export_name(#name)))

enum { CONTENT, BIAS, FINAL, WEIGHTS };
enum { NO_BIAS, TOEPLITZ, SLOPE, PERCEPTRON, DENSE };
enum { NO_MIX, DAPE, COPE };  // DAPE: both versions; the first has kernel width 1

static struct {
  int heads, group, length, dim, causal;  // dim: head dim, a multiple of 4
  double scale;
  const float *q, *k;    // rotated [h t e], [h/group t e]
  const float *q0, *k0;  // before rotation; the same arrays where nothing is rotated
  const int *position;   // [t]
  const double *lse;     // [h t]
  int window;                 // keys a causal query sees, its own included; 0 is all
  float softcap;              // 0 is none
  const float *temperature;   // [h t], may be absent
} layer;

static struct {
  int kind, columns, zero, hidden;
  const float *table;                 // toeplitz [h n], dense [h t t]
  const double *weight, *row, *col;   // slope [h t]; weight may be absent
  const double *near, *far;           // perceptron [n], [t]
  const float *in_weight, *in_bias, *out_weight, *out_bias;  // [m], [m], [h m], [h]
  float leak;
} bias;

static struct {
  int kind, channels, hidden, width, added, released, positions, outputs;  // hidden, outputs: multiples of 4
  const float *in_weight, *in_bias, *out_weight, *out_bias;                // [m c w], [m], [h m w], [h]
  const float *table;                                                      // CoPE [e n]
  float divide;                                                            // CoPE: factor of the added term
  float *channel, *unit, *sum;                                             // scratch, one row of keys each
} mix;

EXPORT(set_layer) void set_layer(int heads, int group, int length, int dim, int causal, double scale,
    const float *q, const float *k, const float *q0, const float *k0, const int *position, const double *lse) {
  layer.heads = heads; layer.group = group; layer.length = length; layer.dim = dim; layer.causal = causal;
  layer.scale = scale; layer.q = q; layer.k = k; layer.q0 = q0; layer.k0 = k0;
  layer.position = position; layer.lse = lse;
}

EXPORT(set_bend) void set_bend(int window, float softcap, const float *temperature) {
  layer.window = window; layer.softcap = softcap; layer.temperature = temperature;
}

EXPORT(set_table) void set_table(int kind, const float *table, int columns, int zero) {
  bias.kind = kind; bias.table = table; bias.columns = columns; bias.zero = zero;
}

EXPORT(set_slope) void set_slope(const double *weight, const double *row, const double *col) {
  bias.kind = SLOPE; bias.weight = weight; bias.row = row; bias.col = col;
}

EXPORT(set_perceptron) void set_perceptron(const double *near, int columns, int zero, const double *far, int hidden,
    const float *in_weight, const float *in_bias, const float *out_weight, const float *out_bias, float leak) {
  bias.kind = PERCEPTRON; bias.near = near; bias.columns = columns; bias.zero = zero; bias.far = far;
  bias.hidden = hidden; bias.in_weight = in_weight; bias.in_bias = in_bias;
  bias.out_weight = out_weight; bias.out_bias = out_bias; bias.leak = leak;
}

EXPORT(set_dape) void set_dape(int channels, int hidden, int outputs, int width, int added, int released,
    const float *in_weight, const float *in_bias, const float *out_weight, const float *out_bias,
    float *channel, float *unit, float *sum) {
  mix.kind = DAPE; mix.channels = channels; mix.hidden = hidden; mix.outputs = outputs; mix.width = width;
  mix.added = added; mix.released = released; mix.in_weight = in_weight; mix.in_bias = in_bias;
  mix.out_weight = out_weight; mix.out_bias = out_bias;
  mix.channel = channel; mix.unit = unit; mix.sum = sum;
}

EXPORT(set_cope) void set_cope(const float *table, int positions, float divide, float *sum) {
  mix.kind = COPE; mix.table = table; mix.positions = positions; mix.divide = divide; mix.sum = sum;
}

// How many of the keys [from, to) exist and are visible to query i, given that hidden keys come last.
static int visible(int i, int from, int to) {
  int stop = layer.causal && i + 1 < to ? i + 1 : to;
  if (stop > layer.length) stop = layer.length;
  return stop > from ? stop - from : 0;
}

// How many of the keys from `from` on come before the window of query i.
static int before(int i, int from) {
  const int first = layer.window ? i + 1 - layer.window : 0;
  return first > from ? first - from : 0;
}
