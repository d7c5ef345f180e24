#include <halo/core/cuda_backend.h>
#include <halo/core/device.h>
#include <halo/core/error.h>

#include <charconv>
#include <thread>

#include <unistd.h>

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

int device_count() { return cuda::device_count(); }

DeviceProperties device_properties(Device device) {
  if (device.is_cuda()) return cuda::properties(device.index);
  const int64_t page = sysconf(_SC_PAGESIZE);
  return {.name = "CPU",
          .multi_processor_count = static_cast<int>(std::thread::hardware_concurrency()),
          .total_memory = page * sysconf(_SC_PHYS_PAGES),
          .free_memory = page * sysconf(_SC_AVPHYS_PAGES)};
}

DeviceGuard::DeviceGuard(Device device) {
  if (device.is_cuda()) previous_ = cuda::exchange_current_device(device.index);
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cuda::restore_current_device(previous_);
}

void synchronize(Device device) {
  if (device.is_cuda()) cuda::synchronize(device.index);
}

}  // namespace halo
