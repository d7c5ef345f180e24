#include <halo/core/cuda_backend.h>
#include <halo/core/profiler.h>

namespace halo {

ProfilerRange::ProfilerRange(const char* name) { cuda::begin_profiler_range(name); }
ProfilerRange::~ProfilerRange() { cuda::end_profiler_range(); }

}  // namespace halo
