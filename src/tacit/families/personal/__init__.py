"""Personal models: silos learn a model together, and each keeps and uses one of its own.

methods   the methods, with what they guarantee
kernels   tuned models, models that pull at each other, and mixtures
"""
