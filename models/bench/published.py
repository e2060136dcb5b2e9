"""Figures that were published of TensorFlowMem (Jinliang Wei, Carnegie Mellon, 2019)."""

PEAK_AND_TIME = {
    "moe_transformer": (6.0, 3.5),
    "average": (3.3, 1.85),
    "average without the MoE model": (2.9, 1.45),
}
"""How many times less memory, at how many times the step time."""

POLICY = {
    "order": "order",
    "order and swap": "order+swap",
    "order, swap and placement": "order+swap+place",
}
"""Its techniques, one more at a time, and the modes that carry them out."""

LARGEST_MOE = ("0.24 B parameters", "2.5 B, 10.4 times")
DISTRIBUTED_MOE = ("3 B parameters", "6 B; 12 B with big tensors split, 4 times", "5 B")
"""Of TensorFlow on 4 machines, of TensorFlowMem on the same, of TensorFlow on 16."""

LONGEST_DEEPSPEECH = ("400 frames", "800, 2 times")
DEEPSPEECH_SECONDS = {
    100: (1.15, 1.56),
    200: (2.31, 3.03),
    400: (4.65, 6.03),
    500: (None, None),
    800: (None, 12.01),
}
"""Seconds of a mini-batch by frames; None where it was out of memory or not said."""

DEEPEST_RESNET = {
    16: ("depth 504", "1916, 3.8 times"),
    32: ("depth 235", "1001, 4.3 times"),
}
"""By batch. Pairs are of TensorFlow and of TensorFlowMem."""
