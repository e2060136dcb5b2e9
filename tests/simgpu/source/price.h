// What a kernel costs the modelled GPU: the longer of its arithmetic and of the memory that it moves.
#pragma once

#include <string>

#include "record.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

class Price {
 public:
  explicit Price(const tensorflow::NodeDef& node);

  // Takes the time of a kernel that was launched at a moment, and has just computed, from the compute
  // stream. One that only handles memory of the host takes none.
  void charge(tensorflow::OpKernelContext& ctx, const tensorflow::OpKernel& kernel,
              Moment launched) const;

 private:
  // Nothing: no kernel is launched. A part: none, where it is one of the buffer that it is cut from.
  enum class Work { kNothing, kPart, kMemory, kMatMul, kEinsum, kConv, kConvInput, kConvFilter,
                    kDepthwise };

  static Work work_of(const tensorflow::NodeDef& node);
  double flops(tensorflow::OpKernelContext& ctx) const;

  Work work_;
  bool is_transposed_ = false;  // the first matrix
  std::string equation_;        // of an Einsum
};

}  // namespace simgpu
