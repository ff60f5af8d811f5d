"""The native attention kernels: C++ sources, the library built from them, and its torch ops."""
