#include "freed.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "memory.h"

namespace simgpu {
namespace {

// An object's table of virtual functions is copied, and one of them replaced in the copy (Itanium
// C++ ABI: two words lie before the first function; a pointer to a virtual member function holds 1
// and the function's distance from it).
constexpr int kBefore = 2, kFunctions = 64;

using Free = void (*)(tsl::Allocator*, void*);

int place_of_free() {
  void (tsl::Allocator::*function)(void*) = &tsl::Allocator::DeallocateRaw;
  uintptr_t word;
  std::memcpy(&word, &function, sizeof word);
  return static_cast<int>((word - 1) / sizeof(void*));
}

std::mutex freed_mutex;
std::map<tsl::Allocator*, Free> frees;  // TensorFlow's own

void poison_and_free(tsl::Allocator* allocator, void* address) {
  Free free;
  {
    std::lock_guard<std::mutex> lock(freed_mutex);
    free = frees.at(allocator);
  }
  if (address != nullptr) std::memset(address, kPoison, allocator->AllocatedSize(address));
  free(allocator, address);
}

}  // namespace

void poison_what_is_freed(tsl::Allocator* allocator) {
  std::lock_guard<std::mutex> lock(freed_mutex);
  if (frees.count(allocator) > 0) return;  // of a context before
  void*** object = reinterpret_cast<void***>(allocator);
  auto* copy = new void*[kBefore + kFunctions];  // for as long as the allocator, which is for good
  std::memcpy(copy, *object - kBefore, (kBefore + kFunctions) * sizeof(void*));
  void*& function = copy[kBefore + place_of_free()];
  frees[allocator] = reinterpret_cast<Free>(function);
  function = reinterpret_cast<void*>(&poison_and_free);
  *object = copy + kBefore;
}

}  // namespace simgpu
