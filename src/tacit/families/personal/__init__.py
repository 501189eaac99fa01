"""Personal models: silos learn a model together, and each keeps and uses one of its own.

methods         the methods, with what they guarantee
meta_learning   gradients of a model that is tuned before it is used
model_mixture   mixtures of a few shared models
proximal        models that pull at each other
"""
