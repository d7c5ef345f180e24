// Marks functions that both the CPU and CUDA kernels call: one formula, one place.
#pragma once

#ifdef __CUDACC__
#define HALO_HOST_DEVICE __host__ __device__
#else
#define HALO_HOST_DEVICE
#endif
