"""The private weighting protocol ([ULDP-FL], Protocol 1), with the repairs of specification 4.6 and 4.7.

A subject's contribution is weighted by n_su / N_u, records in this silo over records in all, though no party knows N_u:

    setup   silos share a seed, and from it r_u for each slot; the server learns B_u = r_u N_u, and encrypts 1 / B_u
    round   a silo turns Enc(1 / B_u) into Enc(C_LCM n_su / N_u), once for each person, and from these computes
            Enc(sum_u C_LCM n_su / N_u a_u + z_s) for every number of the contributions a_u; the product over silos is
            all that the server can decrypt. C_LCM, a common multiple of all possible N_u, makes the weights integers.

Against the published protocol: noise is an integer of its own and no multiple of C_LCM (A). What leaves a silo is
re-randomised and masked, so that the owner of the key cannot read how it was computed (B). N_u counts a phantom record,
so that none is 0 and weights are n_su / (1 + sum_s n_su) (C). With hidden sampling, all silos ask for the same
of M freshly encrypted slots.

    terms               what is agreed on, and whether it fits the modulus
    silo                a silo's side, a handler of messages
    server              the server's side
    exchange            the exchange as a plan sees it
    methods             the methods of the paper, which need not use this exchange
    paillier            integers that are added and multiplied while encrypted
    blinding            encryption randomness from precomputed tables, uniform also for the owner of the key
    modular_powers      products of many powers
    oblivious_transfer  1-out-of-M oblivious transfer

Processes that share the work on long integers import this package: it imports nothing.
"""
