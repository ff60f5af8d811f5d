// The C interface: cuts tokens into tiles, picks the instruction set, runs the kernel.
//
// Every function returns 0, or 1 when there is no memory. Arguments are checked by the caller.

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace headscape {
namespace {

// Consecutive tokens with consecutive positions and one group, cut into tiles. Tokens of a negative
// group see nothing and are in no tile.
void cut(const int64_t *at, const int64_t *group, int64_t count, int64_t most,
         std::vector<Tile> &tiles) {
    for (int64_t start = 0, end; start < count; start = end) {
        int64_t own = group ? group[start] : 0;
        end = start + 1;
        while (end < count && at[end] == at[end - 1] + 1 && (group ? group[end] : 0) == own) end++;
        if (own < 0) continue;
        for (int64_t i = start; i < end; i += most) {
            int64_t n = end - i < most ? end - i : most;
            tiles.push_back({i, n, at[i], own, start, end});
        }
    }
}

struct Plans {
    std::vector<Tile> q, k;
    std::vector<int64_t> q_begin{0}, k_begin{0};
    std::vector<Unit> units;

    explicit Plans(const Problem &p) {
        for (int64_t b = 0; b < p.batch; b++) {
            const int64_t *q_group = p.q_group ? p.q_group + b * p.q_stride : nullptr;
            const int64_t *k_group = p.k_group ? p.k_group + b * p.k_stride : nullptr;
            cut(p.q_at + b * p.q_stride, q_group, p.queries, p.hidden ? kMixQueries : kQueryTile, q);
            cut(p.k_at + b * p.k_stride, k_group, p.keys, p.hidden ? kMixKeys : kKeyTile, k);
            q_begin.push_back(static_cast<int64_t>(q.size()));
            k_begin.push_back(static_cast<int64_t>(k.size()));
            for (int64_t h = 0; h < p.heads; h++)
                for (int64_t t = q_begin[b + 1] - 1; t >= q_begin[b]; t--) units.push_back({b, h, t});
        }
    }
    // For cells: units of whole cells of queries, at least a tile of them, their tiles cut anew. In a
    // unit, `head` and `tile` are the first tile and the one after the last.
    void by_cells(const Problem &p, const Cells &c) {
        int64_t most = p.hidden ? kMixQueries : kQueryTile;
        q.clear(), units.clear();
        for (int64_t a = 0, first = 0; a < c.cells; a++) {
            int64_t from = c.edges[first], end = c.edges[a + 1];
            if (end - from < most && a + 1 < c.cells) continue;
            int64_t begin = static_cast<int64_t>(q.size());
            for (int64_t i = from; i < end; i += most)
                q.push_back({i, end - i < most ? end - i : most, p.q_at[i], 0, 0, p.queries});
            units.push_back({0, begin, static_cast<int64_t>(q.size())});
            first = a + 1;
        }
        for (size_t i = 0; i < units.size() / 2; i++) std::swap(units[i], units[units.size() - 1 - i]);
    }
    Plan plan() const {
        return {q.data(), k.data(), q_begin.data(), k_begin.data(), units.data(),
                static_cast<int64_t>(units.size())};
    }
};

// HEADSCAPE_NATIVE=avx512, avx2 or portable takes that one where the machine has it.
int best() {
#if defined(__x86_64__)
    const char *asked = std::getenv("HEADSCAPE_NATIVE");
    int level = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        level = 1;
    if (level && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        level = 2;
    if (asked && !std::strcmp(asked, "portable")) level = 0;
    if (asked && !std::strcmp(asked, "avx2") && level > 1) level = 1;
    return level;
#else
    return 0;
#endif
}

const int kLevel = best();

}  // namespace
}  // namespace headscape

using headscape::Plans;
using headscape::Problem;

extern "C" {

const char *headscape_instructions() {
    static const char *names[] = {"portable", "avx2", "avx512"};
    return names[headscape::kLevel];
}

// For the Python side to check that both agree on the layout.
int64_t headscape_problem_size() { return sizeof(Problem); }
int64_t headscape_decode_size() { return sizeof(headscape::Decode); }
int64_t headscape_cells_size() { return sizeof(headscape::Cells); }

#if defined(__x86_64__)
// A vector must divide the head dim, so AVX-512 leaves odd multiples of 8 to AVX2.
#define HEADSCAPE_RUN(what, ...)                                                   \
    if (headscape::kLevel == 2 && p->head_dim % 16 == 0 && p->value_dim % 16 == 0) \
        return headscape::avx512::what(__VA_ARGS__);                               \
    if (headscape::kLevel >= 1) return headscape::avx2::what(__VA_ARGS__);         \
    return headscape::portable::what(__VA_ARGS__);
#else
#define HEADSCAPE_RUN(what, ...) return headscape::portable::what(__VA_ARGS__);
#endif

int headscape_decode(const headscape::Decode *p) { HEADSCAPE_RUN(decode, *p) }

int headscape_forward(const Problem *p) try {
    Plans plans(*p);
    HEADSCAPE_RUN(forward, *p, plans.plan())
} catch (const std::bad_alloc &) {
    return 1;
}

int headscape_cells(const Problem *p, const headscape::Cells *c) try {
    Plans plans(*p);
    plans.by_cells(*p, *c);
    HEADSCAPE_RUN(cells, *p, *c, plans.plan())
} catch (const std::bad_alloc &) {
    return 1;
}

int headscape_backward(const Problem *p) try {
    Plans plans(*p);
    HEADSCAPE_RUN(backward, *p, plans.plan())
} catch (const std::bad_alloc &) {
    return 1;
}

}  // extern "C"
