"""Search on a GPU: the index in the card's memory, the kernels over it, and the choice of the card."""
