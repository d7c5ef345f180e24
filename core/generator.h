// Generator: seeded random numbers, the same on every device.
#pragma once

#include <halo/core/philox.h>
#include <halo/core/tensor.h>

#include <cstdint>
#include <mutex>

namespace halo {

/// A seed and how far its sequence has been used. Thread-safe; draws are reserved before they are made.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) { state_.seed = seed; }
  void manual_seed(uint64_t seed);
  /// Seed and offset now: what a checkpoint stores.
  PhiloxState state() const;
  void set_state(PhiloxState state);
  /// Claims `draws` elements: returns where they start and moves past them.
  PhiloxState reserve(uint64_t draws);

 private:
  friend class DrawScope;
  PhiloxState advance(uint64_t draws);

  mutable std::mutex mutex_;
  PhiloxState state_;
};

/// The process-wide generator that functions use when none is given.
Generator& default_generator();
/// Seeds the default generator.
void manual_seed(uint64_t seed);

/// Uniform in [0, 1): 24 random bits for float32, 53 for float64; half types 16, rounded down. Floating dtypes.
Tensor rand(const Shape& shape, const TensorOptions& options = {}, Generator& generator = default_generator());
/// Standard normal. Floating dtypes.
Tensor randn(const Shape& shape, const TensorOptions& options = {}, Generator& generator = default_generator());
/// As many in the dtype and on the device of `like`.
Tensor rand_like(const Tensor& like, Generator& generator = default_generator());
Tensor randn_like(const Tensor& like, Generator& generator = default_generator());
/// Integers in [low, high). Integer dtypes (int64 unless given).
Tensor randint(int64_t low, int64_t high, const Shape& shape, const TensorOptions& options = {.dtype = DType::Int64},
               Generator& generator = default_generator());
/// A random order of 0..n-1 (int64, on the CPU).
Tensor randperm(int64_t n, Generator& generator = default_generator());

}  // namespace halo
