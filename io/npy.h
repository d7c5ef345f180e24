// NumPy's .npy files: one array each.
#pragma once

#include <halo/core/tensor.h>

#include <string>

namespace halo {

/// Reads an array: format versions 1 to 3, C or Fortran order, either byte order; the tensor is dense and row-major.
/// @throws FileError naming the path and the field that is wrong or not supported.
Tensor load_npy(const std::string& path, Device device = Device::cpu());

/// Writes the values of `tensor` in C order, little-endian. bfloat16 has no .npy form: convert it first. The file
/// appears under its name only when it is complete and on the disk. @throws ArgumentError for bfloat16, FileError where
/// writing fails.
void save_npy(const std::string& path, const Tensor& tensor);

}  // namespace halo
