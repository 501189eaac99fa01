"""Without a server: nodes average with their neighbours, or hand a model on from one to the next.

methods           gossip and walks, with what they guarantee
node_clip         the bound on what a node sends
graphs            graphs, and the weights with which neighbours average
kernels           noise of nodes, and steps of a walk
worker            the local work of nodes
exchange          nodes send to each other
proofs            what nodes learn of each other
random_walk       what a token that walks between nodes costs
network           the graph of a plan, with epsilon from node to node
network_section   the same in the report of a run
"""
