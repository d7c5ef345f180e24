#include <halo/core/error.h>
#include <halo/core/float_mode.h>
#include <halo/core/parallel.h>
#include <halo/core/thread_modes.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace halo {
namespace {

/// One parallel_for: pieces are claimed by counting up, so that the caller and any free worker share them.
struct Job {
  int64_t n, piece, pieces;
  const std::function<void(int64_t, int64_t)>* body;
  // The caller's, for every piece: what a piece does must not depend on the thread that runs it.
  ThreadModes modes;
  uint64_t float_mode;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::exception_ptr error;

  void work() {
    for (int64_t i; (i = next.fetch_add(1)) < pieces;) {
      try {
        (*body)(i * piece, std::min(n, (i + 1) * piece));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
      if (done.fetch_add(1) + 1 == pieces) {
        std::lock_guard lock(mutex);
        finished.notify_all();
      }
    }
  }
};

thread_local bool inside_job = false;

class Pool {
 public:
  static Pool& instance() {
    static auto* pool = new Pool;  // never destroyed: workers may be running when statics go
    return *pool;
  }

  int threads() const { return threads_; }

  void resize(int threads) {
    std::lock_guard lock(mutex_);
    threads_ = threads;
    while (workers_ < threads - 1) {
      std::thread([this, id = workers_] { run(id); }).detach();
      ++workers_;
    }
    available_.notify_all();
  }

  void submit(const std::shared_ptr<Job>& job, int64_t helpers) {
    {
      std::lock_guard lock(mutex_);
      for (int64_t i = 0; i < helpers; ++i) queue_.push_back(job);
    }
    available_.notify_all();
  }

 private:
  Pool() { resize(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))); }

  void run(int id) {
    inside_job = true;
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        available_.wait(lock, [&] { return !queue_.empty() && id < threads_ - 1; });
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      thread_modes() = job->modes;
      set_float_mode(job->float_mode);
      job->work();
    }
  }

  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<std::shared_ptr<Job>> queue_;
  int workers_ = 0;
  std::atomic<int> threads_{1};
};

}  // namespace

ThreadModes& thread_modes() {
  thread_local ThreadModes modes;
  return modes;
}

int num_threads() { return Pool::instance().threads(); }

void set_num_threads(int threads) {
  if (threads < 1) fail("set_num_threads: threads expected at least 1, got ", threads);
  Pool::instance().resize(threads);
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  constexpr int64_t kMostPieces = 64;
  const int64_t piece = std::max({int64_t{1}, grain, (n + kMostPieces - 1) / kMostPieces});
  const int64_t pieces = (n + piece - 1) / piece;
  const int64_t threads = inside_job ? 1 : std::min<int64_t>(Pool::instance().threads(), pieces);
  if (threads == 1) {
    for (int64_t i = 0; i < pieces; ++i) body(i * piece, std::min(n, (i + 1) * piece));
    return;
  }
  auto job = std::make_shared<Job>();
  job->n = n;
  job->piece = piece;
  job->pieces = pieces;
  job->body = &body;
  job->modes = thread_modes();
  job->float_mode = float_mode();
  Pool::instance().submit(job, threads - 1);
  inside_job = true;
  job->work();
  inside_job = false;
  std::unique_lock lock(job->mutex);
  job->finished.wait(lock, [&] { return job->done.load() == pieces; });
  if (job->error) std::rethrow_exception(job->error);
}

}  // namespace halo
