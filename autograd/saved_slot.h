// How SavedTensor leaves a value to the checkpoint that it was saved in. Not installed.
#pragma once

#include <halo/core/tensor.h>

#include <memory>
#include <string>

namespace halo::autograd {

class CheckpointFrame;

/// A saved value that is made again when it is needed.
class SavedSlot {
 public:
  /// The place of `tensor` in the checkpoint that this thread is in; null where the tensor has to be kept itself.
  static std::shared_ptr<SavedSlot> place(const Tensor& tensor);
  /// The value, with the history that it had; made again if need be. `drop`: the slot lives on, but keeps it no longer.
  Tensor value(bool drop);

 private:
  friend class CheckpointFrame;
  SavedSlot(std::shared_ptr<CheckpointFrame> frame, const Tensor& tensor);

  std::shared_ptr<CheckpointFrame> frame_;
  std::string description_;               ///< shape, dtype and device
  uint64_t version_;                      ///< of the storage, when saved
  std::shared_ptr<AutogradState> state_;  ///< of the tensor that was saved
  Tensor value_;                          ///< without history; undefined unless it was just made
};

/// Tells the checkpoint that this thread is in, if any, which leaves an operation reads.
void note_leaves(const std::vector<Tensor>& inputs);

}  // namespace halo::autograd
