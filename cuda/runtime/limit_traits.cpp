#include <halo/core/error.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "traits.h"

namespace halo::cuda {

DeviceTraits limit_traits(const DeviceTraits& traits, const char* text) {
  if (text == nullptr) return traits;
  constexpr int kOldest = 80, kMostDigits = 3;
  const char* const end = text + std::strlen(text);
  int architecture = 0;
  const auto [last, error] = std::from_chars(text, end, architecture);
  if (error != std::errc() || last != end || end - text > kMostDigits || architecture < kOldest) {
    fail<ArgumentError>("HALO_CUDA_ARCH: expected a compute capability without its point, from ", kOldest, " on, got '",
                        text, "'");
  }
  if (architecture >= traits.major * 10 + traits.minor) return traits;
  DeviceTraits limited = traits;
  limited.major = architecture / 10;
  limited.minor = architecture % 10;
  // CUDA Programming Guide, "Technical specifications per compute capability".
  const std::size_t kib = architecture == 80 || architecture == 87 ? 163 : architecture < 90 ? 99 : 227;
  limited.block_memory = std::min(traits.block_memory, kib * 1024);
  return limited;
}

}  // namespace halo::cuda
