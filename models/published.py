"""Figures that were published of TensorFlowMem (Jinliang Wei, Carnegie Mellon, 2019)."""

AVERAGE_PEAK_RATIO, AVERAGE_TIME_RATIO = 3.3, 1.85
"""Of five models: how many times less memory, at how many times the step time."""

POLICY = {
    "order": "order",
    "order and swap": "order+swap",
    "order, swap and placement": "order+swap+place",
}
"""Its techniques, one more at a time, and the modes that carry them out."""
