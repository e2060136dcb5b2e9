// Memory that has been given back to an allocator.
#pragma once

#include "xla/tsl/framework/allocator.h"

namespace simgpu {

// From now on buffers of an allocator are poisoned as they are freed: whoever still reads one finds
// NaN, as on a GPU he would find what the next one has written there.
void poison_what_is_freed(tsl::Allocator* allocator);

}  // namespace simgpu
