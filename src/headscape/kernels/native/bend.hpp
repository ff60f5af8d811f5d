// What acts on scores after the bias: a factor per query (temperature) and a cap.
//
//     bend(x) = cap tanh(tau_i x / cap)       back(x, d) = d bend'(x), and adds up d tau_i
//
// `Straight` is the case of neither, which costs nothing.
#pragma once

#include "bias.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

struct Straight {
    struct Column {
        V bend(V x) const { return x; }
        V back(V, V d) const { return d; }
    };
    Straight(const Problem &, int64_t, int64_t, const Tile &) {}
    Column column(int64_t) const { return {}; }
    void finish(const Column &, int64_t) {}
};

struct Bent {
    struct Column {
        V tau, cap, inverse, sum, tangent;
        bool capped;
        V bend(V x) {
            x = x * tau;
            if (!capped) return x;
            tangent = hyperbolic_tangent(x * inverse);
            return cap * tangent;
        }
        // Right after bend(x).
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

    Bent(const Problem &p, int64_t row, int64_t head, const Tile &q)
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

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
