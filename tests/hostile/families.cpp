#include "families.h"

namespace halo::testing {
namespace {

using Sizes = std::vector<int64_t>;

// Vectors of 4, 8 and 16; warps of 32; tiles of 64 and 128 columns; blocks of 256 threads.
const Sizes kFine{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};
const Sizes kFineNotEmpty{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257};
// Rows that one block, several blocks, or one thread of the CPU takes.
const Sizes kRows{1,   2,    31,   32,   33,   127,  128,  129,   511,   512,
                  513, 1023, 1024, 1025, 4095, 4096, 4097, 16383, 16384, 16385};
const Sizes kChannels{1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65};
const Sizes kSmall{1, 2, 3, 7, 8, 9, 16, 17, 33};

// How far results may differ between layouts of the operands: sums are made in another order.
constexpr double kProducts = 2e-6, kReductions = 1e-6;

Tensor normal(const Shape& shape) { return randn(shape, {.dtype = float64}); }
Tensor positive(const Shape& shape) { return rand(shape, {.dtype = float64}) + 0.5; }
Tensor indices(int64_t classes, const Shape& shape) { return randint(0, std::max<int64_t>(1, classes), shape); }

void add_convolutions(std::vector<Family>& all) {
  all.push_back({"conv1d_length",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n + 2}), normal({5, 3, 3}), normal({5})};
                 },
                 [](const Tensors& t) { return conv1d(t[0], t[1], t[2]); }, kFineNotEmpty});
  all.push_back({"conv2d_in_channels",
                 [](int64_t n) {
                   return Tensors{normal({2, n, 7, 9}), normal({8, n, 3, 3})};
                 },
                 [](const Tensors& t) { return conv2d(t[0], t[1], {}, {.padding = 1}); }, kChannels});
  all.push_back({"conv2d_out_channels",
                 [](int64_t n) {
                   return Tensors{normal({2, 4, 7, 9}), normal({n, 4, 3, 3})};
                 },
                 [](const Tensors& t) { return conv2d(t[0], t[1], {}, {.padding = 1}); }, kChannels});
  all.push_back({"conv2d_stem",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n + 10, n + 11}), normal({16, 3, 11, 11})};
                 },
                 [](const Tensors& t) { return conv2d(t[0], t[1], {}, {.stride = 4, .padding = 2}); }, kSmall});
  all.push_back({"conv2d_strided_dilated",
                 [](int64_t n) {
                   return Tensors{normal({2, 6, n, 13}), normal({9, 6, 3, 5})};
                 },
                 [](const Tensors& t) {
                   return conv2d(t[0], t[1], {}, {.stride = {2, 3}, .padding = {3, 4}, .dilation = {3, 2}});
                 },
                 kSmall});
  all.push_back({"conv2d_grouped",
                 [](int64_t n) {
                   return Tensors{normal({2, 12, n, 11}), normal({18, 4, 3, 3})};
                 },
                 [](const Tensors& t) { return conv2d(t[0], t[1], {}, {.stride = 2, .padding = 1, .groups = 3}); },
                 kSmall});
  all.push_back({"conv2d_pointwise",
                 [](int64_t n) {
                   return Tensors{normal({2, 5, n, 1}), normal({7, 5, 1, 1})};
                 },
                 [](const Tensors& t) { return conv2d(t[0], t[1]); }, kFineNotEmpty});
  all.push_back({"conv2d_depthwise",
                 [](int64_t n) {
                   return Tensors{normal({2, 5, 6, n}), normal({5, 1, 3, 3})};
                 },
                 [](const Tensors& t) { return conv2d(t[0], t[1], {}, {.padding = 1, .groups = 5}); }, kFineNotEmpty});
  all.push_back(
      {"conv2d_depthwise_channels",
       [](int64_t n) {
         return Tensors{normal({2, n, 6, 5}), normal({2 * n, 1, 3, 3})};
       },
       [](const Tensors& t) { return conv2d(t[0], t[1], {}, {.stride = 2, .padding = 1, .groups = t[0].size(1)}); },
       kChannels});
  all.push_back({"conv3d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, 4, 5, n}), normal({4, 3, 2, 3, 3})};
                 },
                 [](const Tensors& t) {
                   return conv3d(t[0], t[1], {}, {.stride = {2, 1, 1}, .padding = 1});
                 },
                 kSmall});
  all.push_back({"conv_transpose1d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n}), normal({3, 5, 4})};
                 },
                 [](const Tensors& t) { return conv_transpose1d(t[0], t[1], {}, {.stride = 3, .output_padding = 1}); },
                 kFineNotEmpty});
  all.push_back(
      {"conv_transpose2d_grouped",
       [](int64_t n) {
         return Tensors{normal({2, 6, n, 5}), normal({6, 4, 3, 3})};
       },
       [](const Tensors& t) { return conv_transpose2d(t[0], t[1], {}, {.stride = 2, .padding = 1, .groups = 2}); },
       kSmall, true, 4e-6, 0, false});  // some algorithms multiply the zeros of the padding, some leave them out
  all.push_back({"conv_transpose3d",
                 [](int64_t n) {
                   return Tensors{normal({1, 3, 3, 4, n}), normal({3, 2, 3, 5, 5})};
                 },
                 [](const Tensors& t) {
                   return conv_transpose3d(t[0], t[1], {}, {.stride = 2, .dilation = {1, 2, 1}});
                 },
                 kSmall});
  all.push_back({"causal_conv1d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n}), normal({3, 4}), normal({3})};
                 },
                 [](const Tensors& t) {
                   return causal_conv1d(t[0], t[1], t[2], {.dilation = 2, .activation = ActivationKind::Silu});
                 },
                 kFine});
  all.push_back({"long_conv",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n}), normal({3, n + 2}), normal({3}), normal({2, 3, n})};
                 },
                 [](const Tensors& t) { return long_conv(t[0], t[1], t[2], {.gate_out = t[3]}); }, kFineNotEmpty, true,
                 4e-6, 0, false});  // transforms make a whole row NaN, sums what follows an infinity
  all.push_back({"long_conv_long",
                 [](int64_t n) {
                   return Tensors{normal({2, 2, n}), normal({2, n})};
                 },
                 [](const Tensors& t) { return long_conv(t[0], t[1]); },
                 Sizes{1023, 1024, 1025, 8191, 8192, 8193, 14113}, true, 2e-5});
}

void add_products(std::vector<Family>& all) {
  all.push_back({"linear_in",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), normal({5, n}), normal({5})};
                 },
                 [](const Tensors& t) { return linear(t[0], t[1], t[2]); }, kFine, true, 4e-6, kProducts});
  all.push_back({"linear_out",
                 [](int64_t n) {
                   return Tensors{normal({3, 7}), normal({n, 7})};
                 },
                 [](const Tensors& t) { return linear(t[0], t[1]); }, kFine, true, 4e-6, kProducts});
  all.push_back({"matmul_rows",
                 [](int64_t n) {
                   return Tensors{normal({n, 17}), normal({17, 9})};
                 },
                 [](const Tensors& t) { return matmul(t[0], t[1]); }, kFine, true, 4e-6, kProducts});
  all.push_back({"matmul_batched",
                 [](int64_t n) {
                   return Tensors{normal({3, 5, n}), normal({3, n, 4})};
                 },
                 [](const Tensors& t) { return matmul(t[0], t[1]); }, kFine, true, 4e-6, kProducts});
}

void add_windows_and_norms(std::vector<Family>& all) {
  all.push_back({"max_pool2d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n + 1, 8})};
                 },
                 [](const Tensors& t) {
                   return max_pool2d(t[0], {2, 3}, {.stride = {1, 2}, .padding = {0, 1}});
                 },
                 kFineNotEmpty, true, 3e-7});  // gradients of windows that meet are added in another order
  all.push_back({"avg_pool2d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, 8, n + 1})};
                 },
                 [](const Tensors& t) { return avg_pool2d(t[0], 2, {.stride = 1, .padding = 1}); }, kFineNotEmpty});
  all.push_back({"adaptive_avg_pool1d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n})};
                 },
                 [](const Tensors& t) { return adaptive_avg_pool1d(t[0], 5); }, kFineNotEmpty});
  all.push_back({"adaptive_max_pool1d",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n})};
                 },
                 [](const Tensors& t) { return adaptive_max_pool1d(t[0], 4); }, kFineNotEmpty, true, 0});
  all.push_back({"batch_norm",
                 [](int64_t n) {
                   return Tensors{normal({2, 3, n + 1}), positive({3}), normal({3})};
                 },
                 [](const Tensors& t) { return batch_norm(t[0], {}, {}, t[1], t[2], {.training = true}); }, kRows,
                 false, 2e-5});
  all.push_back({"layer_norm",
                 [](int64_t n) {  // from 3 on: of 2 values the gradient is 0 but for epsilon, all of it rounding
                   return Tensors{normal({3, n + 2}), positive({n + 2}), normal({n + 2})};
                 },
                 [](const Tensors& t) { return layer_norm(t[0], t[1].shape(), t[1], t[2]); }, kRows, true, 2e-5});
  all.push_back({"group_norm",
                 [](int64_t n) {  // likewise
                   return Tensors{normal({2, 4, n + 1}), positive({4}), normal({4})};
                 },
                 [](const Tensors& t) { return group_norm(t[0], 2, t[1], t[2]); }, kRows, true, 2e-5});
  all.push_back({"instance_norm",
                 [](int64_t n) {  // likewise
                   return Tensors{normal({2, 3, n + 2})};
                 },
                 [](const Tensors& t) { return instance_norm(t[0]); }, kRows, true, 2e-5});
  all.push_back({"local_response_norm",
                 [](int64_t n) {
                   return Tensors{normal({2, n, 5})};
                 },
                 [](const Tensors& t) { return local_response_norm(t[0], 5, {.alpha = 0.5}); }, kFineNotEmpty});
  all.push_back({"softmax",
                 [](int64_t n) {
                   return Tensors{normal({3, n})};
                 },
                 [](const Tensors& t) { return softmax(t[0], 1); }, kRows});
  all.push_back({"softmax_columns",
                 [](int64_t n) {
                   return Tensors{normal({5, n})};
                 },
                 [](const Tensors& t) { return softmax(t[0], 0); }, kFine, false});
  all.push_back({"log_softmax",
                 [](int64_t n) {
                   return Tensors{normal({3, n})};
                 },
                 [](const Tensors& t) { return log_softmax(t[0], -1); }, kRows});
}

void add_losses(std::vector<Family>& all) {
  all.push_back({"cross_entropy_classes",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), indices(n, {3})};
                 },
                 [](const Tensors& t) { return cross_entropy(t[0], t[1], {.reduction = Reduction::None}); }, kRows});
  all.push_back({"cross_entropy_rows",
                 [](int64_t n) {
                   return Tensors{normal({n, 5}), indices(5, {n})};
                 },
                 [](const Tensors& t) { return cross_entropy(t[0], t[1], {.label_smoothing = 0.1}); }, kRows, false});
  all.push_back({"mse_loss",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), normal({3, n})};
                 },
                 [](const Tensors& t) { return mse_loss(t[0], t[1]); }, kRows, false});
  all.push_back({"huber_loss",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), normal({3, n})};
                 },
                 [](const Tensors& t) { return huber_loss(t[0], t[1], Reduction::None, 0.7); }, kFine});
  all.push_back({"bce_with_logits",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), positive({3, n}) * 0.5};
                 },
                 [](const Tensors& t) { return binary_cross_entropy_with_logits(t[0], t[1], Reduction::Sum); }, kRows,
                 false});
}

void add_elementwise(std::vector<Family>& all) {
  const auto unary = [&all](const char* name, Tensor (*f)(const Tensor&)) {
    all.push_back({name,
                   [](int64_t n) {
                     return Tensors{normal({3, n})};
                   },
                   [f](const Tensors& t) { return f(t[0]); }, kFine});
  };
  unary("exp", exp);
  unary("sin", sin);
  unary("tanh", tanh);
  unary("sigmoid", sigmoid);
  unary("softplus", softplus);
  unary("silu", silu);
  unary("relu", relu);
  all.push_back({"gelu",
                 [](int64_t n) {
                   return Tensors{normal({3, n})};
                 },
                 [](const Tensors& t) { return gelu(t[0]); }, kFine, true, 1e-5});
  all.push_back({"log_sqrt_pow",
                 [](int64_t n) {
                   return Tensors{positive({3, n})};
                 },
                 [](const Tensors& t) { return log(t[0]) + sqrt(t[0]) * pow(t[0], 1.5); }, kFine, true, 1e-5});
  all.push_back({"broadcast",
                 [](int64_t n) {
                   return Tensors{normal({3, 1, n}), normal({4, n}), positive({n})};
                 },
                 [](const Tensors& t) { return t[0] * t[1] / t[2] - t[1]; }, kFine});
  all.push_back({"maximum_where",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), normal({3, n})};
                 },
                 [](const Tensors& t) { return where(gt(t[0], t[1]), minimum(t[0], t[1]), maximum(t[0], t[1] * 2.0)); },
                 kFine});
  all.push_back({"dropout",
                 [](int64_t n) {
                   return Tensors{normal({3, n})};
                 },
                 [](const Tensors& t) {
                   Generator generator(11);
                   return dropout(t[0], 0.4, true, generator);
                 },
                 kFine, false});
  all.push_back({"pad_reflect",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 4})};
                 },
                 [](const Tensors& t) {
                   return pad(t[0].unsqueeze(0), {2, 3}, PadMode::Reflect);
                 },
                 kFine, false});
  all.push_back({"pad_circular",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 3})};
                 },
                 [](const Tensors& t) {
                   return pad(t[0].unsqueeze(0), {3, 1}, PadMode::Circular);
                 },
                 kFine, false});
}

void add_reductions_and_indexing(std::vector<Family>& all) {
  all.push_back({"sum_mean",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 1})};
                 },
                 [](const Tensors& t) { return sum(t[0], {1}) + mean(t[0], {1}); }, kRows, true, 2e-5, kReductions});
  all.push_back({"sum_columns",
                 [](int64_t n) {
                   return Tensors{normal({n, 5})};
                 },
                 [](const Tensors& t) { return sum(t[0], {0}); }, kRows, false, 2e-5, kReductions});
  all.push_back({"amax_amin",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 1})};
                 },
                 [](const Tensors& t) { return amax(t[0], {1}) - amin(t[0], {1}); }, kRows});
  all.push_back({"var_std",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 2})};
                 },
                 [](const Tensors& t) { return halo::var(t[0], {1}) + halo::std(t[0], {1}); }, kRows, true, 2e-5,
                 kReductions});
  all.push_back({"logsumexp_norm",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 1})};
                 },
                 [](const Tensors& t) { return logsumexp(t[0], {1}) + norm(t[0], 2, {1}); }, kRows, true, 1e-5,
                 kReductions});
  all.push_back({"cumsum",
                 [](int64_t n) {
                   return Tensors{normal({3, n})};
                 },
                 [](const Tensors& t) { return cumsum(t[0], 1); }, kRows, true, 1e-4});
  all.push_back({"sort",
                 [](int64_t n) {
                   return Tensors{normal({3, n})};
                 },
                 [](const Tensors& t) { return sort(t[0], 1).values; }, kRows, true, 0});
  all.push_back({"topk",
                 [](int64_t n) {
                   return Tensors{normal({3, n + 2})};
                 },
                 [](const Tensors& t) { return topk(t[0], 2, 1).values; }, kRows, true, 0});
  all.push_back({"gather",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), indices(n, {3, 7})};
                 },
                 [](const Tensors& t) { return gather(t[0], 1, t[1]); }, kRows, false});
  all.push_back({"scatter_add",
                 [](int64_t n) {
                   return Tensors{normal({3, 5}), normal({3, n}), indices(5, {3, n})};
                 },
                 [](const Tensors& t) { return scatter_add(t[0], 1, t[2], t[1]); }, kFine, false, 1e-5});
  all.push_back({"index_select_add",
                 [](int64_t n) {
                   return Tensors{normal({4, n}), normal({6, n}), indices(4, {6})};
                 },
                 [](const Tensors& t) { return index_add(t[0], 0, t[2], index_select(t[1], 0, t[2])); }, kFine, false,
                 1e-5});
  all.push_back({"embedding",
                 [](int64_t n) {
                   return Tensors{normal({7, n}), indices(7, {2, 5})};
                 },
                 [](const Tensors& t) { return embedding(t[1], t[0], 3); }, kFine, false});
  all.push_back({"cat_flip",
                 [](int64_t n) {
                   return Tensors{normal({3, n}), normal({3, 4})};
                 },
                 [](const Tensors& t) {
                   return flip(cat({t[0], t[1], t[0]}, 1), {0, 1});
                 },
                 kFine, false, 0});
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> rows;
    add_convolutions(rows);
    add_products(rows);
    add_windows_and_norms(rows);
    add_losses(rows);
    add_elementwise(rows);
    add_reductions_and_indexing(rows);
    add_fused(rows);
    return rows;
  }();
  return all;
}

}  // namespace halo::testing
