"""A ReActNet block in training whose operations between convolutions are Triton kernels."""
