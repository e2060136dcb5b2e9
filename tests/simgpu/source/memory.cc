#include "memory.h"

#include <sys/mman.h>

#include <atomic>
#include <map>
#include <mutex>

#include "settings.h"

namespace simgpu {
namespace {

// Blocks taken from the system, by address.
class Blocks {
 public:
  void* take(size_t nbytes) {
    void* found = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    sizes_[static_cast<const char*>(found)] = nbytes;
    nbytes_ += nbytes;
    return found;
  }

  void give_back(void* address) {
    auto found = sizes_.find(static_cast<const char*>(address));
    if (found == sizes_.end()) return;
    munmap(address, found->second);
    nbytes_ -= found->second;
    sizes_.erase(found);
  }

  bool holds(const void* address) const {
    const char* at = static_cast<const char*>(address);
    auto next = sizes_.upper_bound(at);
    if (next == sizes_.begin()) return false;
    --next;
    return at < next->first + next->second;
  }

  int64_t nbytes() const { return nbytes_; }

 private:
  std::map<const char*, size_t> sizes_;
  int64_t nbytes_ = 0;
};

std::mutex memory_mutex;
Blocks of_devices[kMostDevices], pinned;
std::atomic<int64_t> limits[kMostDevices];

}  // namespace

int64_t memory_of(int device) {
  int64_t limit = limits[device];
  return limit != 0 ? limit : static_cast<int64_t>(settings().memory);
}

void set_memory_of(int device, int64_t nbytes) { limits[device] = nbytes; }

int64_t memory_in_use(int device) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  return of_devices[device].nbytes();
}

void* take(int device, size_t nbytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  Blocks& blocks = of_devices[device];
  bool has_room = blocks.nbytes() + static_cast<int64_t>(nbytes) <= memory_of(device);
  return has_room ? blocks.take(nbytes) : nullptr;
}

void give_back(int device, void* address) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  of_devices[device].give_back(address);
}

void* take_pinned(size_t nbytes) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  return pinned.take(nbytes);
}

void give_back_pinned(void* address) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  pinned.give_back(address);
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  return pinned.holds(address);
}

}  // namespace simgpu
