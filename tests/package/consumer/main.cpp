// Tensors, vectors, models and exceptions pass between this program and Halo, whatever flags either was built with.
#include <halo/halo.h>

#include <cstdio>
#include <vector>
#ifdef WITH_EIGEN
#include <Eigen/Core>
#endif

struct Net : halo::nn::Module {
  halo::nn::Conv2d& conv = register_module("conv", halo::nn::Conv2d(3, 4, 3, {.stride = 2, .padding = 1}));
  halo::Tensor forward(const halo::Tensor& x) override { return halo::relu(conv(x)); }
};

int main() {
  Net net;
  const halo::Tensor x = halo::randn({1, 3, 8, 8});
  net(x).sum().backward();
  halo::optim::AdamW optimizer(net.parameters(), {.lr = 0.1});
  optimizer.step();
  const std::vector<float> values = net.conv.weight.grad().to_vector<float>();
  halo::StateDict state = net.state_dict();
  state["own"] = halo::from_vector(values, {static_cast<int64_t>(values.size())});
  try {
    halo::conv1d(x, x);  // one axis too many
    return 1;
  } catch (const halo::ArgumentError& error) {
    std::printf("%s\n%s\n", net.conv.weight.grad().describe().c_str(), error.what());
  }
#ifdef WITH_EIGEN
  halo::Tensor a = halo::randn({70, 80}, {.dtype = halo::float64}), b = halo::randn({80, 90}, {.dtype = halo::float64});
  const halo::Tensor c = halo::matmul(a, b);
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix product =
      Eigen::Map<const Matrix>(a.data<double>(), 70, 80) * Eigen::Map<const Matrix>(b.data<double>(), 80, 90);
  if (!product.isApprox(Eigen::Map<const Matrix>(c.data<double>(), 70, 90), 1e-12)) return 1;
#endif
  return values.size() == 4 * 3 * 3 * 3 ? 0 : 1;
}
