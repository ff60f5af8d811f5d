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
    void each_share(const Pair &pair, const Seen &seen, Column &column, int64_t i, const float *s,
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
            Share share(column.apply(load(s + j * kLd + i)));
            V taken = choose(lanes, share.taken, V{});
            V weight = choose(lanes, taken * rest.total(), V{});
            Left next = rest.after(share);
            rest.whole = choose(lanes, next.whole, rest.whole);
            rest.lost = choose(lanes, next.lost, rest.lost);
            use(j, taken, zero_below(weight, kUsedUp, weight));
        };
        for (int64_t j = seen.end - 1; j >= free; j--) some(j);
        for (int64_t j = free - 1; j >= seen.whole; j--) {
            Share share(column.apply(load(s + j * kLd + i)));
            V weight = share.taken * rest.total();
            rest = rest.after(share);
            use(j, share.taken, zero_below(weight, kUsedUp, weight));
        }
        for (int64_t j = smaller(seen.whole, seen.end) - 1; j >= seen.first; j--) some(j);
        store(left + i, rest.total());
    }
    // Updates `left` by a tile of scores.
    template <class Transform>
    void pass(const Pair &pair, const Transform &transform, const float *s) {
        for (int64_t i = 0; i < q.count; i += W) {
            auto column = transform.column(i);
            each_share(pair, Seen(pair, i), column, i, s, [](int64_t, V, V) {});
        }
    }
    // Replaces a tile of scores by weights.
    template <class Transform>
    void weigh(const Pair &pair, const Transform &transform, float *s) {
        for (int64_t i = 0; i < q.count; i += W) {
            Seen seen(pair, i);
            auto column = transform.column(i);
            each_share(pair, seen, column, i, s,
                  [&](int64_t j, V, V weight) { store(s + j * kLd + i, weight); });
            seen.clear(s + i, kLd);
        }
    }
    // s: scores in, weights out. d: gradients of the weights in, of the scores out. `room` is for the
    // shares and weights of W queries.
    template <class Transform>
    void differentiate(const Pair &pair, Transform &transform, float *s, float *d,
                       float *rest_means, float *room) {
        float *shares = room, *weights = room + kKeyTile * W;
        for (int64_t i = 0; i < q.count; i += W) {
            Seen seen(pair, i);
            auto column = transform.column(i);
            each_share(pair, seen, column, i, s, [&](int64_t j, V share, V weight) {
                store(shares + j * W, share);
                store(weights + j * W, weight);
            });
            V rest_mean = load(rest_means + i);
            for (int64_t j = seen.first; j < seen.end; j++) {
                V share = load(shares + j * W), weight = load(weights + j * W);
                // Hidden scores and gradients may be NaN.
                Lanes takes = (Lanes)(share != V{});
                V raw = choose(takes, load(s + j * kLd + i), V{});
                V gap = choose(takes, load(d + j * kLd + i) - rest_mean, V{});
                rest_mean = fma(share, gap, rest_mean);
                column.apply(raw);
                store(d + j * kLd + i, column.back(raw, weight * (splat(1.0f) - share) * gap));
                store(s + j * kLd + i, weight);
            }
            store(rest_means + i, rest_mean);
            seen.clear(s + i, kLd);
            seen.clear(d + i, kLd);
            transform.finish(column, i);
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

template <class Transform>
inline void sticks_forward_tile(const Problem &p, const Plan &plan, const Unit &unit,
                                float *scratch) {
    Room room{scratch};
    ForwardTile tile(p, plan, unit, room);
    const Tile &q = tile.q;
    int64_t ev = tile.ev;
    Transform transform(p, unit.row, unit.head, q);
    Sticks sticks(p, plan, unit.row, unit.head, q);
    int64_t begin = plan.k_begin[unit.row];
    for (int64_t t = plan.k_begin[unit.row + 1] - 1; t >= begin && sticks.lasts(); t--) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, unit.row, unit.head, 0, q, k};
        tile.score(pair);
        sticks.weigh(pair, transform, tile.s);
        over_keys<Into::kAdd>(q.count, ev, k.count, tile.s, kLd, tile.values(pair), ev, tile.out, ev,
                              nullptr, pair.band());
    }
    if (p.keeps_rest)
        sticks.own_keys([&](int64_t i, int64_t key) {
            const float *value = rows_of(p, p.v, key * ev, ev, tile.v_room);
            V by = splat(sticks.left[i]);
            float *to = tile.out + i * ev;
            for (int64_t n = 0; n < ev; n += W) store(to + n, fma(by, load(value + n), load(to + n)));
        });
    memcpy(p.lse + tile.at(), sticks.left, q.count * sizeof(float));
    tile.finish();
}

inline int64_t sticks_backward_floats(const Problem &p, const Plan &plan) {
    int64_t tiles = 0;
    for (int64_t row = 0; row < p.batch; row++)
        tiles = greater(tiles, plan.k_begin[row + 1] - plan.k_begin[row]);
    return BackwardTile::floats(p) + (1 + tiles) * kQueryTile + 2 * kKeyTile * W;
}

template <class Transform>
inline void sticks_backward_tile(const Problem &p, const Plan &plan, int64_t row, int64_t head,
                                 int64_t part, const Tile &q, float *scratch) {
    Room room{scratch};
    BackwardTile tile(p, row, head, part, q, room);
    int64_t ev = tile.ev, parted = part * p.batch * p.key_heads * p.keys;
    float *rest_means = room.take(kQueryTile), *columns = room.take(2 * kKeyTile * W);
    float *borders = room.at;
    Transform transform(p, row, head, q);
    memset(tile.d_q, 0, q.count * tile.e * sizeof(float));
    memset(rest_means, 0, kQueryTile * sizeof(float));
    Sticks sticks(p, plan, row, head, q);
    int64_t begin = plan.k_begin[row], end = plan.k_begin[row + 1], farthest = end;
    for (int64_t t = end - 1; t >= begin && sticks.lasts(); t--) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, row, head, part, q, k};
        memcpy(borders + (t - begin) * kQueryTile, sticks.left, sizeof sticks.left);
        tile.score(pair, tile.keys(pair));
        sticks.pass(pair, transform, tile.s);
        farthest = t;
    }
    if (p.keeps_rest)
        sticks.own_keys([&](int64_t i, int64_t at) {
            const float *value = rows_of(p, p.v, at * ev, ev, tile.v_room);
            float *to = p.d_v + (parted + at) * ev;
            V by = splat(sticks.left[i]), dot = V{};
            for (int64_t n = 0; n < ev; n += W) {
                V upstream = load(tile.d_out + i * ev + n);
                dot = fma(upstream, load(value + n), dot);
                store(to + n, fma(by, upstream, load(to + n)));
            }
            rest_means[i] = sum(dot);
        });
    for (int64_t t = farthest; t < end; t++) {
        const Tile &k = plan.k[t];
        if (!sees(p, q, k)) continue;
        Pair pair{p, row, head, part, q, k};
        const float *key = tile.keys(pair);
        // The first pass ended with the scores of the farthest tile.
        if (t > farthest) tile.score(pair, key);
        tile.weight_gradients(pair);
        memcpy(sticks.left, borders + (t - begin) * kQueryTile, sizeof sticks.left);
        sticks.differentiate(pair, transform, tile.s, tile.d, rest_means, columns);
        tile.add(pair, key);
    }
    tile.finish();
}

template <class Transform>
inline void sticks_backward_part(const Problem &p, const Plan &plan, int64_t row, int64_t key_head,
                                 int64_t part, float *scratch) {
    over_tiles(p, plan, row, key_head, part, [&](int64_t head, const Tile &q) {
        sticks_backward_tile<Transform>(p, plan, row, head, part, q, scratch);
    });
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
