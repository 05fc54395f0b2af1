"""Where the numbers of a run go besides its own files: TensorBoard, Weights & Biases, Prometheus, or a writer of your own."""
