// The entry points of one instruction set: scratch memory, threads, choice of bias.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "cells.hpp"
#include "decode.hpp"

namespace headscape {
namespace HEADSCAPE_ISA {

inline int64_t thread_index() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

// Zeroed, aligned to a cache line, one piece per thread.
struct Scratch {
    float *all;
    int64_t each;
    Scratch(int64_t threads, int64_t floats) : each(rounded_up(floats, 64)) {
        void *memory = nullptr;
        if (posix_memalign(&memory, 64, threads * each * sizeof(float))) memory = nullptr;
        all = static_cast<float *>(memory);
        if (all) memset(all, 0, threads * each * sizeof(float));
    }
    ~Scratch() { free(all); }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
};

// run(u, scratch) for all units of work u, on all threads; 1 if there is no memory.
template <class Run>
inline int in_parallel(const Problem &p, int64_t units, int64_t floats, const Run &run) {
    Scratch scratch(p.threads, floats);
    if (!scratch.all) return 1;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < units; u++) run(u, scratch.all + thread_index() * scratch.each);
    return 0;
}

// A type as an argument of a generic lambda.
template <class T>
struct Of {
    using type = T;
};

// run(Of<what acts on scores after the bias>).
template <class Run>
inline int by_transform(const Problem &p, const Run &run) {
    return p.temperature || p.softcap > 0 ? run(Of<ScoreTransform>{}) : run(Of<Unchanged>{});
}

template <class Bias>
constexpr bool kLearnable = true;
template <>
constexpr bool kLearnable<None> = false;

// run(Of<bias>, floats that it needs per thread).
template <class Run>
inline int by_bias(const Problem &p, const Run &run) {
    if (p.kind == kFactor) return run(Of<Factor>{}, 0);
    if (p.kind == kToeplitz) return run(Of<Toeplitz>{}, 0);
    if (p.kind == kSlope) return run(Of<Slope>{}, 0);
    if (p.kind == kPieces) return run(Of<Pieces>{}, 2 * p.pieces * W);
    return run(Of<None>{}, 0);
}

template <class Bias>
inline int mixed_forward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    int64_t own = Maps::floats(p) + p.heads * kRow * (p.head_dim + 3), tiles = plan.q_begin[p.batch];
    return in_parallel(p, tiles, own + bias_floats, [&](int64_t u, float *mine) {
        int64_t t = tiles - 1 - u, row = 0;
        while (plan.q_begin[row + 1] <= t) row++;
        mixed_forward_tile<Bias>(p, plan, row, plan.q[t], mine, mine + own);
    });
}

int forward(const Problem &p, const Plan &plan) {
    return by_transform(p, [&](auto shape) {
        using Transform = typename decltype(shape)::type;
        if (p.sticks)
            return in_parallel(p, plan.unit_count, sticks_forward_floats(p),
                               [&](int64_t u, float *mine) {
                                   sticks_forward_tile<Transform>(p, plan, plan.units[u], mine);
                               });
        return by_bias(p, [&](auto kind, int64_t bias_floats) {
            using Bias = typename decltype(kind)::type;
            if constexpr (!kMultiplies<Bias>)
                if (p.hidden) return mixed_forward<Bias>(p, plan, bias_floats);
            int64_t own = forward_floats(p);
            return in_parallel(p, plan.unit_count, own + bias_floats, [&](int64_t u, float *mine) {
                forward_tile<Bias, Transform>(p, plan, plan.units[u], mine, mine + own);
            });
        });
    });
}

// A unit of work is whole cells of queries, at least a tile of them: first and last query tile.
int cells(const Problem &p, const Cells &c, const Plan &plan) {
    int64_t heads = p.hidden ? 1 : p.heads, own = p.hidden ? mixed_cells_floats(p) : cells_floats(p);
    // run(head, query tile, scratch) for all units.
    auto over = [&](int64_t floats, auto run) {
        return in_parallel(p, plan.unit_count * heads, floats, [&](int64_t u, float *mine) {
            const Unit &unit = plan.units[u / heads];
            for (int64_t t = unit.head; t < unit.tile; t++) run(u % heads, plan.q[t], mine);
        });
    };
    return by_transform(p, [&](auto shape) {
        using Transform = typename decltype(shape)::type;
        if (p.sticks)
            return over(own, [&](int64_t head, const Tile &q, float *mine) {
                sticks_cells_tile<Transform>(p, c, plan, head, q, mine);
            });
        return by_bias(p, [&](auto kind, int64_t bias_floats) {
            using Bias = typename decltype(kind)::type;
            return over(own + bias_floats, [&](int64_t head, const Tile &q, float *mine) {
                if constexpr (!kMultiplies<Bias>)
                    if (p.hidden) return mixed_cells_tile<Bias>(p, c, plan, q, mine, mine + own);
                cells_tile<Bias, Transform>(p, c, plan, head, q, mine, mine + own);
            });
        });
    });
}

int decode(const Decode &p) {
    int64_t share = p.heads / p.key_heads, each = rounded_up(16 + p.value_dim, 16);
    int64_t heads = p.batch * p.key_heads, own = share * each + p.value_dim + W;
    Scratch states(1, heads * p.stretches * own), scratch(p.threads, decode_floats(p));
    if (!states.all || !scratch.all) return 1;
    int64_t size = rounded_up((p.keys + p.stretches - 1) / p.stretches, W);
#pragma omp parallel for num_threads(p.threads) schedule(static, 1)
    for (int64_t u = 0; u < heads * p.stretches; u++) {
        int64_t head = u % heads, from = smaller(u / heads * size, p.keys);
        decode_stretch(p, head / p.key_heads, head % p.key_heads, from,
                       smaller(from + size, p.keys), states.all + u * own, each,
                       scratch.all + thread_index() * scratch.each);
        if (p.stretches > 1) continue;
        for (int64_t h = 0; h < share; h++)
            decode_finish(p, head / p.key_heads, head % p.key_heads * share + h,
                          states.all + u * own + h * each, 1, 0,
                          states.all + u * own + share * each);
    }
    for (int64_t u = 0; p.stretches > 1 && u < heads; u++)
        for (int64_t h = 0; h < share; h++)
            decode_finish(p, u / p.key_heads, u % p.key_heads * share + h,
                          states.all + u * own + h * each, p.stretches, heads * own,
                          states.all + u * own + share * each);
    return 0;
}

// A unit of work is a part of the query tiles that share a head of keys.
template <class Bias, bool kLearns>
inline int biased_backward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    if constexpr (!kMultiplies<Bias>)
        if (p.hidden) {
            int64_t own = Maps::floats(p) + 2 * p.heads * kRow * (p.head_dim + 1);
            return in_parallel(p, p.batch * p.parts, own + bias_floats, [&](int64_t u, float *mine) {
                mixed_backward_part<Bias, kLearns>(p, plan, u % p.batch, u / p.batch, mine, mine + own);
            });
        }
    return by_transform(p, [&](auto shape) {
        using Transform = typename decltype(shape)::type;
        int64_t own = backward_floats(p), heads = p.batch * p.key_heads;
        return in_parallel(p, heads * p.parts, own + bias_floats, [&](int64_t u, float *mine) {
            backward_part<Bias, kLearns, Transform>(p, plan, u % heads / p.key_heads,
                                                    u % p.key_heads, u / heads, mine, mine + own);
        });
    });
}

int backward(const Problem &p, const Plan &plan) {
    int64_t heads = p.batch * p.key_heads;
    bool learns = p.d_table || p.d_weight || p.d_row || p.d_col || p.d_slopes;
    if (p.sticks)
        return by_transform(p, [&](auto shape) {
            using Transform = typename decltype(shape)::type;
            int64_t floats = sticks_backward_floats(p, plan);
            return in_parallel(p, heads * p.parts, floats, [&](int64_t u, float *mine) {
                sticks_backward_part<Transform>(p, plan, u % heads / p.key_heads, u % p.key_heads,
                                                u / heads, mine);
            });
        });
    return by_bias(p, [&](auto kind, int64_t bias_floats) {
        using Bias = typename decltype(kind)::type;
        if constexpr (kMultiplies<Bias>) {
            return biased_backward<Bias, true>(p, plan, kScores);
        } else {
            // Pieces keep a tile of gradients.
            int64_t floats = bias_floats ? bias_floats + kScores : 0;
            if constexpr (kLearnable<Bias>)
                if (learns) return biased_backward<Bias, true>(p, plan, floats);
            return biased_backward<Bias, false>(p, plan, floats);
        }
    });
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
