"""A whole model on a GPU, its weights in host memory or not: the section `transformer`."""
