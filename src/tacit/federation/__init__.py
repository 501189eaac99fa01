"""A run among organisations that share no memory.

protocol     what parties say to each other, as handlers of messages that any transport may carry: silo,
             coordinator, analyzer, their agreement before the first round (``sides`` says how to use them)
site         one organisation: its table, its policy, its ledgers, its process
carrier      NVFlare, which carries the messages: jobs, envelopes, processes
server_host  the process of the server
kits         certificates, keys, and what each party may be asked to do
request      an experiment that means the same wherever it is read
requester    asking for a run, following it, collecting it
demo         all of it on one machine
"""
