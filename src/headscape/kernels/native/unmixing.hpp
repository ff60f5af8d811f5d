// The backward pass of mixing.hpp: gradients of q, k, v, the bias and both convolutions.
#pragma once

#include "correlation.hpp"
#include "mixing.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

// dS of one head, in the place of S; dV on the way.
template <class Bias, bool kLearns>
inline void differentiate_mixed(const Pair &pair, const Maps &maps, Bias &bias,
                                const float *d_turned, const float *lse, const float *delta) {
    const Problem &p = pair.p;
    int64_t e = p.head_dim, m = pair.k.count;
    float *s = maps.s + pair.head * maps.size, *d = maps.spare;
    const float *value = (const float *)p.v + (pair.of_head() * p.keys + pair.k.start) * e;
    const float *d_out = (const float *)p.d_out;
    float *d_v = p.d_v + (pair.of_part() * p.keys + pair.k.start) * e;
    None none(p, nullptr);
    Straight straight(p, pair.row, pair.head, pair.q);
    along_queries(m, kRow, e, value, e, d_turned, kRow, d, kMapLd, pair.band(),
                  {d_v, m * e});
    if (p.adds_bias)
        differentiate<Bias, kLearns>(pair, bias, straight, s, d, kMapLd, lse, delta);
    else
        differentiate<None, false>(pair, none, straight, s, d, kMapLd, lse, delta);
    over_queries(m, e, pair.q.count, s, kMapLd,
                 d_out + (pair.of_head() * p.queries + pair.q.start) * e, e, d_v, e, pair.band(),
                 next_head(pair, value));
    for (int64_t j = 0; j < m; j++)
        for (int64_t i = 0; i < kRow; i += W)
            store(s + j * kMapLd + i, i < pair.q.count ? load(d + j * kMapLd + i) : V{});
    hide(pair, s);
    maps.clear_room(s, m);
}

// From dS to dZ in the place of Z, to dX in the place of X, and to the convolutions' weights.
template <bool kLearns>
inline void unmix(const Pair &pair, const Halo &halo, const Maps &maps) {
    const Problem &p = pair.p;
    int64_t c = maps.channels, m = pair.k.count, group = pair.part * p.batch + pair.row;
    correlate({maps.s, p.heads, p.hidden * p.taps}, {maps.z, p.hidden, p.taps}, p.taps, m, maps.size,
              p.d_out_weight + group * p.heads * p.hidden * p.taps);
    add_up(p.heads, m, maps.s, maps.size, p.d_out_bias + group * p.heads);
    convolve({p.heads, p.hidden, p.taps, p.out_back, p.hidden}, halo.z_rows, maps.s - maps.room,
             maps.size, {nullptr, 0, 0}, maps.z, maps.points, [](V dz, int64_t, const float *z) {
                 return choose((Lanes)(load(z) > V{}), dz, dz * splat(kLeak));
             });
    for (int64_t o = 0; o < p.hidden; o++) {
        float *d = maps.z + o * maps.size;
        memset(d, 0, halo.z_first * kMapLd * sizeof(float));
        memset(d + halo.z_last * kMapLd, 0, (halo.z_rows - halo.z_last) * kMapLd * sizeof(float));
        maps.clear_room(d, halo.z_rows);
    }
    correlate({maps.z, p.hidden, c * p.taps}, {maps.x, c, p.taps}, p.taps, halo.z_rows, maps.size,
              p.d_in_weight + group * p.hidden * c * p.taps);
    if (p.kind == kToeplitz) {
        float *d_fold = p.d_fold + group * (1 + p.taps) * p.hidden * p.fold_length;
        d_fold += fold_at(pair, halo);
        for (int64_t o = 0; o < p.hidden; o++) {
            const float *d = maps.z + o * maps.size;
            add_diagonals(d, kMapLd, halo.z_rows, pair.q.count, {-kEverything, kEverything},
                          d_fold + o * p.fold_length);
            for (int64_t r = halo.z_first; r < halo.z_last; r++) {
                if (!halo.at_edge(r)) continue;
                for (int64_t t = 0; t < p.taps; t++) {
                    if (!halo.leads_out(r, t)) continue;
                    float *to = d_fold + ((1 + t) * p.hidden + o) * p.fold_length - r;
                    for (int64_t i = 0; i < kRow; i += W)
                        store(to + i, load(to + i) - load(d + r * kMapLd + i));
                }
            }
        }
    } else {
        add_up(p.hidden, halo.z_rows, maps.z, maps.size, p.d_in_bias + group * p.hidden);
    }
    auto plain = [](V x, int64_t, const float *) { return x; };
    convolve({p.hidden, p.heads, p.taps, p.in_back, c}, halo.x_rows, maps.z - maps.room, maps.size,
             {maps.s - maps.room, maps.size, kMapLd}, maps.x, maps.points, plain);
    if (kLearns && c > p.heads)
        convolve({p.hidden, p.heads, p.taps, p.in_back + p.heads, c}, halo.x_rows,
                 maps.z - maps.room, maps.size, {nullptr, 0, 0}, maps.x + p.heads * maps.size,
                 maps.points, plain);
}

// Gradients of one head's channels of X: to q and k, and to the bias.
template <class Bias, bool kLearns>
inline void send_back(const Pair &wide, const Halo &halo, const Maps &maps, Bias &bias) {
    const Problem &p = wide.p;
    int64_t e = p.head_dim, h = wide.head, count = wide.k.count;
    float *da = maps.x + h * maps.size + halo.x_row * kMapLd, *db = da + p.heads * maps.size;
    int64_t q_at = (wide.of_head() * p.queries + wide.q.start) * e;
    const float *key = (const float *)p.k + (wide.of_head() * p.keys + wide.k.start) * e;
    float *d_k = p.d_k + (wide.of_part() * p.keys + wide.k.start) * e;
    hide(wide, da);
    over_keys<Into::kAdd>(wide.q.count, e, count, da, kMapLd, key, e, p.d_q + q_at, e, nullptr,
                          wide.band(), {d_k, count * e});
    over_queries(count, e, wide.q.count, da, kMapLd, (const float *)p.q + q_at, e, d_k, e,
                 wide.band(), next_head(wide, key));
    if (!kLearns || maps.channels == p.heads) return;
    hide(wide, db);
    bias.enter(wide);
    for (int64_t i = 0; i < wide.q.count; i += W) {
        auto c = bias.column(i);
        int64_t seen = Seen(wide, i).end;
        for (int64_t j = 0; j < seen; j++) {
            bias.value(c, j);
            bias.learn(c, j, load(db + j * kMapLd + i));
        }
        bias.finish(c);
    }
    bias.leave(wide, db, kMapLd);
}

template <class Bias, bool kLearns>
inline void mixed_backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t part,
                                const Tile &q, float *scratch, Bias &bias) {
    int64_t e = p.head_dim;
    Maps maps(p, scratch);
    const float *queries = (const float *)p.q, *d_out = (const float *)p.d_out;
    const float *out = (const float *)p.out;
    float *turned = scratch + Maps::floats(p), *d_turned = turned + p.heads * e * kRow;
    float *lse = d_turned + p.heads * e * kRow, *delta = lse + p.heads * kRow;
    for (int64_t h = 0; h < p.heads; h++) {
        int64_t at = (row * p.heads + h) * p.queries + q.start;
        transpose(queries + at * e, q.count, e, kRow, (float)p.scale, turned + h * e * kRow, kRow);
        transpose(d_out + at * e, q.count, e, kRow, 1, d_turned + h * e * kRow, kRow);
        memset(p.d_q + at * e, 0, q.count * e * sizeof(float));
        recall(p, at, q.count, kRow, d_out + at * e, out + at * e, lse + h * kRow,
               delta + h * kRow);
    }
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        if (!sees(p, q, plan.k[t])) continue;
        Tile k = seen_part(p, q, plan.k[t]);
        Halo halo(p, k);
        Pair all{p, row, 0, part, q, k};
        mix(all, halo, maps, bias, turned);
        for (int64_t h = 0; h < p.heads; h++)
            differentiate_mixed<Bias, kLearns>(Pair{p, row, h, part, q, k}, maps, bias,
                                               d_turned + h * e * kRow, lse + h * kRow,
                                               delta + h * kRow);
        unmix<kLearns>(all, halo, maps);
        for (int64_t h = 0; h < p.heads; h++)
            send_back<Bias, kLearns>(Pair{p, row, h, part, q, halo.x}, halo, maps, bias);
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
