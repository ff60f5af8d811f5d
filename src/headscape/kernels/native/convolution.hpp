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

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
