// Kernels that overlap the end of the one before them on the stream (launch_early in cuda/launch.h).
// PTX ISA, "griddepcontrol".
#pragma once

namespace halo::cuda::device {

/// This block no longer minds if the next grid starts; that happens when every block has called this or is done.
__device__ __forceinline__ void release_next_grid() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// Waits until the grid before this one is complete and what it wrote can be seen.
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace halo::cuda::device
