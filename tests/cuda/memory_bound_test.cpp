// Memory-bound functions of elements, sums and folds: packs and elements, runs that begin anywhere.
#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::compare;
using testing::Gpu;
using testing::same;
using testing::Tensors;
using testing::with_gradients;

TEST_F(Gpu, NormsBeyondTheRangeOfSquares) {
  const double inf = INFINITY, nan = NAN;
  const std::vector<std::vector<double>> rows{{1e300, -1e300, 3}, {1e-300, 2e-300}, {5e-324, 0}, {0, 0}, {inf, 1},
                                              {-inf, inf},        {nan, 1},         {nan, inf},  {3, 4}};
  for (const auto& row : rows) {
    const Tensor x = from_vector(row, {static_cast<int64_t>(row.size())});
    const double got = norm(x.to(Device::cuda())).item(), expected = norm(x).item();
    EXPECT_EQ(std::isnan(got), std::isnan(expected)) << row[0];
    if (std::isfinite(expected)) {
      EXPECT_LE(std::abs(got - expected), 1e-14 * expected) << row[0];
    } else if (!std::isnan(expected)) {
      EXPECT_EQ(got, expected) << row[0];
    }
  }
  const Tensor many = full({70001}, 1e200, {.dtype = float64});
  EXPECT_NEAR(norm(many.to(Device::cuda())).item() / (1e200 * std::sqrt(70001.0)), 1, 1e-12);
  EXPECT_TRUE(std::isinf(sqrt(sum(many * many)).item()));  // what squares alone give
}

TEST_F(Gpu, ColumnsAndTables) {
  for (const Shape& shape : {Shape{1000, 64}, Shape{77, 1028}, Shape{300, 5}}) {
    compare("columns", {randn(shape) + 1.0}, [](const Tensors& t) { return Tensors{sum(t[0], {0}), mean(t[0], {0})}; });
  }
  for (int64_t width : {7, 64}) {
    compare("embedding", {randint(0, 5, {9, 1031}), randn({5, width})},
            with_gradients([](const Tensors& t) { return embedding(t[0], t[1]); }));
  }
}

// Up to 32 places go by sums in shared memory; rows of 3 are not whole packs.
TEST_F(Gpu, SumsByIndexOfFewPlaces) {
  constexpr int64_t kCount = 16387;
  for (int64_t places : {1, 5, 32, 33}) {
    for (int64_t width : {3, 8, 24, 1048}) {
      Tensor index = randint(0, places, {kCount});
      if (places > 1) index.slice(0, 0, 3000).fill_(1);  // one of them has most of a chunk
      const Tensor rows = randint(-7, 8, {kCount, width}).to(float32);
      const auto sums = [&](const Tensor& g) {
        const Tensor start = zeros({places, width}, g.options());
        return index_add(start, 0, index.to(g.device()), g).to(Device::cpu()).to(float32);
      };
      const Tensor expected = sums(rows);
      EXPECT_TRUE(same(sums(rows.to(Device::cuda())), expected)) << places << ' ' << width;
      for (DType dtype : {bfloat16, float16}) {
        const Tensor got = sums(rows.to(dtype).to(Device::cuda()));
        EXPECT_TRUE(same(got, expected.to(dtype).to(float32))) << places << ' ' << width;
        EXPECT_FALSE(same(got, (expected + 16.0).to(dtype).to(float32)));
      }
    }
  }
}

TEST_F(Gpu, BroadcastPacksAndElements) {
  for (const Shape& shape : {Shape{9, 64}, Shape{9, 63}, Shape{3, 5, 16}, Shape{3, 5, 1}}) {
    const Tensor x = randn(shape), row = randn({shape.back()}), one = randn({});
    Shape column = shape;
    column[column.rank() - 1] = 1;
    compare("add", {x, row, randn(column), one}, [](const Tensors& t) {
      return Tensors{t[0] + t[1], t[1] * t[0], t[0] - t[2], t[0] * t[3], gt(t[0], t[2])};
    });
  }
}

// One dense axis: whole packs and the elements after the last, wherever operands begin, and nothing beyond them.
TEST_F(Gpu, DensePacksAndTheirTail) {
  for (DType dtype : {float32, bfloat16, float64}) {
    for (int64_t count : {1, 3, 4, 7, 8, 9, 255, 1023, 2047, 2048, 2051, 70001}) {
      const Tensor x = randn({count}).to(dtype), y = randn({count}).to(dtype);
      const Tensor expected = x * y - x;
      for (int64_t begin : {0, 1, 8}) {
        const auto placed = [&](const Tensor& values) {
          const Tensor memory = full({count + 24}, NAN, {.dtype = dtype, .device = Device::cuda()});
          memory.slice(0, begin, begin + count).copy_(values);
          return memory;
        };
        const Tensor memory = placed(x), factor = placed(y);
        const Tensor here = memory.slice(0, begin, begin + count);
        const Tensor got = here * factor.slice(0, begin, begin + count) - here;
        EXPECT_TRUE(same(got.to(Device::cpu()), expected)) << name(dtype) << ", " << count << " from " << begin;
        here.copy_(got);
        EXPECT_TRUE(same(here.to(Device::cpu()), expected)) << name(dtype) << ", " << count << " copied to " << begin;
        EXPECT_EQ(sum(isnan(memory).to(float32)).item(), 24) << name(dtype) << ", " << count << " from " << begin;
      }
    }
  }
}

TEST_F(Gpu, ManyRunsOfFewElements) {
  for (const Shape& shape : {Shape{70, 3, 17}, Shape{33, 5, 4099}, Shape{2, 300, 16}}) {
    const Tensor x = randn(shape) + 5.0;
    compare("sums", {x}, [](const Tensors& t) {
      return Tensors{sum(t[0], {0, 2}), amax(t[0], {0, 2}), var(t[0], {0, 2}), logsumexp(t[0], {0, 2}), sum(t[0])};
    });
  }
}

// Runs that the copy engine brings in pieces: of one piece and of several, outputs that lie between runs and not, runs
// that begin at any element, with NaN around them.
TEST_F(Gpu, FoldsOfLongRuns) {
  struct Fold {
    Shape shape;   // of memory
    int64_t rows;  // of its third axis that are folded
    Shape axes;
  };
  for (const Fold& fold : {Fold{{150, 9, 41, 49}, 40, {0, 2, 3}}, Fold{{67, 7, 83, 71}, 83, {0, 2, 3}},
                           Fold{{7, 90, 67, 71}, 60, {1, 2, 3}}, Fold{{5, 3, 211, 1201}, 200, {0, 2, 3}}}) {
    for (DType dtype : {float32, bfloat16}) {
      const Tensor values = (randn(fold.shape) * 3.0 + 20.0).to(dtype);
      const int64_t count = values.numel();
      Tensors first;
      for (int64_t begin : {0, 1, 2, 7}) {
        Tensor memory = full({count + 16}, NAN, {.dtype = dtype, .device = Device::cuda()});
        memory.slice(0, begin, begin + count).copy_(values.reshape({count}));
        Tensor x = memory.slice(0, begin, begin + count).reshape(fold.shape);
        x.slice(2, fold.rows, fold.shape[2]).fill_(NAN);
        x = x.slice(2, 0, fold.rows);
        const Tensors got{var(x, fold.axes), sum(x, fold.axes), amax(x, fold.axes), var(x * 0x1p62, fold.axes)};
        const std::string what = concat(name(dtype), " from ", begin, ", width ", fold.shape[3]);
        if (begin > 0) {
          for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], first[i])) << what << ", result " << i;
          continue;
        }
        first = got;
        const Tensor wide = values.slice(2, 0, fold.rows).to(float64), variance = var(wide, fold.axes);
        const double unit = dtype == float32 ? 2e-7 : 0x1p-8;
        const auto here = [](const Tensor& t) { return t.to(float64).to(Device::cpu()); };
        EXPECT_TRUE(testing::near(here(got[0]), variance, unit)) << what;
        EXPECT_FALSE(testing::near(here(got[0]) * (1 + 3 * unit), variance, unit)) << what;
        EXPECT_TRUE(testing::near(here(got[1]), sum(wide, fold.axes), unit)) << what;
        EXPECT_TRUE(same(here(got[2]), amax(wide, fold.axes))) << what;
        // Squares of float32 would be beyond its range.
        EXPECT_TRUE(testing::near(here(got[3]) * 0x1p-124, variance, unit)) << what;
      }
    }
  }
}

// Packs are folded in float32 around their first number: one that lies far from the others, a mean that is large, and
// numbers that are not finite.
TEST_F(Gpu, VarianceOfLongRunsLosesNoSpread) {
  const Shape axes{0, 2, 3};
  for (DType dtype : {float32, bfloat16}) {
    const Tensor plain = (randn({dtype == float32 ? 180 : 360, 5, 47, 50}) * 3.0 + 20.0).to(dtype);
    const auto on_gpu = [&](const Tensor& x) { return var(x.to(Device::cuda()), axes).to(Device::cpu()); };
    const auto expect_near = [&](const Tensor& x, const char* what) {
      EXPECT_TRUE(testing::near(on_gpu(x).to(float64), var(x.to(float64), axes), dtype == float32 ? 2e-7 : 0x1p-8))
          << name(dtype) << ", " << what;
    };
    Tensor far = plain.clone(), holes = plain.clone();
    far.select(3, 0).select(2, 0).fill_(1e4);
    expect_near(far, "far numbers before the others");
    expect_near(plain + (dtype == float32 ? 1e6 : 1e3), "large mean");
    expect_near(plain * 0x1p-50, "small numbers");
    EXPECT_TRUE(same(on_gpu(full_like(plain, 12345.678)), zeros({5}, {.dtype = dtype}))) << name(dtype);
    holes.select(1, 1).select(0, 7).select(0, 46).fill_(NAN);
    holes.select(1, 3).select(0, 9).select(0, 0).fill_(INFINITY);
    Tensor expected = on_gpu(plain);
    expected.slice(0, 1, 4, 2).fill_(NAN);
    EXPECT_TRUE(same(on_gpu(holes), expected)) << name(dtype);
  }
}

// Kernels read whole granules of 16 bytes: neither what lies beside an operand nor where it begins may show.
TEST_F(Gpu, BitsDoNotDependOnWhereOperandsBegin) {
  const Tensor row = randn({6}, {.device = Device::cuda()});
  for (DType dtype : {float32, bfloat16, float64}) {
    for (const Shape& shape : {Shape{50, 6, 37, 41}, Shape{50, 6, 61, 67}, Shape{180, 6, 61, 67}, Shape{3, 6, 8, 64}}) {
      const int64_t count = shape.numel();
      const Tensor w = row.to(dtype), memory = randn({count + 16}, {.device = Device::cuda()}).to(dtype);
      const auto results = [&](const Tensor& x) {
        const Tensor leaf = x.detach().requires_grad_();
        const Tensor max = max_pool2d(leaf, 3, {.stride = 2}), average = avg_pool2d(leaf, 3, {.stride = 2});
        const Tensor group = group_norm(leaf, 2, w, w), batch = batch_norm(leaf, {}, {}, w, w, {.training = true});
        const Tensor local = local_response_norm(leaf, 5);
        Tensors all{max, average, group, batch, local, sum(x), sum(x, {1, 2, 3}), var(x, {0, 2, 3}), amax(x, {3})};
        for (const Tensor& y : {cumsum(x, 3), x.permute({0, 2, 3, 1}).contiguous(), pad(x, {1, 2, 3, 1})}) {
          all.push_back(y);
        }
        for (const Tensor& y : {max, average, group, batch, local}) all.push_back(grad({sum(y * y)}, {leaf})[0]);
        return all;
      };
      const Tensors expected = results(memory.slice(0, 0, count).reshape(shape).clone());
      for (int64_t begin : {1, 3}) {
        Tensor moved = full({count + 16}, NAN, memory.options());
        moved.slice(0, begin, begin + count).copy_(memory.slice(0, 0, count));
        const Tensors got = results(moved.slice(0, begin, begin + count).reshape(shape));
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(testing::same(got[i], expected[i])) << name(dtype) << " from " << begin << ", result " << i;
        }
        EXPECT_FALSE(testing::same(sum(moved), expected[5]));
      }
    }
  }
}

TEST_F(Gpu, HalfTypesKeepFloat32InBetween) {
  for (DType dtype : {bfloat16, float16}) {
    const Tensor x = (rand({9, 3, 1234}) + 0.5).to(dtype), wide = x.to(float32);
    const auto here = [](const Tensor& t) { return t.to(float32).to(Device::cpu()); };
    const double unit = dtype == bfloat16 ? 0x1p-8 : 0x1p-11;
    const BatchNormOptions training{.training = true};
    EXPECT_TRUE(testing::near(here(sum(x.to(Device::cuda()))), sum(wide), unit));
    EXPECT_TRUE(testing::near(here(sum(x.to(Device::cuda()), {0, 1})), sum(wide, {0, 1}), unit));
    EXPECT_TRUE(testing::near(here(batch_norm(x.to(Device::cuda()), {}, {}, {}, {}, training)),
                              batch_norm(wide, {}, {}, {}, {}, training), unit));
    EXPECT_FALSE(testing::near(here(sum(x.to(Device::cuda()))), sum(wide) * (1 + 3 * unit), unit));
  }
}

}  // namespace
}  // namespace halo
