// Copies, random numbers and elementwise functions: the GPU against the CPU.
#include <halo/core/view.h>
#include <halo/ops/binary.h>
#include <halo/ops/dropout.h>
#include <halo/ops/flip.h>
#include <halo/ops/pair_loss.h>
#include <halo/ops/unary.h>

#include "tests/cuda/gpu_testing.h"

namespace halo {
namespace {

using testing::compare;
using testing::Gpu;
using testing::near;
using testing::same;
using testing::strided_copy;
using testing::Tensors;

constexpr int64_t kNumels[] = {0, 1, 3, 255, 1023, 4097};

TEST_F(Gpu, ConvertsEveryDtypePair) {
  const DType dtypes[] = {float32, float64, bfloat16, float16, int64, int32, uint8, boolean};
  const Tensor values = linspace(0, 100.75, 1013);
  for (DType from : dtypes) {
    const Tensor here = values.to(from), there = here.to(Device::cuda());
    for (DType to : dtypes) {
      EXPECT_TRUE(same(there.to(to).to(Device::cpu()), here.to(to))) << name(from) << " to " << name(to);
      EXPECT_TRUE(same(strided_copy(there).to(to).to(Device::cpu()), here.to(to))) << name(from) << " to " << name(to);
    }
  }
}

TEST_F(Gpu, HalfConversionRoundsAsTheCpuDoes) {
  const Tensor x = cat({randn({10007}), randn({10007}) * 1e-6, randn({101}) * 1e6,
                        tensor({INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 65504.0f, 65520.0f, 5.96e-8f})},
                       0);
  for (DType half : {bfloat16, float16}) {
    EXPECT_TRUE(same(x.to(Device::cuda()).to(half).to(Device::cpu()).to(float32), x.to(half).to(float32)));
  }
}

TEST_F(Gpu, FillsAnyStrides) {
  for (DType dtype : {float32, float64, bfloat16, int64, uint8, boolean}) {
    const Tensor x = zeros({5, 7, 3}, {.dtype = dtype, .device = Device::cuda()});
    x.select(1, 4).fill_(1);
    EXPECT_EQ(x.to(float64).sum().item(), 15) << name(dtype);
    EXPECT_EQ(x.select(1, 4).to(float64).sum().item(), 15) << name(dtype);
  }
}

TEST_F(Gpu, TransposedAndExpandedCopies) {
  const Tensor x = randn({17, 5, 33, 2});
  const Tensor there = x.to(Device::cuda());
  for (const Shape& dims : {Shape{3, 2, 1, 0}, Shape{0, 2, 1, 3}, Shape{1, 0, 3, 2}}) {
    EXPECT_TRUE(same(there.permute(dims).contiguous().to(Device::cpu()), x.permute(dims).contiguous()));
  }
  for (DType dtype : {float32, float64, bfloat16, uint8}) {
    const Tensor t = (rand({3, 67, 45}) * 100.0).to(dtype), wide = strided_copy(t.to(Device::cuda()));
    for (const Shape& dims : {Shape{0, 2, 1}, Shape{2, 1, 0}, Shape{1, 0, 2}, Shape{2, 0, 1}}) {
      const Tensor expected = t.permute(dims).contiguous();
      EXPECT_TRUE(same(t.to(Device::cuda()).permute(dims).contiguous().to(Device::cpu()), expected));
      EXPECT_TRUE(same(wide.permute(dims).contiguous().to(Device::cpu()), expected));
    }
  }
  // Whole packs in the target alone: lines of the source begin anywhere, also the first.
  for (DType dtype : {float32, bfloat16, uint8}) {
    const Tensor t = (rand({2, 136, 301}) * 100.0).to(dtype), on_gpu = t.to(Device::cuda());
    for (int64_t begin : {0, 1, 2, 5}) {
      const Tensor line = t.slice(2, begin, 301).permute({0, 2, 1}).contiguous();
      EXPECT_TRUE(same(on_gpu.slice(2, begin, 301).permute({0, 2, 1}).contiguous().to(Device::cpu()), line));
    }
  }
  const Tensor row = randn({1, 9});
  EXPECT_TRUE(same(row.to(Device::cuda()).expand({11, 9}).contiguous().to(Device::cpu()), row.expand({11, 9})));
}

TEST_F(Gpu, FlipsAnyAxes) {
  const Tensor x = randn({4, 3, 7});
  for (const Shape& dims : {Shape{0}, Shape{2}, Shape{0, 2}, Shape{0, 1, 2}, Shape{}}) {
    compare("flip", {x}, [&](const Tensors& t) { return Tensors{ops::flip(t[0], dims)}; }, {0, 0});
  }
}

TEST_F(Gpu, RandomNumbersAreTheCpus) {
  for (int64_t n : kNumels) {
    for (DType dtype : {float32, float64, bfloat16, float16}) {
      Generator here(17), there(17);
      const TensorOptions gpu{.dtype = dtype, .device = Device::cuda()};
      EXPECT_TRUE(same(rand({n}, gpu, there).to(Device::cpu()), rand({n}, {.dtype = dtype}, here))) << name(dtype);
      const double bound = dtype == float64 ? 1e-15 : 1e-7;
      EXPECT_TRUE(near(randn({n}, gpu, there).to(Device::cpu()), randn({n}, {.dtype = dtype}, here), bound));
      EXPECT_EQ(here.state().offset, there.state().offset);
    }
  }
}

TEST_F(Gpu, DropoutMasksAreTheCpus) {
  for (int64_t n : kNumels) {
    compare("dropout", {randn({n})}, [](const Tensors& t) { return Tensors{ops::dropout(t[0], 0.3, {5, 9})}; }, {0, 0});
  }
}

TEST_F(Gpu, UnaryFunctionsAndDerivatives) {
  // Positive, as some are not defined elsewhere; and the usual values of both signs.
  const Tensor positive = rand({1021}) + 0.1, any = randn({1021}), g = randn({1021});
  for (int i = 0; i <= static_cast<int>(UnaryOp::Reciprocal); ++i) {
    const auto op = static_cast<UnaryOp>(i);
    const UnaryParams params{.a = 0.7, .b = 1.3};
    for (const Tensor& x : {positive, any}) {
      const bool needs_positive = op == UnaryOp::Log || op == UnaryOp::Sqrt || op == UnaryOp::Pow;
      if (needs_positive && x.is_same(any)) continue;
      const std::string label = "unary " + std::to_string(i);
      compare(label, {x}, [&](const Tensors& t) { return Tensors{ops::unary(op, t[0], params)}; }, {4e-7, 1e-15});
      for (int order : {1, 2}) {
        compare(label + " derivative " + std::to_string(order), {g, x},
                [&](const Tensors& t) { return Tensors{ops::unary_derivative(op, order, t[0], t[1], params)}; },
                {1e-6, 1e-14});
      }
    }
  }
}

TEST_F(Gpu, UnaryFunctionsOfSpecialValues) {
  const Tensor x = tensor({NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 100.0f, -100.0f});
  for (UnaryOp op : {UnaryOp::Exp, UnaryOp::Sigmoid, UnaryOp::Softplus, UnaryOp::Relu, UnaryOp::LeakyRelu, UnaryOp::Abs,
                     UnaryOp::Tanh, UnaryOp::Clamp, UnaryOp::Gelu}) {
    compare("special", {x}, [&](const Tensors& t) { return Tensors{ops::unary(op, t[0], {.a = 0.1, .b = 2})}; },
            {1e-6, 1e-14});
  }
}

TEST_F(Gpu, BinaryFunctionsBroadcast) {
  const std::vector<std::pair<Shape, Shape>> shapes{{{1023}, {1023}}, {{5, 1, 7}, {3, 1}}, {{2, 3, 5, 7}, {3, 1, 1}},
                                                    {{}, {13}},       {{0, 3}, {1, 3}},    {{4097}, {1}}};
  for (const auto& [a, b] : shapes) {
    for (int i = 0; i <= static_cast<int>(BinaryOp::Or); ++i) {
      const auto op = static_cast<BinaryOp>(i);
      const Tensor x = op == BinaryOp::Pow ? rand(a) + 0.1 : randn(a), y = randn(b);
      compare("binary " + std::to_string(i), {x, y},
              [&](const Tensors& t) { return Tensors{ops::binary(op, t[0], t[1])}; }, {5e-7, 1e-15});
    }
  }
}

TEST_F(Gpu, BinaryFunctionsOfIntegersAndNan) {
  for (DType dtype : {int64, int32, uint8, boolean}) {
    const Tensor a = randint(0, 9, {511}).to(dtype), b = randint(0, 5, {511}).to(dtype);
    for (BinaryOp op :
         {BinaryOp::Add, BinaryOp::Mul, BinaryOp::Div, BinaryOp::Maximum, BinaryOp::Less, BinaryOp::And}) {
      compare("integers", {a, b}, [&](const Tensors& t) { return Tensors{ops::binary(op, t[0], t[1])}; }, {0, 0});
    }
  }
  const Tensor a = tensor({NAN, 1, NAN, INFINITY, -INFINITY, 0}), b = tensor({1, NAN, NAN, -INFINITY, INFINITY, -0.0f});
  for (int i = 0; i <= static_cast<int>(BinaryOp::Or); ++i) {
    compare("nan", {a, b}, [&](const Tensors& t) { return Tensors{ops::binary(static_cast<BinaryOp>(i), t[0], t[1])}; },
            {0, 0});
  }
}

TEST_F(Gpu, WhereChoosesBits) {
  const Tensor mask = randint(0, 2, {5, 1, 7}).to(boolean);
  compare("where", {mask, randn({3, 1}), tensor({NAN})},
          [](const Tensors& t) { return Tensors{ops::where(t[0], t[1], t[2])}; }, {0, 0});
  compare("where", {mask, randint(0, 9, {3, 1}), randint(0, 9, {1})},
          [](const Tensors& t) { return Tensors{ops::where(t[0], t[1], t[2])}; }, {0, 0});
}

TEST_F(Gpu, PairLosses) {
  const Tensor x = randn({7, 53}), t = rand({7, 53}), g = randn({7, 53});
  for (PairLoss op : {PairLoss::Mse, PairLoss::L1, PairLoss::Huber, PairLoss::BinaryCrossEntropy}) {
    for (Reduction reduction : {Reduction::None, Reduction::Mean, Reduction::Sum}) {
      compare("pair_loss", {x, t},
              [&](const Tensors& v) { return Tensors{ops::pair_loss("loss", op, 0.5, reduction, v[0], v[1])}; });
    }
    for (bool to_target : {false, true}) {
      compare("pair_loss_backward", {g, x, t},
              [&](const Tensors& v) { return Tensors{ops::pair_loss_backward(op, 0.5, to_target, v[0], v[1], v[2])}; });
    }
  }
}

}  // namespace
}  // namespace halo
