// Graphs: work recorded once and replayed in one launch, for many small kernels.
#pragma once

#include <halo/core/device.h>

#include <functional>
#include <memory>

namespace halo::cuda {

/// Kernels recorded from a run of ordinary Halo code. A replay reads and writes the same memory as the recorded run:
/// keep the input tensors alive, copy_ new values into them, and read the outputs that the run made. Random functions
/// repeat the numbers they drew while recording.
class Graph {
 public:
  /// Runs `body` once, recording instead of executing what it does on `device`. The body must not wait for the GPU
  /// (item(), to_vector(), synchronize()) nor copy from the CPU; run it once before, so that nothing is set up while
  /// recording.
  /// @throws DeviceError where the body did something that cannot be recorded.
  static Graph capture(Device device, const std::function<void()>& body);

  /// Queues the recorded work on the device's current stream.
  void replay() const;

 private:
  struct State;
  explicit Graph(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace halo::cuda
