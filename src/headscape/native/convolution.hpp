// The convolutions of DAPEv2 along the keys, and their gradients. DAPE is the case of one tap.
//
// Maps are stored as [channel, key, query] with kMixQueries queries: a row of queries is a few
// vectors, and a step along the keys is a step to the next row, so a tap needs no shuffling.
#pragma once

#include "gemm.hpp"
#include "problem.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int64_t kRow = kMixQueries;  // floats from one key to the next

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kConvChannels = 8;
#else
constexpr int kConvChannels = 4;
#endif
constexpr int kConvVectors = 3;
static_assert(kRow % (kConvVectors * W) == 0, "a row of queries is a whole number of panels");

// One row of M output channels: out[m, i] = bias[m] + sum_{c, t} weight[c, t, m] x[c, row + t, i].
template <int M>
inline void convolve_block(int64_t channels, int64_t taps, const float *__restrict x,
                           int64_t x_channel, const float *__restrict weight, int64_t outs,
                           const float *bias, float *__restrict out, int64_t out_channel) {
    V sums[M][kConvVectors];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int n = 0; n < kConvVectors; n++) sums[m][n] = bias ? splat(bias[m]) : V{};
    for (int64_t c = 0; c < channels; c++)
        for (int64_t t = 0; t < taps; t++) {
            V right[kConvVectors];
#pragma GCC unroll 3
            for (int n = 0; n < kConvVectors; n++)
                right[n] = load(x + c * x_channel + t * kRow + n * W);
            const float *w = weight + (c * taps + t) * outs;
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                V left = splat(w[m]);
#pragma GCC unroll 3
                for (int n = 0; n < kConvVectors; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
            }
        }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int n = 0; n < kConvVectors; n++) store(out + m * out_channel + n * W, sums[m][n]);
}

template <int M>
inline void convolve_rest(int64_t count, int64_t channels, int64_t taps, const float *x,
                          int64_t x_channel, const float *weight, int64_t outs, const float *bias,
                          float *out, int64_t out_channel) {
    if constexpr (M > 1) {
        if (count < M) {
            convolve_rest<M - 1>(count, channels, taps, x, x_channel, weight, outs, bias, out,
                                 out_channel);
            return;
        }
    }
    convolve_block<M>(channels, taps, x, x_channel, weight, outs, bias, out, out_channel);
}

// All rows: out[o, r] = bias[o] + sum_{c, t} weight[c, t, o] x[c, r + t].
inline void convolve(int64_t channels, int64_t outs, int64_t taps, int64_t rows, const float *x,
                     int64_t x_channel, const float *weight, const float *bias, float *out,
                     int64_t out_channel) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < kRow; i += kConvVectors * W)
            for (int64_t o = 0; o < outs; o += kConvChannels)
                convolve_rest<kConvChannels>(outs - o, channels, taps, x + r * kRow + i, x_channel,
                                             weight + o, outs, bias ? bias + o : nullptr,
                                             out + o * out_channel + r * kRow + i, out_channel);
}

// total[m, n] += sum_i a[m, i] b[n, i]: M maps against N, W points at a time. `at` is the distance
// from one total to the next along n.
template <int M, int N>
inline void correlate_block(int64_t points, const float *__restrict a, int64_t a_channel,
                            const float *__restrict b, int64_t b_channel, double *total,
                            int64_t total_row, int64_t total_step) {
    V sums[M][N];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = V{};
    for (int64_t i = 0; i < points; i += W) {
        V right[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) right[n] = load(b + n * b_channel + i);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            V left = load(a + m * a_channel + i);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) total[m * total_row + n * total_step] += sum(sums[m][n]);
}

// total[o, c, t] += sum_{r, i} d[o, r, i] x[c, r + t, i], over blocks of rows that stay in the
// cache.
inline void correlate(int64_t outs, int64_t channels, int64_t taps, int64_t rows, const float *d,
                      int64_t d_channel, const float *x, int64_t x_channel, double *total) {
    constexpr int M = 4, N = kConvChannels / 2;
    constexpr int64_t kRows = 32;
    int64_t row = channels * taps;
    for (int64_t r = 0; r < rows; r += kRows) {
        int64_t points = smaller(kRows, rows - r) * kRow;
        for (int64_t t = 0; t < taps; t++)
            for (int64_t o = 0; o < outs; o += M)
                for (int64_t c = 0; c < channels; c += N) {
                    const float *a = d + o * d_channel + r * kRow;
                    const float *b = x + c * x_channel + (r + t) * kRow;
                    double *to = total + o * row + c * taps + t;
                    if (o + M <= outs && c + N <= channels) {
                        correlate_block<M, N>(points, a, d_channel, b, x_channel, to, row, taps);
                        continue;
                    }
                    for (int64_t m = 0; m < smaller(M, outs - o); m++)
                        for (int64_t n = 0; n < smaller(N, channels - c); n++)
                            correlate_block<1, 1>(points, a + m * d_channel, d_channel,
                                                  b + n * x_channel, x_channel,
                                                  to + m * row + n * taps, row, taps);
                }
    }
}

// total[o] += sum of all of d[o].
inline void add_up(int64_t outs, int64_t points, const float *d, int64_t d_channel, double *total) {
    for (int64_t o = 0; o < outs; o++) {
        V all = V{};
        for (int64_t i = 0; i < points; i += W) all += load(d + o * d_channel + i);
        total[o] += sum(all);
    }
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
