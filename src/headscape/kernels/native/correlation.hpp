// The gradients of the weights and biases of DAPEv2's convolutions: correlations of two stacks of
// maps, as convolution.hpp stores them, and sums of one.
#pragma once

#include "convolution.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr int64_t kCorrelated = 16;  // rows that stay in the cache while the taps go over them

// One of the two stacks of maps that are correlated; `step` is the distance between two channels'
// totals.
struct Side {
    const float *at;
    int64_t count, step;
};

// found[m, n] = the sum of left(a[m]) right(b[n]) over `count` rows, `stride` floats apart.
template <int M, int N, class Left, class Right>
inline __attribute__((always_inline)) void add_rows(V (&found)[M][N], int64_t count, int64_t stride,
                                                    const float *a, const float *b, int64_t size,
                                                    const Left &left, const Right &right) {
    V sums[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[m][n] = V{};
    for (int64_t r = 0; r < count; r++, a += stride, b += stride)
        for (int64_t i = 0; i < kRow; i += W) {
            V rights[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) rights[n] = right(b + n * size + i);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                V one = left(a + m * size + i);
#pragma GCC unroll 4
                for (int n = 0; n < N; n++) sums[m][n] = fma(one, rights[n], sums[m][n]);
            }
        }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) found[m][n] = sums[m][n];
}

// total[m, n, t] += sum_r a[m, r] b[n, r + t]: M maps against N.
template <int M, int N>
inline void correlate_block(int64_t taps, int64_t rows, const float *__restrict a, int64_t a_step,
                            const float *__restrict b, int64_t b_step, int64_t size,
                            double *total) {
    V sums[M][N];
    auto plain = [](const float *at) { return load(at); };
    for (int64_t t = 0; t < taps; t++) {
        add_rows(sums, rows, kMapLd, a, b + t * kMapLd, size, plain, plain);
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) total[m * a_step + n * b_step + t] += sum(sums[m][n]);
    }
}

// The same for three taps and pairs of rows, by Winograd's F(3, 2): with y_0, y_1 rows of `a` and
// x_0 ... x_3 rows of `b`, the products sums[0] = (x_0 - x_2) y_0, sums[1] = (x_1 + x_2) (y_0 + y_1),
// sums[2] = (x_2 - x_1) (y_0 - y_1) and sums[3] = (x_1 - x_3) y_1 serve all three taps.
template <int M, int N>
inline void correlate_pairs(int64_t pairs, const float *__restrict a, int64_t a_step,
                            const float *__restrict b, int64_t b_step, int64_t size,
                            double *total) {
    constexpr int64_t ld = kMapLd;
    V sums[4][M][N];
    add_rows(
        sums[0], pairs, 2 * ld, a, b, size, [](const float *at) { return load(at); },
        [](const float *at) { return load(at) - load(at + 2 * ld); });
    add_rows(
        sums[1], pairs, 2 * ld, a, b, size,
        [](const float *at) { return load(at) + load(at + ld); },
        [](const float *at) { return load(at + ld) + load(at + 2 * ld); });
    add_rows(
        sums[2], pairs, 2 * ld, a, b, size,
        [](const float *at) { return load(at) - load(at + ld); },
        [](const float *at) { return load(at + 2 * ld) - load(at + ld); });
    add_rows(
        sums[3], pairs, 2 * ld, a, b, size, [](const float *at) { return load(at + ld); },
        [](const float *at) { return load(at + ld) - load(at + 3 * ld); });
    V half = splat(0.5f);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            double *to = total + m * a_step + n * b_step;
            V both = half * (sums[1][m][n] + sums[2][m][n]);
            to[0] += sum(sums[0][m][n] + both);
            to[1] += sum(half * (sums[1][m][n] - sums[2][m][n]));
            to[2] += sum(both - sums[3][m][n]);
        }
}

// total[i a.step + j b.step + t] += the product of maps i of a and j of b, t rows further down, over
// blocks of rows that stay in the cache while the taps go over them.
template <int M, int N>
inline void correlate_by(const Side &a, const Side &b, int64_t taps, int64_t rows, int64_t size,
                         double *total) {
    for (int64_t r = 0; r < rows; r += kCorrelated)
        for (int64_t i = 0; i < a.count; i += M)
            for (int64_t j = 0; j < b.count; j += N) {
                int64_t n = smaller(kCorrelated, rows - r);
                const float *left = a.at + i * size + r * kMapLd;
                const float *right = b.at + j * size + r * kMapLd;
                double *to = total + i * a.step + j * b.step;
                if (i + M > a.count || j + N > b.count) {
                    for (int64_t k = 0; k < smaller(M, a.count - i); k++)
                        for (int64_t l = 0; l < smaller(N, b.count - j); l++)
                            correlate_block<1, 1>(taps, n, left + k * size, 0, right + l * size, 0,
                                                  size, to + k * a.step + l * b.step);
                } else if (taps == 3 && n % 2 == 0) {
                    correlate_pairs<M, N>(n / 2, left, a.step, right, b.step, size, to);
                } else {
                    correlate_block<M, N>(taps, n, left, a.step, right, b.step, size, to);
                }
            }
}

inline void correlate(const Side &a, const Side &b, int64_t taps, int64_t rows, int64_t size,
                      double *total) {
    if (a.count % 6 == 0)
        correlate_by<6, kConvChannels / 2>(a, b, taps, rows, size, total);
    else if (a.count % kConvChannels == 0 && b.count % 3 == 0)
        correlate_by<kConvChannels, 3>(a, b, taps, rows, size, total);
    else
        correlate_by<4, kConvChannels / 2>(a, b, taps, rows, size, total);
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
