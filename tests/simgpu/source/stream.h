// A stream: work done in order, one thing after the other, beside what the host does.
//
// It is a thread with a clock of its own. What is queued begins when it was queued or when what is
// before it ended, whichever is later, and lasts as long as the settings say, so that what the thread
// oversleeps adds up to nothing.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "record.h"

namespace simgpu {

// A moment that a stream reaches: what CUDA records as an event.
class Mark {
 public:
  void reach(Moment moment);
  Moment wait();  // until it is reached; when that was
  bool is_reached();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  Moment at_;
};

}  // namespace simgpu

// The name that TensorFlow's C API declares.
struct SP_Stream_st {
  using Work = std::function<void(SP_Stream_st&, simgpu::Moment queued)>;

  SP_Stream_st(int device, int number);
  ~SP_Stream_st();

  // Queues work; with `most`, the caller waits until fewer are queued.
  void add(Work work, size_t most = 0);

  // A mark that is reached when all that is queued is done.
  std::shared_ptr<simgpu::Mark> mark();

  // What is queued from now on begins after the mark.
  void wait_for(std::shared_ptr<simgpu::Mark> mark);

  // For work: takes up so many seconds of the stream, without sleeping. Returns when that begins and
  // ends, by the stream's clock.
  std::pair<simgpu::Moment, simgpu::Moment> take_up(simgpu::Moment queued, double seconds);

  // The same, and sleeps until it ends.
  std::pair<simgpu::Moment, simgpu::Moment> pass(simgpu::Moment queued, double seconds);

  static void sleep_until(simgpu::Moment moment);

  // Kernels compute as they are queued. So must all else on the stream that they are queued on.
  bool is_compute() const { return number == 0; }

  const int device, number;
  simgpu::Moment clock = simgpu::Clock::now();  // of its thread alone

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<simgpu::Moment, Work>> queue_;
  bool ends_ = false;
  std::thread thread_;
};

namespace simgpu {

// A device's compute stream: the first that TensorFlow makes. Null before that.
SP_Stream_st* compute_stream(int device);

// Takes up a stream for a kernel that was launched at a moment and has computed, behind all that is
// queued; waits for room in the queue.
void run_kernel(SP_Stream_st& stream, Moment launched, double seconds, const std::string& node,
                double bytes, double flops);

}  // namespace simgpu
