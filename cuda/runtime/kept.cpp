#include "kept.h"

#include <halo/core/cuda_backend.h>
#include <halo/cuda/launch.h>

#include <algorithm>
#include <utility>

namespace halo::cuda {
namespace {

constexpr std::size_t kMost = 2;

struct Shelf : StorageAttachment {
  std::mutex mutex;
  std::vector<std::shared_ptr<Kept>> kept;  ///< used last, first
};

Shelf& shelf_of(Storage& storage) {
  return static_cast<Shelf&>(
      storage.attachment([]() -> std::unique_ptr<StorageAttachment> { return std::make_unique<Shelf>(); }));
}

thread_local KeptUses* recorded = nullptr;

}  // namespace

Kept::Kept(const Weights& weights, const Recipe& recipe)
    : count_(weights[1].defined() ? 2 : 1), recipe_(recipe.copy()), memory_(recipe.bytes(), weights[0].device()) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(count_); ++i) storages_[i] = weights[i].storage();
}

bool Kept::is_of(const Weights& weights, const Recipe& recipe) const {
  // A storage that is gone may have left its address to another.
  const bool same_second =
      count_ == 2 ? weights[1].defined() && storages_[1].lock() == weights[1].storage() : !weights[1].defined();
  return same_second && recipe_->same_as(recipe);
}

void Kept::update(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  std::array<std::shared_ptr<Storage>, 2> storages;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count_); ++i) {
    storages[i] = storages_[i].lock();
    if (storages[i] == nullptr) return;  // a graph outlived it
    made_ = made_ && versions_[i] == storages[i]->version();
    versions_[i] = storages[i]->version();
  }
  if (made_) {
    if (stream != stream_) check(cudaStreamWaitEvent(stream, ready_.handle()), "kept weight");
    return;
  }
  recipe_->make(memory_.data(), stream);
  ready_.record(stream);
  stream_ = stream;
  made_ = true;
}

bool Kept::is_made() const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < static_cast<std::size_t>(count_); ++i) {
    const auto storage = storages_[i].lock();
    if (storage == nullptr || !made_ || versions_[i] != storage->version()) return false;
  }
  check(cudaEventSynchronize(ready_.handle()), "kept weight");
  return true;
}

std::shared_ptr<Kept> keep(const Weights& weights, const Recipe& recipe, cudaStream_t stream) {
  for (const Tensor& weight : weights) {
    if (weight.defined() && !weight.storage()->is_private()) return nullptr;
  }
  Shelf& shelf = shelf_of(*weights[0].storage());
  const std::lock_guard lock(shelf.mutex);
  auto& all = shelf.kept;
  auto found = std::ranges::find_if(all, [&](const auto& kept) { return kept->is_of(weights, recipe); });
  if (is_capturing(stream)) {
    if (recorded == nullptr || found == all.end() || !(*found)->is_made()) return nullptr;
    if (std::ranges::find(*recorded, *found) == recorded->end()) recorded->push_back(*found);
    return *found;
  }
  if (found == all.end()) {
    if (all.size() == kMost) all.pop_back();
    try {
      found = all.insert(all.end(), std::make_shared<Kept>(weights, recipe));
    } catch (const OutOfMemoryError&) {
      return nullptr;
    }
  }
  std::rotate(all.begin(), found, found + 1);
  all.front()->update(stream);
  return all.front();
}

bool recording_graph() { return recorded != nullptr; }

KeptRecorder::KeptRecorder(KeptUses& uses) : outer_(std::exchange(recorded, &uses)) {}
KeptRecorder::~KeptRecorder() { recorded = outer_; }

}  // namespace halo::cuda
