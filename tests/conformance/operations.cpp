// The one list of operations that case files may name.
#include <halo/halo.h>

#include <functional>

#include "tests/conformance/case.h"
#include "tests/conformance/models.h"

namespace halo::conformance {
namespace {

using Operation = std::function<Tensor(Case&)>;

/// The input padded as `padding_mode` says, and `options` without that padding.
Tensor padded(const Case& c, const Tensor& input, ConvOptions& options, int rank) {
  static const std::map<std::string, PadMode> modes{
      {"reflect", PadMode::Reflect}, {"replicate", PadMode::Replicate}, {"circular", PadMode::Circular}};
  const auto mode = modes.find(c.text("padding_mode", "zeros"));
  if (mode == modes.end() || options.padding.empty()) return input;
  IntList amounts;  // last axis first
  for (int axis = rank - 1; axis >= 0; --axis) {
    const std::size_t at = options.padding.size() == 1 ? 0 : static_cast<std::size_t>(axis);
    amounts.push_back(options.padding[at]);
    amounts.push_back(options.padding_after.empty() ? options.padding[at] : options.padding_after[at]);
  }
  options.padding.clear();
  options.padding_after.clear();
  return pad(input, amounts, mode->second);
}

Operation conv(Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&, const Activation&),
               int rank) {
  return [=](Case& c) {
    ConvOptions options = c.conv_options(rank);
    const Tensor input = padded(c, c.input("input"), options, rank);
    return f(input, c.input("weight"), c.optional("bias"), options, {});
  };
}

Operation conv_transpose(Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&), int rank) {
  return [=](Case& c) { return f(c.input("input"), c.input("weight"), c.optional("bias"), c.conv_options(rank)); };
}

Operation unary(Tensor (*f)(const Tensor&)) {
  return [=](Case& c) { return f(c.input("input")); };
}

IntList list(const Case& c, const std::string& key) { return c.integers(key, {}); }

Tensor run_interpolate(Case& c) {
  InterpolateOptions options{.size = list(c, "size"), .align_corners = c.flag("align_corners", false)};
  if (c.has_parameter("scale_factor")) options.scale_factor = {c.real("scale_factor", 1)};
  const std::string mode = c.text("mode", "nearest");
  const bool is_linear = mode == "linear" || mode == "bilinear" || mode == "trilinear";
  if (!is_linear && mode != "nearest") fail("interpolate: mode expected nearest or linear, got ", mode);
  if (is_linear) options.mode = InterpolateMode::Linear;
  return interpolate(c.input("input"), options);
}

MaxPoolOptions max_pool_options(const Case& c) {
  MaxPoolOptions options{.dilation = list(c, "dilation"), .ceil_mode = c.flag("ceil_mode", false)};
  options.stride = list(c, "stride");
  if (c.text("padding", "") == "same") {
    options.auto_padding = AutoPadding::Same;
  } else {
    options.padding = list(c, "padding");
  }
  return options;
}

Operation max_pool(Tensor (*f)(const Tensor&, const IntList&, const MaxPoolOptions&)) {
  return [=](Case& c) { return f(c.input("input"), list(c, "kernel_size"), max_pool_options(c)); };
}

Operation avg_pool(Tensor (*f)(const Tensor&, const IntList&, const AvgPoolOptions&)) {
  return [=](Case& c) {
    AvgPoolOptions options{.stride = list(c, "stride"), .padding = list(c, "padding")};
    options.ceil_mode = c.flag("ceil_mode", false);
    options.count_include_pad = c.flag("count_include_pad", true);
    const int64_t divisor = c.integer("divisor_override", 0);
    if (divisor != 0) options.divisor_override = divisor;
    return f(c.input("input"), list(c, "kernel_size"), options);
  };
}

Operation adaptive_pool(Tensor (*f)(const Tensor&, const IntList&)) {
  return [=](Case& c) { return f(c.input("input"), list(c, "output_size")); };
}

Tensor run_batch_norm(Case& c) {
  // Evaluation reads the running statistics; training changes them in place, so that it gets copies.
  const bool training = c.flag("training", false);
  const auto running = [&](const char* name) { return c.has(name) ? c.input(name).detach().clone() : Tensor(); };
  return batch_norm(c.input("input"), running("running_mean"), running("running_var"), c.optional("weight"),
                    c.optional("bias"),
                    {.training = training, .momentum = c.real("momentum", 0.1), .eps = c.real("eps", 1e-5)});
}

Tensor run_local_response_norm(Case& c) {
  LocalResponseNormOptions options{.alpha = c.real("alpha", 1e-4), .beta = c.real("beta", 0.75), .k = c.real("k", 1.0)};
  if (c.text("alpha_convention", "").starts_with("paper")) options.convention = LrnConvention::Paper;
  return local_response_norm(c.input("input"), c.integer("size", 5), options);
}

Tensor run_causal_conv1d(Case& c) {
  return causal_conv1d(
      c.input("input"), c.input("weight"), c.optional("bias"),
      {.dilation = c.integer("dilation", 1),
       .activation = c.text("activation", "none") == "silu" ? ActivationKind::Silu : ActivationKind::None});
}

Reduction reduction(const Case& c) {
  const std::string text = c.text("reduction", "mean");
  if (text == "mean") return Reduction::Mean;
  if (text == "sum") return Reduction::Sum;
  if (text == "none") return Reduction::None;
  fail<FileError>("metadata reduction: expected mean, sum or none, got \"", text, "\"");
}

Tensor mse(Case& c) { return mse_loss(c.input("input"), c.input("target"), reduction(c)); }

Tensor classes(Case& c) {
  return cross_entropy(c.input("input"), c.raw("target"),
                       {.weight = c.optional("weight"),
                        .ignore_index = c.integer("ignore_index", -100),
                        .reduction = reduction(c),
                        .label_smoothing = c.real("label_smoothing", 0)});
}

Tensor rows(Case& c) {
  std::optional<int64_t> padding_idx;
  if (c.has_parameter("padding_idx")) padding_idx = c.integer("padding_idx", 0);
  return embedding(c.raw("indices"), c.input("weight"), padding_idx);
}

const std::map<std::string, Operation>& operations() {
  static const std::map<std::string, Operation> all{
      {"conv1d", conv(conv1d, 1)},
      {"conv2d", conv(conv2d, 2)},
      {"conv3d", conv(conv3d, 3)},
      {"conv_transpose1d", conv_transpose(conv_transpose1d, 1)},
      {"conv_transpose2d", conv_transpose(conv_transpose2d, 2)},
      {"conv_transpose3d", conv_transpose(conv_transpose3d, 3)},
      {"linear", [](Case& c) { return linear(c.input("input"), c.input("weight"), c.optional("bias")); }},
      {"matmul", [](Case& c) { return matmul(c.input("input"), c.input("other")); }},
      {"embedding", rows},
      {"softmax", [](Case& c) { return softmax(c.input("input"), c.integer("dim", -1)); }},
      {"log_softmax", [](Case& c) { return log_softmax(c.input("input"), c.integer("dim", -1)); }},
      {"cross_entropy", classes},
      {"mse_loss", mse},
      {"exp", unary(exp)},
      {"log", unary(log)},
      {"sin", unary(sin)},
      {"tanh", unary(tanh)},
      {"sigmoid", unary(sigmoid)},
      {"softplus", unary(softplus)},
      {"relu", unary(relu)},
      {"silu", unary(silu)},
      {"leaky_relu", [](Case& c) { return leaky_relu(c.input("input"), c.real("negative_slope", 0.01)); }},
      {"gelu",
       [](Case& c) {
         return gelu(c.input("input"), c.text("approximate", "none") == "tanh" ? GeluForm::Tanh : GeluForm::Exact);
       }},
      {"max_pool1d", max_pool(max_pool1d)},
      {"max_pool2d", max_pool(max_pool2d)},
      {"max_pool3d", max_pool(max_pool3d)},
      {"avg_pool1d", avg_pool(avg_pool1d)},
      {"avg_pool2d", avg_pool(avg_pool2d)},
      {"avg_pool3d", avg_pool(avg_pool3d)},
      {"adaptive_avg_pool1d", adaptive_pool(adaptive_avg_pool1d)},
      {"adaptive_avg_pool2d", adaptive_pool(adaptive_avg_pool2d)},
      {"adaptive_avg_pool3d", adaptive_pool(adaptive_avg_pool3d)},
      {"adaptive_max_pool1d", adaptive_pool(adaptive_max_pool1d)},
      {"adaptive_max_pool2d", adaptive_pool(adaptive_max_pool2d)},
      {"adaptive_max_pool3d", adaptive_pool(adaptive_max_pool3d)},
      {"interpolate", run_interpolate},
      {"local_response_norm", run_local_response_norm},
      {"batch_norm", run_batch_norm},
      {"layer_norm",
       [](Case& c) {
         return layer_norm(c.input("input"), c.integers("normalized_shape", {}), c.optional("weight"),
                           c.optional("bias"), c.real("eps", 1e-5));
       }},
      {"group_norm",
       [](Case& c) {
         return group_norm(c.input("input"), c.integer("num_groups", 1), c.optional("weight"), c.optional("bias"),
                           c.real("eps", 1e-5));
       }},
      {"instance_norm",
       [](Case& c) {
         return instance_norm(c.input("input"), c.optional("weight"), c.optional("bias"), c.real("eps", 1e-5));
       }},
      {"long_conv",
       [](Case& c) {
         return long_conv(c.input("input"), c.input("weight"), c.optional("bias"), {.causal = c.flag("causal", true)});
       }},
      {"causal_conv1d", run_causal_conv1d},
  };
  return all;
}

}  // namespace

bool run_operation(Case& c, Result& result) {
  if (c.op() == "alexnet" || c.op() == "hyenadna") {
    (c.op() == "alexnet" ? run_alexnet : run_hyenadna)(c, result);
    return true;
  }
  const auto found = operations().find(c.op());
  if (found == operations().end()) return false;
  result.root = found->second(c);
  result.root_grad = c.input("grad_output");
  result.outputs["output"] = result.root.detach();
  return true;
}

}  // namespace halo::conformance
