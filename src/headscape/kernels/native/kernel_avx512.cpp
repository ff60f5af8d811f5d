// The kernels for AVX-512; built with the flags that setup.py names for this file.
#if defined(__AVX512F__)
#define HEADSCAPE_ISA avx512
#include "kernel.hpp"
#endif
