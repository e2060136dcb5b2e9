#include "stream.h"

#include "settings.h"

namespace simgpu {

void Mark::reach(Moment moment) {
  std::lock_guard<std::mutex> lock(mutex_);
  at_ = moment;
  reached_ = true;
  changed_.notify_all();
}

Moment Mark::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return reached_; });
  return at_;
}

bool Mark::is_reached() {
  std::lock_guard<std::mutex> lock(mutex_);
  return reached_;
}

void run_kernel(SP_Stream_st& stream, Moment launched, double seconds, const std::string& node,
                double bytes, double flops) {
  auto work = [=](SP_Stream_st& self, Moment computed) {
    auto [begin, end] = self.pass(launched, seconds);
    self.clock = std::max(self.clock, computed);  // whatever took the CPU longer than the GPU
    record({Kind::kKernel, self.device, self.number, node, begin, end, bytes, flops});
  };
  stream.add(work, settings().queue);
}

}  // namespace simgpu

using simgpu::Clock;
using simgpu::Mark;
using simgpu::Moment;

SP_Stream_st::SP_Stream_st(int device, int number) : device(device), number(number) {
  thread_ = std::thread([this] { run(); });
}

SP_Stream_st::~SP_Stream_st() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void SP_Stream_st::add(Work work, size_t most) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (most > 0) changed_.wait(lock, [&] { return queue_.size() < most; });
  queue_.emplace_back(Clock::now(), std::move(work));
  changed_.notify_all();
}

void SP_Stream_st::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto [queued, work] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work(*this, queued);
    work = nullptr;
    lock.lock();
    changed_.notify_all();
  }
}

std::shared_ptr<Mark> SP_Stream_st::mark() {
  auto found = std::make_shared<Mark>();
  add([found](SP_Stream_st& self, Moment queued) {
    self.clock = std::max(self.clock, queued);
    found->reach(self.clock);
  });
  return found;
}

void SP_Stream_st::wait_for(std::shared_ptr<Mark> mark) {
  if (mark == nullptr) return;
  add([mark](SP_Stream_st& self, Moment) { self.clock = std::max(self.clock, mark->wait()); });
}

std::pair<Moment, Moment> SP_Stream_st::take_up(Moment queued, double seconds) {
  Moment begin = std::max(clock, queued);
  clock = begin + simgpu::lasting(seconds);
  return {begin, clock};
}

std::pair<Moment, Moment> SP_Stream_st::pass(Moment queued, double seconds) {
  auto taken = take_up(queued, seconds);
  sleep_until(taken.second);
  return taken;
}

void SP_Stream_st::sleep_until(Moment moment) {
  constexpr auto shortest = std::chrono::microseconds(60);  // waking up takes as long
  if (moment - Clock::now() > shortest) std::this_thread::sleep_until(moment);
}
