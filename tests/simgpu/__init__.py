"""A simulated GPU for TensorFlow's stock Linux wheel: README.md."""
