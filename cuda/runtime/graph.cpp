#include <halo/core/cuda_backend.h>
#include <halo/core/error.h>
#include <halo/core/stream.h>
#include <halo/cuda/graph.h>
#include <halo/cuda/launch.h>

#include "allocator.h"
#include "device.h"
#include "kept.h"

namespace halo::cuda {

struct Graph::State {
  Stream stream;  ///< recorded on it; its blocks belong to the graph
  cudaGraphExec_t executable = nullptr;
  KeptUses kept;                                ///< what it reads that was made of weights before
  std::vector<std::weak_ptr<Storage>> changed;  ///< what it changes in place

  explicit State(Device device) : stream(Stream::create(device)) {}
  ~State() {
    try {
      synchronize(stream.device().index);  // a replay may be using the blocks that are let go
    } catch (const Error&) {
      // The driver is gone, as at the end of the process, and its work with it.
    }
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    caching_allocator(stream.device().index).let_go(stream.handle());
  }
};

namespace {

/// One recording: ended, and its graph destroyed, on every way out.
class Recording {
 public:
  Recording(CachingAllocator& allocator, cudaStream_t stream) : allocator_(allocator), stream_(stream) {
    // Relaxed: other threads and the allocator may go on calling CUDA.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "Graph::capture");
    allocator_.begin_capture(stream);
  }
  ~Recording() {
    if (recording_) end();
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    cudaGetLastError();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  cudaGraph_t finish() {
    check(end(), "Graph::capture");
    return graph_;
  }

 private:
  cudaError_t end() {
    recording_ = false;
    allocator_.end_capture();
    return cudaStreamEndCapture(stream_, &graph_);
  }

  CachingAllocator& allocator_;
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool recording_ = true;
};

}  // namespace

Graph Graph::capture(Device device, const std::function<void()>& body) {
  if (!device.is_cuda()) fail("Graph::capture: device expected a GPU, got ", device);
  auto state = std::make_shared<State>(device);
  const DeviceScope scope(device);
  Recording recording(caching_allocator(device.index), static_cast<cudaStream_t>(state->stream.handle()));
  {
    const StreamGuard guard(state->stream);
    const KeptRecorder recorder(state->kept);
    ChangeLog log;
    body();
    state->changed = std::move(log.changed);
  }
  check(cudaGraphInstantiate(&state->executable, recording.finish(), 0), "Graph::capture");
  return Graph(std::move(state));
}

void Graph::replay() const {
  const DeviceScope scope(state_->stream.device());
  for (const auto& kept : state_->kept) kept->update(scope.stream());
  check(cudaGraphLaunch(state_->executable, scope.stream()), "Graph::replay");
  for (const auto& changed : state_->changed) {
    if (const auto storage = changed.lock()) storage->bump_version();
  }
}

}  // namespace halo::cuda
