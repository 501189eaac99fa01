"""A run among parties that share no memory.

What they say to each other, as handlers of messages that any transport may carry:

    sides        how to use them
    silo         everything that a silo does
    coordinator  everything that the server does
    analyzer     everything that the analyzer of a shuffled exchange does
    messages     what travels: a header, and a content that its sender has signed
    agreement    what all parties settle before the first round
    memory       what they find again after they were stopped

And a federation of organisations that carries them:

    kits         certificates, keys, and what everybody may be made to do
    request      an experiment that means the same wherever it is read
    shard        the silo's own table
    policy       what the silo allows, and its ledger
    ledgers      which ledgers the silo's kit knows
    envelope     what goes around a message; a refusal is the name of a rule
    host         the process of a silo, and that of the server
    job, flare   NVFlare, which carries it all
    processes    starting them
    requester    asking for a run, following it, collecting it
    trial        all of it on one machine
"""
