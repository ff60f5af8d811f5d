// A small call of every kind of bias, forward, backward and reduced to cells, mixed and not, and of
// decoding: for valgrind and ThreadSanitizer, which take minutes to start a Python with torch in it.
// Inputs are on the heap so that reads beyond them are seen. What is not mixed has a window, a
// temperature, a cap, a sink, a sheared bias and heads that share keys. Gradients are in two parts.

#include <cstdio>
#include <vector>

#include "problem.hpp"

extern "C" int headscape_forward(const headscape::Problem *);
extern "C" int headscape_backward(const headscape::Problem *);
extern "C" int headscape_cells(const headscape::Problem *, const headscape::Cells *);
extern "C" int headscape_decode(const headscape::Decode *);

namespace {

#ifndef TOKENS
#define TOKENS 150
#define THREADS 1
#endif
constexpr int64_t kHeads = 2, kTokens = TOKENS, kDim = 16, kMargin = 32, kHidden = 5, kTaps = 3;
constexpr int64_t kRank = 5, kThreads = THREADS, kParts = 2;
// Rows of a sheared bias's tensors, of its bases, and the distances beyond those of the tokens.
constexpr int64_t kWide = 16, kRows = 40, kReach = 192;

template <class T = float>
std::vector<T> some(int64_t count) {
    std::vector<T> x(count);
    for (int64_t i = 0; i < count; i++) x[i] = static_cast<T>((i * 37 % 101) / 101.0 - 0.5);
    return x;
}

int run(int64_t kind, bool mixed) {
    using namespace headscape;
    int64_t size = kHeads * kTokens * kDim, rows = kHeads * kTokens, length = kTokens + 2 * kMargin;
    int64_t pieces = 4, channels = kHeads * (kind == kSlope || kind == kPieces ? 2 : 1);
    int64_t folded = length + 2 * kFoldMargin;
    auto q = some(size), k = some(size), v = some(size), d_out = some(size);
    std::vector<int64_t> at(kTokens);
    for (int64_t i = 0; i < kTokens; i++) at[i] = i;
    std::vector<float> out(size), lse(rows), d_q(size), d_k(kParts * size), d_v(d_k), d_weight(rows);
    auto table = some(kHeads * length), weight = some(rows);
    auto row = some<double>(rows), col = some<double>(rows);
    std::vector<float> knots{0.1f, 0.2f, 0.3f};
    auto slopes = some(kHeads * pieces), offsets = some(kHeads * pieces);
    std::vector<float> d_table(kParts * kHeads * length), d_slopes(kParts * kHeads * pieces);
    std::vector<float> d_offsets(d_slopes);
    std::vector<double> d_row(rows), d_col(kParts * rows);
    auto in = some(channels * kTaps * kHidden), in_bias = some(kHidden);
    auto outer = some(kHidden * kTaps * kHeads), out_bias = some(kHeads);
    std::vector<double> d_in(kParts * in.size()), d_in_bias(kParts * kHidden);
    std::vector<double> d_outer(kParts * outer.size()), d_ob(kParts * kHeads);
    auto fold = some((1 + kTaps) * kHidden * folded);
    std::vector<float> d_fold(kParts * fold.size());
    auto r = some(rows * kWide), u = some(rows * kWide);
    auto basis = some(kRows * kWide), key_basis = some(kRows * kWide), sink = some(kHeads);
    auto key_turned = some(kRank * (kRows + 16));
    // Distances that share a row, follow each other's, and leave one out.
    std::vector<int64_t> source(kTokens + 2 * kReach);
    for (int64_t i = 0, d; i < kTokens + 2 * kReach; i++) {
        d = i < kReach ? 0 : (i - kReach) * 2 / 3 + (i - kReach > 17 ? 1 : 0);
        source[i] = d < kRows ? d : kRows - 1;
    }
    std::vector<float> d_r(r.size()), d_u(kParts * u.size());
    std::vector<float> d_basis(kParts * kHeads * kRows * kWide), d_kb(d_basis);
    std::vector<float> d_temperature(rows);
    Problem p{};
    p.batch = 1, p.heads = kHeads, p.queries = p.keys = kTokens, p.head_dim = kDim;
    p.key_heads = mixed ? kHeads : 1, p.value_dim = kDim;
    if (!mixed) {
        p.window = 70, p.softcap = 3, p.temperature = weight.data(), p.sink = sink.data();
        p.d_temperature = d_temperature.data();
        p.r = r.data(), p.basis = basis.data(), p.u = u.data(), p.key_basis = key_basis.data();
        p.key_turned = key_turned.data(), p.source = source.data();
        p.rank = p.key_rank = kRank, p.basis_low = -kReach;
        p.basis_rows = kRows, p.turned_length = kRows + 16;
        p.d_r = d_r.data(), p.d_basis = d_basis.data();
        p.d_u = d_u.data(), p.d_key_basis = d_kb.data();
    }
    p.causal = 1, p.threads = kThreads, p.parts = kParts, p.scale = 0.25, p.kind = kind;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.q_at = p.k_at = at.data();
    p.out = out.data(), p.lse = lse.data(), p.d_out = d_out.data();
    p.d_q = d_q.data(), p.d_k = d_k.data(), p.d_v = d_v.data();
    if (kind == kToeplitz || kind == kPieces) {
        p.table = table.data(), p.table_low = -kMargin, p.table_length = length;
        p.d_table = d_table.data();
    }
    if (kind == kSlope || kind == kPieces) p.weight = weight.data(), p.d_weight = d_weight.data();
    if (kind == kSlope) p.row = row.data(), p.col = col.data();
    if (kind == kSlope) p.d_row = d_row.data(), p.d_col = d_col.data();
    if (kind == kPieces) {
        p.pieces = pieces, p.knots = knots.data();
        p.slopes = slopes.data(), p.offsets = offsets.data();
        p.d_slopes = d_slopes.data(), p.d_offsets = d_offsets.data();
    }
    if (mixed) {
        p.hidden = kHidden, p.taps = kTaps, p.adds_bias = 1;
        p.in_weight = p.in_back = in.data(), p.in_bias = in_bias.data();
        p.out_weight = p.out_back = outer.data(), p.out_bias = out_bias.data();
        p.fold = fold.data(), p.fold_low = -kMargin - kFoldMargin, p.fold_length = folded;
        p.d_fold = d_fold.data();
        p.d_in_weight = d_in.data(), p.d_in_bias = d_in_bias.data();
        p.d_out_weight = d_outer.data(), p.d_out_bias = d_ob.data();
    }
    std::vector<int64_t> edges{0, 13, 60, 61, kTokens};
    std::vector<double> sum(4 * kHeads * 16);
    std::vector<float> least(sum.size()), greatest(sum.size());
    Cells cells{4, 0, edges.data(), nullptr, nullptr, sum.data(), least.data(), greatest.data()};
    int failed = headscape_forward(&p) || headscape_backward(&p) || headscape_cells(&p, &cells);
    for (double x : sum) failed |= !(x == x);
    for (float x : d_kb) failed |= !(x == x);
    for (float x : d_r) failed |= !(x == x);
    // Anything left uninitialised reaches a branch here.
    for (float x : out) failed |= !(x == x);
    for (float x : d_q) failed |= !(x == x);
    for (float x : d_k) failed |= !(x == x);
    for (float x : d_table) failed |= !(x == x);
    for (float x : d_fold) failed |= !(x == x);
    for (double x : d_col) failed |= !(x == x);
    for (double x : d_in) failed |= !(x == x);
    return failed;
}

int run_decode() {
    using namespace headscape;
    auto q = some(4 * kDim), k = some(2 * kTokens * kDim), v = some(2 * kTokens * kDim);
    auto bias = some(4 * kTokens), weight = some(4), base = some(4), sink = some(4);
    std::vector<float> out(4 * kDim);
    Decode p{};
    p.batch = 1, p.heads = 4, p.key_heads = 2, p.keys = kTokens, p.head_dim = p.value_dim = kDim;
    p.threads = kThreads, p.stretches = 3, p.scale = 0.25, p.softcap = 2;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.out = out.data();
    p.k_head = p.v_head = kTokens * kDim, p.k_row = p.v_row = kDim;
    p.bias = bias.data(), p.bias_head = kTokens, p.weight_head = p.base_head = 1;
    p.bias_weight = p.temperature = weight.data(), p.bias_base = base.data(), p.sink = sink.data();
    int failed = headscape_decode(&p);
    for (float x : out) failed |= !(x == x);
    return failed;
}

}  // namespace

int main() {
    if (run_decode()) return std::printf("decoding failed\n");
    for (int64_t kind = 0; kind < 4; kind++)
        for (bool mixed : {false, true})
            if (run(kind, mixed)) return std::printf("kind %d failed\n", static_cast<int>(kind));
    return 0;
}
