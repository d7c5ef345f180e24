#include <halo/core/copy.h>
#include <halo/core/tensor.h>
#include <halo/core/view.h>

#include <iomanip>
#include <sstream>

namespace halo {
namespace {

constexpr int64_t kEdge = 3;       // values shown at each end of a long axis
constexpr int64_t kLongAxis = 10;  // axes up to this are shown whole

std::string number(double value, bool floating) {
  std::ostringstream text;
  if (floating) {
    text << std::setprecision(5) << value;
  } else {
    text << static_cast<int64_t>(value);
  }
  return text.str();
}

/// Values of the axes from `axis` on; `at` is the offset (elements) of their first.
void print_axis(std::ostream& out, const Tensor& t, const std::vector<double>& values, int axis, int64_t at) {
  if (axis == t.rank()) {
    out << number(values[static_cast<std::size_t>(at)], is_floating_point(t.dtype()));
    return;
  }
  const int64_t extent = t.shape()[axis];
  const int64_t step = t.strides()[axis];
  out << '[';
  for (int64_t i = 0; i < extent; ++i) {
    if (i > 0) out << (axis + 1 == t.rank() ? ", " : ",\n" + std::string(static_cast<std::size_t>(axis) + 1, ' '));
    if (extent > kLongAxis && i == kEdge) {
      out << "...";
      i = extent - kEdge - 1;
      continue;
    }
    print_axis(out, t, values, axis + 1, at + i * step);
  }
  out << ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "undefined tensor";
  const Tensor host = view::dense(convert(tensor, tensor.dtype(), Device::cpu()));
  print_axis(out, host, host.to_vector<double>(), 0, 0);
  return out << "\n" << tensor.describe();
}

}  // namespace halo
