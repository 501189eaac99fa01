"""Without a server: nodes average with their neighbours, or pass a model from one to the next.

methods           gossip and walks, the bound on what a node sends, and what is guaranteed
graphs            graphs, and the weights with which neighbours average
kernels           noise of nodes, and steps of a walk
worker            the local work of nodes
exchange          nodes send to each other; the graph of a plan, with epsilon from node to node
proofs            what nodes learn of each other
random_walk       what a token that walks between nodes costs
network_section   the graph in the report of a run
"""
