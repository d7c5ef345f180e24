// Depthwise convolution of many taps: results of a row slide along the taps in registers.
//
// Limits: groups = in_channels, any channel multiplier (backward_input: one); unit stride; unit dilation
// along the width; all four floating types. Any kernel whose box fits into shared memory, padding, width, alignment.
#include <algorithm>

#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../counts.h"
#include "../plan_key.h"
#include "windows.cuh"
#include "windows.h"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kMostShared = 72 * 1024;  // bytes of a block: three of a multiprocessor

FastDivide divider(int64_t by) { return FastDivide(static_cast<uint32_t>(by)); }

struct WindowsPlan {
  int64_t tile[3] = {1, 1, 1};    ///< results of a block
  int64_t extent[3] = {1, 1, 1};  ///< of the box
  int64_t planes = 1, pitch = 4, weight_row = 4, weight_pitch = 4;
  int64_t threads = 0, shared = 0, blocks = 0;
  double ms = 0;

  int64_t lines() const { return planes * tile[0] * tile[1]; }
};

/// What the plan asks of the problem: extents of the form, whose results are x's for backward_input.
struct WindowsForm {
  int64_t source[3], result[3], padding[3], planes;

  WindowsForm(const ConvProblem& p, ConvPass pass) : planes(p.batch * p.out_channels) {
    const bool input = pass == ConvPass::BackwardInput;
    for (std::size_t i = 0; i < 3; ++i) {
      source[i] = (input ? p.output : p.input)[i];
      result[i] = (input ? p.input : p.output)[i];
      padding[i] = input ? (p.kernel[i] - 1) * p.dilation[i] - p.padding_before[i] : p.padding_before[i];
    }
  }
};

/// Fills in what follows from the tile.
void measure(WindowsPlan& plan, const ConvProblem& p, const ConvConfig& config, const WindowsForm& form) {
  const int64_t element = config.dtype == DType::Float64 ? 8 : 4, tap_rows = p.kernel[0] * p.kernel[1];
  plan.weight_row = divide_up(p.kernel[2], 4) * 4;
  plan.weight_pitch = odd_quads(tap_rows * plan.weight_row);
  int64_t inside = plan.planes;  // lines of the source
  for (std::size_t i = 0; i < 3; ++i) {
    plan.extent[i] = i == 2 ? plan.tile[2] + plan.weight_row : plan.tile[i] + (p.kernel[i] - 1) * p.dilation[i];
    if (i < 2) inside *= std::min(plan.extent[i], form.source[i]);
  }
  plan.pitch = odd_quads(plan.extent[2]);
  const int64_t box_lines = plan.planes * plan.extent[0] * plan.extent[1];
  const int64_t elements = std::max(box_lines * plan.pitch, plan.lines() * (plan.tile[2] + 4));
  plan.shared = (plan.planes * plan.weight_pitch + elements) * element;
  const int64_t slots = plan.lines() * plan.tile[2] / kWindow;
  plan.threads = divide_up(slots, 32) * 32;
  plan.blocks = divide_up(form.planes, plan.planes);
  for (std::size_t i = 0; i < 3; ++i) plan.blocks *= divide_up(form.result[i], plan.tile[i]);
  // Instructions of a block's threads, about: those of copies by line and by piece of a line.
  const double conflicts = plan.lines() >= 8 ? 1 : 5;
  const auto taps = static_cast<double>(tap_rows * (plan.weight_row * (kWindow + conflicts) + 20));
  const int64_t columns = std::min(plan.extent[2], form.source[2]);
  const auto copies =
      static_cast<double>(copy_instructions(inside, columns) + copy_instructions(plan.lines(), plan.tile[2]) +
                          box_lines * plan.pitch + 8 * plan.planes * plan.weight_pitch);
  const double work = 0.95 * static_cast<double>(plan.threads) * (taps + 150) + copies + 3000;
  const int64_t resident = std::clamp<int64_t>(std::min(220 * 1024 / (plan.shared + 1024), 1280 / plan.threads), 1, 16);
  const auto rounds = static_cast<double>(divide_up(plan.blocks, 132 * resident) * 132 * resident);
  const double few = plan.blocks < 132 * resident ? 0.5 : 0.0;  // a multiprocessor with few warps is slower
  const double full = few * rounds + (1 - few) * static_cast<double>(plan.blocks);
  plan.ms = 3e-3 + std::max(p.bytes(size_of(config.dtype)) / 3.3e9, full * work / 2e10);
}

/// The tiles that take the least time; no blocks where no box fits.
WindowsPlan windows_plan(const ConvProblem& p, const ConvConfig& config) {
  WindowsPlan plan{}, best{};
  const WindowsForm form(p, config.pass);
  const auto evenly = [](int64_t extent, int64_t parts) { return divide_up(extent, parts); };
  for (int64_t across = 1; across < 2 * divide_up(form.result[2], kWindow); across *= 2) {
    const int64_t groups = divide_up(evenly(form.result[2], across), kWindow);
    if (groups > kWindowThreads) continue;
    plan.tile[2] = groups * kWindow;
    for (int64_t down = 1, rows = 0; down <= form.result[1]; ++down) {
      if (evenly(form.result[1], down) == rows) continue;
      rows = evenly(form.result[1], down);
      if (rows * groups > kWindowThreads) continue;
      plan.tile[1] = rows;
      for (int64_t deep = 1; deep < 2 * form.result[0]; deep *= 2) {
        plan.tile[0] = evenly(form.result[0], deep);
        const int64_t slots = plan.tile[0] * rows * groups;
        if (slots > kWindowThreads) continue;
        for (const int64_t most : {64, 128, 256}) {
          plan.planes = std::clamp<int64_t>(most / slots, 1, form.planes);
          measure(plan, p, config, form);
          if (plan.shared > kMostShared) continue;
          if (best.blocks == 0 || plan.ms < best.ms) best = plan;
        }
      }
    }
  }
  return best;
}

bool supports(const ConvProblem& p, const ConvConfig& config) {
  if (config.pass == ConvPass::BackwardWeight) return supports_windows_weight(p, config);
  if (!is_floating_point(config.dtype) || !p.is_depthwise()) return false;
  if (p.x_numel() == 0 || p.y_numel() == 0 || p.dilation[2] != 1) return false;
  if (config.pass == ConvPass::BackwardInput && p.out_channels != p.in_channels) return false;
  if (p.batch * p.out_channels >= kMost || p.kernel[2] > 4096) return false;
  for (std::size_t i = 0; i < 3; ++i) {
    const int64_t window = (p.kernel[i] - 1) * p.dilation[i];
    if (p.stride[i] != 1 || p.input[i] + p.output[i] + window + std::abs(p.padding_before[i]) >= kMost) return false;
    if (window * 4 > kMostShared) return false;
  }
  return has_blocks<windows_plan>(p, config) && kept_plan<windows_plan>(p, config)->blocks < kMost;
}

std::size_t workspace_bytes(const ConvProblem& p, const ConvConfig& config) {
  return config.pass == ConvPass::BackwardWeight ? windows_weight_bytes(p, config) : 0;
}

double predict_ms(const ConvProblem& p, const ConvConfig& config) {
  if (config.pass == ConvPass::BackwardWeight) return predict_windows_weight(p, config);
  return kept_plan<windows_plan>(p, config)->ms;
}

/// Results that rows of `width` elements take at once.
int store_of(int64_t width, const ConvConfig& config) {
  int64_t most = config.alignment / static_cast<int64_t>(size_of(config.dtype));
  while (most > 1 && width % most != 0) most /= 2;
  return to_int(std::max<int64_t>(most, 1));
}

WindowsGeometry windows_geometry(const ConvProblem& p, const ConvConfig& config, const WindowsPlan& plan,
                                 const WindowsForm& form) {
  const auto axis = [&](std::size_t i) {
    WindowAxis a{};
    a.result = to_int(form.result[i]);
    a.kernel = to_int(p.kernel[i]);
    a.dilation = to_int(p.dilation[i]);
    a.padding = to_int(form.padding[i]);
    a.tile = to_int(plan.tile[i]);
    a.tiles = divider(divide_up(form.result[i], plan.tile[i]));
    a.by_tile = divider(plan.tile[i]);
    return a;
  };
  WindowsGeometry g{};
  g.depth = axis(0);
  g.height = axis(1);
  g.width = axis(2);
  g.planes = to_int(plan.planes);
  g.box = line_box(plan.planes, form.source, plan.extent, plan.pitch);
  g.weight_row = to_int(plan.weight_row);
  g.weight_pitch = to_int(plan.weight_pitch);
  const bool half = size_of(config.dtype) == 2;
  g.store = store_of(form.result[2], config);
  g.staged = form.result[2] > 2 * kWindow && (half || g.store * size_of(config.dtype) < 16);
  g.by_lines = divider(plan.lines());
  g.by_tap_rows = divider(p.kernel[0] * p.kernel[1]);
  g.by_weight_row = divider(plan.weight_row);
  g.channels = divider(p.out_channels);
  g.multiplier = divider(p.out_channels_per_group());
  g.plane_count = form.planes;
  return g;
}

/// The kernel for rows whose last quad has so many taps.
template <class T>
auto windows_kernel(int64_t taps) {
  switch (taps % 4) {
    case 1: return depthwise_windows<T, 1>;
    case 0: return depthwise_windows<T, 4>;
    default: return depthwise_windows<T, 3>;  // of two, the third is multiplied by zero
  }
}

template <class T>
void run_as(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto plan = kept_plan<windows_plan>(p, config);
  const bool input = config.pass == ConvPass::BackwardInput;
  const auto* const source = static_cast<const T*>(input ? operands.y : operands.x);
  const auto* const weight = static_cast<const T*>(operands.w);
  WindowsParams<T> params(windows_geometry(p, config, *plan, {p, config.pass}), {Sizes(p), source, weight, !input});
  params.flip = input;
  params.source = source;
  params.weight = weight;
  params.result = static_cast<T*>(input ? operands.x : operands.y);
  if (!input) {
    params.bias = static_cast<const T*>(operands.bias);
    params.activation = config.activation;
  }
  launch(input ? "conv depthwise windows backward_input" : "conv depthwise windows forward",
         windows_kernel<T>(p.kernel[2]), dim3(static_cast<unsigned>(plan->blocks)),
         dim3(static_cast<unsigned>(plan->threads)), static_cast<std::size_t>(plan->shared), stream, params);
}

void run(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  if (config.pass == ConvPass::BackwardWeight) return run_windows_weight(p, config, operands, stream);
  dispatch_floating("depthwise convolution", config.dtype,
                    [&]<class T>(std::type_identity<T>) { run_as<T>(p, config, operands, stream); });
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwiseWindows{"depthwise windows", depthwise::supports, depthwise::workspace_bytes,
                                  depthwise::predict_ms, depthwise::run};

}  // namespace halo::cuda::conv
