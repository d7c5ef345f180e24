// Where a tensor lives.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace halo {

enum class DeviceType : uint8_t { CPU, CUDA };

/// A device: the CPU, or one CUDA GPU by its index.
struct Device {
  DeviceType type = DeviceType::CPU;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::CUDA, index}; }
  /// "cpu", "cuda" or "cuda:1". @throws ArgumentError for anything else.
  static Device parse(const std::string& text);
  /// The first GPU where one answers, else the CPU.
  static Device best();

  constexpr bool is_cpu() const { return type == DeviceType::CPU; }
  constexpr bool is_cuda() const { return type == DeviceType::CUDA; }
  constexpr bool operator==(const Device&) const = default;
  std::string str() const;
};

std::ostream& operator<<(std::ostream& out, Device device);

/// GPUs that can be used: 0 in a build without CUDA, without a driver, or where none is visible. Never throws.
int device_count();

struct DeviceProperties {
  std::string name;               ///< "NVIDIA H200"; "CPU"
  int major = 0, minor = 0;       ///< compute capability; 0 for the CPU
  int multi_processor_count = 0;  ///< for the CPU, its threads
  int64_t total_memory = 0;       ///< bytes
  int64_t free_memory = 0;        ///< bytes that nobody has, when asked
};
/// What a device is. @throws DeviceError where it is absent, saying why.
DeviceProperties device_properties(Device device);

/// Makes a GPU the one that CUDA calls of your own go to, on this thread, for a scope; does nothing for the CPU. Halo's
/// functions go by the devices of their tensors and do not need it. @throws DeviceError where it is absent.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

/// Waits until the device has done everything it was given (nothing to do for the CPU).
void synchronize(Device device);

}  // namespace halo
