"""More arguments for ops: layers, pictures, random numbers, sparse tensors and variables."""

from __future__ import annotations

import tensorflow as tf

from tests.simgpu.op_cases import COMPLEX, FLOATS, INTEGERS, SINGLE, WIDE, Draw, Made, case, ints

HALVES = (tf.float32, tf.float16, tf.bfloat16)
STRIDES, SIZE = {"strides": [1, 2, 2, 1], "padding": "SAME"}, {"ksize": [1, 2, 2, 1]}
STRIDES_3D = {"strides": [1, 2, 2, 2, 1], "padding": "SAME"}
POOL, POOL_3D = STRIDES | SIZE, STRIDES_3D | {"ksize": [1, 2, 2, 2, 1]}

# --- convolution and pooling

case("Conv2D", lambda d: ([d(2, 8, 8, d.n), d(3, 3, d.n, 4)], STRIDES))
case(
    "Conv2DBackpropInput", lambda d: ([ints(2, 8, 8, d.n), d(3, 3, d.n, 4), d(2, 4, 4, 4)], STRIDES)
)
case(
    "Conv2DBackpropFilter",
    lambda d: ([d(2, 8, 8, d.n), ints(3, 3, d.n, 4), d(2, 4, 4, 4)], STRIDES),
)
case("Conv3D", lambda d: ([d(1, 4, 4, 4, d.n), d(2, 2, 2, d.n, 3)], STRIDES_3D))
case(
    "Conv3DBackpropInputV2",
    lambda d: ([ints(1, 4, 4, 4, d.n), d(2, 2, 2, d.n, 3), d(1, 2, 2, 2, 3)], STRIDES_3D),
)
case(
    "Conv3DBackpropFilterV2",
    lambda d: ([d(1, 4, 4, 4, d.n), ints(2, 2, 2, d.n, 3), d(1, 2, 2, 2, 3)], STRIDES_3D),
)
case("DepthwiseConv2dNative", lambda d: ([d(2, 8, 8, d.n), d(3, 3, d.n, 2)], STRIDES))
case(
    "DepthwiseConv2dNativeBackpropInput",
    lambda d: ([ints(2, 8, 8, d.n), d(3, 3, d.n, 2), d(2, 4, 4, 2 * d.n)], STRIDES),
)
case(
    "DepthwiseConv2dNativeBackpropFilter",
    lambda d: ([d(2, 8, 8, d.n), ints(3, 3, d.n, 2), d(2, 4, 4, 2 * d.n)], STRIDES),
)

DILATED = {"strides": [1, 1, 1, 1], "rates": [1, 2, 2, 1], "padding": "SAME"}
case("Dilation2D", lambda d: ([d(2, 8, 8, d.n), d(3, 3, d.n)], DILATED))
case(
    "Dilation2DBackpropInput Dilation2DBackpropFilter",
    lambda d: ([d(2, 8, 8, d.n), d(3, 3, d.n), d(2, 8, 8, d.n)], DILATED),
)

case("AvgPool", lambda d: ([d(2, 8, 8, d.n)], POOL))
case("MaxPool", lambda d: ([d(2, 8, 8, d.n)], POOL))
case(
    "MaxPoolV2",
    lambda d: ([d(2, 8, 8, d.n), ints(1, 2, 2, 1), ints(1, 2, 2, 1)], {"padding": "SAME"}),
)
case("AvgPool3D MaxPool3D", lambda d: ([d(1, 4, 4, 4, d.n)], POOL_3D))
case("AvgPoolGrad", lambda d: ([ints(2, 8, 8, d.n), d(2, 4, 4, d.n)], POOL))
case("AvgPool3DGrad", lambda d: ([ints(1, 4, 4, 4, d.n), d(1, 2, 2, 2, d.n)], POOL_3D))
case("MaxPoolWithArgmax", lambda d: ([d(2, 8, 8, d.n)], POOL))


def pooled(d: Draw) -> tuple[tf.Tensor, tf.Tensor]:
    """A picture, and what it is pooled to."""
    x = d(2, 8, 8, d.n)
    return x, tf.cast(tf.nn.max_pool2d(tf.cast(x, tf.float32), 2, 2, "SAME"), d.dtype)


def pooled_3d(d: Draw) -> tuple[tf.Tensor, tf.Tensor]:
    """As `pooled`, of three dimensions."""
    x = d(1, 4, 4, 4, d.n)
    return x, tf.cast(tf.nn.max_pool3d(tf.cast(x, tf.float32), 2, 2, "SAME"), d.dtype)


case("MaxPoolGrad", lambda d: ([*pooled(d), d(2, 4, 4, d.n)], POOL))
case("MaxPoolGradGrad", lambda d: ([*pooled(d), d(2, 8, 8, d.n)], POOL), SINGLE)
case(
    "MaxPoolGradV2",
    lambda d: (
        [*pooled(d), d(2, 4, 4, d.n), ints(1, 2, 2, 1), ints(1, 2, 2, 1)],
        {"padding": "SAME"},
    ),
)
case(
    "MaxPoolGradGradV2",
    lambda d: (
        [*pooled(d), d(2, 8, 8, d.n), ints(1, 2, 2, 1), ints(1, 2, 2, 1)],
        {"padding": "SAME"},
    ),
    SINGLE,
)
case("MaxPool3DGrad", lambda d: ([*pooled_3d(d), d(1, 2, 2, 2, d.n)], POOL_3D), SINGLE)
case("MaxPool3DGradGrad", lambda d: ([*pooled_3d(d), d(1, 4, 4, 4, d.n)], POOL_3D), SINGLE)
case(
    "MaxPoolGradWithArgmax",
    lambda d: (
        [d(1, 8, 8, d.n), d(1, 4, 4, d.n), d.index(8 * 8 * d.n, 1, 4, 4, d.n, dtype=tf.int64)],
        POOL,
    ),
    WIDE,
)
case(
    "ExtractVolumePatches",
    lambda d: ([d(1, 4, 4, 4, d.n)], {"ksizes": [1, 2, 2, 2, 1], **STRIDES_3D}),
)

# --- normalisation, losses, cells

case("BiasAdd", lambda d: [d(2, 4, 4, d.n), d(d.n)])
case("BiasAddV1", lambda d: [d(2, d.n), d(d.n)])
case("BiasAddGrad", lambda d: [d(2, 4, 4, d.n)])


def normalised(d: Draw) -> Made:
    """Pictures, scale, offset, and the mean and variance of none."""
    others = [d(d.n, dtype=tf.float32) for _ in range(2)]
    return [d(2, 4, 4, d.n), *others, [], []], {}


def normalised_gradient(d: Draw, reserved: int = 2) -> Made:
    """Two pictures, the scale, and what was kept."""
    kept = [d(d.n, dtype=tf.float32) for _ in range(1 + reserved)]
    return [d(2, 4, 4, d.n), d(2, 4, 4, d.n), *kept], {}


case("FusedBatchNorm", normalised, SINGLE)
case("FusedBatchNormV2 FusedBatchNormV3", normalised, HALVES)
case("FusedBatchNormGrad", normalised_gradient, SINGLE)
case("FusedBatchNormGradV2", normalised_gradient, HALVES)
case("FusedBatchNormGradV3", lambda d: normalised_gradient(d, 3), HALVES)
case("LRN", lambda d: [d(2, 4, 4, d.n)], HALVES)
case("LRNGrad", lambda d: [d(2, 4, 4, d.n) for _ in range(3)], HALVES)
case("SoftmaxCrossEntropyWithLogits", lambda d: [d(d.n, 5), d(d.n, 5)])
case("SparseSoftmaxCrossEntropyWithLogits", lambda d: [d(d.n, 5), d.index(5, d.n)])
case(
    "GRUBlockCell", lambda d: [d(2, d.n), d(2, 3), d(d.n + 3, 6), d(d.n + 3, 3), d(6), d(3)], SINGLE
)
case(
    "LSTMBlockCell",
    lambda d: [d(2, d.n), d(2, 3), d(2, 3), d(d.n + 3, 12), d(3), d(3), d(3), d(12)],
    SINGLE,
)
case(
    "BlockLSTM BlockLSTMV2",
    lambda d: [
        tf.constant(4, tf.int64),
        d(4, 2, d.n),
        d(2, 3),
        d(2, 3),
        d(d.n + 3, 12),
        d(3),
        d(3),
        d(3),
        d(12),
    ],
    SINGLE,
)
case("FakeQuantWithMinMaxArgs", lambda d: [d.signed(d.n, 3)], SINGLE)
case("FakeQuantWithMinMaxArgsGradient", lambda d: [d(d.n, 3), d.signed(d.n, 3)], SINGLE)
case("FakeQuantWithMinMaxVars", lambda d: [d.signed(d.n, 3), tf.constant(-0.5), d()], SINGLE)
case(
    "FakeQuantWithMinMaxVarsGradient",
    lambda d: [d(d.n, 3), d.signed(d.n, 3), tf.constant(-0.5), d()],
    SINGLE,
)
case("FakeQuantWithMinMaxVarsPerChannel", lambda d: [d.signed(d.n, 3), -d(3), d(3)], SINGLE)
case(
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    lambda d: [d(d.n, 3), d.signed(d.n, 3), -d(3), d(3)],
    SINGLE,
)
RANGE = {"range_given": True}
case(
    "QuantizeAndDequantizeV2 QuantizeAndDequantizeV4",
    lambda d: ([d(d.n, 3), 0.2, 0.8], RANGE),
    SINGLE,
)
case("QuantizeAndDequantizeV3", lambda d: ([d(d.n, 3), 0.2, 0.8, 8], RANGE), SINGLE)
case("QuantizeAndDequantizeV4Grad", lambda d: [d(d.n, 3), d(d.n, 3), 0.2, 0.8], SINGLE)

# --- pictures

case("RGBToHSV HSVToRGB", lambda d: [d(2, d.n, 4, 3)])
case("ResizeBilinear ResizeNearestNeighbor", lambda d: [d(2, 4, 4, d.n), ints(7, 6)])
case("ResizeBilinearGrad", lambda d: [d(2, 7, 6, d.n, dtype=tf.float32), d(2, 4, 4, d.n)], HALVES)
case("ResizeNearestNeighborGrad", lambda d: [d(2, 7, 6, d.n), ints(4, 4)])


def boxes(d: Draw) -> list[tf.Tensor]:
    """Boxes in pictures, and which pictures these are."""
    corners = tf.sort(d(5, 2, 2, dtype=tf.float32), axis=1)
    return [tf.reshape(corners, [5, 4]), d.index(2, 5)]


case("CropAndResize", lambda d: [d(2, 8, 8, d.n), *boxes(d), ints(3, 3)])
case(
    "CropAndResizeGradImage",
    lambda d: ([d(5, 3, 3, d.n, dtype=tf.float32), *boxes(d), ints(2, 8, 8, d.n)], {"T": d.dtype}),
)
case(
    "CropAndResizeGradBoxes",
    lambda d: [d(5, 3, 3, d.n, dtype=tf.float32), d(2, 8, 8, d.n), *boxes(d)],
)
TURN = tf.constant([[1.0, 0.1, 0.5, -0.1, 1.0, 0.2, 0.0, 0.0]])
NEAREST = {"interpolation": "NEAREST"}
case("ImageProjectiveTransformV2", lambda d: ([d(1, 5, 5, d.n), TURN, ints(5, 5)], NEAREST), WIDE)
case(
    "ImageProjectiveTransformV3",
    lambda d: ([d(1, 5, 5, d.n), TURN, ints(5, 5), 0.0], NEAREST),
    WIDE,
)
case("NonMaxSuppressionV2", lambda d: [boxes(d)[0], d(5), 3, 0.5], SINGLE)
case("NonMaxSuppressionV3 NonMaxSuppressionV4", lambda d: [boxes(d)[0], d(5), 3, 0.5, 0.1], SINGLE)

# --- random numbers of a seed

SEED, KEY, COUNTER = ints(1, 2), tf.constant([7], tf.uint64), tf.constant([1, 2], tf.uint64)
case(
    "StatelessRandomNormal StatelessRandomUniform StatelessTruncatedNormal",
    lambda d: ([ints(d.n, 5), SEED], {"dtype": d.dtype}),
)
case(
    "StatelessRandomNormalV2 StatelessRandomUniformV2 StatelessTruncatedNormalV2",
    lambda d: ([ints(d.n, 5), KEY, COUNTER, 1], {"dtype": d.dtype}),
)
case(
    "StatelessRandomUniformInt",
    lambda d: [ints(d.n, 5), SEED, tf.cast(3, d.dtype), tf.cast(90, d.dtype)],
    (tf.int32, tf.int64),
)
case(
    "StatelessRandomUniformIntV2",
    lambda d: [ints(d.n, 5), KEY, COUNTER, 1, tf.cast(3, d.dtype), tf.cast(90, d.dtype)],
    (tf.int32, tf.int64),
)
case(
    "StatelessRandomUniformFullInt",
    lambda d: ([ints(d.n, 5), SEED], {"dtype": d.dtype}),
    (tf.int32, tf.int64),
)
case(
    "StatelessRandomUniformFullIntV2",
    lambda d: ([ints(d.n, 5), KEY, COUNTER, 1], {"dtype": d.dtype}),
    (tf.int32, tf.int64),
)
case("StatelessMultinomial", lambda d: [d(d.n, 5), 4, SEED])

# --- sparse tensors [4, 5], of three numbers

INDICES = tf.constant([[0, 1], [2, 0], [2, 4]], tf.int64)
SHAPE = tf.constant([4, 5], tf.int64)
SPARSE = (*WIDE, tf.int32, tf.int64)

case("SparseTensorDenseMatMul", lambda d: [INDICES, d(3), SHAPE, d(5, d.n)], (*WIDE, *COMPLEX))
case("SparseToDense", lambda d: [INDICES, SHAPE, d(3), d()], SPARSE)
case("SparseFillEmptyRows", lambda d: [INDICES, d(3), SHAPE, d()], SPARSE)
case("SparseFillEmptyRowsGrad", lambda d: [tf.constant([2, 0, 1], tf.int64), d(3 + d.n)], SPARSE)
case(
    "SparseConcat",
    lambda d: ([[INDICES, INDICES], [d(3), d(3)], [SHAPE, SHAPE]], {"concat_dim": 1}),
    SPARSE,
)
case("SparseReorder", lambda d: [INDICES[::-1], d(3), SHAPE], SPARSE)
case("SparseReshape", lambda d: [INDICES, SHAPE, tf.constant([2, 10], tf.int64)], SINGLE)
case(
    "SparseSlice",
    lambda d: [INDICES, d(3), SHAPE, ints(1, 0, dtype=tf.int64), ints(2, 5, dtype=tf.int64)],
    SPARSE,
)
case(
    "SparseSplit",
    lambda d: ([tf.constant(0, tf.int64), INDICES, d(3), SHAPE], {"num_split": 2}),
    SPARSE,
)

# --- variables: the first inputs are their values, which the op changes

UPDATED = (*FLOATS, *COMPLEX)


def rates(d: Draw, count: int) -> list[tf.Tensor]:
    """Learning rates and the like."""
    return [d() for _ in range(count)]


def variables(d: Draw, count: int) -> list[tf.Variable]:
    """Variables [n, 3]."""
    return [tf.Variable(d(d.n, 3)) for _ in range(count)]


def applied(ops: str, slots: int, scalars: int, dtypes: tuple[tf.DType, ...] = FLOATS) -> None:
    """An optimizer's update: variable and slots, scalars, the gradient."""
    case(ops, lambda d: [*variables(d, 1 + slots), *rates(d, scalars), d(d.n, 3)], dtypes)


applied("ResourceApplyAdagrad", 1, 1)
applied("ResourceApplyAdagradV2", 1, 2)
applied("ResourceApplyAdadelta", 2, 3)
applied("ResourceApplyAdam", 2, 6)
applied("ResourceApplyAdaMax", 2, 5)
applied("ResourceApplyAdamWithAmsgrad", 3, 6)
applied("ResourceApplyRMSProp", 2, 4)
applied("ResourceApplyCenteredRMSProp", 3, 4)
applied("ResourceApplyAddSign ResourceApplyPowerSign", 1, 4)
case("ResourceApplyGradientDescent", lambda d: [*variables(d, 1), d(), d(d.n, 3)])
case(
    "ResourceApplyMomentum ResourceApplyKerasMomentum",
    lambda d: [*variables(d, 2), d(), d(d.n, 3), d()],
)
case("ResourceApplyFtrl", lambda d: [*variables(d, 3), d(d.n, 3), *rates(d, 4)])
case("ResourceApplyFtrlV2", lambda d: [*variables(d, 3), d(d.n, 3), *rates(d, 5)])
case("ResourceSparseApplyAdagrad", lambda d: [*variables(d, 2), d(), d(2, 3), ints(0, 1)])
case("ResourceSparseApplyAdagradV2", lambda d: [*variables(d, 2), d(), d(), d(2, 3), ints(0, 1)])
case(
    "ResourceSparseApplyKerasMomentum", lambda d: [*variables(d, 2), d(), d(2, 3), ints(0, 1), d()]
)
case(
    "ResourceSparseApplyFtrl", lambda d: [*variables(d, 3), d(2, 3), ints(0, 1), *rates(d, 3), -d()]
)
case(
    "AssignAddVariableOp AssignSubVariableOp",
    lambda d: [*variables(d, 1), d(d.n, 3)],
    (*UPDATED, *INTEGERS),
)
case(
    "ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv "
    "ResourceScatterMax ResourceScatterMin ResourceScatterUpdate",
    lambda d: [*variables(d, 1), ints(0, 1), d(2, 3)],
)
case(
    "ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdUpdate ResourceScatterNdMax "
    "ResourceScatterNdMin",
    lambda d: [*variables(d, 1), ints(0, 1)[:, None], d(2, 3)],
)
case("ResourceGather", lambda d: ([*variables(d, 1), d.index(d.n, 4)], {"dtype": d.dtype}), UPDATED)
case(
    "ResourceGatherNd",
    lambda d: ([*variables(d, 1), d.index(2, 4, 2)], {"dtype": d.dtype}),
    UPDATED,
)
case(
    "ResourceStridedSliceAssign",
    lambda d: [*variables(d, 1), ints(0, 0), ints(2, 2), ints(1, 1), d(2, 2)],
    UPDATED,
)
