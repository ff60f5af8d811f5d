// DAPE and DAPEv2: attention whose scores pass through a convolution across heads and keys.
//
//     X = [A ; B], 0 where hidden        A = scale Q K^T, B the bias, h heads each
//     Z = leaky(conv1 X)                 0 left of the first key; see `Halo` for the right
//     S = A (+ B) + conv2 Z
//
// For a tile of m keys, with p = taps / 2, Z is needed on p more keys on either side and X on 2 p,
// so these are recomputed at the seams. Backward, a tile sends the gradients of its own m columns of
// S to all m + 4 p columns of X: the parts of neighbouring tiles add up, since everything is linear
// in dS once the signs of Z are known. All heads of a tile are held at once.
#pragma once

#include "attention.hpp"
#include "convolution.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr float kLeak = 0.01f;

// Where a key tile's neighbourhood lies: `x` is the part of it that has keys.
struct Halo {
    int64_t p, rows;           // rows of X: the tile's and 2 p on either side
    Tile x;                    // the keys that X covers
    int64_t x_row;             // the row of X that holds the first of them
    int64_t z_first, z_last;   // rows of Z that are not zero by definition

    Halo(const Problem &problem, const Tile &k) : p(problem.taps / 2), rows(k.count + 4 * p) {
        int64_t from = k.start - 2 * p, to = k.start + k.count + 2 * p;
        int64_t first = from > k.run_start ? from : k.run_start;
        x = {first, smaller(to, k.run_end) - first, k.position + first - k.start, k.group,
             k.run_start, k.run_end};
        x_row = first - from;
        int64_t z_from = k.start - p, z_end = problem.keys + (problem.released ? 0 : p);
        z_first = clamp(k.run_start - z_from, 0, k.count + 2 * p);
        z_last = clamp(z_end - z_from, 0, k.count + 2 * p);
    }
};

// The maps of one tile; all are [channel, row, kRow].
struct Maps {
    int64_t channels;
    int64_t x_size, z_size, y_size, d_size;  // from one channel to the next
    float *x, *z, *y;                        // [A ; B], hidden maps, conv2 Z
    float *g, *d, *dx;                       // backward: dS with 2 p zero rows about, dZ likewise, dX
    float *tile, *d_tile;                    // one head's scores, laid out as in attention.hpp

    static int64_t channel_count(const Problem &p) {
        return p.heads * (p.kind == kNone ? 1 : 2);
    }
    static int64_t most_rows(const Problem &p) { return kMixKeys + 6 * (p.taps / 2); }
    static int64_t floats(const Problem &p, bool backward) {
        int64_t maps = channel_count(p) + p.hidden + p.heads;
        if (backward) maps += p.heads + p.hidden + channel_count(p);
        return maps * most_rows(p) * kRow + 2 * kScores;
    }
    Maps(const Problem &p, float *scratch, bool backward) : channels(channel_count(p)) {
        x_size = z_size = y_size = d_size = most_rows(p) * kRow;
        tile = scratch + W;
        d_tile = tile + kScores;
        x = scratch + 2 * kScores;
        z = x + channels * x_size;
        y = z + p.hidden * z_size;
        g = d = dx = nullptr;
        if (!backward) return;
        g = y + p.heads * y_size;
        d = g + p.heads * d_size;
        dx = d + p.hidden * d_size;
    }
};

inline Lanes visible(const Pair &pair, int64_t i, int64_t j) {
    return pair.p.causal ? Seen::lanes(pair, i, j) : bits(V{}) - 1;
}

// X, Z and conv2 Z of one pair of tiles.
template <class Bias>
inline void mix(const Pair &pair, const Halo &halo, const Maps &maps, Bias &bias,
                const float *turned) {
    const Problem &p = pair.p;
    int64_t e = p.head_dim, x_at = halo.x_row * kRow, after = halo.x_row + halo.x.count;
    for (int64_t c = 0; c < maps.channels; c++) {
        memset(maps.x + c * maps.x_size, 0, x_at * sizeof(float));
        memset(maps.x + c * maps.x_size + after * kRow, 0,
               (halo.rows - after) * kRow * sizeof(float));
    }
    for (int64_t h = 0; h < p.heads; h++) {
        Pair wide{p, pair.row, h, pair.part, pair.q, halo.x};
        float *a = maps.x + h * maps.x_size + x_at, *b = a + p.heads * maps.x_size;
        const float *key = p.k + (wide.of_head() * p.keys + halo.x.start) * e;
        int64_t reach = p.causal ? wide.gap() : kEverything;
        along_queries(halo.x.count, kRow, e, key, e, turned + h * e * kRow, kRow, a, kRow, reach);
        bias.enter(wide);
        for (int64_t i = 0; i < kRow; i += W) {
            int64_t seen = i < pair.q.count ? Seen(wide, i).any : 0;
            auto c = bias.column(i < pair.q.count ? i : 0);
            for (int64_t j = 0; j < seen; j++) {
                Lanes lanes = visible(wide, i, j);
                store(a + j * kRow + i, choose(lanes, load(a + j * kRow + i), V{}));
                if (p.kind != kNone)
                    store(b + j * kRow + i, choose(lanes, bias.value(c, j), V{}));
            }
            for (int64_t j = seen; j < halo.x.count; j++) {
                store(a + j * kRow + i, V{});
                if (p.kind != kNone) store(b + j * kRow + i, V{});
            }
        }
    }
    int64_t z_rows = pair.k.count + 2 * halo.p;
    convolve(maps.channels, p.hidden, p.taps, z_rows, maps.x, maps.x_size, p.in_weight, p.in_bias,
             maps.z, maps.z_size);
    for (int64_t o = 0; o < p.hidden; o++) {
        float *z = maps.z + o * maps.z_size;
        memset(z, 0, halo.z_first * kRow * sizeof(float));
        for (int64_t i = halo.z_first * kRow; i < halo.z_last * kRow; i += W)
            store(z + i, larger(load(z + i) * splat(kLeak), load(z + i)));
        memset(z + halo.z_last * kRow, 0, (z_rows - halo.z_last) * kRow * sizeof(float));
    }
    convolve(p.hidden, p.heads, p.taps, pair.k.count, maps.z, maps.z_size, p.out_weight, p.out_bias,
             maps.y, maps.y_size);
}

// One head's final scores, into a score tile.
inline void gather_scores(const Pair &pair, const Halo &halo, const Maps &maps) {
    const Problem &p = pair.p;
    const float *a = maps.x + pair.head * maps.x_size + 2 * halo.p * kRow;
    const float *b = a + p.heads * maps.x_size, *y = maps.y + pair.head * maps.y_size;
    bool adds = p.kind != kNone && p.adds_bias;
    for (int64_t j = 0; j < pair.k.count; j++)
        for (int64_t i = 0; i < kRow; i += W) {
            V s = load(a + j * kRow + i) + load(y + j * kRow + i);
            if (adds) s += load(b + j * kRow + i);
            store(maps.tile + j * kLd + i, s);
        }
}

template <class Bias>
inline void mixed_forward_tile(const Problem &p, const Plan &plan, int64_t row, const Tile &q,
                               float *scratch, float *bias_scratch) {
    int64_t e = p.head_dim;
    Maps maps(p, scratch, false);
    float *turned = scratch + Maps::floats(p, false);
    float *top = turned + p.heads * e * kRow, *total = top + p.heads * kRow;
    float *factor = total + p.heads * kRow;
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = ((row * p.heads + h) * p.queries + q.start) * e;
        transpose(p.q + at, q.count, e, kRow, (float)p.scale, turned + h * e * kRow, kRow);
        memset(p.out + at, 0, q.count * e * sizeof(float));
    }
    for (int64_t i = 0; i < p.heads * kRow; i++) top[i] = kHidden, total[i] = 0;
    Bias bias(p, bias_scratch);
    None none(p, nullptr);
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Halo halo(p, k);
        mix(Pair{p, row, 0, 0, q, k}, halo, maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++) {
            Pair pair{p, row, h, 0, q, k};
            int64_t reach = p.causal ? pair.gap() : kEverything;
            gather_scores(pair, halo, maps);
            soften(pair, none, maps.tile, top + h * kRow, total + h * kRow, factor);
            over_keys<Into::kScaleAdd>(q.count, e, k.count, maps.tile, kLd,
                                       p.v + (pair.of_head() * p.keys + k.start) * e, e,
                                       p.out + (pair.of_head() * p.queries + q.start) * e, e,
                                       factor, reach);
        }
    }
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = (row * p.heads + h) * p.queries + q.start;
        conclude(q.count, e, top + h * kRow, total + h * kRow, p.out + at * e, p.lse + at);
    }
}

// Gradients of one head's channels of X: to q and k, and to the bias.
template <class Bias, bool kLearns>
inline void send_back(const Pair &wide, const Halo &halo, const Maps &maps, Bias &bias,
                      const float *own, int64_t own_row, int64_t own_count) {
    const Problem &p = wide.p;
    int64_t e = p.head_dim, h = wide.head, count = wide.k.count;
    int64_t reach = p.causal ? wide.gap() : kEverything, end = rounded_up(wide.q.count, W);
    const float *da = maps.dx + h * maps.x_size + halo.x_row * kRow;
    const float *db = da + p.heads * maps.x_size;
    auto with_own = [&](V grad, int64_t i, int64_t j) {
        int64_t r = j - own_row;
        return r >= 0 && r < own_count ? grad + load(own + r * kRow + i) : grad;
    };
    for (int64_t i = 0; i < end; i += W) {
        int64_t seen = Seen(wide, i).any;
        for (int64_t j = 0; j < seen; j++) {
            V grad = with_own(load(da + j * kRow + i), i, j);
            store(maps.d_tile + j * kLd + i, choose(visible(wide, i, j), grad, V{}));
        }
        for (int64_t j = seen; j < count; j++) store(maps.d_tile + j * kLd + i, V{});
    }
    int64_t q_at = (wide.of_head() * p.queries + wide.q.start) * e;
    int64_t k_at = wide.k.start * e;
    over_keys<Into::kAdd>(wide.q.count, e, count, maps.d_tile, kLd,
                          p.k + wide.of_head() * p.keys * e + k_at, e, p.d_q + q_at, e, nullptr,
                          reach);
    over_queries(count, e, wide.q.count, maps.d_tile, kLd, p.q + q_at, e,
                 p.d_k + wide.of_part() * p.keys * e + k_at, e, reach);
    if (!kLearns) return;
    bias.enter(wide);
    for (int64_t i = 0; i < end; i += W) {
        auto c = bias.column(i);
        int64_t seen = Seen(wide, i).any;
        for (int64_t j = 0; j < seen; j++) {
            V grad = load(db + j * kRow + i);
            if (p.adds_bias) grad = with_own(grad, i, j);
            grad = choose(visible(wide, i, j), grad, V{});
            store(maps.d_tile + j * kLd + i, grad);
            bias.value(c, j);
            bias.learn(c, j, grad);
        }
        for (int64_t j = seen; j < count; j++) store(maps.d_tile + j * kLd + i, V{});
        bias.finish(c);
    }
    for (int64_t j = 0; j < count; j++) store(maps.d_tile + j * kLd + end, V{});
    bias.leave(wide, maps.d_tile);
}

template <class Bias, bool kLearns>
inline void mixed_backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t part,
                                const Tile &q, float *scratch, Bias &bias) {
    int64_t e = p.head_dim;
    Maps maps(p, scratch, true);
    float *turned = scratch + Maps::floats(p, true), *d_turned = turned + p.heads * e * kRow;
    float *lse = d_turned + p.heads * e * kRow, *delta = lse + p.heads * kRow;
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = (row * p.heads + h) * p.queries + q.start;
        transpose(p.q + at * e, q.count, e, kRow, (float)p.scale, turned + h * e * kRow, kRow);
        transpose(p.d_out + at * e, q.count, e, kRow, 1, d_turned + h * e * kRow, kRow);
        memset(p.d_q + at * e, 0, q.count * e * sizeof(float));
        recall(p, at, q.count, kRow, lse + h * kRow, delta + h * kRow);
    }
    int64_t group = part * p.batch + row;
    None none(p, nullptr);
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Halo halo(p, k);
        int64_t m = k.count, z_rows = m + 2 * halo.p, edge = 2 * halo.p * kRow;
        mix(Pair{p, row, 0, part, q, k}, halo, maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++) {
            Pair pair{p, row, h, part, q, k};
            int64_t reach = p.causal ? pair.gap() : kEverything;
            int64_t k_at = (pair.of_head() * p.keys + k.start) * e;
            gather_scores(pair, halo, maps);
            along_queries(m, kRow, e, p.v + k_at, e, d_turned + h * e * kRow, kRow, maps.d_tile,
                          kLd, kEverything);
            differentiate<None, false>(pair, none, maps.tile, maps.d_tile, lse + h * kRow,
                                       delta + h * kRow);
            over_queries(m, e, q.count, maps.tile, kLd,
                         p.d_out + (pair.of_head() * p.queries + q.start) * e, e,
                         p.d_v + (pair.of_part() * p.keys + k.start) * e, e, reach);
            float *g = maps.g + h * maps.d_size;
            memset(g, 0, edge * sizeof(float));
            memset(g + edge + m * kRow, 0, edge * sizeof(float));
            for (int64_t j = 0; j < m; j++)
                for (int64_t i = 0; i < kRow; i += W) {
                    V ds = i < q.count ? load(maps.d_tile + j * kLd + i) : V{};
                    store(g + edge + j * kRow + i, choose(visible(pair, i, j), ds, V{}));
                }
        }
        correlate(p.heads, p.hidden, p.taps, m, maps.g + edge, maps.d_size, maps.z, maps.z_size,
                  p.d_out_weight + group * p.heads * p.hidden * p.taps);
        add_up(p.heads, m * kRow, maps.g + edge, maps.d_size, p.d_out_bias + group * p.heads);
        convolve(p.heads, p.hidden, p.taps, z_rows, maps.g, maps.d_size, p.out_back, nullptr,
                 maps.d + edge, maps.d_size);
        for (int64_t o = 0; o < p.hidden; o++) {
            float *d = maps.d + o * maps.d_size, *inner = d + edge;
            const float *z = maps.z + o * maps.z_size;
            memset(d, 0, (edge + halo.z_first * kRow) * sizeof(float));
            for (int64_t i = halo.z_first * kRow; i < halo.z_last * kRow; i += W) {
                V full = load(inner + i);
                store(inner + i, choose((Lanes)(load(z + i) > V{}), full, full * splat(kLeak)));
            }
            memset(inner + halo.z_last * kRow, 0,
                   (edge + (z_rows - halo.z_last) * kRow) * sizeof(float));
        }
        correlate(p.hidden, maps.channels, p.taps, z_rows, maps.d + edge, maps.d_size, maps.x,
                  maps.x_size, p.d_in_weight + group * p.hidden * maps.channels * p.taps);
        add_up(p.hidden, z_rows * kRow, maps.d + edge, maps.d_size,
               p.d_in_bias + group * p.hidden);
        convolve(p.hidden, maps.channels, p.taps, halo.rows, maps.d, maps.d_size, p.in_back,
                 nullptr, maps.dx, maps.x_size);
        for (int64_t h = 0; h < p.heads; h++)
            send_back<Bias, kLearns>(Pair{p, row, h, part, q, halo.x}, halo, maps, bias,
                                     maps.g + h * maps.d_size + edge, 2 * halo.p - halo.x_row, m);
    }
    V by = splat((float)p.scale);
    for (int64_t h = 0; h < p.heads; h++) {
        float *d_q = p.d_q + ((row * p.heads + h) * p.queries + q.start) * e;
        for (int64_t n = 0; n < q.count * e; n += W) store(d_q + n, load(d_q + n) * by);
    }
}

template <class Bias, bool kLearns>
inline void mixed_backward_part(const Problem &p, const Plan &plan, int64_t row, int64_t part,
                                float *scratch, float *bias_scratch) {
    Bias bias(p, bias_scratch);
    int64_t size = p.heads * p.keys * p.head_dim, at = (part * p.batch + row) * size;
    memset(p.d_k + at, 0, size * sizeof(float));
    memset(p.d_v + at, 0, size * sizeof(float));
    for (int64_t t = plan.q_begin[row] + part; t < plan.q_begin[row + 1]; t += p.parts)
        mixed_backward_tile<Bias, kLearns>(p, plan, row, part, plan.q[t], scratch, bias);
    V by = splat((float)p.scale);
    for (int64_t n = 0; n < size; n += W) store(p.d_k + at + n, load(p.d_k + at + n) * by);
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
