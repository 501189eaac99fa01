"""The CNN and the MLP of the races in every framework that Tacit adapts: one module each, as a user would write it."""
