"""Values of several replicas, outside a function and inside a trace, and what stands for them."""
