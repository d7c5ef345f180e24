// Block kernels of float64 arithmetic: fewer sizes, since they serve exactness rather than speed.
#include "block_launch.cuh"

namespace halo::cuda::long_conv {

template <>
struct BlockShapes<double> {
  template <class F>
  static void with(int block, F&& f) {
    switch (block) {
      case 1024: return f(BlockShape<double, 10>{});
      case 8192: return f(BlockShape<double, 13>{});
      default: fail<InternalError>("long_conv: no float64 block of ", block, " points");
    }
  }
};

template <>
int block_for<double>(int64_t length) {
  return length <= 1024 ? 1024 : 8192;
}
template BlockGeometry block_geometry<double>(int block);
template void launch_block<double>(const BlockArgs<double>& args, int grid, cudaStream_t stream);

}  // namespace halo::cuda::long_conv
