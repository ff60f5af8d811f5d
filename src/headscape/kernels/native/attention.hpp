// Attention over tiles: online softmax forward, recomputation backward.
//
//     forward    for each query tile: for each key tile that it sees
//                    S = scale Q K^T + B;  m' = max(m, S);  P = exp(S - m')
//                    O = exp(m - m') O + P V;  l = exp(m - m') l + sum P
//                out = O / l,  lse = m + log l
//     backward   P = exp(S - lse);  dS = P (dO V^T - delta),  delta_i = dO_i . out_i
//                dV += P^T dO;  dQ += scale dS K;  dK += scale dS^T Q;  dB = dS
//
// A sink is what m and l start from: a key without a value. All tiles of scores are transposed (see
// gemm.hpp). Memory is a few tiles per thread. A head's dK and dV belong to one worker at a time,
// which goes through its query tiles in order: no locks, and the same sums in the same order for a
// given number of parts.
#pragma once

#include <stdlib.h>

#include "half.hpp"
#include "shear.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

// What acts on scores after the bias: a factor per query (temperature) and a cap.
//
//     apply(x) = cap tanh(tau_i x / cap)      back(x, d) = d apply'(x), and adds up d tau_i
//
// `Unchanged` is the case of neither, which costs nothing.
struct Unchanged {
    struct Column {
        V apply(V x) const { return x; }
        V back(V, V d) const { return d; }
    };
    Unchanged(const Problem &, int64_t, int64_t, const Tile &) {}
    Column column(int64_t) const { return {}; }
    void finish(const Column &, int64_t) {}
};

struct ScoreTransform {
    struct Column {
        V tau, cap, inverse, sum, tangent;
        bool capped;
        V apply(V x) {
            x = x * tau;
            if (!capped) return x;
            tangent = hyperbolic_tangent(x * inverse);
            return cap * tangent;
        }
        // Right after apply(x).
        V back(V x, V d) {
            if (capped) d = d * (splat(1.0f) - tangent * tangent);
            sum = fma(d, x, sum);
            return d * tau;
        }
    };
    float tau[kQueryTile + 2 * W];
    float cap;
    int64_t count;
    float *d_tau;

    ScoreTransform(const Problem &p, int64_t row, int64_t head, const Tile &q)
        : cap((float)p.softcap), count(q.count) {
        int64_t at = (row * p.heads + head) * p.queries + q.start;
        for (int64_t i = 0; i < count + W; i++)
            tau[i] = p.temperature && i < count ? p.temperature[at + i] : 1;
        d_tau = p.d_temperature ? p.d_temperature + at : nullptr;
    }
    Column column(int64_t i) const {
        return {load(tau + i), splat(cap), splat(cap > 0 ? 1 / cap : 0), V{}, V{}, cap > 0};
    }
    void finish(const Column &c, int64_t i) {
        if (!d_tau) return;
        for (int64_t l = 0; l < smaller(W, count - i); l++) d_tau[i + l] += c.sum[l];
    }
};

// Beside the rows that a block of queries sees, this many rows of zeros: the products work on
// blocks of rows and may read that far.
constexpr int64_t kZeroRows = W + kMicroRows;
constexpr float kHidden = -1e30f;

inline bool sees(const Problem &p, const Tile &q, const Tile &k) {
    if (q.group != k.group) return false;
    int64_t wide = p.window ? p.window - 1 : kEverything;
    return k.position < q.position + q.count + (p.causal ? 0 : wide) &&
           k.position + k.count > q.position - wide;
}

inline Reach reach_of(const Problem &p, const Plan &plan, int64_t row, const Tile &q) {
    Reach reach;
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++)
        if (sees(p, q, plan.k[t])) reach.add(plan.k[t]);
    return reach;
}

// Which keys of the pair the queries i ... i + W - 1 see: any of them [first, end), all of them
// [whole, rest), and rows of zeros on either side from `above` and up to `below`.
struct Seen {
    int64_t above, first, whole, rest, end, below;
    Seen(const Pair &pair, int64_t i) {
        int64_t keys = pair.k.count;
        Band band = pair.band();
        first = band.first(i, keys), end = greater(first, band.end(i, W, keys));
        whole = smaller(band.first(i + W - 1, keys), end);
        rest = clamp(i + 1 + band.high, whole, end);
        whole = greater(whole, first);
        rest = greater(rest, whole);
        above = greater(0, first - kZeroRows), below = smaller(keys, end + kZeroRows);
    }
    // Which of the W queries from i on see key j.
    static Lanes lanes(Band band, int64_t i, int64_t j) {
        int32_t from = (int32_t)clamp(j - band.high - i, 0, W);
        int32_t to = (int32_t)clamp(j - band.low - i, -1, W);
        return (Lanes)(lane_index() >= from) & (Lanes)(lane_index() <= to);
    }
    // some(j) for keys that not all queries see, every(j) for the others.
    template <class Some, class Every>
    void visit(const Some &some, const Every &every) const {
        for (int64_t j = first; j < whole; j++) some(j);
        for (int64_t j = whole; j < rest; j++) every(j);
        for (int64_t j = rest; j < end; j++) some(j);
    }
    void clear(float *s, int64_t ld) const {
        for (int64_t j = above; j < first; j++) store(s + j * ld, V{});
        for (int64_t j = end; j < below; j++) store(s + j * ld, V{});
    }
};

// Scores to weights for one key tile; updates the running maximum and sum, leaves the factor for
// what was summed before.
template <class Bias, class Transform>
inline void to_weights(const Pair &pair, Bias &bias, const Transform &transform, float *s, int64_t ld, float *top,
                   float *total, float *factor) {
    bias.enter(pair);
    Band band = pair.band();
    for (int64_t i = 0; i < pair.q.count; i += W) {
        Seen seen(pair, i);
        auto c = bias.column(i);
        auto column = transform.column(i);
        V before = load(top + i), now = before, sum = V{};
        auto score = [&](int64_t j) {
            return column.apply(joined<Bias>(load(s + j * ld + i), bias.value(c, j)));
        };
        seen.visit(
            [&](int64_t j) {
                V x = choose(Seen::lanes(band, i, j), score(j), splat(kHidden));
                store(s + j * ld + i, x);
                now = larger(x, now);
            },
            [&](int64_t j) {
                V x = score(j);
                store(s + j * ld + i, x);
                now = larger(x, now);
            });
        auto weight = [&](int64_t j) { return exponential(load(s + j * ld + i) - now); };
        seen.visit(
            [&](int64_t j) {
                V x = choose(Seen::lanes(band, i, j), weight(j), V{});
                store(s + j * ld + i, x);
                sum += x;
            },
            [&](int64_t j) {
                V x = weight(j);
                store(s + j * ld + i, x);
                sum += x;
            });
        seen.clear(s + i, ld);
        V keep = exponential(before - now);
        store(factor + i, keep);
        store(total + i, fma(load(total + i), keep, sum));
        store(top + i, now);
    }
}

// out / total, and the logarithm of the denominator; zeros for queries that see nothing.
inline void normalise(int64_t count, int64_t e, const float *top, const float *total, float *out,
                     float *lse) {
    for (int64_t i = 0; i < count; i++) {
        V by = splat(total[i] == 0 ? 0.0f : 1 / total[i]);
        for (int64_t n = 0; n < e; n += W) store(out + i * e + n, load(out + i * e + n) * by);
        lse[i] = total[i] == 0 ? 0.0f : top[i] + logf(total[i]);
    }
}

inline int64_t forward_floats(const Problem &p) {
    int64_t e = p.head_dim, halves = p.type == kFloat ? 0 : 1;
    return kScores + (e + 3) * kQueryTile + RelativeCurves::floats(p) +
           kQueryTile * greater(e, p.value_dim) + halves * kKeyTile * (e + p.value_dim);
}

// The set-up of one query tile: its scratch, its queries transposed, and where its output goes.
struct ForwardTile {
    const Problem &p;
    const Tile &q;
    int64_t row, head, e, ev, padded;
    float *s, *turned, *k_room, *v_room, *own;
    Rows into;
    float *out;

    ForwardTile(const Problem &problem, const Plan &plan, const Unit &unit, Room &room)
        : p(problem), q(plan.q[unit.tile]), row(unit.row), head(unit.head), e(p.head_dim),
          ev(p.value_dim), padded(rounded_up(q.count, W)), into(Rows::per_query(p, row, head, q, ev)) {
        int64_t halves = p.type == kFloat ? 0 : 1;
        s = room.take(kScores) + W, turned = room.take(e * kQueryTile);
        k_room = room.take(halves * kKeyTile * e), v_room = room.take(halves * kKeyTile * ev);
        own = room.take(kQueryTile * greater(e, ev));
        transpose(Rows::of_q(p, row, head, q).gather(p, p.q, own), q.count, e, padded,
                  (float)p.scale, turned, kQueryTile);
        out = into.dense(p) ? (float *)p.out + into.at : own;
        memset(out, 0, q.count * ev * sizeof(float));
    }
    // The first of its queries in lse.
    int64_t at() const { return (row * p.heads + head) * p.queries + q.start; }
    // Writes the scores of a key tile to `s`.
    void score(const Pair &pair) const {
        int64_t from = pair.of_keys() * p.keys + pair.k.start;
        const float *key = rows_of(p, p.k, from * e, pair.k.count * e, k_room);
        along_queries(pair.k.count, padded, e, key, e, turned, kQueryTile, s, kLd, pair.band());
    }
    const float *values(const Pair &pair) const {
        int64_t from = pair.of_keys() * p.keys + pair.k.start;
        return rows_of(p, p.v, from * ev, pair.k.count * ev, v_room);
    }
    void finish() const {
        if (out == own) into.scatter(p, out, p.out);
    }
};

template <class Bias, class Transform>
inline void forward_tile(const Problem &p, const Plan &plan, const Unit &unit, float *scratch,
                         float *bias_scratch) {
    Room room{scratch};
    ForwardTile tile(p, plan, unit, room);
    const Tile &q = tile.q;
    float *top = room.take(kQueryTile), *total = room.take(kQueryTile);
    float *factor = room.take(kQueryTile);
    RelativeCurves sheared(p, unit.row, unit.head, q, tile.padded, reach_of(p, plan, unit.row, q),
                           room, false);
    for (int64_t i = 0; i < tile.padded; i++) {
        top[i] = p.sink ? p.sink[unit.head] : kHidden;
        total[i] = p.sink ? 1 : 0;
    }
    Bias bias(p, bias_scratch);
    Transform transform(p, unit.row, unit.head, q);
    for (int64_t t = plan.k_begin[unit.row]; t < plan.k_begin[unit.row + 1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, unit.row, unit.head, 0, q, k};
        tile.score(pair);
        sheared.add(pair, tile.padded, tile.s);
        to_weights(pair, bias, transform, tile.s, kLd, top, total, factor);
        over_keys<Into::kScaleAdd>(q.count, tile.ev, k.count, tile.s, kLd, tile.values(pair), tile.ev,
                                   tile.out, tile.ev, factor, pair.band());
    }
    normalise(q.count, tile.ev, top, total, tile.out, p.lse + tile.at());
    tile.finish();
}

// s: scores in, weights out. d: gradients of the weights in, of the scores out.
template <class Bias, bool kLearns, class Transform>
inline void differentiate(const Pair &pair, Bias &bias, Transform &transform, float *s, float *d, int64_t ld,
                          const float *lse, const float *delta) {
    bias.enter(pair);
    Band band = pair.band();
    int64_t i = 0;
    for (; i < pair.q.count; i += W) {
        Seen seen(pair, i);
        auto c = bias.column(i);
        auto column = transform.column(i);
        V less = load(lse + i), mean = load(delta + i);
        auto visit = [&](int64_t j, auto shown) {
            V content = load(s + j * ld + i), value = bias.value(c, j);
            V raw = joined<Bias>(content, value);
            V x = shown(exponential(column.apply(raw) - less));
            V ds = column.back(raw, shown(x * (load(d + j * ld + i) - mean)));
            store(s + j * ld + i, x);
            store(d + j * ld + i, kMultiplies<Bias> ? ds * value : ds);
            if (kLearns) bias.learn(c, j, kMultiplies<Bias> ? shown(ds * content) : ds);
        };
        seen.visit(
            [&](int64_t j) {
                Lanes lanes = Seen::lanes(band, i, j);
                visit(j, [&](V x) { return choose(lanes, x, V{}); });
            },
            [&](int64_t j) { visit(j, [](V x) { return x; }); });
        seen.clear(s + i, ld);
        seen.clear(d + i, ld);
        if (kLearns) bias.finish(c);
        transform.finish(column, i);
    }
    if (kLearns) {
        for (int64_t j = 0; j < pair.k.count; j++) store(d + j * ld + i, V{});
        bias.leave(pair, d, ld);
    }
}

// lse and delta of `count` queries from token `at` on; up to `padded`, what makes weights 0.
inline void load_lse_and_delta(const Problem &p, int64_t at, int64_t count, int64_t padded, const float *d_out,
                   const float *out, float *lse, float *delta) {
    int64_t ev = p.value_dim;
    for (int64_t i = 0; i < padded; i++) {
        V dot = V{};
        for (int64_t n = 0; i < count && n < ev; n += W)
            dot = fma(load(d_out + i * ev + n), load(out + i * ev + n), dot);
        delta[i] = sum(dot);
        lse[i] = i < count ? p.lse[at + i] : -kHidden;
    }
}

// The set-up of one query tile backward: scratch, queries and upstream gradients, transposed too,
// and where the gradient of its queries goes.
struct BackwardTile {
    const Problem &p;
    const Tile &q;
    int64_t row, head, part, e, ev, padded;
    float *s, *d, *q_turned, *d_turned, *k_room, *v_room, *q_room, *d_room, *own;
    Rows into;
    const float *query, *d_out;
    float *d_q;

    BackwardTile(const Problem &problem, int64_t row_, int64_t head_, int64_t part_, const Tile &q_,
                 Room &room)
        : p(problem), q(q_), row(row_), head(head_), part(part_), e(p.head_dim), ev(p.value_dim),
          padded(rounded_up(q.count, W)), into(Rows::per_query(p, row, head, q, e)) {
        int64_t halves = p.type == kFloat ? 0 : 1;
        s = room.take(kScores) + W, d = room.take(kScores) + W;
        q_turned = room.take(e * kQueryTile), d_turned = room.take(ev * kQueryTile);
        k_room = room.take(halves * kKeyTile * e), v_room = room.take(halves * kKeyTile * ev);
        q_room = room.take(kQueryTile * e), d_room = room.take(kQueryTile * ev);
        own = room.take(kQueryTile * greater(e, ev));
        query = Rows::of_q(p, row, head, q).gather(p, p.q, q_room);
        d_out = Rows::per_query(p, row, head, q, ev).gather(p, p.d_out, d_room);
        transpose(query, q.count, e, padded, (float)p.scale, q_turned, kQueryTile);
        transpose(d_out, q.count, ev, padded, 1, d_turned, kQueryTile);
        d_q = into.stride == e ? p.d_q + into.at : own;
    }
    static int64_t floats(const Problem &p) {
        int64_t wide = p.head_dim + p.value_dim, halves = p.type == kFloat ? 0 : 1;
        return 2 * kScores + 2 * kQueryTile * wide + kQueryTile * greater(p.head_dim, p.value_dim) +
               halves * kKeyTile * wide;
    }
    const float *keys(const Pair &pair) const {
        int64_t from = pair.of_keys() * p.keys + pair.k.start;
        return rows_of(p, p.k, from * e, pair.k.count * e, k_room);
    }
    // Writes the scores of a key tile to `s`.
    void score(const Pair &pair, const float *key) const {
        along_queries(pair.k.count, padded, e, key, e, q_turned, kQueryTile, s, kLd, pair.band());
    }
    // Writes the gradients of the weights of a key tile to `d`.
    void weight_gradients(const Pair &pair) const {
        int64_t from = pair.of_keys() * p.keys + pair.k.start;
        const float *value = rows_of(p, p.v, from * ev, pair.k.count * ev, v_room);
        along_queries(pair.k.count, padded, ev, value, ev, d_turned, kQueryTile, d, kLd, pair.band());
    }
    // Adds to d_q, d_k and d_v, from weights in `s` and gradients of the scores in `d`.
    void add(const Pair &pair, const float *key) const {
        Band band = pair.band();
        int64_t from = pair.of_keys() * p.keys + pair.k.start, count = pair.k.count;
        int64_t to = part * p.batch * p.key_heads * p.keys + from;
        over_queries(count, ev, q.count, s, kLd, d_out, ev, p.d_v + to * ev, ev, band);
        over_queries(count, e, q.count, d, kLd, query, e, p.d_k + to * e, e, band);
        over_keys<Into::kAdd>(q.count, e, count, d, kLd, key, e, d_q, e, nullptr, band);
    }
    void finish() const {
        V by = splat((float)p.scale);
        for (int64_t n = 0; n < q.count * e; n += W) store(d_q + n, load(d_q + n) * by);
        if (d_q == own) into.scatter(own, p.d_q);
    }
};

inline int64_t backward_floats(const Problem &p) {
    return BackwardTile::floats(p) + 2 * kQueryTile + RelativeCurves::floats(p);
}

template <class Bias, bool kLearns, class Transform>
inline void backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t head,
                          int64_t part, const Tile &q, float *scratch, Bias &bias) {
    Room room{scratch};
    BackwardTile tile(p, row, head, part, q, room);
    float *lse = room.take(kQueryTile), *delta = room.take(kQueryTile);
    RelativeCurves sheared(p, row, head, q, tile.padded, reach_of(p, plan, row, q), room, kLearns);
    Transform transform(p, row, head, q);
    const float *out = Rows::per_query(p, row, head, q, tile.ev).gather(p, p.out, tile.own);
    load_lse_and_delta(p, (row * p.heads + head) * p.queries + q.start, q.count, tile.padded,
                       tile.d_out, out, lse, delta);
    memset(tile.d_q, 0, q.count * tile.e * sizeof(float));
    for (int64_t t = plan.k_begin[row]; t < plan.k_begin[row + 1]; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, row, head, part, q, k};
        const float *key = tile.keys(pair);
        tile.score(pair, key);
        sheared.add(pair, tile.padded, tile.s);
        tile.weight_gradients(pair);
        differentiate<Bias, kLearns>(pair, bias, transform, tile.s, tile.d, kLd, lse, delta);
        tile.add(pair, key);
        sheared.learn(pair, tile.padded, tile.d);
    }
    sheared.finish(Pair{p, row, head, part, q, q});
    tile.finish();
}

// Calls run(head, query tile), which adds to d_k and d_v, for all query tiles of the heads that share
// one head of keys, or for every `parts`-th of them.
template <class Run>
inline void over_tiles(const Problem &p, const Plan &plan, int64_t row, int64_t key_head,
                       int64_t part, const Run &run) {
    int64_t at = ((part * p.batch + row) * p.key_heads + key_head) * p.keys;
    int64_t e = p.head_dim, ev = p.value_dim, share = p.heads / p.key_heads;
    memset(p.d_k + at * e, 0, p.keys * e * sizeof(float));
    memset(p.d_v + at * ev, 0, p.keys * ev * sizeof(float));
    int64_t first = plan.q_begin[row], tiles = plan.q_begin[row + 1] - first;
    for (int64_t n = part; n < share * tiles; n += p.parts)
        run(key_head * share + n / tiles, plan.q[first + n % tiles]);
    V by = splat((float)p.scale);
    float *d_k = p.d_k + at * e;
    for (int64_t n = 0; n < p.keys * e; n += W) store(d_k + n, load(d_k + n) * by);
}

template <class Bias, bool kLearns, class Transform>
inline void backward_part(const Problem &p, const Plan &plan, int64_t row, int64_t key_head,
                          int64_t part, float *scratch, float *bias_scratch) {
    Bias bias(p, bias_scratch);
    over_tiles(p, plan, row, key_head, part, [&](int64_t head, const Tile &q) {
        backward_tile<Bias, kLearns, Transform>(p, plan, row, head, part, q, scratch, bias);
    });
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
