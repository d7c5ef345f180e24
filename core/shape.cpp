#include <halo/core/error.h>
#include <halo/core/shape.h>

#include <algorithm>
#include <limits>

namespace halo {

Shape::Shape(std::span<const int64_t> values) {
  if (values.size() > static_cast<std::size_t>(kMaxRank)) {
    fail("Shape: expected at most ", kMaxRank, " axes, got ", values.size());
  }
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = static_cast<int>(values.size());
}

Shape Shape::filled(int rank, int64_t value) {
  return Shape(std::vector<int64_t>(static_cast<std::size_t>(rank), value));
}

void Shape::push_back(int64_t value) { insert(rank_, value); }

void Shape::insert(int position, int64_t value) {
  if (rank_ == kMaxRank) fail("Shape: expected at most ", kMaxRank, " axes, got one more than ", str());
  std::copy_backward(begin() + position, end(), end() + 1);
  ++rank_;
  (*this)[position] = value;
}

void Shape::erase(int position) {
  std::copy(begin() + position + 1, end(), begin() + position);
  --rank_;
}

bool Shape::operator==(const Shape& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

int64_t Shape::numel() const {
  if (std::find(begin(), end(), 0) != end()) return 0;
  int64_t result = 1;
  for (int64_t extent : *this) {
    if (extent > std::numeric_limits<int64_t>::max() / result) fail("shape ", str(), " has more than 2^63 elements");
    result *= extent;
  }
  return result;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.str(); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

int normalize_axis(const char* op, int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    fail(op, ": dim expected between ", -rank, " and ", rank - 1, ", got ", axis);
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result = Shape::filled(rank, 1);
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t ea = ia < 0 ? 1 : a[ia], eb = ib < 0 ? 1 : b[ib];
    if (ea != eb && ea != 1 && eb != 1) {
      fail(op, ": shapes expected to broadcast (equal extents, or 1), got ", a, " and ", b);
    }
    result[i] = ea == 1 ? eb : ea;
  }
  return result;
}

}  // namespace halo
