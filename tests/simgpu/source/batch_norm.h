// Batch norm with an addition and an activation, to which Grappler fuses them on a GPU. No kernel of the
// CPU's is for that: its batch norm runs, then what was fused.
#pragma once

#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

// The op in whose place TensorFlow's remapper puts another, by that; of other ops, themselves.
const std::string& unfused(const std::string& op);

// Makes a node of a fused batch norm one of the batch norm alone.
void take_apart(tensorflow::NodeDef* node);

// What was fused to a batch norm.
class Fused {
 public:
  explicit Fused(const tensorflow::NodeDef& node);

  // Adds and activates where the batch norm has put its output.
  void run(tensorflow::OpKernelContext* ctx) const;

 private:
  bool has_side_ = false, is_relu_ = false;
};

}  // namespace simgpu
