"""Noise that cancels in pairs (GOPA): silos send very noisy vectors, whose sum has little noise.

Sabater, Bellet, Ramon, "An accurate, scalable and verifiable protocol for federated differentially private averaging"
(Machine Learning 2022). A silo's vector of integers x_s is sent as

    y_s = x_s + eta_s + sum_{r > s} delta_sr - sum_{r < s} delta_sr        over the silos r that s shares noise with

with eta_s of its own and delta_sr that two silos draw from a key they share. The delta cancel in the sum, exactly; to
a party that sees all messages they are noise with covariance s_delta^2 L, L the Laplacian of the graph. For a silo that
has vanished, its peers show the keys that they shared with it, and the delta are taken away.

    protocol   terms, a silo's side and the server's side
    exchange   the exchange as a plan sees it
    proofs     what messages reveal about a silo
"""
