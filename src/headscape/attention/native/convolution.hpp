// The convolutions of DAPEv2 along the keys, and their gradients. DAPE is the case of one tap.
//
// Maps are stored as [channel, key, query], a row of kRow queries and then zeros: the row is a few
// vectors, and a step along the keys is a step to the next row, so a tap needs no shuffling. The
// zeros are what add_diagonals asks for. All maps of a tile have as many rows (`size` floats from
// one channel to the next), an odd number, so that the channels of a row spread over the cache.
#pragma once

#include "gemm.hpp"
#include "problem.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int64_t kRow = kMixQueries;
constexpr int64_t kMapLd = kRow + 16;  // floats from one key to the next
static_assert(W <= 16, "the zeros after a row are at least one vector");

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kConvChannels = 8;
#else
constexpr int kConvChannels = 4;
#endif
constexpr int kConvVectors = 3;
static_assert(kRow % (kConvVectors * W) == 0, "a row of queries is a whole number of panels");

// A convolution from `channels` maps to `outs`; weight[c, t, o] with `stride` between its rows.
struct Layer {
    int64_t channels, outs, taps;
    const float *weight;
    int64_t stride;
};

// What the sums of output channel o, row r start from: at[o channel + r row]; null: zeros.
struct Start {
    const float *at;
    int64_t channel, row;
};

// M output channels of one row: out[m, i] = finish(start[m, i] + sum_{c, t} w[c, t, m] x[c, t, i]).
// Not inlined: what a caller keeps in registers would push sums out of them.
template <int M, class Finish>
__attribute__((noinline)) void convolve_block(const Layer &layer, int64_t o, const float *__restrict x, int64_t size,
                           const Start &start, float *__restrict out, const Finish &finish) {
    V sums[M][kConvVectors];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int n = 0; n < kConvVectors; n++)
            sums[m][n] = start.at ? load(start.at + (o + m) * start.channel + n * W) : V{};
    for (int64_t t = 0; t < layer.taps; t++) {
        const float *w = layer.weight + t * layer.stride + o, *from = x + t * kMapLd;
        for (int64_t c = 0; c < layer.channels; c++) {
            V right[kConvVectors];
#pragma GCC unroll 3
            for (int n = 0; n < kConvVectors; n++) right[n] = load(from + n * W);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                V left = splat(w[m]);
#pragma GCC unroll 3
                for (int n = 0; n < kConvVectors; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
            }
            w += layer.taps * layer.stride, from += size;
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int n = 0; n < kConvVectors; n++) {
            float *to = out + (o + m) * size + n * W;
            store(to, finish(sums[m][n], o + m, to));
        }
}

template <int M, class Finish>
inline void convolve_rest(const Layer &layer, int64_t o, const float *x, int64_t size,
                          const Start &start, float *out, const Finish &finish) {
    if constexpr (M > 1) {
        if (layer.outs - o < M) {
            convolve_rest<M - 1>(layer, o, x, size, start, out, finish);
            return;
        }
    }
    convolve_block<M>(layer, o, x, size, start, out, finish);
}

// All rows: out[o, r] = finish(start[o, r] + sum_{c, t} weight[c, t, o] x[c, r + t]). `finish` takes
// a vector of sums, its channel and where it goes, and may look at what was there.
template <class Finish>
inline void convolve(const Layer &layer, int64_t rows, const float *x, int64_t size, Start start,
                     float *out, const Finish &finish) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < kRow; i += kConvVectors * W) {
            int64_t at = r * kMapLd + i;
            Start here = start;
            if (start.at) here.at += r * start.row + i;
            for (int64_t o = 0; o < layer.outs; o += kConvChannels)
                convolve_rest<kConvChannels>(layer, o, x + at, size, here, out + at, finish);
        }
}

// One of the two stacks of maps that are correlated: row r meets row r of the other, shifted by
// `shift` floats per tap, and `step` is the distance between two channels' totals.
struct Side {
    const float *at;
    int64_t count, shift, step;
};

// total[m, n] += sum of a[m] b[n]: M maps against N.
template <int M, int N>
inline void correlate_block(int64_t rows, const float *__restrict a, int64_t a_step,
                            const float *__restrict b, int64_t b_step, int64_t size,
                            double *total) {
    V sums[M][N];
#pragma GCC unroll 6
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = V{};
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * kMapLd; i < r * kMapLd + kRow; i += W) {
            V right[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) right[n] = load(b + n * size + i);
#pragma GCC unroll 6
            for (int m = 0; m < M; m++) {
                V left = load(a + m * size + i);
#pragma GCC unroll 4
                for (int n = 0; n < N; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
            }
        }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) total[m * a_step + n * b_step] += sum(sums[m][n]);
}

// total[i a.step + j b.step + t] += the product of maps i and j at tap t, over blocks of rows that
// stay in the cache while the taps go over them.
template <int M>
inline void correlate_by(const Side &a, const Side &b, int64_t taps, int64_t rows, int64_t size,
                         double *total) {
    constexpr int N = kConvChannels / 2;
    constexpr int64_t kRows = 16;
    for (int64_t r = 0; r < rows; r += kRows)
        for (int64_t i = 0; i < a.count; i += M)
            for (int64_t j = 0; j < b.count; j += N)
                for (int64_t t = 0; t < taps; t++) {
                    int64_t n = smaller(kRows, rows - r);
                    const float *left = a.at + i * size + r * kMapLd + t * a.shift;
                    const float *right = b.at + j * size + r * kMapLd + t * b.shift;
                    double *to = total + i * a.step + j * b.step + t;
                    if (i + M <= a.count && j + N <= b.count) {
                        correlate_block<M, N>(n, left, a.step, right, b.step, size, to);
                        continue;
                    }
                    for (int64_t k = 0; k < smaller(M, a.count - i); k++)
                        for (int64_t l = 0; l < smaller(N, b.count - j); l++)
                            correlate_block<1, 1>(n, left + k * size, 0, right + l * size, 0, size,
                                                  to + k * a.step + l * b.step);
                }
}

inline void correlate(const Side &a, const Side &b, int64_t taps, int64_t rows, int64_t size,
                      double *total) {
    if (a.count % 6 == 0)
        correlate_by<6>(a, b, taps, rows, size, total);
    else
        correlate_by<4>(a, b, taps, rows, size, total);
}

// total[o] += sum of all of d[o].
inline void add_up(int64_t outs, int64_t rows, const float *d, int64_t size, double *total) {
    for (int64_t o = 0; o < outs; o++) {
        V all = V{};
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < kRow; i += W) all += load(d + o * size + r * kMapLd + i);
        total[o] += sum(all);
    }
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
