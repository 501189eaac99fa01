"""A run among parties that share no memory: what the coordinator and what a silo does, as handlers of messages.

    sides        how to use them
    silo         everything that a silo does
    coordinator  everything that the server does
    analyzer     everything that the analyzer of a shuffled exchange does
    messages     what travels: a header, and a content that its sender has signed
    agreement    what all parties settle before the first round
    memory       what they find again after they were stopped

Who carries the messages is somebody else's business: any transport that knows who is who will do.
"""
