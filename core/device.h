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

/// Waits until the device has done everything it was given (nothing to do for the CPU).
void synchronize(Device device);

}  // namespace halo
