// Pictures with their channels first, as GPUs have them: the CPU's kernels take channels last.
#pragma once

#include <set>
#include <string>

#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

// Which inputs and outputs of an op are pictures, and which inputs are the shapes of some.
struct Pictures {
  std::set<int> inputs, shapes, outputs;
};

// Null for an op without any.
const Pictures* pictures_of(const std::string& op);

bool has_channels_first(const tensorflow::NodeDef& node);

// Makes a node that has channels first one that has them last.
void put_channels_last(tensorflow::NodeDef* node);

// Runs a kernel that has channels last on pictures that have them first. What it takes as temporary
// is memory of the host: a CPU's convolution unrolls pictures into it, a GPU's does not.
void run_channels_last(tensorflow::OpKernel* kernel, const Pictures& pictures,
                       tensorflow::OpKernelContext* ctx);

}  // namespace simgpu
