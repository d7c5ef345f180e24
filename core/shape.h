// Shape: up to eight extents (or strides), kept inline; and the arithmetic of dense layouts.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace halo {

/// The largest number of axes a tensor has.
inline constexpr int kMaxRank = 8;

/// A list of up to kMaxRank integers: extents, strides or axes. Longer lists throw ArgumentError.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> values) : Shape(std::span<const int64_t>(values.begin(), values.size())) {}
  Shape(std::span<const int64_t> values);
  Shape(const std::vector<int64_t>& values) : Shape(std::span<const int64_t>(values)) {}
  /// `rank` times `value`.
  static Shape filled(int rank, int64_t value);

  int rank() const { return rank_; }
  std::size_t size() const { return static_cast<std::size_t>(rank_); }
  bool empty() const { return rank_ == 0; }
  int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + rank_; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  int64_t back() const { return values_[static_cast<std::size_t>(rank_ - 1)]; }
  void push_back(int64_t value);
  void insert(int position, int64_t value);
  void erase(int position);
  bool operator==(const Shape& other) const;

  /// Product of the extents; 1 for rank 0. @throws ArgumentError where it passes 2^63 - 1.
  int64_t numel() const;
  /// "[2, 3, 5]"
  std::string str() const;
  std::vector<int64_t> vec() const { return {begin(), end()}; }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// A list of integers that one integer can stand for: `.stride = 2` and `.stride = {2, 1}` both read well.
class IntList : public std::vector<int64_t> {
 public:
  using std::vector<int64_t>::vector;
  IntList() = default;
  IntList(int64_t value) : std::vector<int64_t>{value} {}  // NOLINT(google-explicit-constructor)
  IntList(const std::vector<int64_t>& values) : std::vector<int64_t>(values) {}
};

/// Strides (elements) of a dense row-major tensor.
Shape contiguous_strides(const Shape& shape);

/// `axis` counted from the front; negative axes count from the back.
/// @throws ArgumentError naming `op` unless -rank <= axis < rank.
int normalize_axis(const char* op, int64_t axis, int rank);

/// The common shape of operands under broadcasting (trailing axes line up; extent 1 stretches).
/// @throws ArgumentError naming `op` and both shapes.
Shape broadcast_shapes(const char* op, const Shape& a, const Shape& b);

}  // namespace halo
