#include "isa.h"

#include <cstdlib>
#include <string_view>

namespace halo::cpu {

namespace baseline {
extern const IsaKernels kernels;
}
#ifdef HALO_X86
namespace avx2 {
extern const IsaKernels kernels;
}
namespace avx512 {
extern const IsaKernels kernels;
}
#endif

namespace {

const IsaKernels& choose() {
#ifdef HALO_X86
  const char* wanted = std::getenv("HALO_CPU_ISA");
  const std::string_view limit = wanted == nullptr ? "avx512" : wanted;
  if (limit == "baseline") return baseline::kernels;
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (limit != "avx2" && has_avx512) return avx512::kernels;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kernels;
#endif
  return baseline::kernels;
}

}  // namespace

const IsaKernels& isa_kernels() {
  static const IsaKernels& chosen = choose();
  return chosen;
}

}  // namespace halo::cpu
