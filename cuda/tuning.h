// Measured kernel choice: instead of asking the cost model, time every kernel once, and keep what was found in a file.
#pragma once

#include <halo/core/device.h>

#include <functional>
#include <string>

namespace halo::cuda {

/// Runs `body` once (a training step, say) and notes the convolutions that it asks of `device`; then times every kernel
/// that can do each of them, puts the fastest in force for this process, and writes them to `path`, which is replaced.
/// Takes some milliseconds a kernel and the memory of one convolution's operands at a time.
///
/// Another kernel adds in another order, so results differ in the last bits from those of other choices; with the same
/// file they are the same every run.
void tune_convolutions(const std::string& path, Device device, const std::function<void()>& body);

/// Puts the choices of `path` in force for `device`, in place of those before. A file of another GPU model, driver or
/// build of Halo is ignored: the result is then one sentence that says so, else it is empty.
/// @throws FileError if the file cannot be read, is cut off or was changed.
std::string load_convolution_choices(const std::string& path, Device device);

/// The cost model chooses again, on every device.
void forget_convolution_choices();

}  // namespace halo::cuda
