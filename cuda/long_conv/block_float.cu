// Block kernels of float32 arithmetic.
#include "block_launch.cuh"

namespace halo::cuda::long_conv {

template <>
struct BlockShapes<float> {
  template <class F>
  static void with(int block, F&& f) {
    switch (block) {
      case 256: return f(BlockShape<float, 8>{});
      case 1024: return f(BlockShape<float, 10>{});
      case 2048: return f(BlockShape<float, 11>{});
      case 4096: return f(BlockShape<float, 12>{});
      case 8192: return f(BlockShape<float, 13>{});
      default: fail<InternalError>("long_conv: no float32 block of ", block, " points");
    }
  }
};

template <>
int block_for<float>(int64_t length) {
  return length <= 256 ? 256 : length <= 1024 ? 1024 : length <= 2048 ? 2048 : length <= 4096 ? 4096 : 8192;
}
template BlockGeometry block_geometry<float>(int block);
template void launch_block<float>(const BlockArgs<float>& args, int grid, cudaStream_t stream);

}  // namespace halo::cuda::long_conv
