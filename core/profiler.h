// Names for the parts of a program in NVIDIA's profilers (NVTX).
#pragma once

#include <string>

namespace halo {

/// What this thread does while it lives is shown under `name` by Nsight Systems and its like. Ranges nest. Does nothing
/// in a build without CUDA, and next to nothing where no profiler runs.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  explicit ProfilerRange(const std::string& name) : ProfilerRange(name.c_str()) {}
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace halo
