"""Figures that were published of TensorFlowMem (Jinliang Wei, Carnegie Mellon, 2019)."""

AVERAGE_PEAK_RATIO, AVERAGE_TIME_RATIO = 3.3, 1.85
"""Of five models: how many times less memory, at how many times the step time."""

POLICY = {
    "order": "order",
    "order and swap": "order+swap",
    "order, swap and placement": "order+swap+place",
}
"""Its techniques, one more at a time, and the modes that carry them out."""

LARGEST_MOE = "0.24 and 2.5 billion parameters, 10.4 times (12 GB GPU)"
DISTRIBUTED_MOE = (
    "3 billion parameters on 4 machines and 5 on 16; 6 on the same 4, and 12 with tensors split"
)
LONGEST_DEEPSPEECH = "400 and 800 frames, 2 times, at 1.30 to 1.36 times the time"

DEEPEST_RESNET = {16: (504, 1916), 32: (235, 1001)}
"""By batch, of TensorFlow and of TensorFlowMem."""
