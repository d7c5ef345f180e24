#include <halo/core/cuda_backend.h>
#include <halo/core/device.h>
#include <halo/core/error.h>

#include <charconv>

namespace halo {

Device Device::parse(const std::string& text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda(0);
  const std::string prefix = "cuda:";
  if (text.starts_with(prefix)) {
    int index = -1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + prefix.size(), end, index);
    if (error == std::errc{} && stop == end && index >= 0) return cuda(index);
  }
  fail("Device: expected cpu, cuda or cuda:N, got \"", text, "\"");
}

Device Device::best() { return cuda::device_count() > 0 ? cuda(0) : cpu(); }

std::string Device::str() const { return is_cpu() ? "cpu" : "cuda:" + std::to_string(index); }

std::ostream& operator<<(std::ostream& out, Device device) { return out << device.str(); }

void synchronize(Device device) {
  if (device.is_cuda()) cuda::synchronize(device.index);
}

}  // namespace halo
