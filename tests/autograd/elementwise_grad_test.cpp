#include "tests/testing.h"

namespace halo {
namespace {

struct Case {
  const char* name;
  Tensor (*f)(const Tensor&);
  double low, high;  // where the function is smooth
};

const Case kCases[] = {
    {"abs", [](const Tensor& x) { return abs(x); }, 0.1, 2},
    {"exp", [](const Tensor& x) { return exp(x); }, -2, 2},
    {"log", [](const Tensor& x) { return log(x); }, 0.3, 3},
    {"sqrt", [](const Tensor& x) { return sqrt(x); }, 0.3, 3},
    {"sin", [](const Tensor& x) { return sin(x); }, -3, 3},
    {"cos", [](const Tensor& x) { return cos(x); }, -3, 3},
    {"tanh", [](const Tensor& x) { return tanh(x); }, -2, 2},
    {"sigmoid", [](const Tensor& x) { return sigmoid(x); }, -3, 3},
    {"softplus", [](const Tensor& x) { return softplus(x); }, -3, 3},
    {"relu_positive", [](const Tensor& x) { return relu(x); }, 0.1, 2},
    {"relu_negative", [](const Tensor& x) { return relu(x); }, -2, -0.1},
    {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.2); }, -2, -0.1},
    {"gelu", [](const Tensor& x) { return gelu(x); }, -3, 3},
    {"gelu_tanh", [](const Tensor& x) { return gelu(x, GeluForm::Tanh); }, -3, 3},
    {"silu", [](const Tensor& x) { return silu(x); }, -3, 3},
    {"clamp", [](const Tensor& x) { return clamp(x, -1, 1); }, -0.9, 0.9},
    {"pow", [](const Tensor& x) { return pow(x, 2.5); }, 0.3, 2},
    {"reciprocal", [](const Tensor& x) { return reciprocal(x); }, 0.5, 2},
    {"mean", [](const Tensor& x) { return mean(x * x, {1}); }, -1, 1},
    {"amax", [](const Tensor& x) { return amax(x, {0}); }, -1, 1},
    {"views",
     [](const Tensor& x) {
       return x.transpose(0, 1).slice(0, 1, 5, 2).reshape({-1}).unsqueeze(0).expand({2, 6}) * 2.0;
     },
     -1, 1},
    {"select", [](const Tensor& x) { return x[1] * x.select(1, 2)[0]; }, -1, 1},
};

class ElementwiseGradTest : public ::testing::TestWithParam<Case> {};

TEST_P(ElementwiseGradTest, Gradcheck) {
  const Case& c = GetParam();
  const Tensor x = testing::leaf(rand({3, 5}, {.dtype = float64}) * (c.high - c.low) + c.low);
  const auto result =
      gradcheck([&](const std::vector<Tensor>& in) { return c.f(in[0]); }, {x}, {.step = 1e-5, .tolerance = 1e-7});
  EXPECT_TRUE(result.ok) << result.message;
}

INSTANTIATE_TEST_SUITE_P(Functions, ElementwiseGradTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(BinaryGrad, Gradcheck) {
  const TensorOptions options{.dtype = float64};
  const Tensor a = testing::leaf(randn({3, 1, 4}, options)), b = testing::leaf(rand({2, 1}, options) + 1.0);
  using Function = Tensor (*)(const std::vector<Tensor>&);
  for (Function f : {+[](const std::vector<Tensor>& in) { return in[0] + in[1]; },
                     +[](const std::vector<Tensor>& in) { return in[0] - in[1]; },
                     +[](const std::vector<Tensor>& in) { return in[0] * in[1]; },
                     +[](const std::vector<Tensor>& in) { return in[0] / in[1]; },
                     +[](const std::vector<Tensor>& in) { return 2.0 / in[1] - in[0] / 3.0 + 1.0; },
                     +[](const std::vector<Tensor>& in) { return maximum(in[0], in[1]); },
                     +[](const std::vector<Tensor>& in) { return minimum(in[0], in[1]); },
                     +[](const std::vector<Tensor>& in) { return where(gt(in[0], in[1]), in[0] * in[1], in[1]); }}) {
    const auto result = gradcheck(f, {a, b}, {.step = 1e-5, .tolerance = 1e-7});
    EXPECT_TRUE(result.ok) << result.message;
  }
}

}  // namespace
}  // namespace halo
