#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

namespace warploom::cpu {
namespace {

struct Job {
  void (*body)(void*);
  void* context;
  int places;       // helpers that may still join
  int running = 0;  // helpers inside body
};

class ThreadPool {
 public:
  void run(int threads, void (*body)(void*), void* context) {
    Job job{body, context, threads - 1};
    std::unique_lock lock(mutex_);
    start_helpers(threads - 1);
    const auto place = jobs_.insert(jobs_.end(), &job);
    lock.unlock();
    wake_.notify_all();
    body(context);
    lock.lock();
    jobs_.erase(place);
    done_.wait(lock, [&] { return job.running == 0; });
  }

 private:
  void start_helpers(int wanted) {
    while (helpers_ < wanted) {
      try {
        std::thread([this] { help(); }).detach();
      } catch (const std::system_error&) {
        return;  // the caller and those already there do the work
      }
      ++helpers_;
    }
  }

  void help() {
    std::unique_lock lock(mutex_);
    while (true) {
      Job* job = nullptr;
      wake_.wait(lock, [&] {
        for (Job* waiting : jobs_) {
          if (waiting->places > 0) job = waiting;
        }
        return job != nullptr;
      });
      --job->places;
      ++job->running;
      lock.unlock();
      job->body(job->context);
      lock.lock();
      if (--job->running == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::list<Job*> jobs_;
  int helpers_ = 0;
};

std::atomic<ThreadPool*> current_pool{nullptr};

/// The process's pool. It is never destroyed: its threads may outlive main's statics. A forked child has no helpers and
/// a mutex in an unknown state, so it forgets its parent's pool and starts its own.
ThreadPool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { current_pool.store(nullptr); });
  static_cast<void>(registered);
  ThreadPool* existing = current_pool.load();
  if (existing == nullptr) {
    auto* created = new ThreadPool;
    if (current_pool.compare_exchange_strong(existing, created)) return *created;
    delete created;
  }
  return *existing;
}

}  // namespace

void run_with_helpers(int threads, void (*body)(void*), void* context) {
  if (threads <= 1) {
    body(context);
  } else {
    pool().run(threads, body, context);
  }
}

int available_processors() {
  static const int count = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }();
  return count;
}

}  // namespace warploom::cpu
