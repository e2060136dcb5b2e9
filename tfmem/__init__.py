"""tfmem: train TensorFlow models in less memory, with one line changed."""
