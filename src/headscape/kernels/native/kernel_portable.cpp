// The kernels for any machine: NEON on ARM, SSE2 on x86-64.
#define HEADSCAPE_ISA portable
#include "kernel.hpp"
