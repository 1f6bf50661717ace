"""Section `transformer`: a whole model on a GPU, with weights in host or device memory."""
