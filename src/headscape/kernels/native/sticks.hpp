// Stick-breaking over tiles: a query's keys take their share of a stick, from the last to the first.
//
//     forward    s_j = sigmoid(S_j);  w_j = left s_j;  left <- left (1 - s_j)
//                out = sum_j w_j v_j + left v_own           own: the last key that the query sees
//     backward   g_j = dO . v_j;  U starts at g_own, or at 0 where what is left is dropped
//                dS_j = w_j (1 - s_j) (g_j - U);  U <- U + s_j (g_j - U)     from the first key on
//                dV_j += w_j dO, and left dO for the own key
//
// U is the mean of g over the rest of the stick, so nothing cancels. (The sum of all w g minus that
// of nearer keys would need no second pass, but would add the rounding of the whole sum to every far
// key.) U needs the keys in the reverse order of `left`, so backward goes through the key tiles
// twice: once for what is left at their borders, one number per query and tile, and once for the
// gradients.
//
// A rest below kUsedUp counts as 0. Once it is 0 for all queries of a tile, farther keys are not
// read.
#pragma once

#include "attention.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

constexpr float kUsedUp = 1.6e-28f;  // e^-64, see `exponential`

// sigmoid(x) and 1 - sigmoid(x), both with a relative error of a few roundings. `rounded` is what the
// second has lost to rounding, if x is negative.
struct Share {
    V taken, passed, rounded;
    explicit Share(V x) {
        V e = exponential(from_bits(bits(x) | INT32_MIN));
        V large = splat(1.0f) / (splat(1.0f) + e), small = e * large;
        Lanes up = (Lanes)(x >= V{});
        taken = choose(up, large, small), passed = choose(up, small, large);
        rounded = choose(up, V{}, (splat(1.0f) - large) - small);
    }
};

// What is left of W sticks. Thousands of keys may each take a little, so the rounding errors within a
// key tile are summed in `lost`.
struct Left {
    V whole, lost = V{};
    V total() const { return whole + lost; }
    Left after(const Share &share) const {
        Left next{whole * share.passed};
        V error = fma(whole, share.passed, V{} - next.whole);
        next.lost = fma(lost, share.passed, fma(whole, share.rounded, error));
        next.lost = zero_below(next.whole, kUsedUp, next.lost);
        next.whole = zero_below(next.whole, kUsedUp, next.whole);
        return next;
    }
};

// The sticks of one query tile.
struct Sticks {
    const Problem &p;
    int64_t row, head;
    const Tile &q;
    float left[kQueryTile];
    int32_t limit[kQueryTile];  // keys with this index or a larger one take no part
    int64_t own[kQueryTile];    // the last key that a query sees; -1: it sees none

    Sticks(const Problem &problem, const Plan &plan, int64_t row_, int64_t head_, const Tile &q_)
        : p(problem), row(row_), head(head_), q(q_) {
        for (int64_t i = 0; i < kQueryTile; i++) own[i] = -1;
        int64_t missing = q.count, begin = plan.k_begin[row];
        for (int64_t t = plan.k_begin[row + 1] - 1; t >= begin && missing; t--) {
            const Tile &k = plan.k[t];
            if (!sees(p, q, k)) continue;
            Band band = Pair{p, row, head, 0, q, k}.band();
            for (int64_t i = 0; i < q.count; i++) {
                int64_t end = band.end(i, 1, k.count);
                if (own[i] >= 0 || band.first(i, k.count) >= end) continue;
                own[i] = k.start + end - 1, missing--;
            }
        }
        for (int64_t i = 0; i < kQueryTile; i++) {
            left[i] = own[i] >= 0 ? 1 : 0;
            limit[i] = own[i] >= 0 && !p.takes_own ? (int32_t)own[i] : INT32_MAX;
        }
    }
    // Whether anything is left for farther keys. NaN counts as left, so that it reaches the output.
    bool lasts() const {
        Lanes some = bits(V{});
        for (int64_t i = 0; i < kQueryTile; i += W) some |= (Lanes)(load(left + i) != V{});
        return any(some);
    }
    // Calls use(j, share, weight) for queries i ... i + W - 1 and each key that one of them sees,
    // from the last to the first, and updates `left`. Share and weight are 0 where a key takes no
    // part.
    template <class Column, class Use>
    void spend(const Pair &pair, const Seen &seen, Column &bent, int64_t i, const float *s,
               const Use &use) {
        Band band = pair.band();
        Left rest{load(left + i)};
        Lanes limits;
        memcpy(&limits, limit + i, sizeof limits);
        int64_t free = seen.rest, start = pair.k.start;
        for (int64_t l = 0; l < W; l++) free = smaller(free, limits[l] - start);
        free = greater(free, seen.whole);
        auto some = [&](int64_t j) {
            Lanes lanes = Seen::lanes(band, i, j) & (Lanes)(limits > (int32_t)(start + j));
            Share share(bent.bend(load(s + j * kLd + i)));
            V taken = choose(lanes, share.taken, V{});
            V weight = choose(lanes, taken * rest.total(), V{});
            Left next = rest.after(share);
            rest.whole = choose(lanes, next.whole, rest.whole);
            rest.lost = choose(lanes, next.lost, rest.lost);
            use(j, taken, zero_below(weight, kUsedUp, weight));
        };
        for (int64_t j = seen.end - 1; j >= free; j--) some(j);
        for (int64_t j = free - 1; j >= seen.whole; j--) {
            Share share(bent.bend(load(s + j * kLd + i)));
            V weight = share.taken * rest.total();
            rest = rest.after(share);
            use(j, share.taken, zero_below(weight, kUsedUp, weight));
        }
        for (int64_t j = smaller(seen.whole, seen.end) - 1; j >= seen.first; j--) some(j);
        store(left + i, rest.total());
    }
    // Updates `left` by a tile of scores.
    template <class Bend>
    void pass(const Pair &pair, const Bend &bend, const float *s) {
        for (int64_t i = 0; i < q.count; i += W) {
            auto bent = bend.column(i);
            spend(pair, Seen(pair, i), bent, i, s, [](int64_t, V, V) {});
        }
    }
    // Replaces a tile of scores by weights.
    template <class Bend>
    void weigh(const Pair &pair, const Bend &bend, float *s) {
        for (int64_t i = 0; i < q.count; i += W) {
            Seen seen(pair, i);
            auto bent = bend.column(i);
            spend(pair, seen, bent, i, s,
                  [&](int64_t j, V, V weight) { store(s + j * kLd + i, weight); });
            seen.clear(s + i, kLd);
        }
    }
    // s: scores in, weights out. d: gradients of the weights in, of the scores out. `room` is for the
    // shares and weights of W queries.
    template <class Bend>
    void differentiate(const Pair &pair, Bend &bend, float *s, float *d, float *yields, float *room) {
        float *shares = room, *weights = room + kKeyTile * W;
        for (int64_t i = 0; i < q.count; i += W) {
            Seen seen(pair, i);
            auto bent = bend.column(i);
            spend(pair, seen, bent, i, s, [&](int64_t j, V share, V weight) {
                store(shares + j * W, share);
                store(weights + j * W, weight);
            });
            V yield = load(yields + i);
            for (int64_t j = seen.first; j < seen.end; j++) {
                V share = load(shares + j * W), weight = load(weights + j * W);
                // Hidden scores and gradients may be NaN.
                Lanes takes = (Lanes)(share != V{});
                V raw = choose(takes, load(s + j * kLd + i), V{});
                V gap = choose(takes, load(d + j * kLd + i) - yield, V{});
                yield = fma(share, gap, yield);
                bent.bend(raw);
                store(d + j * kLd + i, bent.back(raw, weight * (splat(1.0f) - share) * gap));
                store(s + j * kLd + i, weight);
            }
            store(yields + i, yield);
            seen.clear(s + i, kLd);
            seen.clear(d + i, kLd);
            bend.finish(bent, i);
        }
    }
    // Calls use(i, row of the own key) for every query that sees a key.
    template <class Use>
    void own_keys(const Use &use) const {
        int64_t first = (row * p.key_heads + head * p.key_heads / p.heads) * p.keys;
        for (int64_t i = 0; i < q.count; i++)
            if (own[i] >= 0) use(i, first + own[i]);
    }
};

inline int64_t sticks_forward_floats(const Problem &p) {
    int64_t e = p.head_dim, halves = p.type == kFloat ? 0 : 1;
    return kScores + e * kQueryTile + kQueryTile * greater(e, p.value_dim) +
           halves * kKeyTile * (e + p.value_dim);
}

template <class Bend>
inline void sticks_forward_tile(const Problem &p, const Plan &plan, const Unit &unit,
                                float *scratch) {
    const Tile &q = plan.q[unit.tile];
    int64_t e = p.head_dim, ev = p.value_dim, padded = rounded_up(q.count, W);
    int64_t at = (unit.row * p.heads + unit.head) * p.queries + q.start;
    int64_t halves = p.type == kFloat ? 0 : 1;
    Room room{scratch};
    float *s = room.take(kScores) + W, *turned = room.take(e * kQueryTile);
    float *k_room = room.take(halves * kKeyTile * e), *v_room = room.take(halves * kKeyTile * ev);
    float *own = room.take(kQueryTile * greater(e, ev));
    Rows into = Rows::per_query(p, unit.row, unit.head, q, ev);
    transpose(Rows::of_q(p, unit.row, unit.head, q).gather(p, p.q, own), q.count, e, padded,
              (float)p.scale, turned, kQueryTile);
    float *out = into.dense(p) ? (float *)p.out + into.at : own;
    memset(out, 0, q.count * ev * sizeof(float));
    Bend bend(p, unit.row, unit.head, q);
    Sticks sticks(p, plan, unit.row, unit.head, q);
    int64_t begin = plan.k_begin[unit.row];
    for (int64_t t = plan.k_begin[unit.row + 1] - 1; t >= begin && sticks.lasts(); t--) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, unit.row, unit.head, 0, q, k};
        Band band = pair.band();
        int64_t from = pair.of_keys() * p.keys + k.start;
        const float *key = rows_of(p, p.k, from * e, k.count * e, k_room);
        along_queries(k.count, padded, e, key, e, turned, kQueryTile, s, kLd, band);
        sticks.weigh(pair, bend, s);
        const float *value = rows_of(p, p.v, from * ev, k.count * ev, v_room);
        over_keys<Into::kAdd>(q.count, ev, k.count, s, kLd, value, ev, out, ev, nullptr, band);
    }
    if (p.keeps_rest)
        sticks.own_keys([&](int64_t i, int64_t key) {
            const float *value = rows_of(p, p.v, key * ev, ev, v_room);
            V by = splat(sticks.left[i]);
            float *to = out + i * ev;
            for (int64_t n = 0; n < ev; n += W) store(to + n, fma(by, load(value + n), load(to + n)));
        });
    memcpy(p.lse + at, sticks.left, q.count * sizeof(float));
    if (out == own) into.scatter(p, out, p.out);
}

inline int64_t sticks_backward_floats(const Problem &p, const Plan &plan) {
    int64_t wide = p.head_dim + p.value_dim, halves = p.type == kFloat ? 0 : 1, tiles = 0;
    for (int64_t row = 0; row < p.batch; row++)
        tiles = greater(tiles, plan.k_begin[row + 1] - plan.k_begin[row]);
    return 2 * kScores + (2 * wide + 1 + p.head_dim + tiles) * kQueryTile + 2 * kKeyTile * W +
           halves * kKeyTile * wide;
}

template <class Bend>
inline void sticks_backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t head,
                                 int64_t part, const Tile &q, float *scratch) {
    int64_t e = p.head_dim, ev = p.value_dim, padded = rounded_up(q.count, W);
    int64_t halves = p.type == kFloat ? 0 : 1, parted = part * p.batch * p.key_heads * p.keys;
    Room room{scratch};
    float *s = room.take(kScores) + W, *d = room.take(kScores) + W;
    float *q_turned = room.take(e * kQueryTile), *d_turned = room.take(ev * kQueryTile);
    float *yields = room.take(kQueryTile), *columns = room.take(2 * kKeyTile * W);
    float *k_room = room.take(halves * kKeyTile * e), *v_room = room.take(halves * kKeyTile * ev);
    float *q_room = room.take(kQueryTile * e), *d_room = room.take(kQueryTile * ev);
    float *own = room.take(kQueryTile * e), *borders = room.at;
    Bend bend(p, row, head, q);
    Rows into = Rows::per_query(p, row, head, q, e);
    const float *query = Rows::of_q(p, row, head, q).gather(p, p.q, q_room);
    const float *d_out = Rows::per_query(p, row, head, q, ev).gather(p, p.d_out, d_room);
    transpose(query, q.count, e, padded, (float)p.scale, q_turned, kQueryTile);
    transpose(d_out, q.count, ev, padded, 1, d_turned, kQueryTile);
    float *d_q = into.stride == e ? p.d_q + into.at : own;
    memset(d_q, 0, q.count * e * sizeof(float));
    memset(yields, 0, kQueryTile * sizeof(float));
    Sticks sticks(p, plan, row, head, q);
    int64_t begin = plan.k_begin[row], end = plan.k_begin[row + 1], farthest = end;
    for (int64_t t = end - 1; t >= begin && sticks.lasts(); t--) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, row, head, part, q, k};
        int64_t from = pair.of_keys() * p.keys + k.start;
        const float *key = rows_of(p, p.k, from * e, k.count * e, k_room);
        memcpy(borders + (t - begin) * kQueryTile, sticks.left, sizeof sticks.left);
        along_queries(k.count, padded, e, key, e, q_turned, kQueryTile, s, kLd, pair.band());
        sticks.pass(pair, bend, s);
        farthest = t;
    }
    if (p.keeps_rest)
        sticks.own_keys([&](int64_t i, int64_t at) {
            const float *value = rows_of(p, p.v, at * ev, ev, v_room);
            float *to = p.d_v + (parted + at) * ev;
            V by = splat(sticks.left[i]), dot = V{};
            for (int64_t n = 0; n < ev; n += W) {
                V upstream = load(d_out + i * ev + n);
                dot = fma(upstream, load(value + n), dot);
                store(to + n, fma(by, upstream, load(to + n)));
            }
            yields[i] = sum(dot);
        });
    for (int64_t t = farthest; t < end; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, row, head, part, q, k};
        Band band = pair.band();
        int64_t from = pair.of_keys() * p.keys + k.start, to = parted + from;
        const float *key = rows_of(p, p.k, from * e, k.count * e, k_room);
        const float *value = rows_of(p, p.v, from * ev, k.count * ev, v_room);
        // The first pass ended with the scores of the farthest tile.
        if (t > farthest)
            along_queries(k.count, padded, e, key, e, q_turned, kQueryTile, s, kLd, band);
        along_queries(k.count, padded, ev, value, ev, d_turned, kQueryTile, d, kLd, band);
        memcpy(sticks.left, borders + (t - begin) * kQueryTile, sizeof sticks.left);
        sticks.differentiate(pair, bend, s, d, yields, columns);
        over_queries(k.count, ev, q.count, s, kLd, d_out, ev, p.d_v + to * ev, ev, band);
        over_queries(k.count, e, q.count, d, kLd, query, e, p.d_k + to * e, e, band);
        over_keys<Into::kAdd>(q.count, e, k.count, d, kLd, key, e, d_q, e, nullptr, band);
    }
    V by = splat((float)p.scale);
    for (int64_t n = 0; n < q.count * e; n += W) store(d_q + n, load(d_q + n) * by);
    if (d_q == own) into.scatter(own, p.d_q);
}

template <class Bend>
inline void sticks_backward_part(const Problem &p, const Plan &plan, int64_t row, int64_t key_head,
                                 int64_t part, float *scratch) {
    over_tiles(p, plan, row, key_head, part, [&](int64_t head, const Tile &q) {
        sticks_backward_tile<Bend>(p, plan, row, head, part, q, scratch);
    });
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
