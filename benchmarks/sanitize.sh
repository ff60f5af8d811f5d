#!/bin/sh
# The native kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer, for every
# instruction set of this machine, and small cases under ThreadSanitizer with four threads and, where
# that is installed, under valgrind.
# Builds into a folder of its own; the package's library stays as it is.
#
#     benchmarks/sanitize.sh [python]
set -eu
cd "$(dirname "$0")/.."
PYTHON=${1:-.venv/bin/python}
OUT=$(mktemp -d)
trap 'rm -rf "$OUT"' EXIT

build() {
    HEADSCAPE_CXXFLAGS="$1" "$PYTHON" setup.py --quiet build_ext --build-temp "$OUT/$2.tmp" \
        --build-lib "$OUT/$2"
    find "$OUT/$2" -name 'kernels*.so'
}

# Python builds extensions with -fwrapv, under which signed overflow is not looked for.
flags="-fno-wrapv -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
library=$(build "$flags" checked)
for set in avx512 avx2 portable; do
    echo "sanitizers: $set"
    HEADSCAPE_LIBRARY=$library HEADSCAPE_NATIVE=$set ASAN_OPTIONS=detect_leaks=0 \
        LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \
        "$PYTHON" -m pytest tests/kernels/test_native.py tests/kernels/test_native_calls.py \
        tests/kernels/test_native_sticks.py tests/kernels/test_decode.py \
        tests/kernels/test_cells.py -q -p no:cacheprovider \
        -k "not thousand and not long_sums and not registered"
done

# Linked with a runtime of plain threads in place of GCC's OpenMP, which ThreadSanitizer cannot see.
echo "ThreadSanitizer"
native=src/headscape/kernels/native
thread() { g++ -std=c++17 -O1 -g -w -fno-math-errno -fsanitize=thread "$@"; }
avx2="-mavx2 -mfma -mf16c"
# shellcheck disable=SC2086 # one word per flag
if [ "$(uname -m)" = x86_64 ]; then
    thread -fopenmp $avx2 -c "$native/kernel_avx2.cpp" -o "$OUT/avx2.o"
    thread -fopenmp $avx2 -mavx512f -mavx512dq -mavx512bw -mavx512vl \
        -c "$native/kernel_avx512.cpp" -o "$OUT/avx512.o"
else
    thread -fopenmp -c "$native/kernel_avx2.cpp" -o "$OUT/avx2.o"
    thread -fopenmp -c "$native/kernel_avx512.cpp" -o "$OUT/avx512.o"
fi
thread -fopenmp -c "$native/kernel_portable.cpp" -o "$OUT/portable.o"
thread -I "$native" -DTOKENS=400 -DTHREADS=4 benchmarks/native_case.cpp \
    benchmarks/openmp_by_threads.cpp "$native/api.cpp" "$OUT"/*.o -o "$OUT/threads"
for set in avx512 avx2 portable; do
    HEADSCAPE_NATIVE=$set TSAN_OPTIONS=halt_on_error=1 "$OUT/threads"
done

if command -v valgrind > /dev/null; then
    echo "valgrind"
    library=$(build "-g -O1" plain)
    g++ -g -O1 -std=c++17 -I src/headscape/kernels/native benchmarks/native_case.cpp "$library" \
        -Wl,-rpath,"$(dirname "$library")" -o "$OUT/case"
    HEADSCAPE_NATIVE=avx2 valgrind --quiet --error-exitcode=1 --exit-on-first-error=no "$OUT/case"
fi
