// What kernels make of a weight before they use it (a layout, a spectrum), kept with the weight's memory for inference.
//
// Made on first use, made again in place after the weight was changed in place, freed with the weight. A weight keeps
// what it was used for last, two things at most. A graph that was captured with some looks at them before each replay.
#pragma once

#include <halo/core/tensor.h>

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "streams.h"

namespace halo::cuda {

/// What is made of one weight or two (the second may be undefined).
using Weights = std::array<Tensor, 2>;

/// How it is made: all it depends on beside the weights' elements, their addresses included.
class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual bool same_as(const Recipe& other) const = 0;
  virtual std::unique_ptr<Recipe> copy() const = 0;
  virtual std::size_t bytes() const = 0;
  /// Queues the work that writes bytes() at `to`.
  virtual void make(void* to, cudaStream_t stream) const = 0;
};

/// One thing made of weights.
class Kept {
 public:
  Kept(const Weights& weights, const Recipe& recipe);

  const void* data() const { return memory_.data(); }
  bool is_of(const Weights& weights, const Recipe& recipe) const;
  /// Makes it where that is due; work queued on `stream` from now on finds it made.
  void update(cudaStream_t stream);
  /// Whether it is made and the weights still are what they were then; waits until the GPU is done with it.
  bool is_made() const;

 private:
  std::array<std::weak_ptr<Storage>, 2> storages_;  ///< the first owns this
  int count_;
  std::unique_ptr<Recipe> recipe_;
  Storage memory_;
  mutable std::mutex mutex_;  ///< guards what follows
  bool made_ = false;
  std::array<uint64_t, 2> versions_{};  ///< of the weights when it was made
  cudaStream_t stream_ = nullptr;       ///< where it was made
  Event ready_;
};

/// What `recipe` makes of `weights`, up to date for work on `stream`, the current one. Hold it until the kernel that
/// reads it is queued. Null where the caller has to do without: others may change a weight's memory, or a graph is
/// being recorded and nothing is made yet, or there is no memory.
std::shared_ptr<Kept> keep(const Weights& weights, const Recipe& recipe, cudaStream_t stream);

using KeptUses = std::vector<std::shared_ptr<Kept>>;

/// Takes down what a graph that is recorded on this thread uses while it lives.
class KeptRecorder {
 public:
  explicit KeptRecorder(KeptUses& uses);
  ~KeptRecorder();
  KeptRecorder(const KeptRecorder&) = delete;
  KeptRecorder& operator=(const KeptRecorder&) = delete;

 private:
  KeptUses* outer_;
};

}  // namespace halo::cuda
