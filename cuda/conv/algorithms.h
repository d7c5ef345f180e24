// Every kernel family dispatch may choose. Adding one: its folder, one line here, one line in dispatch.cpp, its files
// in cuda/CMakeLists.txt.
#pragma once

#include <halo/cuda/conv/algorithm.h>

namespace halo::cuda::conv {

extern const Algorithm kDirect;         ///< direct.cu: plain loops, every problem and pass
extern const Algorithm kDense;          ///< dense/dense.cu: forward and backward_input on Hopper tensor cores
extern const Algorithm kDenseSmall;     ///< dense_small/dense_small.cu: the same for convolutions of a few microseconds
extern const Algorithm kSpread;         ///< spread/spread.cu: the same where few channels come out of many
extern const Algorithm kDenseWeight;    ///< dense_weight/dense_weight.cu: weight gradients on tensor cores
extern const Algorithm kPortable;       ///< portable/portable.cu: all passes on any tensor cores since 8.0
extern const Algorithm kDepthwise;      ///< depthwise/depthwise.cu: unit stride, common kernels, at memory speed
extern const Algorithm kDepthwiseHalf;  ///< depthwise/half.cu: the same for half types, on tensor cores
extern const Algorithm kDepthwiseRows;  ///< depthwise/rows.cu: weight gradients of several rows of taps on Hopper
extern const Algorithm kDepthwiseColumns;    ///< depthwise/columns.cu: stride 2, dilation, small images
extern const Algorithm kDepthwiseWindows;    ///< depthwise/windows.cu: unit stride, many taps, planes of any size
extern const Algorithm kDepthwisePolyphase;  ///< depthwise/polyphase.cu: any stride, dilation, kernel, multiplier
extern const Algorithm kSmallGroups;  ///< small_groups/small_groups.cu: few channels a group, any stride and dilation
extern const Algorithm kSmallGroupsMarch;  ///< small_groups/march.cu: at most 4 channels a group, side by side
extern const Algorithm kPhases;            ///< phases/phases.cu: input gradients with strides, few channels a group
extern const Algorithm kPhaseRows;         ///< phase_rows/phase_rows.cu: the same of stride 2 on Hopper, wide rows
extern const Algorithm kStreams;           ///< streams/streams.cu: strided, few channels a group, on Hopper
extern const Algorithm kStreamsWeight;     ///< streams/weight.cu: their weight gradients
extern const Algorithm kStraight;     ///< straight/straight.cu: few channels, one group, straight from global memory
extern const Algorithm kPointwise;    ///< pointwise/pointwise.cu: kernels of one tap at memory speed, on Hopper
extern const Algorithm kFewResults;   ///< few_results/few_results.cu: at most 3 channels out of many, 3 x 3, on Hopper
extern const Algorithm kFewSources;   ///< few_sources/few_sources.cu: many channels out of at most 4
extern const Algorithm kFewTaps;      ///< few_taps/few_taps.cu: transposed, results of few taps or none, on Hopper
extern const Algorithm kFewTapsRows;  ///< few_taps/rows.cu: the same in 2-D, whose rows in part have none
extern const Algorithm kOnePhase;     ///< one_phase/one_phase.cu: stride 2, taps as far apart, on Hopper
extern const Algorithm kWidened;      ///< widened.cu: half types by the float32 kernels, on copies

}  // namespace halo::cuda::conv
