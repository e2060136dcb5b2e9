// A kernel that is run within another's, on tensors of its own.
#pragma once

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

// What a kernel's own inputs and outputs are, and which are memory of the host.
struct Arguments {
  explicit Arguments(tensorflow::OpKernelContext* ctx);

  // Takes another tensor, of the host, for an input.
  void replace(int input, tensorflow::Tensor tensor);

  std::vector<tensorflow::Tensor> own;
  std::vector<tensorflow::TensorValue> inputs;
  std::vector<tensorflow::AllocatorAttributes> from, to;
};

// A kernel's context within that of another, whose temporaries are memory of the host.
class Inner : public tensorflow::OpKernelContext {
 public:
  Inner(OpKernelContext* outer, tensorflow::OpKernel* kernel, Arguments* arguments);

  using OpKernelContext::allocate_temp;
  absl::Status allocate_temp(tensorflow::DataType type, const tensorflow::TensorShape& shape,
                             tensorflow::Tensor* made, tensorflow::AllocatorAttributes attributes,
                             const tensorflow::AllocationAttributes& more) override;

 private:
  Inner(std::unique_ptr<Params> params, int outputs);

  std::unique_ptr<Params> params_;
};

}  // namespace simgpu
