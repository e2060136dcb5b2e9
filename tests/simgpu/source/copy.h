// Copies over the link between host and device, and within the device.
#pragma once

#include <cstdint>

#include "stream.h"

namespace simgpu {

// Queues a copy. One of memory that is not pinned blocks the caller until it is done, as CUDA's do.
void copy(SP_Stream_st& stream, Kind kind, void* to, const void* from, uint64_t nbytes);

// Queues work that fills memory of the device.
void fill(SP_Stream_st& stream, std::function<void()> work);

}  // namespace simgpu
