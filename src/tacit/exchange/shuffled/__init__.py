"""The shuffled exchange: single reports, filled up, cut and mixed by a shuffler, added up by an analyzer ([FLAME]).

terms      what all parties agree on, and the form of messages
encoder    one person: seals reports for the analyzer, one by one
shuffler   takes them from all people, forgets whose they are, fills up, cuts and mixes
analyzer   opens and adds up
mixing     what is cut, and what is missing
roles      the server as the shuffler, and a silo as the place of its people's encoders
exchange   what each of them learns
"""

from tacit.exchange.shuffled.analyzer import Analyzer
from tacit.exchange.shuffled.encoder import Collected, Encoders, ShuffledEncoder
from tacit.exchange.shuffled.exchange import OpenSession, Shuffled
from tacit.exchange.shuffled.roles import ShuffledServer, ShuffledSilo
from tacit.exchange.shuffled.shuffler import Shuffler
from tacit.exchange.shuffled.terms import ShuffledTerms

__all__ = [
    "Analyzer",
    "Collected",
    "Encoders",
    "OpenSession",
    "Shuffled",
    "ShuffledEncoder",
    "ShuffledServer",
    "ShuffledSilo",
    "ShuffledTerms",
    "Shuffler",
]
