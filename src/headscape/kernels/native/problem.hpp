// What the Python side hands over: one attention call, as plain data.
//
// Shape letters as everywhere: b batch, t queries, s keys, h heads, e head dim; hk heads of keys, ev
// head dim of values. All tensors but q are contiguous in the order named. This struct is mirrored
// field by field in ops.py; every field is 8 bytes wide so that there is no padding to agree on.
// Gradients carry a leading axis `parts` where several workers may share a head: each part is summed
// by the caller.
#pragma once

#include <cstdint>

namespace headscape {

enum Kind : int64_t { kNone = 0, kToeplitz = 1, kSlope = 2, kPieces = 3, kFactor = 4 };

enum Type : int64_t { kFloat = 0, kBfloat16 = 1, kFloat16 = 2 };

struct Problem {
    int64_t batch, heads, queries, keys, head_dim;
    int64_t key_heads, value_dim;
    int64_t type;     // of q, k, v, out and d_out; all else is float, or double where it says so
    int64_t causal;
    int64_t window;   // keys at this distance or further are hidden; 0: none
    int64_t threads;
    int64_t parts;  // backward: into how many parts the query tiles of a key head are dealt
    double scale;
    double softcap;            // 0: none
    const float *temperature;  // [b h t] or null
    const float *sink;         // [h] or null
    int64_t sticks;            // weights break a stick (sticks.hpp) instead of a softmax
    int64_t takes_own;         // of sticks: the query's own key takes part
    int64_t keeps_rest;        // of sticks: what is left goes to the query's own value

    const void *q, *k, *v;            // [b h t e], [b hk s e], [b hk s ev]
    const int64_t *q_at, *k_at;       // positions, [t] or [b t]; [s] or [b s]
    const int64_t *q_group, *k_group; // same shapes; null: all in one group
    int64_t q_stride, k_stride;       // elements from one batch row of these to the next; 0: shared
    // Only where scores are not mixed: the strides of q by batch row, head and token, in elements, and
    // whether out, d_out and d_q are [b t h e], the layout of the layers around attention.
    int64_t q_batch, q_head, q_row, by_token;

    void *out;   // [b h t ev]
    float *lse;  // [b h t], log of the softmax's denominator; of sticks, what is left

    int64_t kind;            // which bias
    const float *table;      // toeplitz, factor [h, length]; pieces: near [length]
    int64_t table_low;       // the distance in column 0
    int64_t table_length;
    const float *weight;     // slope [#b h t] or null; pieces: 1 / far [#b t]
    const double *row, *col; // slope [#b h t], [#b h s]
    int64_t weight_stride, row_stride, col_stride;  // from one batch row to the next; 0: shared
    int64_t pieces;          // linear pieces of the perceptron
    const float *knots;      // [pieces - 1], ascending
    const float *slopes;     // [h, pieces]
    const float *offsets;    // [h, pieces]

    // A sheared bias; r null: none. u null: none by key.
    // Their last axes are padded with zeros to `wide`, multiples of 16.
    const float *r, *basis;          // [#b h t wide], [#h basis_rows wide]
    const float *u, *key_basis;      // [#b h s wide], [#h basis_rows wide]
    const float *key_turned;         // [#h key_rank turned_length], at least 16 columns more
    const float *constant;           // [#b h s] or null: by key, the same at every distance
    const int64_t *source;           // the row of both bases for distance basis_low, the next ...
    int64_t rank, key_rank;
    int64_t r_stride, u_stride, constant_stride;  // from one batch row to the next; 0: shared
    int64_t basis_stride, key_basis_stride, key_turned_stride;  // between heads; 0: shared
    int64_t basis_low, basis_rows, turned_length;

    // DAPE and DAPEv2; hidden = 0: the scores are not mixed. There are c = 2 h channels with a slope
    // or pieces, else h: a bias by distance comes as `fold`.
    int64_t hidden, taps;
    int64_t adds_bias;  // the bias is added to the scores too, besides being a channel
    int64_t released;   // nothing lies beyond the last key; else hidden maps from zeros do
    const float *in_weight, *in_bias;    // [c taps hidden], [hidden]
    const float *out_weight, *out_bias;  // [hidden taps h], [h]
    const float *in_back, *out_back;     // [hidden taps c], [h taps hidden]; taps in reverse
    const float *fold;  // toeplitz [1 + taps, hidden, length]: what each distance adds to a hidden
                        // map, in_bias included; each tap's share. kFoldMargin beyond `table`
    int64_t fold_low, fold_length;

    const void *d_out;          // [b h t ev]
    float *d_q, *d_k, *d_v;     // [b h t e], [parts b hk s e], [parts b hk s ev]
    float *d_temperature;       // [b h t] or null
    float *d_table;             // [parts b h length] or null
    float *d_weight;            // slope, pieces: [b h t] or null
    double *d_row, *d_col;      // slope: [b h t], [parts b h s] or null
    float *d_slopes, *d_offsets;  // pieces: [parts b h pieces] or null
    float *d_r, *d_basis;       // [b h t wide], [parts b h basis_rows wide] or null
    float *d_u, *d_key_basis;   // [parts b h s wide], [parts b h basis_rows wide] or null
    float *d_constant;          // [parts b h s] or null
    float *d_fold;              // [parts b 1+taps hidden length]
    double *d_in_weight, *d_in_bias;    // [parts b hidden c taps], [parts b hidden]
    double *d_out_weight, *d_out_bias;  // [parts b h hidden taps], [parts b h]
};

// Scores reduced to a grid of cells x cells; for a batch of one whose tokens are one stretch.
struct Cells {
    int64_t cells, additive;     // additive: what position adds is the bias itself
    const int64_t *edges;        // [cells + 1], the token that each begins with, and their number
    const float *raw_q, *raw_k;  // before rotation, [h t e] and [hk s e]; null: not rotated
    double *sum;                 // [4 h cells cells]
    float *least, *greatest;
};

// One query per head against a cache: one call of decode. Strides count numbers; the last axis of k
// and v is contiguous.
struct Decode {
    int64_t batch, heads, key_heads, keys, head_dim, value_dim, type, threads;
    int64_t stretches;  // into how many stretches the keys of a head are dealt
    double scale, softcap;
    const void *q, *k, *v;  // [b h e], [b hk s e], [b hk s ev]
    int64_t k_batch, k_head, k_row, v_batch, v_head, v_row;
    const float *bias;      // [#b h s] or null
    int64_t bias_stride, bias_head;
    const float *bias_weight, *bias_base;  // [#b h] or null: the bias is weight (base - `bias`)
    int64_t weight_batch, weight_head, base_batch, base_head;  // their strides
    const float *temperature;   // [b h] or null
    const float *sink;          // [h] or null
    void *out;                  // [b h ev]
};

// A stretch of consecutive tokens whose positions are consecutive too, in one group: inside a pair
// of tiles the distance is an affine function of the indices, and visibility by group is all or
// nothing.
struct Tile {
    int64_t start;     // index of its first token
    int64_t count;
    int64_t position;  // of its first token
    int64_t group;
    int64_t run_start, run_end;  // the whole stretch that it was cut from
};

struct Unit {
    int64_t row, head, tile;  // tile: an index into Plan::q
};

struct Plan {
    const Tile *q, *k;
    const int64_t *q_begin, *k_begin;  // [batch + 1]: the tiles of a batch row
    const Unit *units;                 // every (batch row, head, query tile), costly ones first
    int64_t unit_count;
};

constexpr int64_t kQueryTile = 128;
constexpr int64_t kKeyTile = 128;
constexpr int64_t kMixQueries = 48;  // where scores are mixed, all heads of a tile are held at once
constexpr int64_t kMixKeys = 64;
constexpr int64_t kMostTaps = 33;    // so that a key tile and its halo fit into kKeyTile
constexpr int64_t kFoldMargin = 128; // FOLD of ops.py
static_assert(kMixQueries + kMostTaps + 16 <= kFoldMargin, "a row of queries stays inside `fold`");

// The kernels, compiled once per instruction set (kernel_*.cpp). They return 0, or 1 when there is
// no memory for their scratch.
#define HEADSCAPE_DECLARE(isa)                              \
    namespace isa {                                         \
    int forward(const Problem &p, const Plan &plan);        \
    int backward(const Problem &p, const Plan &plan);       \
    int decode(const Decode &p);                            \
    int cells(const Problem &p, const Cells &c, const Plan &plan); \
    }
HEADSCAPE_DECLARE(avx512)
HEADSCAPE_DECLARE(avx2)
HEADSCAPE_DECLARE(portable)
#undef HEADSCAPE_DECLARE

}  // namespace headscape
