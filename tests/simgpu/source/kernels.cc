// The device's kernels: for each that TensorFlow has for GPUs, the CPU's of the same op and types, with
// the same arguments in memory of the host, at a higher priority.
//
// It computes at once, in the caller's thread, on the device's memory. From the moment at which it was
// called it takes up the compute stream for as long as the modelled GPU would need: as a launch does,
// it comes back before that.
#include "kernels.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "batch_norm.h"
#include "channels.h"
#include "ctc.h"
#include "price.h"
#include "record.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace simgpu {

using namespace tensorflow;  // NOLINT

namespace {

// What a collective op says of how devices talk to one another. NCCL needs CUDA; TensorFlow's own ring
// copies from one device to the next, and adds with the device's kernels.
const char* const kHint = "communication_hint";

bool is_collective(const NodeDef& node) { return node.attr().contains(kHint); }

// What is called for a node on the device, and calls the CPU's kernel.
class Forward : public OpKernel {
 public:
  Forward(OpKernelConstruction* ctx, std::unique_ptr<OpKernel> kernel, const Pictures* pictures)
      : OpKernel(ctx),
        price_(ctx->def()),
        fused_(ctx->def()),
        is_ctc_(ctx->def().op() == kCtcOnGpu),
        kernel_(std::move(kernel)),
        pictures_(pictures) {}

  void Compute(OpKernelContext* ctx) override {
    Moment begin = Clock::now();
    if (is_ctc_)
      run_ctc(kernel_.get(), ctx);
    else if (pictures_ != nullptr)
      run_channels_last(kernel_.get(), *pictures_, ctx);
    else
      kernel_->Compute(ctx);
    fused_.run(ctx);
    price_.charge(*ctx, *this, begin);
  }

  bool IsExpensive() override { return kernel_->IsExpensive(); }
  const Tensor* const_tensor() const override { return kernel_->const_tensor(); }

 private:
  Price price_;
  Fused fused_;
  bool is_ctc_;
  std::unique_ptr<OpKernel> kernel_;
  const Pictures* pictures_;
};

class AsyncForward : public AsyncOpKernel {
 public:
  AsyncForward(OpKernelConstruction* ctx, std::unique_ptr<OpKernel> kernel)
      : AsyncOpKernel(ctx), price_(ctx->def()), kernel_(std::move(kernel)) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    Moment begin = Clock::now();
    kernel_->AsAsync()->ComputeAsync(ctx, [this, ctx, begin, done = std::move(done)] {
      price_.charge(*ctx, *this, begin);
      done();
    });
  }

 private:
  Price price_;
  std::unique_ptr<OpKernel> kernel_;
};

absl::Status make_for_cpu(OpKernelConstruction* ctx, const NodeDef& node,
                          std::unique_ptr<OpKernel>* kernel) {
  const OpRegistryInterface* ops = OpRegistry::Global();
  if (ctx->function_library() != nullptr)
    ops = ctx->function_library()->GetFunctionLibraryDefinition();
  std::shared_ptr<const NodeProperties> properties;
  TF_RETURN_IF_ERROR(NodeProperties::CreateFromNodeDef(node, ops, &properties));
  auto* device = ctx->device();
  OpKernel* made = nullptr;
  TF_RETURN_IF_ERROR(CreateOpKernel(DeviceType(DEVICE_CPU), device,
                                    device->GetAllocator(AllocatorAttributes()),
                                    ctx->function_library(), ctx->resource_manager(), properties,
                                    ctx->graph_def_version(), &made));
  kernel->reset(made);
  return absl::OkStatus();
}

class ForwardFactory : public kernel_factory::OpKernelFactory {
 public:
  OpKernel* Create(OpKernelConstruction* ctx) override {
    static const Pictures none;
    NodeDef node = ctx->def();
    if (unfused(node.op()) != node.op()) take_apart(&node);
    if (node.op() == kCtcOnGpu) put_on_cpu(&node);
    if (is_collective(node)) (*node.mutable_attr())[kHint].set_s("ring");
    const Pictures* pictures = pictures_of(node.op());
    if (pictures != nullptr && has_channels_first(node))
      put_channels_last(&node);
    else if (pictures != nullptr)
      pictures = &none;
    std::unique_ptr<OpKernel> kernel;
    absl::Status status = make_for_cpu(ctx, node, &kernel);
    if (!status.ok() && node.mutable_attr()->erase("_kernel") > 0)  // a label, such as cuDNN's
      status = make_for_cpu(ctx, node, &kernel);
    if (!status.ok()) {
      ctx->SetStatus(status);
      return nullptr;
    }
    if (kernel->AsAsync() != nullptr) return new AsyncForward(ctx, std::move(kernel));
    return new Forward(ctx, std::move(kernel), pictures);
  }
};

class MissingFactory : public kernel_factory::OpKernelFactory {
 public:
  OpKernel* Create(OpKernelConstruction* ctx) override {
    ctx->SetStatus(errors::Unimplemented("the simulated GPU has no kernel for ", ctx->def().op(),
                                         ", which has none for CPUs"));
    return nullptr;
  }
};

// Ops whose kernels for GPUs are code of the host, which does with this device what it does with any.
bool is_of_any_device(const std::string& op) {
  static const std::set<std::string> ops = {
      "Const", "HostConst", "_Arg", "_Retval", "_DeviceArg", "_DeviceRetval", "_ScopedAllocator",
      "_CopyFromGpuToHost", "_CopyFromHostToGpu", "SyncDevice", "NextIteration", "RefNextIteration",
      "PartitionedCall", "StatefulPartitionedCall", "SymbolicGradient", "RemoteCall"};
  return ops.count(op) > 0;
}

// A node that the kernel would be taken for: the first types that it allows, and the op's defaults.
NodeDef node_for(const KernelDef& kernel) {
  NodeDef node;
  node.set_name("node");
  node.set_op(kernel.op());
  auto& attributes = *node.mutable_attr();
  for (const auto& constraint : kernel.constraint()) {
    const auto& allowed = constraint.allowed_values().list();
    if (allowed.type_size() > 0) attributes[constraint.name()].set_type(allowed.type(0));
  }
  if (!kernel.label().empty()) attributes["_kernel"].set_s(kernel.label());
  const OpDef* op = nullptr;
  if (!OpRegistry::Global()->LookUpOpDef(kernel.op(), &op).ok()) return node;
  for (const auto& attribute : op->attr()) {
    if (attributes.contains(attribute.name())) continue;
    const auto& allowed = attribute.allowed_values().list();
    if (attribute.has_default_value())
      attributes[attribute.name()] = attribute.default_value();
    else if (attribute.type() == "type")
      attributes[attribute.name()].set_type(allowed.type_size() > 0 ? allowed.type(0) : DT_FLOAT);
  }
  return node;
}

// The class of the kernel that a kind of device has for what a kernel is for; "" if it has none.
std::string class_on(const char* device, const KernelDef& kernel) {
  const KernelDef* found = nullptr;
  std::string name;
  bool has_one = FindKernelDef(DeviceType(device), node_for(kernel), &found, &name).ok();
  return has_one && name != "NoOp" ? name : "";  // which holds the place of one of oneDNN's
}

std::string class_on_cpu(KernelDef kernel) {
  kernel.set_op(kernel.op() == kCtcOnGpu ? kCtcOnCpu : unfused(kernel.op()));
  std::string found = class_on("CPU", kernel);
  if (!found.empty() || kernel.label().empty()) return found;
  KernelDef unlabelled = kernel;
  unlabelled.clear_label();
  return class_on("CPU", unlabelled);
}

const char* fate_of(const KernelDef& kernel, const std::string& gpu, const std::string& cpu) {
  if (is_collective(node_for(kernel))) return "forwarded";
  if (is_of_any_device(kernel.op()) || (!cpu.empty() && cpu == gpu)) return "kept";
  return cpu.empty() ? "missing" : "forwarded";
}

// Collective ops have one kernel for all kinds of devices.
bool is_for_any_gpu(const KernelDef& kernel) {
  return kernel.device_type() == DEVICE_DEFAULT && is_collective(node_for(kernel));
}

}  // namespace

void register_kernels() {
  std::map<KernelDef*, std::unique_ptr<kernel_factory::OpKernelFactory>> found;
  const char* path = std::getenv("SIMGPU_LIST");
  std::ofstream list(path != nullptr ? path : "/dev/null");
  KernelList registered = GetAllRegisteredKernels();
  for (const KernelDef& kernel : registered.kernel()) {
    if (kernel.device_type() != "GPU" && !is_for_any_gpu(kernel)) continue;
    std::string gpu = class_on("GPU", kernel), cpu = class_on_cpu(kernel);
    std::string fate = fate_of(kernel, gpu, cpu);
    list << fate << "\t" << kernel.op() << "\t" << gpu << "\t" << cpu << "\n";
    if (fate == "kept") continue;
    auto* own = new KernelDef(kernel);  // which the registry keeps
    own->set_device_type("GPU");
    own->set_priority(kernel.priority() + 100);
    if (fate == "missing")
      found[own] = std::make_unique<MissingFactory>();
    else
      found[own] = std::make_unique<ForwardFactory>();
  }
  for (auto& [kernel, factory] : found)
    kernel_factory::OpKernelRegistrar(kernel, "SimulatedGpuKernel", std::move(factory));
}

}  // namespace simgpu
