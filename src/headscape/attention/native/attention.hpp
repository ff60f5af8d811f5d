// Attention over tiles: online softmax forward, recomputation backward.
//
//     forward    for each query tile: for each key tile that it sees
//                    S = scale Q K^T + B;  m' = max(m, S);  P = exp(S - m')
//                    O = exp(m - m') O + P V;  l = exp(m - m') l + sum P
//                out = O / l,  lse = m + log l
//     backward   P = exp(S - lse);  dS = P (dO V^T - delta),  delta_i = dO_i . out_i
//                dV += P^T dO;  dQ += scale dS K;  dK += scale dS^T Q;  dB = dS
//
// All tiles of scores are transposed (see gemm.hpp). Memory is a few tiles per thread. A head's dK
// and dV belong to one worker at a time, which goes through its query tiles in order: no locks, and
// the same sums in the same order for a given number of parts.
#pragma once

#include <stdlib.h>

#include "bias.hpp"
#include "gemm.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

// Below the last row that a block of queries sees, this many rows of zeros: the products work on
// blocks of rows and may read that far.
constexpr int64_t kZeroRows = W + kMicroRows;
constexpr float kHidden = -1e30f;

inline bool sees(const Problem &p, const Tile &q, const Tile &k) {
    return q.group == k.group && (!p.causal || k.position < q.position + q.count);
}

// How many keys of the pair the queries i ... i + W - 1 see: all of them, and any of them.
struct Seen {
    int64_t all, any, zeros;
    Seen(const Pair &pair, int64_t i) {
        int64_t keys = pair.k.count, gap = pair.gap();
        all = pair.p.causal ? clamp(gap + i + 1, 0, keys) : keys;
        any = pair.p.causal ? clamp(gap + i + W, 0, keys) : keys;
        zeros = smaller(keys, any + kZeroRows);
    }
    // Which of the W queries from i on see key j.
    static Lanes lanes(const Pair &pair, int64_t i, int64_t j) {
        int32_t first = (int32_t)clamp(j - pair.gap() - i, 0, W);
        return (Lanes)(lane_index() >= first);
    }
};

// Scores to weights for one key tile; updates the running maximum and sum, leaves the factor for
// what was summed before.
template <class Bias>
inline void soften(const Pair &pair, Bias &bias, float *s, int64_t ld, float *top, float *total,
                   float *factor) {
    bias.enter(pair);
    for (int64_t i = 0; i < pair.q.count; i += W) {
        Seen seen(pair, i);
        auto c = bias.column(i);
        V before = load(top + i), now = before;
        for (int64_t j = 0; j < seen.all; j++) {
            V x = load(s + j * ld + i) + bias.value(c, j);
            store(s + j * ld + i, x);
            now = larger(x, now);
        }
        for (int64_t j = seen.all; j < seen.any; j++) {
            V x = load(s + j * ld + i) + bias.value(c, j);
            x = choose(Seen::lanes(pair, i, j), x, splat(kHidden));
            store(s + j * ld + i, x);
            now = larger(x, now);
        }
        V sum = V{};
        for (int64_t j = 0; j < seen.all; j++) {
            V x = exponential(load(s + j * ld + i) - now);
            store(s + j * ld + i, x);
            sum += x;
        }
        for (int64_t j = seen.all; j < seen.any; j++) {
            V x = exponential(load(s + j * ld + i) - now);
            x = choose(Seen::lanes(pair, i, j), x, V{});
            store(s + j * ld + i, x);
            sum += x;
        }
        for (int64_t j = seen.any; j < seen.zeros; j++) store(s + j * ld + i, V{});
        V keep = exponential(before - now);
        store(factor + i, keep);
        store(total + i, fma(load(total + i), keep, sum));
        store(top + i, now);
    }
}

// out / total, and the logarithm of the denominator; zeros for queries that see nothing.
inline void conclude(int64_t count, int64_t e, const float *top, const float *total, float *out,
                     float *lse) {
    for (int64_t i = 0; i < count; i++) {
        V by = splat(total[i] == 0 ? 0.0f : 1 / total[i]);
        for (int64_t n = 0; n < e; n += W) store(out + i * e + n, load(out + i * e + n) * by);
        lse[i] = total[i] == 0 ? 0.0f : top[i] + logf(total[i]);
    }
}

template <class Bias>
inline void forward_tile(const Problem &p, const Plan &plan, const Unit &unit, float *scratch,
                         float *bias_scratch) {
    const Tile &q = plan.q[unit.tile];
    int64_t e = p.head_dim, padded = rounded_up(q.count, W), head = unit.row * p.heads + unit.head;
    float *s = scratch + W, *turned = scratch + kScores;
    float *top = turned + e * kQueryTile, *total = top + kQueryTile, *factor = total + kQueryTile;
    float *out = p.out + (head * p.queries + q.start) * e;
    transpose(p.q + (head * p.queries + q.start) * e, q.count, e, padded, (float)p.scale, turned,
              kQueryTile);
    for (int64_t i = 0; i < padded; i++) top[i] = kHidden, total[i] = 0;
    memset(out, 0, q.count * e * sizeof(float));
    Bias bias(p, bias_scratch);
    for (int64_t t = plan.k_begin[unit.row]; t < plan.k_begin[unit.row + 1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, unit.row, unit.head, 0, q, k};
        int64_t reach = p.causal ? pair.gap() : kEverything, at = (head * p.keys + k.start) * e;
        along_queries(k.count, padded, e, p.k + at, e, turned, kQueryTile, s, kLd, reach);
        soften(pair, bias, s, kLd, top, total, factor);
        over_keys<Into::kScaleAdd>(q.count, e, k.count, s, kLd, p.v + at, e, out, e, factor, reach);
    }
    conclude(q.count, e, top, total, out, p.lse + head * p.queries + q.start);
}

// s: scores in, weights out. d: gradients of the weights in, of the scores out.
template <class Bias, bool kLearns>
inline void differentiate(const Pair &pair, Bias &bias, float *s, float *d, int64_t ld,
                          const float *lse, const float *delta) {
    bias.enter(pair);
    int64_t i = 0;
    for (; i < pair.q.count; i += W) {
        Seen seen(pair, i);
        auto c = bias.column(i);
        V less = load(lse + i), mean = load(delta + i);
        for (int64_t j = 0; j < seen.all; j++) {
            V x = exponential(load(s + j * ld + i) + bias.value(c, j) - less);
            V ds = x * (load(d + j * ld + i) - mean);
            store(s + j * ld + i, x);
            store(d + j * ld + i, ds);
            if (kLearns) bias.learn(c, j, ds);
        }
        for (int64_t j = seen.all; j < seen.any; j++) {
            V x = exponential(load(s + j * ld + i) + bias.value(c, j) - less);
            x = choose(Seen::lanes(pair, i, j), x, V{});
            V ds = choose(Seen::lanes(pair, i, j), x * (load(d + j * ld + i) - mean), V{});
            store(s + j * ld + i, x);
            store(d + j * ld + i, ds);
            if (kLearns) bias.learn(c, j, ds);
        }
        for (int64_t j = seen.any; j < seen.zeros; j++) {
            store(s + j * ld + i, V{});
            store(d + j * ld + i, V{});
        }
        if (kLearns) bias.finish(c);
    }
    if (kLearns) {
        for (int64_t j = 0; j < pair.k.count; j++) store(d + j * ld + i, V{});
        bias.leave(pair, d, ld);
    }
}

// lse and delta of `count` queries from token `at` on; up to `padded`, what makes weights 0.
inline void recall(const Problem &p, int64_t at, int64_t count, int64_t padded, float *lse,
                   float *delta) {
    int64_t e = p.head_dim;
    for (int64_t i = 0; i < padded; i++) {
        V dot = V{};
        for (int64_t n = 0; i < count && n < e; n += W)
            dot = fma(load(p.d_out + (at + i) * e + n), load(p.out + (at + i) * e + n), dot);
        delta[i] = sum(dot);
        lse[i] = i < count ? p.lse[at + i] : -kHidden;
    }
}

template <class Bias, bool kLearns>
inline void backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t head_index,
                          int64_t part, const Tile &q, float *scratch, Bias &bias) {
    int64_t e = p.head_dim, padded = rounded_up(q.count, W), head = row * p.heads + head_index;
    float *s = scratch + W, *d = s + kScores;
    float *q_turned = scratch + 2 * kScores, *d_turned = q_turned + e * kQueryTile;
    float *lse = d_turned + e * kQueryTile, *delta = lse + kQueryTile;
    int64_t from = (head * p.queries + q.start) * e;
    const float *query = p.q + from, *d_out = p.d_out + from;
    float *d_q = p.d_q + from;
    transpose(query, q.count, e, padded, (float)p.scale, q_turned, kQueryTile);
    transpose(d_out, q.count, e, padded, 1, d_turned, kQueryTile);
    memset(d_q, 0, q.count * e * sizeof(float));
    recall(p, head * p.queries + q.start, q.count, padded, lse, delta);
    float *d_k = p.d_k + (part * p.batch * p.heads + head) * p.keys * e;
    float *d_v = p.d_v + (part * p.batch * p.heads + head) * p.keys * e;
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, row, head_index, part, q, k};
        int64_t reach = p.causal ? pair.gap() : kEverything;
        const float *key = p.k + (head * p.keys + k.start) * e;
        const float *value = p.v + (head * p.keys + k.start) * e;
        along_queries(k.count, padded, e, key, e, q_turned, kQueryTile, s, kLd, reach);
        along_queries(k.count, padded, e, value, e, d_turned, kQueryTile, d, kLd, reach);
        differentiate<Bias, kLearns>(pair, bias, s, d, kLd, lse, delta);
        over_queries(k.count, e, q.count, s, kLd, d_out, e, d_v + k.start * e, e, reach);
        over_queries(k.count, e, q.count, d, kLd, query, e, d_k + k.start * e, e, reach);
        over_keys<Into::kAdd>(q.count, e, k.count, d, kLd, key, e, d_q, e, nullptr, reach);
    }
    V by = splat((float)p.scale);
    for (int64_t n = 0; n < q.count * e; n += W) store(d_q + n, load(d_q + n) * by);
}

template <class Bias, bool kLearns>
inline void backward_part(const Problem &p, const Plan &plan, int64_t row, int64_t head,
                          int64_t part, float *scratch, float *bias_scratch) {
    Bias bias(p, bias_scratch);
    int64_t size = p.keys * p.head_dim, at = ((part * p.batch + row) * p.heads + head) * size;
    memset(p.d_k + at, 0, size * sizeof(float));
    memset(p.d_v + at, 0, size * sizeof(float));
    for (int64_t t = plan.q_begin[row] + part; t < plan.q_begin[row + 1]; t += p.parts)
        backward_tile<Bias, kLearns>(p, plan, row, head, part, plan.q[t], scratch, bias);
    V by = splat((float)p.scale);
    for (int64_t n = 0; n < size; n += W) store(p.d_k + at + n, load(p.d_k + at + n) * by);
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
