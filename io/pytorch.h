// Weights saved by PyTorch.
#pragma once

#include <halo/core/state_dict.h>

#include <string>

namespace halo {

/// The tensors of a file that torch.save wrote (.pt, .pth, .ckpt; the zip format, PyTorch 1.6 and later): of the
/// dictionary in it, or of that dictionary's entry "state_dict" where it has one. What is not a tensor is left out. The
/// pickle in the file is read as data: nothing in it is ever run, so that files of strangers are safe to read.
/// @throws FileError where the file is of another kind, damaged, or holds a tensor that Halo has no type for.
StateDict load_pytorch(const std::string& path, Device device = Device::cpu());

}  // namespace halo
