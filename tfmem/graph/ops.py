"""Facts about TensorFlow's op types, in one table.

An op type that is not listed here is taken as stateful: it is never pruned, cloned, moved or
reordered against other stateful ops, shares no buffer and takes none over. Listing an op is a
promise about its kernels (TensorFlow 2.21), so each group says what it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tfmem.graph.ir import ARG, VARIABLE


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an op type.

    Attributes:
      is_stateful: it has an effect, or reads state: it runs exactly once, in its place. If not,
        the same inputs give the same values whenever and however often it runs (sums that a GPU
        adds in no fixed order, up to their rounding).
      is_random: two runs may differ.
      shares: index of the input whose buffer its outputs share; None for fresh buffers.
      inplace: indices of inputs whose buffer one output may take over (`forward_input`), the
        first that can be taken over is.
      taker: the output that takes it over.
      reads: index of the resource input that is a variable it reads; None if it reads none.
      writes: indices of the resource inputs that are variables it updates.
      is_sparse: it accesses rows of a variable and so sets it to copy-on-read: from then on each
        ReadVariableOp of it makes a copy, and so does each dense update
        (`EnsureSparseVariableAccess` in TensorFlow).
      is_shape_only: it reads the shape of its inputs, not their contents.
      is_light: elementwise, a reduction or a change of shape: cheap wherever its inputs are.
      is_collective: it ends only when its parts on other devices have begun.
      passed: index of the input whose maker passes it a buffer beside it, if that is the first
        output of one that does (`Node.passed`).
    """

    is_stateful: bool = False
    is_random: bool = False
    shares: int | None = None
    inplace: tuple[int, ...] = ()
    taker: int = 0
    reads: int | None = None
    writes: tuple[int, ...] = ()
    is_sparse: bool = False
    is_shape_only: bool = False
    is_light: bool = False
    is_collective: bool = False
    passed: int | None = None

    @property
    def uses_variable(self) -> bool:
        """Whether it reads or updates a variable."""
        return self.reads is not None or bool(self.writes)


UNKNOWN = Facts(is_stateful=True)

# Their kernels set the output to the input tensor, with the same buffer.
_VIEWS = """
    Identity Reshape Squeeze ExpandDims StopGradient PreventGradient EnsureShape Bitcast
    PlaceholderWithDefault
"""

# CWiseOp and its like: `forward_input_or_allocate_output` on the listed inputs. Each is measured in
# tests/graph/test_ops.py (CPU, TensorFlow 2.21).
_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Conj Cos Cosh Digamma Erf Erfc Erfinv Exp Expm1 Floor
    Inv Invert Lgamma Log Log1p LogicalNot Ndtri Neg Reciprocal Rint Round Rsqrt Sigmoid Sign Sin
    Sinh Sqrt Square Tan Tanh Relu Relu6 Elu Selu LeakyRelu Softplus Softsign Softmax LogSoftmax
    ClipByValue ZerosLike OnesLike Snapshot _UnaryOpsComposition FakeQuantWithMinMaxArgs
    BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e
    BesselY0 BesselY1 Dawsn Expint FresnelCos FresnelSin Spence
"""
_BINARY = """
    Add AddV2 Sub Mul MulNoNan Div DivNoNan RealDiv FloorDiv TruncateDiv FloorMod Mod TruncateMod
    Maximum Minimum Pow SquaredDifference Atan2 Xdivy Xlogy Xlog1py LogicalAnd LogicalOr BitwiseAnd
    BitwiseOr BitwiseXor LeftShift RightShift NextAfter Zeta Polygamma
    SigmoidGrad TanhGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad
    ReluGrad Relu6Grad EluGrad SeluGrad LeakyReluGrad SoftplusGrad SoftsignGrad BiasAdd
    FakeQuantWithMinMaxArgsGradient
"""
_FORWARDING = {"AddN": tuple(range(64)), "Select": (1, 2), "SelectV2": (1, 2)}
_HEAVY_FORWARDING = {
    **dict.fromkeys(
        ("MatrixBandPart", "MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"), (0,)
    ),
    **dict.fromkeys(("Cholesky", "TensorStridedSliceUpdate", "_MklLayerNorm"), (0,)),
    **dict.fromkeys(
        ("Igamma", "Igammac", "IgammaGradA", "RandomGammaGrad", "CholeskyGrad"), (0, 1)
    ),
    # oneDNN adds in place: input 3, where it has the output's size, is what is added.
    **dict.fromkeys(("_FusedMatMul", "_FusedConv2D", "_MklNativeFusedConv2D"), (3,)),
}
LOSSES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")

# Pure and light, with an output of its own, or taken to have one: some kernels here and below take
# an input over on the CPU and not on a GPU (the gradients of pooling, matrix inverses).
_LIGHT = """
    Equal NotEqual Less LessEqual Greater GreaterEqual ApproximateEqual IsFinite IsInf IsNan Cast
    Sum Mean Max Min Prod All Any EuclideanNorm L2Loss ArgMax ArgMin BiasAddGrad
    Fill Range LinSpace BroadcastTo BroadcastArgs BroadcastGradientArgs
    DynamicStitch InvertPermutation Tile Transpose ConjugateTranspose Const
    Pack Unpack ConcatV2 ConcatOffset Split SplitV Slice StridedSlice OneHot Cumsum Cumprod
    CumulativeLogsumexp Angle Complex ComplexAbs Imag Real Bucketize PopulationCount UnravelIndex
    ParallelDynamicStitch DataFormatDimMap DataFormatVecPermute
    FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
    FakeQuantWithMinMaxVarsPerChannelGradient QuantizeAndDequantizeV2 QuantizeAndDequantizeV3
    QuantizeAndDequantizeV4 QuantizeAndDequantizeV4Grad
"""

_SHAPES = "Shape ShapeN Size Rank"

# Pure, and worth its device.
_HEAVY = """
    MatMul _MklMatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 _MklBatchMatMul _MklBatchMatMulV2
    _MklFusedBatchMatMulV2 Einsum SparseMatMul

    Conv2D Conv3D _FusedConv3D _FusedDepthwiseConv2dNative
    Conv2DBackpropInput Conv2DBackpropFilter Conv3DBackpropInputV2 Conv3DBackpropFilterV2
    DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter
    Dilation2D Dilation2DBackpropInput Dilation2DBackpropFilter
    MaxPool MaxPoolV2 MaxPoolGrad MaxPoolGradGrad MaxPoolGradV2 MaxPoolGradGradV2 MaxPoolWithArgmax
    MaxPoolGradWithArgmax AvgPool AvgPoolGrad AvgPool3D AvgPool3DGrad MaxPool3D MaxPool3DGrad
    MaxPool3DGradGrad

    FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad FusedBatchNormGradV2
    FusedBatchNormGradV3 _FusedBatchNormEx _FusedBatchNormGradEx _MklFusedMish _MklSwish
    LRN LRNGrad CTCLoss CTCLossV2 CTCGreedyDecoder CTCBeamSearchDecoder EditDistance
    GRUBlockCell GRUBlockCellGrad LSTMBlockCell LSTMBlockCellGrad BlockLSTM BlockLSTMV2
    BlockLSTMGrad BlockLSTMGradV2

    Pad PadV2 MirrorPad MirrorPadGrad SpaceToDepth DepthToSpace SpaceToBatchND BatchToSpaceND
    ExtractImagePatches ExtractVolumePatches Reverse ReverseV2 ReverseSequence Roll
    Gather GatherV2 GatherNd ScatterNd ScatterNdNonAliasingAdd TensorScatterUpdate TensorScatterAdd
    TensorScatterSub TensorScatterMax TensorScatterMin StridedSliceGrad DynamicPartition
    SegmentSum SegmentSumV2 SegmentMax SegmentMean SegmentMin SegmentProd UnsortedSegmentSum
    UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
    TopK TopKV2 ApproxTopK NthElement InTopK InTopKV2 LowerBound UpperBound ListDiff Where
    Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Bincount DenseBincount HistogramFixedWidth

    SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN SparseSegmentSumWithNumSegments
    SparseSegmentMeanWithNumSegments SparseSegmentSqrtNWithNumSegments SparseSegmentSumGrad
    SparseSegmentSumGradV2 SparseSegmentMeanGrad SparseSegmentMeanGradV2 SparseSegmentSqrtNGrad
    SparseSegmentSqrtNGradV2 SparseTensorDenseMatMul SparseToDense SparseReshape SparseReorder
    SparseConcat SparseSlice SparseSliceGrad SparseSoftmax SparseReduceSum SparseReduceMax
    SparseFillEmptyRows SparseFillEmptyRowsGrad SparseAdd SparseAddGrad SparseBincount
    RaggedRange RaggedGather RaggedBincount RaggedTensorToTensor RaggedTensorToSparse

    ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeBilinear ResizeBilinearGrad ResizeBicubic
    ResizeBicubicGrad ResizeArea ScaleAndTranslate ScaleAndTranslateGrad ImageProjectiveTransformV2
    ImageProjectiveTransformV3 CropAndResize CropAndResizeGradImage CropAndResizeGradBoxes
    AdjustContrastv2 AdjustHue AdjustSaturation HSVToRGB RGBToHSV NonMaxSuppressionV2
    NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 CombinedNonMaxSuppression

    FFT FFT2D FFT3D IFFT IFFT2D IFFT3D RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D
    MatrixDiag MatrixDiagV2 MatrixDiagV3 MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
    MatrixInverse MatrixDeterminant LogMatrixDeterminant MatrixSolve MatrixSolveLs
    MatrixTriangularSolve BandedTriangularSolve TridiagonalSolve TridiagonalMatMul MatrixSquareRoot
    MatrixLogarithm Lu Qr Svd Eig SelfAdjointEigV2 Cross Betainc Diag DiagPart

    AsString StringJoin StringLength StringLower StringUpper StringStrip StringSplitV2 Substr
    StringToNumber StringToHashBucketFast StringToHashBucketStrong _TensorToHashBucketFast
    StaticRegexReplace RegexReplace ReduceJoin DecodeRaw

    TensorListReserve EmptyTensorList TensorListPushBack TensorListPopBack TensorListGetItem
    TensorListSetItem TensorListStack TensorListFromTensor TensorListLength
    TensorListElementShape TensorListConcatV2 TensorListGather TensorListScatterV2

    StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomNormal StatelessRandomNormalV2
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
    StatelessMultinomial StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3
    StatelessRandomPoisson StatelessParameterizedTruncatedNormal StatelessShuffle
    StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg RandomIndexShuffle

    StatelessIf StatelessCase StatelessWhile PartitionedCall
    NoOp
"""

_RANDOM = """
    RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal
    RandomGamma RandomPoissonV2 RandomShuffle Multinomial RngReadAndSkip StatefulUniform
    StatefulUniformInt StatefulStandardNormalV2 StatefulTruncatedNormal
"""

# Update the variables at the listed inputs, in place unless an older read of one is alive.
_UPDATES = {
    (0,): """
        AssignVariableOp AssignAddVariableOp AssignSubVariableOp
        ResourceApplyGradientDescent ResourceApplyProximalGradientDescent
    """,
    (0, 1): """
        ResourceApplyMomentum ResourceApplyKerasMomentum ResourceApplyAdagrad ResourceApplyAdagradV2
        ResourceApplyProximalAdagrad ResourceApplyPowerSign ResourceApplyAddSign
    """,
    (0, 1, 2): """
        ResourceApplyAdadelta ResourceApplyAdam ResourceApplyAdaMax ResourceApplyRMSProp
        ResourceApplyFtrl ResourceApplyFtrlV2 ResourceApplyAdagradDA
    """,
    (0, 1, 2, 3): "ResourceApplyAdamWithAmsgrad ResourceApplyCenteredRMSProp",
}

# The same by rows.
_SPARSE_UPDATES = {
    (0,): """
        ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv
        ResourceScatterMin ResourceScatterMax ResourceScatterUpdate ResourceScatterNdUpdate
        ResourceScatterNdAdd ResourceScatterNdSub ResourceScatterNdMin ResourceScatterNdMax
        ResourceSparseApplyProximalGradientDescent ResourceStridedSliceAssign
    """,
    (0, 1): """
        ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2 ResourceSparseApplyMomentum
        ResourceSparseApplyKerasMomentum ResourceSparseApplyProximalAdagrad
    """,
    (0, 1, 2): """
        ResourceSparseApplyRMSProp ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2
        ResourceSparseApplyAdadelta ResourceSparseApplyAdagradDA
    """,
    (0, 1, 2, 3): "ResourceSparseApplyCenteredRMSProp",
}

_COLLECTIVE = """
    CollectiveReduce CollectiveReduceV2 CollectiveReduceV3 CollectiveReduceScatterV2
    CollectiveGather CollectiveGatherV2 CollectiveBcastSend CollectiveBcastSendV2
    CollectiveBcastRecv CollectiveBcastRecvV2 CollectiveAllToAllV2 CollectiveAllToAllV3
    CollectivePermute CollectiveInitializeCommunicator NcclAllReduce
"""


def _group(names: str | Iterable[str], facts: Facts) -> dict[str, Facts]:
    return dict.fromkeys(names.split() if isinstance(names, str) else names, facts)


def _updates(groups: dict[tuple[int, ...], str], *, is_sparse: bool) -> dict[str, Facts]:
    return {
        op: Facts(is_stateful=True, writes=variables, is_sparse=is_sparse)
        for variables, names in groups.items()
        for op in names.split()
    }


TABLE: dict[str, Facts] = {
    **_group(_HEAVY, Facts()),
    **_group(_LIGHT, Facts(is_light=True)),
    **_group(_SHAPES, Facts(is_light=True, is_shape_only=True)),
    **_group(_VIEWS, Facts(shares=0, is_light=True)),
    **_group(_UNARY, Facts(inplace=(0,), is_light=True)),
    **_group(_BINARY, Facts(inplace=(0, 1), is_light=True)),
    **{op: Facts(inplace=inputs, is_light=True) for op, inputs in _FORWARDING.items()},
    **{op: Facts(inplace=inputs) for op, inputs in _HEAVY_FORWARDING.items()},
    **{op: Facts(inplace=(0,), taker=1) for op in LOSSES},
    **_group(_RANDOM, Facts(is_stateful=True, is_random=True)),
    **_updates(_UPDATES, is_sparse=False),
    **_updates(_SPARSE_UPDATES, is_sparse=True),
    **_group(_COLLECTIVE, Facts(is_stateful=True, is_collective=True)),
    **_group("CheckNumerics CheckNumericsV2", Facts(is_stateful=True, shares=0, is_light=True)),
    "StatelessRandomGetAlg": Facts(is_stateful=True),
    "ReadVariableOp": Facts(is_stateful=True, shares=0, reads=0),
    "ResourceGather": Facts(is_stateful=True, reads=0, is_sparse=True),
    "ResourceGatherNd": Facts(is_stateful=True, reads=0, is_sparse=True),
    "VariableShape": Facts(is_stateful=True, reads=0),
    ARG: Facts(is_stateful=True),
    VARIABLE: Facts(is_stateful=True),
}
"""What is known of each op type; see `facts_of` for those that are not here."""

TABLE["BiasAdd"] = replace(TABLE["BiasAdd"], inplace=(0,))
TABLE["CollectiveReduceV2"] = replace(TABLE["CollectiveReduceV2"], inplace=(0,))
TABLE |= {op: replace(TABLE[op], passed=1) for op in ("MaxPoolGrad", "MaxPool3DGrad")}  # oneDNN


def facts_of(op: str) -> Facts:
    """Facts about an op type; `UNKNOWN` (stateful, sharing nothing) if it is not in the table."""
    return TABLE.get(op, UNKNOWN)
