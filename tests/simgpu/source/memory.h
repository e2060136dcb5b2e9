// The device's memory, and pinned memory of the host: what TensorFlow's own BFC allocators ask for
// in regions and hand out in chunks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simgpu {

// Bytes that a device has. The limit of a logical device takes their place.
int64_t memory_of(int device);
void set_memory_of(int device, int64_t nbytes);

int64_t memory_in_use(int device);

// Null where the device has no more, as cudaMalloc has it.
void* take(int device, size_t nbytes);
void give_back(int device, void* address);

// Pinned memory is portable: TensorFlow takes it through one device, and all copy from it.
void* take_pinned(size_t nbytes);
void give_back_pinned(void* address);

// Whether devices can read and write an address of the host by themselves, while the host goes on.
bool is_pinned(const void* address);

// Not a number in every floating-point type, and -1 in every integer.
constexpr int kPoison = 0xff;

}  // namespace simgpu
