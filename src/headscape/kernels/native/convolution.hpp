// The convolutions of DAPEv2 along the keys. DAPE is the case of one tap.
//
// Maps are stored as [channel, key, query], a row of kRow queries and then zeros: the row is a few
// vectors, and a step along the keys is a step to the next row, so a tap needs no shuffling. The
// zeros are what add_diagonals asks for. From one channel to the next there are `size` floats, an odd
// number of rows and a cache line, so that the channels of a row spread over all sets of the cache.
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

    V load(int64_t r, int64_t o, int64_t n) const {
        return at ? headscape::HEADSCAPE_ISA::load(at + o * channel + r * row + n * W) : V{};
    }
};

// sums[m, n] += sum_c w[c, m] read(x[c], n): `step` floats from one channel's weights to the next.
template <int M, class Read>
inline __attribute__((always_inline)) void add_channels(V (&sums)[M][kConvVectors], int64_t channels,
                                                        const float *w, int64_t step, const float *x,
                                                        int64_t size, const Read &read) {
    for (int64_t c = 0; c < channels; c++, w += step, x += size) {
        V right[kConvVectors];
#pragma GCC unroll 3
        for (int n = 0; n < kConvVectors; n++) right[n] = read(x + n * W);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            V left = splat(w[m]);
#pragma GCC unroll 3
            for (int n = 0; n < kConvVectors; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
        }
    }
}

// each(m, n) for all of a block of registers.
template <int M, class Each>
inline __attribute__((always_inline)) void for_block(const Each &each) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 3
        for (int n = 0; n < kConvVectors; n++) each(m, n);
}

// M output channels of one row: out[m, i] = finish(start[m, i] + sum_{c, t} w[c, t, m] x[c, t, i]).
// Not inlined: what a caller keeps in registers would push sums out of them.
template <int M, class Finish>
__attribute__((noinline)) void convolve_row(const Layer &layer, int64_t o,
                                            const float *__restrict x, int64_t size,
                                            const Start &start, float *__restrict out,
                                            const Finish &finish) {
    V sums[M][kConvVectors];
    for_block<M>([&](int m, int n) { sums[m][n] = start.load(0, o + m, n); });
    for (int64_t t = 0; t < layer.taps; t++)
        add_channels<M>(sums, layer.channels, layer.weight + t * layer.stride + o,
                        layer.taps * layer.stride, x + t * kMapLd, size,
                        [](const float *at) { return load(at); });
    for_block<M>([&](int m, int n) {
        float *to = out + (o + m) * size + n * W;
        store(to, finish(sums[m][n], o + m, to));
    });
}

// The same for three taps and two rows, by Winograd's F(2, 3): with x_0 ... x_3 the rows that both
// read and g_0 ... g_2 the taps, four products instead of six,
//
//     a = (x_0 - x_2) g_0                        row 0 = a + b + c
//     b = (x_1 + x_2) (g_0 + g_1 + g_2) / 2      row 1 = b - c - d
//     c = (x_2 - x_1) (g_0 - g_1 + g_2) / 2
//     d = (x_1 - x_3) g_2
//
// each summed over channels. `points` are the right-hand factors [4, c, o], see find_points.
template <int M, class Finish>
__attribute__((noinline)) void convolve_pair(const Layer &layer, const float *points, int64_t o,
                                             const float *__restrict x, int64_t size,
                                             const Start &start, float *__restrict out,
                                             const Finish &finish) {
    int64_t channels = layer.channels, outs = layer.outs;
    const float *w = points + o;
    V sums[M][kConvVectors], other[M][kConvVectors];
    for_block<M>([&](int m, int n) { sums[m][n] = V{}; });
    add_channels<M>(sums, channels, w + channels * outs, outs, x, size, [](const float *at) {
        return load(at + kMapLd) + load(at + 2 * kMapLd);
    });
    for_block<M>([&](int m, int n) { other[m][n] = sums[m][n], sums[m][n] = V{}; });
    add_channels<M>(sums, channels, w + 2 * channels * outs, outs, x, size, [](const float *at) {
        return load(at + 2 * kMapLd) - load(at + kMapLd);
    });
    for_block<M>([&](int m, int n) {
        V b = other[m][n], c = sums[m][n];
        sums[m][n] = b + c + start.load(0, o + m, n);
        other[m][n] = b - c + start.load(1, o + m, n);
    });
    add_channels<M>(sums, channels, w, outs, x, size, [](const float *at) {
        return load(at) - load(at + 2 * kMapLd);
    });
    for_block<M>([&](int m, int n) {
        float *to = out + (o + m) * size + n * W;
        store(to, finish(sums[m][n], o + m, to));
        sums[m][n] = other[m][n];
    });
    add_channels<M>(sums, channels, w + 3 * channels * outs, outs, x, size, [](const float *at) {
        return load(at + 3 * kMapLd) - load(at + kMapLd);
    });
    for_block<M>([&](int m, int n) {
        float *to = out + (o + m) * size + kMapLd + n * W;
        store(to, finish(sums[m][n], o + m, to));
    });
}

template <int M>
struct Width {
    static constexpr int value = M;
};

// run(o, Width<M>) for blocks of M of the output channels from o on, the last ones narrower.
template <int M, class Run>
inline void in_blocks(int64_t o, int64_t outs, const Run &run) {
    for (; o + M <= outs; o += M) run(o, Width<M>{});
    if constexpr (M > 1)
        if (o < outs) in_blocks<M - 1>(o, outs, run);
}

// The right-hand factors of convolve_pair.
inline void find_points(const Layer &layer, float *points) {
    int64_t outs = layer.outs, all = layer.channels * outs;
    for (int64_t c = 0; c < layer.channels; c++)
        for (int64_t o = 0; o < outs; o++) {
            const float *g = layer.weight + c * 3 * layer.stride + o;
            float *to = points + c * outs + o;
            float sides = g[0] + g[2 * layer.stride], mid = g[layer.stride];
            to[0] = g[0], to[3 * all] = g[2 * layer.stride];
            to[all] = (sides + mid) / 2, to[2 * all] = (sides - mid) / 2;
        }
}

// All rows: out[o, r] = finish(start[o, r] + sum_{c, t} weight[c, t, o] x[c, r + t]). `finish` takes
// a vector of sums, its channel and where it goes, and may look at what was there. `points` has
// room for 4 floats per channel and output.
template <class Finish>
inline void convolve(const Layer &layer, int64_t rows, const float *x, int64_t size, Start start,
                     float *out, float *points, const Finish &finish) {
    int64_t r = 0, pairs = layer.taps == 3 ? rows / 2 * 2 : 0;
    if (pairs) find_points(layer, points);
    for (; r < rows; r += r < pairs ? 2 : 1)
        for (int64_t i = 0; i < kRow; i += kConvVectors * W) {
            int64_t at = r * kMapLd + i;
            Start here = start;
            if (start.at) here.at += r * start.row + i;
            in_blocks<kConvChannels>(0, layer.outs, [&](int64_t o, auto width) {
                constexpr int M = decltype(width)::value;
                if (r < pairs)
                    convolve_pair<M>(layer, points, o, x + at, size, here, out + at, finish);
                else
                    convolve_row<M>(layer, o, x + at, size, here, out + at, finish);
            });
        }
}

// The gradients of the weights and biases: correlations of two stacks of maps, and sums of one.

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
