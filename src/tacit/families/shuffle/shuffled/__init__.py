"""The shuffled exchange: single reports, filled up, cut and mixed by a shuffler, added up by an analyzer ([FLAME]).

terms      what all parties agree on, and the form of messages
encoder    one person: seals reports for the analyzer, one by one
shuffler   takes them from all people, forgets whose they are, fills up, cuts and mixes
analyzer   opens and adds up
mixing     what is cut, and what is missing
roles      the server as the shuffler, and a silo as the place of its people's encoders
exchange   what each of them learns
"""
