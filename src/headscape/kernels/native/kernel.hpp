// The two entry points of one instruction set: scratch memory, threads, choice of bias.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "cells.hpp"
#include "decode.hpp"
#include "unmixing.hpp"

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

inline bool bends(const Problem &p) { return p.temperature || p.softcap > 0; }

template <class Bias>
inline int run_mixed_forward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    int64_t own = Maps::floats(p) + p.heads * kRow * (p.head_dim + 3);
    Scratch scratch(p.threads, own + bias_floats);
    if (!scratch.all) return 1;
    int64_t tiles = plan.q_begin[p.batch];
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < tiles; u++) {
        float *mine = scratch.all + thread_index() * scratch.each;
        int64_t t = tiles - 1 - u, row = 0;
        while (plan.q_begin[row + 1] <= t) row++;
        mixed_forward_tile<Bias>(p, plan, row, plan.q[t], mine, mine + own);
    }
    return 0;
}

template <class Bias, bool kLearns>
inline int run_mixed_backward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    int64_t own = Maps::floats(p) + 2 * p.heads * kRow * (p.head_dim + 1);
    Scratch scratch(p.threads, own + bias_floats);
    if (!scratch.all) return 1;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < p.batch * p.parts; u++) {
        float *mine = scratch.all + thread_index() * scratch.each;
        mixed_backward_part<Bias, kLearns>(p, plan, u % p.batch, u / p.batch, mine, mine + own);
    }
    return 0;
}

template <class Bias, class Bend>
inline int run_bent_forward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    int64_t own = forward_floats(p);
    Scratch scratch(p.threads, own + bias_floats);
    if (!scratch.all) return 1;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < plan.unit_count; u++) {
        float *mine = scratch.all + thread_index() * scratch.each;
        forward_tile<Bias, Bend>(p, plan, plan.units[u], mine, mine + own);
    }
    return 0;
}

template <class Bias>
inline int run_forward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    if constexpr (!kMultiplies<Bias>)
        if (p.hidden) return run_mixed_forward<Bias>(p, plan, bias_floats);
    return bends(p) ? run_bent_forward<Bias, Bent>(p, plan, bias_floats)
                    : run_bent_forward<Bias, Straight>(p, plan, bias_floats);
}

template <class Bias, bool kLearns, class Bend>
inline int run_bent_backward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    int64_t own = backward_floats(p);
    Scratch scratch(p.threads, own + bias_floats);
    if (!scratch.all) return 1;
    int64_t heads = p.batch * p.key_heads;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < heads * p.parts; u++) {
        float *mine = scratch.all + thread_index() * scratch.each;
        backward_part<Bias, kLearns, Bend>(p, plan, u % heads / p.key_heads, u % p.key_heads,
                                           u / heads, mine, mine + own);
    }
    return 0;
}

template <class Bias, bool kLearns>
inline int run_backward(const Problem &p, const Plan &plan, int64_t bias_floats) {
    if constexpr (!kMultiplies<Bias>)
        if (p.hidden) return run_mixed_backward<Bias, kLearns>(p, plan, bias_floats);
    return bends(p) ? run_bent_backward<Bias, kLearns, Bent>(p, plan, bias_floats)
                    : run_bent_backward<Bias, kLearns, Straight>(p, plan, bias_floats);
}

template <class Bend>
inline int run_sticks_forward(const Problem &p, const Plan &plan) {
    Scratch scratch(p.threads, sticks_forward_floats(p));
    if (!scratch.all) return 1;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < plan.unit_count; u++)
        sticks_forward_tile<Bend>(p, plan, plan.units[u],
                                  scratch.all + thread_index() * scratch.each);
    return 0;
}

template <class Bend>
inline int run_sticks_backward(const Problem &p, const Plan &plan) {
    Scratch scratch(p.threads, sticks_backward_floats(p, plan));
    if (!scratch.all) return 1;
    int64_t heads = p.batch * p.key_heads;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < heads * p.parts; u++)
        sticks_backward_part<Bend>(p, plan, u % heads / p.key_heads, u % p.key_heads, u / heads,
                                   scratch.all + thread_index() * scratch.each);
    return 0;
}

int forward(const Problem &p, const Plan &plan) {
    if (p.sticks)
        return bends(p) ? run_sticks_forward<Bent>(p, plan) : run_sticks_forward<Straight>(p, plan);
    if (p.kind == kFactor) return run_forward<Factor>(p, plan, 0);
    if (p.kind == kToeplitz) return run_forward<Toeplitz>(p, plan, 0);
    if (p.kind == kSlope) return run_forward<Slope>(p, plan, 0);
    if (p.kind == kPieces) return run_forward<Pieces>(p, plan, 2 * p.pieces * W);
    return run_forward<None>(p, plan, 0);
}

// A unit of work is whole cells of queries, at least a tile of them: first and last query tile.
template <class Bias>
inline int run_cells(const Problem &p, const Cells &c, const Plan &plan, int64_t bias_floats) {
    int64_t own = p.hidden ? mixed_cells_floats(p) : cells_floats(p);
    Scratch scratch(p.threads, own + bias_floats);
    if (!scratch.all) return 1;
    int64_t heads = p.hidden ? 1 : p.heads;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < plan.unit_count * heads; u++) {
        float *mine = scratch.all + thread_index() * scratch.each;
        const Unit &unit = plan.units[u / heads];
        for (int64_t t = unit.head; t < unit.tile; t++) {
            if constexpr (!kMultiplies<Bias>)
                if (p.hidden) {
                    mixed_cells_tile<Bias>(p, c, plan, plan.q[t], mine, mine + own);
                    continue;
                }
            if (bends(p))
                cells_tile<Bias, Bent>(p, c, plan, u % heads, plan.q[t], mine, mine + own);
            else
                cells_tile<Bias, Straight>(p, c, plan, u % heads, plan.q[t], mine, mine + own);
        }
    }
    return 0;
}

template <class Bend>
inline int run_sticks_cells(const Problem &p, const Cells &c, const Plan &plan) {
    Scratch scratch(p.threads, cells_floats(p));
    if (!scratch.all) return 1;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t u = 0; u < plan.unit_count * p.heads; u++) {
        const Unit &unit = plan.units[u / p.heads];
        for (int64_t t = unit.head; t < unit.tile; t++)
            sticks_cells_tile<Bend>(p, c, plan, u % p.heads, plan.q[t],
                                    scratch.all + thread_index() * scratch.each);
    }
    return 0;
}

int cells(const Problem &p, const Cells &c, const Plan &plan) {
    if (p.sticks)
        return bends(p) ? run_sticks_cells<Bent>(p, c, plan)
                        : run_sticks_cells<Straight>(p, c, plan);
    if (p.kind == kFactor) return run_cells<Factor>(p, c, plan, 0);
    if (p.kind == kToeplitz) return run_cells<Toeplitz>(p, c, plan, 0);
    if (p.kind == kSlope) return run_cells<Slope>(p, c, plan, 0);
    if (p.kind == kPieces) return run_cells<Pieces>(p, c, plan, 2 * p.pieces * W);
    return run_cells<None>(p, c, plan, 0);
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

int backward(const Problem &p, const Plan &plan) {
    int64_t pieces = 2 * p.pieces * W + kScores;
    bool learns = p.d_table || p.d_weight || p.d_row || p.d_col || p.d_slopes;
    if (p.sticks)
        return bends(p) ? run_sticks_backward<Bent>(p, plan)
                        : run_sticks_backward<Straight>(p, plan);
    if (p.kind == kFactor) return run_backward<Factor, true>(p, plan, kScores);
    if (p.kind == kToeplitz && learns) return run_backward<Toeplitz, true>(p, plan, 0);
    if (p.kind == kToeplitz) return run_backward<Toeplitz, false>(p, plan, 0);
    if (p.kind == kSlope && learns) return run_backward<Slope, true>(p, plan, 0);
    if (p.kind == kSlope) return run_backward<Slope, false>(p, plan, 0);
    if (p.kind == kPieces && learns) return run_backward<Pieces, true>(p, plan, pieces);
    if (p.kind == kPieces) return run_backward<Pieces, false>(p, plan, pieces);
    return run_backward<None, false>(p, plan, 0);
}

}  // namespace HEADSCAPE_ISA
}  // namespace headscape
