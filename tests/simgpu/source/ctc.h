// The loss of connectionist temporal classification. cuDNN's has the class of no label first, the
// CPU's has it last.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

extern const char* const kCtcOnGpu;
extern const char* const kCtcOnCpu;

// Makes a node of the GPU's op one of the CPU's.
void put_on_cpu(tensorflow::NodeDef* node);

// Runs the CPU's kernel for a GPU's.
void run_ctc(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* ctx);

}  // namespace simgpu
