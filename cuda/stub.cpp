// Takes the place of cuda/ in a build without CUDA: the queries answer "none", everything else says so.
#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/tensor.h>
#include <halo/cuda/graph.h>
#include <halo/cuda/tuning.h>
#include <halo/ops/bias_gelu_backend.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/causal_conv1d_backend.h>
#include <halo/ops/conv_backend.h>
#include <halo/ops/cross_entropy_backend.h>
#include <halo/ops/cumsum_backend.h>
#include <halo/ops/dropout_backend.h>
#include <halo/ops/flip_backend.h>
#include <halo/ops/hyena_filter_backend.h>
#include <halo/ops/hyena_step_backend.h>
#include <halo/ops/index_backend.h>
#include <halo/ops/local_response_norm_backend.h>
#include <halo/ops/long_conv_backend.h>
#include <halo/ops/matmul_backend.h>
#include <halo/ops/norm_backend.h>
#include <halo/ops/optim_step_backend.h>
#include <halo/ops/pad_backend.h>
#include <halo/ops/pair_loss_backend.h>
#include <halo/ops/pool_backend.h>
#include <halo/ops/reduce_backend.h>
#include <halo/ops/residual_norm_backend.h>
#include <halo/ops/softmax_backend.h>
#include <halo/ops/sort_backend.h>
#include <halo/ops/token_filter_backend.h>
#include <halo/ops/unary_backend.h>

namespace halo::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("CUDA: this Halo was built without CUDA (HALO_CUDA=OFF); use the CPU"); }
}  // namespace

int device_count() { return 0; }
std::string describe(int) { return "no GPU: this Halo was built without CUDA"; }
DeviceProperties properties(int) { absent(); }
int exchange_current_device(int) { absent(); }
void restore_current_device(int) noexcept {}
bool recording_graph() { return false; }
Allocator& allocator(int) { absent(); }
std::shared_ptr<void> create_stream(int) { absent(); }
void synchronize_stream(int, void*) { absent(); }
bool stream_finished(int, void*) { absent(); }
void stream_wait(int, void*, int, void*) { absent(); }
void synchronize(int) { absent(); }
std::shared_ptr<void> create_event(int) { absent(); }
void record_event(int, void*, void*) { absent(); }
bool event_reached(int, void*) { absent(); }
void synchronize_event(int, void*) { absent(); }
void stream_wait_event(int, void*, void*) { absent(); }
double elapsed_between(int, void*, void*) { absent(); }
void begin_profiler_range(const char*) {}
void end_profiler_range() noexcept {}
struct Graph::State {};
Graph Graph::capture(Device, const std::function<void()>&) { absent(); }
void Graph::replay() const { absent(); }
void tune_convolutions(const std::string&, Device, const std::function<void()>&) { absent(); }
std::string load_convolution_choices(const std::string&, Device) { absent(); }
void forget_convolution_choices() { absent(); }
void copy_bytes(void*, Device, const void*, Device, std::size_t) { absent(); }
void copy_elements(const Tensor&, const Tensor&) { absent(); }
void fill(const Tensor&, const Scalar&) { absent(); }
void arange(const Tensor&) { absent(); }
Tensor random(Distribution, PhiloxState, const Shape&, const TensorOptions&) { absent(); }

void conv_forward(const ConvProblem&, const Tensor&, const Tensor&, const Tensor&, const Activation&, WeightUse,
                  const Tensor&) {
  absent();
}
void conv_backward_input(const ConvProblem&, const Tensor&, const Tensor&, const Tensor&, WeightUse, const Tensor&) {
  absent();
}
void conv_backward_weight(const ConvProblem&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void sum_per_channel(const Tensor&, const Tensor&) { absent(); }
void unary(UnaryOp, UnaryParams, const Tensor&, const Tensor&) { absent(); }
void unary_derivative(UnaryOp, UnaryParams, int, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void binary(BinaryOp, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void where(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void reduce(ReduceOp, const Tensor&, int, const Tensor&) { absent(); }
void variance(const Tensor&, int, double, const Tensor&) { absent(); }
void gemm(const GemmProblem&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void flip(const Tensor&, const Shape&, const Tensor&) { absent(); }
void pad(const PadProblem&, const Scalar&, const Tensor&, const Tensor&) { absent(); }
void pad_backward(const PadProblem&, const Tensor&, const Tensor&) { absent(); }
void index_select(const char*, const Tensor&, int, const Tensor&, const Tensor&) { absent(); }
void index_add(const char*, const Tensor&, int, const Tensor&, const Tensor&) { absent(); }
void gather(const char*, const Tensor&, int, const Tensor&, const Tensor&) { absent(); }
void scatter_add(const char*, const Tensor&, int, const Tensor&, const Tensor&) { absent(); }
void sort(const Tensor&, bool, const Tensor&, const Tensor&) { absent(); }
void topk(const Tensor&, bool, const Tensor&, const Tensor&) { absent(); }
void arg_extreme(const Tensor&, bool, const Tensor&) { absent(); }
void cumsum(const Tensor&, int, bool, const Tensor&) { absent(); }
void softmax(bool, const Tensor&, int, const Tensor&) { absent(); }
void softmax_backward(bool, const Tensor&, const Tensor&, int, const Tensor&) { absent(); }
void cross_entropy(const char*, const ClassLoss&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                   const Tensor&, const Tensor&) {
  absent();
}
void cross_entropy_backward(const char*, const ClassLoss&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&) {
  absent();
}
void mean_loss(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void pair_loss(PairLoss, double, Reduction, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void pair_loss_backward(PairLoss, double, bool, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  absent();
}
void dropout(double, PhiloxState, const Tensor&, const Tensor&) { absent(); }

void max_pool_forward(const PoolProblem&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void max_pool_scatter(const PoolProblem&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void max_pool_gather(const PoolProblem&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void max_pool_indices(const PoolProblem&, const Tensor&, const Tensor&) { absent(); }
void avg_pool_forward(const PoolProblem&, const Tensor&, const Tensor&) { absent(); }
void avg_pool_backward(const PoolProblem&, const Tensor&, const Tensor&) { absent(); }
void local_response_norm_forward(const LocalResponseNorm&, const Tensor&, const Tensor&) { absent(); }
void local_response_norm_backward(const LocalResponseNorm&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void batch_norm_forward(const BatchNormProblem&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const Tensor&, const NormResult&) {
  absent();
}
void batch_norm_backward(const BatchNormProblem&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const NormGrads&) {
  absent();
}
void row_norm_forward(const RowNormProblem&, const Tensor&, const Tensor&, const Tensor&, const NormResult&) {
  absent();
}
void row_norm_backward(const RowNormProblem&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                       const NormGrads&) {
  absent();
}
void long_conv_forward(const LongConvProblem&, LongConvMethod, const LongConvTensors&, WeightUse, const Tensor&) {
  absent();
}
void long_conv_backward(const LongConvProblem&, LongConvMethod, const LongConvTensors&, const Tensor&,
                        const LongConvTensors&) {
  absent();
}
void causal_conv1d_forward(const CausalConv1dProblem&, const CausalConv1dTensors&, const CausalConv1dResult&) {
  absent();
}
void causal_conv1d_backward(const CausalConv1dProblem&, const CausalConv1dTensors&, const CausalConv1dResult&,
                            const CausalConv1dTensors&) {
  absent();
}
void bias_sine_forward(const Tensor&, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void bias_sine_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const BiasSineGrads&) { absent(); }
void decay_window(const DecayWindow&, const Tensor&, const Tensor&) { absent(); }
void hyena_step(const HyenaStepProblem&, const HyenaStepTensors&, const Tensor&) { absent(); }
bool residual_norm_fits(const ResidualNormProblem&) { absent(); }
void residual_norm_forward(const ResidualNormProblem&, const ResidualNormTensors&, const ResidualNormResult&) {
  absent();
}
void residual_norm_backward(const ResidualNormProblem&, const ResidualNormResult&, const Tensor&, const Tensor&,
                            const Tensor&, const ResidualNormGrads&) {
  absent();
}
void bias_gelu_forward(UnaryOp, const Tensor&, const Tensor&, const Tensor&) { absent(); }
void bias_gelu_backward(UnaryOp, const Tensor&, const Tensor&, const Tensor&, const BiasGeluGrads&) { absent(); }
void token_filter_forward(const TokenFilterProblem&, const TokenFilterTensors&, const std::vector<Tensor>&) {
  absent();
}
void token_filter_backward(const TokenFilterProblem&, const TokenFilterTensors&, const std::vector<Tensor>&,
                           const TokenFilterTensors&) {
  absent();
}
void sgd_step(const SgdUpdate&, const std::vector<SgdTensors>&) { absent(); }
void adam_step(const AdamUpdate&, const std::vector<AdamTensors>&) { absent(); }

}  // namespace halo::cuda
