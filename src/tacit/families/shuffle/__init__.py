"""Subjects who protect what they send: local privacy, and reports that a shuffler mixes ([FLAME]).

encoders         a subject as an encoder; methods with noise on whole updates
methods          reports of single numbers, which are shuffled
proofs           the protocols, as events
shuffle_bounds   what shuffled reports cost
worker           the local work of encoders
protocol         terms, encoders, shuffler and analyzer of the exchange
exchange         the exchange, and the roles of its parties
"""
