#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace halo::view {
namespace {

Tensor with(const Tensor& t, const Shape& shape, const Shape& strides, int64_t offset) {
  return Tensor(t.storage(), t.dtype(), shape, strides, offset);
}

/// Strides that give `shape` over the same elements in the same order, if there are any: runs of old axes that are
/// dense among themselves are matched with runs of new axes of the same product.
std::optional<Shape> strides_for(const Tensor& t, const Shape& shape) {
  Shape old_shape, old_strides;  // without extents of 1, whose strides mean nothing
  for (int i = 0; i < t.rank(); ++i) {
    if (t.shape()[i] == 1) continue;
    old_shape.push_back(t.shape()[i]);
    old_strides.push_back(t.strides()[i]);
  }
  Shape strides = Shape::filled(shape.rank(), 1);
  int next = shape.rank() - 1;
  int64_t run = 1;
  int last = old_shape.rank() - 1;  // the innermost axis of the current run
  for (int i = last; i >= 0; --i) {
    run *= old_shape[i];
    if (i > 0 && old_strides[i - 1] == old_shape[i] * old_strides[i]) continue;
    int64_t covered = 1;
    while (next >= 0 && (covered < run || shape[next] == 1)) {
      strides[next] = covered * old_strides[last];
      covered *= shape[next--];
    }
    if (covered != run) return std::nullopt;
    run = 1;
    last = i - 1;
  }
  return strides;
}

}  // namespace

Tensor alias(const Tensor& t) { return with(t, t.shape(), t.strides(), t.storage_offset()); }

Tensor dense(const Tensor& t) {
  if (t.is_contiguous()) return t;
  Tensor result = empty(t.shape(), t.options());
  copy(t, result);
  return result;
}

Tensor dense_or_undefined(const Tensor& t) { return t.defined() ? dense(t) : t; }

Shape infer_shape(const char* op, const Shape& shape, int64_t numel) {
  Shape result = shape;
  int64_t* unknown = nullptr;
  int64_t known = 1;
  for (int64_t& extent : result) {
    if (extent == -1 && unknown == nullptr) {
      unknown = &extent;
    } else if (extent < 0) {
      fail(op, ": shape expected extents of 0 or more and at most one -1, got ", shape);
    } else {
      known *= extent;
    }
  }
  if (unknown != nullptr && known != 0 && numel % known == 0) *unknown = numel / known;
  if ((unknown != nullptr && *unknown == -1) || result.numel() != numel) {
    fail(op, ": shape expected ", numel, " elements, got ", shape);
  }
  return result;
}

Tensor reshape(const Tensor& t, const Shape& wanted) {
  const Shape shape = infer_shape("reshape", wanted, t.numel());
  if (t.numel() == 0) return with(t, shape, contiguous_strides(shape), t.storage_offset());
  if (const auto strides = strides_for(t, shape)) return with(t, shape, *strides, t.storage_offset());
  const Tensor copied = dense(t);
  return with(copied, shape, contiguous_strides(shape), 0);
}

Tensor flatten(const Tensor& t, int64_t start, int64_t end) {
  if (t.rank() == 0) return reshape(t, {1});
  const int first = normalize_axis("flatten", start, t.rank()), last = normalize_axis("flatten", end, t.rank());
  if (first > last) fail("flatten: start expected at most end, got ", start, " and ", end, " for ", t.shape());
  Shape shape;
  for (int i = 0; i < t.rank(); ++i) {
    if (i > first && i <= last) {
      shape[first] *= t.shape()[i];
    } else {
      shape.push_back(t.shape()[i]);
    }
  }
  return reshape(t, shape);
}

Tensor transpose(const Tensor& t, int64_t dim0, int64_t dim1) {
  const int a = normalize_axis("transpose", dim0, t.rank()), b = normalize_axis("transpose", dim1, t.rank());
  Shape shape = t.shape(), strides = t.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return with(t, shape, strides, t.storage_offset());
}

Tensor permute(const Tensor& t, const Shape& dims) {
  Shape shape, strides;
  std::array<bool, kMaxRank> seen{};
  for (int64_t dim : dims) {
    const int axis = normalize_axis("permute", dim, t.rank());
    if (std::exchange(seen[static_cast<std::size_t>(axis)], true)) {
      fail("permute: dims expected each axis once, got ", dims);
    }
    shape.push_back(t.shape()[axis]);
    strides.push_back(t.strides()[axis]);
  }
  if (shape.rank() != t.rank()) fail("permute: dims expected ", t.rank(), " axes for ", t.shape(), ", got ", dims);
  return with(t, shape, strides, t.storage_offset());
}

Tensor expand(const Tensor& t, const Shape& wanted, const char* op) {
  const int added = wanted.rank() - t.rank();
  Shape shape = wanted, strides = Shape::filled(wanted.rank(), 0);
  bool fits = added >= 0;
  for (int i = 0; fits && i < wanted.rank(); ++i) {
    const int64_t have = i < added ? 1 : t.shape()[i - added];
    if (wanted[i] == -1 && i >= added) shape[i] = have;
    if (i >= added && shape[i] == have) strides[i] = t.strides()[i - added];
    fits = shape[i] >= 0 && (shape[i] == have || have == 1);
  }
  if (!fits) fail(op, ": shape expected to stretch only extents of 1 of ", t.shape(), ", got ", wanted);
  return with(t, shape, strides, t.storage_offset());
}

Tensor unsqueeze(const Tensor& t, int64_t dim) {
  const int axis = normalize_axis("unsqueeze", dim, t.rank() + 1);
  Shape shape = t.shape(), strides = t.strides();
  shape.insert(axis, 1);
  strides.insert(axis, 1);
  return with(t, shape, strides, t.storage_offset());
}

Tensor squeeze(const Tensor& t, int64_t dim) {
  const int axis = normalize_axis("squeeze", dim, t.rank());
  if (t.shape()[axis] != 1) return alias(t);
  Shape shape = t.shape(), strides = t.strides();
  shape.erase(axis);
  strides.erase(axis);
  return with(t, shape, strides, t.storage_offset());
}

SliceBounds slice_bounds(int64_t extent, int64_t start, int64_t end, int64_t step) {
  if (step < 1) fail("slice: step expected at least 1, got ", step);
  if (start < 0) start += extent;
  if (end < 0) end += extent;
  start = std::clamp<int64_t>(start, 0, extent);
  end = std::clamp<int64_t>(end, start, extent);
  return {start, (end - start) / step + ((end - start) % step != 0)};
}

Tensor slice(const Tensor& t, int64_t dim, int64_t start, int64_t end, int64_t step) {
  const int axis = normalize_axis("slice", dim, t.rank());
  const auto bounds = slice_bounds(t.shape()[axis], start, end, step);
  Shape shape = t.shape(), strides = t.strides();
  shape[axis] = bounds.length;
  const bool any = shape.numel() > 0;
  const int64_t offset = t.storage_offset() + (any ? bounds.start * strides[axis] : 0);
  if (bounds.length > 1) strides[axis] *= step;
  return with(t, shape, strides, offset);
}

Tensor select(const Tensor& t, int64_t dim, int64_t index) {
  const int axis = normalize_axis("select", dim, t.rank());
  const int64_t extent = t.shape()[axis];
  if (index < -extent || index >= extent) {
    fail("select: index expected between ", -extent, " and ", extent - 1, " along dim ", dim, " of ", t.shape(),
         ", got ", index);
  }
  Shape shape = t.shape(), strides = t.strides();
  const int64_t offset = shape.numel() > 0 ? (index < 0 ? index + extent : index) * strides[axis] : 0;
  shape.erase(axis);
  strides.erase(axis);
  return with(t, shape, strides, t.storage_offset() + offset);
}

}  // namespace halo::view
